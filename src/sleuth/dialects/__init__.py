"""Search protocols as data, one file each."""

from sleuth.dialects.chat import CHAT
from sleuth.dialects.dialect import BUDGETS, Dialect, Frame, Tags, Tool
from sleuth.dialects.reading import READING
from sleuth.dialects.research import RESEARCH, RESEARCH_CARD
from sleuth.dialects.search_r1 import SEARCH_R1
from sleuth.dialects.sleuth import SLEUTH
from sleuth.dialects.slime import SLIME
from sleuth.dialects.verl import VERL
from sleuth.types import SleuthError

DIALECTS: dict[str, Dialect] = {
    dialect.name: dialect for dialect in (SLEUTH, SEARCH_R1, SLIME, VERL, RESEARCH, RESEARCH_CARD, CHAT, READING)
}


def dialect_of(name: str) -> Dialect:
    """The dialect of this name. Raises SleuthError if there is none."""
    if name not in DIALECTS:
        raise SleuthError(f"dialect = {name!r}: there is no such dialect; there are {', '.join(DIALECTS)}")
    return DIALECTS[name]


def require_speakable(
    dialect: Dialect, prompt_role: str, *, forced_search: bool = False, closed_book: bool = False
) -> None:
    """Raises SleuthError if the dialect cannot be used with this prompt role, or not with a forced search or a closed
    book."""
    if dialect.frame != "text" and prompt_role == "raw":
        raise SleuthError(
            f'prompt_role = "raw": the dialect {dialect.name!r} needs messages of the model\'s chat template; '
            'set prompt_role = "user" or "system"'
        )
    if dialect.frame != "text" and forced_search:
        raise SleuthError(
            f"forced_search = true: the dialect {dialect.name!r} has no opening search tag; set forced_search = false"
        )
    if dialect.frame != "text" and closed_book:
        raise SleuthError(
            f"closed_book = true: a turn in the dialect {dialect.name!r} is a whole message, which the environment "
            "cannot begin; set closed_book = false"
        )


__all__ = ["BUDGETS", "DIALECTS", "Dialect", "Frame", "Tags", "Tool", "dialect_of", "require_speakable"]
