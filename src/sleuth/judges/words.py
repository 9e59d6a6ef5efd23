"""English words that the lexical judge has to know."""

from __future__ import annotations


def _words(lines: str) -> tuple[str, ...]:
    return tuple(lines.split())


MONTHS = _words("jan feb mar apr may jun jul aug sep oct nov dec")
NUMBERS = dict(zip(_words("two three four five six seven eight nine ten eleven twelve"), range(2, 13), strict=True))
"""Not `one`, which is more often a pronoun."""
MULTIPLES = {"hundred": 1e2, "thousand": 1e3, "million": 1e6, "billion": 1e9, "trillion": 1e12}
PRONOUNS = frozenset(_words("he she it they his her its their this that these those there"))
DENIALS = frozenset(_words("not no never none neither nor without cannot nobody nothing"))
TITLES = frozenset(_words("dr mr mrs ms sir prof professor"))
IRREGULAR = dict(
    form.split(":")
    for form in _words(
        "wrote:write written:write made:make met:meet began:begin begun:begin became:become built:build found:find "
        "won:win held:hold led:lead left:leave grew:grow grown:grow gave:give given:give took:take taken:take "
        "came:come went:go gone:go said:say told:tell knew:know known:know saw:see seen:see fell:fall fallen:fall "
        "rose:rise risen:rise sold:sell taught:teach thought:think died:die showed:show shown:show drew:draw "
        "drawn:draw spoke:speak spoken:speak sang:sing sung:sing chose:choose chosen:choose lost:lose brought:bring"
    )
)
"""Forms of verbs that no ending tells."""
STOP = (
    frozenset(
        _words(
            "a about after again against all also am an and any are as at be because been before being below between "
            "both but by can could did do does doing down during each either else ever every few for from further had "
            "has have having here him how however i if in into is just may me might more most much must my of off on "
            "once one only onto or other our out over own same shall should since so some such than the them then "
            "through thus till to under until up upon us very was we were what when where whether which while who whom "
            "whose why will with within would yet you your"
        )
    )
    | PRONOUNS
    | DENIALS
    | TITLES
)
"""Words that say too little to be looked for."""
