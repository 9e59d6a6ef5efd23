"""The batch-wide advantage of "The second idea" in TRL: a trainer with two private methods replaced."""

from trl import GRPOTrainer


class BatchTrainer(GRPOTrainer):
    def _calculate_rewards(self, *arguments):
        self.scores = super()._calculate_rewards(*arguments)  # (all processes' completions, functions)
        return self.scores

    def _generate_and_score_completions(self, inputs):
        outputs = super()._generate_and_score_completions(inputs)
        scores = (self.scores * self.reward_weights.to(self.scores.device)).nansum(dim=1)
        scores[self.scores.isnan().all(dim=1)] = float("nan")
        start = self.accelerator.process_index * len(inputs)
        outputs["advantages"] = (scores - scores.nanmean()).nan_to_num()[start : start + len(inputs)]
        return outputs
