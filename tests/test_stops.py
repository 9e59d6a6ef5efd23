from __future__ import annotations

from sleuth.render import StopScanner


def feed(stops, *pieces):
    scanner = StopScanner(stops)
    return [scanner.feed(piece) for piece in pieces]


def test_a_stop_string_is_found_across_pieces_and_the_text_ends_with_it():
    assert feed(["</search>"], "Ada </se", "ar", "ch> and") == [("Ada </se", False), ("ar", False), ("ch>", True)]


def test_the_stop_string_that_is_complete_first_wins():
    assert feed(["abcd", "bc"], "abcd") == [("abc", True)]


def test_a_stop_string_that_restarts_inside_itself_is_found():
    assert feed(["aab"], "aa", "ab")[-1] == ("ab", True)
