"""The benchmark of paddle.jit.to_static, on a tiny model."""

import argparse

import numpy as np
import pytest

import benchmark_static as benchmark

TINY = ({"num_layers": 1, "d_model": 8, "num_heads": 2, "d_ff": 8}, 20, 3, 4)


@pytest.mark.slow
def test_all_ways_compute_the_same_loss(tmp_path):
    """Summed cross-entropies of 12 tokens, rounded in another order."""
    options = argparse.Namespace(rounds=1, seconds=0.01)
    text, *_ = benchmark.compare(options, tmp_path, 0.0, TINY)
    rows = [line.split(" | ") for line in text.split("\n") if line.startswith("| ")][2:]
    assert [row[0].removeprefix("| ") for row in rows][:3] == [
        *(benchmark.OURS, benchmark.PLAIN, benchmark.STATIC),
    ]
    losses = [float(row[-1].removesuffix(" |").replace(",", "")) for row in rows]
    assert np.ptp(losses) <= 0.02 and losses[0] > 20
    assert rows[1][2] == "1"  # the ratio of the plain operations to themselves
