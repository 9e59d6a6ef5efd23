"""Splices a teacher's thoughts into texts. The teacher names positions and never copies the text.
A stage of `kind = "annotate"` does so unless its file is there."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from sleuth.data.documents import part_of
from sleuth.data.excerpts import chunks_of, plain_tokens
from sleuth.evaluation.intervals import Measured, paired_bootstrap
from sleuth.host.atomic import replacing_file, write_text
from sleuth.judges.factory import open_client
from sleuth.judges.judge_prompts import InvalidAnswerError
from sleuth.judges.pool import NoAnswerError
from sleuth.learn.token_budget import TokenBudget
from sleuth.recipe.data import TextRecipe, text_recipe
from sleuth.render import Renderer
from sleuth.runs.progress import progress_bar
from sleuth.think.splicing import extract_thoughts, insert_thoughts
from sleuth.think.stage_tables import AnnotateRecipe
from sleuth.think.thought_arms import GENERIC
from sleuth.think.thought_card import thought_card
from sleuth.think.thought_figures import LogprobScorer, positions_of, suffix_nlls
from sleuth.think.thought_writer import PROMPT, ThoughtWriter
from sleuth.think.thoughts import THINK, ThoughtPosition, has_tags, interleaved
from sleuth.training.learning import load
from sleuth.training.stage_context import StageContext, StageInputs
from sleuth.types import Document, SleuthError, Task, Thought

ROW_TOKENS = 768
"""Token ids stored of a row with its thoughts (arXiv:2601.21343's small reproduction)."""
TAGS = (THINK.open, THINK.close)

Watch = Callable[[str], AbstractContextManager[Callable[[int, int], None]]]
"""Shows progress: `with watch("gate") as progress: progress(done, total)`."""


@dataclass(slots=True, kw_only=True)
class AnnotatedTexts:
    """`documents` with thoughts, of which `known` were answered in an earlier call; texts without thoughts by
    `reasons`; the `gates` of the sources, and the number of rows `kept`."""

    documents: list[Document] = field(default_factory=list)
    known: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    gates: list[SourceGate] = field(default_factory=list)
    kept: int = 0

    def as_json(self) -> dict[str, Any]:
        """The record as plain values."""
        return {
            "kept": self.kept,
            "left_out": len(self.documents) - self.kept,
            "known": self.known,
            "without": dict(self.reasons),
            "gates": [gate.as_json() for gate in self.gates],
        }


def annotate_thoughts(
    texts: TextRecipe,
    out: Path,
    writer: ThoughtWriter,
    scorer: LogprobScorer,
    *,
    gated: bool,
    watch: Watch,
    max_missing_fraction: float = 1.0,
) -> AnnotatedTexts:
    """Writes rows of the texts with a teacher's thoughts to `out` (.parquet), and a card beside it.

    Answers are stored as they arrive, in `out`.answers.jsonl, so a repeated call requests only missing ones. With
    `gated`, sources whose thoughts do not help are left out. Raises SleuthError for malformed texts, if no row is kept,
    and, before `out` is written, if more than `max_missing_fraction` of the texts get no thoughts.
    """
    if not out.name.endswith(".parquet"):
        raise SleuthError(f"--out {out}: should end in .parquet")
    chunks = [chunk for chunk in chunks_of(texts, scorer.renderer.tokenizer) if not has_tags(chunk.text)]
    found = AnnotatedTexts()
    out.parent.mkdir(parents=True, exist_ok=True)
    answers = Answers(out.with_name(f"{out.name.removesuffix('.parquet')}.answers.jsonl"), writer.model)
    _ask(chunks, answers, writer, found, watch)
    found.documents = [replace(chunk, thoughts=answers.of(chunk) or ()) for chunk in chunks if answers.of(chunk)]
    if not found.documents:
        raise SleuthError(f"{texts.texts}: no text got a thought: {', '.join(found.reasons) or 'there are no texts'}")
    if (lacking := found.reasons.total()) > max_missing_fraction * len(chunks):
        [(reason, _)] = found.reasons.most_common(1)
        raise SleuthError(
            f"{out}: {lacking:,} of {len(chunks):,} texts got no thoughts ({reason}), and at most "
            f"{max_missing_fraction:.0%} may; {answers.file.name} keeps the others, and the same command asks for the "
            "rest"
        )
    with watch("gate") as progress:
        found.gates = thought_gates(scorer, found.documents, progress)
    passed = {gate.source for gate in found.gates if gate.passes or not gated}
    kept = [document for document in found.documents if document.source in passed]
    found.kept = len(kept)
    if not kept:
        raise SleuthError(
            f"{out}: no source has thoughts that make the following text likelier than empty and generic ones do, over "
            f"at least {MIN_DOCUMENTS} documents; the answers are in {answers.file.name}: use another teacher or "
            "model, or --no-gate"
        )
    rows = [_row(document, texts, writer, scorer) for document in kept]
    _write(out, rows)
    card = thought_card(
        out.name,
        rows,
        teacher=writer.model,
        model=str(scorer.model.config.name_or_path),
        texts=str(texts.texts),
        prompt_sha256=hashlib.sha256(PROMPT.encode()).hexdigest(),
        without=found.reasons,
        gates=[gate.as_json() for gate in found.gates],
        gated=gated,
    )
    write_text(out.with_suffix(".md"), card)
    return found


def _ask(
    chunks: Sequence[Document], answers: Answers, writer: ThoughtWriter, found: AnnotatedTexts, watch: Watch
) -> None:
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

    with watch("thoughts") as progress:
        asyncio.run(every(progress))


class Answers:
    """A teacher's answers by text, stored in a file. An incomplete last line is removed. Raises SleuthError if the file
    has another teacher's answers or other contents."""

    def __init__(self, file: Path, teacher: str) -> None:
        self.file = file
        self.teacher = teacher
        self._thoughts: dict[str, tuple[Thought, ...]] = {}
        text = file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
        *lines, rest = text.split("\n")
        for number, line in enumerate(lines, start=1):
            self._read(line, f"{file}:{number}")
        if rest:
            write_text(file, text.removesuffix(rest))

    def __len__(self) -> int:
        return len(self._thoughts)

    def of(self, document: Document) -> tuple[Thought, ...] | None:
        """The thoughts for a text; None if there is no answer yet."""
        return self._thoughts.get(_digest(document.text))

    def add(self, document: Document, thoughts: tuple[Thought, ...]) -> None:
        """Stores an answer in memory and in the file."""
        digest = _digest(document.text)
        self._thoughts[digest] = thoughts
        row = {"text_sha256": digest, "teacher": self.teacher, "thoughts": [asdict(thought) for thought in thoughts]}
        with self.file.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(row, ensure_ascii=False) + "\n")

    def _read(self, line: str, where: str) -> None:
        try:
            row = json.loads(line)
            teacher = row["teacher"]
            self._thoughts[row["text_sha256"]] = tuple(Thought(**thought) for thought in row["thoughts"])
        except (ValueError, KeyError, TypeError):
            raise SleuthError(f"{where}: not an answer of a teacher; name a new file with --out") from None
        if teacher != self.teacher:
            raise SleuthError(f"{where}: has answers of {teacher}, not of {self.teacher}; name a new file with --out")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _row(document: Document, texts: TextRecipe, writer: ThoughtWriter, scorer: LogprobScorer) -> dict[str, Any]:
    """A row in the layout of the published companion set, with the thoughts also as a separate list."""
    tokens = scorer.renderer.render_all(interleaved(document, scorer.renderer, ROW_TOKENS))
    augmented = insert_thoughts(document.text, document.thoughts, TAGS)
    text, thoughts = extract_thoughts(augmented, TAGS)
    if (text, thoughts) != (document.text, document.thoughts):
        raise AssertionError(f"the row of {document.id!r} does not give its text back")
    return {
        "id": document.id,
        "split": part_of(document.origin),
        "origin": document.origin,
        "source": document.source,
        "source_sha256": _digest(document.text),
        "raw_text": document.text,
        "augmented_text": augmented,
        "thoughts": [asdict(thought) for thought in document.thoughts],
        "thought_count": len(document.thoughts),
        "raw_token_ids": plain_tokens(scorer.renderer, document.text),
        "augmented_token_ids": [token for segment in tokens for token in segment.tokens],
        "teacher_model": writer.model,
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


SUFFIX_TOKENS = 64
"""Tokens behind a thought that are scored; its influence fades."""
MIN_DOCUMENTS = 16
"""Documents that a source needs to pass."""
MAX_DOCUMENTS = 256
"""Documents of a source that are scored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceGate:
    """The gain of a source's thoughts over an empty thought and over generic ones, in nats a following token; intervals
    are over documents."""

    source: str
    documents: int
    over_blank: Measured
    over_generic: Measured

    @property
    def passes(self) -> bool:
        """Whether both intervals are above 0, over at least MIN_DOCUMENTS documents."""
        return self.documents >= MIN_DOCUMENTS and all(
            (gain.low or 0) > 0 for gain in (self.over_blank, self.over_generic)
        )

    def as_json(self) -> dict[str, Any]:
        """The record as plain values."""
        return asdict(self) | {"passes": self.passes}


def thought_gates(
    scorer: LogprobScorer,
    documents: Sequence[Document],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[SourceGate]:
    """The gate of each source, by name, from its first MAX_DOCUMENTS documents."""
    of_source: dict[str, list[Document]] = {}
    for document in documents:
        of_source.setdefault(document.source, []).append(document)
    scored = {source: of_source[source][:MAX_DOCUMENTS] for source in sorted(of_source)}
    total, done, gates = sum(map(len, scored.values())), 0, []
    budget = TokenBudget(scorer.budget)
    for source, chosen in scored.items():
        positions: list[ThoughtPosition] = []
        nlls: dict[str, list[float]] = {}
        for document in chosen:
            own = positions_of(scorer, document, SUFFIX_TOKENS)
            for name, values in _suffix_nlls(scorer, own, budget).items() if own else ():
                nlls.setdefault(name, []).extend(values)
            positions += own
            done += 1
            progress(done, total)
        gates.append(_gate(source, positions, nlls))
    return gates


def _suffix_nlls(
    scorer: LogprobScorer, positions: Sequence[ThoughtPosition], budget: TokenBudget
) -> dict[str, list[float]]:
    conditions = _conditions(positions)
    return budget.run(lambda tokens: suffix_nlls(replace(scorer, budget=tokens), positions, conditions))


def _conditions(positions: Sequence[ThoughtPosition]) -> dict[str, list[str | None]]:
    generic: Mapping[str, list[str | None]] = {
        f"generic_{number}": [sentence for _ in positions] for number, sentence in enumerate(GENERIC)
    }
    return {"true": [position.thought for position in positions], "blank": ["" for _ in positions], **generic}


def _gate(source: str, positions: Sequence[ThoughtPosition], nlls: Mapping[str, Sequence[float]]) -> SourceGate:
    clusters = [position.document for position in positions]
    true = nlls.get("true", [])
    generic = [fmean(values) for values in zip(*(nlls[name] for name in nlls if "generic" in name), strict=True)]
    return SourceGate(
        source=source,
        documents=len(set(clusters)),
        over_blank=paired_bootstrap(nlls.get("blank", []), true, clusters),
        over_generic=paired_bootstrap(generic, true, clusters),
    )


# -- the stage ---------------------------------------------------------------------------------------------------------

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
    texts = text_recipe(stage.texts, tokens=stage.tokens, part=stage.part, limit=stage.limit)
    try:
        with context.folder.costing(stage.name, "asking"):
            found = annotate_thoughts(
                texts,
                stage.out,
                writer,
                scorer,
                gated=stage.gated,
                watch=progress_bar,
                max_missing_fraction=stage.max_missing_fraction,
            )
    except SleuthError as error:  # worded for `sleuth annotate thoughts`
        lines = [line.replace("--no-gate", "gated = false").replace("with --out", "in `out`") for line in error.args]
        raise type(error)(*(f"stage {stage.name}: {line}" for line in lines)) from None
    without = f", {found.reasons.total():,} texts without thoughts" if found.reasons else ""
    say(f"stage {stage.name}: {stage.out}: {found.kept:,} of {len(found.documents):,} texts with thoughts{without}")
    return Path(context.model)
