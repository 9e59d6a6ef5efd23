"""The stages that train: each takes a checkpoint and returns one. No mathematics, HTTP or file formats here."""
