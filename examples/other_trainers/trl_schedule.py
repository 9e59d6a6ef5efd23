"""The schedule of the KL weight of "The second idea" in TRL: `trainer.add_callback(Gentle(trainer))`."""

from transformers import TrainerCallback


class Gentle(TrainerCallback):
    def __init__(self, trainer):
        self.trainer = trainer

    def on_step_begin(self, args, state, control, **others):
        kl = next((row["kl"] for row in reversed(state.log_history) if "kl" in row), 0.0)
        self.trainer.beta = 0.01 if kl > 0.1 else 0.001
