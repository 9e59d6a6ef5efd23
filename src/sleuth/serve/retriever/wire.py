"""Request and answer bodies of the three HTTP retriever APIs that trainers use. Unknown fields are ignored."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    StrictBool,
    Tag,
    TypeAdapter,
    ValidationError,
)
from starlette.exceptions import HTTPException

from sleuth.host.escapes import replace_surrogates
from sleuth.retrieval.corpus import contents_of
from sleuth.serve.http.refused import as_integer, problem_line
from sleuth.types import Passage

TOP_K = 3  # default of `/retrieve`
TOP_N = 10  # default of `/batch_search`
MAX_QUERIES = 4096  # per request; a trainer of 512 prompts with 5 samples each sends 2,560
MAX_PASSAGES = 100  # per query
MAX_QUERY_CHARACTERS = 8000  # 500 tokens, where published runs cut a turn, are about 2,500

Query = Annotated[str, Field(max_length=MAX_QUERY_CHARACTERS, strict=True), BeforeValidator(replace_surrogates)]
QueryList = Annotated[list[Query], Field(max_length=MAX_QUERIES, strict=True)]
Count = Annotated[int, Field(ge=1, le=MAX_PASSAGES, strict=True), BeforeValidator(as_integer)]


class _RetrieveBody(BaseModel):
    # A body with both fields is ambiguous and refused.
    model_config = ConfigDict(json_schema_extra={"not": {"required": ["query", "queries"]}})

    topk: Count | None = None
    return_scores: StrictBool = False


class Queries(_RetrieveBody):
    """Search-R1's and slime's body of `/retrieve`."""

    queries: QueryList


class OneQuery(_RetrieveBody):
    """SkyRL's body of `/retrieve`."""

    query: Query


class BatchSearch(BaseModel):
    """ReSearch's and FlashRAG's body of `/batch_search`."""

    query: QueryList
    top_n: Count = TOP_N
    return_score: StrictBool = False


def _kind_of_query(body: Any) -> str | None:
    """The tag of a body's shape in `/retrieve`; None if it has the fields of both."""
    if isinstance(body, dict) and "query" in body:
        return "single" if "queries" not in body else None
    return "batch"


RETRIEVE_BODY: TypeAdapter[Queries | OneQuery] = TypeAdapter(
    Annotated[Annotated[Queries, Tag("batch")] | Annotated[OneQuery, Tag("single")], Discriminator(_kind_of_query)]
)
BATCH_SEARCH_BODY = TypeAdapter(BatchSearch)

Body = TypeVar("Body")


def read_body(shape: TypeAdapter[Body], body: bytes) -> Body:
    """The parsed body. Raises HTTPException 422 if it is not of this shape."""
    try:
        try:
            return shape.validate_json(body)
        except ValidationError as error:
            if error.errors()[0]["type"] != "json_invalid":
                raise
            return shape.validate_python(json.loads(body))  # slower, but accepts unpaired surrogates
    except ValidationError as error:
        raise HTTPException(422, _first_problem(error)) from None
    except (ValueError, RecursionError) as error:
        raise HTTPException(422, " ".join(f"body: not JSON ({error})".split())[:300]) from None


def _first_problem(error: ValidationError) -> str:
    """`queries.3: Input should be a valid string`."""
    first = error.errors(include_input=False, include_url=False)[0]
    if first["type"] == "union_tag_not_found":
        return "give `queries` (a list) or `query` (one), not both"
    return problem_line(first, unnamed=("batch", "single"))


class Document(BaseModel):
    """A passage in the format of the corpora: `contents` is the title in quotes, a line break and the text."""

    id: str
    contents: str


class ScoredDocument(BaseModel):
    """A passage and its score."""

    document: Document
    score: float


class Results(BaseModel):
    """Each query's passages, best first: with scores if `return_scores` was true, else bare documents."""

    result: list[list[ScoredDocument]] | list[list[Document]]


BatchSearchResults = list[list[Document]] | list[list[list[Document]] | list[list[float]]]
"""The answer of `/batch_search`: each query's documents or, with `return_score`, the pair of these and their scores."""


class Problem(BaseModel):
    """An error, in one line."""

    detail: str


class Health(BaseModel):
    """`status` is "opening", "ready" or "failed"; `progress` goes from 0 to 1. `index` is the index's card."""

    status: str
    progress: float
    index: dict[str, Any] | None = None
    detail: str = ""


def documents(passages: Sequence[Passage]) -> list[dict[str, str]]:
    """The passages as bare documents."""
    return [{"id": passage.id, "contents": contents_of(passage)} for passage in passages]


def scored_documents(passages: Sequence[Passage]) -> list[dict[str, object]]:
    """The passages as documents with scores."""
    bare = documents(passages)
    return [{"document": document, "score": passage.score} for document, passage in zip(bare, passages, strict=True)]
