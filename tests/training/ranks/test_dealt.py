"""What measures, judges and warms up is dealt to the ranks, and is what one process does."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any
from unittest.mock import patch

import pytest
from chat_server import MODEL, ChatServer, part, says, scored
from emulator.served import EmulatedServer, emulated_server
from processes import on_ranks
from run_files import figures, groups, log, written
from runs_on_ranks import run_on
from small_stages import through
from test_stages_on_ranks import assert_same_run

from sleuth.answers.factory import reward_of
from sleuth.cite.citation_reward import CitationRecipe
from sleuth.cite.red_team import Attack, attack
from sleuth.cite.tables import RefineEnvRecipe
from sleuth.cli.pipeline import run_recipe
from sleuth.data.questions import load_questions
from sleuth.engines.local.batching import BatchingEngine
from sleuth.engines.remote.pool import PoolEngine
from sleuth.evaluation.judge_exam import take_exam
from sleuth.judges.cache import CachedJudge, VerdictCache
from sleuth.judges.factory import JudgePool
from sleuth.judges.pool import Ledger, NoAnswerError, ServerPool
from sleuth.judges.tables import LexicalJudgeRecipe
from sleuth.learn.models import load_model
from sleuth.ranks import Ranks
from sleuth.recipe import load_recipe
from sleuth.runs.run_folder import open_on
from sleuth.think.world_texts import CarelessTexts
from sleuth.training.group import RAISED_BY_FIRST
from sleuth.training.rollout_worker import Background
from sleuth.types import Case, Completion, Sampling, SleuthError, Verdict

pytestmark = pytest.mark.ranks

BASE = Path(__file__).parents[3] / "models" / "tiny-base"
RECIPE = """
name = "measured"
model = "{base}"
seed = 2

[[stage]]
kind = "evaluate"
name = "asked"
data = {{ questions = "{world}/qa_test.jsonl", limit = 5 }}
reward = [{{ kind = "rubric", own = false, static = "refiner", judge = {judge} }}]

[[stage]]
kind = "gate"
name = "gate"
samples = 2
data = {{ kind = "text", texts = "{folder}/texts.jsonl", suffix_tokens = 6, limit = 5 }}
env = {{ kind = "thought", thought_tokens = 6 }}
reward = [{{ kind = "gain" }}]

[[stage]]
kind = "probe"
name = "thoughts"
samples = 2
data = {{ kind = "text", texts = "{folder}/texts.jsonl", suffix_tokens = 6, limit = 5 }}
env = {{ kind = "thought", thought_tokens = 6, suffix_tokens = 4, stops = ["."] }}
judge = {judge}

[[stage]]
kind = "reason"
name = "reasoning"
samples = 2
max_tokens = 8
sets = [{{ layout = "gsm8k", problems = "{folder}/gsm8k.jsonl" }}]

[[stage]]
kind = "warm_start"
hint = {{ forced_search = true }}
below = 1.0
prompts = 7
taught = "answered"
rows_per_step = 4
steps = 2
learning_rate = 1e-4

[[stage]]
kind = "grpo"
steps = 2
prompts_per_step = 3
samples_per_prompt = 4
learning_rate = 1e-4
context = 400
save_every = 2
probe_prompts = 2
evaluate_every = {{ asked = 1 }}
data = {{ questions = "{world}/qa_train.jsonl" }}
env = {{ kind = "search", dialect = "sleuth", prompt = "plain", index = "{world}/index", turn_tokens = 14 }}
reward = [{{ kind = "answer" }}, {{ kind = "rubric", own = false, static = "refiner", judge = {judge} }}]

[[stage]]
kind = "evaluate"
name = "after"
data = {{ questions = "{world}/qa_test.jsonl", limit = 3 }}

[[stage]]
kind = "win_rate"
name = "against_base"
judge = {judge}
stops = ["."]
data = {{ kind = "text", texts = "{folder}/texts.jsonl", suffix_tokens = 6 }}
"""
ASKED, GATE, GRPO, AFTER = (
    f"[[stage]]\nkind = {of}" for of in ('"evaluate"\nname = "asked"', '"gate"', '"grpo"', '"evaluate"\nname = "after"')
)
"""Where these stages begin in the recipe."""
MEASURED = ("asked", "gate", "thoughts", "reasoning", "reasoning@gsm8k", "after", "against_base")


def by_length(body: dict[str, Any]) -> tuple[int, object]:
    """Something that differs between answers, and of a pair one that does not depend on the order."""
    if first := part(body, "first"):
        return says(json.dumps({"reason": "so", "better": "first" if len(first) % 2 else "second"}))
    return says(scored(len(part(body, "answer") or part(body, "claim")) % 3))


@pytest.fixture
def judges() -> Iterator[list[ChatServer]]:
    """Two servers of one judge."""
    with ChatServer(answer=by_length).running() as one, ChatServer(answer=by_length).running() as other:
        yield [one, other]


@pytest.fixture
def recipe(world: Path, judges: list[ChatServer], tmp_path: Path) -> Path:
    texts = [CarelessTexts(200, "test", (0,)).text(number) for number in range(5)]
    rows_of = {
        "texts": [
            {"id": str(at), "text": text.text, "cut": len(text.beginning), "golden_answers": [text.answer]}
            for at, text in enumerate(texts)
        ],
        "gsm8k": [{"question": f"{at} and two?", "answer": f"#### {at + 2}"} for at in range(3)],
    }
    for name, of_file in rows_of.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in of_file))
    urls = ", ".join(f'"{server.url}"' for server in judges)
    judge = f'{{ kind = "http", urls = [{urls}], model = "{MODEL}" }}'
    file = tmp_path / "measured.toml"
    base = shutil.copytree(BASE, tmp_path / "base")  # into which the probe writes its certificate
    file.write_text(RECIPE.format(base=base, world=world, folder=tmp_path, judge=judge))
    return file


COUNTED = {
    "turns": (BatchingEngine, "complete"),
    "pool turns": (PoolEngine, "complete"),
    "calls": (ServerPool, "_post"),
}
"""What a rank does itself, by the method that does it."""


def counted(ranks: Ranks, recipe: Path, folder: Path, overrides: Sequence[str]) -> Counter[str]:
    """Runs a recipe, and counts what this rank does of it."""
    counts = Counter[str]()

    def counting(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        async def count(self: Any, *arguments: Any) -> Any:
            counts[name] += 1
            return await method(self, *arguments)

        return count

    with ExitStack() as patched:
        for name, (kind, method) in COUNTED.items():
            patched.enter_context(patch.object(kind, method, counting(name, getattr(kind, method))))
        resolved = load_recipe(recipe, overrides)
        with open_on(ranks, folder, resolved) as place:
            run_recipe(resolved, place, ranks)
    return counts


def evaluations(folder: Path) -> dict[str, Any]:
    """Every file of an evaluation, without what names the weights."""
    found = {str(file.relative_to(folder)): json.loads(file.read_text()) for file in (folder / "eval").rglob("*.json")}
    for contents in found.values():
        for key in [key for key in contents if key == "model" or "sha256" in key or "digest" in key]:
            del contents[key]
    return found


def assert_same(ours: Any, theirs: Any, where: str = "") -> None:
    """Equal, and numbers within 1e-5."""
    assert type(ours) is type(theirs), where
    if isinstance(ours, dict):
        assert [*ours] == [*theirs], where
        for key in ours:
            assert_same(ours[key], theirs[key], f"{where}/{key}")
    elif isinstance(ours, list):
        assert len(ours) == len(theirs), where
        for at, pair in enumerate(zip(ours, theirs, strict=True)):
            assert_same(*pair, f"{where}/{at}")
    elif isinstance(ours, float):
        assert ours == pytest.approx(theirs, rel=1e-5, abs=1e-5), where  # differences of nats too
    else:
        assert ours == theirs, where


def verdicts_in(folder: Path) -> dict[str, str]:
    return dict(sqlite3.connect(folder / "verdicts.sqlite").execute("SELECT key, verdict FROM verdicts"))


def test_all_that_two_ranks_measure_judge_and_warm_up_is_that_of_one_process_and_each_does_half(
    recipe, judges, tmp_path
):
    asked, counts = [], {}
    for ranks in (1, 2):
        counts[ranks] = on_ranks(ranks, counted, recipe, tmp_path / str(ranks), ())
        asked.append(sum(len(server.asked) for server in judges))
    print({ranks: list(map(dict, of_ranks)) for ranks, of_ranks in counts.items()})
    one, two = tmp_path / "1", tmp_path / "2"
    assert {f"eval/{name}.json" for name in MEASURED} <= evaluations(one).keys()
    assert_same(evaluations(two), evaluations(one))
    assert_same_run(figures(two), figures(one))
    assert written(two) == written(one)
    assert verdicts_in(two) == verdicts_in(one)
    assert asked[1] == 2 * asked[0], "no verdict is paid for by both ranks"
    [whole], halves = counts[1], counts[2]
    for name in ("turns", "calls"):
        assert sum(half[name] for half in halves) == whole[name]
        assert max(half[name] for half in halves) < 0.7 * whole[name]
    lines = [
        {line[21:] for line in log(folder).splitlines() if "episodes under the hint" in line} for folder in (one, two)
    ]
    assert lines[0] == lines[1] != set()
    for mine, other in zip(groups(two), groups(one), strict=True):
        assert [score.value for score in mine.scores] == [score.value for score in other.scores]


# -- servers and ranks that die ----------------------------------------------------------------------------------------


@contextmanager
def mortal(server: AbstractContextManager[Any], asked: Callable[[Any], int], lives: int) -> Iterator[Any]:
    """A server that is gone once it was `asked` as often as it `lives`."""
    with ExitStack() as stack:
        opened, ended = stack.enter_context(server), Event()

        def watch() -> None:
            while not ended.wait(0.005):
                if asked(opened) >= lives:
                    stack.close()
                    return

        watching = Thread(target=watch)
        watching.start()
        try:
            yield opened
        finally:
            ended.set()
            watching.join()


@contextmanager
def counting_turns(kind: str, since: Path) -> Iterator[EmulatedServer]:
    """A server that generates, of which `engine.turns` is the number of completions since a file is there."""
    model, tokenizer = load_model(str(BASE), dtype="float32", device="cpu")
    with emulated_server(kind, model, tokenizer, context=512) as server:
        engine, write = server.engine, server.engine.write
        engine.turns = 0  # type: ignore[attr-defined]

        async def count(prompt: Sequence[int], sampling: Sampling) -> tuple[Completion, str]:
            engine.turns += since.exists()  # type: ignore[attr-defined]
            return await write(prompt, sampling)

        engine.write = count
        yield server


def pooled(stack: ExitStack, folder: Path, lives: Sequence[int], seconds: float) -> str:
    """The override that sends what a run plays to servers, which live so long once it has trained."""
    trained, turns = folder / "checkpoints" / "step-000001", lambda server: server.engine.turns
    servers = [
        stack.enter_context(mortal(counting_turns(kind, trained), turns, of_one))
        for kind, of_one in zip(("vllm", "sglang"), lives, strict=True)
    ]
    return through(servers, stage=0, unavailable_timeout=seconds)


@pytest.fixture
def asked_file(recipe: Path) -> Path:
    """The recipe with a stage that trains for one step, and a judged evaluation of what it trained."""
    text = recipe.read_text()
    head, asked = text[: text.index(ASKED)], text[text.index(ASKED) : text.index(GATE)]
    file = recipe.with_name("asked.toml")
    file.write_text(head + text[text.index(GRPO) : text.index(AFTER)] + asked)
    return file


TRAINED = ("stage.0.stop_after=1", "stage.0.evaluate_every={}", "stage.0.probe_prompts=0", "stage.0.learning_rate=1e-9")
LONG = (*TRAINED, "stage.0.reward=[{kind='answer'}]", "stage.1.data.limit=12")
FOREVER, BRIEFLY = 10**9, 8


def records(folder: Path) -> Any:
    return evaluations(folder)["eval/asked.json"]["records"]


def test_ranks_go_on_with_the_servers_that_are_left(asked_file, judges, tmp_path):
    run_on(1, asked_file, tmp_path / "1", *LONG)
    with ExitStack() as stack:
        pool = pooled(stack, tmp_path / "2", [BRIEFLY, FOREVER], seconds=30.0)
        judge = stack.enter_context(mortal(ChatServer(answer=by_length).running(), lambda one: len(one.asked), 3))
        judged = f"stage.1.reward.0.judge.urls=['{judge.url}', '{judges[1].url}']"
        counts = on_ranks(2, counted, asked_file, tmp_path / "2", (*LONG, pool, judged))
    assert len(judge.asked) < 9
    assert all(of_rank["pool turns"] and of_rank["calls"] for of_rank in counts)
    assert_same(records(tmp_path / "2"), records(tmp_path / "1"))
    assert evaluations(tmp_path / "2")["eval/asked.json"]["judge_missing"] == 0


def test_a_run_ends_in_one_line_on_all_ranks_when_no_server_is_left(asked_file, tmp_path):
    with ExitStack() as stack:
        pool = pooled(stack, tmp_path / "run", [BRIEFLY, BRIEFLY], seconds=2.0)
        with pytest.raises(AssertionError) as raised:
            run_on(2, asked_file, tmp_path / "run", *LONG, pool)
    lines = re.findall(r"sleuth.types.RunFailed: (.*)$", str(raised.value), re.MULTILINE)
    assert len(lines) == 2
    assert all("no server of the pool answered for 2 seconds" in line for line in lines)
    assert (tmp_path / "run" / "checkpoints" / "step-000001").exists()


# -- judges that are examined, and attacked ---------------------------------------------------------------------------


def examined_and_attacked(ranks: Ranks, world: Path) -> tuple[dict[str, Any], Attack]:
    """The card of the lexical judge, and what tricks it pays, without the time that was taken."""
    card = take_exam(LexicalJudgeRecipe().open(), ["claims", "criteria"], ranks=ranks).as_json()
    tasks = load_questions(world / "refiner_train.jsonl")
    setting = RefineEnvRecipe.model_validate({"kind": "refine", "prompt": "bare", "mode": "answer_only"}).setting(
        None, tasks
    )
    rewards = [CitationRecipe.model_validate({"kind": "citation"})]
    with JudgePool(Path("nowhere")) as judge_pool:
        reward = reward_of(rewards, setting.dialect, None, judge_pool)
        attacked = asyncio.run(attack(tasks[:40], setting, reward, ranks))
    return {name: value for name, value in card.items() if name != "seconds"}, attacked


def test_exams_and_attacks_of_two_ranks_are_those_of_one_process(world):
    [alone] = on_ranks(1, examined_and_attacked, world)
    assert alone[0]["calls"] > 100
    assert alone[1].rewards
    assert on_ranks(2, examined_and_attacked, world) == [alone, alone]


# -- the mechanism -----------------------------------------------------------------------------------------------------


def dealt(ranks: Ranks, count: int, bad: tuple[int, ...]) -> dict[str, Any]:
    """What a rank is told of `count` items, of which `bad` ones cannot be done."""
    asked: list[int] = []

    def square(mine: Sequence[int], first: int) -> list[int | None]:
        asked.extend(range(first, first + len(mine)))
        if lost := set(mine) & set(bad):
            raise SleuthError(f"no square of {min(lost)}")
        return [None if item == 2 else item * item for item in mine]

    async def later(mine: Sequence[int], first: int) -> list[int | None]:
        await asyncio.sleep(0)
        return square(mine, first)

    told: dict[str, Any] = {"asked": asked}
    for name, deal in (
        ("dealt", lambda: ranks.dealt(range(count), square)),
        ("deal", lambda: asyncio.run(ranks.deal(range(count), later))),
    ):
        try:
            told[name] = deal()
        except SleuthError as error:
            told[name] = (str(error), getattr(error, "__notes__", []))
    told["after"] = ranks.all_gather([ranks.rank])
    return told


def test_each_rank_does_its_share_and_all_have_every_result_in_order():
    for count, shares in ((5, [[0, 1], [2, 3, 4]]), (1, [[], [0]]), (0, [[], []])):
        whole = [None if item == 2 else item * item for item in range(count)]
        for told, share in zip(on_ranks(2, dealt, count, ()), shares, strict=True):
            assert told == {"asked": share * 2, "dealt": whole, "deal": whole, "after": [0, 1]}


def test_an_error_of_one_rank_is_raised_on_all_names_it_and_is_printed_by_the_first():
    for bad, line in (((4,), "rank 1: no square of 4"), ((0, 4), "no square of 0")):
        first, other = on_ranks(2, dealt, 5, bad)
        assert first["dealt"] == first["deal"] == (line, [])
        assert other["dealt"] == other["deal"] == (line, [RAISED_BY_FIRST])
        assert first["after"] == other["after"] == [0, 1], "and they go on together"


def exchanged(ranks: Ranks, in_order: bool) -> list[list[int] | str]:
    """What a rank gets of two steps, of which each rank ends another one first; or why it gets nothing."""

    async def play(step: int) -> list[int]:
        async def work(mine: Sequence[int], _: int) -> list[int]:
            await asyncio.sleep(0.3 if step == ranks.rank else 0.0)
            return [step for _ in mine]

        return await ranks.deal(range(2), work, began[0] if in_order and step else None, step=step)

    began = list[Future[Any]]()
    with closing(Background()) as background:
        for step in range(2):
            began.append(background.submit(play(step)))
        return [str(step.exception() or "") or step.result() for step in began]


def test_ranks_exchange_steps_in_their_order_and_one_that_does_not_says_so():
    assert on_ranks(2, exchanged, True) == [[[0, 0], [1, 1]]] * 2
    line = "ranks exchange the results of different steps at once: [0, 1]"
    assert on_ranks(2, exchanged, False) == [[line] * 2] * 2


class Tin:
    """Something that ranks share."""

    def __init__(self) -> None:
        self.put_in: list[int] = []

    def put(self, coin: int) -> int:
        if coin < 0:
            raise SleuthError(f"{coin} is no coin")
        self.put_in.append(coin)
        return len(self.put_in)

    def close(self) -> None:
        self.put_in.append(0)


def shared(ranks: Ranks) -> tuple[list[int], str]:
    """What is in the tin in the end, and what a rank is told of a coin that is none."""
    tin = ranks.shared(Tin)
    for coin in (1, 2):
        tin.put(10 * ranks.rank + coin)
    with pytest.raises(SleuthError) as error:
        tin.put(-1)
    ranks.broadcast(lambda: None)
    tin.put(7)
    if not ranks.first:
        tin.close()  # the connection alone
    ranks.all_gather([])
    return ranks.broadcast(lambda: tin.put_in), str(error.value)


def test_what_ranks_share_is_one_object_whose_methods_all_call_at_any_time():
    for coins, error in on_ranks(3, shared):
        assert sorted(coins) == [1, 2, 7, 7, 7, 11, 12, 21, 22]
        assert error == "-1 is no coin"


class Paid:
    """A judge that takes a moment, and counts."""

    identity = "counting"

    def __init__(self) -> None:
        self.asked = 0

    async def judge(self, cases: Sequence[Case]) -> list[Verdict]:
        self.asked += 1
        await asyncio.sleep(0.2)
        return [Verdict(score=len(case.claim) / 10, reason="") for case in cases]


def judged(ranks: Ranks, file: Path) -> tuple[int, dict[str, int], list[float | None]]:
    """How often a rank asks about the same claims as all others at once, its tally, and the scores."""
    judge, cache = Paid(), ranks.shared(lambda: VerdictCache(file))
    cached = CachedJudge(judge, cache)
    cases = [Case(question="?", evidence="", claim="a" * length, criterion="") for length in range(6)]
    verdicts = asyncio.run(cached.judge(cases if ranks.first else cases[::-1]))
    ranks.all_gather([])
    return judge.asked, cached.tally.take(), [verdict.score for verdict in verdicts]


def budgeted(ranks: Ranks, file: Path) -> int:
    """The calls that a rank may make of a budget that it shares."""
    ledger = Ledger(budget=7)
    ledger.count = partial(ranks.shared(lambda: VerdictCache(file)).count_call, "judge", 7)
    made = 0
    with suppress(NoAnswerError):
        while True:
            ledger.spend()
            made += 1
    ranks.all_gather([])  # the first is asked to the end
    return made


def test_ranks_share_a_budget_of_calls(tmp_path):
    assert sum(on_ranks(2, budgeted, tmp_path / "verdicts.sqlite")) == 7
