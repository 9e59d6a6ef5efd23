"""Take the pictures of docs/how-to/real_demo.md: `python -m tools.draw_real_answers RUN/eval/trained.json`.

Five questions that were answered right in an evaluation and three that were not, drawn by a seed, are asked on the page
of `sleuth demo --real` in a headless Chromium, with the citation opened. Writes docs/assets/real-NAME.png and the
section of the page between its two comments. With `--index DIR` the model searches the index of the evaluation, else
the passages that ship: an answer can then differ from the evaluated one, and the section says what was shown. Where
pngquant is installed, it makes the pictures a third as large.
"""

from __future__ import annotations

import argparse
import base64
import html
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

from sleuth.answers.match import exact_match
from sleuth.cli import demo as real_demo
from sleuth.cli.http_server import LOOPBACK, address_of, listen_here, server_of
from sleuth.evaluation.eval_session import open_eval_session
from sleuth.report.run_files import read_evaluation
from sleuth.serve.access import Access, conversation_limits, known_names
from sleuth.serve.agent import Agent, agent_of
from sleuth.serve.chat_app import chat_app
from sleuth.types import SleuthError
from tests.browser import CHROMIUM, Browser

DOCS = Path(__file__).parents[1] / "docs"
PAGE, FOLDER = DOCS / "how-to" / "real_demo.md", DOCS / "assets"
BEGIN, END = "<!-- answers: begin -->", "<!-- answers: end -->"
RIGHT, WRONG = 5, 3
WIDTH, MARGIN = 720, 16
"""Pixels of the page, and around the answer on a picture."""
ENDED = "document.querySelector('.cites, .missed, .problem') !== null"
ARTICLE = "(({x, y, width, height}) => [x, y + scrollY, width, height])(%s.getBoundingClientRect())"

Record = Mapping[str, Any]
"""A question of an evaluation file, as `question_record` writes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A question as the page showed it: its answer (empty without one), the title and the sentence that it cites (empty
    without one), and the answers that were expected."""

    name: str
    question: str
    answer: str
    cited: str
    sentence: str
    golden_answers: Sequence[str]

    @property
    def right(self) -> bool:
        """Whether the shown answer is an exact match."""
        return bool(self.answer) and exact_match(self.answer, self.golden_answers)


def draw_records(records: Sequence[Record], seed: int) -> dict[str, Record]:
    """`right-1` to `right-5` and `wrong-1` to `wrong-3`, drawn by the seed. Exits with one line if there are fewer."""
    rng, drawn = random.Random(seed), dict[str, Record]()
    for name, em, count in (("right", 1, RIGHT), ("wrong", 0, WRONG)):
        found = [record for record in records if record["em"] == em]
        if len(found) < count:
            sys.exit(f"{len(found)} answers are {name}; {count} are needed")
        drawn |= {f"{name}-{at}": record for at, record in enumerate(rng.sample(found, count), start=1)}
    return drawn


def take(browser: Browser, url: str, name: str, record: Record, folder: Path) -> Picture:
    """Asks the question on the page, opens its first citation, and writes `real-NAME.png`."""
    browser.open(url)
    browser.value("document.getElementById('question').focus()")
    browser.type(record["question"])
    browser.press("Enter", 13)
    browser.wait(ENDED)
    if browser.value("document.querySelector('.cite') !== null"):
        browser.point(".cite", click=True)
        browser.point("h1")  # away from the citation, whose card would be on the picture
    browser.value("document.activeElement.blur()")
    x, y, width, height = browser.value(ARTICLE % "document.querySelector('article')")
    clip = {"x": x - MARGIN, "y": y - MARGIN, "width": width + 2 * MARGIN, "height": height + 2 * MARGIN, "scale": 1}
    shot = browser.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
    file = folder / f"real-{name}.png"
    file.write_bytes(base64.b64decode(shot["data"]))
    if (pngquant := shutil.which("pngquant")) is not None:
        subprocess.run([pngquant, "--force", "--ext", ".png", "--strip", "--speed", "1", file], check=True)
    return Picture(
        name=name,
        question=record["question"],
        answer=_text(browser, ".words"),
        cited=_text(browser, ".cite"),
        sentence=_text(browser, "details[open] mark"),
        golden_answers=record["golden_answers"],
    )


def section(pictures: Sequence[Picture], *, evaluation: str, questions: int, seed: int, passages: int) -> str:
    """The pictures with their captions, in Markdown."""
    lines = [
        f"Drawn with `random.Random({seed})` from the {questions:,} questions of `{evaluation}`: {RIGHT} that were "
        f"answered right there, and {WRONG} that were not. The page searched {passages:,} passages.",
    ]
    for picture in pictures:
        expected = html.escape(" or ".join(dict.fromkeys(picture.golden_answers)), quote=False)
        verdict = "Right." if picture.right else f"Wrong: expected {expected}."
        answer = f"{picture.answer}, from {picture.cited}" if picture.cited else picture.answer or "no answer"
        alt = html.escape(f"{picture.question} {answer}").replace("[", "(").replace("]", ")")
        lines += ["", f"![{alt}](../assets/real-{picture.name}.png) {verdict}"]
    return "\n".join(lines) + "\n"


def put_into(page: str, text: str) -> str:
    """The page with `text` between its two comments. Exits with one line if it has not got them."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        sys.exit(f"{PAGE}: expected {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{text}\n{END}{after}"


@contextmanager
def served(agent: Agent) -> Iterator[str]:
    """The page of an agent on a free port of this machine; its address."""
    app = chat_app(agent, conversation_limits(), conversations=1, access=Access(hosts=known_names(LOOPBACK)))
    with listen_here(0, 0) as listening:
        server = server_of(app)
        thread = Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        while not server.started and thread.is_alive():
            time.sleep(0.01)
        try:
            yield address_of(LOOPBACK, listening)
        finally:
            server.should_exit = True
            thread.join()


def take_all(agent: Agent, drawn: Mapping[str, Record], folder: Path) -> list[Picture]:
    """The pictures of all drawn questions, written to `folder`."""
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile,
        served(agent) as url,
        Browser(Path(profile), width=WIDTH, height=900) as browser,
    ):
        return [take(browser, url, name, record, folder) for name, record in drawn.items()]


def _text(browser: Browser, selector: str) -> str:
    return browser.value(f"document.querySelector({json.dumps(selector)})?.textContent ?? ''")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("evaluation", type=Path, metavar="EVAL.json")
    parser.add_argument("--index", type=Path, metavar="DIR", help="search this index instead of the passages that ship")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    if CHROMIUM is None:
        sys.exit("no Chromium here; install one: apt-get install chromium")
    if not asked.evaluation.is_file():
        sys.exit(f"{asked.evaluation}: no such file")
    try:
        records = read_evaluation(asked.evaluation).get("records", ())
        drawn = draw_records(records, asked.seed)
        folder = real_demo.find_real_model()
        if asked.index is None:
            real_demo.index_passages(folder / real_demo.CORPUS)
        index = asked.index or real_demo.INDEX
        session, _ = open_eval_session(str(folder), [], index=index, slots=1)
        agent = agent_of(session, folder.name, index)
        pictures = take_all(agent, drawn, FOLDER)
    except SleuthError as error:
        sys.exit(str(error))
    evaluation = "/".join(asked.evaluation.parts[-2:])
    passages = agent.facts["passages"]
    text = section(pictures, evaluation=evaluation, questions=len(records), seed=asked.seed, passages=passages)
    PAGE.write_text(put_into(PAGE.read_text(encoding="utf-8"), text), encoding="utf-8")
    for picture in pictures:
        file = FOLDER / f"real-{picture.name}.png"
        print(f"{file}: {file.stat().st_size:,} bytes, {'right' if picture.right else 'wrong'}: {picture.answer}")


if __name__ == "__main__":
    main()
