"""What a snippet was worth to a claim, cited or not: how much likelier its words made those of the claim.

The tool output is told again without the snippet's words, and the claim's tokens are read under both stories, behind
the same beginning of the answer. A citation that gains nothing may be right all the same: the claim then stands in
other snippets too, or the model knew it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from transformers import PreTrainedModel

from sleuth.build import Setting
from sleuth.learn.batch import Row
from sleuth.render import IncrementalDecoder, Renderer
from sleuth.rewards.citation.claims import tag_spans
from sleuth.stages.counterfactual import Telling, read_twice
from sleuth.types import Episode, Passage, Segment, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class CitationGain:
    """One snippet and one claim, the `number`-th of its answer, from 0, which may have `cited` it: `value` is the
    log-probability, in nats, of the claim's `tokens` with the snippet's words in the tool output minus without them.

    `CitationGain(number=0, claim="Ada was born in Tarn.", snippet="a1", cited=True, value=5.2, tokens=8)`.
    """

    number: int
    claim: str
    snippet: str
    cited: bool
    value: float
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    number: int
    claim: str
    snippet: str
    cited: bool
    telling: Telling


def citation_gains(
    model: PreTrainedModel, renderer: Renderer, setting: Setting, episodes: Sequence[Episode], *, budget: int
) -> list[list[CitationGain]]:
    """By episode of a refiner, what each snippet was worth to each claim that cites any. A snippet whose words do not
    stand in what was read has none, and so has a claim whose ids nothing has."""
    cases = [list(_cases(episode, setting, renderer)) for episode in episodes]
    read = iter(read_twice(model, [case.telling for of_episode in cases for case in of_episode], budget=budget))
    return [[_gain(case, next(read).gained) for case in of_episode] for of_episode in cases]


def _gain(case: _Case, gained: Sequence[float]) -> CitationGain:
    count = sum(case.telling.as_it_is.trained)
    return CitationGain(
        number=case.number,
        claim=case.claim,
        snippet=case.snippet,
        cited=case.cited,
        value=sum(gained),
        tokens=count,
    )


def _cases(episode: Episode, setting: Setting, renderer: Renderer) -> Iterator[_Case]:
    evidence = episode.task.evidence
    answer = next((one for one in episode.trajectory.segments if one.author == "policy"), None)
    if evidence is None or answer is None:
        return
    before = episode.trajectory.segments[: episode.trajectory.segments.index(answer)]
    told = {snippet.id: _without(episode.task, snippet) for snippet in evidence.snippets}
    prompts = {
        id_: renderer.render_all(asyncio.run(setting.env(task).open()).pieces)
        for id_, task in told.items()
        if task is not None
    }
    for number, (begin, end, ids) in enumerate(tag_spans(answer.text)):
        read = _tokens_within(answer, begin, end, renderer)
        if not any(read) or not set(ids) & prompts.keys():
            continue
        as_it_is = _row(before, answer, read)
        for id_, prompt in prompts.items():
            otherwise = _row(prompt, answer, read)
            telling = Telling(as_it_is=as_it_is, otherwise=otherwise, behind=len(answer.tokens))
            yield _Case(number=number, claim=answer.text[begin:end], snippet=id_, cited=id_ in ids, telling=telling)


def _without(task: Task, snippet: Passage) -> Task | None:
    """The task without the words of a snippet; None where they do not stand in what is read."""
    assert task.evidence is not None
    asked, output = task.prompt, task.evidence.output
    if snippet.text not in (asked or output):
        return None
    evidence = replace(task.evidence, output=output.replace(snippet.text, "", 1))
    return replace(task, prompt=asked.replace(snippet.text, "", 1), evidence=evidence)


def _tokens_within(answer: Segment, begin: int, end: int, renderer: Renderer) -> list[bool]:
    """Which tokens of the answer write characters from `begin` to `end`."""
    decoder, written, within = IncrementalDecoder(renderer.tokenizer), 0, []
    for token in answer.tokens:
        text = decoder.push(token)
        within.append(written < end and written + len(text) > begin)
        written += len(text)
    return within


def _row(prompt: Sequence[Segment], answer: Segment, read: Sequence[bool]) -> Row:
    tokens = tuple(token for segment in prompt for token in segment.tokens)
    return Row(tokens=(*tokens, *answer.tokens), trained=(*[False] * len(tokens), *read))
