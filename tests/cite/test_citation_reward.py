"""The citation reward of whole episodes."""

from __future__ import annotations

import asyncio

import pytest
from refined import BORN, citation_reward, refined, score_of, scored, value_of

from sleuth.cite.citation_reward import CitationReward
from sleuth.cite.claims import abstains
from sleuth.dialect import DIALECTS
from sleuth.judges.lexical import LexicalJudge
from sleuth.types import Action, Episode, Group, Passage, Segment, Task, Trajectory

ABSTAINS = "The tool output does not answer this."


def test_a_right_answer_with_its_source_is_paid_in_full_and_tells_its_parts() -> None:
    score = score_of(BORN)
    assert (score.value, score.note) == (1.0, "cited")
    assert score.parts == {
        "claims": 1.0,
        "padding": 0.0,
        "abstained": 0.0,
        "citation_recall": 1.0,
        "citation_precision": 1.0,
        "citation_f1": 1.0,
        "citation_precision_concatenated": 1.0,
        "valid_ids": 1.0,
        "invented_ids": 0.0,
        "grounded": 1.0,
        "well_formed": 1.0,
    }


def test_a_right_answer_that_its_source_does_not_support_is_not_grounded() -> None:
    guessed = score_of("<snippet id=b2>Ada Voss was born in Tarn.</snippet>")
    assert (guessed.parts["grounded"], guessed.value) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("answer", "says_so"),
    [
        (ABSTAINS, True),
        ("None of the snippets mention her birthplace.", True),
        ("The results don\u2019t say where she was born.", True),
        ("This cannot be determined from the evidence.", True),
        ("There is no information about her birthplace.", True),
        ("Not enough evidence.", True),
        ("", False),
        ("Tarn.", False),
        ("She was born in Tarn.", False),
        (f"{ABSTAINS} " + "word " * 40, False),
    ],
)
def test_an_abstention_says_so_in_a_sentence(answer: str, says_so: bool) -> None:
    assert abstains(answer) is says_so


def test_abstaining_is_right_where_nothing_answers_and_wrong_anywhere_else() -> None:
    unanswerable = score_of(ABSTAINS, answerable=False, golden=())
    assert (unanswerable.value, unanswerable.note) == (1.0, "abstained")
    assert unanswerable.parts["right_abstention"] == 1.0
    assert "citation_f1" not in unanswerable.parts
    assert value_of(ABSTAINS) == 0.0
    assert value_of(ABSTAINS, answerable=None, golden=()) == 0.0


def test_claims_where_nothing_answers_are_worth_their_citations_alone() -> None:
    score = score_of("<snippet id=b2>Ada Voss was a painter.</snippet>", answerable=False, golden=())
    assert (score.value, score.parts["right_abstention"], score.parts["grounded"]) == (0.4, 0.0, 0.0)
    assert value_of("Ada Voss.", answerable=False, golden=()) < 0.0  # silence is no abstention


def test_an_answer_that_was_cut_off_or_stands_among_other_words_is_not_paid() -> None:
    cut = score_of(BORN, stop="length")
    assert (cut.value, cut.note) == (0.0, "malformed")
    among = score_of(BORN, before="Here it is: ")
    assert (among.value, among.parts["well_formed"], among.parts["citation_f1"]) == (0.0, 0.0, 1.0)


def test_a_thought_is_well_formed_where_it_belongs_and_nowhere_else() -> None:
    thought = refined(BORN, before="<think>a1 tells it.</think>\n")
    for mode, plain, behind_thought in (("answer_only", 1.0, 0.0), ("thinking", 0.0, 1.0)):
        one, other = scored(refined(BORN), thought, reward=citation_reward(mode))
        assert (one.parts["well_formed"], other.parts["well_formed"]) == (plain, behind_thought)


def searched(answer: str, shown: str = "Ada Voss was born in Tarn.", stop: str = "answered") -> Episode:
    """Two searches with a passage each, and an answer."""
    found = [
        Action(kind="search", text="x", passages=(Passage(id=str(at), title="Ada Voss", text=text),))
        for at, text in enumerate(["Ada Voss was a painter.", "Ada Voss was born in Tarn."])
    ]
    told = [
        ("template", "Question: where was Ada Voss born?\n"),
        ("policy", "<think>a</think><search>x</search>"),
        ("env", "<information>[1] Ada Voss | Ada Voss was a painter.</information>"),
        ("policy", "<think>a</think><search>x</search>"),
        ("env", f"<information>[1] Ada Voss | {shown}</information>"),
        ("policy", f"<think>a</think><answer>{answer}</answer>"),
    ]
    segments = tuple(Segment(author=author, tokens=(), text=text) for author, text in told)
    trajectory = Trajectory(segments=segments, actions=(*found, Action(kind="answer", text=answer)), stop=stop)
    task = Task(id="q", question="where was Ada Voss born?", golden_answers=("Tarn",))
    return Episode(task=task, sample=0, trajectories=(trajectory,))


def test_the_answer_of_a_search_may_cite_passages_by_search_and_rank() -> None:
    reward = CitationReward(DIALECTS["sleuth"], LexicalJudge())
    for answer in ("Ada Voss was born in Tarn [2.1].", "<snippet id=2.1>Ada Voss was born in Tarn.</snippet>"):
        [score] = scored(searched(answer), reward=reward)
        assert (score.value, score.parts["grounded"]) == (1.0, 1.0)
    [wrong] = scored(searched("Ada Voss was born in Tarn [1.1]."), reward=reward)
    assert wrong.value == 0.0


def test_what_a_budget_cut_off_a_passage_is_no_evidence() -> None:
    reward = CitationReward(DIALECTS["sleuth"], LexicalJudge())
    [score] = scored(searched("Ada Voss was born in Tarn [2.1].", shown="Ada Voss was born"), reward=reward)
    assert (score.parts["citation_recall"], score.parts["valid_ids"]) == (0.0, 1.0)


def test_an_episode_that_the_retriever_failed_is_missing() -> None:
    reward = CitationReward(DIALECTS["sleuth"], LexicalJudge())
    episode = searched("Tarn [1.1].", stop="failed")
    [score] = asyncio.run(reward(Group(task=episode.task, episodes=(episode,))))
    assert score.value is None
