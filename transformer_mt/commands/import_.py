"""The command `import`.

SOURCE is one of these:
  a folder of Hugging Face's MarianMT: config.json, model.safetensors or pytorch_model.bin,
  source.spm, target.spm, vocab.json
  a zip archive of OPUS-MT, or its folder: a model NAME.npz of Marian, decoder.yml, a vocabulary
  *.vocab.yml, source.spm, target.spm
  hf:OWNER/NAME, which is downloaded from the Hugging Face hub (or from HF_ENDPOINT)
  a folder of adapters that `export --format adapter` has written, with --base

Nothing in these files is run, also not in a pytorch_model.bin. The model directory is like one that
`train` has written; `new --from MODEL_DIR` writes a recipe that fine-tunes the model.

examples:
  python -m transformer_mt import hf:Helsinki-NLP/opus-mt-en-de runs/opus
  python -m transformer_mt import opus-2020-02-26.zip runs/opus --source-lang en --target-lang de
  python -m transformer_mt translate runs/opus < in.txt
  python -m transformer_mt import medical_adapter runs/medical --base runs/opus
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_mt.commands import arguments
from transformer_mt.utils.console import quoted, say
from transformer_mt.utils.errors import UsageError, UserError

if TYPE_CHECKING:
    from transformer_mt.config.schema import Config
    from transformer_mt.pretrained.model import Pretrained

# What OPUS-MT models were trained on: single sentences of at most so many subwords.
LONGEST = 512


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source", metavar="SOURCE", help="the model: a folder, a .zip, or hf:OWNER/NAME"
    )
    parser.add_argument(
        "model_dir", metavar="MODEL_DIR", type=Path, help="the folder to make: runs/opus"
    )
    said = "(default: what the model says; Marian's do not say it)"
    arguments.add_values(
        parser,
        "LANG",
        source_lang=f"the language that it translates from, such as en {said}",
        target_lang=f"the language that it translates into {said}",
    )
    arguments.add_values(
        parser,
        "MODEL_DIR",
        Path,
        base="the model that the adapters in SOURCE were trained for",
    )


def run(options: argparse.Namespace) -> None:
    """Reads the model, and writes a model directory; nothing is written if something is wrong.

    Raises:
        UsageError: there is no such model, or MODEL_DIR is not free.
        UserError: the model can't be read or imported, or the directory can't be written.
    """
    target = options.model_dir
    if os.path.lexists(target) and (not target.is_dir() or any(target.iterdir())):
        raise UsageError(f"{target} is there already. Give another MODEL_DIR")
    if options.base is not None:
        from transformer_mt.training.adapters import apply_adapter

        apply_adapter(Path(options.source), options.base, target)
        print(target)
        return
    from transformer_mt.pretrained import huggingface, marian
    from transformer_mt.pretrained.sources import open_source

    with open_source(options.source) as source:
        pretrained = (huggingface if source.kind == "huggingface" else marian).read(source)
    given = (options.source_lang, options.target_lang)
    languages = [own or its for own, its in zip(given, pretrained.languages, strict=True)]
    flags = ("--source-lang", "--target-lang")
    if missing := [flag for flag, code in zip(flags, languages, strict=True) if code is None]:
        raise UsageError(
            f"{options.source} does not say its languages. Give {' and '.join(missing)}"
        )
    config = _config(pretrained, options.model_dir, languages)
    name = options.source.removeprefix("hf:").rstrip("/")
    _write(
        target, pretrained, config, name if options.source.startswith("hf:") else Path(name).name
    )
    print(target)
    count = sum(weight.size for weight in pretrained.weights.values())
    say(
        f"imported {count:,} parameters, {pretrained.subwords.target.size:,} subwords; to "
        f"translate: bash scripts/translate.sh {quoted(target)} FILE; to fine-tune: "
        f"python -m transformer_mt new my.yaml --from {quoted(target)} --train TEXT"
    )


def _config(pretrained: Pretrained, model_dir: Path, languages: list[str]) -> Config:
    """Returns the config of the model directory. No text belongs to it."""
    from transformer_mt.config import file as config_file

    subwords = pretrained.subwords
    values: dict[str, Any] = {
        "model_dir": str(model_dir),
        "data": {
            "root": ".",
            "source_lang": languages[0],
            "target_lang": languages[1],
            "max_length": LONGEST,
        },
        "subword": {
            "type": "marian",
            "joint": subwords.joint,
            "user_symbols": [*subwords.source.language_tokens],
        },
        "model": pretrained.model.model_dump(),
        "training": {"max_steps": 1},
        # The score of Marian and of `transformers` is the mean log-probability.
        "decoding": {
            "beam_size": pretrained.beam_size,
            "length_penalty_kind": "average",
            "max_length_ratio": 3.0,
            "split_sentences": True,
            "max_source_length": LONGEST,
        },
    }
    return config_file.parse(config_file.dump_yaml(values), "the imported model")


def _write(path: Path, pretrained: Pretrained, config: Config, name: str) -> None:
    from transformer_mt.model_directory import LOG, MODEL_CARD
    from transformer_mt.reports import card
    from transformer_mt.reports.record import read
    from transformer_mt.training.folder import RunDirectory
    from transformer_mt.utils.folders import published, write_checksums
    from transformer_mt.weights import WEIGHTS, write_tensors

    try:
        with published(path, with_checksums=False) as folder:
            directory = RunDirectory(folder)
            directory.start(config, pretrained.subwords, [])
            checkpoint = directory.checkpoints / "step_0"
            checkpoint.mkdir()
            write_tensors(checkpoint / WEIGHTS, pretrained.weights)
            write_checksums(checkpoint)
            directory.set_best(checkpoint)
            parameters = sum(weight.size for weight in pretrained.weights.values())
            lines = [
                {"kind": "origin", "step": 0, "name": name, "license": pretrained.license},
                {"kind": "start", "step": 0, "seconds": 0.0, "parameters": parameters},
            ]
            text = "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines)
            (folder / LOG).write_text(text, encoding="utf-8")
            record = read(folder, path.resolve().name)
            written = card.model_card(record, config, checkpoint.name)
            (folder / MODEL_CARD).write_text(card.sealed_card(written), encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: can't be written: {error.strerror or error}") from None
