"""The command `info`: how large a model is, and what its training takes.

what is counted:
  FLOPs   The operations of matrix products: 2mnk for (m, k) times (k, n). Training takes three
          times as many, because of the gradients. The FLOPs per target token include its share of
          the source. Decoding is counted step by step with a cache, and for a non-autoregressive
          model by its iterations.
  memory  The memory of one process; 1 MB is 10^6 bytes. Activations are what is held when the loss
          has been computed, in batches of training.device_tokens: for usual sentences, and for the
          longest ones that training uses. float32 is counted as on a CPU; a GPU keeps less for
          dropout.
  time    The time of the training if every step has training.batch_tokens on its longer side.

examples:
  python -m transformer_mt info configs/wmt14_en_de_base.yaml
  python -m transformer_mt info configs/wmt14_en_de_big.yaml training.devices=8 --tflops A100
  python -m transformer_mt info configs/wmt14_en_de_base.yaml --memory 24GB
  python -m transformer_mt info my.yaml model.d_model=256 training.max_steps=50000
  python -m transformer_mt info runs/demo
"""

import argparse
import re
from pathlib import Path

from transformer_mt.assembly import fine_tuning
from transformer_mt.commands.arguments import add_overrides, positive, positive_number, share
from transformer_mt.config.schema import Config
from transformer_mt.data.datasets import DATASETS
from transformer_mt.inspect.gpus import GPUS, find, peak
from transformer_mt.inspect.info import USUAL_UTILISATION, Speed, report
from transformer_mt.inspect.parameters import VocabularySizes
from transformer_mt.utils.errors import UsageError

# Tokens of a sentence, its end among them, unless others are asked for.
USUAL_LENGTH = 30


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "config",
        metavar="CONFIG|MODEL_DIR",
        type=Path,
        help="a recipe (a YAML file such as configs/demo.yaml), or a model directory",
    )
    add_overrides(parser)
    parser.add_argument(
        "--tflops",
        metavar="X",
        type=_tflops,
        help="the peak speed of one device in training.precision, as its manufacturer states "
        "it, in 10^12 operations per second; with it, the time of the training is shown. A name "
        f"stands for the speed in NVIDIA's data sheet: {', '.join(GPUS)}",
    )
    parser.add_argument(
        "--utilisation",
        metavar="X",
        type=share,
        help="the share of the peak speed that training reaches. In the paper, it was 0.25 for the "
        "base model and 0.37 for the big one, by this count, on eight P100 GPUs of 10.6 TFLOP/s "
        "(default: 0.3)",
    )
    parser.add_argument(
        "--memory",
        metavar="X",
        type=_bytes,
        help="the memory of one device, such as 24GB; with it, the largest training.device_tokens "
        "that fits is shown",
    )
    parser.add_argument(
        "--length",
        metavar="N",
        type=positive,
        help="the number of subwords of a usual sentence on either side, including its end "
        "(default: 30)",
    )


def run(options: argparse.Namespace) -> None:
    if options.tflops is None and options.utilisation is not None:
        raise UsageError("--utilisation: is a share of --tflops, so give that too")
    path = options.config
    if not path.exists():
        raise UsageError(f"{path}: there is no such config file or model directory")
    if path.is_dir():
        config, vocabularies, origin = _of_model(path, options.overrides)
    else:
        config = fine_tuning.load(path, options.overrides)
        vocabularies, origin = _of_config(config)
    longest = config.data.max_length + 1
    length = options.length or min(USUAL_LENGTH, longest)
    if length > longest:
        raise UsageError(
            f"--length: {length}: the longest sentence of training has {longest} subwords "
            f"(data.max_length: {config.data.max_length}, and its end)"
        )
    speed = _speed(options, config.training.precision)
    lines = report(config, vocabularies, origin, length, speed, options.memory)
    print("\n".join(lines))


def _speed(options: argparse.Namespace, precision: str) -> Speed | None:
    tflops, utilisation = options.tflops, options.utilisation or USUAL_UTILISATION
    if isinstance(tflops, str):
        return Speed(peak(tflops, precision), utilisation, tflops)
    return None if tflops is None else Speed(tflops, utilisation)


def _tflops(text: str) -> float | str:
    """A number, or a name in GPUS."""
    if name := find(text):
        return name
    if re.search("[^0-9.e+-]", text.lower().replace("inf", "")):
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected a number above 0, or one of {', '.join(GPUS)}"
        )
    return positive_number(text)


def _bytes(text: str) -> float:
    units = {"": 1e9, "GB": 1e9, "MB": 1e6, "GIB": 2**30, "MIB": 2**20}
    match = re.fullmatch(r"([\d.]+) *([A-Z]*)", text.upper())
    if match is None or match[2] not in units:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a size such as 24GB or 16GiB")
    return positive_number(match[1]) * units[match[2]]


def _of_model(path: Path, overrides: list[str]) -> tuple[Config, VocabularySizes, str]:
    from transformer_mt.model_directory import ModelDirectory

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
    subword = config.subword
    if config.training.init_from is not None:
        from transformer_mt.model_directory import subwords_to_keep

        return VocabularySizes.of(subwords_to_keep(config)), "of training.init_from"
    if subword.type != "vocabulary":
        sizes = list(subword.vocabulary_sizes.values())
        origin = "of the config; a small text may have fewer"
        return VocabularySizes(sizes[0], sizes[-1], subword.joint), origin
    if subword.vocabulary is None and config.data.root is None:
        types = DATASETS[config.data.dataset].vocabulary_types
        size = types + 1  # `WordVocabulary` adds padding
        origin = f"{config.data.dataset}'s {types:,}, and padding"
        return VocabularySizes(size, size, True), origin
    return _of_vocabulary_file(config)


def _of_vocabulary_file(config: Config) -> tuple[VocabularySizes, str]:
    from transformer_mt.data.subword import Subwords

    given = config.subword.vocabulary
    dataset = DATASETS[config.data.dataset]
    path = dataset.vocabulary(config.data.root) if given is None else Path(given)
    if not path.is_file():
        raise UsageError(
            f"subword.vocabulary: {path}: there is no such file, and the model is as large as the "
            "vocabulary in it. To count without it: subword.type=bpe subword.vocabulary=null "
            "subword.vocab_size=N"
        )
    return VocabularySizes.of(Subwords.from_vocabulary(path)), f"of {path}"
