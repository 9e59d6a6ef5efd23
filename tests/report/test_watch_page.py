"""The page of `sleuth watch`: a real server, asked over HTTP and by a real browser while a run grows."""

from __future__ import annotations

import json
import random
import shutil
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pyarrow.parquet as pq
import pytest
from browser import CHROMIUM, Browser
from synthetic_run import HOSTILE, byte_tokenizer, evaluation_file, metrics_row, record, rollout_group, write_run

from sleuth.cli.http_server import access_of, server_of
from sleuth.recipe import load_recipe
from sleuth.report.watch_page import WatchPage, followed_runs
from sleuth.runs.rollouts import write_rollouts
from sleuth.runs.run_folder import RunFolder
from sleuth.serve.http.access import Access
from sleuth.serve.watch import watch_app
from sleuth.types import Episode, Group, Score, Segment, SleuthError, Task, Trajectory

RECIPE = load_recipe(Path(__file__).parents[2] / "recipes" / "demo.toml")
STEPS = RECIPE.stage[1].last_step  # pyright: ignore
LOOPBACK = access_of("127.0.0.1", api_key=None, insecure=False, per_client=None)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")


@contextmanager
def watching(folders: Sequence[Path], access: Access = LOOPBACK) -> Iterator[str]:
    """A server that follows runs; its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        server = server_of(watch_app(WatchPage(followed_runs(folders)), access))
        thread = Thread(target=server.run, kwargs={"sockets": [free]}, daemon=True)
        thread.start()
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield f"http://127.0.0.1:{free.getsockname()[1]}"
        server.should_exit = True
        thread.join(10)


def take_step(run: RunFolder, step: int, **figures: Any) -> None:
    """What a trainer writes at a step."""
    row = metrics_row(random.Random(step), step, STEPS) | figures
    run.write_metrics("grpo", step, {name: row[name] for name in row if name not in ("stage", "step")})
    groups = [rollout_group(random.Random(step), 0.5, 10 * step + group, byte_tokenizer()) for group in range(2)]
    write_rollouts(run.rollouts / f"step-{step:06d}.parquet", groups, [[-0.5, 0.25, 1.0, None]] * 2)


def evaluated(run: Path, name: str, skill: float) -> None:
    found = evaluation_file(name, [record(random.Random(n), n, skill) for n in range(12)])
    (run / "eval" / f"{name}.json").write_text(json.dumps(found | {"model": RECIPE.model}), encoding="utf-8")


def state_of(url: str) -> tuple[str, dict[str, str]]:
    answer = httpx.get(f"{url}/state").json()
    return answer["title"], answer["parts"]


def part(url: str, name: str) -> dict[str, Any]:
    return httpx.get(f"{url}/parts/{name}").json()


# -- over HTTP ---------------------------------------------------------------------------------------------------------


def test_a_run_is_followed_from_before_it_begins_until_it_ends(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    folder.mkdir()
    with watching([folder]) as url:
        title, before = state_of(url)
        assert title == "waiting: no run has begun in this folder · demo"
        with RunFolder.open(folder, RECIPE) as run:
            assert state_of(url)[0] == "evaluating base · demo"
            evaluated(folder, "base", 0.2)
            assert state_of(url)[0] == f"training grpo, step 0 of {STEPS} · demo"
            for step in (1, 2):
                take_step(run, step)
            title, parts = state_of(url)
            assert title.startswith(f"training grpo, step 2 of {STEPS}, ")
            assert title.endswith(" min left · demo")
            assert {name for name in parts if parts[name] != before[name]} == {*parts}
            assert part(url, "curves")["charts"][0]["steps"] == [1, 2]
            assert part(url, "rollouts")["runs"] == [{"name": "demo", "steps": [1, 2]}]
            take_step(run, 3)
            again = state_of(url)[1]
            assert {name for name in parts if parts[name] != again[name]} == {
                "runs",
                "alarms",
                "curves",
                "time",
                "rollouts",
            }
            assert part(url, "curves")["charts"][0]["steps"] == [1, 2, 3]
        assert "stopped at step 3" in state_of(url)[0]
        with RunFolder.open(folder, RECIPE) as run:
            take_step(run, STEPS)
            evaluated(folder, "trained", 0.8)
            found = json.loads((folder / "eval/trained.json").read_text())
            (folder / "eval/trained.json").write_text(json.dumps(found | {"model": f"x/step-{STEPS:06d}"}))
        assert state_of(url)[0] == "finished · demo"
        assert "[0." in part(url, "figures")["html"]


def test_what_has_not_changed_is_not_sent_again(tmp_path: Path) -> None:
    run = write_run(tmp_path / "demo")
    with watching([run]) as url:
        for path in ("state", "parts/curves", "rollouts/0/60"):
            first = httpx.get(f"{url}/{path}")
            assert first.status_code == 200
            second = httpx.get(f"{url}/{path}", headers={"if-none-match": first.headers["etag"]})
            assert (second.status_code, second.content) == (304, b"")
        with (run / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(metrics_row(random.Random(1), 61, 300)) + "\n")
        assert httpx.get(f"{url}/state", headers={"if-none-match": first.headers["etag"]}).status_code == 200


def test_an_alarm_has_its_sentence_and_a_reset_run_its_shorter_curve(tmp_path: Path) -> None:
    with RunFolder.open(tmp_path / "demo", RECIPE) as run, watching([tmp_path / "demo"]) as url:
        state_of(url)
        assert "No alarm so far" in part(url, "alarms")["html"]
        for step in range(1, 7):
            take_step(run, step, nonzero_advantage_fraction=0.0, **({"alarms": ["no_signal"]} if step == 6 else {}))
        state_of(url)
        html = part(url, "alarms")["html"]
        assert "no_signal" in html
        assert "no group carried a signal in 5 steps" in html
        run.metrics.rewind("grpo", 4)
        state_of(url)
        assert "No alarm so far" in part(url, "alarms")["html"]
        assert part(url, "curves")["charts"][0]["steps"] == [1, 2, 3, 4]


def test_damage_is_stated_and_the_server_goes_on(tmp_path: Path) -> None:
    run = write_run(tmp_path / "demo", questions=6)
    with watching([run]) as url:
        with (run / "metrics.jsonl").open("a") as file:
            file.write('{"stage": 3}\nnonsense\n{"stage": "grpo", "step": 61, "reward_mean": 0.5}\n{"stage": "gr')
        (run / "eval/base.json").write_text('{"em": {"value": 0.')
        (run / "manifest.json").write_text('{"costs": [3]}')
        (run / "rollouts/step-000060.parquet").write_bytes(b"PAR1, and then the copy broke off")
        title, _ = state_of(url)
        html = part(url, "runs")["html"]
        assert "step 61" in title
        assert "left out what is no row (2 lines)" in html
        assert "base.json: invalid JSON" in html
        assert "manifest: not as Sleuth writes it" in html
        assert part(url, "curves")["charts"][0]["steps"][-1] == 61
        refused = httpx.get(f"{url}/rollouts/0/60")
        assert refused.status_code == 404
        assert "step-000060.parquet" in refused.json()["error"]["message"]
        (run / "recipe.toml").write_text("[[stage]]\nsteps = 'many'\n")
        state_of(url)
        assert "a stage has no whole number of steps" in part(url, "runs")["html"]
        shutil.rmtree(run)
        assert state_of(url)[0] == "the folder is gone; this is what it held · demo"
        assert part(url, "curves")["charts"][0]["steps"][-1] == 61
        write_run(run, steps=5, rollout_steps=(5,))
        assert "step 5 of 300" in state_of(url)[0]
        assert part(url, "curves")["charts"][0]["steps"] == [1, 2, 3, 4, 5]


def test_runs_share_charts_in_colours_of_their_own(tmp_path: Path) -> None:
    first = write_run(tmp_path / "a" / "demo", steps=60, questions=6)
    second = write_run(tmp_path / "b" / "demo", steps=40, questions=6)
    (tmp_path / "c" / "empty").mkdir(parents=True)
    (second / "eval/trained.json").unlink()
    with watching([first, second, tmp_path / "c" / "empty"]) as url:
        assert state_of(url)[0].endswith("of 3 runs at work")
        charts = part(url, "curves")["charts"]
        reward = [
            [curve["label"], [at for at, one in enumerate(curve["values"]) if one is not None]]
            for curve in charts[0]["curves"]
        ]
        assert reward == [["a/demo", [*range(60)]], ["b/demo", [*range(40)]], ["c/empty", []]]
        assert part(url, "curves")["html"].count("swatch arm-") == 3
        html = part(url, "figures")["html"]
        assert html.count("<h3>") == 2
        assert 'data-column="b/demo"><span class="muted">none' in html  # trained, of the second
        assert [len(run["steps"]) for run in part(url, "rollouts")["runs"]] == [3, 3, 0]
        assert httpx.get(f"{url}/rollouts/1/30").json()["step"] == 30
        assert httpx.get(f"{url}/rollouts/2/30").status_code == 404
        assert httpx.get(f"{url}/rollouts/3/30").status_code == 404


def test_of_a_large_file_only_the_first_groups_are_read(tmp_path: Path) -> None:
    run = write_run(tmp_path / "demo", rollout_steps=())
    file = run / "rollouts" / "step-000060.parquet"
    write_rollouts(file, [long_group(number) for number in range(3000)], [[0.0]] * 3000)
    group = pq.ParquetFile(file).metadata.row_group(0)
    columns = [group.column(at) for at in range(group.num_columns)]
    [text] = [one for one in columns if one.path_in_schema == "segments.list.element.text"]
    end = (text.dictionary_page_offset or text.data_page_offset) + text.total_compressed_size
    with file.open("r+b") as damaged:  # who reads on finds the damage
        damaged.seek(end - 300_000)
        damaged.write(b"\0" * 200_000)
    with pytest.raises(OSError):  # noqa: PT011
        pq.read_table(file)
    [page] = followed_runs([run])
    page.look()
    shown = page.rollouts(60)
    assert (len(shown["groups"]), shown["of"]) == (8, 3000)


def long_group(number: int) -> Group:
    task = Task(id=str(number), question=f"question {number}", golden_answers=("a",))
    segment = Segment(author="policy", text=random.Random(number).randbytes(600).hex(), tokens=(1,))
    trajectory = Trajectory(segments=(segment,), stop="answered")
    episode = Episode(task=task, sample=0, trajectories=(trajectory,))
    return Group(task=task, episodes=(episode,), scores=(Score(value=0.0, note="wrong"),))


def test_the_server_answers_to_its_own_names_and_pages_only(tmp_path: Path) -> None:
    run = write_run(tmp_path / "demo", steps=3, rollout_steps=(3,))
    with watching([run]) as url:
        for headers in ({"host": "evil.example"}, {"sec-fetch-site": "cross-site"}, {"origin": "https://evil.example"}):
            for path in ("", "/state", "/parts/runs", "/rollouts/0/3"):
                assert httpx.get(url + path, headers=headers).status_code == 403
        policy = httpx.get(url).headers["content-security-policy"]
        assert "default-src 'none'; script-src 'self';" in policy
        assert httpx.post(f"{url}/state", content=b"x").status_code == 413
        assert httpx.post(f"{url}/state").status_code == 405
        assert httpx.get(f"{url}/parts/nothing").status_code == 404
        assert httpx.get(f"{url}/../../etc/passwd").status_code == 404


def test_with_a_key_the_page_alone_is_open_and_it_holds_nothing_of_the_runs(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a-secret-name", steps=3, rollout_steps=(3,))
    with watching([run], replace(LOOPBACK, key="k")) as url:
        for path in ("", "/page.js", "/page.css", "/api.js"):
            answer = httpx.get(url + path)
            assert answer.status_code == 200
            assert "secret" not in answer.text
        for path in ("/state", "/parts/runs", "/rollouts/0/3"):
            assert httpx.get(url + path).status_code == 401
        assert httpx.get(f"{url}/state", headers={"authorization": "Bearer k"}).status_code == 200


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
        followed_runs([tmp_path / "demo"])


def test_a_run_is_watched_once_and_no_more_than_eight(tmp_path: Path) -> None:
    with pytest.raises(SleuthError, match="is given twice"):
        followed_runs([tmp_path, tmp_path / "x" / ".."])
    folders = [tmp_path / "runs" / str(number) for number in range(9)]
    for folder in folders:
        folder.mkdir(parents=True)
    with pytest.raises(SleuthError, match="at most 8"):
        followed_runs(folders)


# -- in a browser ------------------------------------------------------------------------------------------------------

GROUPS = "document.querySelectorAll('#rollout-groups button').length"
SECOND = "document.querySelectorAll('#rollout-groups button')[1]"
PASSAGES = "document.querySelectorAll('#rollout-detail details')"
STEP = "document.getElementById('rollout-step-name').textContent"


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
        assert browser.value("document.getElementById('rollout-shown').hidden")
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
        assert browser.value("document.querySelectorAll('#alarms li').length") == 1
        assert browser.value("document.getElementById('rollout-step').max") == "3"
        assert browser.value(STEP) == "3"
        assert browser.value(f"[...{PASSAGES}].filter((one) => one.open).length") == opened
        assert browser.value("document.activeElement === figure && figure.isConnected")
        assert browser.value(reading) == "step 2: "
        assert abs(browser.value("scrollY") - top) < 120  # the alarm above takes its room, and nothing else moves
        browser.value("document.getElementById('rollout-follow').click()")
        browser.wait(f"{STEP} === '4' && {GROUPS} === 2")
        assert browser.value("data.rollouts.filter((one) => one.groups.length).length") == 1  # the others were let go
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
        assert browser.value("[...document.querySelectorAll('.runs h1')].map((one) => one.textContent)") == [
            "a",
            "b",
        ]
        stroke = "getComputedStyle(document.querySelector('.curve-{} .line')).stroke"
        assert browser.value(stroke.format(0)) != browser.value(stroke.format(1))
        browser.value("document.getElementById('rollout-run').value = 1")
        browser.value("document.getElementById('rollout-run').dispatchEvent(new Event('change'))")
        browser.wait(f"{STEP} === '7' && {GROUPS} === 3")
        assert browser.complaints == []
    browser.value("look()")
    assert "does not answer" in browser.value("document.getElementById('as-of').textContent")
    assert browser.value("document.querySelectorAll('#curves figure').length") > 5


@needs_chromium
def test_what_a_model_or_a_corpus_wrote_is_never_markup(tmp_path: Path, browser: Browser) -> None:
    run = write_run(tmp_path / "demo", questions=2)
    evaluation = json.loads((run / "eval/base.json").read_text())
    hostile = {HOSTILE: evaluation["em"], "model": HOSTILE}
    (run / "eval/base.json").write_text(json.dumps(evaluation | hostile))
    row = metrics_row(random.Random(1), 61, 300) | {"stage": HOSTILE, f"score_{HOSTILE}": 0.5, "alarms": [HOSTILE]}
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")
    with watching([run]) as url:
        browser.open(url)
        browser.wait(f"{GROUPS} === 3 && document.querySelectorAll('#figures td').length > 5")
        for part in ("#alarms", "#curves", "#figures"):
            assert HOSTILE in browser.value(f"document.querySelector('{part}').textContent")
        browser.wait("document.querySelector('#rollout-detail').textContent.includes('<search>')")
        assert browser.value("document.querySelectorAll('main script, main img, header script').length") == 0
        assert browser.complaints == []
