"""Which weights are trained, and how fast: what the patterns of names in a recipe stand for."""

import difflib
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from paddle import nn

from transformer_mt.config.schema import AdapterConfig
from transformer_mt.model.adapters import add_adapters, linear_layers
from transformer_mt.training.parallel import trained_parameters
from transformer_mt.utils.errors import UsageError

# A message lists at most this number of names.
NEAREST = 5


def fitting(pattern: str, names: Iterable[str], key: str, what: str = "weight") -> list[str]:
    """Returns the names that a pattern of the shell fits.

    Args:
        key: the key of the recipe that has the pattern, for the message.
        what: what the message calls a thing of such a name.

    Raises:
        UsageError: it fits none; the nearest names are listed.
    """
    known = list(names)
    fit = [name for name in known if fnmatchcase(name, pattern)]
    if not fit:
        bare = pattern.strip("*")
        near = [name for name in known if bare.lower() in name.lower()]
        near = (near or difflib.get_close_matches(bare, known, NEAREST, 0.0))[:NEAREST]
        raise UsageError(f"{key}: {pattern!r} fits no {what}. The nearest names: {', '.join(near)}")
    return fit


def freeze(model: nn.Layer, patterns: Iterable[str]) -> None:
    """Freezes the weights that `training.freeze` names: they get no gradient from now on.

    Raises:
        UsageError: a pattern fits no weight, or nothing would be left to train.
    """
    parameters = dict(model.named_parameters())
    for pattern in patterns:
        for name in fitting(pattern, parameters, "training.freeze"):
            parameters[name].stop_gradient = True
    if not trained_parameters(model):
        raise UsageError("training.freeze: all weights are frozen, so there is nothing to train")


def adapt(model: nn.Layer, config: AdapterConfig) -> None:
    """Adds the adapters of a config to a model, and freezes all else.

    Raises:
        UsageError: a pattern fits no linear layer.
    """
    layers, key = linear_layers(model), "adapter.weights"
    names = [
        name for pattern in config.weights for name in fitting(pattern, layers, key, "linear layer")
    ]
    add_adapters(model, dict.fromkeys(names), config.rank, config.scale, config.dropout)


def rate_factors(model: nn.Layer, factors: Mapping[str, float]) -> dict[str, float]:
    """Returns the factor of the learning rate of each trained weight, by its name.

    Args:
        factors: `training.learning_rate_factors`. The first pattern that fits counts.

    Raises:
        UsageError: a pattern fits no trained weight.
    """
    key, trained = "training.learning_rate_factors", trained_parameters(model)
    found: dict[str, float] = {}
    for pattern, factor in factors.items():
        for name in fitting(pattern, trained, key, "weight that is trained"):
            found.setdefault(name, factor)
    return dict.fromkeys(trained, 1.0) | found
