"""The one place where a recipe's parts become objects. Registries are dictionaries in plain sight; nothing runs
here."""

from sleuth.build.bench import Bench
from sleuth.build.engines import TrainingEngine, engine_of
from sleuth.build.environments import (
    SearchSetting,
    dialect_in,
    dialect_of,
    retriever_of,
    search_setting,
    setting_of,
    setting_of_card,
)
from sleuth.build.judges import OpenJudge, judge_of, rubric_writer_of, thought_writer_of
from sleuth.build.learning import adapters_of, holding_on, optimisation_of, policy_loss_of
from sleuth.build.models import Outline, context_of, load_model, load_outline, pick_device, random_model
from sleuth.build.preference import (
    continuation_judges_in,
    pair_judge_of,
    preference_judges_in,
    preference_reward_of,
    preference_spec_of,
    require_pools,
    shown_to,
)
from sleuth.build.refining import RefineSetting, refine_setting
from sleuth.build.rewards import (
    EPISODE_REWARDS,
    answer_reward_of,
    answer_scorer_of,
    citation_reward_of,
    examiner_of,
    judges_in,
    misfits_of,
    require_gradable,
    require_judges,
    reward_of,
    reward_spec_of,
)
from sleuth.build.setting import Setting, changes_of_card
from sleuth.build.text import Excerpts, chunks_of, excerpts_of
from sleuth.build.thoughts import (
    THINK,
    Place,
    has_tags,
    interleaved,
    places_in,
    require_apart,
    thought_documents,
    thought_tokens,
)
from sleuth.build.vocabulary import add_tokens

__all__ = [
    "EPISODE_REWARDS",
    "THINK",
    "Bench",
    "Excerpts",
    "OpenJudge",
    "Outline",
    "Place",
    "RefineSetting",
    "SearchSetting",
    "Setting",
    "TrainingEngine",
    "adapters_of",
    "add_tokens",
    "answer_reward_of",
    "answer_scorer_of",
    "changes_of_card",
    "chunks_of",
    "citation_reward_of",
    "context_of",
    "continuation_judges_in",
    "dialect_in",
    "dialect_of",
    "engine_of",
    "examiner_of",
    "excerpts_of",
    "has_tags",
    "holding_on",
    "interleaved",
    "judge_of",
    "judges_in",
    "load_model",
    "load_outline",
    "misfits_of",
    "optimisation_of",
    "pair_judge_of",
    "pick_device",
    "places_in",
    "policy_loss_of",
    "preference_judges_in",
    "preference_reward_of",
    "preference_spec_of",
    "random_model",
    "refine_setting",
    "require_apart",
    "require_gradable",
    "require_judges",
    "require_pools",
    "retriever_of",
    "reward_of",
    "reward_spec_of",
    "rubric_writer_of",
    "search_setting",
    "setting_of",
    "setting_of_card",
    "shown_to",
    "thought_documents",
    "thought_tokens",
    "thought_writer_of",
]
