"""A Marian Transformer in NumPy, float64, one sentence at a time: slow, and easy to check against
the formulas. It stands between this project and the recorded outputs of other programs, since it
computes as each of them does."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from tests.pretrained import random_models
from tests.pretrained.random_models import Specification

# The epsilon of layer norms in each program. All three add it to the variance.
EXACT = ("huggingface", "marian")
EPSILON = {"huggingface": 1e-5, "ctranslate2": 1e-5, "marian": 1e-9}


class NumpyMarian:
    """A random model, computed as `program` does.

    Args:
        program: decides on positions, epsilon, the row that the decoder starts with, and the place
            of <pad>: only `transformers` has it among the logits. ctranslate2 is for a model that
            it converted from Marian's layout, in which its gelu is Marian's.
    """

    def __init__(
        self, spec: Specification, program: Literal["huggingface", "ctranslate2", "marian"]
    ) -> None:
        self._spec, self._program = spec, program
        self.size = len(random_models.maps(spec)[1])  # without <pad>
        self._weights = {
            name: value.astype(np.float64) for name, value in random_models.weights(spec).items()
        }
        embeddings = [self._weights.get("Wemb")] * 2
        if not spec.shared_embeddings:
            embeddings = [self._weights[f"{side}_Wemb"] for side in ("encoder", "decoder")]
        self._source, self._target = embeddings
        self._output = self._weights.get("decoder_ff_logit_out_Wt", self._target)
        self._bias = self._weights.get("decoder_ff_logit_out_b", np.zeros((1, len(self._output))))
        if program == "huggingface":
            theirs = random_models.huggingface_weights(spec)
            name = (
                "model.shared.weight"
                if spec.shared_embeddings
                else "model.decoder.embed_tokens.weight"
            )
            self._target = theirs[name].astype(np.float64)
            untied = not spec.tied_output or spec.stray_output
            self._output = theirs["lm_head.weight"].astype(np.float64) if untied else self._target
            self._bias = np.pad(self._bias, ((0, 0), (0, 1)))
        else:  # the decoder starts with a row of zeros
            self._target = np.pad(self._target, ((0, 1), (0, 0)))

    def encode(self, ids: list[int]) -> np.ndarray:
        """The encoder's output, (source_len, d_model), for the ids of a source with its eos."""
        x = self._embed(self._source[ids])
        for number in range(1, self._spec.encoder_layers + 1):
            layer = f"encoder_l{number}"
            x = self._sublayer(
                f"{layer}_self_Wo", x, lambda y, p=layer: self._attend(f"{p}_self", y, y)
            )
            x = self._sublayer(f"{layer}_ffn_ffn", x, lambda y, p=layer: self._feed_forward(p, y))
        return self._norm("encoder_top", x, "") if self._spec.pre_norm else x

    def logits(self, memory: np.ndarray, ids: list[int]) -> np.ndarray:
        """What follows the start and each of the ids of a target, (len(ids) + 1, vocabulary)."""
        x = self._embed(self._target[[-1, *ids]])
        for number in range(1, self._spec.decoder_layers + 1):
            layer = f"decoder_l{number}"
            x = self._sublayer(
                f"{layer}_self_Wo",
                x,
                lambda y, p=layer: self._attend(f"{p}_self", y, y, causal=True),
            )
            x = self._sublayer(
                f"{layer}_context_Wo", x, lambda y, p=layer: self._attend(f"{p}_context", y, memory)
            )
            x = self._sublayer(f"{layer}_ffn_ffn", x, lambda y, p=layer: self._feed_forward(p, y))
        if self._spec.pre_norm:
            x = self._norm("decoder_top", x, "")
        return x @ self._output.T + self._bias

    def _embed(self, rows: np.ndarray) -> np.ndarray:
        positions = (
            random_models.marian_positions
            if self._program == "marian"
            else random_models.huggingface_positions
        )
        table = positions(*rows.shape)
        if self._program == "huggingface" and self._spec.all_names:  # as the file has them
            table = table.astype(self._spec.dtype)
        scale = math.sqrt(self._spec.d_model) if self._spec.scaled else 1.0
        return rows * scale + table

    def _sublayer(self, norm: str, x: np.ndarray, compute) -> np.ndarray:
        if self._spec.pre_norm:
            return x + compute(self._norm(norm, x, "_pre"))
        return self._norm(norm, x + compute(x), "")

    def _norm(self, name: str, x: np.ndarray, suffix: str) -> np.ndarray:
        centred = x - x.mean(axis=-1, keepdims=True)
        variance = (centred**2).mean(axis=-1, keepdims=True)
        scale, bias = (self._weights[f"{name}_ln_{kind}{suffix}"] for kind in ("scale", "bias"))
        return centred / np.sqrt(variance + EPSILON[self._program]) * scale + bias

    def _linear(self, prefix: str, letter: str, x: np.ndarray) -> np.ndarray:
        return x @ self._weights[f"{prefix}_W{letter}"] + self._weights[f"{prefix}_b{letter}"]

    def _attend(
        self, prefix: str, queries: np.ndarray, values: np.ndarray, causal: bool = False
    ) -> np.ndarray:
        heads = self._spec.heads
        q, k, v = (
            np.stack(np.split(self._linear(prefix, letter, x), heads, axis=1))
            for letter, x in (("q", queries), ("k", values), ("v", values))
        )
        scores = q @ k.transpose(0, 2, 1) / math.sqrt(q.shape[-1])
        if causal:
            scores = np.where(np.tri(*scores.shape[1:], dtype=bool), scores, -np.inf)
        probabilities = np.exp(log_softmax(scores))
        return self._linear(prefix, "o", np.concatenate([*(probabilities @ v)], axis=1))

    def _feed_forward(self, layer: str, x: np.ndarray) -> np.ndarray:
        return self._linear(
            f"{layer}_ffn", "2", self._activate(self._linear(f"{layer}_ffn", "1", x))
        )

    def _activate(self, x: np.ndarray) -> np.ndarray:
        if self._spec.activation == "relu":
            return np.maximum(x, 0)
        if self._spec.activation == "swish":
            return x / (1 + np.exp(-x))
        if self._program in EXACT:
            return x * np.vectorize(lambda one: 0.5 * (1 + math.erf(one / math.sqrt(2))))(x)
        return x / (1 + np.exp(-1.702 * x))


def log_softmax(x: np.ndarray) -> np.ndarray:
    x = x - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))
