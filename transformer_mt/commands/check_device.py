"""The command `check-device`.

Run it first on a computer with a GPU. It needs no text, and takes about a minute. It trains and
translates with small models on random numbers, and compares the results with those of Paddle's
plain operations on the CPU. Then it measures the speed.

what a line says:
  ok        The device does what it should. The error that was measured stands before its limit.
  FAILED    It does not, or an error was raised.

Without a failure, the exit code is 0, otherwise 1. docs/gpus.md explains each check, and
says what to do about a failure. A report of a problem should contain the file that --json writes.

examples:
  python -m transformer_mt check-device
  python -m transformer_mt check-device --device gpu:1 --json check.json
  python -m transformer_mt check-device --device cpu
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import platform
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from transformer_mt import __version__
from transformer_mt.commands import arguments
from transformer_mt.model import costs
from transformer_mt.model.costs import VocabularySizes
from transformer_mt.model_directory import require_safe_outputs
from transformer_mt.training import examples
from transformer_mt.utils import device as devices
from transformer_mt.utils import signals
from transformer_mt.utils.console import duration, show
from transformer_mt.utils.errors import UsageError, UserError
from transformer_mt.utils.files import write_atomically

if TYPE_CHECKING:
    from transformer_mt.training.update import Updater

Result = TypeVar("Result")
# The largest error of losses and gradients, as a share of the largest expected number. From the
# architecture Ampere on, Paddle lets GPUs round the factors of float32 products to the 10 bits of
# TF32, so that float32 has the limit of TF32 there.
LIMITS = {"float32": 3e-5, "TF32": 9e-3, "float16": 1.5e-2, "bfloat16": 9e-2}
# The same for the losses of ten updates, in which rounding errors grow.
LOSS_LIMITS = {"float32": 1e-4, "TF32": 2e-2, "float16": 2e-2, "bfloat16": 5e-2}
# Two words can be equally probable up to rounding, so that a share of the outputs may differ.
DIFFERENT = {"float32": 0.02, "TF32": 0.1}
# How much more, or less, memory may be used than is predicted.
MEMORY_LIMIT = 0.25
# A product of float32 matrices with sums of 2,048 terms has an error below this, in TF32 above it.
TF32_ERROR = 3e-5

KINDS: dict[str, dict[str, Any]] = {
    "post-norm": {"norm": "post"},
    "pre-norm": {"norm": "pre"},
    "copying": {"copying": True},
    "mask-predict": {"non_autoregressive": "length"},
}
# The model of configs/multi30k_en_de.yaml and the base model of WMT14, whose speed is measured. An
# update of the base model takes seconds on a CPU.
SIZES = {
    "tiny": {"num_layers": 4, "d_model": 128, "num_heads": 4, "d_ff": 256, "dropout": 0.3},
    "base": {"num_layers": 6, "d_model": 512, "num_heads": 8, "d_ff": 2048, "dropout": 0.1},
}
VOCABULARIES = {"tiny": 8000, "base": 32_000}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add_device(parser)
    arguments.add_files(parser, json="the file for the same report as JSON, with all figures")


def run(options: argparse.Namespace) -> None:
    require_safe_outputs({"--json": options.json}, {})
    device = Device(devices.use(options.device))
    started = time.perf_counter()
    lines: list[dict[str, Any]] = []
    report: dict[str, Any] = {"machine": device.describe(), "finished": False, "checks": lines}
    for title, value in report["machine"].items():
        show(f"{title:<9}  {value}")
    show("\nEach line shows the largest error that was found, and in brackets its limit.\n")
    all_checks = checks(device)
    for name, check in all_checks.items():
        line = result(device, name, check)
        lines.append(line)
        show(f"{line['verdict']:<6}  {name:<33}  {line['found']}")
        report["finished"] = len(lines) == len(all_checks)
        if options.json:  # if the process dies in the next check, the file has the others
            write_atomically(options.json, json.dumps(report, indent=2) + "\n")
    failed = sum(line["verdict"] == "FAILED" for line in lines)
    took = duration(time.perf_counter() - started)
    show(f"\n{len(lines) - failed} ok, {failed} failed, in {took}")
    if failed:
        raise UserError("a check has failed; docs/gpus.md says what to do")


class Found(NamedTuple):
    """What a check has found: errors by what they are, and text to show beside the largest.

    A check passes if the largest error is at most the limit. NaN is above every limit.
    """

    errors: dict[str, float]
    limit: float | None
    text: str = ""


def checks(device: Device) -> dict[str, Callable[[], Found]]:
    """All checks that apply to a device by their names, in the order in which they run."""
    found: dict[str, Callable[[], Found]] = {}

    def add(name: str, check: Callable[..., Found], *which: str) -> None:
        found[", ".join((name, *which))] = lambda: check(device, *which)

    for precision in device.rounding:
        for kind in KINDS:
            add("gradients", gradients, kind, precision)
        add("ten updates", ten_updates, precision)
    for kind in KINDS:
        add("a beam of 5", beam, kind)
    add("memory of an update", memory_of_an_update)
    for size in SIZES if device.is_gpu else ["tiny"]:
        for precision in device.rounding:
            add("speed of training", training_speed, size, precision)
        add("speed of decoding", decoding_speed, size)
    return found


def result(device: Device, name: str, check: Callable[[], Found]) -> dict[str, Any]:
    """Runs a check and returns its line of the report. Whatever it raises is its own failure, so
    that the others run."""
    started = time.perf_counter()
    line: dict[str, Any] = {"check": name, "verdict": "ok", "errors": {}, "limit": None}
    try:
        with signals.undisguised():
            errors, limit, text = check()
            device.synchronize()  # what a GPU has still to report belongs to this check
        if limit is not None:
            errors = {what: math.inf if math.isnan(e) else e for what, e in errors.items()}
            what, worst = max(errors.items(), key=lambda item: item[1])
            line["verdict"] = "ok" if worst <= limit else "FAILED"
            shown = f"{worst:.2g} (limit {limit:.2g})" + (f", {what}" if worst > limit else "")
            text = "; ".join(filter(None, [shown, text]))
        # JSON has no infinite numbers.
        finite = {what: e if math.isfinite(e) else str(e) for what, e in errors.items()}
        line |= {"errors": finite, "limit": limit, "found": text}
    except Exception as error:
        if os.environ.get("TRANSFORMER_MT_DEBUG"):
            traceback.print_exc()
        # Paddle's messages begin with its C++ stack; what has happened stands below it.
        words = str(error).rpartition("Error Message Summary:")[2].split()
        message = " ".join(word for word in words if set(word) != {"-"})
        line |= {"verdict": "FAILED", "found": f"{type(error).__name__}: {message}"[:400]}
    return line | {"seconds": round(time.perf_counter() - started, 3)}


class Device:
    """The device that is checked.

    Attributes:
        rounding: the values of training.precision that it has, and for each of them the key of its
            limits.
        lacking: why it does not have the others.

    Args:
        name: as `utils.device.use` returns it. It must be selected already.
    """

    def __init__(self, name: str) -> None:
        import paddle

        from transformer_mt import kernels

        self.is_gpu = name != "cpu"
        self.place = paddle.get_device()  # such as gpu:0
        random = np.random.default_rng(1)
        a, b = (random.standard_normal(s).astype("float32") for s in ((256, 2048), (2048, 256)))
        product = paddle.matmul(paddle.to_tensor(a), paddle.to_tensor(b)).numpy()
        error = relative_error(product, a.astype(np.float64) @ b.astype(np.float64))
        self.rounding = {"float32": "TF32" if error > TF32_ERROR else "float32"}
        self.lacking = []
        for precision in ("bfloat16", "float16"):
            try:
                kernels.require_precision(precision, name)
                self.rounding[precision] = precision
            except UsageError as error:
                self.lacking.append(str(error).partition(": ")[2])

    def synchronize(self) -> None:
        """Waits until the device has done all work that was queued. Errors of that work are raised
        here."""
        import paddle

        if self.is_gpu:
            paddle.device.synchronize()

    @contextmanager
    def on_cpu(self) -> Iterator[None]:
        """Computes on the CPU within a block. Models that are made there stay there."""
        import paddle

        paddle.set_device("cpu")
        try:
            yield
        finally:
            paddle.set_device(self.place)

    def compared(
        self,
        work: Callable[[Updater], Result],
        prepare: Callable[[Updater], object],
        precision: str = "float32",
        **sections: Any,
    ) -> tuple[Result, Result]:
        """Does the same work with a model on the CPU, in Paddle's plain operations and float32, and
        on the device. Returns both results.

        Args:
            prepare: is called with the model on the CPU, whose weights the other one gets.
            sections: as `examples.make_config` takes them.
        """
        from transformer_mt.model import operations

        config = examples.make_config(**sections)
        with self.on_cpu():
            reference = examples.make_updater(config)
            with operations.plain():
                prepare(reference)
                parameters = reference.model.named_parameters()
                weights = {name: weight.numpy().astype("float32") for name, weight in parameters}
                expected = work(reference)
        training = config.training.model_copy(update={"precision": precision})
        updater = examples.make_updater(config.model_copy(update={"training": training}))
        for name, parameter in updater.model.named_parameters():
            parameter.set_value(weights[name])
        return expected, work(updater)

    def speed(self, unit: str, has_factor: bool, prepare: Callable[[], tuple[int, Any]]) -> Found:
        """Measures the speed of work, for about a second.

        Args:
            has_factor: whether a GPU's speed is also shown as a multiple of the CPU's.
            prepare: returns how much the work is, in `unit`, and the work.
        """

        def per_second() -> float:
            amount, work = prepare()
            work()  # is not counted
            self.synchronize()
            started, repeats = time.perf_counter(), 0
            while repeats == 0 or time.perf_counter() - started < 1.0:
                for _ in range(10 if self.is_gpu else 1):  # a GPU lags behind what is queued
                    work()
                    repeats += 1
                self.synchronize()
            return amount * repeats / (time.perf_counter() - started)

        speed = per_second()
        text = f"{speed:,.{0 if speed > 100 else 1}f} {unit}/s"
        if self.is_gpu and has_factor:
            with self.on_cpu():
                text += f", {speed / per_second():.1f} times the CPU"
        return Found({}, None, text)

    def allocated(self) -> int:
        """The memory of all tensors, in bytes."""
        import paddle

        if self.is_gpu:
            self.synchronize()
            return int(paddle.device.cuda.memory_allocated(self.place))
        return int(paddle.base.core.host_memory_stat_current_value("Allocated", 0))

    def describe(self) -> dict[str, str]:
        """Returns the device and the versions, by their titles."""
        import paddle

        from transformer_mt import kernels

        own, float32 = devices.description(), self.rounding["float32"]
        build = "for CPUs only"
        if paddle.is_compiled_with_cuda():
            build = f"for CUDA {paddle.version.cuda()}, cuDNN {paddle.version.cudnn()}"
        system = f"{platform.system()} {platform.machine()}, {' '.join(platform.libc_ver())}"
        described = {
            "Program": f"transformer_mt {__version__}, Python {platform.python_version()}",
            "Paddle": f"{paddle.__version__}, {build}",
            "System": f"{system}; {own['cores']} cores, {own['memory_gb']} GB",
            "Device": f"{self.place}, {own['device_name']}; products of float32 in {float32}",
        }
        if not self.is_gpu:
            described["Products"] = kernels.cpu_products()
        if self.is_gpu:
            gpu = paddle.device.cuda.get_device_properties(self.place)
            described["GPU"] = (
                f"compute capability {gpu.major}.{gpu.minor}, {gpu.total_memory / 1e9:.1f} GB; "
                f"{paddle.device.cuda.device_count()} of them"
            )
        if self.lacking:
            described["Left out"] = "; ".join(self.lacking)
        return described


# ---- The checks ----


def gradients(device: Device, kind: str, precision: str) -> Found:
    """The loss of a padded batch, and its gradient with respect to every weight."""
    update = examples.make_update(1)

    def loss_and_gradients(updater: Updater) -> tuple[float, dict[str, np.ndarray]]:
        from transformer_mt.training.update import seed_generators

        seed_generators(1)
        updater.model.train()
        total = 0.0
        for batch in update.batches:
            loss = updater.losses(batch, 1)[0] / update.target_tokens
            loss.backward()
            total += float(loss)
        found = {}
        for name, parameter in updater.model.named_parameters():
            found[name] = np.zeros(parameter.shape, "float32")
            if parameter.grad is not None:
                found[name] = parameter.grad.astype("float32").numpy()
        return total, found

    (expected_loss, expected), (loss, found) = device.compared(
        loss_and_gradients, examples.randomise, precision, model=KINDS[kind]
    )
    # Gradients that should be 0, such as those of the biases of keys, are only nearly 0, so all
    # errors are shares of the largest number.
    largest = max(float(np.abs(gradient).max()) for gradient in expected.values())
    errors = {
        f"gradient of {name}": float(np.abs(found[name] - gradient).max()) / largest
        for name, gradient in expected.items()
    }
    errors["loss"] = abs(loss / expected_loss - 1)
    return Found(errors, LIMITS[device.rounding[precision]])


def ten_updates(device: Device, precision: str) -> Found:
    """The losses per target token of ten updates by Adam, with three batches in turn; they fall."""

    def losses_of(updater: Updater) -> list[float]:
        from transformer_mt.training.update import read

        updates = [(step, examples.make_update(step % 3)) for step in range(1, 11)]
        outcomes = ((update, read([updater.apply(update, step)])[0]) for step, update in updates)
        return [outcome.loss / update.target_tokens for update, outcome in outcomes]

    training = {"optimizer": "adam", "schedule": "constant", "warmup_steps": 0}
    training |= {"learning_rate": 1e-3, "clip_norm": 1.0}
    expected, losses = device.compared(losses_of, lambda _: None, precision, training=training)
    errors = {
        f"loss of update {n}": relative_error(*pair)
        for n, pair in enumerate(zip(losses, expected, strict=True), 1)
    }
    if not losses[-1] < losses[0]:
        errors["the loss does not fall"] = math.inf
    text = f"the loss falls from {losses[0]:.2f} to {losses[-1]:.2f}"
    return Found(errors, LOSS_LIMITS[device.rounding[precision]], text)


def beam(device: Device, kind: str) -> Found:
    """The best outputs of beam search, or of mask-predict, for forty sentences."""

    def prepare(reference: Updater) -> None:
        examples.randomise(reference)
        reference.model.to(dtype="float64")  # which the fast decoder of a CPU leaves to Paddle

    def outputs(updater: Updater) -> list[list[int]]:
        translate = examples.search(updater, examples.make_sources(9, 40))
        return [hypotheses[0].ids for hypotheses in translate()]

    expected, found = device.compared(
        outputs, prepare, model=KINDS[kind], decoding={"beam_size": 5}
    )
    different = sum(a != b for a, b in zip(found, expected, strict=True))
    text = f"{len(found) - different} of {len(found)} outputs are the same"
    errors = {"share of outputs that differ": different / len(found)}
    return Found(errors, DIFFERENT[device.rounding["float32"]], text)


def memory_of_an_update(device: Device) -> Found:
    """The memory that is allocated when the loss has been computed, beside what `info` predicts.

    It is measured without dropout, whose masks on a CPU are not made by Paddle.
    """
    size, rows, length = 4000, 32, 24
    sizes = VocabularySizes(size, size, True)
    config = examples.make_config(
        model={"num_layers": 3, "d_ff": 512}, training={"optimizer": "adam"}
    )
    gc.collect()
    before = device.allocated()
    updater = examples.make_updater(config, size)
    update = examples.full_update(rows, length, size)
    updater.apply(update, 1)  # the optimiser makes its state
    found: list[int] = []
    updater.objective.criterion.register_forward_post_hook(
        lambda *_: found.append(device.allocated() - before)
    )
    updater.apply(update, 2)
    expected = costs.weight_bytes(config, sizes) + costs.optimizer_bytes(config, sizes)
    expected += costs.activation_bytes(config, size, rows, length, length)
    text = f"{found[0] / 1e6:,.0f} MB, predicted {expected / 1e6:,.0f} MB"
    return Found({"difference": abs(found[0] / expected - 1)}, MEMORY_LIMIT, text)


def training_speed(device: Device, size: str, precision: str) -> Found:
    """The speed of updates of 32 tokens a row."""
    training = {"optimizer": "adam", "learning_rate": 1e-4, "precision": precision}
    config = examples.make_config(model=SIZES[size], training=training)
    update = examples.full_update(128 if device.is_gpu else 32, 32, VOCABULARIES[size])

    def prepare() -> tuple[int, Callable[[], object]]:
        updater = examples.make_updater(config, VOCABULARIES[size])
        return update.target_tokens, lambda: updater.apply(update, 1)

    has_factor = precision == "float32" and size == "tiny"
    return device.speed("target tokens", has_factor, prepare)


def decoding_speed(device: Device, size: str) -> Found:
    """The speed of a beam of 5, with 20 words on both sides."""
    count = 64 if device.is_gpu else 16
    limits = {"min_length_ratio": 1.0, "max_length_ratio": 1.0, "max_length_extra": 0}
    config = examples.make_config(model=SIZES[size], decoding={"beam_size": 5, **limits})
    sources = (
        np.random.default_rng(1)
        .integers(examples.EOS + 1, VOCABULARIES[size], (count, 20))
        .tolist()
    )

    def prepare() -> tuple[int, Callable[[], object]]:
        return count, examples.search(examples.make_updater(config, VOCABULARIES[size]), sources)

    found = device.speed("sentences", size == "tiny", prepare)
    return found._replace(text=f"{found.text}, {count} at once, 20 words each")


def relative_error(found: Any, expected: Any) -> float:
    """The largest difference of two arrays, as a share of the largest expected number."""
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    return float(np.abs(found - expected).max() / np.abs(expected).max())
