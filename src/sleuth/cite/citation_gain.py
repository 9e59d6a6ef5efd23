"""The gain of a snippet to a claim, cited or not: how much likelier its words in the tool output made the claim.

The tool output is rendered again without the snippet's words, and the claim's tokens are scored after both. A citation
without a gain may still be right: other snippets may support the claim too, or the model knew it.

A model that thinks before it answers copies its claims from the thought, so the thought's tokens are scored with the
claim's. They belong to the other claims too, so a snippet that only another claim cites is not compared with this one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import or_

from transformers import PreTrainedModel

from sleuth.cite.claims import tag_spans
from sleuth.dialect import Tags
from sleuth.episodes.setting import Setting
from sleuth.evaluation.counterfactual import RowPair, pair_logprobs
from sleuth.learn.batch import Row
from sleuth.render import IncrementalDecoder, Renderer
from sleuth.search.search_gain import CreditAssignment, CreditedSpan
from sleuth.types import Episode, Passage, Score, Segment, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class CitationGain:
    """The gain of one snippet to claim `number` of an answer, from 0, and whether the claim `cited` it.

    `value` is the log-probability, in nats, of the `tokens` of the claim and of the thought before it, with the
    snippet's words in the tool output minus without them. The claim with its tag is the token range [`begin`, `end`) of
    the trajectory's segment number `segment`, whose first `thought` tokens are the thought.

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
    """A claim that cites `ids`. `scored` marks the tokens of the answer that count for it; snippets in `excluded` are
    cited by other claims only and not compared."""

    number: int
    text: str
    ids: tuple[str, ...]
    scored: tuple[bool, ...]
    excluded: frozenset[str]
    segment: int
    begin: int
    end: int
    thought: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """A claim and a snippet; `pair` is None for an id that no snippet has."""

    claim: _Claim
    snippet: str
    pair: RowPair | None


def citation_gains(
    model: PreTrainedModel,
    renderer: Renderer,
    setting: Setting,
    episodes: Sequence[Episode],
    *,
    budget: int,
    temperature: float = 1.0,
) -> list[list[CitationGain]]:
    """By episode of a refiner, the gain of each snippet to each claim that cites any. An id that no snippet has gains 0
    for the claim that cites it; a snippet whose words the prompt does not contain is left out."""
    cases = [list(_cases(episode, setting, renderer)) for episode in episodes]
    pairs = [case.pair for of_episode in cases for case in of_episode if case.pair is not None]
    logprobs = iter(pair_logprobs(model, pairs, budget=budget, temperature=temperature))
    return [
        [_gain(case, () if case.pair is None else next(logprobs).gains) for case in of_episode] for of_episode in cases
    ]


def _gain(case: _Case, token_gains: Sequence[float]) -> CitationGain:
    return CitationGain(
        number=case.claim.number,
        claim=case.claim.text,
        snippet=case.snippet,
        cited=case.snippet in case.claim.ids,
        value=sum(token_gains),
        tokens=sum(case.claim.scored),
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
    ablated = {snippet.id: _without(episode.task, snippet) for snippet in evidence.snippets}
    prompts = {
        id_: renderer.render_all(asyncio.run(setting.env(task).open()).pieces)
        for id_, task in ablated.items()
        if task is not None
    }
    for claim in _claims(answer, at, setting.dialect.think, renderer):
        yield from (_Case(claim=claim, snippet=id_, pair=None) for id_ in claim.ids if id_ not in ablated)
        if not set(claim.ids) & prompts.keys():
            continue
        factual = _row(before, answer, claim.scored)
        for id_ in (id_ for id_ in prompts if id_ not in claim.excluded):
            counterfactual = _row(prompts[id_], answer, claim.scored)
            pair = RowPair(factual=factual, counterfactual=counterfactual, suffix_len=len(answer.tokens))
            yield _Case(claim=claim, snippet=id_, pair=pair)


def _claims(answer: Segment, segment: int, think: Tags, renderer: Renderer) -> Iterator[_Claim]:
    """The claims in citation tags after the thought, if there is one, of segment number `segment`."""
    thought = answer.text.find(think.close)
    spans = [span for span in tag_spans(answer.text) if span[0] > thought]
    thinking = _tokens_within(answer, 0, thought, renderer)
    cited = {id_ for *_, ids in spans for id_ in ids} if any(thinking) else set[str]()
    for number, (begin, end, ids) in enumerate(spans):
        words = _tokens_within(answer, begin, end, renderer)
        tag = _tokens_within(answer, answer.text.rfind("<", 0, begin), answer.text.find(">", end) + 1, renderer)
        if any(words):
            yield _Claim(
                number=number,
                text=answer.text[begin:end],
                ids=ids,
                scored=tuple(map(or_, words, thinking)),
                excluded=frozenset(cited.difference(ids)),
                segment=segment,
                begin=tag.index(True),
                end=len(tag) - tag[::-1].index(True),
                thought=sum(thinking),
            )


def _without(task: Task, snippet: Passage) -> Task | None:
    """The task without the words of a snippet; None if its prompt does not contain them."""
    assert task.evidence is not None
    prompt, output = task.prompt, task.evidence.output
    if snippet.text not in (prompt or output):
        return None
    evidence = replace(task.evidence, output=output.replace(snippet.text, "", 1))
    return replace(task, prompt=prompt.replace(snippet.text, "", 1), evidence=evidence)


def _tokens_within(answer: Segment, begin: int, end: int, renderer: Renderer) -> list[bool]:
    """For each token of the answer, whether it writes a character of [`begin`, `end`)."""
    decoder, written, within = IncrementalDecoder(renderer.tokenizer), 0, []
    for token in answer.tokens:
        text = decoder.push(token)
        within.append(written < end and written + len(text) > begin)
        written += len(text)
    return within


def _row(prompt: Sequence[Segment], answer: Segment, scored: Sequence[bool]) -> Row:
    tokens = tuple(token for segment in prompt for token in segment.tokens)
    return Row(tokens=(*tokens, *answer.tokens), trained=(*[False] * len(tokens), *scored))


class CitationCredit(CreditAssignment):
    """Credit for citations, in every episode that has a score."""

    idle = "idle_citations"

    def counts(self, score: Score) -> bool:
        return score.value is not None

    def spans(self, episodes: Sequence[Episode], budget: int) -> list[list[CreditedSpan]]:
        """By claim, the largest gain of the snippets that it cites."""
        worker = self.worker
        temperature = worker.stage.sampling.temperature
        found = citation_gains(
            self.model, worker.renderer, worker.setting, episodes, budget=budget, temperature=temperature
        )
        spans = []
        for gains in found:
            claims = groupby((gain for gain in gains if gain.cited), key=lambda gain: gain.number)
            best = [max(of_claim, key=lambda gain: gain.value) for _, of_claim in claims]
            spans.append(
                [
                    CreditedSpan(gain=b.value, segment=b.segment, begin=b.begin, end=b.end, thought=b.thought)
                    for b in best
                ]
            )
        return spans
