from __future__ import annotations

from sleuth.engines.local.slots import PrefillChunk, SlotPlacement, SlotTable


def fill(table: SlotTable, slot: int, tokens: list[int]) -> None:
    """A request that has read `tokens` in `slot`, and ended."""
    table.occupy(SlotPlacement(slot=slot, source=slot, reused=0), tokens)
    table.cached[slot] = len(tokens)
    table.release(slot)


def table_with(*sequences: list[int], context: int = 64) -> SlotTable:
    """A table of four slots that hold `sequences`, all read and idle."""
    table = SlotTable(4, context)
    for slot, tokens in enumerate(sequences):
        fill(table, slot, tokens)
    return table


def placed(table: SlotTable, tokens: list[int]) -> SlotPlacement:
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
    fill(table, 0, [1, 1, 1])
    assert placed(table, [9, 9, 9]).slot == 1


def test_the_last_token_of_a_prompt_is_always_read():
    assert placed(table_with([1, 2, 3]), [1, 2, 3]).reused == 2


def test_a_sibling_waits_for_a_prompt_that_is_about_to_be_read():
    table, prompt = SlotTable(4, 64), list(range(20))
    assert table.occupy(SlotPlacement(slot=0, source=0, reused=0), prompt)
    sibling = placed(table, prompt)
    assert (sibling.source, sibling.reused) == (0, 19)
    assert not table.occupy(sibling, prompt), "what it reuses is not there yet"
    assert table.schedule(100)[1] == [PrefillChunk(slot=0, start=0, stop=20)], "who waits reads nothing"
    assert list(table.take_ready()) == []
    table.cached[0] = 20
    assert list(table.take_ready()) == [sibling]
    assert table.schedule(100)[0].tolist() == [sibling.slot], "one token is left to read"


def test_a_few_tokens_are_not_worth_a_wait():
    table = SlotTable(4, 64)
    table.occupy(SlotPlacement(slot=0, source=0, reused=0), list(range(20)))
    assert placed(table, [0, 1, 2, 3, 4, 40, 41]).reused == 0


def test_a_waiting_request_reuses_what_was_cached_when_its_source_ends():
    table, prompt = SlotTable(4, 64), list(range(20))
    table.occupy(SlotPlacement(slot=0, source=0, reused=0), prompt)
    sibling = placed(table, prompt)
    table.occupy(sibling, prompt)
    table.cached[0] = 7
    table.release(0)
    [place] = table.take_ready()
    assert (place.slot, place.reused) == (sibling.slot, 7)


def test_nothing_is_placed_while_every_slot_is_busy():
    table = SlotTable(1, 64)
    table.occupy(SlotPlacement(slot=0, source=0, reused=0), [1])
    assert table.place([2]) is None


def test_cleared_slots_do_not_affect_later_placements():
    table = table_with([1, 2, 3], [3, 4])
    table.clear()
    assert placed(table, [1, 2, 3, 4]) == placed(SlotTable(4, 64), [1, 2, 3, 4])
