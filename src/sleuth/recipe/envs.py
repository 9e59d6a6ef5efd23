"""`[stage.env]`: the environment that the policy acts in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Discriminator, Field, NonNegativeInt, PositiveFloat, PositiveInt, Tag

from sleuth.host.model_path import model_name
from sleuth.recipe.strict import TABLE, TEXT, FilePath, FunctionName, KindTable, OneOf, Row, StrictModel, combination
from sleuth.types import UNKNOWN_RETRIEVER, RetrieverIdentity, SleuthError

Role = Literal["raw", "user", "system"]
EpisodeKind = Literal["agent", "refiner", "thought"]
"""What the policy is in an environment: an agent that is asked a question, one that rewrites the evidence that it is
given, or one that thinks in the middle of a text."""


class EnvFields(KindTable):
    """What differs between environments; the defaults are those of an agent."""

    plays: ClassVar[EpisodeKind] = "agent"
    """Kind of its episodes, which decides the rewards and the data that fit it."""
    turn_key: ClassVar[str] = "turn_tokens"
    """The key that limits what the policy writes in one turn."""

    def without_retriever(self) -> Self:
        """The environment for a machine without the index or the servers that it searches."""
        return self

    @property
    def required_identity(self) -> RetrieverIdentity | None:
        """What its retriever has to be; None if any will do."""
        return None

    def require_retriever(self, identity: RetrieverIdentity) -> None:
        """Raises SleuthError unless the retriever is one that the recipe requires."""

    def functions(self) -> tuple[str, ...]:
        """The user's functions that it calls, `MODULE:NAME`."""
        return ()

    def tool_servers(self) -> tuple[ToolTableRecipe, ...]:
        """The servers whose tools it offers."""
        return ()


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


class SearchEnvRecipe(EnvFields):
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
    """Passages for each search. Absent, here and for the next six keys: the dialect's default."""
    searches: NonNegativeInt | None = None
    """Maximum number of searches in an episode; after the last, the policy gets one more turn."""
    turns: PositiveInt | None = None
    """Maximum number of turns in an episode, whatever their action; the last may not search."""
    turn_tokens: PositiveInt | None = None
    """Maximum number of tokens that the policy writes in one turn."""
    response_tokens: PositiveInt | None = None
    """Maximum number of tokens after the prompt, results included."""
    passage_tokens: PositiveInt | None = None
    """Passages are truncated to this number of tokens each."""
    results_tokens: PositiveInt | None = None
    """All results of a search together are truncated to this number of tokens, instead of each passage."""
    hint: str | None = None
    """Reply to an invalid action: name of a prompt, or path of a text file; absent: the dialect's default."""
    forced_search: bool = False
    """Whether the environment opens the first search itself, so that the policy starts inside a query."""
    closed_book: bool = False
    """Control arm of an evaluation: the environment opens the answer itself, and there is no search. Needs no index."""

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
        if self.template_flags and self.prompt_role == "raw":
            yield 'template_flags need a chat template: set prompt_role = "user" or "system"'


class RefineEnvRecipe(EnvFields):
    """The reasoning and the tool output of a search agent, to be rewritten as one answer with citations."""

    named: ClassVar[Mapping[str, str]] = {"prompt": "prompt"}
    plays: ClassVar[EpisodeKind] = "refiner"
    kind: Literal["refine"]
    mode: Literal["answer_only", "thinking"] = "answer_only"
    """What the policy writes: the answer alone, or a thought and the answer."""
    prompt: str = "refine"
    """Name of a prompt that `sleuth prompts` lists, or the path of a text file. Its {question} is replaced by question,
    reasoning and tool output, or, with data.ask_with = "prompt", by the row's own message (prompt = "bare" consists of
    {question} alone)."""
    prompt_role: Role = "raw"
    """How the prompt is rendered: as plain text ("raw"), or as a message of the model's chat template."""
    template_flags: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """Extra variables for the chat template, such as `{ enable_thinking = false }`."""
    turn_tokens: PositiveInt | None = None
    """Maximum number of tokens of the response; absent: 1024."""

    @combination
    def _flags_have_a_template(self) -> Iterator[str]:
        if self.template_flags and self.prompt_role == "raw":
            yield 'template_flags need a chat template: set prompt_role = "user" or "system"'


class ThoughtEnvRecipe(EnvFields):
    """A text up to some point and an opening tag. The policy writes a thought there and, for rewards that judge it, the
    suffix after the thought."""

    plays: ClassVar[EpisodeKind] = "thought"
    turn_key: ClassVar[str] = "thought_tokens"
    kind: Literal["thought"]
    thought_tokens: PositiveInt = 48
    """Maximum number of tokens of a thought."""
    least_thought_tokens: PositiveInt | None = None
    """The maximum at the last step of a `grpo` stage: it shrinks exponentially from `thought_tokens` (RMT,
    arXiv:2509.24375). Absent: it stays."""
    close: Literal["inserted", "earned"] = "inserted"
    """What happens to a thought that fills its budget. "inserted": the environment closes it; "earned": it stays open
    and scores 0, or the lowest gain of its group if that is below 0."""
    suffix_tokens: NonNegativeInt = 0
    """Tokens of the suffix that the policy writes after the thought; 0: none, as for kind = "gain", which scores the
    true suffix."""
    stops: Row[str] = ()
    """Texts that end the written suffix early, such as "."; empty: only its length does."""

    @combination
    def _stops_have_effect(self) -> Iterator[str]:
        if self.stops and not self.suffix_tokens:
            yield "stops have no effect with suffix_tokens = 0, where no suffix is written; set suffix_tokens"

    @combination
    def _budget_shrinks(self) -> Iterator[str]:
        if self.least_thought_tokens is not None and self.least_thought_tokens >= self.thought_tokens:
            yield (
                f"least_thought_tokens = {self.least_thought_tokens} should be less than thought_tokens = "
                f"{self.thought_tokens}, from which the budget shrinks"
            )


class FunctionEnvRecipe(EnvFields):
    """An environment of your own: a class with the methods `open` and `reply` of `sleuth.types.Env`
    (docs/how-to/own_code.md)."""

    named: ClassVar[Mapping[str, str]] = {"function": "function", "files": "files", "dialect": "dialect"}
    kind: Literal["python"]
    function: FunctionName
    """The class, or a function that makes an environment, `MODULE:NAME`; it is called with the `task` of an episode.
    The module is looked for beside the recipe, in the current folder and among the installed packages."""
    parameters: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of the class, by name: `[stage.env.parameters]`."""
    files: Row[FilePath] = ()
    """Files that the class reads, hashed like code: a run does not continue when one has changed."""
    dialect: str = "sleuth"
    """The dialect whose tags rewards such as "answer" read; the environment itself may use any."""
    seconds: PositiveFloat = 60.0
    """Timeout of each of its methods in seconds; then the score of the episode is missing."""

    def functions(self) -> tuple[str, ...]:
        return (self.function,)


class ToolTableRecipe(StrictModel):
    """A function, or a server of tools that speaks the Model Context Protocol."""

    named: ClassVar[Mapping[str, str]] = {"mcp": "server", "function": "function"}
    function: FunctionName | None = None
    """`MODULE:NAME`, as without a table."""
    mcp: str | None = None
    """The command that starts it and talks over its stdin and stdout, such as "python -m my_server", with the Python
    that runs Sleuth; or its URL."""
    folder: FilePath | None = None
    """Folder in which the command runs; absent: the current folder."""
    only: Row[str] = ()
    """Names of the tools of a server that the policy may call; empty: all."""
    shared: bool = False
    """Whether a call has the same result in every episode, so that in a training step those of a question that make the
    same call make it once, and all episodes use one session of a server. Else each call is made, and each episode has
    its own session of a server at a URL; the one process of a command serves all."""

    @combination
    def _tool_is_named(self) -> Iterator[str]:
        if self.mcp is not None and not self.mcp.strip():
            yield "mcp is empty: name a command or a URL"
        elif (self.mcp is None) == (self.function is None):
            yield "mcp or function: name one of them"
        if self.folder is not None and (self.mcp or "").startswith(("http://", "https://")):
            yield "folder has no effect for a URL; remove it"
        elif self.function is not None and (self.folder is not None or self.only):
            yield "folder and only are for a server; remove them"


def _tag_of(tool: Any) -> str:
    return TABLE if isinstance(tool, Mapping | StrictModel) else TEXT


ToolRecipe = Annotated[
    Annotated[FunctionName, Tag(TEXT)] | Annotated[ToolTableRecipe, Tag(TABLE)], Discriminator(_tag_of)
]
"""A function, `MODULE:NAME`, or a table of one or of a server of tools."""


class ToolEnvRecipe(EnvFields):
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

    def functions(self) -> tuple[str, ...]:
        return tuple(name for tool in self.tools if (name := tool if isinstance(tool, str) else tool.function))

    def tool_servers(self) -> tuple[ToolTableRecipe, ...]:
        return tuple(tool for tool in self.tools if not isinstance(tool, str) and tool.mcp is not None)

    @combination
    def _flags_have_a_template(self) -> Iterator[str]:
        if self.template_flags and self.prompt_role == "raw":
            yield 'template_flags need a chat template: set prompt_role = "user" or "system"'

    @combination
    def _tools_differ(self) -> Iterator[str]:
        names = [tool.rpartition(":")[2].rpartition(".")[2] for tool in self.functions()]
        names += ["search"] if self.index is not None else []
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            yield f"tools has {twice} twice; the policy could call only one of them"


QuestionEnvTable = Annotated[EnvFields, OneOf("environments", lambda env: env.plays != "thought")]
"""`[stage.env]` of a stage that asks questions."""
EnvTable = Annotated[EnvFields, OneOf("environments")]
"""`[stage.env]` of a stage that trains."""
RenderedEnvRecipe = SearchEnvRecipe | RefineEnvRecipe | ToolEnvRecipe
"""An environment whose prompt may be a chat message."""
