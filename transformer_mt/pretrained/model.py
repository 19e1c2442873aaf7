"""A model of another program, as it is here, and the problems that keep it from being one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from transformer_mt.config.schema import ModelConfig
from transformer_mt.data.marian_vocabulary import MarianVocabulary, PieceIds
from transformer_mt.data.subword import Subwords
from transformer_mt.pretrained.names import of_layers, to_ours
from transformer_mt.pretrained.sources import Source
from transformer_mt.utils.errors import UserError

EOS, UNK, PAD = "</s>", "<unk>", "<pad>"
# Names for the token that the decoder starts with, of which the first that is free is taken.
STARTS = ("<s>", "<bos>", "<start>")
# The logit of a token that is no word. Its probability is less than 1e-30 beside usual logits, and
# the mean of all logits, which label smoothing has, hardly changes.
NEVER = -100.0


@dataclass(frozen=True)
class Pretrained:
    """A model that was read.

    Attributes:
        model: its sizes and form.
        weights: float32, by the names of ours.
        languages: the codes of source and target, as the files have them; None if they are not
            said.
        beam_size: the number of hypotheses that it is published with.
        license: what the files say about it; None if they say nothing.
    """

    model: ModelConfig
    weights: dict[str, np.ndarray]
    subwords: Subwords
    languages: tuple[str | None, str | None]
    beam_size: int
    license: str | None


# If all sizes are wrong, this many problems are enough to tell.
MOST_SHOWN = 8


class Problems:
    """Collects everything that keeps a model from being imported, to tell all of it at once."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._found: list[str] = []

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, problem: str) -> None:
        self._found.append(problem)

    def require(self, values: Mapping[str, Any], key: str, *allowed: Any, reason: str) -> None:
        """Adds a problem if the value of a key is none of those that are allowed. A key that is not
        there is no problem."""
        if key in values and values[key] not in allowed:
            self.add(f"{key}: {values[key]}: {reason}")

    def raise_if_any(self) -> None:
        """
        Raises:
            UserError: there are problems; the message has all of them.
        """
        if self._found:
            shown, more = self._found[:MOST_SHOWN], len(self._found) - MOST_SHOWN
            if more > 0:
                shown.append(f"and {more} more of the kind")
            found = "\n".join(f"  {problem}" for problem in shown)
            raise UserError(f"{self._title} can't be imported:\n{found}")


class Tensors:
    """The tensors of a file, which are taken one by one under the names of ours.

    Args:
        tensors: by the names of the file.
    """

    def __init__(self, tensors: Mapping[str, np.ndarray], model: ModelConfig, problems: Problems):
        self._tensors = tensors
        self._model = model
        self._problems = problems
        self._taken: set[str] = set()
        self.weights: dict[str, np.ndarray] = {}

    def take(
        self, names: Sequence[str], ours: str, shape: tuple[int, ...], is_transposed: bool = False
    ) -> None:
        """Takes the first of these tensors that is there.

        Args:
            shape: that of ours.
            is_transposed: whether theirs is the transpose.
        """
        name = next((name for name in names if name in self._tensors), None)
        if name is None:
            self._problems.add(f"{names[0]} is missing")
            return
        self._taken.add(name)
        tensor, found = self._tensors[name], list(self._tensors[name].shape)
        if is_transposed:
            tensor = tensor.T
        if len(shape) == 1 and tensor.ndim == 2 and tensor.shape[0] == 1:
            tensor = tensor[0]  # vectors of Marian, and one of Hugging Face's, are (1, n)
        if tensor.shape != shape:
            expected = list(reversed(shape) if is_transposed else shape)
            self._problems.add(f"{name} is {found}, its config says {expected}")
            return
        if tensor.dtype != np.float32:
            self._problems.add(f"{name} holds {tensor.dtype}, not floating point numbers")
            return
        self.weights[ours] = to_ours(ours, tensor, self._model.d_model)

    def take_layers(self, kind: str) -> None:
        """Takes the weights of all layers. `kind` is huggingface or marian."""
        for weight in of_layers(self._model):
            shape = _shape(weight.ours, self._model)
            # PyTorch's linear layers are (out, in).
            is_transposed = kind == "huggingface" and len(shape) == 2
            name = getattr(weight, kind)
            # Marian's layer norms that come before a sublayer have another name.
            self.take([name, f"{name}_pre"], weight.ours, shape, is_transposed)

    def take_output_bias(self, name: str, size: int) -> None:
        """Takes the bias of the output layer, float32 (size,); without one, it is zeros."""
        if name in self._tensors:
            self.take([name], "generator.bias", (size,))
        else:
            self.weights["generator.bias"] = np.zeros(size, np.float32)

    def ignore(self, *names: str) -> None:
        """Marks tensors that are not needed."""
        self._taken.update(names)

    def require_all_taken(self) -> None:
        """Adds a problem if the file has a tensor that has not been taken."""
        left = sorted(set(self._tensors) - self._taken)
        if left and not self._problems:
            more = f" and {len(left) - 3} more" if len(left) > 3 else ""
            self._problems.add(
                f"{', '.join(left[:3])}{more}: a model of this architecture has no such weight"
            )


def _shape(name: str, model: ModelConfig) -> tuple[int, ...]:
    """The shape of a weight of a layer of ours."""
    d_model, d_ff = model.d_model, model.d_ff
    is_inner = ".inner_projection." in name
    if name.endswith("bias") or ".norm." in name:
        return (d_ff,) if is_inner else (d_model,)
    if is_inner:
        return (d_model, d_ff)
    return (d_ff, d_model) if "feed_forward.output" in name else (d_model, d_model)


def untied(
    model: ModelConfig, weights: dict[str, np.ndarray], is_joint: bool
) -> tuple[ModelConfig, dict[str, np.ndarray]]:
    """Returns an equal model that can be built here.

    If both sides have the same ids, `model.tie_embeddings` ties all three matrices, or none. So if
    only two of them are tied, the one that both are is written twice.
    """
    if not is_joint or not model.tie_embeddings or "source_embedding.weight" not in weights:
        return model, weights
    output = weights["target_embedding.weight"].copy()
    model = model.model_copy(update={"tie_embeddings": False})
    return model, {**weights, "generator.weight": output}


def with_start(weights: dict[str, np.ndarray], pad: int | None) -> dict[str, np.ndarray]:
    """Returns the weights with rows for a token that the decoder starts with, behind all others.

    Marian's decoder starts from a row of zeros, and Hugging Face's from the row of padding, which
    is one of zeros as a rule. Here the decoder starts with a token of its own, whose row has these
    values. Unlike a row of zeros, it can learn in fine-tuning. Neither it nor padding gets a share
    of the probability, as in Marian and in the published settings of `transformers`.

    Args:
        weights: those of the whole model, with an output bias.
        pad: the row of padding; None if there is none. Then the first new row is for padding, and
            the second one for the start.
    """
    added = dict(weights)
    for name in ("source_embedding.weight", "target_embedding.weight", "generator.weight"):
        if name not in weights:
            continue
        matrix = weights[name]
        zeros = np.zeros((1, matrix.shape[1]), np.float32)
        rows = [zeros, zeros] if pad is None else [matrix[pad : pad + 1]]
        added[name] = np.concatenate([matrix, *rows])
    bias = np.append(weights["generator.bias"], np.full(2 if pad is None else 1, NEVER, np.float32))
    if pad is not None:
        bias[pad] = NEVER
    added["generator.bias"] = bias
    return added


def read_subwords(source: Source, vocabularies: list[tuple[list[str], dict[str, int]]]) -> Subwords:
    """Reads both SentencePiece models.

    Args:
        vocabularies: the subwords of each side in the order of their ids, with the ids pad, unk,
            bos and eos; only one if both sides share it.

    Raises:
        UserError: a file is damaged, or does not fit.
    """
    try:
        ids = [PieceIds(tuple(pieces), **special) for pieces, special in vocabularies]
    except ValueError as error:
        raise UserError(f"{source.title}: its vocabulary does not fit: {error}") from None
    sides = []
    for name, own in (("source.spm", ids[0]), ("target.spm", ids[-1])):
        content = source.read(name)
        try:
            vocabulary = MarianVocabulary(content, own)
        except (RuntimeError, ValueError):
            raise UserError(f"{source.title}/{name}: it is no SentencePiece model") from None
        known, count = vocabulary.listed()
        if 2 * known < count:
            raise UserError(
                f"{source.title}/{name}: its subwords are not those of the vocabulary: "
                f"{known:,} of {count:,} are in it"
            )
        sides.append(vocabulary)
    return Subwords(*sides)
