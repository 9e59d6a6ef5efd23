"""Error answers in the format of OpenAI's API, and the validation of input that leads to them."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

Shape = TypeVar("Shape", bound=BaseModel)

ERROR_TYPES = {429: "rate_limit_error"}
"""OpenAI's error types by status, other than server_error (5xx) and invalid_request_error."""

TOO_LONG = "context_length_exceeded"
"""OpenAI's code for a prompt that leaves no room to answer."""


SOON = {"retry-after": "1"}


class Refused(HTTPException):
    """A refused request: an HTTP status and one line. `param` is the offending field, `code` OpenAI's error code."""

    def __init__(
        self,
        status: int,
        line: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, line, headers)
        self.param = param
        self.code = code

    def __str__(self) -> str:
        return self.detail

    def as_json(self) -> dict[str, Any]:
        """`{"error": {"message", "type", "param", "code"}}`."""
        status = self.status_code
        kind = "server_error" if status >= 500 else ERROR_TYPES.get(status, "invalid_request_error")
        return {"error": {"message": self.detail, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        return JSONResponse(self.as_json(), self.status_code, headers=self.headers)


async def refused_answer(request: Request, error: Exception) -> Response:
    """The answer to a request that ended with an HTTPException."""
    assert isinstance(error, HTTPException)
    if not isinstance(error, Refused):
        error = Refused(error.status_code, str(error.detail), headers=error.headers)
    return error.response()


async def read_json(request: Request, shape: type[Shape]) -> Shape:
    """The body of a request. Raises `Refused` unless it is JSON of this shape, and its content type says so: without
    CORS, pages of other sites can post only plain text here."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refused(415, "content-type: expected application/json")
    try:
        return shape.model_validate(await request.json())
    except ValidationError as error:
        problem = error.errors(include_input=False, include_url=False)[0]
        param = str(problem["loc"][0]) if problem["loc"] else None
        raise Refused(400, problem_line(problem, unnamed=()), param=param) from None
    except (ValueError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
        raise Refused(400, f"body: not JSON ({reason})") from None


def as_integer(value: object) -> object:
    """`value` as an int if it is a whole float: JSON has one kind of number."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def problem_line(problem: Mapping[str, Any], unnamed: Collection[str | int]) -> str:
    """One of pydantic's errors as a line, such as `queries.3: Input should be a valid string`. `unnamed` are parts of
    its location that clients do not know, such as the tags of a union."""
    where = ".".join(str(part) for part in problem["loc"] if part not in unnamed)
    return f"{where}: {problem['msg']}" if where else "body: expected a JSON object"
