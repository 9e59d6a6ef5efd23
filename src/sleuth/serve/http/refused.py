"""What is answered instead of an answer, in the shape of OpenAI's API."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from starlette.responses import JSONResponse, Response

TYPES = {429: "rate_limit_error"}
"""OpenAI's word for a problem where its status is not enough."""

TOO_LONG = "context_length_exceeded"
"""Its code for a prompt that leaves no room to answer."""


class Refused(Exception):  # noqa: N818
    """A request that gets no answer: an HTTP status and one line. `param` is the field that it is about, `code` one of
    OpenAI's words for it."""

    def __init__(
        self,
        status: int,
        line: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(line)
        self.status = status
        self.param = param
        self.code = code
        self.headers = headers

    def as_json(self) -> dict[str, Any]:
        """`{"error": {"message", "type", "param", "code"}}`."""
        kind = "server_error" if self.status >= 500 else TYPES.get(self.status, "invalid_request_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        return JSONResponse(self.as_json(), self.status, headers=self.headers)


def refusal(status: int, line: str, headers: Mapping[str, str] | None = None) -> Response:
    """The answer to a request that was turned away by its status alone."""
    return Refused(status, line, headers=headers).response()


def sound(value: object) -> object:
    """JSON may spell half of a surrogate pair; what people and policies wrote is read all the same."""
    return value.encode(errors="replace").decode() if isinstance(value, str) else value


def whole(value: object) -> object:
    """JSON has one kind of number: 3.0 is 3."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def problem_line(problem: Mapping[str, Any], unnamed: Collection[str | int]) -> str:
    """`queries.3: Input should be a valid string`, of one of pydantic's errors. Where a body has several shapes, their
    names are `unnamed`: a client does not know them."""
    where = ".".join(str(part) for part in problem["loc"] if part not in unnamed)
    return f"{where}: {problem['msg']}" if where else "body: expected a JSON object"
