"""Measurements of speed. They fail only if the work does."""

from __future__ import annotations

import numpy as np
import paddle

from transformer_mt.data.batches import Update
from transformer_mt.decoding.engine import Sentence
from transformer_mt.device_check import examples
from transformer_mt.device_check.machine import Machine
from transformer_mt.device_check.report import Figure, Finding, LeftOut
from transformer_mt.inspect import gpus
from transformer_mt.inspect.flops import FlopCounter
from transformer_mt.utils.errors import UserError, is_out_of_memory

# The models of the recipes: configs/multi30k_en_de.yaml and those of WMT14.
MODELS = {
    "tiny": {"num_layers": 4, "d_model": 128, "num_heads": 4, "d_ff": 256, "dropout": 0.3},
    "base": {"num_layers": 6, "d_model": 512, "num_heads": 8, "d_ff": 2048, "dropout": 0.1},
    "big": {"num_layers": 6, "d_model": 1024, "num_heads": 16, "d_ff": 4096, "dropout": 0.3},
}
VOCABULARIES = {"tiny": 8000, "base": 32_000, "big": 32_000}
LENGTH = 32  # of sentences, with eos
# Target tokens of an update.
GPU_TOKENS = 4096
CPU_TOKENS = {"tiny": 1024}


def products(machine: Machine, precision: str) -> Finding:
    """The speed of products of large square matrices."""
    machine.require(precision)
    size = 1024
    if machine.is_gpu:
        size = 4096 if precision == "float32" else 8192
    random = np.random.default_rng(1).standard_normal((size, size)).astype("float32")
    a = paddle.to_tensor(random).astype(precision)
    seconds = machine.seconds(lambda: paddle.matmul(a, a))
    tflops = 2 * size**3 / seconds / 1e12
    text = f"{_per_second(tflops)}, {size} x {size}"
    if peak := _peak(machine, precision):
        text += f", {tflops / peak:.0%} of the {peak:g} TFLOP/s that NVIDIA states"
        if precision == "float32" and machine.float32 == "TF32":
            text += " without TF32, which is used"
    return Finding(True, text, [Figure("TFLOP/s", tflops, np.inf)])


def _peak(machine: Machine, precision: str) -> float | None:
    """The peak speed of a GPU in 10^12 FLOP/s, if it is known."""
    if not machine.is_gpu:
        return None
    for known in sorted(gpus.GPUS, key=len, reverse=True):  # L40S before L4
        if known.lower() in machine.gpu_name.lower():
            return gpus.peak(known, precision)
    return None


def _per_second(tflops: float) -> str:
    return f"{tflops:.3g} TFLOP/s" if tflops >= 1 else f"{1000 * tflops:.3g} GFLOP/s"


def _config(name: str, precision: str = "float32", **decoding: object):
    training = {"optimizer": "adam", "precision": precision, "learning_rate": 1e-4}
    return examples.make_config({**MODELS[name]}, training, decoding=decoding)


def training(machine: Machine, name: str, precision: str) -> Finding:
    """The target tokens per second of updates."""
    machine.require(precision)
    if not machine.is_gpu and name not in CPU_TOKENS:
        raise LeftOut("an update of this model takes seconds on a CPU")
    config = _config(name, precision)
    size = VOCABULARIES[name]
    updater = examples.updater(config, size)
    tokens = GPU_TOKENS if machine.is_gpu else CPU_TOKENS[name]
    batch = examples.full_batch(tokens // LENGTH, LENGTH, size)
    update = Update([batch], batch.target_tokens)
    try:
        seconds = machine.seconds(lambda: updater.apply(update, 1))
    except UserError as error:
        if is_out_of_memory(error):
            raise LeftOut(f"{tokens} target tokens at once need more memory") from None
        raise
    per_second = batch.target_tokens / seconds
    pair = FlopCounter(config.model, size, LENGTH, LENGTH).training().total
    tflops = pair * len(batch.source) / seconds / 1e12
    text = f"{per_second:,.0f} target tokens/s, {_per_second(tflops)}"
    if peak := _peak(machine, precision):
        text += f", {tflops / peak:.0%} of the peak"
    return Finding(True, text, [Figure("tokens/s", per_second, np.inf)])


def decoding(machine: Machine, name: str, beam_size: int) -> Finding:
    """The sentences per second of decoding sentences of 20 words to outputs of 20 words."""
    count = 64 if machine.is_gpu else 16
    if not machine.is_gpu and name != "tiny":
        raise LeftOut("decoding with this model takes seconds on a CPU")
    limits = {"min_length_ratio": 1.0, "max_length_ratio": 1.0, "max_length_extra": 0}
    config = _config(name, beam_size=beam_size, **limits)
    size = VOCABULARIES[name]
    updater = examples.updater(config, size)
    source = examples.full_batch(count, 20, size).source.tolist()
    sentences = [Sentence(ids, number=number) for number, ids in enumerate(source)]
    engine = updater.objective.engine(examples.subwords(size))
    seconds = machine.seconds(lambda: engine.search(sentences, config.decoding))
    text = f"{count / seconds:,.1f} sentences/s, {count} at once, 20 words each"
    return Finding(True, text, [Figure("sentences/s", count / seconds, np.inf)])
