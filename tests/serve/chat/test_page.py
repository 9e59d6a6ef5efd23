"""The page in a real browser, in front of an agent that answers by a script."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest
from browser import CHROMIUM, Browser
from hostile import PASSAGES
from listening import listening
from small_agents import ADA, LAKE, Shelf, agent, app_of, diligent, quotes, refiner

from sleuth.evaluation.certainty import Certainty, Step
from sleuth.serve.chat_app import ASSETS
from sleuth.types import Passage, Sampling

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
HOSTILE = Passage(
    id='7"><b>', title="<b>Tarn</b>", text="Tarn <img src=x onerror=\"document.title='owned'\"> <script>1</script>"
)


EXAMPLES = ["Where was <b>Ada</b> Voss born?", "Who? <tool_output><snippet id=a1>Ada.</snippet></tool_output>"]


def answers(text: str, sampling: Sampling) -> str:
    if "again" in text:
        return "<answer>no closing tag"
    if "slow" in text:
        return "<think>" + "hm " * 150
    return diligent(text, sampling)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    served = agent(answers, shelf=Shelf(ADA, HOSTILE, LAKE), seconds=0.005)
    served = replace(served, facts={**served.facts, "examples": EXAMPLES})
    with listening(app_of(served)) as url:
        yield url


@pytest.fixture
def browser(tmp_path: Path, url: str) -> Iterator[Browser]:
    with Browser(tmp_path / "profile") as browser:
        browser.open(url)
        yield browser


def ask(browser: Browser, question: str) -> None:
    browser.value("document.getElementById('question').focus()")
    browser.type(question)
    browser.press("Enter", 13)


def shown(browser: Browser, selector: str) -> list[str]:
    found = f"[...document.querySelectorAll({json.dumps(selector)})].map((node) => node.textContent)"
    return browser.value(found)


ENDED = "document.querySelector('.cites, .missed, .problem') !== null"
OPEN = "!document.getElementById('card').hidden"


def test_the_page_contacts_no_other_site_and_has_nothing_inline() -> None:
    for name, _ in ASSETS.values():
        text = files("sleuth.serve").joinpath("assets", name).read_text(encoding="utf-8")
        assert "http://" not in text
        assert "https://" not in text
        assert "innerHTML" not in text
        assert "style=" not in text
        assert "onclick" not in text


@needs_chromium
@pytest.mark.sentinel
def test_an_answer_unfolds_with_its_thoughts_searches_and_citations_and_no_other_site_is_asked(
    browser: Browser, url: str
) -> None:
    ask(browser, "Where was Ada Voss born?")
    browser.wait("document.querySelector('.open') !== null")  # while it is written
    browser.wait(ENDED)
    assert shown(browser, "h2") == ["Where was Ada Voss born?"]
    assert shown(browser, ".thought .glimpse") == ["I look for Ada.", "It says Tarn."]
    assert shown(browser, ".search q") == ["Ada Voss"]
    assert shown(browser, ".passages summary") == ["Ada Voss", "<b>Tarn</b>", "Lake"]
    assert shown(browser, ".words") == ["Tarn"]
    assert shown(browser, ".cite") == ["Ada Voss", "<b>Tarn</b>"]
    assert not browser.value("[...document.querySelectorAll('details')].some((fold) => fold.open)")
    assert shown(browser, "#model") == ["tiny · sleuth dialect · 600 tokens of context · 3 passages"]
    assert shown(browser, "#send") == ["Ask"]
    own = {"/", "/page.css", "/api.js", "/page.js", "/v1/models", "/v1/chat/completions"}
    assert set(browser.requests) == {url + path for path in own}
    assert browser.complaints == []


LONG = Passage(
    id="30",
    title="Annals of Tarn",
    text="\U0001f30a "
    + "Fishers sold eels. " * 60
    + "Ada <i>Voss</i> was born in Tarn in 1890. "
    + "She painted. " * 40,
)
SENTENCE = "Ada <i>Voss</i> was born in Tarn in 1890."
IN_VIEW = """((mark, form) => mark && mark.top >= 0 && mark.bottom <= form.top)(
    document.querySelector('details[open] mark')?.getBoundingClientRect(), byId('form').getBoundingClientRect())"""


@needs_chromium
@pytest.mark.parametrize("by", ["mouse", "finger", "keyboard"])
def test_a_citation_opens_the_passage_at_the_sentence_of_the_answer(tmp_path: Path, by: str) -> None:
    shelf = Shelf(ADA, LONG, LAKE)
    whole = {"passage_tokens": 2000, "sentences_of": None}
    served = agent(quotes(" in 1890."), dialect="reading", shelf=shelf, context=4000, **whole)
    with (
        listening(app_of(served)) as url,
        Browser(tmp_path / "profile", width=390 if by == "finger" else 1200) as browser,
    ):
        browser.open(url)
        ask(browser, "Where was Ada Voss born?")
        browser.wait(ENDED)
        assert shown(browser, ".words, .cite") == ["Tarn", "Annals of Tarn"]
        assert shown(browser, ".thought") == []
        match by:
            case "mouse":
                browser.point(".cite", click=True)
            case "finger":
                browser.tap(".cite")
            case "keyboard":
                browser.value("document.querySelector('.cite').focus({ focusVisible: true })")
                browser.press("Enter", 13)
        browser.wait(IN_VIEW)
        assert shown(browser, "details[open] summary, details[open] mark") == ["Annals of Tarn", SENTENCE]
        assert shown(browser, "details[open] p") == [LONG.text]
        assert shown(browser, ".passages mark") == [SENTENCE]
        assert not browser.value(OPEN)


@needs_chromium
def test_of_several_sentences_of_a_passage_the_cited_one_is_opened(tmp_path: Path) -> None:
    text = "Ada painted eels. Fishers sold them. Ada 🌊 Voss was born in Tarn in 1890."
    eels, fishers, born = "Ada painted eels.", "Fishers sold them.", "Ada 🌊 Voss was born in Tarn in 1890."
    shelf = Shelf(Passage(id="30", title="Annals", text=text))
    served = agent(quotes(" in 1890."), dialect="reading", shelf=shelf)
    with listening(app_of(served)) as url, Browser(tmp_path / "profile", width=1200) as browser:
        browser.open(url)
        ask(browser, "Where was Ada Voss born?")
        browser.wait(ENDED)
        browser.point(".cite", click=True)
        assert shown(browser, ".passages p") == [eels, born, fishers]
        assert shown(browser, "details[open] p") == shown(browser, ".passages mark") == [born]


@needs_chromium
def test_markup_in_a_passage_or_a_question_is_shown_as_text(browser: Browser) -> None:
    ask(browser, "<img src=y onerror=\"document.title='owned'\"> where?")
    browser.wait(ENDED)
    browser.point(".cite + .cite")
    browser.wait(OPEN)
    assert shown(browser, "#card p")[0] == HOSTILE.text
    assert browser.value("document.querySelectorAll('main img, main script, main b, #card img, #card b').length") == 0
    assert browser.value("document.title") == "Sleuth"


@needs_chromium
def test_marks_of_direction_in_a_name_a_passage_or_a_query_end_with_it(tmp_path: Path) -> None:
    evil = "\u202eevil \u2066"
    passages = [Passage(id=name, title=text, text=text) for name, text in PASSAGES.items()]
    served = agent(
        diligent, shelf=Shelf(replace(ADA, title=evil + ADA.title), *passages), context=9000, passage_tokens=4000
    )
    served = replace(served, name=evil)
    after = "((node) => node.getBoundingClientRect())"
    with listening(app_of(served)) as url, Browser(tmp_path / "profile") as browser:
        browser.open(url)
        browser.wait("byId('model').textContent.includes('passages')")
        text = "(() => { const range = new Range(); range.selectNode(byId('model').lastChild); return range; })()"
        assert browser.value(f"{after}({text}).left >= {after}(document.querySelector('#model bdi')).right - 1")
        ask(browser, f"{evil} Where was Ada Voss born?")
        browser.wait(ENDED)
        assert shown(browser, ".passages summary")[0] == "\\u202eevil \\u2066Ada Voss"
        verb, query = (f"{after}(document.querySelector('.search {name}'))" for name in (".verb", "q"))
        assert browser.value(f"{query}.left >= {verb}.right - 1")
        assert not any(mark in browser.value("document.body.innerText") for mark in "\u202e\u2066\u2067")
        assert browser.value("document.title") == "Sleuth"
        assert browser.complaints == []


@needs_chromium
def test_a_missing_answer_is_reported_and_no_draft_is_left(browser: Browser) -> None:
    ask(browser, "again?")
    browser.wait(ENDED)
    assert shown(browser, ".missed") == ["It ended without an answer: no searches or attempts were left."]
    assert shown(browser, ".words") == []
    assert shown(browser, ".thought .glimpse") == ["no closing tag", "no closing tag"]


@needs_chromium
def test_a_question_can_be_stopped(browser: Browser, url: str) -> None:
    ask(browser, "slow?")
    browser.wait("document.querySelector('.thought.open') !== null")
    assert shown(browser, "#send") == ["Stop"]
    browser.point("#send", click=True)
    browser.wait("document.querySelector('.problem') !== null")
    assert shown(browser, ".problem") == ["Stopped."]
    ask(browser, "slow?")
    browser.wait("document.querySelectorAll('.thought.open').length === 1 && running !== null")
    browser.press("Escape", 27)
    browser.wait("document.querySelectorAll('.problem').length === 2")
    assert shown(browser, ".problem") == ["Stopped.", "Stopped."]
    assert shown(browser, "#send") == ["Ask"]
    browser.wait("fetch('health').then((answer) => answer.json()).then((health) => health.conversations === 0)")


@needs_chromium
def test_an_example_is_asked_by_a_click_and_clear_brings_the_examples_back(browser: Browser) -> None:
    browser.wait("document.querySelectorAll('.example').length === 2")
    assert shown(browser, ".example") == ["Where was <b>Ada</b> Voss born?", "Who?"]
    browser.point(".example", click=True)
    browser.wait(ENDED)
    assert shown(browser, "h2") == EXAMPLES[:1]
    assert browser.value("document.getElementById('hint').hidden")
    browser.point("#clear", click=True)
    assert shown(browser, "article") == []
    assert browser.value("[byId('hint').hidden, byId('clear').hidden, document.activeElement.id]") == [
        False,
        True,
        "question",
    ]
    ask(browser, "slow?")
    browser.wait("document.querySelector('.thought.open') !== null")
    browser.point("#clear", click=True)  # stops it too
    browser.wait("running === null")
    assert shown(browser, "article, .problem") == []


@needs_chromium
def test_a_server_that_is_gone_is_said_in_words_in_view_and_the_question_is_kept(tmp_path: Path) -> None:
    with Browser(tmp_path / "profile", height=300) as browser:
        with listening(app_of(agent(answers, seconds=0.02))) as url:
            browser.open(url)
            ask(browser, "slow?")
            browser.wait("document.querySelector('.thought.open') !== null")
        browser.wait("document.querySelector('.problem') !== null")
        assert shown(browser, ".problem")[0].startswith("The connection was lost before the end of the answer.")
        assert browser.value("byId('question').value") == "slow?"
        browser.value("byId('question').value = ''")
        ask(browser, "Where?\n" * 30)
        browser.wait("document.querySelectorAll('.problem').length === 2")
        assert shown(browser, ".problem")[1].startswith("The server does not answer.")
        bottom, top = "[...document.querySelectorAll('.problem')].pop().getBoundingClientRect().bottom", "byId('form')"
        assert browser.value(f"{bottom} <= {top}.getBoundingClientRect().top")


@needs_chromium
@pytest.mark.parametrize("width", [320, 390, 1280])
def test_the_page_fits_any_width(browser: Browser, width: int) -> None:
    browser.resize(width, 800)
    ask(browser, "a" * 300)
    browser.wait(ENDED)
    assert browser.value("document.documentElement.scrollWidth") <= width
    assert browser.value("document.getElementById('send').getBoundingClientRect().right") <= width
    assert browser.value("document.getElementById('question').offsetWidth") > min(width, 740) / 2


@needs_chromium
def test_what_a_refiner_was_given_unfolds_and_its_claims_name_their_snippets(tmp_path: Path) -> None:
    def refined(text: str, sampling: Sampling) -> str:
        return "<answer><snippet id=a1>Ada Voss was born in Tarn.</snippet></answer>"

    given = "<snippet id=a1>Ada Voss was born in Tarn.</snippet> <snippet id=b2>A <b>lake</b>.</snippet>"
    with listening(app_of(refiner(refined))) as url, Browser(tmp_path / "profile") as browser:
        browser.open(url)
        ask(browser, f"Where was Ada Voss born? <tool_output>{given}</tool_output>")
        browser.wait(ENDED)
        assert shown(browser, "h2") == ["Where was Ada Voss born?"]
        assert shown(browser, ".search p:first-child") == ["Given"]
        assert shown(browser, ".passages p") == ["Ada Voss was born in Tarn.", "A <b>lake</b>."]
        assert shown(browser, ".words") == ["Ada Voss was born in Tarn."]
        assert shown(browser, ".cite") == ["a1"]


@needs_chromium
def test_the_topics_of_the_passages_are_listed(tmp_path: Path) -> None:
    served = agent(diligent)
    facts = {**served.facts, "topics": ["Dog", "<b>Tarn"]}
    with listening(app_of(replace(served, facts=facts))) as url, Browser(tmp_path / "profile") as browser:
        browser.open(url)
        browser.wait("document.querySelector('#listed li') !== null")
        assert shown(browser, "#listed p, #listed li") == ["Most passages are about", "Dog", "<b>Tarn"]


@needs_chromium
def test_a_folders_page_lists_its_documents_and_says_how_sure_it_is_or_that_it_found_nothing(tmp_path: Path) -> None:
    def answer(text: str, sampling: Sampling) -> str:
        return diligent(text, sampling).replace("Tarn</answer>", "Rome</answer>" if "Rome" in text else "Tarn</answer>")

    steps = (Step(above=-math.inf, right=0, n=100), Step(above=0.5, right=47, n=100))
    sure = Certainty(weights=(0.0, 1.0, 0.0, 0.0, 0.0), threshold=0.5, steps=steps)  # by whether a passage holds it
    pages = [replace(ADA, id="lakes/ada.pdf#p12.3"), replace(LAKE, id="lake.md#1")]
    served = agent(answer, shelf=Shelf(*pages))
    facts = {**served.facts, "documents": ["lake.md", "lakes/ada.pdf"]}
    with (
        listening(app_of(replace(served, facts=facts, certainty=sure))) as url,
        Browser(tmp_path / "profile") as browser,
    ):
        browser.open(url)
        browser.wait("document.querySelector('#listed li') !== null")
        assert shown(browser, "#listed p, #listed li") == ["2 documents", "lake.md", "lakes/ada.pdf"]
        ask(browser, "Where was Ada Voss born?")
        browser.wait("document.querySelector('.copy') !== null")
        assert shown(browser, ".passages summary, .cite") == [
            "lakes/ada.pdf, page 12",
            "lake.md",
            "lakes/ada.pdf, page 12",
        ]
        assert shown(browser, ".sure") == ["0.47 (0.38 to 0.57) of such answers are right."]
        ask(browser, "Is it Rome?")
        browser.wait("document.querySelectorAll('.copy').length === 2")
        assert shown(browser, ".words") == ["Tarn", "I found nothing about that in these documents."]
        assert len(shown(browser, ".sure, .missed, .cites")) == 2  # both of the first
        assert browser.complaints == []
