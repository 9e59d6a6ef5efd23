"""The three HTTP dialects of retrievers that trainers speak, as records. What they do not name is ignored."""

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

from sleuth.retrieval.corpus import contents_of
from sleuth.serve.http.refused import problem_line, sound, whole
from sleuth.types import Passage

TOP_K = 3  # where a request of `/retrieve` names none
TOP_N = 10  # where one of `/batch_search` names none
MOST_QUERIES = 4096  # in a request; a trainer of 512 prompts with 5 samples each sends 2,560
MOST_PASSAGES = 100  # for a query
LONGEST_QUERY = 8000  # characters; 500 tokens, where published runs cut a turn, are about 2,500

Query = Annotated[str, Field(max_length=LONGEST_QUERY, strict=True), BeforeValidator(sound)]
QueryList = Annotated[list[Query], Field(max_length=MOST_QUERIES, strict=True)]
Count = Annotated[int, Field(ge=1, le=MOST_PASSAGES, strict=True), BeforeValidator(whole)]


class _RetrieveBody(BaseModel):
    # A body that has both would be of both shapes, and is refused.
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
    """Which of the two shapes of `/retrieve` a body means to be; None if it could be both."""
    if isinstance(body, dict) and "query" in body:
        return "single" if "queries" not in body else None
    return "batch"


RETRIEVE_BODY: TypeAdapter[Queries | OneQuery] = TypeAdapter(
    Annotated[Annotated[Queries, Tag("batch")] | Annotated[OneQuery, Tag("single")], Discriminator(_kind_of_query)]
)
BATCH_SEARCH_BODY = TypeAdapter(BatchSearch)

Body = TypeVar("Body")


class BodyError(Exception):
    """What is wrong with a body, in one line."""


def read_body(shape: TypeAdapter[Body], body: bytes) -> Body:
    """A body of this shape. Raises BodyError for any other."""
    try:
        try:
            return shape.validate_json(body)
        except ValidationError as error:
            if error.errors()[0]["type"] != "json_invalid":
                raise
            return shape.validate_python(json.loads(body))  # slower; reads half of a surrogate pair too
    except ValidationError as error:
        raise BodyError(_first_problem(error)) from None
    except (ValueError, RecursionError) as error:
        raise BodyError(" ".join(f"body: not JSON ({error})".split())[:300]) from None


def _first_problem(error: ValidationError) -> str:
    """`queries.3: Input should be a valid string`."""
    first = error.errors(include_input=False, include_url=False)[0]
    if first["type"] == "union_tag_not_found":
        return "give `queries` (a list) or `query` (one), not both"
    return problem_line(first, unnamed=("batch", "single"))


class Document(BaseModel):
    r"""A passage as the corpora keep it: `contents` is the title in quotes, a line break and the text."""

    id: str
    contents: str


class ScoredDocument(BaseModel):
    """A passage and how well it fits."""

    document: Document
    score: float


class Results(BaseModel):
    """For each query its passages, best first: with scores if `return_scores` was true, else bare documents."""

    result: list[list[ScoredDocument]] | list[list[Document]]


Ranked = list[list[Document]] | list[list[list[Document]] | list[list[float]]]
"""What `/batch_search` answers: documents for each query or, if scores are asked for, the pair of these and scores."""


class Problem(BaseModel):
    """What was wrong, in one line."""

    detail: str


class Health(BaseModel):
    """`status` is "opening" until the index can be searched; `progress` counts from 0 to 1. `index` is its card."""

    status: str
    progress: float
    index: dict[str, Any] | None = None
    detail: str = ""


def documents(passages: Sequence[Passage]) -> list[dict[str, str]]:
    """Passages as bare documents."""
    return [{"id": passage.id, "contents": contents_of(passage)} for passage in passages]


def scored_documents(passages: Sequence[Passage]) -> list[dict[str, object]]:
    """Passages as documents with scores."""
    bare = documents(passages)
    return [{"document": found, "score": passage.score} for found, passage in zip(bare, passages, strict=True)]
