"""Chat templates: what they are shown, what becomes of what was said, and which ones cannot be spoken to."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
from chat_tokenizers import EMPTY_THOUGHT, KEEPS, NO_TOOLS, ONLY_PEOPLE, STRIPS, TIDIES, chat_tokenizer
from shelf import Shelf

from sleuth.answers.answer import shown_passages
from sleuth.dialect import DIALECTS
from sleuth.episodes.chat_template import ChatTemplate, Message
from sleuth.episodes.frames import frame_of
from sleuth.episodes.scripted import ScriptedEngine
from sleuth.render import Renderer
from sleuth.rollout import Rollout
from sleuth.search.env import SearchEnv
from sleuth.types import Episode, Passage, Piece, Sampling, SleuthError, Task

ADA = Passage(id="1", title="Ada", text="Ada was born in Tarn.")
TASK = Task(id="q", question="Where was Ada born?", golden_answers=("Tarn",))
CALL = '<tool_call>\n{"name": "search", "arguments": {"query": "Ada"}}\n</tool_call><|im_end|>'
ANSWER = "<answer>Tarn</answer><|im_end|>"
TOOLS = [DIALECTS["chat"].tool.schema] if DIALECTS["chat"].tool else []


def played(
    template: str,
    *turns: str,
    dialect: str = "chat",
    shelf: Shelf | None = None,
    context: int = 4096,
    flags: dict[str, object] | None = None,
    **changes: object,
) -> Episode:
    spoken = dataclasses.replace(DIALECTS[dialect], **changes)
    tokenizer = chat_tokenizer(template)
    script = iter(turns)

    def answer(text: str, sampling: Sampling) -> str:
        return next(script)

    chat = ChatTemplate(tokenizer, tools=TOOLS, flags=flags)
    env = SearchEnv(TASK, spoken, "{question}", shelf or Shelf(ADA), frame=frame_of(spoken, "user", chat))
    rollout = Rollout(
        engine=ScriptedEngine(tokenizer, answer),
        renderer=Renderer(tokenizer),
        context=context,
        temperature=1.0,
        key=(0, 0, 0),
    )
    return asyncio.run(rollout.episode(env, TASK, 0, 0))


def as_a_server_would(template: str, *said: str, flags: dict[str, object] | None = None) -> str:
    """The whole conversation rendered from what was said, as servers of chat completions do it."""
    tokenizer = chat_tokenizer(template)
    messages = [{"role": "user", "content": TASK.question}]
    for turn in said:
        messages.append({"role": "assistant", "content": turn.removesuffix("<|im_end|>")})
        messages.append({"role": "tool", "content": "[1] Ada | Ada was born in Tarn."})
    return str(
        tokenizer.apply_chat_template(
            messages, tools=TOOLS, add_generation_prompt=True, tokenize=False, **(flags or {})
        )
    )


def story(episode: Episode) -> str:
    """The last trajectory as the model read it, the end of a message where it was sampled put back."""
    return "".join(
        segment.text + ("<|im_end|>" if segment.author == "policy" and segment.tokens[-1] == end_id() else "")
        for segment in episode.trajectory.segments
    )


def end_id() -> int:
    return int(chat_tokenizer(KEEPS).convert_tokens_to_ids("<|im_end|>"))


THOUGHT = f"<think>\nwho?\n</think>\n\n{CALL}"
LONG_THOUGHT = f"<think>\n\n who? \n\n</think>{CALL}"


@pytest.mark.parametrize("flags", [{}, {"enable_thinking": False}])
@pytest.mark.parametrize("template", [KEEPS, STRIPS, TIDIES, EMPTY_THOUGHT])
@pytest.mark.parametrize(
    "said",
    [
        [CALL],
        [THOUGHT, CALL],
        [LONG_THOUGHT, THOUGHT, CALL],
        ["\n \n" + CALL],
        ["</think>" + CALL],
        ["<think>\n\n</think>\n\n" + CALL, CALL],
        ["<think>a</think> <think>b</think>" + CALL],
        ["<think>never closed " + CALL],
    ],
)
def test_the_model_sees_what_a_chat_server_would_render(
    template: str, said: list[str], flags: dict[str, object]
) -> None:
    flags = flags if template == EMPTY_THOUGHT else {}
    episode = played(template, *said, ANSWER, flags=flags)
    assert story(episode) == as_a_server_would(template, *said, flags=flags) + ANSWER


def test_if_a_template_drops_thoughts_each_turn_is_trained_in_one_trajectory_and_a_copy_in_later_ones() -> None:
    episode = played(STRIPS, THOUGHT, THOUGHT, ANSWER)
    first, second, last = episode.trajectories
    assert [trajectory.stop for trajectory in episode.trajectories] == ["rewritten", "rewritten", "answered"]
    for trajectory, turn in zip(episode.trajectories, (THOUGHT, THOUGHT, ANSWER), strict=True):
        written = [s for s in trajectory.segments if s.author == "policy"]
        assert [s.text for s in written] == [turn.removesuffix("<|im_end|>")]
        assert written[0] is trajectory.segments[-1]
    assert "who?" in first.text
    assert "who?" not in last.segments[0].text + "".join(s.text for s in last.segments if s.author != "policy")
    assert second.text.count("[1] Ada | Ada was born in Tarn.") == 1
    assert last.text.count("[1] Ada | Ada was born in Tarn.") == 2


def test_only_a_changed_turn_begins_another_trajectory() -> None:
    episode = played(STRIPS, CALL, THOUGHT, CALL, ANSWER)
    assert [trajectory.stop for trajectory in episode.trajectories] == ["rewritten", "answered"]


def test_every_trajectory_has_the_actions_of_its_turns_and_only_passages_that_it_contains() -> None:
    first, last = played(STRIPS, THOUGHT, ANSWER).trajectories
    assert [(action.kind, len(action.passages)) for action in first.actions] == [("search", 0)]
    assert [(action.kind, len(action.passages)) for action in last.actions] == [("search", 1), ("answer", 0)]
    assert (last.searches, [passage.id for passage in last.passages]) == (1, ["1"])


def test_results_in_messages_follow_the_sampled_tokens_even_if_the_template_would_change_these() -> None:
    call = THOUGHT.replace('"query": "Ada"', '"query_list": ["Ada"]')
    for template in (KEEPS, STRIPS):
        [trajectory] = played(template, call, ANSWER, dialect="verl").trajectories
        assert "who?" in trajectory.text
        assert trajectory.text.endswith(
            "</tool_call>\n<|im_start|>user\n<tool_response>\n"
            '{"result": "Doc 1 (Title: \\"Ada\\")\\nAda was born in Tarn."}'
            "\n</tool_response><|im_end|>\n<|im_start|>assistant\n<answer>Tarn</answer>"
        )


def test_an_invalid_call_gets_the_hint_and_a_message_without_a_call_is_the_last() -> None:
    episode = played(KEEPS, "<tool_call>Ada</tool_call><|im_end|>", "Tarn<|im_end|>")
    assert f"<tool_response>\n{DIALECTS['chat'].hint}\n</tool_response>" in episode.trajectory.text
    assert [action.kind for action in episode.trajectory.actions] == ["invalid", "invalid"]
    assert episode.trajectory.stop == "turns"


def both(second: str = CALL, first: str = CALL) -> str:
    """A message of two calls."""
    return first.removesuffix("<|im_end|>") + second


@pytest.mark.parametrize("template", [KEEPS, STRIPS])
def test_all_searches_of_a_message_are_made_and_each_has_its_results(template: str) -> None:
    other = CALL.replace("Ada", "Tarn")
    episode = played(template, "<think>both</think>" + both(other), ANSWER, searches=2)
    actions = episode.trajectory.actions
    assert [(action.kind, action.text) for action in actions] == [
        ("search", "Ada"),
        ("search", "Tarn"),
        ("answer", "Tarn"),
    ]
    assert [(search, rank) for search, rank, *_ in shown_passages(episode.trajectory)] == [(1, 1), (2, 1)]
    assert all("Ada was born in Tarn." in shown for *_, shown in shown_passages(episode.trajectory))
    assert episode.trajectory.text.count("<tool_response>") == 2
    limited = played(KEEPS, both(other), ANSWER, searches=1).trajectory
    assert [action.kind for action in limited.actions] == ["search", "invalid", "answer"]
    assert "error: this call was not made: none is left" in limited.text


def test_verl_makes_the_first_call_of_a_message_as_it_is_published() -> None:
    call = CALL.replace('"query": "Ada"', '"query_list": ["Ada"]')
    trajectory = played(KEEPS, both(call, call), ANSWER, dialect="verl").trajectory
    assert [action.kind for action in trajectory.actions] == ["search", "answer"]


def test_a_template_that_renders_one_answer_of_a_tool_gets_the_results_of_two_calls_in_it() -> None:
    fussy = KEEPS.replace(
        "{%- for",
        "{%- if messages | selectattr('role', 'equalto', 'tool') | list | length > 1 %}"
        "{{ raise_exception('one tool at a time') }}{%- endif %}{%- for",
        1,
    )
    text = played(fussy, both(), ANSWER).trajectory.text
    assert text.count("[1] Ada | Ada was born in Tarn.") == 2
    assert text.count("<tool_response>") == 1


def test_a_call_takes_precedence_over_an_answer_in_one_message() -> None:
    episode = played(KEEPS, f"<answer>Rome</answer> {CALL}", ANSWER)
    assert [(action.kind, action.text) for action in episode.trajectory.actions] == [
        ("search", "Ada"),
        ("answer", "Tarn"),
    ]


def test_a_failed_retriever_ends_a_chat_as_failed() -> None:
    episode = played(STRIPS, THOUGHT, shelf=Shelf(fails=True))
    assert [trajectory.stop for trajectory in episode.trajectories] == ["failed"]


def test_a_passage_is_cut_to_its_budget_in_a_message_and_in_every_copy_of_it() -> None:
    long = Passage(id="1", title="Ada", text="Ada was born in Tarn. " * 50)
    episode = played(STRIPS, THOUGHT, THOUGHT, ANSWER, shelf=Shelf(long), passage_tokens=12)
    cuts = [[s.cut for s in trajectory.segments if s.cut] for trajectory in episode.trajectories]
    assert [len(of_one) for of_one in cuts] == [0, 1, 2]
    assert len({cut for of_one in cuts for cut in of_one}) == 1
    closed = [t.text.count("\n</tool_response><|im_end|>\n<|im_start|>") for t in episode.trajectories]
    assert closed == [0, 1, 2]


def test_response_tokens_limit_everything_after_the_prompt() -> None:
    whole = played(KEEPS, THOUGHT, THOUGHT, ANSWER).trajectory
    asked = sum(len(s.tokens) for s in whole.segments[: [s.author for s in whole.segments].index("policy")])
    for limit in range(120, len(whole.tokens) - asked, 7):
        trajectory = played(KEEPS, THOUGHT, THOUGHT, ANSWER, response_tokens=limit).trajectory
        assert trajectory.stop == "length"
        assert len(trajectory.tokens) <= asked + limit
    assert played(KEEPS, THOUGHT, THOUGHT, ANSWER, response_tokens=len(whole.tokens) - asked) == played(
        KEEPS, THOUGHT, THOUGHT, ANSWER
    )


# -- templates that cannot be spoken to ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "end", "tools", "flags", "complaint"),
    [
        (None, "<|im_end|>", [], {}, "the tokenizer has no chat template"),
        (NO_TOOLS, "<|im_end|>", TOOLS, {}, "does not render tools, so the policy could not call them"),
        (ONLY_PEOPLE, "<|im_end|>", TOOLS, {}, "cannot render messages of user, assistant, tool: nobody but system"),
        (KEEPS, "<|end|>", TOOLS, {}, "ends a message with '<|im_end|>', but the tokenizer's eos_token is '<|end|>'"),
        (KEEPS, "<|im_end|>", [], {"enable_thinking": True}, "enable_thinking: the chat template has no such flag"),
        ("{{ messages | nothing }}", "<|im_end|>", [], {}, "cannot render messages of user: "),
        ("{% for", "<|im_end|>", [], {}, "cannot render messages of user: "),
        (KEEPS.replace("message.content + '\\n</tool", "(message.content | tojson) + '\\n</tool"), "<|im_end|>", TOOLS,
         {}, "changes the text of a tool's answer"),
    ],
)  # fmt: skip
def test_an_unusable_template_is_refused_in_one_clear_line(
    template: str | None, end: str, tools: list[dict[str, object]], flags: dict[str, object], complaint: str
) -> None:
    with pytest.raises(SleuthError) as caught:
        ChatTemplate(chat_tokenizer(template, end), tools=tools, flags=flags)
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_template_never_reads_text_of_people_passages_or_the_policy() -> None:
    spying = NO_TOOLS.replace("message.content +", "(message.content | upper | replace('ADA', 'Bo')) +")
    chat = ChatTemplate(chat_tokenizer(spying))
    held = (Piece(text="ask ", author="template"), Piece(text="Ada <|im_end|> \ue0000\ue001 {{ 1 }}"))
    assert "".join(piece.text for piece in chat.pieces([Message(role="user", content=held)])) == (
        "<|im_start|>user\nASK Ada <|im_end|> \ue0000\ue001 {{ 1 }}<|im_end|>\n<|im_start|>assistant\n"
    )


def test_templates_run_in_the_sandbox_of_transformers() -> None:
    breaking_out = "{{ ''.__class__.__mro__[1].__subclasses__() }}"
    with pytest.raises(SleuthError, match="cannot render messages"):
        ChatTemplate(chat_tokenizer(breaking_out))


def test_a_template_that_loops_is_stopped_and_others_are_still_rendered() -> None:
    loops = "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}"
    chat = ChatTemplate(
        chat_tokenizer(NO_TOOLS.replace("{%", "{% if messages | length > 1 %}" + loops + "{% endif %}{%", 1))
    )
    ask = Message(role="user", content=(Piece(text="Where?"),))
    for _ in range(2):
        with pytest.raises(SleuthError, match=r"the chat template was stopped .* does not end within 2 s"):
            chat.pieces([ask, ask])
    assert ChatTemplate(chat_tokenizer(NO_TOOLS)).pieces([ask])


def test_a_template_that_fills_the_memory_is_one_line() -> None:
    with pytest.raises(SleuthError, match="it needs more than 4 GB of memory"):
        ChatTemplate(chat_tokenizer("{{ messages[0].content * 30000000000 }}"))
