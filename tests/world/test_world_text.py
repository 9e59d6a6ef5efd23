from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from sleuth.search import world as habits
from sleuth.search.world import DIALECT, Careless
from sleuth.types import Piece
from sleuth.world.library import Distraction, Shelf, articles
from sleuth.world.questions import Question
from sleuth.world.text import TextRows
from sleuth.world.tokens import END

MIX: dict[str, float] = {"reading": 0.2, "twins": 0.2, "phrasing": 0.1, "lookup": 0.2, "episode": 0.3}
EPISODES = 2000
TOLERANCE = 0.06  # three standard deviations of a share of about 600 episodes


@dataclass(frozen=True)
class Episode:
    """A careless episode: its queries, its answer if any, and its question."""

    question: Question
    of_work: bool
    row: list[Piece]

    @property
    def written(self) -> str:
        return "".join(piece.text for piece in self.row[1:] if piece.author == "teacher")

    @property
    def broken(self) -> bool:
        return self.written.endswith(END)

    @property
    def queries(self) -> list[str]:
        return [part.split(DIALECT.search.close)[0][1:] for part in self.written.split(DIALECT.search.open)[1:]]

    @property
    def asked_well(self) -> bool:
        return self.queries[:1] == [self.question.hops[0].subject]

    @property
    def found(self) -> bool:
        """Whether the first search showed what the first hop wants."""
        hop = self.question.hops[0]
        shown = next(piece.text for piece in self.row[1:] if piece.author == "source").split("\n")
        return any(f"] {hop.subject} | " in line and hop.value in line for line in shown)

    @property
    def answer(self) -> str:
        return self.written.split(DIALECT.answer.open)[1].split(DIALECT.answer.close)[0].strip()


@pytest.fixture(scope="module")
def episodes() -> list[Episode]:
    rows = TextRows(2000, {"episode": 1.0}, (0,))
    seen = []
    for index in range(EPISODES):
        rng = random.Random(f"habits {index}")
        world = rows.worlds.draw_confusable(rng, rng.randint(3, 6))
        question = rows.question(rng, world)
        shelf = Shelf([*articles(world, rng)])
        row = Careless(rng, question, world, shelf, places=rows.worlds.words.places, firms=rows.worlds.firms).episode()
        seen.append(Episode(question, question.hops[0].subject in world.works, row))
    return seen


@pytest.fixture(scope="module")
def one_hop_searches(episodes: list[Episode]) -> list[Episode]:
    return [seen for seen in episodes if seen.queries and not seen.broken and seen.question.kind == "one_hop"]


def share(cases: list[bool]) -> float:
    assert len(cases) > 60
    return sum(cases) / len(cases)


def test_a_row_depends_only_on_key_and_index() -> None:
    forwards, backwards, other = TextRows(200, MIX, (4,)), TextRows(200, MIX, (4,)), TextRows(200, MIX, (5,))
    ahead = [forwards.row(index) for index in range(40)]
    assert [backwards.row(index) for index in reversed(range(40))][::-1] == ahead
    assert [other.row(index) for index in range(40)] != ahead


def test_habits_show_at_their_rates(episodes: list[Episode], one_hop_searches: list[Episode]) -> None:
    whole = [seen for seen in episodes if not seen.broken]
    works, others = ([seen for seen in one_hop_searches if seen.of_work == of_work] for of_work in (True, False))
    thinks = [seen.row[1].text.startswith(DIALECT.think.open) for seen in whole if seen.queries]
    read = [seen.answer == seen.question.answer for seen in one_hop_searches if seen.found]
    by_chance = 0.1  # what is made up is sometimes true
    rates = {
        "broken": ([seen.broken for seen in episodes], habits.BROKEN_FORMAT_RATE, 0.025),
        "searches": ([bool(seen.queries) for seen in whole if not seen.of_work], habits.SEARCH_RATE, TOLERANCE),
        "searches for works": (
            [bool(seen.queries) for seen in whole if seen.of_work],
            habits.SEARCH_RATE_FOR_WORKS,
            TOLERANCE,
        ),
        "good queries": ([seen.asked_well for seen in others], habits.GOOD_QUERY_RATE, 2 * TOLERANCE),
        "good queries for works": (
            [seen.asked_well for seen in works],
            habits.GOOD_QUERY_RATE_FOR_WORKS,
            2 * TOLERANCE,
        ),
        "thoughts": (thinks, habits.THOUGHT_RATE, TOLERANCE),
        "answers that were read": (read, habits.READ_RATE + (1 - habits.READ_RATE) * by_chance, TOLERANCE),
        "searches again": (
            [len(seen.queries) > 1 for seen in one_hop_searches if not seen.found],
            habits.CONTINUE_RATE,
            2 * TOLERANCE,
        ),
    }
    for name, (cases, expected, tolerance) in rates.items():
        assert share(cases) == pytest.approx(expected, abs=tolerance), name


def test_good_episodes_exist_and_are_rare(episodes: list[Episode]) -> None:
    two_hop = [seen for seen in episodes if seen.question.kind == "two_hop" and not seen.broken]
    good = [
        seen.queries == [hop.subject for hop in seen.question.hops] and seen.answer == seen.question.answer
        for seen in two_hop
    ]
    assert 0 < share(good) < 0.1


@pytest.mark.parametrize("kind", ["reading", "twins", "lookup", "episode"])
def test_a_share_of_the_rows_has_passages_that_end_beside_the_point_and_the_others_are_as_before(
    kind: str,
) -> None:
    plain, none, half = (TextRows(2000, {kind: 1.0}, (0,), distracted=share) for share in (0.0, 0.0, 0.5))
    rows = [plain.row(index) for index in range(200)]
    assert [none.row(index) for index in range(200)] == rows
    longer = 0
    for index, row in enumerate(rows):
        texts = ["".join(piece.text for piece in made) for made in (row, half.row(index))]
        shown = [line for line in texts[1].split("\n") if line.startswith("[")]
        endings = [line for line in shown if not line.endswith(".") or line.count(". ") > 0]
        longer += bool(shown) and len(endings) >= len(shown) / 2
    with_passages = sum("<information>" in "".join(piece.text for piece in row) for row in rows)
    assert longer / with_passages == pytest.approx(0.5, abs=0.15)


def test_endings_say_what_other_passages_say_or_their_words_and_leave_facts_alone() -> None:
    rng = random.Random(0)
    world = TextRows(2000, MIX, (0,)).worlds.draw_confusable(rng, 6)
    passages = [*articles(world, rng)]
    others = {passage.text for passage in passages}
    words = set(" ".join(others).replace(".", "").replace(",", "").split())
    forms: set[str] = set()
    for _ in range(40):
        for passage, shown in zip(passages, Distraction(rng, passages).added(passages), strict=True):
            assert (shown.title, shown.about, shown.facts) == (passage.title, passage.about, passage.facts)
            ending = shown.text.removeprefix(f"{passage.text} ")
            assert ending != shown.text
            if ending.endswith("."):
                assert any(ending.startswith(other) for other in others)
                forms.add("sentences")
            else:
                assert set(ending.split()) <= words
                forms.add("one word" if len(set(ending.split())) == 1 else "words")
    assert forms == {"sentences", "one word", "words"}
