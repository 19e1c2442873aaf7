"""How an update is divided into batches."""

from __future__ import annotations

from transformer_mt.config.schema import TrainingConfig


def batch_plan(config: TrainingConfig) -> tuple[int, int]:
    """How many batches an update adds up, and the padded tokens of each."""
    count = -(-config.batch_tokens // config.device_tokens)
    return count, config.batch_tokens // count
