"""Writes the Transformer as the two programs that the package's docstring describes."""

from pathlib import Path

import numpy as np
import paddle
from paddle import Tensor, nn
from paddle.static import InputSpec

from transformer_mt.backends.paddle_inference import BACKEND, DECODER, ENCODER
from transformer_mt.config.mechanisms import Heads
from transformer_mt.config.schema import Config
from transformer_mt.data.subword import Subwords
from transformer_mt.model.layers import LayerCache
from transformer_mt.model.transformer import Transformer
from transformer_mt.runtime.errors import UserError


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
    BACKEND.require_exportable(BACKEND.unsupported(config.model))
    model.eval()
    own_positions = model.positional_encoding
    # A table of positions would end somewhere.
    model.positional_encoding = _Positions(model.target_embedding.weight.shape[1])
    try:
        programs = {
            ENCODER: _program(_Encoder(model), [InputSpec([None, None], "int64", "source_ids")]),
            DECODER: _program(_Decoder(model, config.alignment_heads), _decoder_inputs(model)),
        }
        BACKEND.require_exportable(_problems(model, list(programs.values())))
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
    """As `Transformer._step`, but its cache comes in and goes out as tensors, and the mask is given
    by the caller. tests/test_parity.py holds the two together."""

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
    last position. It computes in float64, as `embedding.sinusoids` does, with which
    tests/test_parity.py holds it together."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.d_model = d_model
        divisors = paddle.to_tensor(10000.0 ** (np.arange(0, d_model, 2) / d_model), "float64")
        self.register_buffer("divisors", divisors, persistable=False)  # (ceil(d_model / 2),)

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        """Adds `positions`, int64 (len,), by default 0, 1, ..., to `x` (batch, len, d_model)."""
        if positions is None:
            positions = paddle.arange(x.shape[1])
        angles = positions.astype("float64").unsqueeze(1) / self.divisors  # (len, ceil(d / 2))
        table = paddle.stack([angles.sin(), angles.cos()], axis=2).flatten(1)
        return x + table[:, : self.d_model].astype(x.dtype)
