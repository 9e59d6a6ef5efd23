"""What a snippet was worth to a claim, cited or not: how much likelier its words made those of the claim.

The tool output is told again without the snippet's words, and the claim's tokens are read under both stories, behind
the same beginning of the answer. A citation that gains nothing may be right all the same: the claim then stands in
other snippets too, or the model knew it.

Where the model thought before it answered, it found its claims in the thought, and wrote them off it: the thought's
tokens are read with the claim's. They are as much about the other claims, so a snippet that only another claim cites is
not compared with this one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import or_

from transformers import PreTrainedModel

from sleuth.dialects import Tags
from sleuth.evaluation.counterfactual import Telling, read_twice
from sleuth.factories import Setting
from sleuth.learn.batch import Row
from sleuth.render import IncrementalDecoder, Renderer
from sleuth.rewards.citation.claims import tag_spans
from sleuth.types import Episode, Passage, Segment, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class CitationGain:
    """One snippet and one claim, the `number`-th of its answer, from 0, which may have `cited` it: `value` is the
    log-probability, in nats, of the `tokens` of the claim, and of the thought before it, with the snippet's words in
    the tool output minus without them. The claim and the tag around it are the tokens from `begin` to before `end` of
    the trajectory's segment number `segment`, and its first `thought` tokens are the thought.

    `CitationGain(number=0, claim="Ada was born in Tarn.", snippet="a1", cited=True, value=5.2, tokens=8, segment=1,
    begin=4, end=17, thought=0)`.
    """

    number: int
    claim: str
    snippet: str
    cited: bool
    value: float
    tokens: int
    segment: int
    begin: int
    end: int
    thought: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Claim:
    """A claim that cites `ids`, and the tokens of its answer that are `read` for it; snippets of `others` are not
    compared."""

    number: int
    text: str
    ids: tuple[str, ...]
    read: tuple[bool, ...]
    others: frozenset[str]
    segment: int
    begin: int
    end: int
    thought: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """`telling` is None for a snippet that there is not."""

    claim: _Claim
    snippet: str
    telling: Telling | None


def citation_gains(
    model: PreTrainedModel,
    renderer: Renderer,
    setting: Setting,
    episodes: Sequence[Episode],
    *,
    budget: int,
    temperature: float = 1.0,
) -> list[list[CitationGain]]:
    """By episode of a refiner, what each snippet was worth to each claim that cites any. One that there is not is worth
    0 to the claim that cites it; one whose words do not stand in what was read is left out."""
    cases = [list(_cases(episode, setting, renderer)) for episode in episodes]
    tellings = [case.telling for of_episode in cases for case in of_episode if case.telling is not None]
    read = iter(read_twice(model, tellings, budget=budget, temperature=temperature))
    return [
        [_gain(case, () if case.telling is None else next(read).gained) for case in of_episode] for of_episode in cases
    ]


def _gain(case: _Case, gained: Sequence[float]) -> CitationGain:
    return CitationGain(
        number=case.claim.number,
        claim=case.claim.text,
        snippet=case.snippet,
        cited=case.snippet in case.claim.ids,
        value=sum(gained),
        tokens=sum(case.claim.read),
        segment=case.claim.segment,
        begin=case.claim.begin,
        end=case.claim.end,
        thought=case.claim.thought,
    )


def _cases(episode: Episode, setting: Setting, renderer: Renderer) -> Iterator[_Case]:
    evidence = episode.task.evidence
    segments = episode.trajectory.segments
    at = next((at for at, segment in enumerate(segments) if segment.author == "policy"), None)
    if evidence is None or at is None:
        return
    before, answer = segments[:at], segments[at]
    told = {snippet.id: _without(episode.task, snippet) for snippet in evidence.snippets}
    prompts = {
        id_: renderer.render_all(asyncio.run(setting.env(task).open()).pieces)
        for id_, task in told.items()
        if task is not None
    }
    for claim in _claims(answer, at, setting.dialect.think, renderer):
        yield from (_Case(claim=claim, snippet=id_, telling=None) for id_ in claim.ids if id_ not in told)
        if not set(claim.ids) & prompts.keys():
            continue
        as_it_is = _row(before, answer, claim.read)
        for id_ in (id_ for id_ in prompts if id_ not in claim.others):
            otherwise = _row(prompts[id_], answer, claim.read)
            telling = Telling(as_it_is=as_it_is, otherwise=otherwise, behind=len(answer.tokens))
            yield _Case(claim=claim, snippet=id_, telling=telling)


def _claims(answer: Segment, segment: int, think: Tags, renderer: Renderer) -> Iterator[_Claim]:
    """What stands in tags behind the thought, if there is one, in the `segment`-th segment."""
    thought = answer.text.find(think.close)
    spans = [span for span in tag_spans(answer.text) if span[0] > thought]
    thinking = _tokens_within(answer, 0, thought, renderer)
    named = {id_ for *_, ids in spans for id_ in ids} if any(thinking) else set[str]()
    for number, (begin, end, ids) in enumerate(spans):
        read = _tokens_within(answer, begin, end, renderer)
        tag = _tokens_within(answer, answer.text.rfind("<", 0, begin), answer.text.find(">", end) + 1, renderer)
        if any(read):
            yield _Claim(
                number=number,
                text=answer.text[begin:end],
                ids=ids,
                read=tuple(map(or_, read, thinking)),
                others=frozenset(named.difference(ids)),
                segment=segment,
                begin=tag.index(True),
                end=len(tag) - tag[::-1].index(True),
                thought=sum(thinking),
            )


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
