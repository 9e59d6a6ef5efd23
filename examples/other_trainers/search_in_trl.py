"""Trains the search environment of a recipe in TRL: `python search_in_trl.py chat.toml [KEY=VALUE]...`.

Needs `pip install 'sleuth[trl]'`, and a recipe whose dialect calls tools through the chat template.
"""

import sys

import torch
from trl import GRPOConfig, GRPOTrainer

from sleuth.trainers.trl import search_environment

ours = search_environment(sys.argv[1], sys.argv[2:])
trainer = GRPOTrainer(
    model=ours.model,
    processing_class=ours.processing_class,
    train_dataset=ours.train_dataset,
    environment_factory=ours.environment_factory,
    reward_funcs=ours.reward_funcs,
    args=GRPOConfig(
        output_dir="runs/trl",
        max_steps=3,
        logging_steps=1,
        per_device_train_batch_size=8,
        use_cpu=not torch.cuda.is_available(),
        **ours.config,
    ),
)
trainer.train()
