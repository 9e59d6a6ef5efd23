"""What the policy talks to: `[stage.env]`."""

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
    """A prompt that `sleuth prompts` lists, by its name, such as "plain", or the path of a text file."""
    prompt_role: Role = "raw"
    """Where the prompt stands: "raw" is the text itself, as it is; "user" and "system" are messages of the model's chat
    template. A system's is followed by the question as the user's."""
    template_flags: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """What the chat template is told besides, such as `{ enable_thinking = false }`."""
    index: FilePath | None = None
    """The folder that `sleuth index` made."""
    urls: Row[str] = ()
    """Servers of one and the same index, such as `sleuth retriever` starts, instead of an index of this machine."""
    search_seconds: PositiveFloat = 30.0
    """How long one of `urls` may take to answer before another is asked."""
    retriever: Literal["index", "remote", "empty", "shuffled"] = "index"
    """What answers: the index, the `urls` ("remote"), or a control arm ("empty" finds nothing, "shuffled" gives
    another query's passages)."""
    top_k: PositiveInt | None = None
    """Passages shown for a search. This and the next six: absent takes the dialect's own budget."""
    searches: NonNegativeInt | None = None
    """Searches allowed in an episode; after the last, one more turn is granted."""
    turns: PositiveInt | None = None
    """Turns allowed in an episode, whatever is done in them; the last may not search."""
    turn_tokens: PositiveInt | None = None
    """Tokens the policy may write in one turn."""
    response_tokens: PositiveInt | None = None
    """Tokens that may follow the prompt, results included."""
    passage_tokens: PositiveInt | None = None
    """Tokens of one passage that are shown; the rest of it is cut."""
    results_tokens: PositiveInt | None = None
    """Tokens of all results of a search together that are shown, instead of a limit of each."""
    hint: str | None = None
    """What answers a bad action: a prompt by its name, or a text file; absent takes the dialect's own."""
    forced_search: bool = False
    """The environment opens the first search itself, so that the policy begins inside a query."""

    @combination
    def _can_search(self) -> Iterator[str]:
        if self.retriever == "remote" and not self.urls:
            yield ('urls is missing: retriever = "remote" asks them; such as urls = ["http://127.0.0.1:8000"]')
        elif self.urls and self.index is not None:
            yield "urls and index are both given: passages come from one of them"
        elif self.urls and self.retriever == "index":
            yield 'urls needs retriever = "remote" (or a control arm)'
        elif self.index is None and not self.urls and self.retriever != "empty":
            yield (
                f"index is missing: retriever = {self.retriever!r} reads one; name the folder that `sleuth index` made"
            )
        for url in self.urls:
            if not url.startswith(("http://", "https://")):
                yield f"urls holds {url!r}: expected http://HOST:PORT"
        if self.forced_search and self.searches == 0:
            yield "forced_search = true needs searches of 1 or more"
        if self.passage_tokens is not None and self.results_tokens is not None:
            yield ("results_tokens beside passage_tokens: results are cut together or each by itself, not both")
        if self.template_flags and self.prompt_role == "raw":
            yield 'template_flags are for a chat template: set prompt_role = "user" or "system"'


class RefineEnvRecipe(StrictModel):
    """The reasoning of a search agent and what its tool returned, to be told again in one answer whose claims cite."""

    kind: Literal["refine"]
    mode: Literal["answer_only", "thinking"] = "answer_only"
    """What is written: the answer and nothing else, or a thought before it."""
    prompt: str = "refine"
    """A prompt that `sleuth prompts` lists, by its name, or the path of a text file. At its {question} stand question,
    reasoning and tool output, or, with data.ask_with = "prompt", the row's own message (prompt = "bare" is nothing
    else)."""
    prompt_role: Role = "raw"
    """Where the prompt stands: "raw" is the text itself, as it is; "user" and "system" are messages of the model's chat
    template."""
    template_flags: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """What the chat template is told besides, such as `{ enable_thinking = false }`."""
    turn_tokens: PositiveInt | None = None
    """Tokens that may be written; absent: 1024."""

    @combination
    def _flags_have_a_template(self) -> Iterator[str]:
        if self.template_flags and self.prompt_role == "raw":
            yield 'template_flags are for a chat template: set prompt_role = "user" or "system"'


class ThoughtEnvRecipe(StrictModel):
    """A text up to a place, and an opening tag: a thought is written there, and, where it is to be judged by that, how
    the text goes on."""

    kind: Literal["thought"]
    thought_tokens: PositiveInt = 48
    """Tokens that may be thought."""
    close: Literal["inserted", "earned"] = "inserted"
    """Who closes a thought that fills its budget: the environment does; or nobody, and it is worth nothing."""
    suffix_tokens: NonNegativeInt = 0
    """Tokens that are written behind the thought; 0 where the true ones say what it was worth."""
    stops: Row[str] = ()
    """What is written behind the thought ends behind one of these too, such as "."; absent: only at its length."""

    @combination
    def _stops_end_something(self) -> Iterator[str]:
        if self.stops and not self.suffix_tokens:
            yield "stops end what is written behind a thought, and suffix_tokens = 0 has nothing written"


EnvRecipe = Annotated[SearchEnvRecipe | RefineEnvRecipe, Field(discriminator="kind")]
"""`[stage.env]` where questions are answered, by its kind."""
TrainedEnvRecipe = Annotated[SearchEnvRecipe | RefineEnvRecipe | ThoughtEnvRecipe, Field(discriminator="kind")]
"""`[stage.env]` of a stage that trains, by its kind."""
