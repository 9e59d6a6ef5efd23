"""Converts checkpoints of other trainers into Hugging Face folders."""
