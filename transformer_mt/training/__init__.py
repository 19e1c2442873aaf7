"""Training: loss, schedule, checkpoints, and the loop."""
