"""Incremental decoding on a CPU: computes `Transformer.decode_step` with little Python per step.

A step works on few positions, so that calling Paddle costs more than the arithmetic. Here, the
operations of a step are recorded once, with the addresses of their arrays, and become a list of
calls. A step then changes what is in the arrays, and makes the calls. The results agree with those
of the model up to float32 rounding, which is tested with each model before it is decoded so.
"""

from __future__ import annotations

import copy
import functools
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
import paddle
from paddle import Tensor

from transformer_mt.kernels import onednn
from transformer_mt.model.attention import FORBIDDEN_SCORE, MultiHeadAttention
from transformer_mt.model.cache import AncestorMask, capacity
from transformer_mt.model.layers import LayerNorm, Linear, ResidualNorm
from transformer_mt.model.operations import array, is_float32_on_cpu, tensor
from transformer_mt.model.transformer import DecoderLayer, Transformer, evaluating
from transformer_mt.model.variants import CopyingTransformer
from transformer_mt.utils.console import warn

FORBIDDEN = np.float32(FORBIDDEN_SCORE)
# How far the logits of the decoder may be from the model's, as a share of the largest one. Rounding
# makes a difference of 1e-6, and of 1e-5 with weights that are drawn many times too large.
TOLERANCE = 1e-4
# Sources are padded to a multiple of this length, so that fewer shapes occur.
SOURCE_STEP = 16
# As soon as fewer sentences than this share of a workspace are left, they move to a smaller one.
LEAST_SHARE = 3 / 4
# The models whose decoders compute the same logits, so that a validation does not test it again.
_CHECKED: weakref.WeakSet[Transformer] = weakref.WeakSet()


def cpu_decoders(models: list[Transformer]) -> list[CpuDecoder]:
    """A decoder for each model; none at all if one of the models is not in float32 on a CPU, or if
    a decoder does not compute what its model does, which a warning tells."""
    if not all(is_float32_on_cpu(weight) for model in models for weight in model.parameters()):
        return []
    try:
        return [CpuDecoder(model) for model in models]
    except Exception as error:  # Whatever it is, the warning says it.
        _warn_of_slow_decoding(f"{type(error).__name__}: {error}")
        return []


@functools.cache  # so that it is said once, and not at every validation
def _warn_of_slow_decoding(reason: str) -> None:
    warn(
        "the fast decoder for a CPU (kernels/cpu_decoder.py) can't decode this model, so Paddle "
        f"does, which is slower. The translations are the same. ({reason})"
    )


class CpuDecoder:
    """The decoder of a model, for `CpuDecoderState`. The weights must not change meanwhile.

    Args:
        model: float32, on the CPU.

    Raises:
        ValueError: it does not compute what the model computes, for example because a layer was
            changed. A model whose layers have other parts may raise anything.
    """

    def __init__(self, model: Transformer) -> None:
        self.layers = [_Layer(layer) for layer in model.decoder.layers]
        self.norm = None if model.decoder.norm is None else _Norm(model.decoder.norm)
        self.model = model
        self.embedding = array(model.target_embedding.weight)
        self.scale = np.float32(model.target_embedding.scale)
        self.positions = model.positional_encoding
        # (d_model, vocabulary). For few rows, the product is twice as fast as with the transpose.
        self.output = array(model.generator.weight.t().contiguous())
        # Single sentences need the same few workspaces time and again.
        self._free: dict[tuple, list[_Workspace]] = {}
        if model not in _CHECKED:
            with evaluating([model]):
                self._require_equal_steps()
            _CHECKED.add(model)

    def workspace(self, sentences: int, source_len: int, positions: int) -> _Workspace:
        """Returns a workspace that has at least these sizes, and that nobody else uses."""
        source_len = -(-source_len // SOURCE_STEP) * SOURCE_STEP
        sizes = _round_up(sentences), source_len, capacity(positions)
        free = self._free.get(sizes)
        return free.pop() if free else _Workspace(self, *sizes)

    def give_back(self, workspace: _Workspace) -> None:
        """Keeps a workspace for the next sentence, if it is one of a single sentence."""
        if workspace.sizes[0] == 1:
            self._free.setdefault(workspace.sizes, []).append(workspace)

    def _require_equal_steps(self) -> None:
        """Takes a few steps for two small sources, in which hypotheses fork and one of the sources
        is padded, and compares the logits with those of the model."""
        model, random = self.model, np.random.default_rng(1)
        source_ids = np.arange(model.source_embedding.weight.shape[0])
        source = random.choice(np.delete(source_ids, model.source_pad_id), (2, 3))
        source[1, 2] = model.source_pad_id
        source = paddle.to_tensor(source)
        memory = model.encode(source)
        cache, state = model.start_cache(memory, source), CpuDecoderState(self, memory, source)
        for parents in map(np.array, ([[0], [0]], [[0, 0], [0, 0]], [[1, 0], [1, 1]])):
            ids = random.integers(len(self.embedding), size=parents.shape)
            expected = model.decode_step(paddle.to_tensor(ids), parents, cache).numpy()
            largest = np.abs(expected).max(initial=0, where=np.isfinite(expected))
            found, limit = state.step(ids, parents), TOLERANCE * largest
            if not np.allclose(found, expected, rtol=0, atol=limit, equal_nan=True):
                raise ValueError("the logits of CpuDecoder differ from those of the model")


def _round_up(sentences: int) -> int:
    # The next of 1, 2, 3, 4, 6, 8, 12, 16, 24, ..., so that fewer shapes occur.
    power = 1 << (sentences - 1).bit_length()
    return power * 3 // 4 if power >= 4 and sentences <= power * 3 // 4 else power


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Returns a @ b of float32 matrices."""
    library = onednn.library()
    if library is None:
        return np.matmul(a, b)
    out = np.empty((len(a), b.shape[1]), np.float32)
    library.product(a, b, out)
    return out


class CpuDecoderState:
    """The state of a batch of sentences that is decoded step by step.

    The hypotheses of a sentence are decoded together, see `AncestorMask`.

    Args:
        memory: float32 (sentences, source_len, d_model), on the CPU, the encoder's output for
        source_ids: int64 (sentences, source_len).
        candidates: the ids to compute the logits of, int64 (candidates,); None: all ids. A model
            that copies needs all.
    """

    def __init__(
        self,
        decoder: CpuDecoder,
        memory: Tensor,
        source_ids: Tensor,
        candidates: np.ndarray | None = None,
    ) -> None:
        self._decoder = decoder
        self._ancestors = AncestorMask()
        self._count, self._source_len = source_ids.shape
        self._workspace = decoder.workspace(self._count, self._source_len, 1)
        is_padding = array(source_ids) == decoder.model.source_pad_id
        self._workspace.start(array(memory), is_padding)
        self._copyable = decoder.model.copyable(source_ids)
        self._output = decoder.output
        if candidates is not None:
            self._output = np.ascontiguousarray(decoder.output[:, candidates])

    def __del__(self) -> None:
        if hasattr(self, "_workspace"):  # the constructor may have failed
            self._decoder.give_back(self._workspace)

    @paddle.no_grad()
    def step(self, ids: np.ndarray, parents: np.ndarray) -> np.ndarray:
        """Takes one step of incremental decoding.

        Args:
            ids: int64 (sentences, width), the last id of each hypothesis; bos at the first step.
            parents: as in `AncestorMask.grow`.

        Returns: the logits of the next token of each hypothesis, float32
            (sentences, width, vocabulary or candidates).
        """
        decoder, ancestors = self._decoder, self._ancestors
        # 1. Drop the positions that no hypothesis descends from.
        kept = ancestors.prune()
        if kept is not None:
            self._workspace.take(kept)
        # 2. Add this step to the mask (sentences, 1, width, positions).
        start, position = ancestors.positions, decoder.positions.at(ancestors.length)
        mask = ancestors.grow(parents)
        if ancestors.positions > self._workspace.sizes[2]:
            self._move(ancestors.positions, np.arange(self._count), start)
        # 3. Embed the ids, and pass the hypotheses through all layers.
        step = self._workspace.step(ids.shape[1])
        x = step(ids, position, mask, start)  # (sentences * width, d_model)
        # 4. Compute the logits.
        logits = product(x, self._output)
        if isinstance(decoder.model, CopyingTransformer):
            attention = step.cross_attention(self._count)[..., : self._source_len]
            hidden = tensor(x.reshape(*ids.shape, -1).copy())
            weights = [tensor(np.ascontiguousarray(attention))]
            logits = array(
                decoder.model.generate(hidden, weights, self._copyable, logits=tensor(logits))
            )
        return logits.reshape(*ids.shape, -1)

    def select(self, sentences: np.ndarray) -> None:
        """Keeps the sentences with these indices, int64 (kept,), in this order."""
        positions = self._ancestors.positions
        self._count = len(sentences)
        self._ancestors.select(sentences)
        smallest = _round_up(self._count)
        if smallest < LEAST_SHARE * self._workspace.sizes[0]:
            self._move(positions, sentences, positions)
        else:
            self._workspace.select(sentences, positions)
        if self._copyable is not None:
            self._copyable = self._copyable.select(paddle.to_tensor(sentences))

    def _move(self, positions: int, sentences: np.ndarray, filled: int) -> None:
        """Moves to a workspace for `positions`, with these sentences and `filled` positions."""
        before = self._workspace
        self._workspace = self._decoder.workspace(self._count, self._source_len, positions)
        self._workspace.copy(before, sentences, filled)
        self._decoder.give_back(before)


class _Workspace:
    """The keys and values of a batch, and the calls of a step for each width.

    All sizes are upper limits. What lies beyond the sentences, the positions and the sources of the
    batch is finite but means nothing; where it could matter, it is masked.

    Attributes:
        sizes: the numbers of sentences, of source positions, and of target positions.
        count: the number of sentences of the batch.
        own, cross: for each layer, the keys and the values side by side, of the target positions
            and of the source, float32 (sentences, positions, heads * (d_k + d_v)).
        padding: float32 (sentences, 1, 1, source_len), FORBIDDEN where the source is padding.
    """

    def __init__(self, decoder: CpuDecoder, sentences: int, source_len: int, length: int) -> None:
        self.sizes = sentences, source_len, length
        self.count = sentences
        self._decoder = decoder
        self._steps: dict[int, _Step] = {}
        self.own = [
            np.zeros((sentences, length, layer.own.width), np.float32) for layer in decoder.layers
        ]
        self.cross = [
            np.zeros((sentences, source_len, layer.cross.width), np.float32)
            for layer in decoder.layers
        ]
        self.padding = np.full((sentences, 1, 1, source_len), FORBIDDEN)

    def start(self, memory: np.ndarray, is_padding: np.ndarray) -> None:
        """Begins a batch: `memory` (sentences, source_len, d_model), and where it is padding, bool
        (sentences, source_len)."""
        self.count, source_len, width = memory.shape
        rows = memory.reshape(-1, width)
        for layer, cross in zip(self._decoder.layers, self.cross, strict=True):
            projected = layer.cross.project(rows).reshape(self.count, source_len, -1)
            cross[: self.count, :source_len] = projected
        self.padding[...] = FORBIDDEN
        self.padding[: self.count, 0, 0, :source_len] = is_padding * FORBIDDEN

    def step(self, width: int) -> _Step:
        """Returns the step with `width` hypotheses of each sentence."""
        if width not in self._steps:
            self._steps[width] = _Step(self._decoder, self, width)
        return self._steps[width]

    def copy(self, other: _Workspace, sentences: np.ndarray, filled: int) -> None:
        """Takes these sentences of another workspace, with `filled` target positions."""
        self.count = len(sentences)
        for mine, its in zip(self.own, other.own, strict=True):
            mine[: self.count, :filled] = its[sentences, :filled]
        parts = zip((*self.cross, self.padding), (*other.cross, other.padding), strict=True)
        for mine, its in parts:
            mine[: self.count] = its[sentences]

    def select(self, sentences: np.ndarray, filled: int) -> None:
        """Keeps the sentences with these indices, which have `filled` target positions."""
        self.copy(self, sentences, filled)

    def take(self, positions: np.ndarray) -> None:
        """Keeps the target positions of each sentence with these indices, int64
        (sentences, kept)."""
        count, kept = positions.shape
        for own in self.own:
            own[:count, :kept] = np.take_along_axis(
                own[:count], positions[:, :, np.newaxis], axis=1
            )


class _Step:
    """The calls of a step with `width` hypotheses of each sentence, and their arrays."""

    def __init__(self, decoder: CpuDecoder, workspace: _Workspace, width: int) -> None:
        self._decoder, self._workspace = decoder, workspace
        sentences, _, length = workspace.sizes
        self._width = width
        rows = sentences * width
        d_model = decoder.embedding.shape[1]
        library = onednn.library()
        self._recorder = NumpyRecorder() if library is None else onednn.Recorder(library)
        self._filled = 0
        # (sentences, 1, width, length)
        self._mask = np.full((sentences, 1, width, length), FORBIDDEN)
        self._x = x = np.zeros((rows, d_model), np.float32)
        normed = np.zeros_like(x)
        for layer, own, cross in zip(decoder.layers, workspace.own, workspace.cross, strict=True):
            with layer.own_residual.around(self._recorder, x, normed) as entered:
                # The queries, keys and values of this step: (sentences, width, heads * d) each.
                projected = layer.own.project_all(self._recorder, entered)
                projected = projected.reshape(sentences, width, -1)
                new = projected[:, :, layer.own.key_width :]
                self._recorder.record(self._append, own, new)
                query = projected[:, :, : layer.own.key_width]
                layer.own.attend(self._recorder, query, own, self._mask, x)
            with layer.cross_residual.around(self._recorder, x, normed) as entered:
                query = layer.cross.project_query(self._recorder, entered)
                query = query.reshape(sentences, width, -1)
                self._cross_weights = layer.cross.attend(
                    self._recorder, query, cross, workspace.padding, x
                )
            with layer.feed_forward_residual.around(self._recorder, x, normed) as entered:
                inner = layer.inner(self._recorder, entered)
                self._recorder.record(np.maximum, inner, np.float32(0), inner)
                layer.outer.add_to(self._recorder, inner, x)
        if decoder.norm is not None:
            decoder.norm(self._recorder, x, x)

    def __call__(
        self, ids: np.ndarray, position: np.ndarray, mask: np.ndarray | None, filled: int
    ) -> np.ndarray:
        """Takes the step: `ids` (sentences, width) at a `position` (d_model,), where earlier steps
        have `filled` target positions; `mask` is that of `AncestorMask.grow`.

        Returns: the output of the decoder (sentences * width, d_model), until the next step.
        """
        decoder, count = self._decoder, self._workspace.count
        end = filled + self._width
        self._filled = filled
        if mask is None:
            self._mask[:count, :, :, :end] = 0
        else:
            np.multiply(mask, FORBIDDEN, out=self._mask[:count, :, :, :end])
        self._mask[:, :, :, end:] = FORBIDDEN
        rows = ids.size
        x = self._x[:rows]
        np.take(decoder.embedding, ids.reshape(-1), axis=0, out=x, mode="clip")
        x *= decoder.scale
        x += position
        for function, arguments in self._recorder.calls_of(rows):
            function(*arguments)
        return x

    def cross_attention(self, sentences: int) -> np.ndarray:
        """The cross-attention weights of the last layer in the last step, (sentences, heads, width,
        source_len)."""
        return self._cross_weights[:sentences]

    def _append(self, own: np.ndarray, new: np.ndarray) -> None:
        count = self._workspace.count
        own[:count, self._filled : self._filled + self._width] = new[:count]


class _Layer:
    """The parts of a `DecoderLayer`, which record what they compute."""

    def __init__(self, layer: DecoderLayer) -> None:
        self.own_residual = _Residual(layer.self_attention_residual)
        self.cross_residual = _Residual(layer.cross_attention_residual)
        self.feed_forward_residual = _Residual(layer.feed_forward_residual)
        self.own = _Attention(layer.self_attention)
        self.cross = _Attention(layer.cross_attention)
        self.inner = _Linear(layer.feed_forward.inner_projection)
        self.outer = _Linear(layer.feed_forward.output_projection)


class _Attention:
    """A `MultiHeadAttention`. The scores are scaled by scaling the queries.

    Attributes:
        key_width: heads * d_k, which is the width of queries, too.
        width: of keys and values side by side.
    """

    def __init__(self, attention: MultiHeadAttention) -> None:
        self._num_heads = attention.num_heads
        # Widths are read from the weights, as the layer does.
        self.key_width = attention.query_projection.weight.shape[1]
        scale = np.float32((self.key_width // self._num_heads) ** -0.5)
        query = _Linear(attention.query_projection, scale=scale)
        key, value = _Linear(attention.key_projection), _Linear(attention.value_projection)
        self.project_query = query
        self.project_all = query.beside(key).beside(value)
        self._key_and_value = key.beside(value)
        self.width = self._key_and_value.weight.shape[1]
        self._output = _Linear(attention.output_projection)

    def project(self, rows: np.ndarray) -> np.ndarray:
        """Projects `rows` (rows, d_model) to keys and values side by side: (rows, width)."""
        key_and_value = self._key_and_value
        return product(rows, key_and_value.weight) + key_and_value.bias

    def attend(
        self,
        recorder: Recorder,
        query: np.ndarray,
        keys_and_values: np.ndarray,
        mask: np.ndarray,
        x: np.ndarray,
    ) -> np.ndarray:
        """Adds the attention from `query` (sentences, width, heads * d_k) to the keys to `x`
        (sentences * width, d_model). Returns the array of the weights, (sentences, heads, width,
        length).

        Args:
            keys_and_values: (sentences, length, self.width).
            mask: float32, FORBIDDEN at forbidden keys, (sentences, 1, 1 or width, length).
        """
        key = self._heads(keys_and_values[:, :, : self.key_width])
        value = self._heads(keys_and_values[:, :, self.key_width :])
        query = self._heads(query)
        weights = np.zeros((*query.shape[:3], key.shape[2]), np.float32)
        sentences, width = query.shape[0], query.shape[2]
        mixed = np.zeros((sentences, width, self._output.weight.shape[0]), np.float32)
        recorder.products(query, key.swapaxes(2, 3), weights, mask)
        recorder.softmax(weights, weights)
        recorder.products(weights, value, self._heads(mixed))
        self._output.add_to(recorder, mixed.reshape(len(x), -1), x)
        return weights

    def _heads(self, x: np.ndarray) -> np.ndarray:
        # (sentences, len, heads * d) -> (sentences, heads, len, d)
        sentences, length, width = x.shape
        heads = x.reshape(sentences, length, self._num_heads, width // self._num_heads)
        return heads.transpose(0, 2, 1, 3)


class _Linear:
    """A `Linear` layer, of which weight (in, out) and bias (out,) are multiplied by `scale`."""

    def __init__(self, linear: Linear, scale: np.float32 | None = None) -> None:
        self.weight = array(linear.weight)
        width = self.weight.shape[1]
        self.bias = np.zeros(width, np.float32) if linear.bias is None else array(linear.bias)
        if scale is not None:
            self.weight, self.bias = self.weight * scale, self.bias * scale

    def beside(self, other: _Linear) -> _Linear:
        """Returns the layer that computes the outputs of both side by side."""
        both = copy.copy(self)
        both.weight = np.concatenate([self.weight, other.weight], axis=1)
        both.bias = np.concatenate([self.bias, other.bias])
        return both

    def __call__(self, recorder: Recorder, x: np.ndarray) -> np.ndarray:
        """Records the layer for `x` (rows, in), and returns the array of its output, (rows,
        out)."""
        out = np.zeros((len(x), len(self.bias)), np.float32)
        recorder.record(np.copyto, out, self.bias)
        recorder.product(x, self.weight, out, add=True)
        return out

    def add_to(self, recorder: Recorder, x: np.ndarray, out: np.ndarray) -> None:
        """Records that the output for `x` (rows, in) is added to `out` (rows, out)."""
        recorder.record(np.add, out, self.bias, out)
        recorder.product(x, self.weight, out, add=True)


class _Residual:
    """A `ResidualNorm` around a sublayer."""

    def __init__(self, residual: ResidualNorm) -> None:
        self._is_pre_norm = residual.is_pre_norm
        self._norm = _Norm(residual.norm)

    @contextmanager
    def around(self, recorder: Recorder, x: np.ndarray, normed: np.ndarray) -> Iterator[np.ndarray]:
        """A block that records a sublayer, which adds its output to `x` (rows, d_model). Its value
        is the input of the sublayer: `x`, or `normed`, to which the norm of `x` is written."""
        if self._is_pre_norm:
            self._norm(recorder, x, normed)
            yield normed
        else:
            yield x
            self._norm(recorder, x, x)


class _Norm:
    """A `LayerNorm`."""

    def __init__(self, norm: LayerNorm) -> None:
        self._weight, self._bias = array(norm.weight), array(norm.bias)
        self._epsilon = norm._epsilon

    def __call__(self, recorder: Recorder, x: np.ndarray, out: np.ndarray) -> None:
        """Records the norm of `x` (rows, d_model), which is written to `out`."""
        recorder.layer_norm(x, self._weight, self._bias, self._epsilon, out)


class NumpyRecorder:
    """As `onednn.Recorder`, where there is no oneDNN."""

    def __init__(self) -> None:
        self._calls: list[onednn.Call] = []
        self._rows = 0

    def calls_of(self, rows: int) -> list[onednn.Call]:
        self._rows = rows
        return self._calls

    def record(self, function: Callable, *arguments: object) -> None:
        self._calls.append((function, arguments))

    def product(self, a: np.ndarray, b: np.ndarray, out: np.ndarray, add: bool = False) -> None:
        def compute() -> None:
            rows = self._rows
            if add:
                out[:rows] += a[:rows] @ b
            else:
                np.matmul(a[:rows], b, out=out[:rows])

        self.record(compute)

    def products(
        self, a: np.ndarray, b: np.ndarray, out: np.ndarray, mask: np.ndarray | None = None
    ) -> None:
        self.record(partial(np.matmul, a, b, out=out))
        if mask is not None:
            self.record(np.add, out, mask, out)

    def softmax(self, x: np.ndarray, out: np.ndarray) -> None:
        def compute() -> None:
            np.subtract(x, np.maximum.reduce(x, axis=-1, keepdims=True), out=out)
            np.exp(out, out=out)
            np.divide(out, np.add.reduce(out, axis=-1, keepdims=True), out=out)

        self.record(compute)

    def layer_norm(
        self, x: np.ndarray, scale: np.ndarray, shift: np.ndarray, epsilon: float, out: np.ndarray
    ) -> None:
        def compute() -> None:
            centred = x - x.mean(axis=-1, keepdims=True)
            variance = np.einsum("...i,...i->...", centred, centred) / x.shape[-1]
            centred *= (1 / np.sqrt(variance + epsilon)).astype(np.float32)[..., np.newaxis]
            np.multiply(centred, scale, out=out)
            np.add(out, shift, out=out)

        self.record(compute)


Recorder = NumpyRecorder | onednn.Recorder
