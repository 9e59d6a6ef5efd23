"""The reports that `sleuth watch` serves: a real server, asked over HTTP and by a real browser while a run grows."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from browser import CHROMIUM, Browser
from listening import listening
from synthetic_run import byte_tokenizer, evaluation_file, metrics_row, record, rollout_group, write_run

from sleuth.cli.http_server import access_of
from sleuth.recipe import load_recipe
from sleuth.report import run_files, write_report
from sleuth.report.live import live_reports
from sleuth.runs.chain import CHAIN, begin_chain
from sleuth.runs.rollouts import write_rollouts
from sleuth.runs.run_folder import RunFolder
from sleuth.serve.access import Access
from sleuth.serve.watch import watch_app
from sleuth.types import SleuthError

RECIPE = load_recipe(Path(__file__).parents[2] / "recipes" / "demo.toml")
STEPS = RECIPE.stage[1].last_step  # pyright: ignore
LOOPBACK = access_of("127.0.0.1", api_key=None, insecure=False)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")


def watching(folders: Sequence[Path], access: Access = LOOPBACK) -> AbstractContextManager[str]:
    """A server that follows runs; its address."""
    return listening(watch_app(live_reports(folders), access))


def take_step(run: RunFolder, step: int, **figures: Any) -> None:
    """What a trainer writes at a step."""
    row = metrics_row(random.Random(step), step, STEPS) | figures
    run.write_metrics("grpo", step, {name: row[name] for name in row if name not in ("stage", "step")})
    groups = [rollout_group(random.Random(step), 0.5, 10 * step + group, byte_tokenizer()) for group in range(2)]
    write_rollouts(run.rollouts / f"step-{step:06d}.parquet", groups, [[-0.5, 0.25, 1.0, None]] * 2)


def evaluated(run: Path, name: str, skill: float) -> None:
    found = evaluation_file(name, [record(random.Random(n), n, skill) for n in range(12)])
    (run / "eval" / f"{name}.json").write_text(json.dumps(found | {"model": RECIPE.model}), encoding="utf-8")


def asked(url: str, path: str) -> dict[str, Any]:
    return httpx.get(f"{url}/0/{path}").json()


def title_of(url: str) -> str:
    return asked(url, "state")["title"]


# -- over HTTP ---------------------------------------------------------------------------------------------------------


def test_a_run_is_followed_from_before_it_begins_until_it_ends(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    folder.mkdir()
    with watching([folder]) as url:
        before = asked(url, "state")
        assert before["title"] == "waiting: no run has begun in this folder · demo"
        assert "No curves yet" in asked(url, "page")["html"]
        with RunFolder.open(folder, RECIPE) as run:
            assert title_of(url) == "evaluating base · demo"
            evaluated(folder, "base", 0.2)
            assert title_of(url) == f"training grpo, step 0 of {STEPS} · demo"
            for step in (1, 2):
                take_step(run, step)
            title = title_of(url)
            assert title.startswith(f"training grpo, step 2 of {STEPS}, ")
            assert title.endswith(" min left · demo")
            first = asked(url, "page")
            assert first["data"]["charts"][0]["steps"] == [1, 2]
            assert [one["file"] for one in first["data"]["rollouts"]] == ["rollouts/1", "rollouts/2"]
            assert asked(url, "state")["tag"] == first["tag"] != before["tag"], "nothing has changed since"
            take_step(run, 3)
            assert asked(url, "state")["tag"] != first["tag"]
            second = asked(url, "page")
            assert second["data"]["charts"][0]["steps"] == [1, 2, 3]
        assert "stopped at step 3" in title_of(url)
        (folder / CHAIN).unlink()  # the evaluations were written by hand
        with RunFolder.open(folder, RECIPE) as run:
            take_step(run, STEPS)
            evaluated(folder, "trained", 0.8)
            found = json.loads((folder / "eval/trained.json").read_text())
            (folder / "eval/trained.json").write_text(json.dumps(found | {"model": f"x/step-{STEPS:06d}"}))
        assert title_of(url) == "finished · demo"
        page = asked(url, "page")
        assert "[0." in page["html"]
        assert (len(first["data"]["questions"]["rows"]), len(page["data"]["questions"]["rows"])) == (0, 12)


def test_it_is_the_page_that_the_report_writes(tmp_path: Path) -> None:
    run = write_run(tmp_path / "demo", questions=6)
    begin_chain(run, "run")
    with watching([run]) as url:
        title_of(url)
        live = asked(url, "page")["html"]
    written = write_report(run).read_text(encoding="utf-8")
    for section in re.findall(r'<section id="(?!rollouts).*?</section>', live, re.DOTALL):
        assert section in written
    assert live.count("<section") == written.count("<section") == 7
    assert live.partition("<nav>")[0] in written, "the head"


def test_an_alarm_has_its_sentence_and_a_reset_run_its_shorter_curve(tmp_path: Path) -> None:
    with RunFolder.open(tmp_path / "demo", RECIPE) as run, watching([tmp_path / "demo"]) as url:
        assert "No alarm so far" in asked(url, "state")["html"]
        for step in range(1, 7):
            take_step(run, step, nonzero_advantage_fraction=0.0, **({"alarms": ["no_signal"]} if step == 6 else {}))
        html = asked(url, "state")["html"]
        assert "no_signal" in html
        assert "no group carried a signal in 5 steps" in html
        run.metrics.rewind("grpo", 4)
        assert "No alarm so far" in asked(url, "state")["html"]
        assert asked(url, "page")["data"]["charts"][0]["steps"] == [1, 2, 3, 4]


def test_damage_is_stated_and_the_server_goes_on(tmp_path: Path) -> None:
    run = write_run(tmp_path / "demo", questions=6)
    with watching([run]) as url:
        with (run / "metrics.jsonl").open("a") as file:
            file.write('{"stage": 3}\nnonsense\n{"stage": "grpo", "step": 61, "reward_mean": 0.5}\n{"stage": "gr')
        (run / "eval/base.json").write_text('{"em": {"value": 0.')
        (run / "manifest.json").write_text('{"costs": [3]}')
        (run / "rollouts/step-000060.parquet").write_bytes(b"PAR1, and then the copy broke off")
        state = asked(url, "state")
        assert "step 61" in state["title"]
        for problem in (
            "left out what is no row (2 lines)",
            "base.json: is not JSON",
        ):
            assert problem in state["html"]
        assert asked(url, "page")["data"]["charts"][0]["steps"][-1] == 61
        refused = httpx.get(f"{url}/0/rollouts/60")
        assert refused.status_code == 404
        assert "Not all can be drawn" in asked(url, "page")["html"]
        assert "step-000060.parquet" in refused.json()["error"]["message"]
        (run / "recipe.toml").write_text("[[stage]]\nsteps = 'many'\n")
        assert title_of(url).startswith("the state is unknown")
        shutil.rmtree(run)
        assert title_of(url) == "the folder is gone; this is what it held · demo"
        assert asked(url, "page")["data"]["charts"][0]["steps"][-1] == 61
        write_run(run, steps=5, rollout_steps=(5,))
        assert "step 5 of 300" in title_of(url)
        assert asked(url, "page")["data"]["charts"][0]["steps"] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("name", "content", "kept"),
    [
        ("eval/base.json", '{"outcomes": 3, "em": [], "records": []}', "Stage grpo"),
        ("manifest.json", '{"costs": {"grpo": {"seconds": {"total": "long"}}}}', "Stage grpo"),
        ("manifest.json", '{"planned": [1], "costs": {"grpo": {"seconds": {"total": 3.0}}}}', "Stage grpo"),
        ("recipe.toml", 'stage = [{ kind = "grpo", name = 3, steps = 7, reward = 5, env = [1] }]', "Stage grpo"),
        ("judges.json", '[{"judge": 3}]', "Stage grpo"),
        ("metrics.jsonl", '{"stage": "grpo", "step": 1, "reward_mean": "high", "seconds_rollout": []}\n', "Before and"),
    ],
)
def test_a_file_of_another_shape_costs_its_part_and_a_line(tmp_path: Path, name: str, content: str, kept: str) -> None:
    run = write_run(tmp_path / "demo", questions=6)
    (run / name).write_text(content)
    with watching([run]) as url:
        state = httpx.get(f"{url}/0/state")
        page = httpx.get(f"{url}/0/page")
        assert (state.status_code, page.status_code) == (200, 200)
        assert kept in page.json()["html"]


def test_a_file_that_is_too_large_is_said_and_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "demo", questions=6)
    with open(run / "eval" / "base.json", "a", encoding="utf-8") as file:
        file.write(" " * 10**6)
    monkeypatch.setattr(run_files, "WATCHED_BYTES", 10**6)
    found, [problem] = run_files.look_at_run(run)
    assert problem.startswith("base.json: 1,0")
    assert "bytes are too many to show" in problem
    assert (found.evaluations.keys(), run_files.read_run(run).evaluations.keys()) == ({"trained"}, {"base", "trained"})


def test_several_runs_have_a_report_each_and_a_list_of_their_states_on_top(tmp_path: Path) -> None:
    first = write_run(tmp_path / "a" / "demo", steps=60, questions=6)
    second = write_run(tmp_path / "b" / "demo", steps=40, questions=6)
    (tmp_path / "c" / "empty").mkdir(parents=True)
    with watching([first, second, tmp_path / "c" / "empty"]) as url:
        state = httpx.get(f"{url}/1/state").json()
        assert state["title"].endswith("b/demo")
        assert re.findall(r'<a href="../(\d)/"( aria-current="page")?>([^<]*)<', state["html"]) == [
            ("0", "", "a/demo"),
            ("1", ' aria-current="page"', "b/demo"),
            ("2", "", "c/empty"),
        ]
        assert [len(httpx.get(f"{url}/{at}/page").json()["data"]["rollouts"]) for at in (0, 1, 2)] == [3, 3, 0]
        assert httpx.get(f"{url}/1/rollouts/30").json()["step"] == 30
        assert httpx.get(f"{url}/2/rollouts/30").status_code == 404
        assert httpx.get(f"{url}/3/state").status_code == 404
        assert httpx.get(url, follow_redirects=True).url == f"{url}/0/"


def test_the_server_answers_to_its_own_names_and_pages_only(tmp_path: Path) -> None:
    run = write_run(tmp_path / "demo", steps=3, rollout_steps=(3,))
    with watching([run]) as url:
        for headers in ({"host": "evil.example"}, {"sec-fetch-site": "cross-site"}, {"origin": "https://evil.example"}):
            for path in ("", "/0/", "/0/state", "/0/page", "/0/rollouts/3"):
                assert httpx.get(url + path, headers=headers).status_code == 403
        policy = httpx.get(f"{url}/0/").headers["content-security-policy"]
        assert "default-src 'none'; script-src 'self';" in policy
        assert httpx.post(f"{url}/0/state", content=b"x").status_code == 413
        assert httpx.post(f"{url}/0/state").status_code == 405
        assert httpx.get(f"{url}/0/nothing").status_code == 404
        assert httpx.get(f"{url}/../../etc/passwd").status_code == 404


def test_with_a_key_the_page_alone_is_open_and_it_holds_nothing_of_the_runs(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a-secret-name", steps=3, rollout_steps=(3,))
    with watching([run], replace(LOOPBACK, key="k")) as url:
        for path in ("", "/0/", "/page.js", "/page.css", "/api.js"):
            answer = httpx.get(url + path, follow_redirects=True)
            assert answer.status_code == 200
            assert "secret" not in answer.text
        for path in ("/0/state", "/0/page", "/0/rollouts/3"):
            assert httpx.get(url + path).status_code == 401
        assert httpx.get(f"{url}/0/state", headers={"authorization": "Bearer k"}).status_code == 200


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda folder: None, "no such folder; give the folder of a run"),
        (lambda folder: folder.write_text(""), "is a file"),
        (lambda folder: (folder / "eval").mkdir(parents=True), "it holds 'eval' and no recipe.toml"),
    ],
)
def test_what_is_no_run_is_named(tmp_path: Path, make: Any, line: str) -> None:
    make(tmp_path / "demo")
    with pytest.raises(SleuthError, match=line):
        live_reports([tmp_path / "demo"])


# -- in a browser ------------------------------------------------------------------------------------------------------

GROUPS = "document.querySelectorAll('#rollout-groups button').length"
SECOND = "document.querySelectorAll('#rollout-groups button')[1]"
PASSAGES = "document.querySelectorAll('#rollout-detail details')"
STEP = "document.getElementById('rollout-step-name')?.textContent"


@pytest.fixture(scope="module")
def one_browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture
def browser(one_browser: Browser) -> Browser:
    one_browser.call("Page.navigate", url="about:blank")  # the last test's page still asks its server, which has ended
    one_browser.wait("location.href === 'about:blank' && document.readyState === 'complete'")
    one_browser.complaints.clear()
    return one_browser


@needs_chromium
def test_the_page_follows_a_run_and_keeps_what_is_open(tmp_path: Path, browser: Browser) -> None:
    folder = tmp_path / "demo"
    with RunFolder.open(folder, RECIPE) as run, watching([folder]) as url:
        browser.open(url)
        browser.wait("document.title.startsWith('evaluating base')")
        assert not browser.value("Boolean(document.getElementById('rollout-browser'))")
        evaluated(folder, "base", 0.2)
        for step in (1, 2):
            take_step(run, step)
        browser.wait(f"{STEP} === '2' && {GROUPS} === 2")  # without a word from here
        assert browser.value("document.querySelectorAll('#curves figure').length") > 5
        take_step(run, 3)
        browser.value("look()")
        browser.wait(f"{STEP} === '3'")
        assert browser.value("location.hash") == ""

        browser.value("window.figure = document.querySelector('#curves figure'); figure.focus(); scrollTo(0, 300)")
        browser.press("ArrowLeft", 37)
        reading = "document.querySelector('#curves figure output').textContent.slice(0, 8)"
        assert browser.value(reading) == "step 2: "
        browser.value(f"{SECOND}.dispatchEvent(new Event('pointerdown', {{ bubbles: true }})), {SECOND}.click()")
        browser.wait("location.hash === '#rollout=3,1,0'")
        browser.value(f"[...{PASSAGES}].forEach((one) => (one.open = true))")
        opened, top = browser.value(f"{PASSAGES}.length"), browser.value("scrollY")
        assert opened > 0
        take_step(run, 4, alarms=["no_signal"])
        browser.value("look()")
        browser.wait("document.querySelectorAll('#alarms li').length === 1")
        assert browser.value("document.getElementById('rollout-step').max") == "3"
        assert browser.value(STEP) == "3"
        assert browser.value(f"[...{PASSAGES}].filter((one) => one.open).length") == opened
        assert browser.value("document.activeElement === figure && figure.isConnected")
        assert browser.value(reading) == "step 2: "
        assert abs(browser.value("scrollY") - top) < 120  # the alarm above takes its room, and nothing else moves
        browser.value("document.getElementById('rollout-follow').click()")
        browser.wait(f"{STEP} === '4' && {GROUPS} === 2")
        assert browser.complaints == []


@needs_chromium
def test_two_runs_fit_a_screen_and_a_phone_and_a_server_that_ends_is_stated(tmp_path: Path, browser: Browser) -> None:
    runs = [write_run(tmp_path / name, questions=6, rollout_steps=(step,)) for name, step in (("a", 5), ("b", 7))]
    with watching(runs) as url:
        browser.open(url)
        for width in (390, 1280):
            browser.resize(width, 900)
            browser.wait(f"{GROUPS} === 3")
            assert browser.value("document.documentElement.scrollWidth") <= width
        browser.value("document.querySelectorAll('.runs a')[1].click()")
        browser.wait(f"document.title.endsWith(' b') && {STEP} === '7' && {GROUPS} === 3")
        assert browser.complaints == []
    browser.value("look()")
    assert "does not answer" in browser.value("document.getElementById('as-of').textContent")
    assert browser.value("document.querySelectorAll('#curves figure').length") > 5
