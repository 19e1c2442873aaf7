"""From a config and its vocabularies to the model, and from a checkpoint to its weights."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
from paddle import Tensor, nn

from transformer_mt.config.schema import LONGEST_TARGET, ModelConfig
from transformer_mt.data.subword import Subwords
from transformer_mt.mechanisms.copying.model import CopyingTransformer
from transformer_mt.mechanisms.mask_predict.model import NonAutoregressiveTransformer
from transformer_mt.model.transformer import Transformer
from transformer_mt.runtime import tensors
from transformer_mt.runtime.checksums import damage
from transformer_mt.runtime.errors import UserError

# The file of a checkpoint that holds the model.
WEIGHTS = "model.safetensors"


def build_model(config: ModelConfig, subwords: Subwords, recompute: bool = False) -> Transformer:
    """A freshly initialised Transformer of the config's kind and size; Paddle's generator decides
    it.

    Raises ValueError if it is to copy, and source and target have vocabularies of their own.
    """
    kind = CopyingTransformer if config.copying else Transformer
    if config.non_autoregressive is not None:
        longest = LONGEST_TARGET if config.non_autoregressive == "length" else None
        kind = partial(NonAutoregressiveTransformer, longest=longest)
    return kind(
        config,
        subwords.source.size,
        subwords.target.size,
        share_source_embedding=config.tie_embeddings and subwords.joint,
        pad_id=subwords.target.pad,
        source_pad_id=subwords.source.pad,
        recompute=recompute,
    )


def load_weights(checkpoint: Path, model: nn.Layer) -> None:
    """Fills the model's parameters from a checkpoint.

    Raises:
        UserError: the file is missing or damaged, or does not fit the model; all that does not
            fit is listed, and the model is left as it was.
    """
    weights = read_weights(checkpoint)
    parameters = dict(model.named_parameters())
    problems = _misfits(weights, parameters)
    problems += [f"{name} is not in the model" for name in weights if name not in parameters]
    if problems:
        raise UserError(f"{checkpoint / WEIGHTS} does not fit the config: " + "; ".join(problems))
    for name, parameter in parameters.items():
        parameter.set_value(weights[name])


def take_weights(checkpoint: Path, model: nn.Layer) -> list[str]:
    """Fills those parameters that the checkpoint has in the same shape.

    Returns why each of the others was left as it is.

    Raises:
        UserError: the file is missing or damaged, or fits no parameter.
    """
    weights = read_weights(checkpoint)
    parameters = dict(model.named_parameters())
    left = _misfits(weights, parameters)
    if len(left) == len(parameters):
        raise UserError(f"{checkpoint / WEIGHTS} has no weight of the shape that the config wants")
    for name, parameter in parameters.items():
        if name in weights and list(weights[name].shape) == list(parameter.shape):
            parameter.set_value(weights[name])
    return left


def read_weights(checkpoint: Path) -> dict[str, np.ndarray]:
    """The weights of a checkpoint by their names, float32.

    Raises:
        UserError: the file is missing or damaged.
    """
    path = checkpoint / WEIGHTS
    if not path.is_file():
        raise UserError(f"{path}: there is no such file. Use another checkpoint")
    weights: dict[str, np.ndarray] = {}
    problem = damage(checkpoint, WEIGHTS)
    if problem is None:
        try:
            weights = tensors.read(path)
        except (OSError, ValueError) as error:
            problem = str(error)
    if any(weight.dtype != np.float32 for weight in weights.values()):
        problem = "not all of its tensors are float32"
    if problem is not None:
        raise UserError(f"{path}: damaged ({problem}). Use another checkpoint")
    return weights


def _misfits(weights: dict[str, np.ndarray], parameters: dict[str, Tensor]) -> list[str]:
    problems = []
    for name, parameter in parameters.items():
        wanted = list(parameter.shape)
        if name not in weights:
            problems.append(f"{name} is missing")
        elif list(weights[name].shape) != wanted:
            problems.append(f"{name} is {list(weights[name].shape)}, the model's is {wanted}")
    return problems
