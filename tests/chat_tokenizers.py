"""Small tokenizers with chat templates of our own wording, each with a habit that real ones have."""

from __future__ import annotations

from collections.abc import Iterable

from transformers import PreTrainedTokenizerFast

from sleuth.world.tokens import make_tokenizer

OPENING = """
{%- macro say(role, content) -%}
{{- '<|im_start|>' + role + '\\n' + content + '<|im_end|>\\n' -}}
{%- endmacro -%}
{%- if tools -%}
    {{- '<|im_start|>system\\n' -}}
    {%- if messages[0].role == 'system' -%}{{- messages[0].content + '\\n\\n' -}}{%- endif -%}
    {{- 'There are tools:\\n' -}}
    {%- for tool in tools -%}{{- tool | tojson + '\\n' -}}{%- endfor -%}
    {{- 'Call one in <tool_call> tags.<|im_end|>\\n' -}}
{%- elif messages[0].role == 'system' -%}
    {{- say('system', messages[0].content) -}}
{%- endif -%}
"""
TOOL = "{{- say('user', '<tool_response>\\n' + message.content + '\\n</tool_response>') -}}"
ENDING = "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"

KEEPS = (
    OPENING
    + "{%- for message in messages -%}{%- if message.role == 'tool' -%}"
    + TOOL
    + "{%- elif message.role != 'system' -%}{{- say(message.role, message.content) -}}{%- endif -%}{%- endfor -%}"
    + ENDING
)
"""Everything that was said stays as it was said."""

STRIPS = (
    OPENING
    + "{%- for message in messages -%}{%- if message.role == 'tool' -%}"
    + TOOL
    + "{%- elif message.role == 'assistant' -%}{{- say('assistant', message.content.split('</think>')[-1] | trim) -}}"
    + "{%- elif message.role != 'system' -%}{{- say(message.role, message.content | trim) -}}"
    + "{%- endif -%}{%- endfor -%}"
    + ENDING
)
"""Thoughts of earlier messages are dropped, and white space is trimmed."""

TIDIES = (
    OPENING
    + "{%- for message in messages -%}{%- if message.role == 'tool' -%}"
    + TOOL
    + "{%- elif message.role == 'assistant' -%}"
    + "{%- set parts = message.content.split('</think>') -%}"
    + "{%- set thought = parts[0].split('<think>')[-1] | trim if parts | length > 1 else '' -%}"
    + "{{- '<|im_start|>assistant\n' + ('<think>\n' + thought + '\n</think>\n\n' if thought else '') -}}"
    + "{{- parts[-1].lstrip('\n') + '<|im_end|>\n' -}}"
    + "{%- elif message.role != 'system' -%}{{- say(message.role, message.content) -}}{%- endif -%}{%- endfor -%}"
    + ENDING
)
"""A thought is kept, in the one form that thoughts have; an empty one is dropped."""

EMPTY_THOUGHT = KEEPS.removesuffix(ENDING) + (
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}"
    "{%- if enable_thinking is defined and enable_thinking is false -%}"
    "{{- '<think>\\n\\n</think>\\n\\n' -}}{%- endif -%}{%- endif -%}"
)
"""Without thinking, an answer begins behind an empty thought, which is not in the story once it is told again."""

NO_TOOLS = (
    "{%- for message in messages -%}{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}"
    "{%- endfor -%}" + ENDING
)
"""Tools are not shown."""

ONLY_PEOPLE = (
    OPENING + "{%- for message in messages -%}{%- if message.role == 'tool' -%}"
    "{{- raise_exception('nobody but system, user and assistant may speak') -}}"
    "{%- elif message.role != 'system' -%}{{- say(message.role, message.content) -}}{%- endif -%}{%- endfor -%}"
    + ENDING
)
"""A tool may not answer."""


def chat_tokenizer(template: str | None, end: str = "<|im_end|>", extra: Iterable[str] = ()) -> PreTrainedTokenizerFast:
    """The tiny model's tokenizer with the control tokens of ChatML, and `end` as its end-of-text token. Words of the
    `extra` texts are tokens too."""
    tokenizer = make_tokenizer(200, extra)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.eos_token = end
    tokenizer.chat_template = template
    return tokenizer
