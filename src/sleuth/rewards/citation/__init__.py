"""Citation rewards: claims of an answer, their evidence, and scores from a judge's verdicts."""
