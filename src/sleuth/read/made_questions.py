"""Questions made of the passages of a corpus, each through the gates of `sleuth.read.gates`, split by document.

All that is made is kept in `made.jsonl`, also what fell and at which gate, so that the same command goes on. From it
`train.jsonl`, `test.jsonl` and `card.json` are written. A row is one of `sleuth.data.questions` that `[stage.data]
kind = "reading"` reads too, with the `document` it is about: `{"id": "cloze:17:0", "question": "Where was Ada Voss
born?", "golden_answers": ["Tarn"], "gold_ids": ["17"], "answer_start": 21, "type": "cloze", "document": "Ada Voss"}`.
Of an unanswerable one the passage and its near copies are `taken_out`; `tool_output` is what is found without them, and
`answerable` is false, as in `sleuth.cite.rows`.
"""

from __future__ import annotations

import hashlib
import json
import random
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sleuth import __version__
from sleuth.answers.match import appears_in, normalise
from sleuth.data.forms import Formed, formed
from sleuth.data.held_out import split, write_rows
from sleuth.data.questions import load_questions
from sleuth.data.rows import finished_lines
from sleuth.data.spans import SpanQuestion, cloze
from sleuth.host.atomic import write_text
from sleuth.judges.pool import NoAnswerError, RefusedError
from sleuth.read.gates import SEARCHED, WORD, Candidate, Gates, is_near_copy
from sleuth.read.writers import ToWrite, Writer
from sleuth.recipe.shipped import INDEX
from sleuth.retrieval.bm25 import build_index
from sleuth.retrieval.corpus import PASSAGES, corpus_file, hash_input, read_corpus
from sleuth.retrieval.folder import place_of
from sleuth.retrieval.index_card import FILE_NAME, Index
from sleuth.retrieval.open_index import open_index
from sleuth.types import Passage, RunFailed, SleuthError

KINDS = ("cloze", "form", "one_hop", "two_hop", "unanswerable")
UNAIDED, WRITTEN = ("cloze", "form", "two_hop", "unanswerable"), ("one_hop", "two_hop", "unanswerable")
"""Those that are made without a model, and those that one writes."""
PER_PASSAGE = 2
"""Questions of a kind about a passage at most."""
UNANSWERABLE = 6
"""One of so many questions loses its passage."""
TOGETHER = 32
"""Passages between two writes of the file, which a kill may lose."""
MOST_PASSAGES = 200_000
"""Of a corpus, which are held in memory."""
SNIPPETS = 3
"""Passages that are shown in the place of near copies."""
SHOWN = 3
"""Examples of a gate on the card."""
MADE, TRAIN, TEST, CARD = "made.jsonl", "train.jsonl", "test.jsonl", "card.json"
SIDES = (TRAIN, TEST)

Record = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """The passages that questions are made of, the index they are searched in, and the part of each document."""

    passages: Sequence[Passage]
    index: Index
    parts: Mapping[str, str]
    vocabulary: frozenset[str]

    def part(self, passage: Passage) -> str:
        """One of `SIDES`."""
        return self.parts[document_of(passage)]


def document_of(passage: Passage) -> str:
    """The document of a passage: its file (`guide.pdf#p12.3`), or else its title, or the passage itself."""
    place = place_of(passage.id)
    return place[0] if place else passage.title or passage.id


def open_sources(corpus: Path, out: Path, *, limit: int | None, seed: int) -> Sources:
    """The passages of a corpus file, an index or a home with both, `limit` of them drawn by the seed. Raises
    SleuthError for one with too many passages or with one document alone."""
    of_index = next((one for one in (corpus / INDEX, corpus) if (one / FILE_NAME).is_file()), None)
    file = next((one for one in (corpus / PASSAGES, corpus / INDEX / PASSAGES) if one.is_file()), corpus_file(corpus))
    if file.is_dir():
        raise SleuthError(f"{corpus}: holds no corpus; `sleuth learn {corpus}` makes questions of documents")
    passages: list[Passage] = []
    for passage in read_corpus(file):
        passages.append(passage)
        if len(passages) > MOST_PASSAGES:
            raise SleuthError(f"{file}: more than {MOST_PASSAGES:,} passages; make questions of a part of them")
    train, test = split(passages, document_of, seed, f"documents in {file}")
    parts = {document_of(one): part for part, some in ((TRAIN, train), (TEST, test)) for one in some}
    if of_index is None:
        build_index(file, of_index := out / INDEX)
    random.Random(seed).shuffle(passages)
    drawn = sorted((one for one in passages if one.text.strip()), key=lambda one: parts[document_of(one)])
    words = {word.lower() for one in passages for word in WORD.findall(f"{one.title} {one.text}")}
    return Sources(passages=_first(drawn, limit), index=open_index(of_index), parts=parts, vocabulary=frozenset(words))


def _first(passages: Sequence[Passage], limit: int | None) -> list[Passage]:
    """So many of them, the same share of both parts, which are in order."""
    share = min(1.0, (limit or len(passages)) / max(1, len(passages)))
    return [one for at, one in enumerate(passages) if int((at + 1) * share) > int(at * share)]


def make_questions(
    sources: Sources,
    out: Path,
    *,
    kinds: Sequence[str],
    writer: Writer | None = None,
    off: Sequence[str] = (),
    held_out: Sequence[Path] = (),
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Record:
    """Makes the questions, writes the files of `out`, and returns the card. Keeps what an earlier call made of the same
    passages. Raises SleuthError if no question passed, and RunFailed, once all is written, if the writer is silent."""
    gates = Gates(index=sources.index, vocabulary=sources.vocabulary, reader=writer, off=frozenset(off))
    for file in held_out:
        for task in load_questions(file):
            gates.remember(task.question, task.golden_answers)
    made = _read_made(out / MADE, sources.index)
    for row in (row for rows in made.values() for row in rows if not row["fell"]):
        gates.remember(row["question"], row["golden_answers"] or [row["lost_answer"]])
    makers, silent = _makers(sources, kinds, writer, seed), ""
    for at in range(0, len(sources.passages), TOGETHER):
        units = [
            (f"{kind}:{passage.id}", make, passage)
            for passage in sources.passages[at : at + TOGETHER]
            for kind, make in makers.items()
            if f"{kind}:{passage.id}" not in made
        ]
        try:
            made_now = [*_made(units, gates, sources, "unanswerable" in kinds)]
        except NoAnswerError as error:
            silent = f"{out}: stopped at passage {at + 1:,}: {error}; the same command goes on from there"
            break
        with (out / MADE).open("a", encoding="utf-8") as lines:
            for unit, rows in made_now:
                of = {unit.partition(":")[2]}.union(*(row.get("gold_ids", row.get("taken_out", ())) for row in rows))
                line = {"unit": unit, "made_of": {one: _digest(sources.index, one) for one in sorted(of)}, "rows": rows}
                lines.write(json.dumps(line, ensure_ascii=False) + "\n")
        progress(min(at + TOGETHER, len(sources.passages)), len(sources.passages))
    rows = [row for rows in _read_made(out / MADE, sources.index).values() for row in rows]
    for row in rows:  # a corpus that has grown may be split otherwise than when a row was made
        row["part"] = sources.parts.get(row.get("document", ""), row["part"])
    card = _card(rows, sources, writer, off, held_out, seed)
    if not card["kept"] and not silent:
        (out / MADE).unlink(missing_ok=True)  # another teacher begins anew
        reasons = Counter(f"{row['fell']}{row.get('reason', '')}" for row in rows)
        told = ", ".join(f"{count:,} at {name}" for name, count in reasons.most_common(3)) or "none was made"
        raise SleuthError(f"{out}: no question of {len(rows):,} passed the gates, so nothing is written: {told}")
    for part in SIDES:
        kept = [row for row in rows if row["part"] == part and not row["fell"]]
        write_rows(out / part, [{key: row[key] for key in row if key not in ("part", "fell")} for row in kept])
    write_text(out / CARD, json.dumps(card, indent=2, ensure_ascii=False) + "\n")
    if silent:
        raise RunFailed(silent)
    return card


Unit = tuple[str, Callable[[Sequence[Passage]], list[list[Candidate] | Exception]], Passage]


def _made(units: Sequence[Unit], gates: Gates, sources: Sources, may_lose: bool) -> Iterator[tuple[str, list[Record]]]:
    """The rows of each unit, those that fell among them."""
    by_maker: defaultdict[Any, list[int]] = defaultdict(list)
    for at, (_, make, _) in enumerate(units):
        by_maker[make].append(at)
    made: dict[int, list[Candidate] | Exception] = {}
    for make, places in by_maker.items():
        made |= dict(zip(places, make([units[at][2] for at in places]), strict=True))
    candidates = [one for at in range(len(units)) if not isinstance(found := made[at], Exception) for one in found]
    fell = dict(zip((one.id for one in candidates), gates.falls(candidates), strict=True))
    for at, (unit, _, passage) in enumerate(units):
        found = made[at]
        if isinstance(found, NoAnswerError) and not isinstance(found, RefusedError):  # the next call asks again
            continue
        if isinstance(found, Exception):
            failed = {"id": unit, "type": unit.partition(":")[0], "part": sources.part(passage)}
            yield unit, [failed | {"question": "", "fell": "unreadable", "reason": f" ({str(found)[:120]})"}]
        else:
            yield unit, [_row(one, fell[one.id], sources, may_lose) for one in found]


def _row(one: Candidate, fell: str, sources: Sources, may_lose: bool) -> Record:
    document = document_of(one.passages[-1])
    ids = [passage.id for passage in one.passages]
    row = {
        "id": one.id,
        "type": one.kind,
        "part": one.part,
        "document": document,
        "question": one.question,
        "fell": fell,
    }
    loses = may_lose and not fell and len(ids) == 1 and zlib.crc32(one.id.encode()) % UNANSWERABLE == 0
    if loses and (without := _without(one, sources.index)) is not None:
        left, taken_out = without
        snippets = "\n".join(f"<snippet id={p.id}> {p.title} | {p.text}</snippet>" for p in left)
        lost = {"type": "unanswerable", "taken_out": taken_out, "lost_answer": one.answer}
        return row | lost | {"golden_answers": [], "answer": "", "answerable": False, "tool_output": snippets}
    return row | {
        "golden_answers": [one.answer],
        "gold_ids": ids[::-1],
        "answer_start": one.start,
        "data_source": "made",
    }


def _without(one: Candidate, index: Index) -> tuple[list[Passage], list[str]] | None:
    """(what is found, what is taken out) without the passage of a question, its near copies, and what has its answer;
    None if nothing is left."""
    [found] = index.find([one.question], SEARCHED)
    [gold] = one.passages
    out = [gold.id] + [
        other.id
        for other in found
        if other.id != gold.id
        and (is_near_copy(other.text, gold.text) or appears_in(one.answer, f"{other.title} {other.text}"))
    ]
    left = [other for other in found if other.id not in out][:SNIPPETS]
    return (left, out) if left else None


# -- makers: of passages, the candidates of each ----------------------------------------------------------------------

Maker = Callable[[Sequence[Passage]], list[list[Candidate] | Exception]]


def _makers(sources: Sources, kinds: Sequence[str], writer: Writer | None, seed: int) -> dict[str, Maker]:
    makers: dict[str, Maker] = {
        "cloze": lambda some: [_clozes(one, sources.part(one), seed) for one in some],
        "form": lambda some: [_forms(one, sources.part(one)) for one in some],
    }
    shared = _shared_names(sources) if "two_hop" in kinds else {}
    if writer is None:
        makers["two_hop"] = lambda some: [_joined(one, shared.get(one.id, ()), sources.part(one)) for one in some]
    else:
        makers["one_hop"] = lambda some: _written(writer, "one_hop", [(one,) for one in some], sources)
        makers["two_hop"] = lambda some: _written(
            writer, "two_hop", [(*shared.get(one.id, ())[:1], one) for one in some], sources
        )
    return {kind: make for kind, make in makers.items() if kind in kinds}


def _candidate(kind: str, at: int, part: str, question: str, answer: str, passages: Sequence[Passage]) -> Candidate:
    last = passages[-1]
    return Candidate(
        id=f"{kind}:{last.id}:{at}",
        kind=kind,
        part=part,
        question=question,
        answer=answer,
        passages=tuple(passages),
        start=last.text.find(answer),
    )


def _clozes(passage: Passage, part: str, seed: int) -> list[Candidate]:
    rng = random.Random(f"{seed} {passage.id}")
    return _by_rule("cloze", [cloze(passage.text, rng) for _ in range(PER_PASSAGE)], passage, part)


def _forms(passage: Passage, part: str) -> list[Candidate]:
    return _by_rule("form", [*formed(passage.text, passage.title)][:PER_PASSAGE], passage, part)


def _by_rule(kind: str, made: Iterable[SpanQuestion | Formed | None], passage: Passage, part: str) -> list[Candidate]:
    some = enumerate(one for one in made if one is not None)
    return [_candidate(kind, at, part, one.question, passage.text[one.start : one.end], [passage]) for at, one in some]


def _shared_names(sources: Sources) -> dict[str, list[Passage]]:
    """By a passage that has a question about a name: those of the same part that describe that name."""
    described: defaultdict[tuple[str, str], list[Passage]] = defaultdict(list)
    for passage in sources.passages:
        for one in formed(passage.text, passage.title):
            if one.description:
                described[sources.part(passage), normalise(passage.text[one.start : one.end])].append(passage)
    shared: defaultdict[str, list[Passage]] = defaultdict(list)
    for passage in sources.passages:
        for name in dict.fromkeys(normalise(one.subject) for one in formed(passage.text, passage.title)):
            shared[passage.id] += [one for one in described[sources.part(passage), name] if one.id != passage.id]
    return shared


def _joined(passage: Passage, others: Sequence[Passage], part: str) -> list[Candidate]:
    """Questions about a name of the passage, with what another one says of it in its place."""
    made = [
        _candidate(
            "two_hop",
            0,
            part,
            one.question.replace(one.subject, first.description),
            passage.text[one.start : one.end],
            [other, passage],
        )
        for other in others
        for first in formed(other.text, other.title)
        for one in formed(passage.text, passage.title)
        if first.description and normalise(one.subject) == normalise(other.text[first.start : first.end])
    ]
    return made[:1]


def _written(
    writer: Writer, kind: str, groups: Sequence[tuple[Passage, ...]], sources: Sources
) -> list[list[Candidate] | Exception]:
    """What the writer makes of each group; nothing of two hops without another passage."""
    wanted = [at for at, group in enumerate(groups) if kind == "one_hop" or len(group) > 1]
    asked = [ToWrite(passages=groups[at], most=PER_PASSAGE) for at in wanted]
    written = dict(zip(wanted, writer.write(asked), strict=True))
    made: list[list[Candidate] | Exception] = []
    for at, group in enumerate(groups):
        found, part = written.get(at, []), sources.part(group[-1])
        if not isinstance(found, Exception):
            found = [_candidate(kind, number, part, *one, group) for number, one in enumerate(found)]
        made.append(found)
    return made


# -- what is kept -----------------------------------------------------------------------------------------------------


def _digest(index: Index, passage_id: str) -> str | None:
    """Of the title and text of a passage; None if the index has it no more."""
    found = index.passage(passage_id)
    return None if found is None else hashlib.blake2b(hash_input(found), digest_size=8).hexdigest()


def _read_made(file: Path, index: Index) -> dict[str, list[Record]]:
    """The rows of each passage and kind that an earlier call finished, of passages that are as they were then."""

    def read(unit: Any) -> tuple[str, list[Record], bool]:
        same = all(_digest(index, one) == digest for one, digest in unit.get("made_of", {}).items())
        return unit["unit"], unit["rows"], same

    units = finished_lines(file, read, "was not written by annotate; name another folder")
    return {name: rows for name, rows, same in units if same}


def _card(
    rows: Sequence[Record],
    sources: Sources,
    writer: Writer | None,
    off: Sequence[str],
    held_out: Sequence[Path],
    seed: int,
) -> Record:
    """How many were made, kept, and fell at which gate, by kind, with examples."""
    fell = [row for row in rows if row["fell"]]
    examples: defaultdict[str, list[Any]] = defaultdict(list)
    for row in fell:
        if len(examples[row["fell"]]) < SHOWN:
            shown = {key: row.get(key) for key in ("type", "question", "golden_answers", "reason")}
            examples[row["fell"]].append(shown)
    kept = Counter(row["part"] for row in rows if not row["fell"])
    documents = Counter(sources.parts.values())
    return {
        "made": dict(Counter(row["type"] for row in rows)),
        "kept": dict(Counter(row["type"] for row in rows if not row["fell"])),
        "fell": {gate: dict(Counter(row["type"] for row in fell if row["fell"] == gate)) for gate in examples},
        "examples": dict(examples),
        "rows": {Path(part).stem: kept[part] for part in SIDES},
        "documents": {Path(part).stem: documents[part] for part in SIDES},
        "passages": len(sources.passages),
        "corpus_sha256": sources.index.card.corpus_sha256,
        "written_by": writer.named if writer is not None else None,
        "gates_off": [*off],
        "held_out": [str(file) for file in held_out],
        "seed": seed,
        "sleuth": __version__,
    }
