"""The tables of searching: environments of kind "search" and "tools", the stage "warm_start", the reward "cited_answer"
and the credit "search_gain"."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Discriminator, Field, NonNegativeInt, PositiveFloat, PositiveInt, Tag

from sleuth.answers.answer import cited_passage_holds, given_answer
from sleuth.answers.tables import EpisodeRewardRecipe
from sleuth.dialect import DIALECTS, Dialect, dialect_of
from sleuth.host.model_path import model_name
from sleuth.recipe.data import DataFields, Lengths
from sleuth.recipe.envs import PROMPT, EnvFields, RenderedEnvFields, Role, ToolTableRecipe
from sleuth.recipe.grpo import CreditFields
from sleuth.recipe.strict import TABLE, TEXT, FilePath, FunctionName, Name, Row, StrictModel, combination
from sleuth.recipe.training import TrainingRecipe
from sleuth.search.dialects import TOOLS_CHAT, TOOLS_TEXT
from sleuth.types import UNKNOWN_RETRIEVER, Episode, RetrieverIdentity, SleuthError, StepFigure, Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from sleuth.episodes.protocol import ProtocolCard
    from sleuth.evaluation.eval_session import EvalOverrides
    from sleuth.recipe import GrpoRecipe, Recipe
    from sleuth.search.setting import SearchSetting
    from sleuth.search.tools import ToolSetting

DEFAULT_DIALECT = "sleuth"
DEFAULT_PROMPT = "plain"


class RequiredRetriever(StrictModel):
    """What the retriever of a stage has to be, for results to be those that the recipe describes."""

    kind: Literal["bm25", "dense", "hybrid"] | None = None
    """Kind of its index; absent: any."""
    encoder: str | None = None
    """The encoder of its vectors, by the last part of its name: "intfloat/e5-base-v2" is also a folder `e5-base-v2`;
    absent: any."""

    @property
    def identity(self) -> RetrieverIdentity | None:
        """What is required, as a retriever of which nothing else is known; None if any will do."""
        encoder = model_name(self.encoder) if self.encoder else None
        return RetrieverIdentity(kind=self.kind, encoder=encoder) if self.kind else None

    @combination
    def _encoder_is_of_vectors(self) -> Iterator[str]:
        if self.encoder is not None and self.kind not in ("dense", "hybrid"):
            yield 'encoder needs kind = "dense" or "hybrid"; other retrievers have none'


TURN, PASSAGE, SEARCHES = 120, 150, 2
"""Tokens of a turn and of a passage, and searches of a typical episode, where limits allow them. Search agents of 0.6B
to 3B that were published wrote 1,100 to 2,050 tokens an episode, results included."""


class SearchEnvRecipe(RenderedEnvFields):
    """A question, a search tool and a budget of searches."""

    named: ClassVar[Mapping[str, str]] = {
        "dialect": "spoken_dialect",
        "prompt": "prompt",
        "hint": "text",
        "index": "index",
    }
    kind: Literal["search"]
    dialect: str
    """The search protocol: its tags, wrappers and stop rule."""
    prompt: str
    """Name of a prompt that `sleuth prompts` lists, such as "plain", or the path of a text file."""
    prompt_role: Role = "raw"
    """How the prompt is rendered: "raw": as plain text; "user" or "system": as a message of the model's chat template.
    After a system message, the question follows as the user's."""
    template_flags: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """Extra variables for the chat template, such as `{ enable_thinking = false }`."""
    index: FilePath | None = None
    """Folder of an index, written by `sleuth index`."""
    urls: Row[str] = ()
    """Retrieval servers with the same index, such as those of `sleuth retriever`, instead of a local index."""
    retriever: Literal["index", "remote", "empty", "shuffled", "gold"] = "index"
    """Source of passages: the index, the `urls` ("remote"), or a control arm: "empty" returns nothing, "shuffled" the
    passages of another query, and "gold" those that the row names (`gold_ids`), whatever the query: an upper bound."""
    required_retriever: RequiredRetriever | None = None
    """What the retriever has to be, such as `{ kind = "dense", encoder = "intfloat/e5-base-v2" }`: a stage with another
    one, or with a server that does not say what it is, does not begin. `{}` lifts what a recipe requires."""
    top_k: PositiveInt | None = None
    """Results of a search ("reading": sentences of three passages). Absent, as the next six: the dialect's default."""
    searches: NonNegativeInt | None = None
    """Maximum number of searches in an episode; after the last, the policy gets one more turn."""
    turns: PositiveInt | None = None
    """Maximum number of turns in an episode, whatever their action; the last may not search."""
    turn_tokens: PositiveInt | None = None
    """Maximum number of tokens that the policy writes in one turn."""
    response_tokens: PositiveInt | None = None
    """Maximum number of tokens after the prompt, results included."""
    passage_tokens: PositiveInt | None = None
    """Results are truncated to this number of tokens each."""
    results_tokens: PositiveInt | None = None
    """All results of a search together are truncated to this number of tokens, instead of each passage."""
    hint: str | None = None
    """Reply to an invalid action: name of a prompt, or path of a text file; absent: the dialect's default."""
    forced_search: bool = False
    """Whether the environment opens the first search itself, so that the policy starts inside a query."""
    closed_book: bool = False
    """Control arm of an evaluation: the environment opens the answer itself, and there is no search. Needs no index."""

    def setting(self, tokenizer: PreTrainedTokenizerFast | None, tasks: Sequence[Task]) -> SearchSetting:
        from sleuth.search.setting import search_setting

        return search_setting(self, tokenizer, tasks)

    def plain_dialect(self) -> Dialect:
        return dialect_of(self.dialect)

    def lengths(self, context: int, data: DataFields | None) -> Lengths:
        dialect = dialect_of(self.dialect)
        turn = min(self.turn_tokens or dialect.turn_tokens, TURN)
        passages = (self.top_k or dialect.top_k) * (self.passage_tokens or dialect.passage_tokens or PASSAGE)
        results = min(passages, self.results_tokens or dialect.results_tokens or passages)
        turns, searches = self.turns or dialect.turns, dialect.searches if self.searches is None else self.searches
        limits = [SEARCHES, *([] if turns is None else [turns - 1]), *([] if searches is None else [searches])]
        made = 0 if self.closed_book else min(limits)
        prompt = min(PROMPT, context // 2)
        response = min((made + 1) * turn + made * results, context - prompt)
        sampled = min((made + 1) * turn, response)
        searches = 0 if self.retriever == "empty" else made
        return Lengths(limit=context, prompt=prompt, response=response, sampled=sampled, searches=searches)

    @property
    def scanned_index(self) -> Path | None:
        return self.index if self.retriever in ("index", "shuffled") and not self.closed_book else None

    @classmethod
    def adopts(cls, dialect: Dialect | None, tasks: Sequence[Task]) -> bool:
        """All that no other environment does."""
        return True

    @classmethod
    def setting_to_evaluate(
        cls,
        card: ProtocolCard | None,
        changes: EvalOverrides,
        tokenizer: PreTrainedTokenizerFast,
        tasks: Sequence[Task],
    ) -> tuple[SearchSetting, list[str] | None]:
        from sleuth.episodes.setting import changes_of_card
        from sleuth.search.setting import search_setting

        role = changes.prompt_role or (card.prompt_role if card else "raw")
        trained = card is not None and card.forced_search and not changes.closed_book
        env = cls(
            kind="search",
            dialect=changes.dialect or (card.dialect.name if card else DEFAULT_DIALECT),
            prompt=changes.prompt or (card.prompt if card else DEFAULT_PROMPT),
            prompt_role=role,
            template_flags=card.template_flags if card and role != "raw" else {},
            index=changes.index,
            urls=changes.urls,
            retriever="remote" if changes.urls else "index" if changes.index or changes.closed_book else "empty",
            forced_search=trained if changes.forced_search is None else changes.forced_search,
            closed_book=changes.closed_book,
        )
        same = card if card is not None and env.dialect == card.dialect.name else None
        setting = search_setting(env, tokenizer, tasks, same)
        return setting, None if same is None else changes_of_card(same, setting)

    def without_retriever(self) -> Self:
        """Every search returns nothing."""
        return self.model_copy(update={"retriever": "empty", "index": None, "urls": ()})

    @property
    def required_identity(self) -> RetrieverIdentity | None:
        return self.required_retriever.identity if self.required_retriever else None

    def require_retriever(self, identity: RetrieverIdentity) -> None:
        if (required := self.required_identity) is None:
            return
        problem = "does not say what it is" if identity == UNKNOWN_RETRIEVER else identity.difference(required)
        if problem:
            raise SleuthError(
                f"{self.index or ', '.join(self.urls)}: {problem}; required_retriever asks for {required}: give such a "
                "one, or set required_retriever = {} if others will do"
            )

    @combination
    def _can_search(self) -> Iterator[str]:
        needs_index = self.retriever != "empty" and not self.closed_book
        if self.retriever == "remote" and not self.urls:
            yield 'urls is missing: retriever = "remote" needs servers, such as urls = ["http://127.0.0.1:8000"]'
        elif self.retriever == "gold" and self.urls:
            yield 'urls cannot be asked for the passages of a row: retriever = "gold" needs index'
        elif self.urls and self.index is not None:
            yield "urls and index are both given; remove one of them"
        elif self.urls and self.retriever == "index":
            yield 'urls needs retriever = "remote" (or a control arm)'
        elif self.index is None and not self.urls and needs_index:
            yield (
                f'index is missing: retriever = "{self.retriever}" reads one; name a folder written by `sleuth index`'
            )
        for url in self.urls:
            if not url.startswith(("http://", "https://")):
                yield f"urls holds {url!r}: expected http://HOST:PORT"
        if self.forced_search and self.searches == 0:
            yield "forced_search = true needs searches of 1 or more"
        if self.closed_book and self.forced_search:
            yield "closed_book and forced_search are both true; remove one of them"
        if self.closed_book and self.retriever in ("empty", "shuffled", "gold"):
            yield f'retriever = "{self.retriever}" has no effect with closed_book = true; remove one of them'
        if self.passage_tokens is not None and self.results_tokens is not None:
            yield "results_tokens and passage_tokens are both given; remove one of them"


def _tag_of(tool: Any) -> str:
    return TABLE if isinstance(tool, Mapping | StrictModel) else TEXT


ToolRecipe = Annotated[
    Annotated[FunctionName, Tag(TEXT)] | Annotated[ToolTableRecipe, Tag(TABLE)], Discriminator(_tag_of)
]
"""A function, `MODULE:NAME`, or a table of one or of a server of tools."""


class ToolEnvRecipe(RenderedEnvFields):
    """A question, and tools of your own that the policy may call (docs/how-to/own_code.md)."""

    named: ClassVar[Mapping[str, str]] = {"tools": "tools", "files": "files", "prompt": "prompt", "index": "index"}
    kind: Literal["tools"]
    tools: Annotated[Row[ToolRecipe], Field(min_length=1)]
    """Functions, `MODULE:NAME`, with type hints and a docstring that describes each argument; a module is looked for
    beside the recipe, in the current folder and among the installed packages. Of a method, `MODULE:CLASS.NAME`, each
    episode has an object of its own. And servers of tools: `{ mcp = "python -m my_server" }`, `{ mcp =
    "http://127.0.0.1:8000/mcp" }`. With `shared = true` episodes share results: `{ function = "MODULE:NAME", shared =
    true }`."""
    files: Row[FilePath] = ()
    """Files that the functions read, hashed like code: a run does not continue when one has changed."""
    index: FilePath | None = None
    """Folder of an index; adds the tool `search`, which takes a `query`."""
    top_k: PositiveInt = 3
    """Passages for each search."""
    prompt: str
    """Name of a prompt that `sleuth prompts` lists, or the path of a text file. Its {question} is replaced by the
    question, and its {tools} by the descriptions of the tools; a chat template shows the tools by itself."""
    prompt_role: Role = "raw"
    """How the prompt is rendered: as plain text ("raw"), or as a message of the model's chat template."""
    template_flags: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """Extra variables for the chat template, such as `{ enable_thinking = false }`."""
    calls: NonNegativeInt = 4
    """Maximum number of calls in an episode; after the last, the policy gets one more turn."""
    seconds: PositiveFloat = 10.0
    """Timeout of a call in seconds; then the policy reads that there is no result."""
    turn_tokens: PositiveInt = 512
    """Maximum number of tokens that the policy writes in one turn."""
    result_tokens: PositiveInt = 512
    """Results are truncated to this number of tokens each."""

    def setting(self, tokenizer: PreTrainedTokenizerFast | None, tasks: Sequence[Task]) -> ToolSetting:
        from sleuth.search.tools import tool_setting

        return tool_setting(self, tokenizer, tasks)

    def plain_dialect(self) -> Dialect:
        return TOOLS_TEXT if self.prompt_role == "raw" else TOOLS_CHAT

    def functions(self) -> tuple[str, ...]:
        return tuple(name for tool in self.tools if (name := tool if isinstance(tool, str) else tool.function))

    def tool_servers(self) -> tuple[ToolTableRecipe, ...]:
        return tuple(tool for tool in self.tools if not isinstance(tool, str) and tool.mcp is not None)

    @combination
    def _tools_differ(self) -> Iterator[str]:
        names = [tool.rpartition(":")[2].rpartition(".")[2] for tool in self.functions()]
        names += ["search"] if self.index is not None else []
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            yield f"tools has {twice} twice; the policy could call only one of them"


class HintRecipe(StrictModel):
    """Helps the policy to search or to follow the protocol while it plays. The hint is removed from the rows that are
    trained."""

    named: ClassVar[Mapping[str, str]] = {"dialect": "dialect", "prompt": "text"}
    prompt: str | None = None
    """Another prompt than the one that is trained, such as "search_example"."""
    prompt_role: Role | None = None
    """Role of that prompt; absent: the role of the prompt that is trained."""
    dialect: str | None = None
    """A protocol that the policy already follows; right episodes are translated into the stage's own for training."""
    forced_search: bool = False
    """The environment opens the first search; the policy is trained to open it itself."""

    @combination
    def _hints(self) -> Iterator[str]:
        if self.prompt is None and self.dialect is None and not self.forced_search:
            yield (
                "prompt is missing: name a prompt that hints, or a dialect that the policy already follows, "
                "or set forced_search = true"
            )


class WarmStartRecipe(TrainingRecipe):
    """Rejection sampling (STaR, arXiv:2203.14465) for a policy that never searches or does not follow the protocol. It
    plays questions of the next `grpo` stage with a hint, and trains on the right episodes under that stage's own
    prompt. Skipped if the policy already searches."""

    plays_like: ClassVar[Literal["next", "nearest"] | None] = "next"
    plays_before_training: ClassVar[bool] = True
    runner: ClassVar[str] = "sleuth.search.warm_start"
    kind: Literal["warm_start"]
    name: Name = "warm_start"
    """What the stage is called in the run folder."""
    hint: HintRecipe
    """Helps the policy while it plays; the trained rows do not contain it."""
    below: Annotated[float, Field(gt=0, le=1)] = 0.05
    """Run the stage only if less than this share of the policy's episodes without the hint searches."""
    taught: Literal["right", "answered"] = "right"
    """Episodes to train on: "right": those that searched and were right; "answered": all that ended with an answer,
    which teaches the protocol alone."""
    prompts: PositiveInt = 128
    """Questions to play, with and without the hint; all other settings are those of the `grpo` stage."""
    samples_per_prompt: PositiveInt | None = None
    """Episodes of each question with the hint; absent: as in the `grpo` stage."""
    rows_per_step: PositiveInt = 16
    """Episodes in one optimiser step."""

    def player(self, recipe: Recipe, index: int) -> tuple[GrpoRecipe, int, int]:
        follower = recipe.grpo_stage_after(index)
        return follower, self.prompts, self.samples_per_prompt or follower.samples_per_prompt

    def lengths(self, recipe: Recipe, index: int) -> Lengths:
        follower = recipe.grpo_stage_after(index)
        return follower.env.lengths(follower.context, follower.data)

    def problems(self, recipe: Recipe, index: int) -> Iterator[str]:
        """It needs a `grpo` stage that searches after it."""
        try:
            env = recipe.grpo_stage_after(index).env
        except ValueError as error:
            yield str(error)
            return
        if env.kind != "search":
            yield (
                f'stage.{index}.kind = "warm_start" needs env.kind = "search" in the grpo stage after it, found '
                f'"{env.kind}"'
            )


def cited_answer(episode: Episode, dialect: Dialect) -> float:
    """1 if the answer is right by strict exact match, and what it quotes from a passage contains it."""
    answer, outcome = given_answer(episode, dialect)
    if answer is None or outcome != "correct":
        return 0.0
    return float(cited_passage_holds(answer, episode.trajectory, dialect))


class CitedAnswerRecipe(EpisodeRewardRecipe):
    """1 for a golden answer that quotes words from a passage, as far as the policy was shown it, which contain the
    answer. For dialects whose answers quote, such as "reading"."""

    figures: ClassVar[tuple[StepFigure, ...]] = (
        StepFigure(
            "cited_answer",
            "The answer is a golden one, and what it quotes from a passage contains it.",
            "Right and cited",
            "share of episodes",
            top=1.0,
        ),
    )
    compares_answers: ClassVar[bool] = True
    kind: Literal["cited_answer"]
    measure = staticmethod(cited_answer)

    def misfit(self, env: EnvFields) -> str | None:
        """Also why no answer cites."""
        if (other := super().misfit(env)) is not None:
            return other
        name, citing = getattr(env, "dialect", ""), [one.name for one in DIALECTS.values() if one.cites]
        if name in citing or (name and name not in DIALECTS):  # one that does not exist is reported where it is named
            return None
        kind, dialects = getattr(env, "kind", ""), '" or "'.join(citing)
        where, also = (f'env.dialect = "{name}"', "") if name else (f'env.kind = "{kind}"', 'env.kind = "search" and ')
        return f'needs answers that quote a passage, which {where} has not; set {also}env.dialect = "{dialects}"'


class SearchGainRecipe(CreditFields):
    """Credit for the tokens of a query, in right episodes: by the log-probability of the words that the search found,
    wherever the policy wrote them later, with the search's results less without them."""

    credited: ClassVar[tuple[str, str]] = "search", "searches"
    kind: Literal["search_gain"]

    def require_dialect(self, dialect: Dialect) -> None:
        from sleuth.search.search_gain import require_text_dialect

        require_text_dialect(dialect)

    def hooks(self, inputs: Any) -> list[Any]:
        from sleuth.search.search_gain import SearchCredit

        return [SearchCredit(self, inputs)]
