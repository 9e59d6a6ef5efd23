"""Thousands of generated transcripts under every scorer, beside plain readings of the same specifications.

The plain readings below share nothing with the package: they scan character by character and know no regular
expression.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest
from transcripts import MENTIONS, RETRY, chat

from sleuth.answers.scorers import SCORERS
from sleuth.answers.scorers.scorer import transcript_from_text

CASES = 6_000
PUNCTUATION = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
WORD_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789_"

# -- what is generated -----------------------------------------------------------------------------------------------

PROMPTS = (chat(MENTIONS), chat("Which city?\n"), MENTIONS, "User: Which city?\nAssistant:", "")
GOLDENS = (("Paris",), ("Beijing",), ("and",), ("The",), ("Rome", "New York City"), ("York",), ("no",))
WORDS = ("Paris", "the Paris!", "Rome", "New York", "and", "no", "yes", "", " ", "\n", "Answer: Paris", "northern")
BOXES = (
    "\\boxed{Paris}",
    "\\boxed{New York}",
    "\\boxed {Paris}",
    "\\boxed{{Rome}}",
    "\\boxed{no",
    "\\boxed{the}",
    "\\fbox{Paris}",
)
TAGS = ("think", "search", "information", "result", "answer")
ENDINGS = ("", "", "", "<|im_end|>", "<|endoftext|>", " so.", "\n", "<|im_end|>\n", "<|im_start|>assistant\n")


def transcripts() -> Iterator[tuple[str, str, tuple[str, ...]]]:
    rng = random.Random(20)
    for _ in range(CASES):
        parts = [_part(rng) for _ in range(rng.randint(0, 5))]
        if rng.random() < 0.6:
            parts.append(_last_turn(rng))
        response = _boxed(rng) if rng.random() < 0.1 else "".join(parts) + rng.choice(ENDINGS)
        yield rng.choice(PROMPTS), response, rng.choice(GOLDENS)


def _boxed(rng: random.Random) -> str:
    """Nearly what ReSearch takes for sound."""
    looked = "<search>q</search> <result>\nx\n</result>" * rng.choice((0, 1, 2))
    answer = f"<answer>{rng.choice(WORDS)}{rng.choice(BOXES)}{rng.choice(('', ' $', '}'))}</answer>"
    return f"<think>{looked}</think>{answer}{rng.choice(('', '<|im_end|>', '<|im_end|>'))}"


def _part(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.35:  # a turn as it should be, with whatever the library had
        results = rng.choice(("information", "result"))
        return (
            f"<think>{_inner(rng)}</think>{rng.choice(('', chr(10)))}<search>{rng.choice(WORDS)}</search>"
            f"{rng.choice(('', chr(10), ' x '))}<{results}>{_inner(rng)}</{results}>"
        )
    if kind < 0.5:
        return RETRY
    if kind < 0.6:
        return rng.choice(WORDS)
    return _element(rng, depth=2)


def _last_turn(rng: random.Random) -> str:
    content = rng.choice(BOXES) if rng.random() < 0.4 else _inner(rng)
    answers = f"<answer>{content}</answer>" * rng.choice((1, 1, 1, 1, 2, 11, 12))
    return f"<think>{rng.choice(WORDS)}</think>{rng.choice(('', chr(10), ' x'))}{answers}"


def _inner(rng: random.Random) -> str:
    return _element(rng, depth=1) if rng.random() < 0.15 else rng.choice(WORDS)


def _element(rng: random.Random, depth: int) -> str:
    tag = rng.choice(TAGS)
    inner = _element(rng, depth - 1) if depth and rng.random() < 0.4 else rng.choice(WORDS + BOXES)
    opening, closing = f"<{tag}>", f"</{tag}>"
    match rng.randint(0, 6):
        case 0:
            return opening + inner
        case 1:
            return inner + closing
        case 2:
            return opening.upper() + inner + closing.upper()
        case _:
            return opening + inner + closing


# -- plain readings --------------------------------------------------------------------------------------------------


def plain_normal(text: str) -> str:
    kept = "".join(character for character in text.lower() if character not in PUNCTUATION)
    words, word = [], ""
    for character in f"{kept} ":
        if character.isspace():
            words.append(word)
            word = ""
        else:
            word += character
    return " ".join(word for word in words if word not in ("", "a", "an", "the"))


def plain_equal(answer: str | None, golden: tuple[str, ...]) -> bool:
    return answer is not None and any(plain_normal(answer) == plain_normal(one) for one in golden)


def plain_contents(text: str, tag: str) -> list[str]:
    """Character by character: outside an element look for its opening tag, inside for its closing one."""
    found, inside, at = [], None, 0
    while at < len(text):
        if inside is None and text.startswith(f"<{tag}>", at):
            at += len(tag) + 2
            inside = at
        elif inside is not None and text.startswith(f"</{tag}>", at):
            found.append(text[inside:at].strip())
            at += len(tag) + 3
            inside = None
        else:
            at += 1
    return found


def plain_search_r1(prompt: str, response: str, golden: tuple[str, ...]) -> float:
    answers = plain_contents(prompt + response, "answer")
    return 1.0 if len(answers) >= 2 and plain_equal(answers[-1], golden) else 0.0


def plain_structure(text: str) -> bool:
    """A machine that reads tags one by one."""
    begin = text.find("<|im_start|>assistant")
    if begin < 0:
        return False
    rest, place = text[begin + len("<|im_start|>assistant") :].lstrip(), "start"
    allowed = {
        ("start", "<think>"): "in thought",
        ("in thought", "</think>"): "after thought",
        ("after thought", "<search>"): "in search",
        ("in search", "</search>"): "after search",
        ("after search", "<information>"): "in results",
        ("in results", "</information>"): "start again",
        ("start again", "<think>"): "in thought",
        ("after thought", "<answer>"): "in answer",
        ("in answer", "</answer>"): "over",
    }
    tags = [mark + name + ">" for name in ("think", "search", "information", "answer") for mark in ("<", "</")]
    while rest:
        tag = next((tag for tag in tags if rest.startswith(tag)), None)
        if tag is not None:
            if (place, tag) not in allowed:
                return False
            place, rest = allowed[place, tag], rest[len(tag) :]
        elif place.startswith("in ") or rest[0].isspace():
            rest = rest[1:]
        else:
            return False
    return place == "over"


def plain_search_r1_format(prompt: str, response: str, golden: tuple[str, ...]) -> float:
    text = prompt + response
    answers = plain_contents(text, "answer")
    answer = answers[-1] if len(answers) >= 2 else None
    structure = plain_structure(text)
    if plain_equal(answer, golden):
        return 1.0 if structure else 0.8
    if structure:
        blocks = [plain_normal(block) for block in plain_contents(text, "information")]
        return 0.3 if any(plain_normal(one) in block for one in golden for block in blocks) else 0.2
    return 0.0 if answer is None else 0.1


def plain_skyrl(prompt: str, response: str, golden: tuple[str, ...]) -> float:
    answers = plain_contents(response, "answer")
    return 1.0 if answers and plain_equal(answers[-1], golden) else 0.0


def plain_verl(prompt: str, response: str, golden: tuple[str, ...]) -> float:
    opened, closed = len(response.split("<answer>")) - 1, len(response.split("</answer>")) - 1
    return plain_skyrl(prompt, response, golden) * (0.25 if opened > 10 or closed > 10 else 1.0)


def plain_last_turn(response: str) -> str | None:
    """After the last results; None where results were opened behind a search and not closed."""
    begin = max([0, *(at for at in range(len(response) + 1) if _closes_results(response[:at]))])
    tail = response[begin:]
    for at in range(len(tail)):
        head, rest = tail[:at].rstrip(), tail[at:]
        if rest.startswith(("<information>", "<result>", "<tool_response>")) and head.endswith("</search>"):
            return None
    while True:
        tail = tail.rstrip()
        for end in ("<|im_end|>", "<|endoftext|>"):
            if tail.endswith(end):
                tail = tail[: -len(end)]
                break
        else:
            return tail


def _closes_results(text: str) -> bool:
    return text.endswith(("</information>", "</result>", "</tool_response>"))


def plain_strict(prompt: str, response: str, golden: tuple[str, ...]) -> float | None:
    tail = plain_last_turn(response)
    if tail is None:
        return None
    if not tail.endswith("</answer>") or tail.count("<answer>") > tail.count("</answer>"):
        return 0.0
    begin = tail.rfind("<answer>")
    if begin < 0 or tail.find("</answer>", begin) != len(tail) - len("</answer>"):
        return 0.0
    content = tail[begin + len("<answer>") : -len("</answer>")]
    return 1.0 if content.strip() and plain_equal(content, golden) else 0.0


def plain_tinker(prompt: str, response: str, golden: tuple[str, ...]) -> float | None:
    tail = plain_last_turn(response)
    if tail is None:
        return None
    parts = tail.split("Answer:")
    if len(parts) != 2:
        return -0.1
    return 1.0 if plain_equal(parts[1], golden) else 0.0


def plain_research(prompt: str, response: str, golden: tuple[str, ...]) -> float | None:
    text = prompt + response
    pieces = text.split("<|im_start|>assistant\n")
    if len(pieces) == 1:
        pieces = text.split("Assistant:")
    if len(pieces) == 1:
        return None
    said = pieces[1]
    if not (said.endswith("<|im_end|>") or said.endswith("<|endoftext|>")):
        return 0.0
    number = {tag: said.count(tag) for tag in ("<think>", "</think>", "<answer>", "</answer>")}
    if number["<think>"] == 0 or number["<think>"] != number["</think>"]:
        return 0.0
    if number["<answer>"] != 1 or number["</answer>"] != 1 or said.index("<answer>") > said.index("</answer>"):
        return 0.0
    rest = said
    while "<search>" in rest:  # then </search>, then <result>, then </result>, by the first of each after it
        rest = rest[rest.index("<search>") :]
        places = [rest.find("</search>"), rest.find("<result>")]
        places.append(rest.find("</result>", places[1]) if places[1] >= 0 else -1)
        if min(places) < 0 or places != sorted(places):
            return 0.0
        rest = rest[places[2] :]
    answer = said[said.index("<answer>") + len("<answer>") : said.index("</answer>")]
    if "\\boxed{" not in answer or "}" not in answer:
        return 0.0
    box = plain_box(answer)
    if box is None:
        return 0.0
    best = max(plain_f1(plain_normal(box), plain_normal(one)) for one in golden)
    return best if best > 0 else 0.1


def plain_box(answer: str) -> str | None:
    if "\\boxed " in answer:
        return answer.split("\\boxed ")[-1].split("$")[0]
    after = answer.split("\\boxed")[-1]
    if not after.startswith("{"):
        return None
    for end in range(1, len(after) + 1):
        if after[:end].count("{") == after[:end].count("}"):
            return after[1 : end - 1]
    return None


def plain_f1(answer: str, golden: str) -> float:
    if answer != golden and (answer in ("yes", "no", "noanswer") or golden in ("yes", "no", "noanswer")):
        return 0.0
    left, shared = golden.split(), 0
    for word in answer.split():
        if word in left:
            left.remove(word)
            shared += 1
    if not shared:
        return 0.0
    return 2 * shared / (len(answer.split()) + len(golden.split()))


PLAIN: dict[str, Callable[[str, str, tuple[str, ...]], float | None]] = {
    "strict": plain_strict,
    "search_r1": plain_search_r1,
    "search_r1_format": plain_search_r1_format,
    "slime": plain_search_r1,
    "verl": plain_verl,
    "skyrl": plain_skyrl,
    "research": plain_research,
    "tinker": plain_tinker,
}


@pytest.mark.parametrize("name", SCORERS)
def test_a_scorer_agrees_with_a_plain_reading_of_its_specification_on_thousands_of_transcripts(name: str) -> None:
    for prompt, response, golden in transcripts():
        expected = PLAIN[name](prompt, response, golden)
        found = SCORERS[name].score_transcript(transcript_from_text(prompt, response), golden)
        assert found == (None if expected is None else pytest.approx(expected)), (prompt, response, golden)


def test_the_generated_transcripts_reach_every_outcome_of_every_scorer() -> None:
    outcomes: dict[str, set[float | None]] = {name: set() for name in SCORERS}
    for prompt, response, golden in transcripts():
        transcript = transcript_from_text(prompt, response)
        for name, scorer in SCORERS.items():
            value = scorer.score_transcript(transcript, golden)
            outcomes[name].add(None if value is None else round(value, 2))
    assert outcomes["strict"] == {None, 0.0, 1.0}
    assert outcomes["search_r1"] == outcomes["slime"] == outcomes["skyrl"] == {0.0, 1.0}
    assert outcomes["search_r1_format"] == {0.0, 0.1, 0.2, 0.3, 0.8, 1.0}
    assert outcomes["verl"] == {0.0, 0.25, 1.0}
    assert outcomes["research"] >= {None, 0.0, 0.1, 0.67, 1.0}
    assert outcomes["tinker"] == {None, -0.1, 0.0, 1.0}
