"""Writes the Transformer for CTranslate2, as CTranslate2's own specification with our weights.

The export is an ordinary CTranslate2 model and can be used without this package. Its tokens are the
pieces of the subword model.
"""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from transformer_mt.config.schema import GATED, Config, ModelConfig
from transformer_mt.data.subword import Subwords
from transformer_mt.decoding.engine import length_limits
from transformer_mt.export.ctranslate2_engine import POSITIONS, import_ctranslate2
from transformer_mt.export.registry import CTRANSLATE2
from transformer_mt.model.layers import sinusoids
from transformer_mt.model.transformer import Transformer

# CTranslate2 has no formula for our positions, so the export holds a table of them. This is its
# least length.
LEAST_POSITIONS = 1024


def write_model(
    folder: Path,
    model: Transformer,
    config: Config,
    subwords: Subwords,
    quantization: str | None = None,
) -> None:
    """Writes the model, its settings and its vocabularies into an existing folder.

    Args:
        quantization: int8, int8_float32, int16, float16 or bfloat16; None keeps float32.

    Raises:
        UsageError: CTranslate2 is not installed.
        UserError: CTranslate2 can't hold something of the model; every problem is listed, and
            nothing is written.
    """
    import_ctranslate2()
    weights = _Weights(model)
    spec = _spec(config)
    _fill(spec, weights, config.model)
    _describe(spec, model, config, subwords)
    problems = [
        *CTRANSLATE2.unsupported(config.model),
        *_unfit_subwords(subwords),
        *weights.problems(quantization),
        *_invalid(spec),
    ]
    CTRANSLATE2.require_exportable(problems)
    if quantization == "bfloat16":
        spec.optimize()
        _round_to_bfloat16(spec)
    else:
        spec.optimize(quantization)
    spec.save(str(folder))


class _Weights:
    """The model's parameters by name, float32, which are taken one by one."""

    def __init__(self, model: Transformer) -> None:
        self._arrays = {name: weight.numpy() for name, weight in model.named_parameters()}
        self._left = set(self._arrays)

    def take(self, *names: str) -> np.ndarray | None:
        """The first of these parameters that exists; None, which `_invalid` reports, if none."""
        name = next((name for name in names if name in self._arrays), None)
        self._left.discard(name)
        return self._arrays.get(name)

    def problems(self, quantization: str | None) -> list[str]:
        problems = [f"{name}: CTranslate2 has no such weight" for name in sorted(self._left)]
        most = np.finfo(np.float16).max if quantization == "float16" else np.inf
        for name, array in self._arrays.items():
            largest = np.abs(array).max()
            if not np.isfinite(largest):
                problems.append(f"{name}: not all of its values are finite")
            elif largest > most:
                problems.append(f"{name}: holds {largest:.3g}, and float16 ends at {most:.0f}")
        return problems


# ---- The parts of the export ----


def _spec(config: Config) -> Any:
    from ctranslate2 import specs

    settings, alignment_heads = config.model, config.alignment_heads
    activation = GATED.get(settings.activation, settings.activation)
    return specs.TransformerSpec.from_config(
        (settings.encoder_layers, settings.decoder_layers),
        settings.num_heads,
        pre_norm=settings.norm == "pre",
        activation=getattr(specs.Activation, activation.upper()),
        ffn_glu=settings.activation in GATED,
        # What `return_attention` gives: the mean of the first heads of a layer.
        alignment_layer=alignment_heads.layer,
        alignment_heads=alignment_heads.heads,
    )


def _fill(spec: Any, weights: _Weights, settings: ModelConfig) -> None:
    # If embeddings are tied, the same array stands in several places, and is written once.
    target = "target_embedding.weight"
    spec.encoder.embeddings[0].weight = weights.take("source_embedding.weight", target)
    spec.decoder.embeddings.weight = weights.take(target)
    spec.decoder.projection.weight = weights.take("generator.weight", target)
    if settings.output_bias:
        spec.decoder.projection.bias = weights.take("generator.bias")
    for side, stack in (("encoder", spec.encoder), ("decoder", spec.decoder)):
        if settings.norm == "pre":
            _fill_norm(stack.layer_norm, weights, f"{side}.norm")
        for number, layer in enumerate(stack.layer):
            _fill_layer(layer, weights, f"{side}.layers.{number}")


def _fill_layer(layer: Any, weights: _Weights, scope: str) -> None:
    own = f"{scope}.self_attention"
    _fill_norm(layer.self_attention.layer_norm, weights, f"{own}_residual.norm")
    own_linear = layer.self_attention.linear
    _fill_linear(own_linear[0], weights, own, "query", "key", "value")
    _fill_linear(own_linear[1], weights, own, "output")

    if hasattr(layer, "attention"):
        cross = f"{scope}.cross_attention"
        _fill_norm(layer.attention.layer_norm, weights, f"{cross}_residual.norm")
        cross_linear = layer.attention.linear
        _fill_linear(cross_linear[0], weights, cross, "query")
        _fill_linear(cross_linear[1], weights, cross, "key", "value")
        _fill_linear(cross_linear[2], weights, cross, "output")

    feed_forward = f"{scope}.feed_forward"
    _fill_norm(layer.ffn.layer_norm, weights, f"{feed_forward}_residual.norm")
    if hasattr(layer.ffn, "linear_0_noact"):  # the layer is gated
        _fill_linear(layer.ffn.linear_0, weights, feed_forward, "gate")
        _fill_linear(layer.ffn.linear_0_noact, weights, feed_forward, "inner")
    else:
        _fill_linear(layer.ffn.linear_0, weights, feed_forward, "inner")
    _fill_linear(layer.ffn.linear_1, weights, feed_forward, "output")


def _fill_linear(linear: Any, weights: _Weights, scope: str, *projections: str) -> None:
    """CTranslate2's matrices are (out, in), ours (in, out); it joins some of them into one."""
    scopes = [f"{scope}.{name}_projection" for name in projections]
    matrices = [weights.take(f"{name}.weight") for name in scopes]
    if all(matrix is not None for matrix in matrices):
        linear.weight = np.concatenate([matrix.T for matrix in matrices])
    biases = [weights.take(f"{name}.bias") for name in scopes]
    if all(bias is not None for bias in biases):
        linear.bias = np.concatenate(biases)


def _fill_norm(norm: Any, weights: _Weights, scope: str) -> None:
    norm.gamma = weights.take(f"{scope}.weight")
    norm.beta = weights.take(f"{scope}.bias")


def _describe(spec: Any, model: Transformer, config: Config, subwords: Subwords) -> None:
    """Fills in everything but the weights: positions, vocabularies and special tokens."""
    max_length = config.data.max_length
    longest = max(max_length, length_limits(max_length, config.decoding)[1])
    count = max(longest + 1, LEAST_POSITIONS)  # with eos or bos
    # CTranslate2's own positions have sines and cosines in another order, and begin with 1.
    settings = config.model
    table = sinusoids(count, settings.d_model, settings.positions).astype(np.float32)
    spec.encoder.position_encodings.encodings = table
    spec.decoder.position_encodings.encodings = table

    source, target = subwords.source, subwords.target
    spec.register_source_vocabulary(source.pieces(range(source.size)))
    spec.register_target_vocabulary(target.pieces(range(target.size)))
    names = target.pieces([target.unk, target.bos, target.eos])
    spec.config.unk_token, spec.config.bos_token, spec.config.eos_token = names
    spec.config.decoder_start_token = spec.config.bos_token
    spec.config.add_source_eos = True
    norm = model.decoder.layers[0].feed_forward_residual.norm
    spec.config.layer_norm_epsilon = norm._epsilon
    spec.config.add_attribute(POSITIONS, count)


def _round_to_bfloat16(spec: Any) -> None:
    """Rounds the weights to bfloat16. CTranslate2 can do that too, but needs PyTorch for it."""
    from ctranslate2.specs import model_spec

    class Bfloat16(model_spec.NumpyVariable):
        dtype = "bfloat16"

        def __init__(self, array: np.ndarray) -> None:
            # bfloat16 is the upper half of a float32. It is rounded, and ties go to even.
            bits = array.view(np.uint32)
            super().__init__(((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16))

    def round_one(layer: Any, name: str, value: Any) -> None:
        # The other values are settings, and aliases by name.
        if isinstance(value, model_spec.Variable) and value.dtype == "float32" and value.shape:
            setattr(layer, name.split("/")[-1], Bfloat16(value.numpy()))

    model_spec.visit_spec(spec, round_one)


# ---- Problems ----


def _unfit_subwords(subwords: Subwords) -> list[str]:
    """What CTranslate2 can't hold, because it identifies subwords by their text, and has the same
    special subwords for both sides."""
    problems = []
    sides = {"source": subwords.source, "target": subwords.target}
    for name, side in sides.items():
        counts = Counter(side.pieces(range(side.size)))
        repeated = [piece for piece, count in counts.items() if count > 1]
        problems += [f"{name} vocabulary: the piece {piece!r} is there twice" for piece in repeated]
    for special in ("unk", "bos", "eos"):
        (source,), (target,) = (side.pieces([getattr(side, special)]) for side in sides.values())
        if source != target:
            problems.append(f"{special} is {source!r} in the source, but {target!r} in the target")
    return problems


def _invalid(spec: Any) -> list[str]:
    """The problems that CTranslate2 finds: missing weights, and vocabularies of a wrong size."""
    try:
        spec.validate()
    except ValueError as error:
        _, _, unset = str(error).partition("\n\n")
        return [f"{name}: CTranslate2 needs it" for name in unset.split()] or [str(error)]
    return []
