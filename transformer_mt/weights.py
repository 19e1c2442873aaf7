"""The weights of a checkpoint: reads and writes them, and loads them into a model.

They are in files of the safetensors format, https://huggingface.co/docs/safetensors. These hold
names, shapes and numbers, so reading one cannot run code. (`paddle.save` writes pickles, which can
run any code.)
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from transformer_mt.utils.errors import UserError
from transformer_mt.utils.files import write_atomically
from transformer_mt.utils.folders import verify

if TYPE_CHECKING:
    from paddle import Tensor, nn

# The files of a checkpoint with the weights of the model, and with the tensors of the optimiser.
WEIGHTS = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"


def write_tensors(
    path: Path, arrays: Mapping[str, np.ndarray], metadata: dict[str, str] | None = None
) -> None:
    """Writes arrays under their names. The same arrays always result in the same bytes.

    Args:
        metadata: what the format has room for besides the arrays.

    Raises:
        OSError: the file can't be written.
    """
    path.touch()
    mode = path.stat().st_mode  # it follows the user's umask; the library would set 0600
    try:
        ordered = {name: np.asarray(array, order="C") for name, array in arrays.items()}
        save_file(ordered, path, metadata)
    except SafetensorError as error:
        number = re.search(r"\(os error (\d+)\)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from None
    path.chmod(mode)


def read_tensors(path: Path) -> dict[str, np.ndarray]:
    """Returns the arrays in a file by their names.

    Raises:
        OSError: the file can't be read.
        ValueError: the file is damaged, has another format, or holds NaN or infinity. With these, a
            model would translate every line to an empty one.
    """
    try:
        arrays = load_file(path)
    except SafetensorError as error:
        raise ValueError(str(error).split("\n")[0]) from None
    for name, array in arrays.items():
        if not np.isfinite(array).all():  # 25 ms for 200 MB
            raise ValueError(f"{name} holds NaN or infinity")
    return arrays


def read_weights(checkpoint: Path) -> dict[str, np.ndarray]:
    """Reads the weights of a checkpoint as float32 arrays by name.

    Raises:
        UserError: the file is missing or damaged.
    """
    path = checkpoint / WEIGHTS
    weights: dict[str, np.ndarray] = {}
    problem = verify(checkpoint, WEIGHTS)
    if problem is None:
        try:
            weights = read_tensors(path)
        except (OSError, ValueError) as error:
            problem = str(error)
    if any(weight.dtype != np.float32 for weight in weights.values()):
        problem = "not all of its tensors are float32"
    if problem is not None:
        raise UserError(f"{path}: damaged ({problem}). Use another checkpoint")
    return weights


def write_pdparams(checkpoint: Path, output: Path) -> None:
    """Writes the weights of a checkpoint into a file of Paddle's own format, for other tools.

    Raises:
        UserError: the checkpoint is damaged, or the file can't be written.
    """
    import paddle

    weights = {name: paddle.to_tensor(array) for name, array in read_weights(checkpoint).items()}
    for name, weight in weights.items():
        weight.name = name  # Paddle saves it; by default it is a running number of the process
    content = io.BytesIO()
    paddle.save(weights, content)
    write_atomically(output, content.getvalue())


def load_weights(checkpoint: Path, model: nn.Layer) -> None:
    """Loads a checkpoint into all parameters of a model.

    Raises:
        UserError: the file is missing or damaged, or does not fit the model. In that case, the
            message lists everything that does not fit, and the model is unchanged.
    """
    weights = read_weights(checkpoint)
    parameters = dict(model.named_parameters())
    problems = _misfits(weights, parameters)
    problems += [f"{name} is not in the model" for name in weights if name not in parameters]
    if problems:
        raise UserError(f"{checkpoint / WEIGHTS} does not fit the config: " + "; ".join(problems))
    for name, parameter in parameters.items():
        parameter.set_value(weights[name])


@dataclass(frozen=True)
class NewRows:
    """What the vocabulary of one side of a model has in addition to that of a checkpoint.

    Attributes:
        size: the number of subwords of the checkpoint, which come first.
        pieces: the new subwords.
        parts: for each of them, the ids of those that its text was split into before.
    """

    size: int
    pieces: Sequence[str]
    parts: Sequence[Sequence[int]]

    def added_to(self, weight: np.ndarray, shape: Sequence[int]) -> np.ndarray:
        """Returns a weight of the shape (vocabulary, ...) with a row for each new subword, which is
        the mean of the rows of its parts (Gee et al. 2022, arXiv 2402.09977, section 3). A weight
        of any other shape is returned as it is.

        Args:
            shape: that of the model's parameter.
        """
        is_of_vocabulary = weight.shape == (self.size, *shape[1:])
        if not self.parts or not is_of_vocabulary or shape[0] != self.size + len(self.parts):
            return weight
        rows = [weight[list(parts)].mean(axis=0, dtype=np.float64) for parts in self.parts]
        return np.concatenate([weight, np.stack(rows).astype(weight.dtype)])


def take_weights(
    checkpoint: Path, model: nn.Layer, source: NewRows | None = None, target: NewRows | None = None
) -> list[str]:
    """Loads a checkpoint into those parameters of a model that it holds in the same shape.

    Args:
        source, target: the subwords of the model that the checkpoint does not have.

    Returns why each of the other parameters was left as it is.

    Raises:
        UserError: the file is missing or damaged, or fits no parameter.
    """
    weights = read_weights(checkpoint)
    parameters = dict(model.named_parameters())
    for name in weights.keys() & parameters.keys():
        new = source if name.startswith("source_embedding.") else target
        if new is not None:
            weights[name] = new.added_to(weights[name], parameters[name].shape)
    left = _misfits(weights, parameters)
    if len(left) == len(parameters):
        raise UserError(f"{checkpoint / WEIGHTS} has no weight of the shape that the config needs")
    for name, parameter in parameters.items():
        if name in weights and list(weights[name].shape) == list(parameter.shape):
            parameter.set_value(weights[name])
    return left


def _misfits(weights: dict[str, np.ndarray], parameters: dict[str, Tensor]) -> list[str]:
    """Lists the parameters that are missing in `weights`, or have another shape there."""
    problems = []
    for name, parameter in parameters.items():
        expected = list(parameter.shape)
        if name not in weights:
            problems.append(f"{name} is missing")
        elif list(weights[name].shape) != expected:
            problems.append(f"{name} is {list(weights[name].shape)}, the model's is {expected}")
    return problems
