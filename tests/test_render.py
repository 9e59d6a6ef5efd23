from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from sleuth.render import IncrementalDecoder, Renderer, check_writable, decode, encode, load_tokenizer
from sleuth.types import Piece, SleuthError
from sleuth.world.tokens import make_tokenizer

WORDS = "where was Ada Voss born? <search> Ada Voss </search> naïve café — 東京 🦊🦊 " * 20


def byte_level_tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=340, special_tokens=["<|end|>"], initial_alphabet=alphabet)
    tokenizer.train_from_iterator([WORDS], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>")


def space_dropping_tokenizer() -> PreTrainedTokenizerFast:
    vocab = {"<unk>": 0, "▁Ada": 1, "▁Voss": 2, "▁": 3, "?": 4}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")


TOKENIZER = byte_level_tokenizer()


# Any tokens at all (most are single bytes, so most make no character), and characters of several tokens between them.
RUNS = st.lists(
    st.one_of(
        st.integers(0, len(TOKENIZER) - 1).map(lambda token: [token]),
        st.text(max_size=4).map(lambda text: encode(TOKENIZER, text)),
    ),
    max_size=30,
).map(lambda parts: [token for part in parts for token in part])


@settings(max_examples=200, deadline=None)
@given(RUNS)
def test_pieces_of_any_run_of_tokens_are_the_text_of_the_whole_run(tokens):
    decoder = IncrementalDecoder(TOKENIZER)
    pieces = [decoder.push(token) for token in tokens]
    assert "".join(pieces) + decoder.flush() == TOKENIZER.decode(tokens)


def test_a_character_comes_whole_and_as_soon_as_its_last_byte():
    tokens = encode(TOKENIZER, "a🐙b")  # which the tokenizer has no token for
    decoder = IncrementalDecoder(TOKENIZER)
    *first, octopus, last = [decoder.push(token) for token in tokens]
    assert (first[0], set(first[1:]), octopus, last) == ("a", {""}, "🐙", "b")


def test_bytes_that_make_no_character_are_not_held_for_ever():
    continuation = encode(TOKENIZER, "🐙")[-1]
    decoder = IncrementalDecoder(TOKENIZER)
    shown = "".join(decoder.push(continuation) for _ in range(60))
    assert len(shown) >= 56


def test_a_run_that_continues_a_text_keeps_its_leading_space():
    tokenizer = space_dropping_tokenizer()
    decoder = IncrementalDecoder(tokenizer, context=[1])
    assert [decoder.push(2), decoder.push(4), decoder.push(1)] == [" Voss", "?", " Ada"]
    alone = IncrementalDecoder(tokenizer)
    assert [alone.push(2), alone.push(1)] == ["Voss", " Ada"]


def test_a_piece_within_its_budget_keeps_its_text():
    segment = Renderer(TOKENIZER).render(Piece(text=" Ada Voss?", author="template"))
    assert segment.text == " Ada Voss?" == decode(TOKENIZER, segment.tokens)
    assert (segment.author, segment.cut, segment.logprobs) == ("template", 0, None)


def test_text_over_the_budget_is_cut_counted_and_missing_from_the_text():
    whole = encode(TOKENIZER, "Ada Voss was born in Tarn")
    segment = Renderer(TOKENIZER).render(Piece(text="Ada Voss was born in Tarn", budget=5))
    assert segment.tokens == tuple(whole[:5])
    assert segment.cut == len(whole) - 5 > 0
    assert segment.text == TOKENIZER.decode(whole[:5])


def test_a_budget_of_nothing_leaves_nothing():
    segment = Renderer(TOKENIZER).render(Piece(text="Ada", budget=0))
    assert (segment.tokens, segment.text) == ((), "")
    assert segment.cut == len(encode(TOKENIZER, "Ada"))


def test_a_tag_that_the_tokenizer_cannot_write_is_named():
    check_writable(TOKENIZER, ["<search>", "</search>", "\n\n", "<|end|>"])
    with pytest.raises(SleuthError, match="<search>"):
        check_writable(space_dropping_tokenizer(), ["<search>"])


def test_a_tag_that_comes_back_changed_is_named():
    with pytest.raises(SleuthError, match="' Ada' back as 'Ada'"):
        check_writable(space_dropping_tokenizer(), [" Ada"])


def test_a_saved_tokenizer_is_loaded_and_encodes_alike(tmp_path):
    TOKENIZER.save_pretrained(tmp_path)
    assert encode(load_tokenizer(str(tmp_path)), WORDS) == encode(TOKENIZER, WORDS)


def test_a_folder_without_a_tokenizer_is_one_clear_line(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')
    with pytest.raises(SleuthError, match=r"no tokenizer there: tokenizer\.json") as raised:
        load_tokenizer(str(tmp_path))
    assert "\n" not in str(raised.value)


def test_a_broken_tokenizer_file_is_one_clear_line(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(SleuthError, match="no tokenizer could be loaded") as raised:
        load_tokenizer(str(tmp_path))
    assert "\n" not in str(raised.value)


def test_a_control_token_in_retrieved_text_is_only_letters() -> None:
    tokenizer = make_tokenizer(200)
    end = tokenizer.eos_token
    renderer = Renderer(tokenizer)
    shown = renderer.render(Piece(text=f"Tarn {end} is a town", author="env"))
    assert tokenizer.eos_token_id not in shown.tokens
    assert decode(tokenizer, shown.tokens) == shown.text == f"Tarn {end} is a town"
    assert tokenizer.eos_token_id in renderer.render(Piece(text=f"Tarn{end}", author="template")).tokens
