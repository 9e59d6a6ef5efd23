from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from refusals import line_of
from verb import sleuth

from sleuth.recipe import load_recipe
from sleuth.types import SleuthError

Write = Callable[[str, str], Path]


NARROWED = (
    "is not supported: RL samples from the whole vocabulary, because truncated sampling has other log-probabilities "
    "than the learner's, and the gradient would be of another policy than the one that sampled"
)


def problems(path: Path, *overrides: str) -> list[str]:
    with pytest.raises(SleuthError) as caught:
        load_recipe(path, overrides)
    return list(caught.value.args)


def message(path: Path, *overrides: str) -> str:
    return line_of(load_recipe, path, overrides)


def test_thousands_of_wrong_keys_take_no_time_and_few_lines(tmp_path: Path) -> None:
    file = tmp_path / "recipe.toml"
    file.write_text("".join(f"key{number} = 1\n" for number in range(20_000)))
    began = time.process_time()
    result = sleuth("check", "recipe", file)
    assert time.process_time() - began < 10  # 120 where each key asked all others
    assert result.exit_code == 2
    assert "recipe.toml: key0 is no key here; valid keys are" in result.stderr
    assert re.search(r"\nerror: and 19,9\d\d more\n\Z", result.stderr)
    assert len(result.stderr) < 4_000


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("nme=x", "nme is no key here; the nearest is name"),
        ("stage.1.stpes=3", "stage.1.stpes is no key here; the nearest is stage.1.steps"),
        ("stage.1.loss.bta=3", "stage.1.loss.bta is no key here; the nearest is stage.1.loss.beta"),
        ("stage.1.env.dialct=3", "stage.1.env.dialct is no key here; the nearest is stage.1.env.dialect"),
        (
            "stage.1.reward.0.scorrer=1",
            "stage.1.reward.0.scorrer is no key here; the nearest is stage.1.reward.0.scorer",
        ),
        (
            "stage.0.data.zzz=1",
            "stage.0.data.zzz is no key here; valid keys are questions, kinds, skip, limit, ask_with, suite, per_set",
        ),
    ],
)
def test_an_unknown_key_is_reported_with_its_full_name(demo: Path, override: str, expected: str) -> None:
    assert message(demo, override) == f"--set {override}: {expected}"


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        (
            "stage.1.engine={ urls = ['http://a'], patience = 9.0 }",
            "stage.1.engine.patience is now {}unavailable_timeout",
        ),
        ("stage.1.engine={ urls = ['http://a'], ahead = 1 }", "stage.1.engine.ahead is now {}max_policy_lag"),
        ("stage.1.credit={ kind = 'search_gain', pays = 1.0, penalty = 0.2 }", "stage.1.credit.pays is now {}bonus"),
        (
            "stage.1.credit={ kind = 'search_gain', charges = 1.0, bonus = 0.2 }",
            "stage.1.credit.charges is now {}penalty",
        ),
        ("stage.1.loss.old=learner", "stage.1.loss.old is now {}old_logprobs"),
        ("stage.0.also_forced=true", "stage.0.also_forced is now {}forced_search_arm"),
    ],
)
def test_a_former_key_is_refused_with_its_new_name(demo: Path, override: str, expected: str) -> None:
    table = expected.partition(" ")[0].rpartition(".")[0] + "."
    assert message(demo, override) == f"--set {override}: {expected.format(table)}"


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("stage.1.steps=fifty", 'stage.1.steps = "fifty": should be a valid integer'),
        ("stage.1.steps=1.5", "stage.1.steps = 1.5: should be a valid integer"),
        ("stage.1.steps=true", "stage.1.steps = true: should be a valid integer"),
        ("stage.1.steps=0", "stage.1.steps = 0: should be greater than 0"),
        ("stage.1.learning_rate=inf", "stage.1.learning_rate = inf: should be a finite number"),
        ("stage.1.betas=3", "stage.1.betas = 3: should be a list"),
        ("stage.1.betas=[0.9, 1.0]", "stage.1.betas.1 = 1.0: should be less than 1"),
        ("stage.1.betas=[0.9]", "stage.1.betas.1 is missing"),
        ("stage.1.env=3", "stage.1.env = 3: should be a table"),
        ("stage.1.env.index=3", "stage.1.env.index = 3: should be a path"),
        ('stage.1.env.index=""', 'stage.1.env.index = "": should name a file or a folder'),
        ("stage.1.env.forced_search=1", "stage.1.env.forced_search = 1: should be a valid boolean"),
        (
            "stage.1.reward.0.scorer=serch_r1",
            'stage.1.reward.0.scorer = "serch_r1": should be "strict" or "search_r1" or "search_r1_format" or "slime" '
            'or "verl" or "skyrl" or "research" or "tinker"',
        ),
        (
            "stage.1.reward.0.kind=anser",
            'stage.1.reward.0.kind = "anser": should be one of "answer", "token_f1", "format", '
            '"python", "environment", "cited_answer", "suffix", "gain", "citation", "rubric"',
        ),
        (
            "stage.1.reward.0.kind=searched",
            'stage.1.reward.0.kind = "searched" was deleted: set kind = "python" and a function of your own, which '
            "sees the episode and its passages",
        ),
        (
            "stage.1.env.kind=serch",
            'stage.1.env.kind = "serch": should be one of "python", "agent", "tools", "search", "thought", "refine"',
        ),
        ("stage.1.reward=[]", "stage.1.reward is empty: should have at least 1 entry"),
        (
            "stage.1.loss.advantage=gpro",
            'stage.1.loss.advantage = "gpro": should be "grpo" or "centered" or "rloo" or "best" or "none" or '
            '"MODULE:NAME"',
        ),
        (
            "stage.1.kind=gpro",
            'stage.1.kind = "gpro": should be one of "supervised", "grpo", "evaluate", "warm_start", "annotate", '
            '"online_dpo", "win_rate", "probe", "gate", "reason"',
        ),
        ("stage=3", "stage = 3: should be a list"),
        ("name=a b", 'name = "a b": should be letters, digits, dots, dashes and underscores'),
        ("name=../x", 'name = "../x": should be letters, digits, dots, dashes and underscores'),
        ("model=3", "model = 3: should be a valid string"),
    ],
)
def test_a_wrong_value_is_reported_with_what_would_be_right(demo: Path, override: str, expected: str) -> None:
    assert message(demo, override) == f"--set {override}: {expected}"


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("stage.1.stop_after=101", "stage.1.stop_after = 101 is beyond steps = 100"),
        ("stage.1.warmup_steps=101", "stage.1.warmup_steps = 101 is beyond steps = 100"),
        ("stage.1.samples_per_prompt=1", "stage.1.samples_per_prompt = 1: should be greater than or equal to 2"),
        ("stage.1.min_siblings=9", "stage.1.min_siblings was deleted: a group is kept from two scores on"),
        ("trackers=['trackio']", 'trackers.0 = "trackio" was deleted: a hook with `log`'),
        ("stage.1.loss.std_floor=0.1", "stage.1.loss.std_floor was deleted: the smallest deviation is 1e-4"),
        ("stage.1.env.turn_tokens=512", "stage.1.env.turn_tokens = 512 leaves no room for a prompt in context = 512"),
        ("stage.1.loss.normalise=constant", "stage.1.loss.constant is missing"),
        ("stage.1.loss.constant=9", 'stage.1.loss.constant = 9 has no effect with normalise = "token"'),
        ("stage.0.name=grpo", 'stage.1.name = "grpo" is already the name of stage.0'),
        ("model=", "model is missing"),
    ],
)
def test_an_impossible_combination_is_refused(demo: Path, override: str, expected: str) -> None:
    assert expected in message(demo, override)


def test_only_the_empty_retriever_needs_no_index(demo: Path, write: Write) -> None:
    text = demo.read_text().replace('index = "world/index"\n', "")
    path = write("no_index.toml", text)
    assert "stage.1.env.index is missing" in message(path)
    assert "stage.1.env.index is missing" in message(path, "stage.1.env.retriever=shuffled")
    assert load_recipe(path, ["stage.1.env.retriever=empty"])


def test_gold_passages_are_for_evaluations_and_come_from_an_index(demo: Path, write: Write) -> None:
    assert 'stage.1.env.retriever = "gold" is for evaluations' in message(demo, "stage.1.env.retriever=gold")
    gold = demo.read_text() + (
        '\n[[stage]]\nkind = "evaluate"\nname = "gold"\ndata = { questions = "world/qa_test.jsonl" }\n'
        'env = { kind = "search", dialect = "sleuth", prompt = "plain", retriever = "gold", index = "world/index" }\n'
    )
    assert load_recipe(write("gold.toml", gold))
    served = gold.replace('"gold", index = "world/index"', '"gold", urls = ["http://127.0.0.1:8000"]')
    assert "urls cannot be asked for the passages of a row" in message(write("served.toml", served))


def test_passages_come_from_servers_or_from_an_index_not_both(demo: Path, write: Write) -> None:
    urls = 'urls = ["http://127.0.0.1:8000", "https://other/retrieve"]\n'
    indexed = demo.read_text()
    twice = indexed.replace("turn_tokens", urls + "turn_tokens")
    remote = indexed.replace('index = "world/index"\n', urls)
    for name, text, override, expected in [
        ("both.toml", twice, "retriever=remote", "urls and index are both"),
        ("unsaid.toml", remote, "retriever=index", "urls needs retriever = "),
        ("none.toml", indexed, "retriever=remote", "urls is missing: retriever = "),
        (
            "no_url.toml",
            remote.replace("http://", ""),
            "retriever=remote",
            "urls holds '127.0.0.1:8000': expected http://",
        ),
        ("never.toml", remote, "search_seconds=3", "stage.1.env.search_seconds was deleted: it is 30"),
    ]:
        assert expected in message(write(name, text), f"stage.1.env.{override}"), name
    for retriever in ("remote", "shuffled"):
        recipe = load_recipe(write("remote.toml", remote), [f"stage.1.env.retriever={retriever}"])
        assert recipe.stage[1].env.urls[1] == "https://other/retrieve"


def test_a_closed_book_is_a_control_arm_of_its_own(demo: Path, write: Write) -> None:
    closed = 'stage.0.env={ kind = "search", dialect = "sleuth", prompt = "plain", closed_book = true }'
    assert load_recipe(demo, [closed]).stage[0].env.closed_book
    for more, expected in (
        ("forced_search=true", "stage.0.env.closed_book and forced_search are both true; remove one of them"),
        ("retriever=empty", 'stage.0.env.retriever = "empty" has no effect with closed_book = true'),
        ("retriever=gold", 'stage.0.env.retriever = "gold" has no effect with closed_book = true'),
        ("retriever=shuffled", 'stage.0.env.retriever = "shuffled" has no effect with closed_book = true'),
    ):
        assert expected in message(demo, closed, f"stage.0.env.{more}")
    assert "stage.0.forced_search_arm = true needs an env with" in message(
        demo, closed, "stage.0.forced_search_arm=true"
    )
    text = message(demo, "stage.1.env.closed_book=true")
    assert "stage.1.env.closed_book = true is for evaluations" in text


def test_the_reward_of_a_cited_answer_needs_a_dialect_whose_answers_cite(demo: Path, write: Write) -> None:
    cited = 'stage.1.reward=[{ kind = "cited_answer" }]'
    assert load_recipe(demo, [cited, "stage.1.env.dialect=reading", "stage.1.env.prompt=reading"])
    assert message(demo, cited) == (
        f'--set {cited}: stage.1.reward.0.kind = "cited_answer" needs answers that quote a passage, which '
        'env.dialect = "sleuth" has not; set env.dialect = "quoting" or "reading"'
    )
    tools = "stage.1.env={ kind = 'tools', tools = ['a:b'], prompt = 'plain' }"
    searches = 'which env.kind = "tools" has not; set env.kind = "search" and env.dialect = "quoting" or "reading"'
    assert searches in message(demo, cited, tools)


@pytest.mark.parametrize("key", ["top_p", "top_k", "min_p"])
@pytest.mark.parametrize("value", ["0.9", "1.0"])
def test_truncated_sampling_is_refused_with_the_reason(demo: Path, key: str, value: str) -> None:
    text = message(demo, f"stage.1.sampling.{key}={value}")
    assert f"stage.1.sampling.{key} is not supported: RL samples from the whole vocabulary" in text


def test_a_missing_key_is_named_with_the_file_that_should_hold_it(demo: Path, write: Write) -> None:
    path = write("short.toml", demo.read_text().replace("steps = 100\n", ""))
    assert message(path) == f"{path}: stage.1.steps is missing"


def test_a_table_in_place_of_a_list_of_tables_is_reported_with_the_right_header(demo: Path, write: Write) -> None:
    path = write("single.toml", demo.read_text().replace("[[stage.reward]]", "[stage.reward]"))
    assert message(path) == f"{path}: stage.1.reward is one table: should be a list of tables; write [[stage.reward]]"


def test_all_problems_are_reported_at_once(demo: Path) -> None:
    assert problems(
        demo,
        "stage.7.steps=1",
        "steps",
        "nme=x",
        "stage.0.name=a b",
        "stage.0.temperature=-1",
        "stage.1.slots=0",
        "stage.1.stop_after=101",
        "stage.1.warmup_steps=102",
        "stage.1.sampling={top_p=0.9, min_p=0.1}",
        "stage.1.loss.constant=9",
        "model=",
    ) == [
        "--set stage.7.steps=1: stage.7: stage has 2 entries, counted from 0",
        "--set steps: should be KEY=VALUE, such as grpo.steps=50",
        f"--set stage.1.sampling={{top_p=0.9, min_p=0.1}}: stage.1.sampling.top_p {NARROWED}",
        f"--set stage.1.sampling={{top_p=0.9, min_p=0.1}}: stage.1.sampling.min_p {NARROWED}",
        "--set nme=x: nme is no key here; the nearest is name",
        '--set stage.0.name=a b: stage.0.name = "a b": should be letters, digits, dots, dashes and underscores',
        "--set stage.0.temperature=-1: stage.0.temperature = -1: should be greater than or equal to 0",
        "--set stage.1.slots=0: stage.1.slots = 0: should be greater than 0",
        "--set model=: model is missing: name a folder or a hub id, or give the first stage an [stage.init] table",
        "--set stage.1.stop_after=101: stage.1.stop_after = 101 is beyond steps = 100",
        "--set stage.1.warmup_steps=102: stage.1.warmup_steps = 102 is beyond steps = 100",
        '--set stage.1.loss.constant=9: stage.1.loss.constant = 9 has no effect with normalise = "token"; remove it',
    ]


def test_an_error_in_a_parent_file_names_that_file(demo: Path, write: Write) -> None:
    parent = write("parent.toml", demo.read_text().replace("steps = 100", "steps = 0"))
    child = write("child.toml", 'extends = "parent.toml"\nseed = 1\n')
    assert message(child) == f"{parent}: stage.1.steps = 0: should be greater than 0"


REFINES = """
[stage.env]
kind = "refine"

[[stage.reward]]
kind = "citation"
"""


@pytest.fixture
def refiner(demo: Path, write: Write) -> Path:
    """The recipe of a refiner."""
    return write("refiner.toml", demo.read_text().partition("[stage.env]")[0] + REFINES)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("stage.1.env.mdoe=x", "stage.1.env.mdoe is no key here; the nearest is stage.1.env.mode"),
        ("stage.1.env.index=x", "stage.1.env.index is no key here"),
        ("stage.1.env.mode=loud", 'stage.1.env.mode = "loud": should be "answer_only" or "thinking"'),
        ("stage.1.env.template_flags.enable_thinking=false", "stage.1.env.template_flags need a chat template"),
        ("stage.1.env.turn_tokens=512", "stage.1.env.turn_tokens = 512 leaves no room for a prompt"),
        ("stage.1.reward.0.kind=answer", 'stage.1.reward.0.kind = "answer" needs an env that searches'),
        (
            "stage.1.reward=[{kind='gain'}]",
            'stage.1.reward.0.kind = "gain" needs env.kind = "thought"; for env.kind = "refine" set "citation" or',
        ),
        ("stage.1.reward.0.sum=ours", 'stage.1.reward.0.sum = "ours": should be "recommended" or "additive" or'),
        (
            "stage.1.reward.0.judge=gpt",
            'stage.1.reward.0.judge.kind = "gpt": should be one of "lexical", "http"',
        ),
        ("stage.1.reward.0.judge={kind='http', model='m'}", "stage.1.reward.0.judge.urls is missing"),
        (
            "stage.1.reward.0.judge={kind='http', urls=['http://h'], mdoel='m'}",
            "stage.1.reward.0.judge.mdoel is no key here; the nearest is stage.1.reward.0.judge.model",
        ),
        ("stage.1.reward.0.citation_weight=2", "stage.1.reward.0.citation_weight = 2: should be less than or equal"),
        ("stage.1.reward.0.format_gate=false", "stage.1.reward.0.format_gate = false does not fit sum = "),
        ("stage.1.reward=[{kind='rubric', static='refiner'}]", 'static = "refiner" needs a judge of kind "http"'),
        ("stage.1.reward.0.judge={kind='lexical', least_accuracy=90}", "least_accuracy = 90: should be less than"),
        ("stage.1.reward=[{kind='rubric', own=false}]", "own = false leaves no criterion"),
        (
            "stage.1.reward=[{kind='rubric', calls='per_answer'}]",
            'calls = "per_answer" has no effect with judge.kind = "lexical"',
        ),
        (
            "stage.1.reward.0.calls=per_answer_or_claim",
            'calls = "per_answer_or_claim" has no effect with judge.kind = "lexical", which makes no calls',
        ),
        ("stage.1.reward=[{kind='rubric', dropout=0.5}]", "stage.1.reward.0.dropout was deleted: all criteria of an"),
        ("stage.0.forced_search_arm=true", "stage.0.forced_search_arm = true needs an env with searches"),
        (
            'stage.1.credit={kind="search_gain", penalty=0.1}',
            'credit.kind = "search_gain" has no effect with env.kind = "refine"; set "citation_gain"',
        ),
    ],
)
def test_settings_that_do_not_fit_a_refiner_are_refused(refiner: Path, override: str, expected: str) -> None:
    assert expected in message(refiner, override)


def test_a_warm_start_before_a_refining_stage_is_refused(refiner: Path, write: Write) -> None:
    begin = 'kind = "grpo"'
    warm = (
        f'kind = "warm_start"\nsteps = 5\nlearning_rate = 1e-3\nhint = {{ forced_search = true }}\n\n[[stage]]\n{begin}'
    )
    text = message(write("warm.toml", refiner.read_text().replace(begin, warm)))
    assert 'stage.1.kind = "warm_start" needs env.kind = "search" in the grpo stage after it, found "refine"' in text


def test_a_wrong_value_is_not_reported_as_a_wrong_combination_too(demo: Path) -> None:
    for changes in (
        ("stage.1.steps=none", "stage.1.stop_after=50"),
        ("stage.1.kind=gpro", "stage.0.forced_search_arm=true"),
        ("stage.1.env.retriever=none", "stage.1.env.urls=[]"),
    ):
        assert len(problems(demo, *changes)) == 1, changes
