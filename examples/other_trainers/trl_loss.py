"""The loss of `examples/own_code/my_losses.py` in TRL: a trainer with another `_compute_loss`."""

import torch
from torch import Tensor
from trl import GRPOTrainer


class FadedTrainer(GRPOTrainer):
    def _compute_loss(self, model: torch.nn.Module, inputs: dict[str, Tensor]) -> Tensor:
        tokens = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        attended = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        trained = inputs["completion_mask"] * inputs.get("tool_mask", 1)
        kept = inputs["completion_ids"].size(1)
        logprobs, *_ = self._get_per_token_logps_and_entropies(model, tokens, attended, kept)
        old = inputs.get("old_per_token_logps")
        log_ratio = (logprobs - (logprobs.detach() if old is None else old)).clamp(-20, 20)
        fade = (-(log_ratio.detach() / 0.4).square()).exp()
        gain = trained * inputs["advantages"].unsqueeze(1) * log_ratio.exp() * fade
        return -gain.sum() / inputs["num_items_in_batch"]
