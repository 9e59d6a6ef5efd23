from __future__ import annotations

from sleuth.engines.slots import Place, SlotTable


def table_with(*sequences: list[int], context: int = 64) -> SlotTable:
    """A table of four slots that hold `sequences`, all read and idle."""
    table = SlotTable(4, context)
    for slot, tokens in enumerate(sequences):
        table.occupy(slot, tokens, read=len(tokens))
        table.release(slot)
    return table


def placed(table: SlotTable, tokens: list[int]) -> Place:
    place = table.place(tokens)
    assert place is not None
    return place


def test_a_request_that_continues_all_of_a_slot_takes_it_in_place():
    place = placed(table_with([1, 2, 3], [1, 2, 3, 4, 5]), [1, 2, 3, 4, 5, 6, 7])
    assert (place.slot, place.source, place.reused) == (1, 1, 5)


def test_what_another_turn_may_need_is_copied_and_not_overwritten():
    place = placed(table_with([1, 2, 3, 4, 5]), [1, 2, 3, 9])
    assert (place.source, place.reused) == (0, 3)
    assert place.slot != 0


def test_the_slot_that_was_used_longest_ago_is_given_up_first():
    table = table_with([1, 1], [2, 2], [3, 3], [4, 4])
    table.occupy(0, [1, 1, 1], read=2)
    table.release(0)
    assert placed(table, [9, 9, 9]).slot == 1


def test_the_last_token_of_a_prompt_is_always_read():
    assert placed(table_with([1, 2, 3]), [1, 2, 3]).reused == 2


def test_a_sibling_waits_for_a_prompt_that_is_about_to_be_read():
    table = SlotTable(4, 64)
    prompt = list(range(20))
    table.occupy(0, prompt, read=0)
    assert table.place(prompt) is None
    assert placed(table, [*prompt[:5], 40, 41]).reused == 0  # five tokens are not worth a wait
    table.read[0] = 20
    assert placed(table, prompt).reused == 19


def test_nothing_is_placed_where_every_slot_is_busy():
    table = SlotTable(1, 64)
    table.occupy(0, [1], read=1)
    assert table.place([2]) is None


def test_what_was_forgotten_is_not_reused():
    table = table_with([1, 2, 3])
    table.forget()
    assert placed(table, [1, 2, 3, 4]).reused == 0


def test_what_was_forgotten_does_not_decide_where_the_next_request_goes():
    table = table_with([1, 2], [3, 4])
    table.forget()
    assert placed(table, [7, 8]).slot == placed(SlotTable(4, 64), [7, 8]).slot
