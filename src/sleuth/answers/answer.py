"""The answer of an episode and the search results that it was shown, and rewards computed from them, by the strict or a
published scorer; and the sum of several rewards."""

from __future__ import annotations

import asyncio
import re
from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from sleuth.answers import match
from sleuth.answers.match import appears_in, exact_match, normalise
from sleuth.answers.scorers import Scorer, scorer_of
from sleuth.answers.scorers.scorer import STRICT, extract, transcript_of
from sleuth.dialect import Dialect
from sleuth.types import Episode, Group, Passage, Reward, Score, Trajectory, failed_score

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

Outcome = Literal["correct", "wrong", "no_answer", "malformed"]
OUTCOMES: tuple[str, ...] = get_args(Outcome)
CITING = ("cites", "cited_holds_answer", "cited_gold")
"""The parts of answers that may cite a passage."""


def given_answer(episode: Episode, dialect: Dialect) -> tuple[str | None, Outcome]:
    """(answer, outcome): the policy's answer, read from its own segments alone; None if there is no valid one.

    An answer element that did not end the episode (`stop` is not "answered") is malformed.
    """
    turns = _policy_turns(episode.trajectory, dialect)
    extracted = extract(turns, dialect.answer.open, dialect.answer.close)
    if (answer := extracted.answer) is None:
        return None, extracted.fault or "no_answer"
    if dialect.answer_inner is not None:  # dialects that box the answer
        match = dialect.find_answer(answer)
        answer = "" if match is None else match["text"].strip()
    if not answer or episode.trajectory.stop != "answered":
        return None, "malformed"
    return answer, "correct" if exact_match(answer, episode.task.golden_answers) else "wrong"


def passages_with(answer: str, trajectory: Trajectory) -> Iterator[Passage]:
    """The passages that contain the answer in the part that the policy was shown, in that order."""
    for _, _, passage, shown in shown_passages(trajectory):
        if appears_in(answer, f"{passage.title}\n{passage.text}") and appears_in(answer, shown):
            yield passage


def shown_part(result: str, reply: str) -> str:
    """As much of the beginning of a result as the reply contains: all of it unless a budget cut it."""
    lengths = range(len(result) + 1)  # if a beginning stands in the reply, so does every shorter one
    shown = bisect_left(lengths, True, key=lambda length: result[:length] not in reply) - 1
    return result[:shown]


def shown_passages(trajectory: Trajectory) -> Iterator[tuple[int, int, Passage, str]]:
    """(search, rank, passage, reply): each passage with its search and its rank, both from 1, and all that the
    environment wrote in reply to that search.

    Actions are matched to policy turns from the end: after a chat template rewrote the history in mid-episode, earlier
    actions have no turn of their own and their results are in the text before the first turn."""
    before, *replies = _replies(trajectory)
    turns = trajectory.action_turns
    shown = [before] * (turns[-1] + 1 - len(replies) if turns else 0) + replies
    search = 0
    for action, turn in zip(trajectory.actions, turns, strict=True):
        reply = shown[turn]
        search += action.kind == "search"
        yield from ((search, rank, passage, reply) for rank, passage in enumerate(action.passages, start=1))


def _replies(trajectory: Trajectory) -> list[str]:
    """The text by other authors than the policy: before its first turn, then after each turn."""
    replies = [""]
    for segment in trajectory.segments:
        if segment.author == "policy":
            replies.append("")
        else:
            replies[-1] += segment.text
    return replies


def cited_passage(trajectory: Trajectory, dialect: Dialect) -> Passage | None:
    """The first result of the last search that contains what the answer quotes, as far as the policy was shown it; None
    if there is no answer, it quotes no word, or there is no such result. For dialects that cite."""
    quoted = quotation(trajectory, dialect)
    if not normalise(quoted):
        return None
    for search, rank, passage, reply in shown_passages(trajectory):
        result = dialect.passage.format(rank=rank, title=passage.title, text=passage.text)
        if search == trajectory.searches and find_words(quoted, shown_part(result, reply)):
            return passage
    return None


def find_words(quoted: str, text: str) -> re.Match[str] | None:
    """Where `text` first has the words of a quotation in a row, with any white space between them."""
    return re.search(r"\s+".join(map(re.escape, quoted.split())), text)


def quotation(trajectory: Trajectory, dialect: Dialect) -> str:
    """What an answer quotes, in the result or not: the answer and what follows it, or a sentence; empty if nothing."""
    answer = extract(_policy_turns(trajectory, dialect), dialect.answer.open, dialect.answer.close).answer
    match = dialect.find_answer(answer) if answer and dialect.cites else None
    groups = {} if match is None else match.groupdict()
    if (follows := groups.get("quoted")) is not None:
        return f"{groups['text']}{follows}".strip()
    return (groups.get("sentence") or "").strip()


def cited_passage_holds(answer: str, trajectory: Trajectory, dialect: Dialect) -> bool:
    """Whether the trajectory quotes a passage in words that contain those of the answer, which are whole words of that
    passage too: `Paris` is none of `Parisian`."""
    cited = cited_passage(trajectory, dialect)
    return cited is not None and all(
        appears_in(answer, text) for text in (quotation(trajectory, dialect), f"{cited.title}\n{cited.text}")
    )


def opened_answer(trajectory: Trajectory, dialect: Dialect) -> str:
    """The answer tag, if the environment wrote it just before the policy's first turn, as of a closed book; else
    nothing."""
    segments = trajectory.segments
    first = next((at for at, segment in enumerate(segments) if segment.author == "policy"), 0)
    opening = segments[first - 1] if first else None
    opened = opening is not None and opening.author == "env" and opening.text == dialect.answer.open
    return dialect.answer.open if opened else ""


def _policy_turns(trajectory: Trajectory, dialect: Dialect) -> list[str]:
    """What the policy wrote, turn by turn; an answer tag that the environment opened for it belongs to its turn."""
    turns = [segment.text for segment in trajectory.segments if segment.author == "policy"]
    return [opened_answer(trajectory, dialect) + turn if at == 0 else turn for at, turn in enumerate(turns)]


class RewardOfEpisodes:
    """A reward of each episode by itself; missing where the episode failed, as when the retriever did."""

    async def __call__(self, group: Group) -> list[Score]:
        return [failed_score(episode) or self.score(episode) for episode in group.episodes]

    @abstractmethod
    def score(self, episode: Episode) -> Score:
        """The score of an episode that did not fail."""


class AnswerReward(RewardOfEpisodes):
    """The score by `scorer`; missing too where the scorer cannot read the episode.

    Parts: strict exact match `em` (whatever the scorer), one of `correct`, `wrong`, `no_answer`, `malformed` at 1 (the
    note names it), and `score_NAME` of a scorer other than `strict`; without golden answers nothing is right or wrong,
    and the score is missing. In a dialect whose answers cite, an answer has the
    part `cites` (a passage that was shown contains what it quotes), and a right one `cited_holds_answer` (the quotation
    contains it) and, if the task names passages, `cited_gold` (that passage is one of them); both are 0 if it cites
    none. `end_token` is the id of the end-of-text token, which some scorers require.
    """

    def __init__(self, dialect: Dialect, *, scorer: Scorer = STRICT, end_token: int | None = None) -> None:
        self.dialect = dialect
        self.scorer = scorer
        self.end_token = end_token

    def score(self, episode: Episode) -> Score:
        answer, outcome = given_answer(episode, self.dialect)
        if not episode.task.golden_answers and episode.task.evidence is None:
            return Score(value=None, note="") if answer else Score(value=None, parts={outcome: 1.0}, note=outcome)
        em = float(outcome == "correct")
        parts = {"em": em, outcome: 1.0}
        if self.dialect.cites and answer is not None:
            cited = cited_passage(episode.trajectory, self.dialect)
            parts |= {"cites": float(cited is not None)}
            if outcome == "correct":
                parts |= {"cited_holds_answer": float(cited_passage_holds(answer, episode.trajectory, self.dialect))}
                if gold := episode.task.gold_passages:
                    parts |= {"cited_gold": float(cited is not None and cited.id in gold)}
        if self.scorer.name == STRICT.name:
            return Score(value=em, parts=parts, note=outcome)
        opened = opened_answer(episode.trajectory, self.dialect)
        transcript = transcript_of(episode.trajectory, self.end_token, opened)
        value = self.scorer.score_transcript(transcript, episode.task.golden_answers)
        if value is None:
            return Score(value=None, parts=parts, note=f"the scorer {self.scorer.name} cannot read the episode")
        return Score(value=value, parts=parts | {f"score_{self.scorer.name}": value}, note=outcome)


def answer_reward_of(scorer: str, dialect: Dialect, tokenizer: PreTrainedTokenizerFast | None) -> AnswerReward:
    """The reward for answers in a dialect; the tokenizer gives the token that ends a text."""
    end_token = cast("int | None", tokenizer.eos_token_id) if tokenizer else None
    return AnswerReward(dialect, scorer=scorer_of(scorer), end_token=end_token)


SCORE = "score"
"""What a stage pays, where no answer is compared with golden ones."""
AUDIT_SCORE = "audit_score"
"""The same by a judge that is not paid."""


class EpisodeReward(RewardOfEpisodes):
    """`measure(episode, dialect)`, a number between 0 and 1, as the part `name`."""

    def __init__(self, name: str, measure: Callable[[Episode, Dialect], float], dialect: Dialect) -> None:
        self.name = name
        self.measure = measure
        self.dialect = dialect

    def score(self, episode: Episode) -> Score:
        value = self.measure(episode, self.dialect)
        return Score(value=value, parts={self.name: value})


def token_f1(episode: Episode, dialect: Dialect) -> float:
    """`match.token_f1` of the answer; 0 without one."""
    answer, _ = given_answer(episode, dialect)
    return 0.0 if answer is None else match.token_f1(answer, episode.task.golden_answers)


class TotalReward:
    """The weighted sum of several rewards and of their token credits; missing if any of them is, but for one of weight
    0, which is measured alone. Parts stay unweighted; the note is the first non-empty one, and the `notes` are those of
    all."""

    def __init__(self, rewards: Sequence[Reward], weights: Sequence[float]) -> None:
        self.rewards = rewards
        self.weights = weights

    async def __call__(self, group: Group) -> list[Score]:
        if not self.rewards:  # all scores come from a later phase
            return [Score(value=0.0) for _ in group.episodes]
        by_reward = await asyncio.gather(*(reward(group) for reward in self.rewards))
        failed = map(failed_score, group.episodes)
        return [self._sum(scores, why) for scores, why in zip(zip(*by_reward, strict=True), failed, strict=True)]

    def _sum(self, scores: Sequence[Score], failed: Score | None) -> Score:
        weighted = list(zip(self.weights, scores, strict=True))
        missing = [failed.note] if failed else []
        missing += [score.note for weight, score in weighted if weight and score.value is None]
        if missing:
            return Score(value=None, note=missing[0], **_joined(scores))
        value = sum(weight * (score.value or 0.0) for weight, score in weighted)
        credits = tuple(
            replace(credit, value=weight * credit.value)
            for weight, score in weighted
            for credit in score.credits
            if weight
        )
        note = next((score.note for score in scores if score.note), "")
        return Score(value=value, note=note, credits=credits, **_joined(scores))


class WithParts:
    """The scores of a reward, with the parts and notes that other rewards give the same episodes; its own win. With a
    `name` its value is a part too."""

    def __init__(self, reward: Reward, others: Sequence[Reward], *, name: str | None = None) -> None:
        self.reward = reward
        self.others = others
        self.name = name

    async def __call__(self, group: Group) -> list[Score]:
        scores, *others = await asyncio.gather(*(reward(group) for reward in (self.reward, *self.others)))
        return [replace(one, **_joined([self._named(one), *more])) for one, *more in zip(scores, *others, strict=True)]

    def _named(self, score: Score) -> Score:
        if self.name is None or score.value is None:
            return score
        return replace(score, parts={self.name: score.value, **score.parts})


def _joined(scores: Sequence[Score]) -> dict[str, Any]:
    """The parts and the notes of all; of the same name, that of the first."""
    parts: dict[str, float] = {}
    notes: dict[str, str] = {}
    for score in scores:
        parts = {**parts, **{name: value for name, value in score.parts.items() if name not in parts}}
        notes = {**notes, **{name: note for name, note in score.notes.items() if name not in notes}}
    return {"parts": parts, "notes": notes}
