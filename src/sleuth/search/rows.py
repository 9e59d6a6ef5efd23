"""Question rows of Search-R1 and its ports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sleuth.data.layouts import QuestionLayout
from sleuth.data.rows import Row, checked_text, text_of
from sleuth.types import SleuthError

VERL_PREFIX = "searchR1_"


def standard_row(row: Row, where: str) -> Row:
    """A question row of Search-R1 (arXiv:2503.09516) or its ports in our layout.

    - Search-R1's own parquet, `nq_hotpotqa_train`: `id`, `question`, `golden_answers` and `data_source`, and what verl
      trains from: `prompt` (chat messages), `reward_model` and `extra_info`.
    - verl's rewrite: no `id`, `question` or `golden_answers`; the question is in `extra_info`, the answers are the
      target of `reward_model`, and `data_source` starts with `searchR1_`.
    - SkyRL's rewrite: as verl's, with `reward_spec` instead of `reward_model`.

    Ids restart in every source, so that ours are prefixed with the source: `nq/train_0`, `hotpotqa/train_0`.
    `extra_info.index` restarts too and is ignored: a row without an id is named by its line, `nq/row_17`.
    """
    source = str(row.get("data_source") or "").removeprefix(VERL_PREFIX)
    own_id = text_of(row, "id", where) if row.get("id") is not None else f"row_{where.rpartition(':')[2]}"
    return {
        "id": f"{source}/{own_id}" if source else own_id,
        "question": _question(row, where),
        "golden_answers": row["golden_answers"] if row.get("golden_answers") is not None else _target(row, where),
        "data_source": source,
    }


def _question(row: Row, where: str) -> str:
    if row.get("question") is not None:
        return text_of(row, "question", where)
    info = row.get("extra_info")
    if isinstance(info, Mapping) and info.get("question") is not None:
        return checked_text(info["question"], "extra_info.question", where)
    raise SleuthError(f"{where}: no `question`, neither as a column nor in `extra_info`")


def _target(row: Row, where: str) -> Any:
    """The golden answers of the row's own reward: `{"ground_truth": {"target": ["Tarn"]}}`."""
    key = "reward_model" if row.get("reward_model") is not None else "reward_spec"
    reward = row.get(key)
    truth = reward.get("ground_truth") if isinstance(reward, Mapping) else None
    target = truth.get("target") if isinstance(truth, Mapping) else truth
    if target is None:
        raise SleuthError(
            f'{where}: no `golden_answers`, and no `{key}` of the form {{"ground_truth": {{"target": []}}}}'
        )
    return target


SEARCH_R1 = QuestionLayout(
    columns=("reward_model.ground_truth", "reward_spec.ground_truth", "extra_info.question"),
    fits=lambda row: "reward_model" in row or "reward_spec" in row,
    standard_row=standard_row,
)
