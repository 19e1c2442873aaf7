"""Small models, and random sentences whose translation is the source reversed: what checks of a
device and measurements of speed compute with, without a corpus."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from transformer_mt.config.schema import Config
from transformer_mt.data.batches import Batch, Sampled, Update, collate
from transformer_mt.decoding.engine import Sentence

if TYPE_CHECKING:
    from transformer_mt.training.update import Updater

VOCABULARY, PAD, UNK, BOS, EOS = 400, 0, 1, 2, 3


def make_config(**sections: dict[str, Any]) -> Config:
    """A config of a small model, with the values of sections as given.

    Nothing is read from the paths in it, and nothing is written.
    """
    model = {"num_layers": 2, "d_model": 128, "num_heads": 4, "d_ff": 256, "dropout": 0.0}
    values: dict[str, Any] = {
        "model_dir": "check-device",
        "data": {"root": "check-device", "source_lang": "a", "target_lang": "b"},
        "model": model,
        "training": {"max_steps": 50},
        "decoding": {"max_length_ratio": 1.0, "max_length_extra": 3},
    }
    for name, section in sections.items():
        values[name] = {**values.get(name, {}), **section}
    return Config.model_validate(values)


def make_subwords(size: int = VOCABULARY) -> Any:
    """What models, objectives and engines read of a vocabulary that both sides share."""
    special = {"pad": PAD, "unk": UNK, "bos": BOS, "eos": EOS}
    vocabulary = SimpleNamespace(
        size=size, special=[*special.values()], user_symbols={}, final_marks=frozenset(), **special
    )
    return SimpleNamespace(source=vocabulary, target=vocabulary, joint=True)


def make_updater(config: Config, size: int = VOCABULARY) -> Updater:
    """The updater of a config, on the device that is selected."""
    from transformer_mt.training.update import Updater

    return Updater(config, make_subwords(size))


def search(updater: Updater, sources: list[list[int]]) -> Callable[[], Any]:
    """Returns a function that translates sentences with the model of an updater."""
    from transformer_mt.decoding.paddle_engine import engine_of

    # An engine reads only the ids of special tokens.
    engine = engine_of([updater.model], make_subwords())
    sentences = [Sentence(ids, number=number) for number, ids in enumerate(sources)]
    return lambda: engine.search(sentences, updater.config.decoding)


def make_sources(seed: int, count: int) -> list[list[int]]:
    """Random sentences of 2 to 12 ids."""
    random = np.random.default_rng(seed)
    lengths = random.integers(2, 13, count)
    return [random.integers(EOS + 1, VOCABULARY, length).tolist() for length in lengths]


def make_batch(sources: list[list[int]], targets: list[list[int]]) -> Batch:
    return collate(Sampled(sources, targets), np.arange(len(sources)), make_subwords())


def make_update(seed: int) -> Update:
    """An update of two padded batches."""
    sources = [make_sources(2 * seed + number, 16) for number in range(2)]
    batches = [make_batch(own, [source[::-1] for source in own]) for own in sources]
    return Update(batches, sum(batch.target_tokens for batch in batches))


def full_update(rows: int, length: int, size: int) -> Update:
    """An update of one batch without padding. The length is with end-of-sentence."""
    ids = np.random.default_rng(1).integers(EOS + 1, size, (2, rows, length - 1))
    batch = make_batch(*ids.tolist())
    return Update([batch], batch.target_tokens)


def randomise(updater: Updater) -> None:
    """Draws all weights at random, also biases and norms.

    They are so small that rounding errors hardly grow from layer to layer, and those of the output
    layer so large that outputs vary as those of a trained model do.
    """
    random = np.random.default_rng(5)
    for _, parameter in updater.model.named_parameters():
        value, noise = parameter.numpy(), random.standard_normal(parameter.shape)
        value = 0.08 * noise if value.ndim > 1 else value + 0.1 * noise
        parameter.set_value(value.astype("float32"))
