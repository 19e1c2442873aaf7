"""The list of all checks, in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from transformer_mt.device_check import (
    attention,
    decoding,
    memory,
    model,
    operations,
    processes,
    speed,
    training,
)
from transformer_mt.device_check.machine import Machine
from transformer_mt.device_check.report import Finding

PRECISIONS = ("float32", "bfloat16", "float16")
REPORT = "Report it with the file of --json, because trained models may be wrong"
OPERATIONS = "Operations of model and loss, value and gradient, beside NumPy in float64"
MODEL = "The model, value and gradient, beside float64 on the CPU"
TRAINING = "Training"
DECODING = "Decoding, beside the model in float64 on the CPU"
MEMORY = "Memory"
SPEED = "Speed"


class Check(NamedTuple):
    """A check.

    Attributes:
        group, name: where and under which name it stands in the report.
        run: finds out; it raises LeftOut if the check does not apply to the device.
        advice: what to do if it fails.
    """

    group: str
    name: str
    run: Callable[[Machine], Finding]
    advice: str = f"{REPORT}. Until then, train on the CPU."


def _operations() -> list[Check]:
    advice = (
        f"{REPORT}. If all products of matrices fail, try NVIDIA_TF32_OVERRIDE=0 in the "
        "environment, and another version of the driver."
    )
    named = {
        "products of matrices": operations.products,
        "linear layer": operations.current.linear,
        "output layer": operations.current.logits,
        "layer norm": operations.current.layer_norm,
        "residual and norm": operations.residual,
        "residual with dropout": operations.residual_with_dropout,
        "feed-forward network": operations.feed_forward,
        "embedding and positions": operations.embedding,
        "positions without padding": operations.gathering,
        "masks": operations.masks,
        "attention": operations.attention,
        "attention of several heads": operations.heads,
        "loss": operations.loss,
        "mixture of copying": operations.copying,
        "losses of guided attention": operations.guided,
        "dropout": operations.current.dropout,
    }
    checks = [Check(OPERATIONS, name, run, advice) for name, run in named.items()]
    fused = (
        f"{REPORT}. Until then, train with training.precision: float32, which uses plain attention."
    )
    for precision in PRECISIONS[1:]:
        run = partial(attention.fused_beside_plain, precision=precision)
        checks.append(Check(OPERATIONS, f"fused attention, {precision}", run, fused))
    return checks


def _model() -> list[Check]:
    named = {
        "loss and gradients, post-norm": partial(model.against_float64, norm="post"),
        "loss and gradients, pre-norm": partial(model.against_float64, norm="pre"),
        "padding": model.padding,
        "causality": model.causality,
    }
    checks = [Check(MODEL, name, run) for name, run in named.items()]
    for name in model.MECHANISMS:
        run = partial(model.mechanism, name=name)
        advice = f"{REPORT}. Until then, train without this mechanism."
        checks.append(Check(MODEL, name, run, advice))
    return checks


def _training() -> list[Check]:
    checks = []
    for precision in PRECISIONS:
        other = "use training.precision: float32" if precision != "float32" else "train on the CPU"
        advice = f"{REPORT}. Until then, {other}."
        for name, run in (
            ("50 updates", training.fifty_updates),
            ("skipped update", training.skipping),
        ):
            own = partial(run, precision=precision)
            checks.append(Check(TRAINING, f"{name}, {precision}", own, advice))
    return [
        *checks,
        Check(TRAINING, "clipping", training.clipping),
        Check(
            TRAINING, "recompute", training.recompute,
            f"{REPORT}. Until then, leave training.recompute: false.",
        ),
        Check(TRAINING, "checkpoint, device to CPU", partial(training.checkpoint, to_cpu=True)),
        Check(TRAINING, "checkpoint, CPU to device", partial(training.checkpoint, to_cpu=False)),
        *(
            Check(
                TRAINING, name, partial(processes.updates_together, sharding=sharding),
                f"{REPORT}. Until then, {other}. With NCCL_DEBUG=INFO in the environment, the log "
                "says how the GPUs are connected.",
            )
            for name, sharding, other in (
                ("processes beside one process", False, "set training.devices: 1"),
                ("processes with sharding", True, "leave training.sharding: false"),
            )
        ),
    ]  # fmt: skip


def _decoding() -> list[Check]:
    advice = f"{REPORT}. Until then, translate with --device cpu."
    named = {
        "greedy search": decoding.greedy,
        "beam search": decoding.beam,
        "step by step, with prefixes": decoding.step_by_step,
        "scores": decoding.scores,
        "sampling": decoding.sampling,
        "outputs beside the CPU's": decoding.beside_cpu,
    }
    return [Check(DECODING, name, run, advice) for name, run in named.items()]


def _memory() -> list[Check]:
    checks = []
    for precision in PRECISIONS:
        run = partial(memory.of_an_update, precision=precision)
        advice = (
            "Report the two numbers. Training works; choose training.device_tokens by trying, "
            "because `info` predicts the memory wrongly here."
        )
        checks.append(Check(MEMORY, f"an update, {precision}", run, advice))
    advice = (
        "Report the message. Training works; if it ends with a long message of Paddle, lower "
        "training.device_tokens."
    )
    return [*checks, Check(MEMORY, "running out of memory", memory.running_out, advice)]


def _speed() -> list[Check]:
    advice = "See the message. If memory ran out, close other programs that use the device."
    checks = []
    for precision in PRECISIONS:
        run = partial(speed.products, precision=precision)
        checks.append(Check(SPEED, f"products, {precision}", run, advice))
    for name in speed.MODELS:
        for precision in PRECISIONS:
            run = partial(speed.training, name=name, precision=precision)
            checks.append(Check(SPEED, f"training {name}, {precision}", run, advice))
    for name in speed.MODELS:
        for beam_size in (1, 5):
            run = partial(speed.decoding, name=name, beam_size=beam_size)
            checks.append(Check(SPEED, f"decoding {name}, beam of {beam_size}", run, advice))
    return checks


def all_checks() -> list[Check]:
    """All checks, in their order."""
    return [*_operations(), *_model(), *_training(), *_decoding(), *_memory(), *_speed()]
