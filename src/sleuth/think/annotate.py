"""Splices a teacher's thoughts into texts. The teacher names numbered places and writes thoughts, and never copies the
text. A stage of `kind = "annotate"` does so unless its file is there."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

from sleuth import __version__
from sleuth.data.documents import part_of
from sleuth.data.excerpts import chunks_of, plain_tokens
from sleuth.data.rows import finished_lines
from sleuth.episodes.protocol import text_sha256
from sleuth.host.atomic import replacing_file, write_text
from sleuth.judges.factory import open_client
from sleuth.judges.http import JsonClient
from sleuth.judges.judge_prompts import InvalidAnswerError, closed_object, json_object, prompt_text, tagged_block
from sleuth.judges.pool import NoAnswerError
from sleuth.recipe.data import TextRecipe
from sleuth.render import Renderer
from sleuth.runs.progress import progress_bar
from sleuth.think.splicing import (
    TAGS,
    break_offsets,
    extract_thoughts,
    insert_thoughts,
    number_places,
    place_brackets,
)
from sleuth.think.tables import AnnotateRecipe
from sleuth.think.thought_rows import MIN_DOCUMENTS, LogprobScorer, SourceGate, thought_gates
from sleuth.think.thoughts import has_tags, interleaved
from sleuth.training.learning import load
from sleuth.training.stage_context import StageContext, StageInputs
from sleuth.types import Document, SleuthError, Task, Thought

SCORED_TOKENS = 8_192
"""Tokens of a forward pass of the gate on a teacher's thoughts."""


def require_inputs(stage: AnnotateRecipe, inputs: StageInputs) -> list[Task]:
    """No questions. The teacher is asked for when the stage begins: it need not be there before."""
    return []


def run(stage: AnnotateRecipe, context: StageContext) -> Path:
    """Write the rows to `stage.out`, unless it exists; returns the model unchanged. Raises SleuthError with the reason
    if the teacher is not there or fails too often: its answers so far are kept, and the same command goes on."""
    say = context.folder.say
    if stage.out.is_file():
        say(f"stage {stage.name}: {stage.out} is there, so no teacher is asked")
        return Path(context.model)
    try:
        writer = ThoughtWriter(open_client(stage.teacher, stage.out))
    except SleuthError as error:
        raise SleuthError(
            f"stage {stage.name}: the teacher that writes {stage.out} is not there: {error}; what was done so far is "
            "kept, and the same command goes on when it is"
        ) from None
    model, tokenizer = load(context, context.model)
    scorer = LogprobScorer(model=model, renderer=Renderer(tokenizer), budget=SCORED_TOKENS)
    try:
        with context.folder.costing(stage.name, "asking"):
            found = annotate_thoughts(stage, writer, scorer)
    except SleuthError as error:
        raise type(error)(*(f"stage {stage.name}: {line}" for line in error.args)) from None
    without = f", {found.reasons.total():,} texts without thoughts" if found.reasons else ""
    say(f"stage {stage.name}: {stage.out}: {found.kept:,} of {len(found.documents):,} texts with thoughts{without}")
    return Path(context.model)


# -- what a teacher is asked -------------------------------------------------------------------------------------------

MAX_THOUGHTS = 6
"""Per text (arXiv:2601.21343 and its small reproduction have three to six)."""
MAX_WORDS = 90  # per thought
PROMPT = prompt_text("thoughts")


@dataclass(frozen=True, slots=True, kw_only=True)
class ThoughtQuestion:
    """The question to a teacher about a text with numbered `places` (character offsets)."""

    text: str
    places: tuple[int, ...]
    name: str = "thoughts"
    entries: int = 1

    @property
    def prompt(self) -> str:
        """The system message."""
        mark_open, mark_close = place_brackets(self.text)
        return PROMPT.replace("{example}", f"{mark_open}7{mark_close}.")

    @property
    def message(self) -> str:
        """The user message."""
        return tagged_block("text", number_places(self.text, self.places))

    @property
    def schema(self) -> dict[str, Any]:
        """JSON schema of an answer; it cannot express that each place is named once."""
        place = {"type": "integer", "minimum": 1, "maximum": len(self.places)}
        entry = closed_object({"place": place, "thought": {"type": "string"}})
        return closed_object({"thoughts": {"type": "array", "items": entry, "minItems": 1, "maxItems": MAX_THOUGHTS}})

    def read(self, text: str) -> tuple[Thought, ...]:
        """The thoughts of an answer, in the order of the text. Raises InvalidAnswerError for none, for more than
        `MAX_THOUGHTS`, for an unknown or repeated place, and for a thought that is empty, too long or tagged."""
        answer = json_object(text)
        if [*answer] != ["thoughts"] or not isinstance(answer["thoughts"], list):
            raise InvalidAnswerError(f"there should be a list of thoughts, found {', '.join(answer) or 'nothing'}")
        if not 1 <= len(answer["thoughts"]) <= MAX_THOUGHTS:
            raise InvalidAnswerError(f"there should be one to {MAX_THOUGHTS} thoughts, found {len(answer['thoughts'])}")
        thoughts = sorted(self._thoughts(answer["thoughts"]), key=lambda thought: thought.at)
        if len({thought.at for thought in thoughts}) < len(thoughts):
            raise InvalidAnswerError("a place is named twice")
        return tuple(thoughts)

    def _thoughts(self, entries: Sequence[Any]) -> Iterator[Thought]:
        for number, entry in enumerate(entries):
            if not isinstance(entry, dict) or sorted(entry) != ["place", "thought"]:
                raise InvalidAnswerError(f"thoughts.{number} should have a place and a thought, and nothing else")
            place, thought = entry["place"], entry["thought"]
            if type(place) is not int or not 1 <= place <= len(self.places):
                raise InvalidAnswerError(f"thoughts.{number}.place should be a number from 1 to {len(self.places)}")
            words = thought.split() if isinstance(thought, str) else []
            if not 1 <= len(words) <= MAX_WORDS:
                raise InvalidAnswerError(f"thoughts.{number}.thought should have one to {MAX_WORDS} words")
            if any(tag in thought for tag in (*TAGS, *place_brackets(self.text))):
                raise InvalidAnswerError(f"thoughts.{number}.thought should have no tags")
            yield Thought(at=self.places[place - 1], text=" ".join(words))


class ThoughtWriter:
    """Writes thoughts with the model behind `client`."""

    def __init__(self, client: JsonClient) -> None:
        self._client = client

    @property
    def model(self) -> str:
        """The teacher's name."""
        return str(self._client.settings["model"])

    async def write(self, text: str) -> tuple[Thought, ...]:
        """1 to `MAX_THOUGHTS` thoughts, in the order of the text. Raises NoAnswerError if the teacher does not answer,
        and InvalidAnswerError if its answer is invalid twice or the text has no place for a thought."""
        places = tuple(break_offsets(text))
        if not places:
            raise InvalidAnswerError("the text has no place for a thought: it is one sentence")
        return await self._client.ask(ThoughtQuestion(text=text, places=places))


# -- texts with thoughts -----------------------------------------------------------------------------------------------

ROW_TOKENS = 768
"""Token ids stored of a row with its thoughts (arXiv:2601.21343's small reproduction)."""


@dataclass(slots=True, kw_only=True)
class AnnotatedTexts:
    """`documents` with thoughts, of which `known` were answered in an earlier call; texts without thoughts by
    `reasons`; the `gates` of the sources, and the number of rows `kept`."""

    documents: list[Document] = field(default_factory=list)
    known: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    gates: list[SourceGate] = field(default_factory=list)
    kept: int = 0


def annotate_thoughts(stage: AnnotateRecipe, writer: ThoughtWriter, scorer: LogprobScorer) -> AnnotatedTexts:
    """Writes rows of the texts with a teacher's thoughts to the stage's `out` (.parquet), and a card beside it.

    Answers are stored as they arrive, in `out`.answers.jsonl, so a repeated call requests only missing ones. If
    `gated`, sources whose thoughts do not help are left out. Raises SleuthError for malformed texts, if no row is kept,
    and, before `out` is written, if more than `max_missing_fraction` of the texts get no thoughts.
    """
    out, last = stage.out, max(1, stage.tokens // 4)
    texts = TextRecipe(
        kind="text",
        texts=stage.texts,
        part=stage.part,
        limit=stage.limit,
        prefix_tokens=stage.tokens - last,
        suffix_tokens=last,
    )
    chunks = [chunk for chunk in chunks_of(texts, scorer.renderer.tokenizer) if not has_tags(chunk.text)]
    found = AnnotatedTexts()
    out.parent.mkdir(parents=True, exist_ok=True)
    answers = Answers(out.with_name(f"{out.name.removesuffix('.parquet')}.answers.jsonl"), writer.model)
    _ask(chunks, answers, writer, found)
    found.documents = [replace(chunk, thoughts=answers.of(chunk) or ()) for chunk in chunks if answers.of(chunk)]
    if not found.documents:
        raise SleuthError(f"{texts.texts}: no text got a thought: {', '.join(found.reasons) or 'there are no texts'}")
    if (lacking := found.reasons.total()) > stage.max_missing_fraction * len(chunks):
        [(reason, _)] = found.reasons.most_common(1)
        raise SleuthError(
            f"{out}: {lacking:,} of {len(chunks):,} texts got no thoughts ({reason}), and at most "
            f"{stage.max_missing_fraction:.0%} may; {answers.file.name} keeps the others, and the same command asks "
            "for the rest"
        )
    with progress_bar("gate") as progress:
        found.gates = thought_gates(scorer, found.documents, progress)
    passed = {gate.source for gate in found.gates if gate.passes or not stage.gated}
    kept = [document for document in found.documents if document.source in passed]
    found.kept = len(kept)
    if not kept:
        raise SleuthError(
            f"{out}: no source has thoughts that make the following text likelier than empty and generic ones do, over "
            f"at least {MIN_DOCUMENTS} documents; the answers are in {answers.file.name}: use another teacher or "
            "model, or gated = false, which keeps all"
        )
    rows = [_row(document, texts, writer.model, scorer.renderer) for document in kept]
    _write(out, rows)
    opening = f"# {out.name}\n\n{len(rows):,} texts of `{texts.texts}` with the thoughts of `{writer.model}`"
    model = str(scorer.model.config.name_or_path)
    write_text(out.with_suffix(".md"), "\n".join(_card(opening, rows, found, model, stage.gated)) + "\n")
    return found


def _ask(chunks: Sequence[Document], answers: Answers, writer: ThoughtWriter, found: AnnotatedTexts) -> None:
    """Requests thoughts for chunks without an answer; each answer is stored as it arrives."""
    due = [chunk for chunk in chunks if answers.of(chunk) is None]
    found.known = len(chunks) - len(due)

    async def one(chunk: Document, progress: Callable[[int, int], None]) -> None:
        try:
            answers.add(chunk, await writer.write(chunk.text))
        except (NoAnswerError, InvalidAnswerError) as error:
            found.reasons[str(error)] += 1
        progress(len(answers) - found.known + found.reasons.total(), len(due))

    async def every(progress: Callable[[int, int], None]) -> None:
        await asyncio.gather(*(one(chunk, progress) for chunk in due))

    with progress_bar("thoughts") as progress:
        asyncio.run(every(progress))


class Answers:
    """A teacher's answers by text, stored in a file. Raises SleuthError if that has another teacher's answers or other
    contents."""

    def __init__(self, file: Path, teacher: str) -> None:
        self.file = file
        self.teacher = teacher
        self._thoughts = dict(finished_lines(file, self._read, "not an answer of a teacher; name a new file in `out`"))

    def __len__(self) -> int:
        return len(self._thoughts)

    def of(self, document: Document) -> tuple[Thought, ...] | None:
        """The thoughts for a text; None if there is no answer yet."""
        return self._thoughts.get(text_sha256(document.text))

    def add(self, document: Document, thoughts: tuple[Thought, ...]) -> None:
        """Stores an answer in memory and in the file."""
        digest = text_sha256(document.text)
        self._thoughts[digest] = thoughts
        row = {"text_sha256": digest, "teacher": self.teacher, "thoughts": [asdict(thought) for thought in thoughts]}
        with self.file.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(row, ensure_ascii=False) + "\n")

    def _read(self, row: Any) -> tuple[str, tuple[Thought, ...]]:
        if row["teacher"] != self.teacher:
            raise SleuthError(
                f"{self.file}: has answers of {row['teacher']}, not of {self.teacher}; name a new file in `out`"
            )
        return row["text_sha256"], tuple(Thought(**thought) for thought in row["thoughts"])


def _row(document: Document, texts: TextRecipe, teacher: str, renderer: Renderer) -> dict[str, Any]:
    """A row in the layout of the published companion set, with the thoughts also as a separate list."""
    segments = renderer.render_all(interleaved(document, renderer, ROW_TOKENS))
    augmented = insert_thoughts(document.text, document.thoughts)
    if extract_thoughts(augmented) != (document.text, document.thoughts):
        raise AssertionError(f"the row of {document.id!r} does not give its text back")
    return {
        "id": document.id,
        "split": part_of(document.origin),
        "origin": document.origin,
        "source": document.source,
        "source_sha256": text_sha256(document.text),
        "raw_text": document.text,
        "augmented_text": augmented,
        "thoughts": [asdict(thought) for thought in document.thoughts],
        "thought_count": len(document.thoughts),
        "raw_token_ids": plain_tokens(renderer, document.text),
        "augmented_token_ids": [token for segment in segments for token in segment.tokens],
        "teacher_model": teacher,
        "backend": "openai_chat",
        "prompt_kind": "numbered_places",
        "chunk_tokens": texts.prefix_tokens + texts.suffix_tokens,
        "max_augmented_tokens": ROW_TOKENS,
    }


def _write(out: Path, rows: Sequence[dict[str, Any]]) -> None:
    import pyarrow
    import pyarrow.parquet

    with replacing_file(out) as partial:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), partial, compression="zstd")


def _card(
    opening: str, rows: Sequence[dict[str, Any]], found: AnnotatedTexts, model: str, gated: bool
) -> Iterator[str]:
    """The lines of the data card of the kept `rows`, with all figures computed."""
    words = [len(thought["text"].split()) for row in rows for thought in row["thoughts"]]
    splits = Counter(row["split"] for row in rows)
    facts = {
        "thoughts a text": f"{fmean(row['thought_count'] for row in rows):.2f}",
        "words a thought, median": f"{median(words):g}",
        "words a thought, longest": str(max(words)),
        "texts by split": ", ".join(f"{split} {count:,}" for split, count in sorted(splits.items())),
        "tokens of a text": f"{fmean(len(row['raw_token_ids']) for row in rows):.0f}",
        "tokens of a row": f"{fmean(len(row['augmented_token_ids']) for row in rows):.0f}",
        **{f"texts without thoughts: {reason}": f"{count:,}" for reason, count in found.reasons.items()},
        "prompt of the teacher, sha256": f"`{text_sha256(PROMPT)}`",
    }
    left = "Sources without an interval above 0 in both columns were left out." if gated else "No source was left out."
    yield (
        f"{opening}, made with Sleuth {__version__}. The teacher was asked for places and thoughts alone; the texts "
        "are the sources' own, and without its thoughts a row is its text again, character by character."
    )
    yield from ("", "| | |", "|---|---|", *(f"| {key} | {value} |" for key, value in facts.items()))
    yield from ("", "## What the thoughts are good for", "")
    yield (
        f"The gain in the log-probability of a token under `{model}` after a thought, over an empty thought and over "
        f"sentences that fit any text; nats per token, 95 % intervals over documents. {left}\n"
    )
    yield "| source | documents | over an empty thought | over generic ones | |\n|---|---|---|---|---|"
    for gate in found.gates:
        over_blank, over_generic, verdict = gate.described(".4f")
        yield f"| {gate.named} | {gate.documents:,} | {over_blank} | {over_generic} | {verdict} |"
    yield "\nThe rows hold text of their sources, under whatever licence these have."
