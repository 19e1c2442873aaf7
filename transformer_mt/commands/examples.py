"""Small models, and random sentences whose translation is the source reversed, to check and measure
devices with. Nothing is read or written."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from transformer_mt.config.schema import Config
from transformer_mt.data.batches import Batch, Update, encoded_rows
from transformer_mt.decoding.engine import Sentence

if TYPE_CHECKING:
    from transformer_mt.training.update import Updater

VOCABULARY, PAD, UNK, BOS, EOS = 400, 0, 1, 2, 3
MODEL = {"num_layers": 2, "d_model": 128, "num_heads": 4, "d_ff": 256, "dropout": 0.0}


def make_config(
    model: dict[str, Any] | None = None,
    training: dict[str, Any] | None = None,
    decoding: dict[str, Any] | None = None,
    **sections: Any,
) -> Config:
    """A config of a small model, with other sections as given.

    Nothing is read from the paths in it, and nothing is written.
    """
    values = {
        "model_dir": "check-device",
        "data": {"root": "check-device", "source_lang": "a", "target_lang": "b"},
        "model": {**MODEL, **(model or {})},
        "training": {"max_steps": 50, **(training or {})},
        "decoding": {"max_length_ratio": 1.0, "max_length_extra": 3, **(decoding or {})},
        **sections,
    }
    return Config.model_validate(values)


def subwords(size: int = VOCABULARY) -> Any:
    """What models, objectives and engines read of a vocabulary that both sides share."""
    vocabulary = SimpleNamespace(size=size, pad=PAD, unk=UNK, bos=BOS, eos=EOS)
    return SimpleNamespace(source=vocabulary, target=vocabulary, joint=True)


def make_updater(config: Config, size: int = VOCABULARY) -> Updater:
    """The updater of a config, on the device that is selected."""
    from transformer_mt.training import setup

    return setup.make_updater(config, subwords(size))


def make_engine(updater: Updater, size: int = VOCABULARY) -> Any:
    """The engine that translates with the model of an updater."""
    from transformer_mt.decoding.paddle_engine import engine_of

    return engine_of([updater.model], subwords(size))


def numbered(sources: list[list[int]]) -> list[Sentence]:
    """The sentences that an engine translates."""
    return [Sentence(ids, number=number) for number, ids in enumerate(sources)]


def make_sources(seed: int, count: int) -> list[list[int]]:
    """Random sentences of 2 to 12 ids."""
    random = np.random.default_rng(seed)
    lengths = random.integers(2, 13, count)
    return [random.integers(EOS + 1, VOCABULARY, length).tolist() for length in lengths]


def make_update(seed: int) -> Update:
    """An update of two padded batches."""
    batches = []
    for number in range(2):
        sources = make_sources(2 * seed + number, 16)
        labels = encoded_rows([source[::-1] for source in sources], PAD, EOS)
        decoder_input = np.concatenate([np.full((len(labels), 1), BOS), labels[:, :-1]], axis=1)
        decoder_input[decoder_input == EOS] = PAD
        source = encoded_rows(sources, PAD, EOS)
        batches.append(Batch(source, decoder_input, labels, int((labels != PAD).sum())))
    return Update(batches, sum(batch.target_tokens for batch in batches))


def full_update(rows: int, length: int, size: int) -> Update:
    """An update of one batch without padding. The length is with end-of-sentence."""
    source, target = np.random.default_rng(1).integers(EOS + 1, size, (2, rows, length))
    decoder_input = np.concatenate([np.full((rows, 1), BOS), target[:, :-1]], axis=1)
    return Update([Batch(source, decoder_input, target, target.size)], target.size)


def randomised(updater: Updater) -> None:
    """Draws all weights at random, also biases and norms.

    They are so small that rounding errors hardly grow from layer to layer, and those of the output
    layer so large that outputs vary as those of a trained model do.
    """
    random = np.random.default_rng(5)
    for _, parameter in updater.model.named_parameters():
        value, noise = parameter.numpy(), random.standard_normal(parameter.shape)
        value = 0.08 * noise if value.ndim > 1 else value + 0.1 * noise
        parameter.set_value(value.astype("float32"))


def set_weights(updater: Updater, weights: dict[str, np.ndarray]) -> None:
    """Sets all weights of a model on the device that is selected."""
    for name, parameter in updater.model.named_parameters():
        parameter.set_value(weights[name])


def loss_and_gradients(updater: Updater, update: Update) -> tuple[float, dict[str, np.ndarray]]:
    """The loss of an update per target token, and the gradients of all weights by name."""
    from transformer_mt.training.update import seed_generators

    seed_generators(1)
    updater.model.train()
    total = 0.0
    for batch in update.batches:
        loss = updater.losses(batch, 1)[0] / update.target_tokens
        loss.backward()
        total += float(loss)
    gradients = {}
    for name, parameter in updater.model.named_parameters():
        gradient = np.zeros(parameter.shape, "float32")
        if parameter.grad is not None:
            gradient = parameter.grad.astype("float32").numpy()
        gradients[name] = gradient
    return total, gradients


def losses_of_updates(updater: Updater) -> list[float]:
    """The losses of ten updates with three batches in turn, per target token."""
    from transformer_mt.training.update import read

    losses = []
    for step in range(1, 11):
        update = make_update(step % 3)
        outcome = read([updater.apply(update, step)])[0]
        losses.append(outcome.loss / update.target_tokens)
    return losses


def outputs(updater: Updater) -> list[list[int]]:
    """The best translations of forty sentences."""
    found = make_engine(updater).search(numbered(make_sources(9, 40)), updater.config.decoding)
    return [hypotheses[0].ids for hypotheses in found]


def relative_error(found: Any, expected: Any) -> float:
    """The largest difference of two arrays, as a share of the largest expected number."""
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    return float(np.abs(found - expected).max() / np.abs(expected).max())
