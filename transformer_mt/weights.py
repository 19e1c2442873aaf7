"""The weights of a checkpoint: reads and writes them, and loads them into a model.

They are in files of the safetensors format, https://huggingface.co/docs/safetensors. These hold
names, shapes and numbers, so reading one cannot run code. (`paddle.save` writes pickles, which can
run any code.)

A checkpoint of a training of adapters (`transformer_mt.model.adapters`) holds these alone. The
weights that all of its checkpoints share are in the folder `base` of the model directory. Reading
such a checkpoint adds them up, so that nothing but training knows that there are adapters.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from transformer_mt.utils.console import visible
from transformer_mt.utils.errors import UserError
from transformer_mt.utils.files import write_atomically
from transformer_mt.utils.folders import checksum_of, verify

if TYPE_CHECKING:
    from paddle import Tensor, nn

# The files of a checkpoint with the weights of the model, and with the tensors of the optimiser.
WEIGHTS = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"
# The files of a checkpoint that has adapters in place of all weights, and the folder in the model
# directory that has the file WEIGHTS of the model they were trained for.
ADAPTERS = "adapters.safetensors"
ADAPTERS_FACTS = "adapters.json"
BASE = "base"
# The types of NumPy by the names that the files have for them.
DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BOOL": "?"}
DTYPES |= {f"{kind}{8 * size}": f"<{kind.lower()}{size}" for kind in "IU" for size in (1, 2, 4, 8)}
# The ends of the names of the two matrices that belong to a weight.
WEIGHT, A, B = ".weight", ".adapter_a", ".adapter_b"


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

    The arrays are views of the file, which is mapped into memory. Processes that have the same file
    share this memory. What is written to an array changes neither the file nor another process.

    Raises:
        OSError: the file can't be read.
        ValueError: the file is damaged, has another format, or holds NaN or infinity. With these, a
            model would translate every line to an empty one.
    """
    try:
        with safe_open(path, "numpy"):  # checks the header, and that the tensors fill the file
            content = np.memmap(path, np.uint8, mode="c")
    except SafetensorError as error:
        raise ValueError(str(error).split("\n")[0]) from None
    data = 8 + int.from_bytes(content[:8].tobytes(), "little")
    header = json.loads(content[8:data].tobytes())
    header.pop("__metadata__", None)
    arrays = {}
    for name, entry in header.items():
        start, end = entry["data_offsets"]
        if entry["dtype"] not in DTYPES:
            raise ValueError(f"{name} has the unknown type {entry['dtype']}")
        array = content[data + start : data + end].view(DTYPES[entry["dtype"]])
        if not np.isfinite(array).all():  # 25 ms for 200 MB
            raise ValueError(f"{name} holds NaN or infinity")
        arrays[name] = np.asarray(array).reshape(entry["shape"])
    return arrays


@dataclass(frozen=True)
class Adapters:
    """The adapters of a checkpoint, or of an export.

    Attributes:
        scale: the factor of A B, which is alpha / rank.
        base: the SHA-256 of the file with the weights that they were trained for.
        base_name: the name of the model directory that these weights were taken from.
        arrays: the matrices A, float32 (in, rank), and B, float32 (rank, out), by their names.
    """

    scale: float
    base: str
    base_name: str
    arrays: dict[str, np.ndarray] = field(repr=False)

    def write(self, folder: Path) -> None:
        """Writes the two files that `read` reads.

        Raises:
            OSError: they can't be written.
        """
        facts = asdict(self)
        del facts["arrays"]
        rank = max(array.shape[1] for name, array in self.arrays.items() if name.endswith(A))
        facts |= {"rank": rank, "alpha": self.scale * rank}
        (folder / ADAPTERS_FACTS).write_text(json.dumps(facts) + "\n", encoding="utf-8")
        write_tensors(folder / ADAPTERS, self.arrays)

    @classmethod
    def read(cls, folder: Path) -> Adapters | None:
        """Reads the adapters of a checkpoint; None if it has all weights instead.

        Raises:
            UserError: a file is missing or damaged.
        """
        if checksum_of(folder, ADAPTERS) is None:
            return None
        problem = verify(folder, "adapters.*")
        if problem is None:
            try:
                facts = json.loads((folder / ADAPTERS_FACTS).read_text(encoding="utf-8"))
                base, base_name = (visible(str(facts[x]))[:100] for x in ("base", "base_name"))
                scale, arrays = float(facts["scale"]), read_tensors(folder / ADAPTERS)
                if not math.isfinite(scale):
                    raise ValueError("its scale is not finite")
                if any(array.dtype != np.float32 or array.ndim != 2 for array in arrays.values()):
                    raise ValueError("not all of its tensors are float32 matrices")
                return cls(scale, base, base_name, arrays)
            except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
                problem = f"{type(error).__name__}: {error}"
        raise UserError(f"{folder / ADAPTERS}: damaged ({problem}). Use another checkpoint")

    def added_to(self, base: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the weights of a model, float32, with the adapters added to them.

        Raises:
            ValueError: the adapters do not fit the model.
        """
        weights = dict(base)
        for name, a in self.arrays.items():
            layer = name.removesuffix(A)
            if layer == name:
                continue
            weight, b = weights.get(layer + WEIGHT), self.arrays.get(layer + B)
            if weight is None or b is None or (*a.shape[:1], *b.shape[1:]) != weight.shape:
                raise ValueError(f"{name} fits no weight of the model")
            weights[layer + WEIGHT] = adapted(weight, a, b, self.scale)
        return weights


def adapted(weight: np.ndarray, a: np.ndarray, b: np.ndarray, scale: float) -> np.ndarray:
    """Returns W + scale A B in float32, of W (in, out), A (in, rank) and B (rank, out)."""
    return weight + np.float32(scale) * (a @ b)


def base_of(checkpoint: Path, adapters: Adapters) -> Path:
    """Returns the folder with the weights that the adapters of a checkpoint are added to.

    Raises:
        UserError: it is missing, or has other weights.
    """
    directory = checkpoint.parent.parent
    base = directory / BASE
    place = Path(os.path.realpath(base))
    if not place.is_relative_to(os.path.realpath(directory)):
        raise UserError(f"{base} is a link to a place outside of the model directory, {place}")
    if not (base / WEIGHTS).is_file():
        problem = "it is missing"
    elif checksum_of(base, WEIGHTS) != adapters.base:
        problem = "it has the weights of another model"
    else:
        return base
    raise UserError(f"{base / WEIGHTS}: {problem}. {_needed(adapters)}")


def _needed(adapters: Adapters) -> str:
    return (
        "All checkpoints of this run need this file. Put a copy of it in its place: it has the "
        f"weights of {adapters.base_name}, and the SHA-256 {adapters.base}"
    )


def read_weights(checkpoint: Path) -> dict[str, np.ndarray]:
    """Reads the weights of a checkpoint as float32 arrays by name. Adapters are added to them.

    Raises:
        UserError: the file is missing or damaged.
    """
    adapters = Adapters.read(checkpoint)
    if adapters is None:
        return read_file(checkpoint, "Use another checkpoint")
    weights = read_file(base_of(checkpoint, adapters), _needed(adapters))
    try:
        return adapters.added_to(weights)
    except ValueError as error:
        raise UserError(f"{checkpoint / ADAPTERS}: damaged ({error})") from None


def read_file(folder: Path, advice: str) -> dict[str, np.ndarray]:
    """Reads the file WEIGHTS of a folder with checksums, float32 arrays by name.

    Raises:
        UserError: it is missing or damaged; the message ends with `advice`.
    """
    path = folder / WEIGHTS
    weights: dict[str, np.ndarray] = {}
    problem = verify(folder, WEIGHTS)
    if problem is None:
        try:
            weights = read_tensors(path)
        except (OSError, ValueError) as error:
            problem = str(error)
    if any(weight.dtype != np.float32 for weight in weights.values()):
        problem = "not all of its tensors are float32"
    if problem is not None:
        raise UserError(f"{path}: damaged ({problem}). {advice}")
    return weights


def base_parameters(model: nn.Layer) -> dict[str, Tensor]:
    """Returns the parameters of a model by their names, without those of its adapters."""
    return {name: p for name, p in model.named_parameters() if not name.endswith((A, B))}


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


def load_weights(checkpoint: Path, model: nn.Layer, is_shared: bool = False) -> None:
    """Loads a checkpoint into all parameters of a model. If the model has adapters, they are loaded
    beside the weights that they were trained for.

    Args:
        is_shared: whether parameters on the CPU become views of the file, as `read_tensors` gives
            them, for models that only translate. Then all processes that translate with these
            weights, or with adapters for them, hold what they have in common once.

    Raises:
        UserError: the file is missing or damaged, or does not fit the model. In that case, the
            message lists everything that does not fit, and the model is unchanged.
    """
    parameters = dict(model.named_parameters())
    if len(parameters) == len(base_parameters(model)):
        weights = read_weights(checkpoint)
    elif (adapters := Adapters.read(checkpoint)) is not None:
        weights = read_file(base_of(checkpoint, adapters), _needed(adapters)) | adapters.arrays
    else:
        raise UserError(f"{checkpoint} has no adapters")
    problems = _misfits(weights, parameters)
    problems += [f"{name} is not in the model" for name in weights if name not in parameters]
    if problems:
        raise UserError(f"{checkpoint / WEIGHTS} does not fit the config: " + "; ".join(problems))
    from paddle.utils.dlpack import from_dlpack

    for name, parameter in parameters.items():
        if is_shared and parameter.place.is_cpu_place():
            from_dlpack(weights[name])._share_buffer_to(parameter)
        else:
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
    """Loads a checkpoint into those parameters of a model that it holds in the same shape. Adapters
    of the model stay as they are.

    Args:
        source, target: the subwords of the model that the checkpoint does not have.

    Returns why each of the other parameters was left as it is.

    Raises:
        UserError: the file is missing or damaged, or fits no parameter.
    """
    weights, parameters = read_weights(checkpoint), base_parameters(model)
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
