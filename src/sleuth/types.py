"""The records and protocols that the parts of Sleuth exchange. Imports nothing from the package.

All records are frozen, slotted and keyword-only. Letters: P prompts, G episodes of one prompt, T tokens, K passages.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Any, ClassVar, Literal, Protocol

Author = Literal["policy", "env", "template", "source", "teacher"]
"""Where a token came from: sampled by the policy, supplied by the environment (question, observations, inserted tags),
part of a prompt template, part of a source text (ground truth), or written by a teacher."""

StopReason = Literal["stop", "eos", "length"]
"""Why a completion ended: a stop string, the end-of-text token, or the token budget."""


EpisodeKey = tuple[int, int]
"""The episode of a step or an evaluation: the number of its prompt, and of its sample."""


class SleuthError(Exception):
    """Wrong user input or a failure outside the program. The argument is one line: what is wrong, where, and what would
    be right. Several problems found at once are several arguments."""

    def __str__(self) -> str:
        return "; ".join(map(str, self.args))


class TransientError(SleuthError):
    """An error that a retry may not meet again: another process writes the run, another rank has gone."""


class RunFailed(SleuthError):  # noqa: N818
    """A run that ended by an error while it trained or measured. What was done is kept."""


class StoppedByRule(SleuthError):  # noqa: N818
    """A rule of the recipe, an alarm or a gate, ended or paused the run; what was done is kept. No input was wrong."""


class RetrievalFailed(Exception):  # noqa: N818
    """A retriever, or whatever else gives an episode its observations, could not answer. The score is then missing, not
    zero, and the result is not empty."""


# -- tasks and data --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A piece of a corpus: `Passage(id="17", title="Ada Voss", text="Ada Voss was born in Tarn.", score=11.3)`."""

    id: str
    title: str
    text: str
    score: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedClaim:
    """A claim that a tool output states, the ids of all snippets that state it, and whether the question asks for it.

    `StatedClaim(claim="Ada Voss was born in Tarn.", snippets=("a1",), asked=True)`.
    """

    claim: str
    snippets: tuple[str, ...]
    asked: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a search agent passes to its refiner: why it searched, and the tool output.

    `Evidence(reasoning="I need her birthplace.", output="<snippet id=a1>Ada Voss was born in Tarn.</snippet>",
    snippets=(Passage(id="a1", title="", text="Ada Voss was born in Tarn."),), answerable=True)`. `output` is the tool
    output, byte for byte; only its `snippets` can be cited. `answerable`: whether they answer the question, or None if
    unknown. `stated`: all claims they state, if the data has an exact table.
    """

    reasoning: str
    output: str
    snippets: tuple[Passage, ...]
    answerable: bool | None = None
    stated: tuple[StatedClaim, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rubric:
    """One criterion of an answer: `Rubric(title="Birthplace", description="Names Tarn as the birthplace.")`. With
    `wanted=False`, a good answer does not fulfil it."""

    title: str
    description: str
    wanted: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Thought:
    """A thought inserted after the first `at` characters of a text, which itself does not contain it:
    `Thought(at=31, text="Tarn is in Osmark.")`."""

    at: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A text to read: `Document(id="d4", text="Ada lives in Tarn. She ...", origin="example.org/ada")`.

    All documents of one `origin` (such as a page stored twice) go to the same side of a split. `cut` is the character
    at which the continuation starts; None leaves it to token counts. `golden_answers` are what a correct ending names,
    if it follows from the beginning. `altered`: the thoughts were inserted into a changed copy of the text, so that
    their positions are unknown and `thoughts` is empty.
    """

    id: str
    text: str
    origin: str
    source: str = ""
    kind: str = ""
    cut: int | None = None
    golden_answers: tuple[str, ...] = ()
    thoughts: tuple[Thought, ...] = ()
    altered: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """A document's true continuation: two adjacent token spans, both with author `source`. `Continuation(document="d4",
    prefix=Segment(author="source", tokens=(5, 9), text="Ada lives"), suffix=Segment(...))`.

    Use these tokens: encoding the prefix's text again might give others at its end.
    """

    document: str
    prefix: Segment
    suffix: Segment


class Info(Mapping[str, Any]):
    """What a row has besides what Sleuth reads of it, in types of JSON: `Info({"level": 3})["level"]`.

    It is kept as text and read at each look, so that no reader can change it for another. NaN is None, and what JSON
    has no type for is its `str`. Raises SleuthError for what cannot be JSON, or is longer than `MOST` characters."""

    __slots__ = ("text",)
    MOST: ClassVar[int] = 2**20

    def __init__(self, values: Mapping[str, Any]) -> None:
        try:
            self.text = _ENCODE(dict(values))
        except (TypeError, ValueError, RecursionError) as error:
            raise SleuthError(f"{', '.join(map(str, values))}: no JSON: {error}") from None
        if len(self.text) > self.MOST:
            size = f"{len(self.text):,} characters of JSON, and a row may have {self.MOST:,} beside what Sleuth reads"
            raise SleuthError(f"{', '.join(map(str, values))}: {size}; leave some of these columns out")

    def _read(self) -> dict[str, Any]:
        return json.loads(self.text, parse_constant=lambda name: None)

    def __getitem__(self, key: str) -> Any:
        return self._read()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"Info({self._read()!r})"


def _as_json(value: Any) -> Any:
    """Arrays as lists, bytes as nothing, dates and other values as text."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return None if isinstance(value, bytes) else str(value)


_ENCODE = json.JSONEncoder(sort_keys=True, default=_as_json).encode
NO_INFO = Info({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A question with what is needed to score it.

    `Task(id="q7", question="where was Ada Voss born?", golden_answers=("Tarn",), gold_passages=("17",),
    kind="one_hop")`. `gold_passages` are corpus ids and may be empty; `kind` and `source` only group rows of tables.
    `prompt` replaces the whole user message if the data brings one. A refiner's task has `evidence` to refine and, as
    `reference`, the data's own answer. `rubrics` are this task's criteria. A task to continue a text has a
    `continuation` by tokens; then `question` is the beginning as text, `reference` the true continuation, and
    `golden_answers` may be empty. `info` has the other columns of the row: `task.info["level"]`.
    """

    id: str
    question: str
    golden_answers: tuple[str, ...] = ()
    gold_passages: tuple[str, ...] = ()
    kind: str = ""
    source: str = ""
    prompt: str = ""
    evidence: Evidence | None = None
    reference: str = ""
    rubrics: tuple[Rubric, ...] = ()
    continuation: Continuation | None = None
    info: Mapping[str, Any] = NO_INFO

    def __post_init__(self) -> None:
        if not isinstance(self.info, Info):
            object.__setattr__(self, "info", Info(self.info))

    @property
    def required_continuation(self) -> Continuation:
        """`continuation`, for callers that only take tasks to continue a text."""
        assert self.continuation is not None, f"task {self.id!r} is a question and has no continuation"
        return self.continuation


# -- trajectories and scores -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A run of n tokens with one author. Which segments a loss trains is the stage's decision and not stored here.

    `text` is the run decoded. `logprobs` are n natural-log probabilities under the sampling policy, None if the policy
    did not sample the tokens or the engine returned none. `cut` counts the tokens that a budget removed. If the weights
    changed within the turn, `policy_version` is that of its first token, and `updates` are the later versions, each
    with the index of its first token: with `updates=((1, 4),)` version 4 sampled the token 9 in
    `Segment(author="policy", tokens=(5, 9), text="<search> Ada", logprobs=(-0.1, -1.2), policy_version=3)`.
    """

    author: Author
    tokens: tuple[int, ...]
    text: str
    logprobs: tuple[float, ...] | None = None
    policy_version: int | None = None
    cut: int = 0
    updates: tuple[tuple[int, int], ...] = ()

    @property
    def version_counts(self) -> list[tuple[int | None, int]]:
        """The versions that sampled the tokens, in their order, each with its number of tokens."""
        begins = (0, *(at for at, _ in self.updates), len(self.tokens))
        versions = (self.policy_version, *(version for _, version in self.updates))
        return [(version, end - begin) for version, (begin, end) in zip(versions, pairwise(begins), strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """What the environment parsed from one policy turn, using policy-written text only.

    `Action(kind="search", text="Ada Voss", passages=(Passage(...),))`; the text is the query, the call of a
    tool, the answer, or, if "invalid", the text that was none of them. `failure` says why a search got no answer.
    `result` is all that a called tool returned, before a budget cut it:
    `Action(kind="call", text='{"name": "now", "arguments": {}}', result="12:40")`. `same_turn`: it was parsed from the
    turn of the action before it.
    """

    kind: Literal["search", "call", "answer", "invalid"]
    text: str
    passages: tuple[Passage, ...] = ()
    failure: str = ""
    result: str | None = None
    same_turn: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """Segments in order: exactly what the model saw. `actions` belong to all turns in them, copied earlier ones too.

    `stop` is `answered`, `turns` (no turn was left), `length` (the context was full or, in some dialects, the turn),
    `failed` (the retriever did not answer: the score will be missing) or `rewritten` (a template or the environment
    rewrote the history: the episode's next trajectory continues). `score` is what the environment itself gave at the
    end, without a value if it could not; None from environments that give none.
    """

    segments: tuple[Segment, ...]
    actions: tuple[Action, ...] = ()
    stop: str = "answered"
    score: Score | None = None

    @property
    def tokens(self) -> tuple[int, ...]:
        """All T token ids, in order."""
        return tuple(token for segment in self.segments for token in segment.tokens)

    @property
    def text(self) -> str:
        """The whole text, without what budgets removed."""
        return "".join(segment.text for segment in self.segments)

    @property
    def policy_text(self) -> str:
        """Only what the policy wrote."""
        return "".join(segment.text for segment in self.segments if segment.author == "policy")

    @property
    def passages(self) -> tuple[Passage, ...]:
        """Every passage that the model saw, in order."""
        return tuple(passage for action in self.actions for passage in action.passages)

    @property
    def action_turns(self) -> tuple[int, ...]:
        """The turn of each action, counted from 0; turns that a chat template rewrote into the prompt included."""
        return tuple(turn - 1 for turn in accumulate(int(not action.same_turn) for action in self.actions))

    @property
    def searches(self) -> int:
        """The number of searches."""
        return sum(action.kind == "search" for action in self.actions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """One or more linked trajectories with one score (more than one only if a chat template rewrites history).

    `Episode(task=task, sample=2, trajectories=(trajectory,))`: the third of its group. Each policy turn has author
    `policy` in exactly one trajectory; its copies in later ones have author `env`.
    """

    task: Task
    sample: int
    trajectories: tuple[Trajectory, ...]

    @property
    def trajectory(self) -> Trajectory:
        """The last trajectory: the one that holds the answer."""
        return self.trajectories[-1]

    @property
    def whole(self) -> Trajectory:
        """All trajectories concatenated, with the last one's actions and stop reason."""
        segments = tuple(segment for trajectory in self.trajectories for segment in trajectory.segments)
        return Trajectory(segments=segments, actions=self.trajectory.actions, stop=self.trajectory.stop)


@dataclass(frozen=True, slots=True, kw_only=True)
class Credit:
    """A value added to the advantage of single tokens: those of segment number `segment` of an episode's last
    trajectory, from `begin` up to `end` (exclusive; None: the segment's end).

    `Credit(segment=3, value=-0.2)`, `Credit(segment=1, value=0.5, begin=12, end=31)`.
    """

    segment: int
    value: float
    begin: int = 0
    end: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A value, or None if it could not be determined, with named parts, a note in words and `credits` for single
    tokens. `Score(value=1.0, parts={"em": 1.0}, note="correct")`; `Score(value=None, note="retriever failed")`.

    `notes` has what functions of the user noted, by their names; Sleuth fills it from the `note` that each returned."""

    value: float | None
    parts: Mapping[str, float] = field(default_factory=dict)
    note: str = ""
    credits: tuple[Credit, ...] = ()
    notes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A task, its G episodes and, once scored, their G scores."""

    task: Task
    episodes: tuple[Episode, ...]
    scores: tuple[Score, ...] = ()


# -- protocols: engine, environment, retriever, judge, reward --------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the next tokens are sampled. Temperature 0 is greedy; the support is always the whole vocabulary.

    `key` seeds the draw: (seed, stage, step, prompt, sample, turn). The same key and tokens give the same completion,
    whatever else runs; waiting requests are admitted in the order of their keys.
    """

    max_tokens: int
    temperature: float = 1.0
    stops: tuple[str, ...] = ()
    key: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """n newly sampled tokens, n log-probabilities, and the text they completed. Only the last chunk has a `stop`."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    text: str
    stop: StopReason | None = None
    policy_version: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One whole turn. `text` ends with the stop string if there is one; the token that completed it stays whole in
    `tokens`, even if it extends beyond the stop string. `updates`: see `Segment`."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    text: str
    stop: StopReason
    policy_version: int | None = None
    updates: tuple[tuple[int, int], ...] = ()


class Engine(Protocol):
    """Samples tokens from the policy."""

    def stream(self, tokens: Sequence[int], sampling: Sampling) -> AsyncGenerator[Chunk, None]:
        """Yields the continuation of `tokens`. Closing the iterator early frees the slot."""
        ...

    async def complete(self, tokens: Sequence[int], sampling: Sampling) -> Completion:
        """`stream`, collected."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Text to append to a trajectory. Tokens beyond `budget` are cut and the cut is reported; None is no limit.
    `tokens` encode the text if the data has them already, as for the prefix of a `Continuation`. `quoted`: an
    environment shows text by others, such as a passage or a question, in which no tag and no added token may be one."""

    text: str
    author: Author = "env"
    quoted: bool = False
    budget: int | None = None
    tokens: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An environment's turn: pieces to append, then either the end (`done` is the stop reason) or the next turn's
    limits.

    `action` is what it parsed from the policy's last turn, and `earlier` what it parsed before that from the same turn,
    if a message had several calls. `restarts`: the pieces rewrite the whole history and start a
    new trajectory. `response_tokens`, read from the first reply only, limits all tokens after it; None is no limit.
    """

    pieces: tuple[Piece, ...] = ()
    action: Action | None = None
    earlier: tuple[Action, ...] = ()
    done: str | None = None
    max_tokens: int = 0
    stops: tuple[str, ...] = ()
    restarts: bool = False
    response_tokens: int | None = None


class Env(Protocol):
    """What the policy interacts with, in text; single use. `open` gives the prompt, `reply` answers one turn. One that
    scores its episodes has a method `score`, called once at the end, which returns a `Score` or None; one that opens
    something has a method `close`."""

    async def open(self) -> Reply: ...

    async def reply(self, text: str, stop: StopReason) -> Reply: ...


class Retriever(Protocol):
    """Finds passages. Raises `RetrievalFailed` if it cannot search."""

    async def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """At most k passages for each query, best first; ties broken by id."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrieverIdentity:
    """What decides which passages of a corpus are found; the corpus has a hash of its own. None is unknown, or
    nothing that this kind has.

    `RetrieverIdentity(kind="bm25", k1=1.2, b=0.75)`, `RetrieverIdentity(kind="dense", encoder="e5-base-v2",
    weights_sha256="9f3c...", query_prefix="query: ", passage_prefix="passage: ", pooling="mean", storage="ivf-sq8",
    lists=4096, probes=256)`. `kind` is that of an index, "gold" for the passages that a row names, or "unknown".
    `shuffled`: each query gets those of another question. `probes` of the `lists` of quantised vectors are searched;
    `fusion` makes one list of two.
    """

    kind: str
    shuffled: bool = False
    k1: float | None = None
    b: float | None = None
    encoder: str | None = None
    weights_sha256: str | None = None
    query_prefix: str | None = None
    passage_prefix: str | None = None
    pooling: str | None = None
    storage: str | None = None
    lists: int | None = None
    probes: int | None = None
    fusion: str | None = None

    def as_json(self) -> dict[str, str | int | float | bool]:
        """The fields that are known, by name."""
        return {key: value for key, value in asdict(self).items() if value is not None and value is not False}

    def difference(self, other: RetrieverIdentity) -> str | None:
        """The first of what both know that differs: `kind 'bm25', not 'dense'`. Of an unknown one nothing is known."""
        if UNKNOWN_RETRIEVER in (self, other):
            return None
        pairs = ((key, getattr(self, key), getattr(other, key)) for key in asdict(self))
        return next((f"{key} {a!r}, not {b!r}" for key, a, b in pairs if None not in (a, b) and a != b), None)

    def __str__(self) -> str:
        """`dense (e5-base-v2, flat)`, `bm25 with shuffled passages`, `unknown`."""
        details = ", ".join(text for text in (self.encoder, self.storage) if text)
        return f"{self.kind}{f' ({details})' if details else ''}{' with shuffled passages' if self.shuffled else ''}"


UNKNOWN_RETRIEVER = RetrieverIdentity(kind="unknown")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A question for a judge: does `evidence` support `claim`? `Case(claim="Ada Voss was born in Tarn.",
    evidence="Ada Voss (born 1874, Tarn) was a painter.")`.

    With a `criterion` the question is how far `claim`, an answer to `question`, fulfils it:
    `Case(question="Who was Ada Voss?", claim="A painter.", evidence="", criterion="Says where she was born.")`.
    """

    claim: str
    evidence: str
    question: str = ""
    criterion: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two answers to one `question`, or two continuations of it, for a judge to compare. `Pair(question=
    "Where was Ada Voss born?", first="In Tarn.", second="In Ulm.", evidence="Ada Voss (born 1874, Tarn) ...")`. Without
    a `criterion` the judge compares how well they answer and agree with the evidence."""

    question: str
    first: str
    second: str
    evidence: str = ""
    criterion: str = ""

    @property
    def swapped(self) -> Pair:
        """The same pair in the other order."""
        return replace(self, first=self.second, second=self.first)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How far a claim is supported, from 0 to 1, and why: `Verdict(score=0.0, reason="1875 is not in the evidence")`.

    `score` is None if there is no verdict; the reason says why. For a pair, 1 means that the first is better, 0 the
    second, 0.5 a tie. `invalid`: the judge answered twice, and neither answer could be parsed. `evidence` quotes the
    words on which the verdict rests.
    """

    score: float | None
    reason: str = ""
    invalid: bool = False
    evidence: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """An answer and several criteria, to be judged in one call. `Sheet(question="Who was Ada Voss?",
    answer="A painter of Tarn.", criteria=("Says where she was born.", "Tells of the sea."))`."""

    answer: str
    criteria: tuple[str, ...]
    question: str = ""
    evidence: str = ""

    @property
    def cases(self) -> tuple[Case, ...]:
        """One case for each criterion."""
        return tuple(
            Case(claim=self.answer, evidence=self.evidence, question=self.question, criterion=criterion)
            for criterion in self.criteria
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimSheet:
    """Claims of an answer, each to be judged by some of the `snippets`, in one call. An entry is a claim and the
    indices of its snippets: `ClaimSheet(snippets=("Ada Voss was born in Tarn.",), entries=(("Born in Tarn.", (0,)),))`.
    """

    snippets: tuple[str, ...]
    entries: tuple[tuple[str, tuple[int, ...]], ...]

    @property
    def cases(self) -> tuple[Case, ...]:
        """One case for each entry; its evidence is its snippets, an empty line between two."""
        return tuple(
            Case(claim=claim, evidence="\n\n".join(self.snippets[index] for index in indices))
            for claim, indices in self.entries
        )


AnySheet = Sheet | ClaimSheet


class Judge(Protocol):
    """Judges cases. A failure is a verdict without a score, never a number or an exception."""

    async def judge(self, cases: Sequence[Case]) -> list[Verdict]:
        """One verdict for each case, in order."""
        ...


class SheetJudge(Protocol):
    """Judges many criteria or claims in one call. A failure is a verdict without a score for each of them."""

    async def rate(self, sheets: Sequence[AnySheet]) -> list[list[Verdict]]:
        """For each sheet one verdict for each of its cases, in order."""
        ...


class PairJudge(Protocol):
    """Judges which of two is better. A failure is a verdict without a score, never a number or an exception."""

    async def compare(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """One verdict for each pair, in order."""
        ...


class Reward(Protocol):
    """Returns the scores of one group's G episodes, in order."""

    async def __call__(self, group: Group) -> list[Score]: ...


RETRIEVER_FAILED = "retriever failed"
"""The note of a missing score, before the reason if it is known."""


def failed_score(episode: Episode) -> Score | None:
    """The missing score of an episode that ended through no fault of the policy, with the reason of the retriever or of
    the user's environment; None for other episodes."""
    if episode.trajectory.stop != "failed":
        return None
    last = episode.trajectory.actions[-1] if episode.trajectory.actions else None
    if last is None or last.kind != "search":
        return Score(value=None, note=(last.failure if last else "") or "the environment failed")
    return Score(value=None, note=f"{RETRIEVER_FAILED}: {last.failure}" if last.failure else RETRIEVER_FAILED)


@dataclass(frozen=True, slots=True)
class StepFigure:
    """A figure of `metrics.jsonl`: `StepFigure("em", "Share of right answers.", "Exact match", "share of episodes")`.

    `*` in its name stands for any text. With a `title` reports draw it, `top` being the fixed upper end of the axis;
    figures of one title are stacked, and those `compared` are also drawn where runs are compared. `part` is its heading
    in the reference.
    """

    name: str
    meaning: str
    title: str = ""
    hint: str = ""
    _: KW_ONLY
    top: float | None = None
    compared: bool = False
    part: str = "Parts of the score (means over the episodes that have them)"
    in_steps: ClassVar[bool] = True
