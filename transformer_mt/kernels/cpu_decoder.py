"""Incremental decoding on a CPU: computes `Transformer.decode_step` with little Python per step.

A step works on few positions, so that calling Paddle costs more than the arithmetic. Here, the
operations of a step are recorded once, with the addresses of their arrays, and become a list of
calls. A step then changes what is in the arrays, and makes the calls. The results agree with those
of the model up to float32 rounding, which is tested with each model before it is decoded so.
"""

from __future__ import annotations

import functools
import weakref

import numpy as np
import paddle
from paddle import Tensor

from transformer_mt.kernels import onednn
from transformer_mt.kernels.cpu_encoder import CpuEncoder
from transformer_mt.kernels.recorded import (
    FORBIDDEN,
    PANEL,
    Panels,
    RecordedAttention,
    RecordedFeedForward,
    RecordedNorm,
    RecordedResidual,
    Recorder,
    Unused,
    padded_length,
    product,
    recorder,
)
from transformer_mt.model.cache import AncestorMask, capacity
from transformer_mt.model.operations import array, is_float32_on_cpu, tensor
from transformer_mt.model.transformer import DecoderLayer, Transformer, evaluating
from transformer_mt.model.variants import CopyingTransformer
from transformer_mt.utils.console import warn

# How far the logits of the decoder may be from the model's, as a share of the largest one. Rounding
# makes a difference of 1e-6, and of 1e-5 with weights that are drawn many times too large.
TOLERANCE = 1e-4
# As soon as fewer sentences than this share of a workspace are left, they move to a smaller one.
LEAST_SHARE = 3 / 4
# The models whose decoders compute the same logits, so that a validation does not test it again.
_CHECKED: weakref.WeakSet[Transformer] = weakref.WeakSet()
# Whether the encoders of models compute the same memory.
_ENCODERS_AGREE: weakref.WeakKeyDictionary[Transformer, bool] = weakref.WeakKeyDictionary()


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
        self.layers = [_DecoderLayer(layer) for layer in model.decoder.layers]
        self.norm = None if model.decoder.norm is None else RecordedNorm(model.decoder.norm)
        self.model = model
        self.embedding = array(model.target_embedding.weight)
        self.scale = np.float32(model.target_embedding.scale)
        self.positions = model.positional_encoding
        # (d_model, vocabulary). For few rows, the product is twice as fast as with the transpose.
        self.output = array(model.generator.weight.t().contiguous())
        bias = model.generator.bias
        self.output_bias = None if bias is None else array(bias)
        self._panels: Panels | None = None
        # Single sentences need the same few workspaces time and again.
        self._unused = Unused()
        self._encoder = _encoder_of(model)
        if model not in _CHECKED:
            with evaluating([model]):
                self._require_equal_steps()
            _CHECKED.add(model)

    def encode(self, source_ids: Tensor) -> Tensor:
        """As `Transformer.encode`, which is slower for a single sentence."""
        if self._encoder is None or len(source_ids) > 1:
            return self.model.encode(source_ids)
        return self._encoder(source_ids)

    @property
    def panels(self) -> Panels:
        """`output`, for few rows."""
        if self._panels is None:  # only now, because it takes as much memory again
            self._panels = Panels(self.output)
        return self._panels

    def workspace(self, sentences: int, source_len: int, positions: int) -> _Workspace:
        """Returns a workspace that has at least these sizes, and that nobody else uses."""
        sizes = _round_up(sentences), padded_length(source_len), capacity(positions)
        unused = self._unused.of(*sizes)
        return unused.pop() if unused else _Workspace(self, *sizes, unused)

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
            if not are_close(state.step(ids, parents), expected):
                raise ValueError("the logits of CpuDecoder differ from those of the model")


def _encoder_of(model: Transformer) -> CpuEncoder | None:
    """Returns the encoder; None if it does not compute what the model computes, for example because
    a layer was changed. Then Paddle encodes."""
    try:
        encoder = CpuEncoder(model)
        if model not in _ENCODERS_AGREE:
            ids = np.arange(model.source_embedding.weight.shape[0])
            ids = np.random.default_rng(1).choice(np.delete(ids, model.source_pad_id), (1, 3))
            source = paddle.to_tensor(ids)
            with evaluating([model]):
                found, expected = encoder(source), model.encode(source)
            _ENCODERS_AGREE[model] = are_close(array(found), array(expected))
    except Exception:  # Whatever it is, Paddle can encode.
        return None
    return encoder if _ENCODERS_AGREE[model] else None


def are_close(found: np.ndarray, expected: np.ndarray) -> bool:
    """Whether two arrays differ by no more than rounding."""
    largest = np.abs(expected).max(initial=0, where=np.isfinite(expected))
    return np.allclose(found, expected, rtol=0, atol=TOLERANCE * largest, equal_nan=True)


def _round_up(sentences: int) -> int:
    # The next of 1, 2, 3, 4, 6, 8, 12, 16, 24, ..., so that fewer shapes occur.
    power = 1 << (sentences - 1).bit_length()
    return power * 3 // 4 if power >= 4 and sentences <= power * 3 // 4 else power


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
        self._positions = decoder.positions.rows(0, capacity(1))
        self._copyable = decoder.model.copyable(source_ids)
        self._output, self._output_bias = decoder.output, decoder.output_bias
        if candidates is not None:
            self._output = np.ascontiguousarray(decoder.output[:, candidates])
            if self._output_bias is not None:
                self._output_bias = self._output_bias[candidates]

    def __del__(self) -> None:
        if hasattr(self, "_workspace"):  # the constructor may have failed
            self._workspace.give_back()

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
        start, number = ancestors.positions, ancestors.length
        mask = ancestors.grow(parents)
        if ancestors.positions > self._workspace.sizes[2]:
            self._move(ancestors.positions, np.arange(self._count), start)
        # 3. Embed the ids, and pass the hypotheses through all layers.
        step = self._workspace.step(ids.shape[1])
        if number >= len(self._positions):  # asking for each position takes longer
            self._positions = decoder.positions.rows(0, capacity(number + 1))
        x = step(ids, self._positions[number], mask, start)  # (sentences * width, d_model)
        # 4. Compute the logits.
        is_whole = self._output is decoder.output
        logits = step.logits() if is_whole and step.is_narrow else product(x, self._output)
        if self._output_bias is not None:
            logits += self._output_bias
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
            self._workspace.copy(self._workspace, sentences, positions)
        if self._copyable is not None:
            self._copyable = self._copyable.select(paddle.to_tensor(sentences))

    def _move(self, positions: int, sentences: np.ndarray, filled: int) -> None:
        """Moves to a workspace for `positions`, with these sentences and `filled` positions."""
        before = self._workspace
        self._workspace = self._decoder.workspace(self._count, self._source_len, positions)
        self._workspace.copy(before, sentences, filled)
        before.give_back()


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

    def __init__(
        self, decoder: CpuDecoder, sentences: int, source_len: int, length: int, unused: list
    ) -> None:
        self.sizes = sentences, source_len, length
        self._unused = unused  # where those of these sizes wait in the thread that made this one
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
        """Takes these sentences of another workspace, or of this one, with `filled` target
        positions."""
        self.count = len(sentences)
        for mine, its in zip(self.own, other.own, strict=True):
            mine[: self.count, :filled] = its[sentences, :filled]
        parts = zip((*self.cross, self.padding), (*other.cross, other.padding), strict=True)
        for mine, its in parts:
            mine[: self.count] = its[sentences]

    def give_back(self) -> None:
        """Keeps this workspace for the next sentence, if it is one of a single sentence."""
        if self.sizes[0] == 1:
            self._unused.append(self)

    def take(self, positions: np.ndarray) -> None:
        """Keeps the target positions of each sentence with these indices, int64
        (sentences, kept)."""
        count, kept = positions.shape
        for own in self.own:
            rows = np.arange(count)[:, np.newaxis]
            own[:count, :kept] = own[rows, positions]


class _Step:
    """The calls of a step with `width` hypotheses of each sentence, and their arrays.

    Attributes:
        is_narrow: whether `logits` may be called.
    """

    def __init__(self, decoder: CpuDecoder, workspace: _Workspace, width: int) -> None:
        self._decoder, self._workspace = decoder, workspace
        sentences = workspace.sizes[0]
        self._width = width
        rows = sentences * width
        d_model = decoder.embedding.shape[1]
        # The calls for a single sentence serve for many, those for several rarely for all rows.
        self._recorder = recorder(has_fixed_rows=sentences == 1)
        self._filled = 0
        # FORBIDDEN or 0, (sentences, 1, width, positions); None forbids nothing.
        self._mask: np.ndarray | None = None
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
                layer.own.attend(self._recorder, query, own, self._add_mask, x, growing=True)
            with layer.cross_residual.around(self._recorder, x, normed) as entered:
                query = layer.cross.project_query(self._recorder, entered)
                query = query.reshape(sentences, width, -1)
                self._cross_weights = layer.cross.attend(
                    self._recorder, query, cross, self._add_padding, x
                )
            with layer.feed_forward_residual.around(self._recorder, x, normed) as entered:
                layer.feed_forward.add_to(self._recorder, entered, x)
        if decoder.norm is not None:
            decoder.norm(self._recorder, x, x)
        # With one row, a product is as fast without panels.
        self.is_narrow = onednn.library() is not None and sentences == 1 and 1 < width <= PANEL
        self._output_recorder: Recorder | None = None

    def __call__(
        self, ids: np.ndarray, position: np.ndarray, mask: np.ndarray | None, filled: int
    ) -> np.ndarray:
        """Takes the step: `ids` (sentences, width) at a `position` (d_model,), where earlier steps
        have `filled` target positions; `mask` is that of `AncestorMask.grow`.

        Returns: the output of the decoder (sentences * width, d_model), until the next step.
        """
        decoder = self._decoder
        self._filled, end = filled, filled + self._width
        self._mask = None if mask is None else mask * FORBIDDEN
        rows = ids.size
        x = self._x[:rows]
        np.take(decoder.embedding, ids.reshape(-1), axis=0, out=x, mode="clip")
        x *= decoder.scale
        x += position
        for function, arguments in self._recorder.calls_of(rows, end):
            function(*arguments)
        return x

    def logits(self) -> np.ndarray:
        """The logits (width, vocabulary) of the last step, until the next one, if `is_narrow`."""
        if self._output_recorder is None:
            self._logits = np.empty((self._width, len(self._decoder.embedding)), np.float32)
            self._output_recorder = recorder(has_fixed_rows=True)
            self._decoder.panels.record(self._output_recorder, self._x, self._logits)
        for function, arguments in self._output_recorder.calls_of(self._width):
            function(*arguments)
        return self._logits

    def cross_attention(self, sentences: int) -> np.ndarray:
        """The cross-attention weights of the last layer in the last step, (sentences, heads, width,
        source_len)."""
        return self._cross_weights[:sentences]

    def _append(self, own: np.ndarray, new: np.ndarray) -> None:
        count = self._workspace.count
        own[:count, self._filled : self._filled + self._width] = new[:count]

    def _add_mask(self, scores: np.ndarray) -> None:
        end = self._filled + self._width
        if self._mask is not None:
            scores[: self._workspace.count, :, :, :end] += self._mask
        scores[:, :, :, end:] = FORBIDDEN

    def _add_padding(self, scores: np.ndarray) -> None:
        scores += self._workspace.padding


class _DecoderLayer:
    """The parts of a `DecoderLayer`."""

    def __init__(self, layer: DecoderLayer) -> None:
        self.own_residual = RecordedResidual(layer.self_attention_residual)
        self.cross_residual = RecordedResidual(layer.cross_attention_residual)
        self.feed_forward_residual = RecordedResidual(layer.feed_forward_residual)
        self.own = RecordedAttention(layer.self_attention)
        self.cross = RecordedAttention(layer.cross_attention)
        self.feed_forward = RecordedFeedForward(layer.feed_forward)
