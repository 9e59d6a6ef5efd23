"""The frozen lake of Gymnasium (`pip install gymnasium`), whose actions and observations are numbers."""

import gymnasium

ACTIONS = ["left", "down", "right", "up"]


def lake(task):
    env = gymnasium.make("FrozenLake-v1", is_slippery=True, max_episode_steps=8)
    return env, ACTIONS.index, "You are at field {}.".format
