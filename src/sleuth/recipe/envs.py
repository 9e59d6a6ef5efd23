"""`[stage.env]`: the environment that the policy acts in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from sleuth.recipe.strict import FilePath, Row, StrictModel, combination

Role = Literal["raw", "user", "system"]


class SearchEnvRecipe(StrictModel):
    """A question, a search tool and a budget of searches."""

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
    search_seconds: PositiveFloat = 30.0
    """Timeout of a server in seconds; then another one is asked."""
    retriever: Literal["index", "remote", "empty", "shuffled"] = "index"
    """Source of passages: the index, the `urls` ("remote"), or a control arm ("empty" returns nothing, "shuffled"
    returns the passages of another query)."""
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

    @combination
    def _can_search(self) -> Iterator[str]:
        if self.retriever == "remote" and not self.urls:
            yield 'urls is missing: retriever = "remote" needs servers, such as urls = ["http://127.0.0.1:8000"]'
        elif self.urls and self.index is not None:
            yield "urls and index are both given; remove one of them"
        elif self.urls and self.retriever == "index":
            yield 'urls needs retriever = "remote" (or a control arm)'
        elif self.index is None and not self.urls and self.retriever != "empty":
            yield (
                f'index is missing: retriever = "{self.retriever}" reads one; name a folder written by `sleuth index`'
            )
        for url in self.urls:
            if not url.startswith(("http://", "https://")):
                yield f"urls holds {url!r}: expected http://HOST:PORT"
        if self.forced_search and self.searches == 0:
            yield "forced_search = true needs searches of 1 or more"
        if self.passage_tokens is not None and self.results_tokens is not None:
            yield "results_tokens and passage_tokens are both given; remove one of them"
        if self.template_flags and self.prompt_role == "raw":
            yield 'template_flags need a chat template: set prompt_role = "user" or "system"'


class RefineEnvRecipe(StrictModel):
    """The reasoning and the tool output of a search agent, to be rewritten as one answer with citations."""

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


class ThoughtEnvRecipe(StrictModel):
    """A text up to some point and an opening tag. The policy writes a thought there and, for rewards that judge it, the
    suffix after the thought."""

    kind: Literal["thought"]
    thought_tokens: PositiveInt = 48
    """Maximum number of tokens of a thought."""
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


EnvRecipe = Annotated[SearchEnvRecipe | RefineEnvRecipe, Field(discriminator="kind")]
"""`[stage.env]` of a stage that asks questions."""
TrainedEnvRecipe = Annotated[SearchEnvRecipe | RefineEnvRecipe | ThoughtEnvRecipe, Field(discriminator="kind")]
"""`[stage.env]` of a stage that trains."""
