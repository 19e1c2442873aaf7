"""The command `check-device`.

Run it first on a computer with a GPU. It needs no text, and takes about a minute. It trains and
translates with small models on random numbers, and compares the results with those of Paddle's
plain operations on the CPU.

what a line says:
  ok        The device does what it should. The error that was measured stands before its limit.
  FAILED    It does not, or an error was raised. The line says what to do.
  left out  The check does not apply to the device; the line says why.

Without a failure, the exit code is 0, otherwise 1. docs/check-device.md explains each check. A
report of a problem should contain the file that --json writes.

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
import textwrap
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from transformer_mt import __version__
from transformer_mt.commands.arguments import add_device, add_files
from transformer_mt.model_directory import require_safe_outputs
from transformer_mt.utils import console, signals
from transformer_mt.utils.errors import UsageError, UserError
from transformer_mt.utils.files import write_atomically

if TYPE_CHECKING:
    from transformer_mt.config.schema import Config
    from transformer_mt.data.batches import Update
    from transformer_mt.decoding.engine import Sentence
    from transformer_mt.training.update import Updater

OK, FAILED, LEFT_OUT = "ok", "FAILED", "left out"
PRECISIONS = ("float32", "bfloat16", "float16")
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
REPORT = "Report it with the file of --json. Until then, train on the CPU"

VOCABULARY, PAD, UNK, BOS, EOS = 400, 0, 1, 2, 3
MODEL = {"num_layers": 2, "d_model": 128, "num_heads": 4, "d_ff": 256, "dropout": 0.0}
KINDS: dict[str, dict[str, Any]] = {
    "post-norm": {"norm": "post"},
    "pre-norm": {"norm": "pre"},
    "copying": {"copying": True},
    "mask-predict": {"non_autoregressive": "length"},
}
# The model of configs/multi30k_en_de.yaml and the base model of WMT14, whose speed is measured.
SIZES = {
    "tiny": {"num_layers": 4, "d_model": 128, "num_heads": 4, "d_ff": 256, "dropout": 0.3},
    "base": {"num_layers": 6, "d_model": 512, "num_heads": 8, "d_ff": 2048, "dropout": 0.1},
}
VOCABULARIES = {"tiny": 8000, "base": 32_000}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_device(parser)
    add_files(parser, json="the file for the same report as JSON, with all figures")


def run(options: argparse.Namespace) -> None:
    from transformer_mt.utils import device as devices

    require_safe_outputs({"--json": options.json}, {})
    device = Device(devices.use(options.device))
    started = time.perf_counter()
    report: dict[str, Any] = {"machine": device.describe(), "finished": False, "checks": []}
    for title, value in report["machine"].items():
        console.show(f"{title:<9}  {value}")
    console.show("\nEach line shows the largest error that was found, and in brackets its limit.\n")
    # The file is written after every check: if the process dies, it says which ones were done.
    for check in checks():
        line = result(device, check)
        report["checks"].append(line)
        for text in _lines(line):
            console.show(text)
        _write(options.json, report)
    counts = Counter(line["verdict"] for line in report["checks"])
    report["finished"] = True
    _write(options.json, report)
    console.show(
        f"\n{counts[OK]} ok, {counts[FAILED]} failed, {counts[LEFT_OUT]} left out, in "
        f"{console.duration(time.perf_counter() - started)}"
    )
    if counts[FAILED]:
        raise UserError(
            "a check has failed; the lines above say what to do, and docs/check-device.md what the "
            "check does"
        )


class Check(NamedTuple):
    """A check. `run` returns figures, or raises LeftOut if it does not apply to the device."""

    name: str
    run: Callable[[Device], Found]
    advice: str


class Found(NamedTuple):
    """What a check has found: numbers by what they are, and text to show beside them.

    A check passes if the largest error is at most the limit. A number that is not finite is an
    error without limits.
    """

    errors: dict[str, float]
    limit: float
    text: str = ""


class LeftOut(Exception):
    """Raised by a check that does not apply to the device. The text is the reason."""


def checks() -> list[Check]:
    """Lists all checks, in the order in which they run."""
    half = f"{REPORT}, or with training.precision: float32"
    found = [
        Check(
            f"gradients, {kind}, {precision}",
            partial(forward_and_backward, kind=kind, precision=precision),
            REPORT if precision == "float32" else half,
        )
        for precision in PRECISIONS
        for kind in KINDS
    ]
    found += [
        Check(
            f"ten updates, {precision}",
            partial(ten_updates, precision=precision),
            REPORT if precision == "float32" else half,
        )
        for precision in PRECISIONS
    ]
    found += [
        Check(f"a beam of 5, {kind}", partial(beam, kind=kind), "Translate with --device cpu")
        for kind in KINDS
    ]
    advice = "Training works. Find a good training.device_tokens by trying"
    found.append(Check("memory of an update", memory_of_an_update, advice))
    for size in SIZES:
        closed = "Close other programs that use the device, and try again"
        for precision in PRECISIONS:
            speed = partial(training_speed, size=size, precision=precision)
            found.append(Check(f"speed: training {size}, {precision}", speed, closed))
        found.append(Check(f"speed: decoding {size}", partial(decoding_speed, size=size), closed))
    return found


def result(device: Device, check: Check) -> dict[str, Any]:
    """Runs a check and returns its line of the report. Whatever it raises is its own failure, so
    that the others run."""
    started = time.perf_counter()
    line: dict[str, Any] = {"check": check.name, "verdict": OK, "errors": {}, "limit": None}
    try:
        with signals.undisguised():
            found = check.run(device)
            device.synchronize()  # what a GPU has still to report belongs to this check
        line |= {"errors": found.errors, "limit": found.limit, "found": found.text}
        if found.errors:
            what, worst = max(found.errors.items(), key=lambda item: _badness(item[1]))
            passes = worst <= found.limit
            text = f"{worst:.2g} (limit {found.limit:.2g})" + ("" if passes else f", {what}")
            line["found"] = "; ".join(filter(None, [text, found.text]))
            line["verdict"] = OK if passes else FAILED
    except LeftOut as reason:
        line |= {"verdict": LEFT_OUT, "found": str(reason)}
    except Exception as error:
        if os.environ.get("TRANSFORMER_MT_DEBUG"):
            traceback.print_exc()
        line |= {"verdict": FAILED, "found": _message(error)}
    if line["verdict"] == FAILED:
        line["advice"] = f"{check.advice}."
    return line | {"seconds": round(time.perf_counter() - started, 3)}


class Device:
    """The device that is checked.

    Args:
        name: as `utils.device.use` returns it. It must be selected already.
    """

    def __init__(self, name: str) -> None:
        import paddle

        self.name = name
        self.is_gpu = name != "cpu"
        self.place = paddle.get_device()  # such as gpu:0
        random = np.random.default_rng(1)
        a, b = (random.standard_normal(s).astype("float32") for s in ((256, 2048), (2048, 256)))
        found = paddle.matmul(paddle.to_tensor(a), paddle.to_tensor(b)).numpy()
        error = relative_error(found, a.astype(np.float64) @ b.astype(np.float64))
        self.float32 = "TF32" if error > TF32_ERROR else "float32"

    def require(self, precision: str) -> None:
        """Leaves out a check unless the device supports a value of training.precision."""
        from transformer_mt.utils import device as devices

        try:
            devices.require_precision(precision, self.name)
        except UsageError as error:
            raise LeftOut(str(error).partition(": ")[2]) from None

    def rounding(self, precision: str) -> str:
        """The key of the limits for a value of training.precision."""
        return self.float32 if precision == "float32" else precision

    def synchronize(self) -> None:
        """Waits until the device has done all work that was queued. Errors of that work are raised
        here."""
        import paddle

        if self.is_gpu:
            paddle.device.synchronize()

    def seconds(self, work: Callable[[], object]) -> float:
        """Measures how long `work` takes, after a call that is not counted. Short work is repeated
        for about a second."""
        work()
        self.synchronize()
        started, repeats = time.perf_counter(), 0
        while repeats == 0 or (not self.is_gpu and time.perf_counter() - started < 1.0):
            work()
            repeats += 1
        if self.is_gpu:
            while repeats < 30:
                work()
                repeats += 1
        self.synchronize()
        return (time.perf_counter() - started) / repeats

    @contextmanager
    def reference(self, config: Config) -> Iterator[Updater]:
        """Yields an updater that computes with Paddle's plain operations on the CPU, within a
        block."""
        from transformer_mt.model import operations

        with self.on_cpu():
            updater = make_updater(config)
            with operations.plain():
                yield updater

    @contextmanager
    def on_cpu(self) -> Iterator[None]:
        """Computes on the CPU within a block. Models that are made there stay there."""
        import paddle

        paddle.set_device("cpu")
        try:
            yield
        finally:
            paddle.set_device(self.place)

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

        from transformer_mt.utils import device as devices

        own = devices.description()
        build = "for CPUs only"
        if paddle.is_compiled_with_cuda():
            build = f"for CUDA {paddle.version.cuda()}, cuDNN {paddle.version.cudnn()}"
        system = f"{platform.system()} {platform.machine()}, {' '.join(platform.libc_ver())}"
        lines = {
            "Program": f"transformer_mt {__version__}",
            "Python": platform.python_version(),
            "Paddle": f"{paddle.__version__}, {build}",
            "System": f"{system}; {own['cores']} cores, {own['memory_gb']} GB",
            "Device": f"{self.place}, {own['device_name']}; products of float32 in {self.float32}",
        }
        if self.is_gpu:
            found = paddle.device.cuda.get_device_properties(self.place)
            lines["GPU"] = (
                f"compute capability {found.major}.{found.minor}, {found.total_memory / 1e9:.1f} "
                f"GB; {paddle.device.cuda.device_count()} of them"
            )
        return lines


# ---- The checks ----


def forward_and_backward(device: Device, kind: str, precision: str) -> Found:
    """The loss of a padded batch, and its gradient with respect to every weight."""
    device.require(precision)
    config = make_config(KINDS[kind], {"precision": precision})
    update = make_update(1)
    with device.reference(make_config(KINDS[kind])) as reference:
        weights = randomised(reference)
        expected_loss, expected = loss_and_gradients(reference, update)
    updater = make_updater(config)
    set_weights(updater, weights)
    loss, gradients = loss_and_gradients(updater, update)
    # Gradients that should be 0, such as those of the biases of keys, are only nearly 0, so all
    # errors are shares of the largest number.
    largest = max(float(np.abs(gradient).max()) for gradient in expected.values())
    errors = {
        f"gradient of {name}": float(np.abs(gradients[name] - gradient).max()) / largest
        for name, gradient in expected.items()
    }
    errors["loss"] = abs(loss / expected_loss - 1)
    return Found(errors, LIMITS[device.rounding(precision)])


def ten_updates(device: Device, precision: str) -> Found:
    """The losses of ten updates by Adam, which fall."""
    device.require(precision)
    training = {"optimizer": "adam", "schedule": "constant", "warmup_steps": 0}
    training |= {"learning_rate": 1e-3, "clip_norm": 1.0}
    config = make_config({}, {**training, "precision": precision})
    with device.reference(make_config({}, training)) as reference:
        weights = {name: p.numpy().copy() for name, p in reference.model.named_parameters()}
        expected = losses_of_updates(reference)
    updater = make_updater(config)
    set_weights(updater, weights)
    losses = losses_of_updates(updater)
    errors = {
        f"loss of update {n + 1}": relative_error(*pair)
        for n, pair in enumerate(zip(losses, expected, strict=True))
    }
    if not losses[-1] < losses[0]:
        errors["the loss does not fall"] = math.inf
    text = f"the loss falls from {losses[0]:.2f} to {losses[-1]:.2f}"
    return Found(errors, LOSS_LIMITS[device.rounding(precision)], text)


def beam(device: Device, kind: str) -> Found:
    """The outputs of beam search, or of mask-predict."""
    config = make_config(KINDS[kind], decoding={"beam_size": 5})
    with device.reference(config) as reference:
        weights = randomised(reference)
        reference.model.to(dtype="float64")  # which the fast decoder of a CPU leaves to Paddle
        expected = outputs(reference)
    updater = make_updater(config)
    set_weights(updater, weights)
    found = outputs(updater)
    different = sum(a != b for a, b in zip(found, expected, strict=True))
    text = f"{len(found) - different} of {len(found)} outputs are the same"
    errors = {"share of outputs that differ": different / len(found)}
    return Found(errors, DIFFERENT[device.float32], text)


def memory_of_an_update(device: Device) -> Found:
    """The memory that is allocated when the loss has been computed, beside what `info` predicts.

    It is measured without dropout, whose masks on a CPU are not made by Paddle.
    """
    from transformer_mt.model import costs
    from transformer_mt.model.costs import VocabularySizes

    size, rows, length = 4000, 32, 24
    sizes = VocabularySizes(size, size, True)
    config = make_config({**MODEL, "num_layers": 3, "d_ff": 512}, {"optimizer": "adam"})
    gc.collect()
    before = device.allocated()
    updater = make_updater(config, size)
    update = full_update(rows, length, size)
    updater.apply(update, 1)  # the optimiser makes its state
    found: list[int] = []
    hook = updater.objective.criterion.register_forward_post_hook(
        lambda *_: found.append(device.allocated() - before)
    )
    try:
        updater.apply(update, 2)
    finally:
        hook.remove()
    expected = costs.weight_bytes(config, sizes) + costs.optimizer_bytes(config, sizes)
    expected += costs.activation_bytes(config, size, rows, length, length)
    text = f"{found[0] / 1e6:,.0f} MB, predicted {expected / 1e6:,.0f} MB"
    return Found({"difference": abs(found[0] / expected - 1)}, MEMORY_LIMIT, text)


def training_speed(device: Device, size: str, precision: str) -> Found:
    """The target tokens per second of updates; on a GPU also as a multiple of the CPU's."""
    device.require(precision)
    if not device.is_gpu and size != "tiny":
        raise LeftOut("an update of this model takes seconds on a CPU")

    def tokens_per_second(precision: str, tokens: int) -> float:
        training = {"optimizer": "adam", "learning_rate": 1e-4, "precision": precision}
        updater = make_updater(make_config(SIZES[size], training), VOCABULARIES[size])
        update = full_update(tokens // 32, 32, VOCABULARIES[size])
        return update.target_tokens / device.seconds(lambda: updater.apply(update, 1))

    found = tokens_per_second(precision, 4096 if device.is_gpu else 1024)
    text = f"{found:,.0f} target tokens/s"
    if device.is_gpu and precision == "float32" and size == "tiny":
        with device.on_cpu():
            text += f", {found / tokens_per_second(precision, 1024):.0f} times the CPU"
    return Found({}, math.inf, text)


def decoding_speed(device: Device, size: str) -> Found:
    """The sentences per second of a beam of 5, with 20 words on both sides."""
    if not device.is_gpu and size != "tiny":
        raise LeftOut("decoding with this model takes seconds on a CPU")
    count = 64 if device.is_gpu else 16
    limits = {"min_length_ratio": 1.0, "max_length_ratio": 1.0, "max_length_extra": 0}
    config = make_config(SIZES[size], decoding={"beam_size": 5, **limits})
    source = full_update(count, 20, VOCABULARIES[size]).batches[0].source.tolist()

    def sentences_per_second() -> float:
        updater = make_updater(config, VOCABULARIES[size])
        engine = make_engine(updater, VOCABULARIES[size])
        sentences = numbered(source)
        return count / device.seconds(lambda: engine.search(sentences, config.decoding))

    found = sentences_per_second()
    text = f"{found:,.1f} sentences/s, {count} at once, 20 words each"
    if device.is_gpu and size == "tiny":
        with device.on_cpu():
            text += f", {found / sentences_per_second():.1f} times the CPU"
    return Found({}, math.inf, text)


# ---- Models, configs and sentences: random ids, and as translation the source reversed ----


def make_config(
    model: dict[str, Any] | None = None,
    training: dict[str, Any] | None = None,
    decoding: dict[str, Any] | None = None,
    **sections: Any,
) -> Config:
    """A config of a small model, with other sections as given.

    Nothing is read from the paths in it, and nothing is written.
    """
    from transformer_mt.config.schema import Config

    values = {
        "model_dir": "check-device",
        "data": {"root": "check-device", "source_lang": "a", "target_lang": "b"},
        "model": {**MODEL, **(model or {})},
        "training": {"max_steps": 50, **(training or {})},
        "decoding": {"max_length_ratio": 1.0, "max_length_extra": 3, **(decoding or {})},
        **sections,
    }
    return Config.model_validate(values)


def subwords(size: int = VOCABULARY) -> Any:
    """What models, objectives and engines read of a vocabulary that both sides share."""
    vocabulary = SimpleNamespace(size=size, pad=PAD, unk=UNK, bos=BOS, eos=EOS)
    return SimpleNamespace(source=vocabulary, target=vocabulary, joint=True)


def make_updater(config: Config, size: int = VOCABULARY) -> Updater:
    """The updater of a config, on the device that is selected."""
    from transformer_mt.training import setup

    return setup.make_updater(config, subwords(size))


def make_engine(updater: Updater, size: int = VOCABULARY) -> Any:
    """The engine that translates with the model of an updater."""
    from transformer_mt.decoding.paddle_engine import engine_of

    return engine_of([updater.model], subwords(size))


def numbered(sources: list[list[int]]) -> list[Sentence]:
    """The sentences that an engine translates."""
    from transformer_mt.decoding.engine import Sentence

    return [Sentence(ids, number=number) for number, ids in enumerate(sources)]


def make_sources(seed: int, count: int) -> list[list[int]]:
    """Random sentences of 2 to 12 ids."""
    random = np.random.default_rng(seed)
    lengths = random.integers(2, 13, count)
    return [random.integers(EOS + 1, VOCABULARY, length).tolist() for length in lengths]


def make_update(seed: int) -> Update:
    """An update of two padded batches."""
    from transformer_mt.data.batches import Batch, Update, encoded_rows

    batches = []
    for number in range(2):
        sources = make_sources(2 * seed + number, 16)
        labels = encoded_rows([source[::-1] for source in sources], PAD, EOS)
        decoder_input = np.concatenate([np.full((len(labels), 1), BOS), labels[:, :-1]], axis=1)
        decoder_input[decoder_input == EOS] = PAD
        source = encoded_rows(sources, PAD, EOS)
        batches.append(Batch(source, decoder_input, labels, int((labels != PAD).sum())))
    return Update(batches, sum(batch.target_tokens for batch in batches))


def full_update(rows: int, length: int, size: int) -> Update:
    """An update of one batch without padding. The length is with end-of-sentence."""
    from transformer_mt.data.batches import Batch, Update

    source, target = np.random.default_rng(1).integers(EOS + 1, size, (2, rows, length))
    decoder_input = np.concatenate([np.full((rows, 1), BOS), target[:, :-1]], axis=1)
    return Update([Batch(source, decoder_input, target, target.size)], target.size)


def randomised(updater: Updater) -> dict[str, np.ndarray]:
    """Draws all weights at random, also biases and norms; returns them by name.

    They are so small that rounding errors hardly grow from layer to layer, and those of the output
    layer so large that outputs vary as those of a trained model do.
    """
    random = np.random.default_rng(5)
    weights = {}
    for name, parameter in updater.model.named_parameters():
        value = parameter.numpy()
        if value.ndim > 1:
            weights[name] = 0.08 * random.standard_normal(value.shape)
        else:
            weights[name] = value + 0.1 * random.standard_normal(value.shape)
    weights = {name: value.astype("float32") for name, value in weights.items()}
    set_weights(updater, weights)
    return weights


def set_weights(updater: Updater, weights: dict[str, np.ndarray]) -> None:
    """Sets all weights of a model on the device that is selected."""
    for name, parameter in updater.model.named_parameters():
        parameter.set_value(weights[name])


def loss_and_gradients(updater: Updater, update: Update) -> tuple[float, dict[str, np.ndarray]]:
    """The loss of an update per target token, and the gradients of all weights by name."""
    from transformer_mt.training.update import seed_generators

    seed_generators(1)
    updater.model.train()
    total = 0.0
    for batch in update.batches:
        loss = updater.losses(batch, 1)[0] / update.target_tokens
        loss.backward()
        total += float(loss)
    gradients = {}
    for name, parameter in updater.model.named_parameters():
        gradient = parameter.grad
        is_read = gradient is not None
        gradients[name] = (
            gradient.astype("float32").numpy() if is_read else np.zeros(parameter.shape, "float32")
        )
    return total, gradients


def losses_of_updates(updater: Updater) -> list[float]:
    """The losses of ten updates with three batches in turn, per target token."""
    from transformer_mt.training.update import read

    losses = []
    for step in range(1, 11):
        update = make_update(step % 3)
        outcome = read([updater.apply(update, step)])[0]
        losses.append(outcome.loss / update.target_tokens)
    return losses


def outputs(updater: Updater) -> list[list[int]]:
    """The best translations of forty sentences."""
    found = make_engine(updater).search(numbered(make_sources(9, 40)), updater.config.decoding)
    return [hypotheses[0].ids for hypotheses in found]


def relative_error(found: Any, expected: Any) -> float:
    """The largest difference of two arrays, as a share of the largest expected number."""
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    return float(np.abs(found - expected).max() / np.abs(expected).max())


# ---- The report ----


def _badness(error: float) -> float:
    return math.inf if math.isnan(error) else error


def _lines(line: dict[str, Any]) -> list[str]:
    start = f"{line['verdict']:<8}  {line['check']:<36}  "
    texts = textwrap.wrap(start + line["found"], 100, subsequent_indent=" " * len(start))
    if "advice" in line:
        indent = " " * 10
        advice = f"{indent}What to do: {line['advice']}"
        texts += textwrap.wrap(advice, 100, subsequent_indent=indent)
    return texts


def _message(error: Exception) -> str:
    """Returns the message of an error on one line. Paddle's messages begin with its C++ stack; what
    has happened stands below it."""
    lines = [line.strip() for line in str(error).split("\n") if line.strip()]
    summaries = [n for n, line in enumerate(lines) if line.startswith("Error Message Summary")]
    if summaries:
        lines = [line for line in lines[summaries[-1] + 1 :] if set(line) != {"-"}]
    return f"{type(error).__name__}: {' '.join(lines)}"[:400]


def _write(path: Any, report: dict[str, Any]) -> None:
    if path is None:
        return

    def plain(value: Any) -> Any:  # JSON has no infinite numbers
        if isinstance(value, float) and not math.isfinite(value):
            return str(value)
        if isinstance(value, dict):
            return {key: plain(part) for key, part in value.items()}
        return [plain(part) for part in value] if isinstance(value, list) else value

    write_atomically(path, json.dumps(plain(report), indent=2, allow_nan=False) + "\n")
