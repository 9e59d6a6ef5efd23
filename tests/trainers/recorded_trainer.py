"""TRL's trainer with a policy that writes what a test says."""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Any

from recorded import answer
from trl import GRPOTrainer

from sleuth.render import decode, encode


class RecordedTrainer(GRPOTrainer):
    """TRL's trainer, in which the policy writes recorded turns: those that followed the same text in our episodes,
    then the `script`, then one answer. `rewards`, `outputs` and
    `last_ids`, the tokens after the prompts, are those of its last batch, `asked` all its rows."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.turns: dict[str, deque[tuple[int, ...]]] = defaultdict(deque)
        self.script: deque[str] = deque()
        self.asked: list[dict[str, Any]] = []

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        self.asked += inputs
        self.outputs = super()._generate_and_score_completions(inputs)
        return self.outputs

    def _generate_single_turn(self, prompt_ids: Any, *others: Any, **options: Any) -> Any:
        queues = [self.turns[decode(self.processing_class, tokens)] for tokens in prompt_ids]
        return [list(queue.popleft()) if queue else self._scripted() for queue in queues], None

    def _scripted(self) -> list[int]:
        return encode(self.processing_class, self.script.popleft() if self.script else answer("what was not shown"))

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, tokens: Any) -> Any:
        self.last_ids = tokens
        self.rewards = super()._calculate_rewards(inputs, prompts, completions, tokens)  # (B, 1)
        return self.rewards
