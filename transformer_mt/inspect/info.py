"""The text of `info`: the parameters, FLOPs, memory and training time of a config."""

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from transformer_mt.config.schema import Config
from transformer_mt.inspect import memory
from transformer_mt.inspect.flops import FlopCounter, Flops
from transformer_mt.inspect.parameters import VocabularySizes, parts
from transformer_mt.utils.console import duration, table

# The default share of its peak that a device reaches. By this count, the paper's base model reached
# 0.25 of its eight P100 of 10.6 TFLOP/s (12 hours, section 5.2), and the big one 0.37 (3.5 days).
USUAL_UTILISATION = 0.3
# The share of a device's memory that the estimate may fill. The rest is for Paddle and CUDA, and
# for gaps between what is allocated.
USED_MEMORY = 0.9
WIDTH = 100
INDENT = "  "


@dataclass(frozen=True)
class Speed:
    """The speed of a device.

    tflops: the peak of one device, in 10^12 FLOP/s.
    utilisation: the share of the peak that training reaches.
    name: the name of the device in GPUS; empty if it is not one of them.
    """

    tflops: float
    utilisation: float
    name: str = ""


def report(
    config: Config,
    vocabularies: VocabularySizes,
    origin: str,
    length: int,
    speed: Speed | None,
    memory_bytes: float | None = None,
) -> Iterator[str]:
    """Yields the lines of a report on the size of a model and the cost of its training.

    Args:
        origin: where the sizes of the vocabularies come from, for the reader.
        length: the tokens per sentence on both sides, including the end of the sentence.
        speed: the speed of the devices. Without it, the time is not reported.
        memory_bytes: the memory of a device, if the batches that fit in it are to be reported.
    """
    longest = config.data.max_length + 1
    positions = _positions(config, length)
    counter = FlopCounter(config.model, vocabularies.target, length, positions)
    yield from _parameters(config, vocabularies, origin)
    yield ""
    yield from _flops(config, counter)
    yield ""
    lengths = sorted({length, longest})
    yield from _memory(config, vocabularies, lengths)
    if memory_bytes is not None:
        yield from _note(_fitting(config, vocabularies, lengths, memory_bytes))
    yield ""
    yield from _training(config, counter, speed)
    yield from _open_questions(config, speed)


def _parameters(config: Config, vocabularies: VocabularySizes, origin: str) -> Iterator[str]:
    sizes = f"{vocabularies.source:,} source, {vocabularies.target:,} target"
    if vocabularies.joint:
        sizes = f"{vocabularies.target:,}, joint"
    yield f"Vocabulary: {sizes} ({origin})"
    yield ""
    yield "Parameters"
    found = parts(config.model, vocabularies)
    total = sum(part.parameters for part in found)
    rows = [
        [
            part.name,
            f"{part.count} x {part.each:,}" if part.count else "",
            f"{part.parameters:,}",
            f"{part.parameters / total:.1%}",
            part.formula,
        ]
        for part in found
    ]
    yield from table([*rows, ["total", "", f"{total:,}", "", ""]], "<>>><", INDENT)


def _flops(config: Config, counter: FlopCounter) -> Iterator[str]:
    length = counter.source_len  # and that of the target; the decoder may read more positions
    yield (
        "FLOPs per target token, in matrix products; sentences of "
        f"{length:,} subwords on either side"
    )
    recompute = " (recompute)" if config.training.recompute else ""
    columns = {
        f"training{recompute}": _training_flops(config, counter),
        **_decoding_flops(config, counter),
    }
    rows = [["", *columns]]
    for part in (*Flops._fields, "total"):
        per_token = [getattr(column, part) / length for column in columns.values()]
        rows.append([part, *(_quantity(count, "FLOP") for count in per_token)])
    yield from table(rows, indent=INDENT)


def _decoding_flops(config: Config, counter: FlopCounter) -> dict[str, Flops]:
    """Counts the decoding of a sentence pair, by the titles of the columns."""
    decoding = config.decoding
    if config.model.non_autoregressive is not None:
        candidates = decoding.length_candidates
        if config.model.non_autoregressive == "end":
            candidates = 1
        title = f"{decoding.iterations} iterations, {_count(candidates, 'candidate')}"
        return {
            "all at once": counter.mask_predict(1, 1),
            title: counter.mask_predict(decoding.iterations, candidates),
        }
    columns = {"decoding, greedy": counter.decoding()}
    beam_size = 1 if decoding.sampling else decoding.beam_size
    if beam_size > 1:
        columns[f"beam of {beam_size}"] = counter.decoding(beam_size)
    return columns


def _positions(config: Config, length: int) -> int:
    """Returns how many target positions the decoder reads, if both sides have `length` tokens,
    including the end of the sentence."""
    kind = config.model.non_autoregressive
    if kind is None:
        return length
    if kind == "length":
        return max(1, length - 1)
    from transformer_mt.decoding.engine import length_limits  # imports NumPy

    return max(length, length_limits(length - 1, config.decoding)[1])


def _training_flops(config: Config, counter: FlopCounter) -> Flops:
    """Counts the training on a sentence pair, including what is computed twice."""
    sampling = config.scheduled_sampling
    if config.model.non_autoregressive is None:
        counts = [counter.training()]
    else:
        counts = [counter.mask_prediction()]
    if config.training.recompute:
        counts.append(counter.recomputed(len(config.layers_read_by_the_loss)))
    if sampling.decay is not None:
        counts.append(counter.predictions(sampling.passes - 1, sampling.backpropagate))
    passes = config.consistency.passes
    return Flops(*(passes * sum(part) for part in zip(*counts, strict=True)))


def _memory(config: Config, vocabularies: VocabularySizes, lengths: list[int]) -> Iterator[str]:
    training = config.training
    tokens = _process_tokens(config)
    how = training.precision + (", recompute" if training.recompute else "")
    yield f"Memory of a process in training ({how}), batches of {tokens:,} target tokens"
    held = _held(config, vocabularies)
    rows = [["", *held, "activations", "total"]]
    for length in lengths:
        positions = _positions(config, length)
        pairs = max(1, tokens // max(length, positions))
        activations = memory.activation_bytes(config, vocabularies.target, pairs, length, positions)
        sizes = [*held.values(), activations, sum(held.values()) + activations]
        title = f"{_count(pairs, 'pair')} of {length:,} subwords"
        rows.append([title, *(_quantity(size, "B") for size in sizes)])
    yield from table(list(zip(*rows, strict=True)), indent=INDENT)
    if training.precision != "float32":
        yield from _note(
            f"In {training.precision}, activations are counted by what Paddle keeps on a GPU; "
            "they were never measured."
        )


def _held(config: Config, vocabularies: VocabularySizes) -> dict[str, int]:
    """Counts the bytes that training holds whatever the batch is."""
    training = config.training
    weights = memory.weight_bytes(config, vocabularies)
    held = {
        "weights": weights,
        "gradients": weights,
        f"optimiser ({training.optimizer})": memory.optimizer_bytes(config, vocabularies),
    }
    if training.ema is not None:
        held["moving average"] = weights
    if training.precision != "float32":
        copies = memory.half_weight_bytes(config, vocabularies)
        held[f"weights in {training.precision}"] = copies
    return held


def _fitting(
    config: Config, vocabularies: VocabularySizes, lengths: list[int], memory_bytes: float
) -> str:
    """Says which `training.device_tokens` fits in the memory of a device."""
    held = sum(_held(config, vocabularies).values())
    title = f"In {_quantity(memory_bytes, 'B')}, of which a tenth is left free, "
    left = USED_MEMORY * memory_bytes - held
    if left < 0:
        return (
            f"{title}the model does not fit: without activations, training needs "
            f"{_quantity(held, 'B')}."
        )
    most = []
    for length in lengths:
        positions = _positions(config, length)
        # Activations are in proportion to the number of pairs.
        of_a_pair = memory.activation_bytes(config, vocabularies.target, 1, length, positions)
        most.append(int(left // of_a_pair) * max(length, positions))
    tokens = min(most)
    if not tokens:
        return (
            f"{title}not even one pair of {lengths[-1]:,} subwords fits. training.recompute=true "
            "or a lower data.max_length needs less."
        )
    # Two digits are enough for an estimate.
    unit = 10 ** max(0, len(str(tokens)) - 2)
    text = f"{title}training.device_tokens={tokens // unit * unit} fits"
    batch = config.training.batch_tokens
    if tokens >= batch:
        text += f". More than training.batch_tokens ({batch:,}) makes no difference"
    return f"{text}."


def _process_tokens(config: Config) -> int:
    """Returns the padded target tokens per batch of a process; `data.batches.share` shares them."""
    count, tokens = config.training.batch_plan
    devices = config.training.devices or 1
    return tokens if count % devices == 0 else -(-tokens // devices)


def _training(config: Config, counter: FlopCounter, speed: Speed | None) -> Iterator[str]:
    training = config.training
    devices = training.devices or 1
    yield (
        f"Training on {_count(devices, 'device')}, updates of {training.batch_tokens:,} "
        "target tokens"
    )
    pairs = training.batch_tokens / max(counter.source_len, counter.target_len)
    an_update = pairs * _training_flops(config, counter).total
    rows = [["", "FLOPs"]]
    if speed is not None:
        rows[0] += ["time", "device time"][: 1 if devices == 1 else 2]
    for updates in (1, training.max_steps):
        if updates is None:
            continue
        row = [_count(updates, "update"), _quantity(updates * an_update, "FLOP")]
        if speed is not None:
            of_one = updates * an_update / (speed.tflops * 1e12 * speed.utilisation)
            row += [_time(of_one / devices), _time(of_one)][: len(rows[0]) - 2]
        rows.append(row)
    yield from table(rows, indent=INDENT)
    if speed is not None:
        name = f" ({speed.name} in {training.precision})" if speed.name else ""
        yield from _note(
            f"At {speed.utilisation:.0%} of {speed.tflops:g} TFLOP/s per device{name}; validations "
            "are not counted."
        )
        if training.precision != "float32" and speed.utilisation == USUAL_UTILISATION:
            yield from _note(
                f"A share of {USUAL_UTILISATION:.0%} was reached in float32. In half precision, it "
                "is usually lower: give --utilisation."
            )


def _open_questions(config: Config, speed: Speed | None) -> Iterator[str]:
    """Yields notes on what is not known, and how to specify it."""
    training = config.training
    if config.scheduled_sampling.decay is not None:
        yield from _note(
            f"scheduled_sampling: {_count(config.scheduled_sampling.passes - 1, 'pass')} more of "
            "the decoder in an update, counted as if all words were replaced by predictions. While "
            "fewer are replaced, an update takes less."
        )
    if speed is None:
        yield from _note(
            "Time: not known. Give --tflops, the speed of a device at its peak in "
            f"{training.precision}, in TFLOP/s, or its name, such as A100."
        )
    if training.devices is None:
        yield from _note(
            "Devices: training.devices is null, so the machine decides. One device is counted; "
            "give training.devices=N."
        )
    if training.max_steps is None:
        yield from _note(
            f"Updates: training.max_epochs is {training.max_epochs:,}, and how many updates an "
            "epoch has, only the data can tell: `train CONFIG --check` counts them. Give "
            "training.max_steps=N."
        )
        return
    for key in ("max_epochs", "patience"):
        if getattr(training, key) is not None:
            yield from _note(f"Updates: training.{key} may end training earlier.")


# ---- Formatting ----


def _note(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=INDENT, subsequent_indent=2 * INDENT)


def _quantity(value: float, unit: str) -> str:
    """Formats a value with three digits and a decimal prefix, such as 12.3 GFLOP."""
    for prefix in " kMGTPE":
        if value < 999.5 or prefix == "E":
            break
        value /= 1000
    digits = 0 if value >= 99.95 or prefix == " " else 1 if value >= 9.995 else 2
    return f"{value:,.{digits}f} {prefix.strip()}{unit}"


def _time(seconds: float) -> str:
    return duration(seconds) if seconds >= 10 else f"{seconds:.2g} s"


def _count(number: int, noun: str) -> str:
    plural = "es" if noun.endswith("s") else "s"
    return f"{number:,} {noun}{plural if number != 1 else ''}"
