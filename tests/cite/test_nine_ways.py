"""The nine ways in which the published citation score can be gamed, or fails by itself (DR Tulu's functions), and that
ours cannot be."""

from __future__ import annotations

from refined import BORN, SNIPPETS, refined, score_of, scored, value_of
from scripted_judge import ScriptedJudge

from sleuth.cite.citation_reward import CitationReward
from sleuth.cite.dialect import REFINERS

WRONG = "<snippet id=c3>Ada Voss was born in Velde.</snippet>"


def test_2_ids_that_do_not_exist_cost() -> None:
    stuffed = score_of("<snippet id=zz,yy,a1>Ada Voss was born in Tarn.</snippet>")
    assert stuffed.parts["citation_precision"] == 1 / 3
    assert stuffed.parts["valid_ids"] == 1 / 3
    assert stuffed.value == 0.0
    assert value_of(BORN) == 1.0


def test_4_a_judge_that_is_out_gives_no_score_rather_than_a_better_one_to_silence() -> None:
    out = CitationReward(REFINERS["answer_only"], ScriptedJudge({}, default=None))
    cited, silent = scored(refined(BORN), refined("Just words."), reward=out)
    assert (cited.value, cited.note) == (None, "the judge gave no verdict: timed out")
    assert silent.value is not None
    assert silent.value <= 0.0


def test_5_a_snippet_that_the_policy_writes_is_no_evidence() -> None:
    own = "<snippet id=x9>Ada Voss was born in Velde in 1901.</snippet>"
    claimed = "<snippet id=x9>Ada Voss was born in Velde.</snippet>"
    for score in (score_of(claimed, before=f"<think>{own}</think>"), score_of(f"{own} {claimed}")):
        assert (score.parts["citation_recall"], score.parts["valid_ids"]) == (0.0, 0.0)


def test_7_only_the_answer_is_taken_apart_and_not_the_thought_before_it() -> None:
    thinking = CitationReward(REFINERS["thinking"], ScriptedJudge({}, default=1.0))
    thought = f"<think>Perhaps {WRONG} Or this: <snippet id=zz>nonsense</snippet></think>"
    with_thought, without = scored(refined(BORN, before=thought), refined(BORN), reward=thinking)
    for part in ("claims", "citation_f1", "valid_ids", "padding"):
        assert with_thought.parts[part] == without.parts[part]
    assert with_thought.value == 1.0


def test_8_there_is_one_judge_and_one_way_to_read_what_it_says() -> None:
    judge = ScriptedJudge({("Ada Voss was born in Tarn.", SNIPPETS["a1"]): 1.0})
    one, other = scored(refined(BORN), refined(BORN), reward=CitationReward(REFINERS["answer_only"], judge))
    assert one == other
    assert (one.parts["citation_precision"], one.parts["citation_precision_concatenated"]) == (1.0, 1.0)
    assert [len(cases) for cases in judge.calls] == [1]  # a group asks once, and nothing twice


def test_9_a_claim_that_is_repeated_is_one_claim_and_overwrites_nothing() -> None:
    again = "<snippet id=c3>Ada Voss was born in Tarn.</snippet>"
    once, twice, other_ids = score_of(BORN), score_of(f"{BORN} {BORN}"), score_of(f"{BORN} {again}")
    assert (twice.parts["claims"], twice.parts["citation_f1"]) == (1.0, once.parts["citation_f1"])
    assert (other_ids.parts["citation_recall"], other_ids.parts["citation_precision"]) == (1.0, 0.5)
    assert score_of(f"{again} {BORN}").parts["citation_f1"] == other_ids.parts["citation_f1"]
