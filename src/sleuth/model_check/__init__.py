"""Checks of any model's tokenizer, chat template and generation config, without loading its weights."""
