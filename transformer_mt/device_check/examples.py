"""Models, configs and sentences for the checks. No text is needed: sentences are random ids, and a
translation is its source in reverse order."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import paddle
from paddle import nn

from transformer_mt.config.schema import Config
from transformer_mt.data.batches import Batch, Update, encoded_rows
from transformer_mt.training.parallel import ALONE, Processes
from transformer_mt.training.setup import make_updater
from transformer_mt.training.update import Updater

VOCABULARY_SIZE = 40
PAD, UNK, BOS, EOS = range(4)
MODEL = {"num_layers": 2, "d_model": 32, "num_heads": 2, "d_ff": 64, "dropout": 0.0}
# The gradient of an update is the weights before it minus the weights after it.
GRADIENT_STEP = {
    "optimizer": "sgd", "momentum": 0.0, "schedule": "constant", "warmup_steps": 0,
    "learning_rate": 1.0,
}  # fmt: skip
# The standard deviation of random weights.
SPREAD = 0.15


def subwords(size: int = VOCABULARY_SIZE) -> Any:
    """What models, objectives and engines read of a vocabulary that both sides share."""
    vocabulary = SimpleNamespace(size=size, pad=PAD, unk=UNK, bos=BOS, eos=EOS)
    return SimpleNamespace(source=vocabulary, target=vocabulary, joint=True)


def make_config(model: dict | None = None, training: dict | None = None, **sections: Any) -> Config:
    """A config of a small model. Nothing is read from the paths in it, and nothing written."""
    values = {
        "model_dir": "check-device",
        "data": {"root": "check-device", "source_lang": "a", "target_lang": "b"},
        "model": {**MODEL, **(model or {})},
        "training": {"max_steps": 50, **GRADIENT_STEP, **(training or {})},
        "decoding": {"max_length_ratio": 1.0, "max_length_extra": 3},
        **sections,
    }
    return Config.model_validate(values)


def sentences(seed: int, count: int, shortest: int = 2, longest: int = 9) -> list[list[int]]:
    """Random sentences of different lengths, as ids."""
    random = np.random.default_rng(seed)
    lengths = random.integers(shortest, longest + 1, count)
    lengths[:2] = shortest, longest  # so that some of the others are padded
    return [random.integers(EOS + 1, VOCABULARY_SIZE, length).tolist() for length in lengths]


def make_batch(sources: list[list[int]]) -> Batch:
    """A padded batch of sentences; the translations are the sources in reverse order."""
    labels = encoded_rows([source[::-1] for source in sources], PAD, EOS)
    decoder_input = np.concatenate([np.full((len(labels), 1), BOS), labels[:, :-1]], axis=1)
    decoder_input[decoder_input == EOS] = PAD
    alignment = np.full((len(labels), labels.shape[1], labels.shape[1]), 0.0, np.float32)
    for row, source in enumerate(sources):
        places = np.arange(len(source))
        alignment[row, places, places[::-1]] = 1.0
    return Batch(
        encoded_rows(sources, PAD, EOS),
        decoder_input,
        labels,
        int((labels != PAD).sum()),
        alignment=alignment,
        padding=2 * int((labels == PAD).sum()),
    )


def make_update(seed: int, batches: int = 1, rows: int = 16) -> Update:
    """An update of padded batches."""
    made = [make_batch(sentences((seed * 100 + i), rows)) for i in range(batches)]
    return Update(made, sum(batch.target_tokens for batch in made))


def full_batch(rows: int, length: int, vocabulary_size: int, seed: int = 1) -> Batch:
    """A batch without padding, for measurements of memory and speed. Lengths are with eos."""
    random = np.random.default_rng(seed)
    source, target = random.integers(EOS + 1, vocabulary_size, (2, rows, length))
    decoder_input = np.concatenate([np.full((rows, 1), BOS), target[:, :-1]], axis=1)
    return Batch(source, decoder_input, target, target.size)


def updater(config: Config, size: int = VOCABULARY_SIZE, processes: Processes = ALONE) -> Updater:
    """The updater of a config, on the device that is selected."""
    return make_updater(config, subwords(size), processes)


def weights_of(model: nn.Layer) -> dict[str, np.ndarray]:
    """A copy of the weights of a model, by their names."""
    return {name: parameter.numpy().copy() for name, parameter in model.named_parameters()}


def set_weights(model: nn.Layer, weights: dict[str, np.ndarray]) -> None:
    """Sets all weights of a model, in the model's own precision. The model must be on the device
    that is selected."""
    for name, parameter in model.named_parameters():
        dtype = "float64" if parameter.dtype == paddle.float64 else "float32"
        parameter.set_value(weights[name].astype(dtype))


def gradients_of(model: nn.Layer) -> dict[str, np.ndarray]:
    """The gradients of a model after a backward pass, by the names of the weights; zeros where
    there is none."""
    return {
        name: np.zeros(p.shape) if p.grad is None else p.grad.astype("float32").numpy()
        for name, p in model.named_parameters()
    }


def randomised(updater: Updater, seed: int = 5) -> dict[str, np.ndarray]:
    """Draws all weights of a model at random, also its biases and norms; returns them.

    They are so small that rounding errors hardly grow from layer to layer."""
    random = np.random.default_rng(seed)
    weights = weights_of(updater.model)
    for name, value in weights.items():
        if value.ndim > 1:
            weights[name] = SPREAD * random.standard_normal(value.shape)
        else:
            weights[name] = value + 0.2 * random.standard_normal(value.shape)
    weights = {name: value.astype("float32") for name, value in weights.items()}
    set_weights(updater.model, weights)
    return weights
