"""Small chat templates of our own wording, each with the habits of a published family.

What each does was read in November 2026 in the templates that TRL, llama.cpp and vLLM keep as references; the texts are
ours. They are no substitutes for the published ones: wordings, branches for images and documents are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import AddedToken
from transformers import GenerationConfig, Qwen3Config

from sleuth.plan.model_files import ModelFiles
from sleuth.world.tokens import make_tokenizer

SAY = "{%- macro say(role, text) -%}{{- '<|im_start|>' + role + '\\n' + text + '<|im_end|>\\n' -}}{%- endmacro -%}"
ASK = "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
LIST_TOOLS = "{%- for tool in tools -%}{{- tool | tojson + '\\n' -}}{%- endfor -%}"
LAST_QUESTION = (
    "{%- set seen = namespace(last=-1) -%}{%- for m in messages -%}{%- if m.role == 'user' -%}"
    "{%- set seen.last = loop.index0 -%}{%- endif -%}{%- endfor -%}"
)
HERMES_CALL = (
    "{%- for call in m.tool_calls or [] -%}{{- ('\\n' if m.content else '') + '<tool_call>\\n{\"name\": \"' "
    '+ call.function.name + \'", "arguments": \' + (call.function.arguments if call.function.arguments is string '
    "else call.function.arguments | tojson) + '}\\n</tool_call>' -}}{%- endfor -%}"
)
TOOL_ANSWER = "{{- say('user', '<tool_response>\\n' + m.content + '\\n</tool_response>') -}}"

QWEN2_5 = (
    SAY + "{{- '<|im_start|>system\\n' + (messages[0].content if messages[0].role == 'system' else 'Help people.') -}}"
    "{%- if tools -%}{{- '\\nTools:\\n' -}}" + LIST_TOOLS + "{%- endif -%}{{- '<|im_end|>\\n' -}}"
    "{%- for m in messages -%}{%- if m.role == 'user' -%}{{- say('user', m.content) -}}"
    "{%- elif m.role == 'assistant' -%}{{- '<|im_start|>assistant\\n' + m.content -}}"
    "{%- for call in m.tool_calls or [] -%}{{- ('\\n' if m.content else '') + '<tool_call>\\n{\"name\": \"' "
    "+ call.function.name + '\", \"arguments\": ' + call.function.arguments | tojson + '}\\n</tool_call>' -}}"
    "{%- endfor -%}{{- '<|im_end|>\\n' -}}"
    "{%- elif m.role == 'tool' -%}" + TOOL_ANSWER + "{%- endif -%}{%- endfor -%}" + ASK
)
"""A system message of its own; calls in JSON, whose arguments it writes as JSON once more if they are text."""

QWEN3 = (
    SAY + LAST_QUESTION + "{%- if tools -%}{{- '<|im_start|>system\\n' -}}"
    "{%- if messages[0].role == 'system' -%}{{- messages[0].content + '\\n' -}}{%- endif -%}"
    + LIST_TOOLS
    + "{{- '<|im_end|>\\n' -}}{%- elif messages[0].role == 'system' -%}{{- say('system', messages[0].content) -}}"
    "{%- endif -%}{%- for m in messages -%}{%- if m.role == 'user' -%}{{- say('user', m.content) -}}"
    "{%- elif m.role == 'assistant' -%}{%- set parts = m.content.split('</think>') -%}"
    "{%- set thought = m.reasoning_content or (parts[0].split('<think>')[-1] if parts | length > 1 else '') -%}"
    "{{- '<|im_start|>assistant\\n' -}}"
    "{%- if loop.index0 > seen.last and (loop.last or thought) -%}"
    "{{- '<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' -}}{%- endif -%}"
    "{{- parts[-1].lstrip('\\n') -}}" + HERMES_CALL + "{{- '<|im_end|>\\n' -}}"
    "{%- elif m.role == 'tool' -%}"
    + TOOL_ANSWER
    + "{%- endif -%}{%- endfor -%}"
    + ASK
    + "{%- if add_generation_prompt and enable_thinking is defined and not enable_thinking -%}"
    "{{- '<think>\\n\\n</think>\\n\\n' -}}{%- endif -%}"
)
"""Thoughts up to the last question are dropped; without thinking, an answer begins with an empty thought."""

QWEN3_5 = (
    SAY
    + LAST_QUESTION
    + "{%- if tools -%}{{- '<|im_start|>system\\n' -}}"
    + LIST_TOOLS
    + "{%- if messages[0].role == 'system' -%}{{- messages[0].content | trim -}}{%- endif -%}"
    "{{- '<|im_end|>\\n' -}}{%- elif messages[0].role == 'system' -%}{{- say('system', messages[0].content | trim) -}}"
    "{%- endif -%}{%- for m in messages -%}"
    "{%- if m.role == 'user' -%}{{- say('user', m.content | trim) -}}"
    "{%- elif m.role == 'assistant' -%}{%- set parts = m.content.split('</think>') -%}"
    "{%- set thought = m.reasoning_content or (parts[0].split('<think>')[-1] if parts | length > 1 else '') -%}"
    "{{- '<|im_start|>assistant\\n' -}}"
    "{%- if loop.index0 > seen.last -%}{{- '<think>\\n' + thought | trim + '\\n</think>\\n\\n' -}}{%- endif -%}"
    "{{- parts[-1] | trim -}}"
    "{%- for call in m.tool_calls or [] -%}{{- '<tool_call>\\n<function=' + call.function.name + '>\\n' -}}"
    "{%- for key, value in call.function.arguments | items -%}"
    "{{- '<parameter=' + key + '>\\n' + (value if value is string else value | tojson) + '\\n</parameter>\\n' -}}"
    "{%- endfor -%}{{- '</function>\\n</tool_call>' -}}{%- endfor -%}{{- '<|im_end|>\\n' -}}"
    "{%- elif m.role == 'tool' -%}"
    + TOOL_ANSWER
    + "{%- endif -%}{%- endfor -%}"
    + ASK
    + "{%- if add_generation_prompt -%}"
    "{{- '<think>\\n\\n</think>\\n\\n' if enable_thinking is defined and not enable_thinking else '<think>\\n' -}}"
    "{%- endif -%}"
)
"""As Qwen3, but prompts open a thought, and calls are XML, of arguments that must be an object."""

LLAMA3 = (
    "{%- macro say(role, text) -%}{{- '<|start_header_id|>' + role + '<|end_header_id|>\\n\\n' + text -}}"
    "{{- '<|eot_id|>' -}}{%- endmacro -%}{{- bos_token -}}"
    "{%- set own = messages[0].content | trim if messages[0].role == 'system' else '' -%}"
    "{{- say('system', 'Today is ' + (date_string or '26 Jul 2024') + '.\\n\\n' + own) -}}"
    "{%- for m in messages -%}{%- if m.role == 'user' -%}"
    "{%- set offered = 'Call in JSON: ' + tools | tojson + '\\n\\n' if tools and loop.index0 < 2 else '' -%}"
    "{{- say('user', offered + m.content | trim) -}}"
    "{%- elif m.role == 'tool' -%}{{- say('ipython', m.content | tojson) -}}"
    "{%- elif m.tool_calls -%}"
    "{%- if m.tool_calls | length > 1 -%}{{- raise_exception('one call at once') -}}{%- endif -%}"
    "{{- say('assistant', '{\"name\": \"' + m.tool_calls[0].function.name + '\", \"parameters\": ' "
    "+ m.tool_calls[0].function.arguments | tojson + '}') -}}"
    "{%- elif m.role == 'assistant' -%}{{- say('assistant', m.content | trim) -}}{%- endif -%}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}{%- endif -%}"
)
"""Calls without tags, with `parameters`; a tool's answer is written as JSON."""

GEMMA3 = (
    "{{- bos_token -}}{%- set own = messages[0].role == 'system' -%}"
    "{%- set rest = messages[1:] if own else messages -%}"
    "{%- for m in rest -%}{%- if (m.role == 'user') != (loop.index0 % 2 == 0) -%}"
    "{{- raise_exception('roles must alternate user/assistant/user/assistant') -}}{%- endif -%}"
    "{{- '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\\n' -}}"
    "{{- (messages[0].content + '\\n\\n' if own and loop.first else '') + m.content | trim + '<end_of_turn>\\n' -}}"
    "{%- endfor -%}{%- if add_generation_prompt -%}{{- '<start_of_turn>model\\n' -}}{%- endif -%}"
)
"""Two roles that must alternate, and no tools; turns end otherwise than texts."""

PHI4 = (
    "{%- for m in messages -%}{%- if m.role in ['system', 'user', 'assistant'] -%}"
    "{{- '<|im_start|>' + m.role + '<|im_sep|>' + m.content + '<|im_end|>' -}}{%- endif -%}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant<|im_sep|>' -}}{%- endif -%}"
)
"""No tools; their answers are dropped without a word."""

SMOLLM3 = (
    SAY + "{%- set thinks = enable_thinking is not defined or enable_thinking -%}"
    "{{- '<|im_start|>system\\nToday is ' + strftime_now('%d %B %Y') -}}"
    "{{- '. Mode: ' + ('/think' if thinks else '/no_think') -}}"
    "{%- if messages[0].role == 'system' -%}{{- '\\n' + messages[0].content -}}{%- endif -%}"
    "{%- if xml_tools -%}{%- for tool in xml_tools -%}{{- '\\n' + tool | string -}}{%- endfor -%}{%- endif -%}"
    "{{- '<|im_end|>\\n' -}}{%- for m in messages -%}"
    "{%- if m.role in ['user', 'tool'] -%}{{- say('user', m.content) -}}"
    "{%- elif m.role == 'assistant' -%}"
    "{{- say('assistant', ('' if thinks else '<think>\\n\\n</think>\\n') + m.content.lstrip('\\n')) -}}{%- endif -%}"
    "{%- endfor -%}"
    + ASK
    + "{%- if add_generation_prompt and not thinks -%}{{- '<think>\\n\\n</think>\\n' -}}{%- endif -%}"
)
"""Today's date in the prompt; tools by a variable of its own; without thinking every answer has an empty thought."""

GRANITE4 = (
    "{%- macro say(role, text) -%}{{- '<|start_of_role|>' + role + '<|end_of_role|>' + text + '<|end_of_text|>\\n' -}}"
    "{%- endmacro -%}"
    "{{- '<|start_of_role|>system<|end_of_role|>' -}}"
    "{{- messages[0].content if messages[0].role == 'system' else 'Be of help.' -}}"
    "{%- if tools -%}{{- '\\n' -}}" + LIST_TOOLS + "{%- endif -%}{{- '<|end_of_text|>\\n' -}}"
    "{%- for m in messages -%}{%- if m.role == 'user' -%}{{- say('user', m.content) -}}"
    "{%- elif m.role == 'assistant' -%}{{- '<|start_of_role|>assistant<|end_of_role|>' + (m.content or '') -}}"
    + HERMES_CALL
    + "{{- '<|end_of_text|>\\n' -}}{%- elif m.role == 'tool' -%}"
    + TOOL_ANSWER
    + "{%- endif -%}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|start_of_role|>assistant<|end_of_role|>' -}}{%- endif -%}"
)
"""Roles in tokens of their own, calls as Qwen's; nothing is rewritten."""

OLMO3 = (
    SAY + "{%- if messages[0].role != 'system' -%}{{- say('system', 'You have no functions.') -}}{%- endif -%}"
    "{%- for m in messages -%}{%- if m.role == 'system' -%}"
    "{{- say('system', m.content + '<functions>' + (m.functions or '') + '</functions>') -}}"
    "{%- elif m.role == 'user' -%}{{- say('user', m.content) -}}"
    "{%- elif m.role == 'environment' -%}{{- say('environment', m.content) -}}"
    "{%- elif m.role == 'assistant' -%}{{- '<|im_start|>assistant\\n' + (m.content or '') -}}"
    "{%- if m.function_calls -%}{{- '<function_calls>' + m.function_calls + '</function_calls>' -}}{%- endif -%}"
    "{{- eos_token if loop.last else '<|im_end|>\\n' -}}{%- endif -%}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n<think>' -}}{%- endif -%}"
)
"""Tools in a field of messages, which nobody passes; prompts open a thought; only the last turn ends with eos."""

MISTRAL = (
    "{%- set own = messages[0].role == 'system' -%}{%- set rest = messages[1:] if own else messages -%}"
    "{%- set asked = rest | selectattr('role', 'equalto', 'user') | list -%}{{- bos_token -}}"
    "{%- for m in rest -%}{%- if m.role == 'user' -%}"
    "{%- if tools and m == asked[-1] -%}"
    "{{- '[AVAILABLE_TOOLS] ' + tools | tojson + '[/AVAILABLE_TOOLS]' -}}{%- endif -%}"
    "{{- '[INST] ' + (messages[0].content + '\\n\\n' if own and loop.last else '') + m.content + '[/INST]' -}}"
    "{%- elif m.tool_calls -%}{{- '[TOOL_CALLS] [' -}}{%- for call in m.tool_calls -%}"
    "{%- if call.id | length != 9 -%}{{- raise_exception('ids have nine characters') -}}{%- endif -%}"
    "{{- (call.function | tojson)[:-1] + ', \"id\": \"' + call.id + '\"}' -}}{%- endfor -%}{{- ']' + eos_token -}}"
    "{%- elif m.role == 'assistant' -%}{{- ' ' + m.content | trim + eos_token -}}"
    "{%- elif m.role == 'tool' -%}"
    "{%- if (m.tool_call_id or '') | length != 9 -%}{{- raise_exception('ids have nine characters') -}}{%- endif -%}"
    "{{- '[TOOL_RESULTS] {\"content\": ' + m.content + ', \"call_id\": \"' + m.tool_call_id + '\"}[/TOOL_RESULTS]' -}}"
    "{%- endif -%}{%- endfor -%}"
)
"""Tools stand before the last question, so that they move with each; ids of calls have nine characters."""

DEEPSEEK_DISTIL = (
    "{%- set ns = namespace(after_tool=false) -%}{{- bos_token -}}"
    "{%- for m in messages -%}{%- if m.role == 'system' -%}{{- m.content -}}"
    "{%- elif m.role == 'user' -%}{%- set ns.after_tool = false -%}{{- '<@User@>' + m.content -}}"
    "{%- elif m.role == 'tool' -%}{%- set ns.after_tool = true -%}"
    "{{- '<@tool_output_begin@>' + m.content + '<@tool_output_end@>' -}}"
    "{%- elif m.tool_calls -%}{%- set ns.after_tool = false -%}{{- '<@Assistant@>' -}}{%- for call in m.tool_calls -%}"
    "{{- '<@tool_call_begin@>' + call.type + '<@tool_sep@>' + call.function.name + '\\n```json\\n' -}}"
    "{{- call.function.arguments + '\\n```<@tool_call_end@>' -}}{%- endfor -%}{{- eos_token -}}"
    "{%- elif m.role == 'assistant' -%}{{- '' if ns.after_tool else '<@Assistant@>' -}}"
    "{%- set ns.after_tool = false -%}{{- m.content.split('</think>')[-1] + eos_token -}}{%- endif -%}{%- endfor -%}"
    "{%- if add_generation_prompt and not ns.after_tool -%}{{- '<@Assistant@><think>\\n' -}}{%- endif -%}"
)
for plain in ("tool_call_begin", "tool_call_end", "tool_output_begin", "tool_output_end", "tool_sep"):
    DEEPSEEK_DISTIL = DEEPSEEK_DISTIL.replace(f"@{plain}@", f"@{plain}@".replace("_", "\u2581"))
DEEPSEEK_DISTIL = DEEPSEEK_DISTIL.replace("@", "\uff5c")
"""Prompts open a thought, which the history never has; tools are not shown, and arguments must be text."""

GPT_OSS = (
    "{{- '<|start|>system<|message|>Date: ' + strftime_now('%Y-%m-%d') -}}"
    "{{- '\\nReasoning: ' + (reasoning_effort or 'medium') + '<|end|>' -}}"
    "{%- set own = messages[0].role == 'system' -%}"
    "{%- set rest = messages[1:] if own else messages -%}"
    "{%- if own or tools -%}{{- '<|start|>developer<|message|>' + (messages[0].content if own else '') -}}"
    "{%- for tool in tools or [] -%}{{- '\\ntype ' + tool.function.name + ' = (_: any) => any;' -}}{%- endfor -%}"
    "{{- '<|end|>' -}}{%- endif -%}{%- set last = namespace(call=none) -%}"
    "{%- for m in rest -%}{%- if m.role == 'user' -%}{{- '<|start|>user<|message|>' + m.content + '<|end|>' -}}"
    "{%- elif m.role == 'tool' -%}"
    "{%- if last.call is none -%}{{- raise_exception('a tool answers without a call') -}}{%- endif -%}"
    "{{- '<|start|>functions.' + last.call + ' to=assistant<|channel|>commentary<|message|>' + m.content | tojson -}}"
    "{{- '<|end|>' -}}{%- else -%}"
    "{%- if '<|channel|>' in m.content -%}{{- raise_exception('a channel in the content') -}}{%- endif -%}"
    "{%- set later = rest[loop.index:] | selectattr('role', 'equalto', 'assistant') "
    "| rejectattr('tool_calls') | list -%}"
    "{%- set kept = (not later) if m.tool_calls else (loop.last and not add_generation_prompt) -%}"
    "{%- if m.thinking and kept -%}"
    "{{- '<|start|>assistant<|channel|>analysis<|message|>' + m.thinking + '<|end|>' -}}{%- endif -%}"
    "{%- if m.tool_calls -%}{%- set last.call = m.tool_calls[0].function.name -%}"
    "{{- '<|start|>assistant to=functions.' + last.call + '<|channel|>commentary json<|message|>' -}}"
    "{{- m.tool_calls[0].function.arguments | tojson + '<|call|>' -}}"
    "{%- else -%}{{- '<|start|>assistant<|channel|>final<|message|>' + m.content -}}"
    "{{- '<|return|>' if loop.last and not add_generation_prompt else '<|end|>' -}}{%- endif -%}"
    "{%- endif -%}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|start|>assistant' -}}{%- endif -%}"
)
"""Channels; thoughts are dropped once an answer follows; turns end in three ways; a system message with a date."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A template with its control tokens: `eos`, `bos` if there is one, the others; `stops` are the generation
    config's. `finds` are findings, as (check, level, a part of the line)."""

    template: str
    controls: tuple[str, ...]
    eos: str
    stops: tuple[str, ...]
    finds: tuple[tuple[str, str, str], ...]
    bos: str = ""

    def files(self) -> ModelFiles:
        """The tiny model's tokenizer, as this family's would be."""
        tokenizer = make_tokenizer(20)
        names = dict.fromkeys([*self.controls, self.eos, *self.stops, *filter(None, [self.bos])])
        tokenizer.add_tokens([AddedToken(name, normalized=False, special=True) for name in names])
        tokenizer.eos_token = self.eos
        if self.bos:
            tokenizer.bos_token = self.bos
        tokenizer.chat_template = self.template
        ids = [tokenizer.convert_tokens_to_ids(name) for name in self.stops]
        return ModelFiles(
            name="family",
            tokenizer=tokenizer,
            config=Qwen3Config(max_position_embeddings=32768),
            config_problem="",
            generation=GenerationConfig(eos_token_id=ids),
        )


CHATML = ("<|im_start|>", "<|im_end|>")
QWEN_STOPS = ("<|im_end|>", "<|endoftext|>")
APPENDS = ("history", "ok", "append-only over 2 turns")
DROPS = ("history", "warning", "at the second question the template drops the thoughts of turns 1 and 2")
OPENS = ("thinking", "ok", "every prompt opens a thought")
READ = ("tool calls", "ok", "which chat, tools and verl read")
NO_TOOLS = ("tool calls", "warning", "chat, tools and verl cannot be used: the chat template does not render tools")
CANNOT_CALL = (
    "tool calls",
    "warning",
    "cannot be used: the chat template cannot render messages of user, assistant, tool",
)
DATE = ("template", "warning", "it writes today's date into the prompt")

FAMILIES: dict[str, Family] = {
    "Qwen2.5": Family(
        template=QWEN2_5,
        controls=CHATML,
        eos="<|im_end|>",
        stops=QWEN_STOPS,
        finds=(READ, APPENDS, ("stop tokens", "ok", "the template ends a turn with <|im_end|>")),
    ),
    "Qwen3": Family(
        template=QWEN3,
        controls=CHATML,
        eos="<|im_end|>",
        stops=QWEN_STOPS,
        finds=(
            READ,
            DROPS,
            ("thinking", "ok", r"enable_thinking = false: the prompt ends with '<think>\n\n</think>\n\n'"),
        ),
    ),
    "Qwen3.5": Family(
        template=QWEN3_5,
        controls=CHATML,
        eos="<|im_end|>",
        stops=QWEN_STOPS,
        finds=(
            (
                "tool calls",
                "warning",
                "cannot read the calls that the template teaches: '<tool_call>\\n<function=search>",
            ),
            DROPS,
            OPENS,
        ),
    ),
    "Llama 3": Family(
        template=LLAMA3,
        controls=("<|start_header_id|>", "<|end_header_id|>"),
        eos="<|eot_id|>",
        bos="<|begin_of_text|>",
        stops=("<|eot_id|>", "<|end_of_text|>"),
        finds=(("tool calls", "warning", "cannot be used: the chat template changes the text of a tool's answer"),),
    ),
    "Gemma 3": Family(
        template=GEMMA3,
        controls=("<start_of_turn>",),
        eos="<eos>",
        bos="<bos>",
        stops=("<eos>", "<end_of_turn>"),
        finds=(
            NO_TOOLS,
            ("stop tokens", "warning", "ends a turn with <end_of_turn>, but examples end with eos_token, <eos>"),
        ),
    ),
    "Phi 4": Family(
        template=PHI4,
        controls=("<|im_start|>", "<|im_sep|>"),
        eos="<|im_end|>",
        stops=("<|im_end|>", "<|endoftext|>"),
        finds=(NO_TOOLS, ("template", "ok", "it renders system, user and assistant")),
    ),
    "SmolLM3": Family(
        template=SMOLLM3,
        controls=("<|im_start|>",),
        eos="<|im_end|>",
        stops=("<|im_end|>",),
        finds=(DATE, NO_TOOLS, ("thinking", "ok", "enable_thinking = false: the prompt ends with 'no_think<|im_end|>")),
    ),
    "Granite 4": Family(
        template=GRANITE4,
        controls=("<|start_of_role|>", "<|end_of_role|>"),
        eos="<|end_of_text|>",
        stops=("<|end_of_text|>",),
        finds=(READ, APPENDS, ("stop tokens", "ok", "the template ends a turn with <|end_of_text|>")),
    ),
    "OLMo 3": Family(
        template=OLMO3,
        controls=CHATML,
        eos="<|endoftext|>",
        stops=("<|im_end|>", "<|endoftext|>"),
        finds=(NO_TOOLS, OPENS),
    ),
    "Mistral": Family(
        template=MISTRAL,
        controls=("[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]"),
        eos="</s>",
        bos="<s>",
        stops=("</s>",),
        finds=(CANNOT_CALL,),
    ),
    "DeepSeek distils": Family(
        template=DEEPSEEK_DISTIL,
        controls=("<\uff5cUser\uff5c>", "<\uff5cAssistant\uff5c>"),
        eos="<\uff5cend\u2581of\u2581sentence\uff5c>",
        bos="<\uff5cbegin\u2581of\u2581sentence\uff5c>",
        stops=("<\uff5cend\u2581of\u2581sentence\uff5c>",),
        finds=(NO_TOOLS, OPENS),
    ),
    "gpt-oss": Family(
        template=GPT_OSS,
        controls=("<|start|>", "<|message|>", "<|channel|>", "<|end|>"),
        eos="<|return|>",
        stops=("<|return|>", "<|call|>"),
        finds=(DATE, CANNOT_CALL, ("thinking", "ok", 'reasoning_effort = "low": the prompt ends with')),
    ),
}
