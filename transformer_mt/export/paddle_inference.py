"""Paddle Inference: the model as programs that run without the code of the model.

There are two programs, encoder and decoder.

encoder: source_ids, int64 (sentences, source_len), each row ends in eos
    -> source_padding, bool (sentences, 1, 1, source_len), True where the source is padding;
       for each decoder layer the keys and values of its cross-attention, both float32
       (sentences, heads, source_len, d_k)

decoder: ids, int64 (sentences, width);
       positions, int64 (width,), from 0;
       forbidden, bool (sentences, 1, width, past + width), True where an id must not attend to one
       of the ids before it or of these ids;
       source_padding, and the encoder's keys and values;
       for each layer the keys and values (sentences, heads, past, d_k) of the ids before
    -> logits, float32 (sentences, width, vocabulary), of what may follow each id;
       attention, float32 (sentences, width, source_len), the mean of the heads that word alignments
       are read from;
       the keys and values of the ids before and of these ids, (sentences, heads, past + width, d_k)

Every dimension may have any length above 0, and `past` may also be 0. Therefore one program serves
two purposes. In a step of a search, the ids of a sentence are the last ids of its hypotheses, all
at one position. To score a target, its ids are given at once, one after another.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import paddle
from paddle import Tensor, inference, nn
from paddle.static import InputSpec

from transformer_mt.config.schema import Config, Heads
from transformer_mt.data.subword import Subwords
from transformer_mt.decoding.paddle_engine import StepwiseEngine
from transformer_mt.export.registry import PADDLE_INFERENCE, EngineSpec
from transformer_mt.model import operations
from transformer_mt.model.cache import AncestorMask, LayerCache
from transformer_mt.model.layers import PositionalEncoding, divisors
from transformer_mt.model.transformer import Transformer
from transformer_mt.utils import device as devices
from transformer_mt.utils.errors import UserError

# The names of the programs, and the suffixes of their files: the graph and the weights.
ENCODER, DECODER = "encoder", "decoder"
SUFFIXES = (".json", ".pdiparams")


def write_model(
    folder: Path,
    model: Transformer,
    config: Config,
    subwords: Subwords,
    quantization: None = None,
) -> None:
    """Writes both programs and their weights into an existing folder.

    The model is put into evaluation mode.

    Raises:
        UserError: the programs can't hold something of the model; every problem is listed, and
            nothing is written. Or a file can't be written.
    """
    PADDLE_INFERENCE.require_exportable(PADDLE_INFERENCE.unsupported(config.model))
    model.eval()
    own_positions = model.positional_encoding
    # A table of positions would end somewhere.
    model.positional_encoding = _Positions(own_positions)
    try:
        with operations.plain():
            programs = {
                ENCODER: _program(
                    _Encoder(model), [InputSpec([None, None], "int64", "source_ids")]
                ),
                DECODER: _program(_Decoder(model, config.alignment_heads), _decoder_inputs(model)),
            }
            PADDLE_INFERENCE.require_exportable(_problems(model, list(programs.values())))
            for name, program in programs.items():
                paddle.jit.save(program, str(folder / name))
                _check_size(folder / f"{name}.pdiparams", _weights(program))
    finally:
        model.positional_encoding = own_positions


def _program(layer: nn.Layer, inputs: list) -> nn.Layer:
    return paddle.jit.to_static(layer, input_spec=inputs, full_graph=True)


def _problems(model: Transformer, programs: list[nn.Layer]) -> list[str]:
    held = {weight.name for program in programs for weight in _weights(program)}
    problems = []
    for name, parameter in model.named_parameters():
        if parameter.name not in held:
            problems.append(f"{name}: neither program reads it")
        if not np.isfinite(parameter.numpy()).all():
            problems.append(f"{name}: not all of its values are finite")
    return problems


def _weights(program: nn.Layer) -> list[Tensor]:
    """The weights that the program reads."""
    weights, values = program.forward.concrete_program.parameters
    return [w for w, value in zip(weights, values, strict=True) if not value.use_empty()]


def _check_size(path: Path, weights: list[Tensor]) -> None:
    # Paddle reports no error if the disk is full, and leaves half a file.
    if path.stat().st_size < sum(weight.size * weight.element_size() for weight in weights):
        raise UserError(f"{path.name} could not be written whole. Is there space on the disk?")


def _decoder_inputs(model: Transformer) -> list[InputSpec | list[InputSpec]]:
    def caches(name: str) -> list[InputSpec]:
        specs = []
        for number, layer in enumerate(model.decoder.layers):
            attention = layer.self_attention
            for kind, width in (("key", attention.d_k), ("value", attention.d_v)):
                shape = [None, attention.num_heads, None, width]
                specs.append(InputSpec(shape, "float32", f"{name}_{kind}_{number}"))
        return specs

    return [
        InputSpec([None, None], "int64", "ids"),
        InputSpec([None], "int64", "positions"),
        InputSpec([None, 1, None, None], "bool", "forbidden"),
        InputSpec([None, 1, 1, None], "bool", "source_padding"),
        caches("source"),
        caches("past"),
    ]


class _Encoder(nn.Layer):
    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, source_ids: Tensor) -> list[Tensor]:
        cache = self.model.start_cache(self.model.encode(source_ids), source_ids)
        outputs = [cache.memory_mask]
        for layer in cache.layers:
            outputs += [layer.cross_attention.key, layer.cross_attention.value]
        return outputs


class _Decoder(nn.Layer):
    """As `Transformer.decode_step`, but its cache comes in and goes out as tensors, and the mask is
    given by the caller. tests/test_parity.py holds the two together."""

    def __init__(self, model: Transformer, alignment_heads: Heads) -> None:
        super().__init__()
        self.model = model
        self.alignment_heads = alignment_heads

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        forbidden: Tensor,
        source_padding: Tensor,
        source: list[Tensor],
        past: list[Tensor],
    ) -> list[Tensor]:
        model = self.model
        caches = [LayerCache() for _ in model.decoder.layers]
        for number, cache in enumerate(caches):
            own = slice(2 * number, 2 * number + 2)
            cache.cross_attention.key, cache.cross_attention.value = source[own]
            cache.self_attention.key, cache.self_attention.value = past[own]
        x = model.positional_encoding(model.target_embedding(ids), positions)
        layer, heads = self.alignment_heads
        hidden, _, cross_weights = model.decoder(
            x, None, forbidden, source_padding, (layer,), caches
        )
        attention = cross_weights[layer][:, :heads].mean(axis=1)
        outputs = [model.generator(hidden), attention]
        for cache in caches:
            outputs += [cache.self_attention.key, cache.self_attention.value]
        return outputs


class _Positions(nn.Layer):
    """As `PositionalEncoding` without dropout, but computed in the program, so that there is no
    last position. It computes in float64, as `layers.sinusoids` does, with which
    tests/test_parity.py holds it together."""

    def __init__(self, positions: PositionalEncoding) -> None:
        super().__init__()
        self.d_model = positions.table.shape[1]
        of_pairs = paddle.to_tensor(divisors(self.d_model, positions.kind), "float64")
        self.register_buffer("divisors", of_pairs, persistable=False)  # (ceil(d_model / 2),)

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        """Adds `positions`, int64 (len,), by default 0, 1, ..., to `x` (batch, len, d_model)."""
        if positions is None:
            positions = paddle.arange(x.shape[1])
        angles = positions.astype("float64").unsqueeze(1) / self.divisors  # (len, ceil(d / 2))
        table = paddle.stack([angles.sin(), angles.cos()], axis=2).flatten(1)
        return x + table[:, : self.d_model].astype(x.dtype)


# Megabytes of a GPU's memory that Paddle Inference takes at the start.
GPU_MEMORY = 256


class InferenceEngine(StepwiseEngine):
    """Implements `engine.Engine` on the device that Paddle is set to. Two threads must not use it
    at the same time.

    Args:
        folder: an export.
        subwords: those of the folder.

    Raises:
        UsageError: the folder is not an export.
        UserError: a program is damaged, or this version of Paddle can't load it.
    """

    def __init__(self, folder: Path, subwords: Subwords) -> None:
        super().__init__(subwords)
        PADDLE_INFERENCE.require_whole(Path(folder))
        self._encoder = _load(folder, ENCODER)
        self._decoder = _load(folder, DECODER)

    def _states(self, source: Tensor, candidates: np.ndarray | None = None) -> list[_State]:
        return [_State(self._decoder, self._encoder.run([source]))]

    def _logits(
        self, source: Tensor, decoder_input: np.ndarray
    ) -> Iterator[tuple[slice, list[Tensor]]]:
        for rows, logits, _ in self._forward(source, decoder_input):
            yield rows, [logits]

    def _attention(self, source: Tensor, decoder_input: np.ndarray) -> Iterator[np.ndarray]:
        for _, _, attention in self._forward(source, decoder_input):
            yield from attention.numpy()

    def _forward(
        self, source: Tensor, decoder_input: np.ndarray
    ) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Yields some rows of the decoder input, int64 (rows, target_len), at a time, with their
        logits and attention, which are overwritten when the next rows are computed."""
        encoded = self._encoder.run([source])
        length = decoder_input.shape[1]
        positions = paddle.arange(length)
        later = paddle.to_tensor(np.triu(np.ones((1, 1, length, length), bool), 1))
        for rows in self._some_rows(decoder_input):
            ids = paddle.to_tensor(decoder_input[rows])
            padding, *keys_and_values = (x[rows] for x in encoded)
            past = [x[:, :, :0] for x in keys_and_values]
            inputs = [ids, positions, later, padding, *keys_and_values, *past]
            logits, attention, *_ = self._decoder.run(inputs)
            yield rows, logits, attention


def load(spec: EngineSpec) -> InferenceEngine:
    devices.use(spec.device)
    return InferenceEngine(spec.folder, spec.subwords)


class _State:
    """Implements `DecoderState` with the decoder's program."""

    def __init__(self, decoder: inference.Predictor, encoded: list[Tensor]) -> None:
        self._decoder = decoder
        self._encoded = encoded  # the padding, then the keys and values of the source
        self._past = [x[:, :, :0] for x in encoded[1:]]
        self._ancestors = AncestorMask()

    def step(self, ids: np.ndarray, parents: np.ndarray) -> Tensor:
        kept = self._ancestors.prune()
        if kept is not None:
            index = paddle.to_tensor(kept[:, np.newaxis, :, np.newaxis])
            self._past = [paddle.take_along_axis(x, index, axis=2) for x in self._past]
        position = self._ancestors.length
        mask = self._ancestors.grow(parents)
        forbidden = np.zeros((1, 1, 1, 1), bool) if mask is None else mask
        own = (np.ascontiguousarray(ids), np.array([position]), forbidden)
        inputs = [*(paddle.to_tensor(x) for x in own), *self._encoded, *self._past]
        logits, _, *past = self._decoder.run(inputs)
        # The outputs lie in the predictor's own memory, where its next run may write.
        self._past = [x.clone() for x in past]
        return logits

    def select(self, sentences: np.ndarray) -> None:
        self._ancestors.select(sentences)
        index = paddle.to_tensor(sentences)
        self._encoded = [paddle.index_select(x, index) for x in self._encoded]
        self._past = [paddle.index_select(x, index) for x in self._past]


def _load(folder: Path, name: str) -> inference.Predictor:
    files = [Path(folder) / f"{name}{suffix}" for suffix in SUFFIXES]
    config = inference.Config(*map(str, files))
    config.disable_glog_info()
    # oneDNN's operations, the default on a CPU, are slower here and print to stdout.
    config.disable_mkldnn()
    device, _, number = paddle.get_device().partition(":")
    if device == "gpu":
        config.enable_use_gpu(GPU_MEMORY, int(number))
    try:
        return inference.create_predictor(config)
    except Exception as error:  # Paddle's type of error for an unknown format is not documented
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise UserError(
            f"{files[0]}: Paddle {paddle.__version__} can't load it ({reason}). Export the model "
            "again, with this version of Paddle"
        ) from None
