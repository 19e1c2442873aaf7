"""What `info` says of a config: parameters, FLOPs, memory, and the time of training, as text."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from transformer_mt.assembly.heads import layers_read_by_the_loss
from transformer_mt.config.schema import Config
from transformer_mt.inspect.flops import (
    Flops,
    decoding_flops,
    mask_predict_flops,
    mask_prediction_flops,
    prediction_flops,
    recomputed_flops,
    training_flops,
)
from transformer_mt.inspect.memory import (
    activation_bytes,
    half_weight_bytes,
    optimizer_bytes,
    weight_bytes,
)
from transformer_mt.inspect.parameters import VocabularySizes, parts
from transformer_mt.runtime.console import duration

# The share of its peak that a device reaches, unless another is given. By this count the paper's
# base model reached 0.25 of its eight P100 of 10.6 TFLOP/s (12 hours, section 5.2), the big one
# 0.37 (3.5 days).
USUAL_UTILISATION = 0.3
WIDTH = 100


@dataclass(frozen=True)
class Speed:
    """tflops: what one device does at its peak, in 10^12 FLOP/s; utilisation: the share of it that
    training reaches."""

    tflops: float
    utilisation: float = USUAL_UTILISATION


def report(
    config: Config, vocabularies: VocabularySizes, origin: str, length: int, speed: Speed | None
) -> Iterator[str]:
    """Lines that tell a person how large a model is, and what training it takes.

    Args:
        origin: how the sizes of the vocabularies are known.
        length: tokens of a sentence, its end among them, on either side.
        speed: of the devices; None: the time is left open.
    """
    longest = config.data.max_length + 1
    yield from _parameters(config, vocabularies, origin)
    yield ""
    yield from _flops(config, vocabularies, length)
    yield ""
    yield from _memory(config, vocabularies, sorted({length, longest}))
    yield ""
    yield from _training(config, vocabularies, length, speed)
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
    yield from _table([*rows, ["total", "", f"{total:,}", "", ""]], "<>>><")


def _flops(config: Config, vocabularies: VocabularySizes, length: int) -> Iterator[str]:
    yield (
        "FLOPs of a target token, in matrix products; sentences of "
        f"{length:,} subwords on either side"
    )
    recompute = " (recompute)" if config.training.recompute else ""
    columns = {
        f"training{recompute}": _training_flops(config, vocabularies, length),
        **_decoding_flops(config, vocabularies, length),
    }
    rows = [["", *columns]]
    for part in (*Flops._fields, "total"):
        flops = [getattr(column, part) / length for column in columns.values()]
        rows.append([part, *(_quantity(each, "FLOP") for each in flops)])
    yield from _table(rows, "<" + ">" * len(columns))


def _decoding_flops(config: Config, vocabularies: VocabularySizes, length: int) -> dict[str, Flops]:
    """Of a sentence pair, by what the columns are called."""
    sizes = (config.model, vocabularies.target, length)
    decoding = config.decoding
    if config.model.non_autoregressive is not None:
        candidates = decoding.length_candidates
        if config.model.non_autoregressive == "end":
            candidates = 1
        sizes = (*sizes, _positions(config, length))
        return {
            "all at once": mask_predict_flops(*sizes, 1, 1),
            f"{decoding.iterations} iterations, {_count(candidates, 'candidate')}": (
                mask_predict_flops(*sizes, decoding.iterations, candidates)
            ),
        }
    columns = {"decoding, greedy": decoding_flops(*sizes, length)}
    beam_size = 1 if decoding.sampling else decoding.beam_size
    if beam_size > 1:
        columns[f"beam of {beam_size}"] = decoding_flops(*sizes, length, beam_size)
    return columns


def _positions(config: Config, length: int) -> int:
    """How many positions the decoder reads of a target of this length, end included, where source
    and target are as long."""
    kind = config.model.non_autoregressive
    if kind is None:
        return length
    if kind == "length":
        return max(1, length - 1)
    from transformer_mt.decoding.engine import length_limits  # with NumPy, which others do without

    return max(length, length_limits(length - 1, config.decoding)[1])


def _training_flops(config: Config, vocabularies: VocabularySizes, length: int) -> Flops:
    """Of a sentence pair, with what is computed twice."""
    positions = _positions(config, length)
    count = training_flops if config.model.non_autoregressive is None else mask_prediction_flops
    flops = count(config.model, vocabularies.target, length, positions)
    added = []
    if config.training.recompute:
        kept = len(layers_read_by_the_loss(config))
        added.append(recomputed_flops(config.model, length, positions, kept))
    if config.scheduled_sampling.decay is not None:
        sampling = config.scheduled_sampling
        sizes = (config.model, vocabularies.target, length, positions)
        added.append(prediction_flops(*sizes, sampling.passes - 1, sampling.backpropagate))
    return Flops(*(sum(each) for each in zip(flops, *added, strict=True)))


def _memory(config: Config, vocabularies: VocabularySizes, lengths: list[int]) -> Iterator[str]:
    model, training = config.model, config.training
    tokens = _process_tokens(config)
    how = training.precision + (", recompute" if training.recompute else "")
    yield f"Memory of a process in training ({how}), batches of {tokens:,} target tokens"
    weights = weight_bytes(model, vocabularies)
    held = {
        "weights": weights,
        "gradients": weights,
        f"optimiser ({training.optimizer})": optimizer_bytes(model, training, vocabularies),
    }
    if training.precision != "float32":
        copies = half_weight_bytes(model, training, vocabularies)
        held[f"weights in {training.precision}"] = copies
    rows = [["", *held, "activations", "total"]]
    for length in lengths:
        positions = _positions(config, length)
        pairs = max(1, tokens // max(length, positions))
        activations = activation_bytes(config, vocabularies.target, pairs, length, positions)
        sizes = [*held.values(), activations, sum(held.values()) + activations]
        title = f"{_count(pairs, 'pair')} of {length:,} subwords"
        rows.append([title, *(_quantity(size, "B") for size in sizes)])
    yield from _table([list(row) for row in zip(*rows, strict=True)], "<" + ">" * len(lengths))
    if training.precision != "float32":
        yield from _note(
            f"In {training.precision}, activations are counted by what Paddle is to keep on a GPU; "
            "they were never measured."
        )


def _process_tokens(config: Config) -> int:
    """Padded target tokens that a process takes at once; how they are shared is decided by
    `data.batches.share`."""
    count, tokens = config.training.batch_plan
    devices = config.training.devices or 1
    return tokens if count % devices == 0 else -(-tokens // devices)


def _training(
    config: Config, vocabularies: VocabularySizes, length: int, speed: Speed | None
) -> Iterator[str]:
    training = config.training
    devices = training.devices or 1
    yield (
        f"Training on {_count(devices, 'device')}, updates of {training.batch_tokens:,} "
        "target tokens"
    )
    pairs = training.batch_tokens / max(length, _positions(config, length))
    an_update = pairs * _training_flops(config, vocabularies, length).total
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
    yield from _table(rows, "<" + ">" * (len(rows[0]) - 1))
    if speed is not None:
        yield from _note(
            f"At {speed.utilisation:.0%} of {speed.tflops:g} TFLOP/s a device; validations not "
            "counted."
        )


def _open_questions(config: Config, speed: Speed | None) -> Iterator[str]:
    """What could not be known, and how to tell it."""
    training = config.training
    if config.scheduled_sampling.decay is not None:
        yield from _note(
            f"scheduled_sampling: {_count(config.scheduled_sampling.passes - 1, 'pass')} more of "
            "the decoder in an update, counted as if all words were replaced by predictions; as "
            "long as they are not, it takes less."
        )
    if speed is None:
        yield from _note(
            "Time: not known. Give --tflops, what a device does at its peak in "
            f"{training.precision}, in TFLOP/s."
        )
    if training.devices is None:
        yield from _note(
            "Devices: training.devices is null, so that the machine decides. Counted with one; "
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


# -------------------------------------------------------------------------------- how it looks


def _table(rows: list[list[str]], alignment: str) -> Iterator[str]:
    """Lines of columns, each aligned as told: < to the left, > to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (
            f"{cell:{side}{width}}"
            for cell, side, width in zip(row, alignment, widths, strict=True)
        )
        yield f"  {'  '.join(cells)}".rstrip()


def _note(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent="  ", subsequent_indent="    ")


def _quantity(value: float, unit: str) -> str:
    """Three digits, and a decimal prefix: 12.3 GFLOP."""
    prefixes = iter(" kMGTPE")
    prefix = next(prefixes)
    while value >= 999.5 and prefix != "E":
        value /= 1000
        prefix = next(prefixes)
    digits = 0 if value >= 99.95 or prefix == " " else 1 if value >= 9.995 else 2
    return f"{value:,.{digits}f} {prefix.strip()}{unit}"


def _time(seconds: float) -> str:
    return duration(seconds) if seconds >= 10 else f"{seconds:.2g} s"


def _count(number: int, noun: str) -> str:
    plural = "es" if noun.endswith("s") else "s"
    return f"{number:,} {noun}{plural if number != 1 else ''}"
