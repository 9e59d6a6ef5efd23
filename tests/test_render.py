from __future__ import annotations

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from sleuth.render import IncrementalDecoder, Renderer, check_writable, encode, load_tokenizer
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
@example([95, 127, 157, 95, 157, 255, 223])  # the bytes a1 c2 e0 a1 e0 a0 80: c2 a0 would be a character too
def test_incrementally_decoded_text_is_the_text_of_all_tokens(tokens):
    decoder = IncrementalDecoder(TOKENIZER)
    pieces = [decoder.push(token) for token in tokens]
    assert "".join(pieces) + decoder.flush() == TOKENIZER.decode(tokens)


def test_a_character_is_returned_with_its_last_byte():
    tokens = encode(TOKENIZER, "a🐙b")  # which the tokenizer has no token for
    decoder = IncrementalDecoder(TOKENIZER)
    *first, octopus, last = [decoder.push(token) for token in tokens]
    assert (first[0], set(first[1:]), octopus, last) == ("a", {""}, "🐙", "b")


def test_invalid_bytes_are_not_held_back_for_ever():
    continuation = encode(TOKENIZER, "🐙")[-1]
    decoder = IncrementalDecoder(TOKENIZER)
    shown = "".join(decoder.push(continuation) for _ in range(60))
    assert len(shown) >= 56


def test_text_that_continues_a_text_keeps_its_leading_space():
    tokenizer = space_dropping_tokenizer()
    decoder = IncrementalDecoder(tokenizer, context=[1])
    assert [decoder.push(2), decoder.push(4), decoder.push(1)] == [" Voss", "?", " Ada"]
    alone = IncrementalDecoder(tokenizer)
    assert [alone.push(2), alone.push(1)] == ["Voss", " Ada"]


@pytest.mark.parametrize("budget", [0, 5, None])
def test_text_over_the_budget_is_cut_counted_and_missing_from_the_text(budget: int | None):
    whole = encode(TOKENIZER, "Ada Voss was born in Tarn")
    segment = Renderer(TOKENIZER).render(Piece(text="Ada Voss was born in Tarn", budget=budget))
    assert segment.tokens == tuple(whole[:budget])
    assert segment.cut == (0 if budget is None else len(whole) - budget)
    assert segment.text == TOKENIZER.decode(whole[:budget])


@pytest.mark.parametrize(("tag", "said"), [("<search>", "<search>"), (" Ada", "' Ada' back as 'Ada'")])
def test_a_tag_that_the_tokenizer_cannot_write_or_reads_otherwise_is_named(tag: str, said: str):
    check_writable(TOKENIZER, ["<search>", "</search>", "\n\n", "<|end|>"])
    with pytest.raises(SleuthError, match=said):
        check_writable(space_dropping_tokenizer(), [tag])


def test_a_run_folder_given_as_a_model_is_refused_with_its_last_checkpoint(tmp_path):
    run = tmp_path / "demo"
    (run / "checkpoints").mkdir(parents=True)
    with pytest.raises(SleuthError, match="a run folder, not a model, and it has no checkpoint yet"):
        load_tokenizer(str(run))
    for name in ("step-000040", "step-000100", "step-000200.partial"):
        (run / "checkpoints" / name).mkdir()
    with pytest.raises(SleuthError) as raised:
        load_tokenizer(str(run))
    last = run / "checkpoints" / "step-000100"
    assert str(raised.value) == f"{run}: a run folder, not a model; give one of its checkpoints; the last is {last}"


def prompt(before: str, question: str, after: str) -> list[Piece]:
    return [Piece(text=before, author="template"), Piece(text=question), Piece(text=after, author="template")]


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=12), st.text(max_size=12), st.text(max_size=12))
def test_a_prompt_has_the_tokens_of_its_whole_text(before, question, after):
    assume(TOKENIZER.eos_token not in question)  # there it is only letters, see above
    segments = Renderer(TOKENIZER).render_all(prompt(before, question, after))
    assert [token for segment in segments for token in segment.tokens] == encode(TOKENIZER, before + question + after)
    assert "".join(segment.text for segment in segments) == before + question + after


def test_a_token_across_the_boundary_belongs_to_the_question():
    segments = Renderer(make_tokenizer(200)).render_all(prompt("Question: ", "Where is Tarn?", "\n"))
    assert [(s.author, s.text) for s in segments] == [
        ("template", "Question:"),
        ("env", " Where is Tarn?"),
        ("template", "\n"),
    ]


def test_a_tokenizer_that_marks_the_start_of_a_text_marks_no_boundary_inside_a_prompt():
    words = Tokenizer(models.WordLevel({"<s>": 0, "▁Ada": 1, "Ada": 2, "▁Voss": 3, "▁": 4}, unk_token="▁"))
    words.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<s>")
    segments = Renderer(tokenizer).render_all(prompt("<s>", "Ada", " Voss"))
    assert [segment.tokens for segment in segments] == [(0,), (2,), (3,)]
    assert encode(tokenizer, "<s>Ada Voss") == [0, 2, 3]


def test_a_control_token_is_one_in_the_template_and_letters_in_the_question():
    end = TOKENIZER.eos_token
    pieces = prompt(f"{end}Ada {end}", f"Voss{end}", f"{end} born?")
    segments = Renderer(TOKENIZER).render_all(pieces)
    assert [(s.author, s.text) for s in segments] == [(piece.author, piece.text) for piece in pieces]
    assert [s.tokens.count(TOKENIZER.eos_token_id) for s in segments] == [2, 0, 1]


def test_a_control_token_that_a_template_and_a_question_only_spell_together_is_letters():
    segments = Renderer(TOKENIZER).render_all(prompt("<|en", "d|", ">"))
    assert TOKENIZER.eos_token_id not in [token for segment in segments for token in segment.tokens]
    assert "".join(segment.text for segment in segments) == TOKENIZER.eos_token


def test_what_follows_a_prompt_is_encoded_by_itself():
    renderer, opened = Renderer(TOKENIZER), Piece(text=" Ada Voss?")
    *asked, last = renderer.render_all([*prompt("where ", "was", ""), opened])
    assert last == renderer.render(opened)
    assert asked == renderer.render_all(prompt("where ", "was", ""))


def test_a_tokenizer_without_control_tokens_renders_a_prompt_too():
    words = Tokenizer(models.WordLevel({"Ada": 0, "Voss": 1}, unk_token="Ada"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words)
    assert not tokenizer.added_tokens_decoder
    segments = Renderer(tokenizer).render_all(prompt("Ada ", "Voss", ""))
    assert [(s.author, s.tokens) for s in segments] == [("template", (0,)), ("env", (1,))]
