"""The gain of a snippet to a claim, cited or not: how much likelier its words in the tool output made the claim.

The tool output is rendered again without the snippet's words, and the claim's tokens are scored after both. A citation
without a gain may still be right: other snippets may support the claim too, or the model knew it.

A model that thinks before it answers copies its claims from the thought, so the thought's tokens are scored with the
claim's. They belong to the other claims too, so a snippet that only another claim cites is not compared with this one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from operator import or_

from transformers import PreTrainedModel

from sleuth.cite.claims import tag_spans
from sleuth.dialect import Tags
from sleuth.episodes.setting import Setting
from sleuth.evaluation.counterfactual import RowPair, pair_logprobs
from sleuth.evaluation.eval_session import EvalSession
from sleuth.evaluation.intervals import Measured, bootstrap_mean, share
from sleuth.learn.batch import Row
from sleuth.learn.policy import TokenBudget
from sleuth.render import IncrementalDecoder, Renderer
from sleuth.search.probe import BASE_ARM, BUDGET, ProbeResult
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
    snippet: str = ""
    cited: bool = True
    value: float = 0
    tokens: int
    segment: int
    begin: int
    end: int
    thought: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Claim:
    """A claim that cites `ids`, as a gain of no snippet yet. `scored` marks the tokens of the answer that count for it;
    snippets in `excluded` are cited by other claims only and not compared."""

    gain: CitationGain
    ids: tuple[str, ...]
    scored: tuple[bool, ...]
    excluded: frozenset[str]


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
    pairs = [pair for of_episode in cases for _, pair in of_episode if pair is not None]
    logprobs = iter(pair_logprobs(model, pairs, budget=budget, temperature=temperature))
    return [
        [gain if pair is None else replace(gain, value=sum(next(logprobs).gains)) for gain, pair in of_episode]
        for of_episode in cases
    ]


def _cases(episode: Episode, setting: Setting, renderer: Renderer) -> Iterator[tuple[CitationGain, RowPair | None]]:
    """Each claim with each snippet, and the rows to score; None for an id that no snippet has."""
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
        yield from ((replace(claim.gain, snippet=id_), None) for id_ in claim.ids if id_ not in ablated)
        if not set(claim.ids) & prompts.keys():
            continue
        factual = _row(before, answer, claim.scored)
        for id_, prompt in prompts.items():
            if id_ not in claim.excluded:
                counterfactual = _row(prompt, answer, claim.scored)
                pair = RowPair(factual=factual, counterfactual=counterfactual, suffix_len=len(answer.tokens))
                yield replace(claim.gain, snippet=id_, cited=id_ in claim.ids), pair


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
            scored = tuple(map(or_, words, thinking))
            gain = CitationGain(
                number=number,
                claim=answer.text[begin:end],
                tokens=sum(scored),
                segment=segment,
                begin=tag.index(True),
                end=len(tag) - tag[::-1].index(True),
                thought=sum(thinking),
            )
            yield _Claim(gain=gain, ids=ids, scored=scored, excluded=frozenset(cited.difference(ids)))


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
        worker, temperature = self.worker, self.worker.stage.sampling.temperature
        by_episode = citation_gains(
            self.model, worker.renderer, worker.setting, episodes, budget=budget, temperature=temperature
        )
        return [[*_credited(gains)] for gains in by_episode]


def _credited(gains: Sequence[CitationGain]) -> Iterator[CreditedSpan]:
    """Each claim by the largest gain of a snippet that it cites."""
    for _, of_claim in groupby((gain for gain in gains if gain.cited), key=lambda gain: gain.number):
        best = max(of_claim, key=lambda gain: gain.value)
        yield CreditedSpan(gain=best.value, segment=best.segment, begin=best.begin, end=best.end, thought=best.thought)


def probe_citations(session: EvalSession, tasks: Sequence[Task], weights: PreTrainedModel) -> ProbeResult:
    """Whether a refiner uses what it cites. Over all claims that cite, clustered by question: the gain of cited
    snippets and of the others, and how often a cited one gained more than any other."""
    episodes = [episode for episode, _ in session.ask(tasks, BASE_ARM)]
    renderer = Renderer(session.tokenizer, session.setting.dialect.tags)
    by_episode = TokenBudget(BUDGET).run(
        lambda tokens: citation_gains(weights, renderer, session.setting, episodes, budget=tokens)
    )
    pairs = [(episode.task.id, gain) for episode, gains in zip(episodes, by_episode, strict=True) for gain in gains]
    claims: dict[tuple[int, int], tuple[list[float], list[float]]] = {}
    for at, gains in enumerate(by_episode):
        for gain in gains:
            claims.setdefault((at, gain.number), ([], []))[not gain.cited].append(gain.value)
    wins = {key: float(max(own) > max(others)) for key, (own, others) in claims.items() if own and others}
    snippets: dict[str, dict[str, Measured]] = {}
    for name, cited in (("cited", True), ("not cited", False)):
        if group := [(task, gain.value) for task, gain in pairs if gain.cited == cited]:
            snippets[name] = {"gain": bootstrap_mean([value for _, value in group], [task for task, _ in group])}
    if wins:
        snippets["cited"]["ahead"] = share([*wins.values()], [episodes[at].task.id for at, _ in wins])
    return ProbeResult(snippets=snippets, records=[{"id": task, **asdict(gain)} for task, gain in pairs])
