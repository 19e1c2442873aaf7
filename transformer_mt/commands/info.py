"""The command `info`: how large a model is, and what its training takes.

what is counted:
  FLOPs   The operations of matrix products: 2mnk for (m, k) times (k, n). Training takes three
          times as many, because of the gradients. The FLOPs per target token include its share of
          the source. Decoding is counted step by step with a cache, and for a non-autoregressive
          model by its iterations.
  memory  An estimate of the memory of one process in float32; 1 MB is 10^6 bytes. Activations are
          what is held when the loss has been computed, in batches of training.device_tokens: for
          usual sentences, and for the longest ones that training uses.

How long a training takes on a device, `train CONFIG --check` measures there. The last line says
what computes the matrix products on a CPU of this machine: oneDNN, or more slowly Paddle.

examples:
  python -m transformer_mt info configs/wmt14_en_de_base.yaml
  python -m transformer_mt info my.yaml model.d_model=256 training.max_steps=50000
  python -m transformer_mt info runs/demo
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

from transformer_mt.commands import arguments
from transformer_mt.config.schema import Config
from transformer_mt.data.datasets import DATASETS
from transformer_mt.model import costs
from transformer_mt.model.costs import FlopCounter, Flops, VocabularySizes
from transformer_mt.model_directory import ModelDirectory, subwords_to_keep
from transformer_mt.training import settings
from transformer_mt.utils.console import table
from transformer_mt.utils.errors import UsageError

# Tokens of a sentence, its end among them, unless others are asked for.
USUAL_LENGTH = 30
INDENT = "  "


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "config",
        metavar="CONFIG|MODEL_DIR",
        type=Path,
        help="a recipe (a YAML file such as configs/demo.yaml), or a model directory",
    )
    arguments.add_overrides(parser)
    arguments.add_values(
        parser,
        "N",
        arguments.positive,
        length="the number of subwords of a usual sentence on either side, including its end "
        f"(default: {USUAL_LENGTH})",
    )


def run(options: argparse.Namespace) -> None:
    path = options.config
    if path.is_dir():
        config, vocabularies, origin = _of_model(path, options.overrides)
    else:
        config = settings.load(path, options.overrides)
        vocabularies, origin = _of_config(config)
    longest = config.data.max_length + 1
    length = options.length or min(USUAL_LENGTH, longest)
    if length > longest:
        raise UsageError(
            f"--length: {length}: the longest sentence of training has {longest} subwords "
            f"(data.max_length: {config.data.max_length}, and its end)"
        )
    positions = _positions(config, length)
    counter = FlopCounter(config.model, vocabularies.target, length, positions)
    for section in (
        _parameters(config, vocabularies, origin),
        _flops(config, counter),
        _memory(config, vocabularies, sorted({length, longest})),
        _training(config, counter),
    ):
        print(*section, sep="\n", flush=True)
    from transformer_mt import kernels  # imports Paddle, which takes longer than all of the above

    print(f"\nCPU products  {kernels.cpu_products()}")


def _parameters(config: Config, vocabularies: VocabularySizes, origin: str) -> Iterator[str]:
    """
    Args:
        origin: where the sizes of the vocabularies come from, for the reader.
    """
    sizes = f"{vocabularies.source:,} source, {vocabularies.target:,} target"
    if vocabularies.joint:
        sizes = f"{vocabularies.target:,}, joint"
    yield f"Vocabulary: {sizes} ({origin})\n"
    yield "Parameters"
    parts = costs.parts(config.model, vocabularies)
    total = sum(part.parameters for part in parts)
    rows = [
        [
            part.name,
            f"{part.count} x {part.each:,}" if part.count else "",
            f"{part.parameters:,}",
            f"{part.parameters / total:.1%}",
            part.formula,
        ]
        for part in parts
    ]
    yield from table([*rows, ["total", "", f"{total:,}", "", ""]], "<>>><", INDENT)


def _flops(config: Config, counter: FlopCounter) -> Iterator[str]:
    length = counter.source_len  # and that of the target; the decoder may read more positions
    yield (
        "\nFLOPs per target token, in matrix products; sentences of "
        f"{length:,} subwords on either side"
    )
    recompute = " (recompute)" if config.training.recompute else ""
    columns = {f"training{recompute}": _training_flops(config, counter)}
    decoding, kind = config.decoding, config.model.non_autoregressive
    if kind is not None:
        candidates = 1 if kind == "end" else decoding.length_candidates
        columns["all at once"] = counter.mask_predict(1, 1)
        title = f"{decoding.iterations} iterations, {_count(candidates, 'candidate')}"
        columns[title] = counter.mask_predict(decoding.iterations, candidates)
    else:
        columns["decoding, greedy"] = counter.decoding()
        if decoding.beam_size > 1 and not decoding.sampling:
            columns[f"beam of {decoding.beam_size}"] = counter.decoding(decoding.beam_size)
    rows = [["", *columns]]
    for part in (*Flops._fields, "total"):
        per_token = [getattr(column, part) / length for column in columns.values()]
        rows.append([part, *(_quantity(count, "FLOP") for count in per_token)])
    yield from table(rows, indent=INDENT)


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
    is_autoregressive = config.model.non_autoregressive is None
    counts = [counter.training() if is_autoregressive else counter.mask_prediction()]
    if config.training.recompute:
        counts.append(counter.recomputed(len(config.layers_read_by_the_loss)))
    if sampling.decay is not None:
        counts.append(counter.predictions(sampling.passes - 1, sampling.backpropagate))
    passes = config.consistency.passes
    return Flops(*(passes * sum(part) for part in zip(*counts, strict=True)))


def _memory(config: Config, vocabularies: VocabularySizes, lengths: list[int]) -> Iterator[str]:
    training = config.training
    count, tokens = training.batch_plan
    devices = training.devices or 1
    if count % devices:  # `data.batches.share` shares the tokens of each batch
        tokens = -(-tokens // devices)
    how = "float32" + (", recompute" if training.recompute else "")
    yield f"\nMemory of a process in training ({how}), batches of {tokens:,} target tokens"
    # What training holds whatever the batch is, in bytes.
    weights = costs.weight_bytes(config, vocabularies)
    held = {"weights": weights, "gradients": weights}
    held[f"optimiser ({training.optimizer})"] = costs.optimizer_bytes(config, vocabularies)
    if training.ema is not None:
        held["moving average"] = weights
    rows = [["", *held, "activations", "total"]]
    for length in lengths:
        positions = _positions(config, length)
        pairs = max(1, tokens // max(length, positions))
        activations = costs.activation_bytes(config, vocabularies.target, pairs, length, positions)
        sizes = [*held.values(), activations, sum(held.values()) + activations]
        title = f"{_count(pairs, 'pair')} of {length:,} subwords"
        rows.append([title, *(_quantity(size, "B") for size in sizes)])
    yield from table(list(zip(*rows, strict=True)), indent=INDENT)


def _training(config: Config, counter: FlopCounter) -> Iterator[str]:
    training, sampling = config.training, config.scheduled_sampling
    yield f"\nTraining, updates of {training.batch_tokens:,} target tokens"
    pairs = training.batch_tokens / max(counter.source_len, counter.target_len)
    an_update = pairs * _training_flops(config, counter).total
    counts = [1] if training.max_steps is None else [1, training.max_steps]
    rows = [[_count(n, "update"), _quantity(n * an_update, "FLOP")] for n in counts]
    yield from table(rows, indent=INDENT)
    if sampling.decay is not None:
        yield (
            f"{INDENT}with {_count(sampling.passes - 1, 'pass')} more of the decoder "
            "(scheduled_sampling), as if all words were replaced"
        )
    if training.max_steps is None:
        yield f"{INDENT}`train CONFIG --check` counts the updates of an epoch (training.max_epochs)"


# ---- Formatting ----


def _quantity(value: float, unit: str) -> str:
    """Formats a value with three digits and a decimal prefix, such as 12.3 GFLOP."""
    for prefix in " kMGTPE":
        if value < 999.5 or prefix == "E":
            break
        value /= 1000
    digits = 0 if value >= 99.95 or prefix == " " else 1 if value >= 9.995 else 2
    return f"{value:,.{digits}f} {prefix.strip()}{unit}"


def _count(number: int, noun: str) -> str:
    plural = "es" if noun.endswith("s") else "s"
    return f"{number:,} {noun}{plural if number != 1 else ''}"


# ---- The vocabularies ----


def _of_model(path: Path, overrides: list[str]) -> tuple[Config, VocabularySizes, str]:
    directory = ModelDirectory(path)
    config = directory.load_config(overrides)
    if any(override.startswith("subword.") for override in overrides):
        raise UsageError(
            "subword: a model keeps the subwords that it has. To count with others, give its "
            f"config: info {path / 'config.yaml'} {' '.join(overrides)}"
        )
    return config, VocabularySizes.of(directory.load_subwords()), "the model's"


def _of_config(config: Config) -> tuple[VocabularySizes, str]:
    """The sizes of the vocabularies as far as they are known without the text, and how they are."""
    subword, data = config.subword, config.data
    if config.training.init_from is not None:
        return VocabularySizes.of(subwords_to_keep(config)), "of training.init_from"
    if subword.type == "marian":
        raise UsageError("subword.type: marian: give the imported model in training.init_from")
    if subword.type != "vocabulary":
        sizes = list(subword.vocabulary_sizes.values())
        origin = "of the config; a small text may have fewer"
        return VocabularySizes(sizes[0], sizes[-1], subword.joint), origin
    dataset = DATASETS[data.dataset]
    if subword.vocabulary is None and data.root is None:
        types = dataset.vocabulary_types
        assert types is not None
        size = types + 1  # `WordVocabulary` adds padding
        return VocabularySizes(size, size, True), f"{data.dataset}'s {types:,}, and padding"
    path = Path(subword.vocabulary or dataset.vocabulary(data.root))
    if not path.is_file():
        raise UsageError(
            f"subword.vocabulary: {path}: there is no such file, and the model is as large as the "
            "vocabulary in it. To count without it: subword.type=bpe subword.vocabulary=null "
            "subword.vocab_size=N"
        )
    from transformer_mt.data.subword import Subwords

    return VocabularySizes.of(Subwords.from_vocabulary(path)), f"of {path}"
