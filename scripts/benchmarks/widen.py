"""Makes a wide model of a narrow one that computes nearly the same.

    .venv/bin/python scripts/benchmarks/widen.py MODEL_DIR WIDE_DIR

A model of the published size can't be trained from the beginning on two cores in an hour. A narrow
one can. This program makes copies of its channels (Chen et al. 2016, "Net2Net", arXiv 1511.05641,
section 2.1), which training then lets become different. The benchmark of fine-tuning starts from
such a model, because the cost of a step depends on the size of a model, not on how it was made.

The wide model has FACTOR times the width and the inner width, and twice the heads. Its position
encodings have other frequencies than copies of the narrow model's would have, so its outputs differ
a little. The narrow model must have post-norm, biases, tied embeddings and sinusoidal positions.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

FACTOR = 4
HEADS = 2
# The share of a channel that its first copy gives to the next layer. Its position encodings are the
# narrow model's, so the higher this is, the nearer the two models are.
FIRST = 0.6


def widen(weights: dict[str, np.ndarray], width: int, heads: int) -> dict[str, np.ndarray]:
    """Returns the weights of the wide model, float32.

    Args:
        weights: those of the narrow model.
        width: d_model of the narrow model.
        heads: its number of attention heads.
    """
    random = np.random.default_rng(1)
    # For each channel of the wide model, the number of the narrow model's channel it is a copy of.
    # Position encodings have pairs of channels, so copies of a pair stay pairs.
    pair = np.arange(FACTOR * width // 2) // FACTOR
    hidden = np.stack([2 * pair, 2 * pair + 1], 1).ravel()
    size = width // heads
    head, dimension = np.divmod(np.arange(FACTOR * width), size * FACTOR // HEADS)
    attended = head // HEADS * size + dimension // (FACTOR // HEADS)
    # How much of its channel each copy passes on, before the random part.
    shares = np.full(FACTOR * width, (1 - FIRST) / (FACTOR - 1))
    shares[np.unique(hidden, return_index=True)[1]] = FIRST
    equal = np.full(FACTOR * width, 1 / FACTOR)

    def matrix(
        weight: np.ndarray, rows: np.ndarray, columns: np.ndarray, share: np.ndarray
    ) -> np.ndarray:
        # The copies of an input pass on shares of it, which differ from output to output, so that
        # copies get different gradients. The shares of an input have the sum 1.
        coefficients = share[:, None] * random.uniform(0.5, 1.5, (len(rows), len(columns)))
        sums = np.zeros((len(weight), len(columns)))
        np.add.at(sums, rows, coefficients)
        return weight[rows][:, columns] * coefficients / sums[rows]

    wide = {}
    last = max(int(n) for name in weights for n in re.findall(r"^decoder\.layers\.(\d+)\.", name))
    for name, weight in weights.items():
        if "embedding" in name:
            # The embeddings are multiplied by sqrt(d_model), which is twice as large.
            value = weight[:, hidden] / FACTOR**0.5
        elif name == "generator.bias":
            value = weight
        elif ".norm." in name:
            value = weight[hidden]
            if name.startswith(f"decoder.layers.{last}.feed_forward"):
                # The output layer is the embedding, and adds the copies up.
                value = value / FACTOR**0.5
        else:
            inner = np.arange(FACTOR * len(weight.T)) // FACTOR
            if "inner_projection" in name:
                rows, columns, share = hidden, inner, shares
            elif "feed_forward" in name:
                rows = np.arange(FACTOR * len(weight)) // FACTOR
                columns, share = hidden, np.full(len(rows), 1 / FACTOR)
            elif "output_projection" in name:
                rows, columns, share = attended, hidden, equal
            else:
                rows, columns, share = hidden, attended, shares
            value = matrix(weight, rows, columns, share) if weight.ndim == 2 else weight[columns]
            if "query_projection" in name:
                # A head adds FACTOR / HEADS copies up, and is divided by the root of its width.
                value = value / (FACTOR / HEADS) ** 0.5
        wide[name] = value.astype(np.float32)
    return wide


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("narrow", metavar="MODEL_DIR", type=Path)
    parser.add_argument("wide", metavar="WIDE_DIR", type=Path)
    options = parser.parse_args()

    from transformer_mt.config.file import dump_yaml, parse
    from transformer_mt.model_directory import ModelDirectory
    from transformer_mt.training.folder import RunDirectory
    from transformer_mt.utils.folders import published, write_checksums
    from transformer_mt.weights import WEIGHTS, read_weights, write_tensors

    narrow = ModelDirectory(options.narrow)
    config = narrow.load_config()
    weights = read_weights(narrow.checkpoint())
    model = config.model
    values = config.model_dump()
    values["model"] |= {
        "d_model": FACTOR * model.d_model,
        "num_heads": HEADS * model.num_heads,
        "d_ff": FACTOR * model.d_ff,
    }
    with published(options.wide, with_checksums=False) as folder:
        directory = RunDirectory(folder)
        directory.start(parse(dump_yaml(values), "the wide model"), narrow.load_subwords(), [])
        checkpoint = directory.checkpoints / "step_0"
        checkpoint.mkdir()
        write_tensors(checkpoint / WEIGHTS, widen(weights, model.d_model, model.num_heads))
        write_checksums(checkpoint)
        directory.set_best(checkpoint)


if __name__ == "__main__":
    main()
