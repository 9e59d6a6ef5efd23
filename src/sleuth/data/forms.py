"""Questions made of sentences by their form, without a model: who, when, where, how many, what.

A sentence must begin with a name, or with `In 1948,` and a name; what follows decides the question.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from sleuth.data.spans import MONTH, STOP_WORDS, sentences

WORD = r"[A-Z][\w'\u2019-]*(?:\.(?=[A-Z]| [A-Z]))?"
NAME = rf"(?:[Tt]he )?{WORD}(?: (?:of the |of |de |von |van |for |the )?{WORD})*"
DAY = rf"(?:{MONTH}) \d{{1,2}}, \d{{4}}|\d{{1,2}} (?:{MONTH}) \d{{4}}|(?:{MONTH}) \d{{4}}"
DATE = rf"(?:{DAY}|1[0-9]{{3}}|20[0-2][0-9])\b(?![\u2013-])"
SUBJECT = rf"(?P<name>(?:He|She|It|{NAME})\b)"
BORDER = "and|but|which|who|where|when|while|as|after|before|although|because|until|since|that|with|making"
REST = rf"(?:(?! (?:{BORDER})\b)[^,;:.()\"]){{0,70}}?"
"""Words that do not go beyond a clause."""
END = rf"(?<![ .][A-Z])(?=[,;.(]|$| (?:{BORDER})\b)"
BE = "(?P<be>was|were|is|are)"
DONE = r"(?P<done>(?:first |originally |officially )?(?:\w{2,}ed|born|built|held|sold|won))"
PLACED = "born|located|situated|held|headquartered|based|buried|built|founded|established|raised|educated"
COUNT = r"\d[\d,.]*\d|\d|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|twenty|thirty|forty|fifty"
PAST: dict[str, str] = dict(
    re.findall(
        r"(\w+):(\w+)",
        """
    won:win became:become began:begin wrote:write died:die moved:move joined:join released:release opened:open
    founded:found signed:sign started:start returned:return married:marry retired:retire graduated:graduate
    received:receive published:publish established:establish acquired:acquire launched:launch made:make built:build
    created:create left:leave led:lead lost:lose sold:sell bought:buy introduced:introduce defeated:defeat ended:end
    invaded:invade captured:capture conquered:conquer discovered:discover invented:invent formed:form closed:close
    announced:announce adopted:adopt completed:complete entered:enter took:take gave:give ran:run hosted:host
    recorded:record produced:produce purchased:purchase ceased:cease declared:declare visited:visit played:play
    appeared:appear served:serve attended:attend worked:work competed:compete debuted:debut performed:perform
    passed:pass approved:approve reached:reach surrendered:surrender arrived:arrive traveled:travel merged:merge
    changed:change collapsed:collapse expanded:expand resigned:resign premiered:premiere issued:issue renamed:rename
    sank:sink fell:fall came:come went:go met:meet held:hold earned:earn starred:star lived:live
    """,
    )
)
"""Verbs of the past that may follow a name, with what follows `did`."""
ALONE = {"began", "died", "retired", "married", "started", "opened", "closed", "ended", "resigned"}
"""Those that need nothing behind them."""
DID = rf"(?P<did>{'|'.join(PAST)})"
PERSON = re.compile(
    r"\b(?:\w*(?:man|woman|ist|ian|king|queen)|president|chairman|leader|founder|head|director|author|writer|singer|son|"
    r"daughter|mayor|pope|bishop|judge|captain|coach|player|emperor|minister|governor|secretary|brother|sister|wife)\b"
)
TOPICS = frozenset(("He", "She", "It"))
PRONOUNS = frozenset(
    re.findall(r"\w+", "this these those there its another each both many several however although thus")
)
CAPITAL = re.compile(r"[A-Z]\w|\d{4}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Formed:
    """A question that the characters [start, end) of a text answer, which names its `subject`; `description` is what
    the sentence says of the answer: `the one that founded Tarn`. Either may be empty."""

    question: str
    start: int
    end: int
    subject: str = ""
    description: str = ""


def formed(text: str, title: str) -> Iterator[Formed]:
    """The questions that the sentences of a text have the form for. `title` completes a part of a name: `Pasarell` is
    `Charlie Pasarell` in the passage of that title, and so is `he` where the sentences before it are about him."""
    title = re.sub(r"\s*\(.*", "", title)
    of_title = False
    for begin, stop in sentences(text):
        sentence = text[begin:stop]
        first = sentence.split(" ", 1)[0].strip(",.")
        of_title = first in title.split() or (of_title and first in TOPICS)
        for pattern, template in FORMS:
            if (match := pattern.match(sentence)) is None:
                continue
            parts = {key: value or "" for key, value in match.groupdict().items()}
            subject = _whole(parts.get("name", parts["answer"]), title if of_title else "", text)
            if subject is None or parts["answer"] in TOPICS:
                continue
            if template == WHO and (" " not in subject or not CAPITAL.search(parts["rest"])):
                continue
            if parts.get("did", "died") not in ALONE and not parts["rest"]:
                continue
            asked = template.format(**parts | _words(parts, subject))
            start = begin + match.start("answer")
            yield Formed(
                question=" ".join(asked.split()) + "?",
                start=start,
                end=start + len(parts["answer"]),
                subject=subject if "name" in parts else "",
                description=" ".join(DESCRIPTIONS.get(template, "").format(**parts).split()),
            )


def _words(parts: dict[str, str], subject: str) -> dict[str, str]:
    """What a template is filled with besides the parts of the sentence."""
    person = PERSON.search(parts.get("what", ""))
    return {
        "name": subject,
        "do": PAST.get(parts.get("did", ""), ""),
        "who": "Who" if person else "What",
        "does": "did" if parts.get("has") == "had" else "do" if parts.get("has") == "have" else "does",
    }


def _whole(name: str, title: str, text: str) -> str | None:
    """The name, whole if the title has more of it; None for a word that has its capital as the first of a sentence."""
    words = name.removeprefix("The ").split()
    if title and (name in TOPICS or all(word in title.split() for word in words)):
        return title
    if words[0].lower() in STOP_WORDS | PRONOUNS or words[-1].lower() in STOP_WORDS:
        return None
    if len(words) == 1 and not re.search(rf"[a-z,] {re.escape(words[0])}\b", text):
        return None
    return re.sub(r"^The ", "the ", name)


WHO, WHAT = "Who {did}{rest}", "{who} {be} {what}"
DESCRIPTIONS = {WHO: "the one that {did}{rest}", WHAT: "{what}"}
FORMS = [
    (re.compile(pattern), template)
    for pattern, template in (
        (rf"(?P<name>{NAME})[^()]{{0,30}}\((?:[^()]*\b)?born (?:[^()\d]* )?(?P<answer>{DATE})", "When was {name} born"),
        (
            rf"{SUBJECT} {BE} {DONE}(?P<rest>{REST}) (?:in|on) (?P<answer>{DATE})",
            "When {be} {name} {done}{rest}",
        ),
        (rf"{SUBJECT} {DID}(?P<rest>{REST}) (?:in|on) (?P<answer>{DATE})", "When did {name} {do}{rest}"),
        (
            rf"(?:In|On) (?P<answer>{DATE}),? {SUBJECT} {BE} {DONE}(?P<rest>{REST}){END}",
            "When {be} {name} {done}{rest}",
        ),
        (
            rf"(?:In|On) (?P<answer>{DATE}),? {SUBJECT} {DID}(?P<rest>{REST}){END}",
            "When did {name} {do}{rest}",
        ),
        (
            rf"{SUBJECT} {BE} (?P<done>{PLACED})(?P<rest>{REST}) (?:in|at|near) (?P<answer>{NAME}(?:, {NAME})?)",
            "Where {be} {name} {done}{rest}",
        ),
        (rf"{SUBJECT} {BE} (?P<done>\w+) by (?P<answer>{NAME})", "By whom {be} {name} {done}"),
        (
            rf"{SUBJECT} (?P<has>has|had|have) (?:a total of |about |around |some )?(?P<answer>{COUNT}) "
            rf"(?P<what>[a-z-]+(?: [a-z-]+){{0,2}}?){END}",
            "How many {what} {does} {name} have",
        ),
        (rf"(?P<answer>{NAME}) (?P<be>is|was) (?P<what>the {REST}\b(?:of|in|to|for) {NAME}){END}", WHAT),
        (rf"(?P<answer>{NAME}) {DID}(?P<rest> {REST}){END}", WHO),
    )
]
"""What a sentence begins with, and the question about the part `answer`."""
