"""A native tool call: what it asks for, and what is none."""

from __future__ import annotations

import pytest

from sleuth.dialect import DIALECTS
from sleuth.episodes.calls import queries_of

ONE, MANY = DIALECTS["chat"].tool, DIALECTS["verl"].tool


def test_without_a_tool_the_text_is_the_query_an_empty_one_too() -> None:
    assert queries_of("Ada", None) == ("Ada",)
    assert queries_of("", None) == ("",)


@pytest.mark.parametrize(
    ("text", "queries"),
    [
        ('{"name": "search", "arguments": {"query": " Ada "}}', ("Ada",)),
        ('\n{"arguments":{"query":"Ada","k":3},"name":"search"}\n', ("Ada",)),
        ('{"name": "search", "arguments": "{\\"query\\": \\"Ada\\"}"}', ("Ada",)),
        ('{"name": "search", "arguments": {"query": ["Ada"]}}', ()),
        ('{"name": "search", "arguments": {"query": 3}}', ()),
        ('{"name": "search", "arguments": {"query": "  "}}', ()),
        ('{"name": "search", "arguments": {"q": "Ada"}}', ()),
        ('{"name": "search", "arguments": "Ada"}', ()),
        ('{"name": "delete", "arguments": {"query": "Ada"}}', ()),
        ('{"name": "search"}', ()),
        ('["search", "Ada"]', ()),
        ("search(Ada)", ()),
        ("", ()),
        ('{"name": "search", "arguments": {"query": "Ada"}', ()),
        ("[" * 20_000, ()),
        ('{"a":' * 20_000, ()),
        ("9" * 20_000, ()),
    ],
)
def test_a_call_of_one_query_is_read_or_is_none(text: str, queries: tuple[str, ...]) -> None:
    assert queries_of(text, ONE) == queries


@pytest.mark.parametrize(
    ("value", "queries"),
    [
        ('["Ada", "Bo "]', ("Ada", "Bo")),
        ('["Ada"]', ("Ada",)),
        ('"Ada"', ()),
        ("[]", ()),
        ('["Ada", ""]', ()),
        ('["Ada", null]', ()),
        ('{"0": "Ada"}', ()),
    ],
)
def test_a_call_of_several_queries_is_read_whole_or_not_at_all(value: str, queries: tuple[str, ...]) -> None:
    assert queries_of(f'{{"name": "search", "arguments": {{"query_list": {value}}}}}', MANY) == queries
