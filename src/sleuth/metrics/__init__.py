"""Figures of finished episodes and their intervals; checks of data files; README cards."""
