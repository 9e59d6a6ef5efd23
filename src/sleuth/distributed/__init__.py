"""Training on several processes: who they are to each other, and how a model's weights lie over them."""
