"""The tiny model's tokenizer: one token for each word of the world, one for each byte of other text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from sleuth.dialect import DIALECTS
from sleuth.world import names
from sleuth.world.names import words_for
from sleuth.world.wording import DESCRIPTIONS, PASSAGES, QUESTIONS, RELATIONS

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

WORD = r"\[\d\]| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]|\s"
END = "<|end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)
"""One message a line; the generation prompt is a word that a published scorer looks for."""
FRAME = ("Question:", " find", " is", " and", " |", " [", "\n", "[1]", "[2]", "[3]", "[4]", "[5]")


def make_tokenizer(people: int, extra: Iterable[str] = (), tags: Iterable[str] = ()) -> PreTrainedTokenizerFast:
    """A fast tokenizer for worlds of at most `people` people. Words of `extra` texts (prompts, hints) and `tags` become
    tokens too."""
    vocabulary = {symbol: index for index, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    splitter = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORD), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    for text in [*_texts(people), *extra]:
        for piece, _ in splitter.pre_tokenize_str(text):
            vocabulary.setdefault(piece, len(vocabulary))
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = splitter
    tokenizer.decoder = decoders.ByteLevel()
    return with_tags(tokenizer, (*DIALECTS["sleuth"].tags, *tags))


def with_tags(tokenizer: Tokenizer, tags: Sequence[str]) -> PreTrainedTokenizerFast:
    """A fast tokenizer of these words whose `tags` are tokens, with an end and our chat template."""
    from transformers import PreTrainedTokenizerFast  # takes a second, and writing a world does not need it

    tokenizer.add_tokens([AddedToken(tag, normalized=False, special=False) for tag in tags])
    tokenizer.add_special_tokens([AddedToken(END, normalized=False, special=True)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=END,
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )


def _texts(people: int) -> Iterator[str]:
    """Yields texts with all words of the world, each after a space as in running text."""
    words = words_for(people)
    for name in (*words.first, *words.family, *words.places, *names.REGIONS, *names.PROFESSIONS, *names.KINDS):
        yield f" {name}"
    for name in (*names.FIRMS, *names.ADJECTIVES, *names.NOUNS, *names.YEARS):
        yield f" {name}"
    templates = [
        *(text for texts in PASSAGES.values() for text in texts),
        *RELATIONS.values(),
        *(text for split in QUESTIONS.values() for texts in split.values() for text in texts),
        *(text for split in DESCRIPTIONS.values() for texts in split.values() for text in texts),
    ]
    for text in templates:
        plain = re.sub(r"\{\w+\}", "X", text)
        yield f" {plain[0].upper()}{plain[1:]}"
        yield f" {plain}"
    yield from FRAME
