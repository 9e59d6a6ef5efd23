"""What a run leaves behind: its folder, rollouts, checkpoints, protocol and model cards. Knows no stage."""
