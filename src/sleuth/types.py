"""The nouns of Sleuth. Everything that travels between rooms is one of these, and nothing here imports anything of
ours.

All records are frozen, slotted and keyword-only. Letters: P prompts, G siblings of one prompt, T tokens, K passages.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

Author = Literal["policy", "env", "template", "source", "teacher"]
"""Who wrote a token: the policy sampled it, the environment supplied it (question, observations, inserted tags), a
prompt template holds it, a source text holds it (ground truth), or a teacher wrote it."""

StopReason = Literal["stop", "eos", "length"]
"""Why a completion ended: a stop string was written, the end-of-text token was sampled, or the token budget was
spent."""


class SleuthError(Exception):
    """The user's input was wrong, or the outside world was. Its argument is one line: what, where, and what would be
    right. Where several things are wrong at once, each is an argument."""

    def __str__(self) -> str:
        return "; ".join(map(str, self.args))


class PassingError(SleuthError):
    """May be over when the same is tried again: another process writes the run, another rank is gone."""


class RetrievalFailed(Exception):  # noqa: N818
    """A retriever could not answer. The episode becomes missing, never an empty result and never a zero."""


# -- what is asked ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A piece of a corpus. `Passage(id="17", title="Ada Voss", text="Ada Voss was born in Tarn.", score=11.3)`."""

    id: str
    title: str
    text: str
    score: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stated:
    """A claim that a tool output states, the ids of every snippet that does, and whether the question asks for it:
    `Stated(claim="Ada Voss was born in Tarn.", snippets=("a1",), asked=True)`."""

    claim: str
    snippets: tuple[str, ...]
    asked: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a search agent hands to its refiner: why it searched, and what came back.

    `Evidence(reasoning="I need her birthplace.", output="<snippet id=a1>Ada Voss was born in Tarn.</snippet>",
    snippets=(Passage(id="a1", title="", text="Ada Voss was born in Tarn."),), answerable=True)`. `output` is the tool's
    own text, byte for byte; `snippets` are the pieces of it that can be cited, and nothing else ever is evidence.
    `answerable` says whether they answer the question; None where nobody told. `stated` is all that they state, where
    the data has an exact table of it.
    """

    reasoning: str
    output: str
    snippets: tuple[Passage, ...]
    answerable: bool | None = None
    stated: tuple[Stated, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rubric:
    """One criterion of an answer: `Rubric(title="Birthplace", description="Names Tarn as the birthplace.")`; where it
    is not `wanted`, an answer should not fulfil it."""

    title: str
    description: str
    wanted: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Thought:
    """What somebody thinks while reading a text, behind its first `at` characters: `Thought(at=31, text="Tarn is in
    Osmark.")`. The text itself never holds it."""

    at: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A text to read: `Document(id="d4", text="Ada lives in Tarn. She ...", origin="example.org/ada")`.

    Documents of one `origin` (a page that was stored twice, say) never stand on both sides of a split. `cut` is the
    number of characters after which the text is to be continued, where the data has such a place; None leaves that to
    token counts. `golden_answers` are what a right ending names, in a text whose ending follows from its beginning.
    `altered`: somebody put thoughts into a copy of the text that is another text, so that nobody can say where they
    belong; then there are none.
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
    """How a document goes on: neighbouring runs of its tokens, both written by `source`. `Continuation(document="d4",
    prefix=Segment(author="source", tokens=(5, 9), text="Ada lives"), suffix=Segment(...))`.

    The tokens are the data's own cut: a prefix whose text were encoded again might have others at its end.
    """

    document: str
    prefix: Segment
    suffix: Segment


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A question with what is needed to score it.

    `Task(id="q7", question="where was Ada Voss born?", golden_answers=("Tarn",), gold_passages=("17",),
    kind="one_hop")`. `gold_passages` are corpus ids and may be empty; `kind` and `source` only group figures in
    tables. `prompt` is the whole message to ask with, where the data brings one; else it is empty. `evidence` is what
    there is to refine, and `reference` an answer as the data has it: only a refiner's task has them. `rubrics` are
    criteria of its own that an answer may be judged by. Where a text is to be continued, `continuation` has it token
    by token; then `question` is the beginning as text, `reference` the true continuation, and `golden_answers` may be
    empty.
    """

    id: str
    question: str
    golden_answers: tuple[str, ...]
    gold_passages: tuple[str, ...] = ()
    kind: str = ""
    source: str = ""
    prompt: str = ""
    evidence: Evidence | None = None
    reference: str = ""
    rubrics: tuple[Rubric, ...] = ()
    continuation: Continuation | None = None

    @property
    def asked(self) -> str:
        """What stands in the environment's prompt where that has its question."""
        return self.prompt or self.question

    @property
    def continued(self) -> Continuation:
        """The continuation of a task that is known to be a text."""
        assert self.continuation is not None, f"task {self.id!r} is a question, and no text"
        return self.continuation


# -- what is written -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A run of tokens with one author. Which segments a loss trains is the stage's decision and is never stored here.

    `tokens` has n ids; `text` is the same run as people read it; `logprobs`, if the policy sampled them and the engine
    told, has n natural-log probabilities under the sampling policy. `cut` is how many tokens a budget took away.
    `Segment(author="policy", tokens=(5, 9), text="<search> Ada", logprobs=(-0.1, -1.2), policy_version=3)`.
    """

    author: Author
    tokens: tuple[int, ...]
    text: str
    logprobs: tuple[float, ...] | None = None
    policy_version: int | None = None
    cut: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """What the environment understood the policy to do in one turn, parsed from policy-written text alone.

    `Action(kind="search", text="Ada Voss", passages=(Passage(...),))`; kind "answer" carries the answer, kind "invalid"
    the text that was neither.
    """

    kind: Literal["search", "answer", "invalid"]
    text: str
    passages: tuple[Passage, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """Segments laid end to end: exactly what the model saw. `stop` says how it ended: `answered`, `turns`
    (nothing more was allowed), `length` (the context was full, or in some dialects the turn), `failed` (the retriever
    did not answer: the score will be missing), or `rewritten` (a chat template told the story anew: the episode's next
    trajectory goes on). `actions` are those of the whole story that the segments tell, copies of earlier turns too."""

    segments: tuple[Segment, ...]
    actions: tuple[Action, ...] = ()
    stop: str = "answered"

    @property
    def tokens(self) -> tuple[int, ...]:
        """All T token ids, in order."""
        return tuple(token for segment in self.segments for token in segment.tokens)

    @property
    def text(self) -> str:
        """The same story as text, cuts included."""
        return "".join(segment.text for segment in self.segments)

    @property
    def policy_text(self) -> str:
        """Only what the policy wrote."""
        return "".join(segment.text for segment in self.segments if segment.author == "policy")

    @property
    def passages(self) -> tuple[Passage, ...]:
        """Every passage that was shown, in order."""
        return tuple(passage for action in self.actions for passage in action.passages)

    @property
    def searches(self) -> int:
        """How many searches were made."""
        return sum(action.kind == "search" for action in self.actions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """One or more linked trajectories that share a score (more than one only where a chat template rewrites history).

    `Episode(task=task, sample=2, trajectories=(trajectory,))`: the third sibling of its group. Every turn of the policy
    is its own in one of the trajectories; in later ones it is a copy, which the environment wrote.
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
        """All that was read and written, one trajectory behind the other, with the actions and the end of the last."""
        segments = tuple(segment for trajectory in self.trajectories for segment in trajectory.segments)
        return Trajectory(segments=segments, actions=self.trajectory.actions, stop=self.trajectory.stop)


@dataclass(frozen=True, slots=True, kw_only=True)
class Credit:
    """What some tokens of an episode's last trajectory are paid by themselves: those of the segment with the index
    `segment`, from `begin` to before `end`, or to its end.

    `Credit(segment=3, value=-0.2)`, `Credit(segment=1, value=0.5, begin=12, end=31)`.
    """

    segment: int
    value: float
    begin: int = 0
    end: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A value, or `None` where no verdict could be had, with its named parts and a note in words.

    `Score(value=1.0, parts={"em": 1.0}, note="correct")`; `Score(value=None, note="retriever failed")`.
    `credits` add to the advantage of single tokens.
    """

    value: float | None
    parts: Mapping[str, float] = field(default_factory=dict)
    note: str = ""
    credits: tuple[Credit, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A task, its G episodes and, once scored, their G scores."""

    task: Task
    episodes: tuple[Episode, ...]
    scores: tuple[Score, ...] = ()


# -- the seams: engine, environment, retriever, judge, reward --------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the next tokens are drawn. Temperature 0 is greedy; the support is always the whole vocabulary.

    `key` names the draw, outermost first: (seed, stage, step, prompt, sample, turn). The same key and the same tokens
    give the same completion, whatever else runs beside it; requests that wait are admitted in the order of their keys.
    """

    max_tokens: int
    temperature: float = 1.0
    stops: tuple[str, ...] = ()
    key: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Some freshly sampled tokens (n ids, n log-probabilities) with the text they finished. `stop` is set on the
    last."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    text: str
    stop: StopReason | None = None
    policy_version: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A whole turn. `text` runs through the stop string when one was written, and ends there; a token that overhangs
    the stop string stays whole in `tokens`."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    text: str
    stop: StopReason
    policy_version: int | None = None


class Engine(Protocol):
    """Who writes the next tokens."""

    def stream(self, tokens: Sequence[int], sampling: Sampling) -> AsyncGenerator[Chunk, None]:
        """Continue `tokens`. Closing the iterator early frees the slot."""
        ...

    async def complete(self, tokens: Sequence[int], sampling: Sampling) -> Completion:
        """`stream`, collected."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Text on its way into a trajectory. Beyond `budget` tokens it is cut, and the cut is reported; None is no
    limit. `tokens` are those of the text where the data has them already, such as the prefix of a `Continuation`."""

    text: str
    author: Author = "env"
    budget: int | None = None
    tokens: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What an environment says: pieces to append, then either the end (`done` names why) or the next turn's limits.
    `action` is what it understood the policy's last turn to be. `restarts`: the pieces are the whole story told anew,
    and begin a trajectory. `response_tokens`, read off the first reply, limits all that follows it; None is no limit.
    """

    pieces: tuple[Piece, ...] = ()
    action: Action | None = None
    done: str | None = None
    max_tokens: int = 0
    stops: tuple[str, ...] = ()
    restarts: bool = False
    response_tokens: int | None = None


class Env(Protocol):
    """What the policy talks to, in text; single use. `open` gives the prompt, `reply` answers one turn."""

    async def open(self) -> Reply: ...

    async def reply(self, text: str, stop: StopReason) -> Reply: ...


class Retriever(Protocol):
    """Finds passages. Raises `RetrievalFailed` when it could not look."""

    async def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """At most k passages for each query, best first; ties broken by id."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What a judge is asked: does `evidence` support `claim`? `Case(claim="Ada Voss was born in Tarn.",
    evidence="Ada Voss (born 1874, Tarn) was a painter.")`.

    With a `criterion` it is asked that instead: how far does `claim`, an answer to `question`, fulfil it?
    `Case(question="Who was Ada Voss?", claim="A painter.", evidence="", criterion="Says where she was born.")`.
    """

    claim: str
    evidence: str
    question: str = ""
    criterion: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """What a judge is asked to compare: two answers to one `question`, or two continuations of it. `Pair(question=
    "Where was Ada Voss born?", first="In Tarn.", second="In Ulm.", evidence="Ada Voss (born 1874, Tarn) ...")`.
    `criterion` says in which respect; empty is how well they answer and what the evidence says of them."""

    question: str
    first: str
    second: str
    evidence: str = ""
    criterion: str = ""

    @property
    def swapped(self) -> Pair:
        """The same question in the other order."""
        return replace(self, first=self.second, second=self.first)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How far a claim is supported, from 0 to 1, with the reason in words: `Verdict(score=0.0, reason="1875 is not in
    the evidence")`. `score` is None where no verdict could be had, and the reason says why.

    Of a pair: 1 if the first is better, 0 if the second is, 0.5 for a tie. `invalid` marks, among those without a
    score, that the judge did answer, twice, and not with a verdict. `evidence` are the words that it rests on.
    """

    score: float | None
    reason: str = ""
    invalid: bool = False
    evidence: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """An answer with all the criteria that it is judged by, in one call. `Sheet(question="Who was Ada Voss?",
    answer="A painter of Tarn.", criteria=("Says where she was born.", "Tells of the sea."))`."""

    answer: str
    criteria: tuple[str, ...]
    question: str = ""
    evidence: str = ""

    @property
    def cases(self) -> tuple[Case, ...]:
        """Each criterion by itself."""
        return tuple(
            Case(claim=self.answer, evidence=self.evidence, question=self.question, criterion=criterion)
            for criterion in self.criteria
        )


class Judge(Protocol):
    """Decides what supports what. A failure is a verdict without a score, never a number and never an exception."""

    async def judge(self, cases: Sequence[Case]) -> list[Verdict]:
        """One verdict for each case, in order."""
        ...


class SheetJudge(Protocol):
    """Decides by many criteria at once. A failure is a verdict without a score for each of them."""

    async def rate(self, sheets: Sequence[Sheet]) -> list[list[Verdict]]:
        """For each sheet a verdict for each criterion, in order."""
        ...


class PairJudge(Protocol):
    """Decides which of two is better. A failure is a verdict without a score, as a `Judge`'s."""

    async def compare(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """One verdict for each pair, in order."""
        ...


class Reward(Protocol):
    """Scores the G episodes of one group, in order."""

    async def __call__(self, group: Group) -> list[Score]: ...
