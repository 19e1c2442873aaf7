"""The command `augment`.

Forward models translate --source, and backward models, which translate in the opposite direction,
translate --target. Each line of the text and its translation are a pair.
docs/back-translation.md says when to use which method, and how to train on the pairs.

methods:
  back-translation  a backward model, and text of the target language
  diversification   forward and backward models, and both sides of the training text
  distillation      a forward model, or an ensemble of them, and the source side of the training
                    text

The pairs of the same source stand together, and equal pairs are written once. Left out are pairs
with an empty side. If --source and --target have the same number of lines, they are taken for a
parallel text, and its own pairs are left out too.

files, for models from en to de:
  PREFIX.en          the sources of the pairs, and in PREFIX.de the targets, line for line, as
                     data.train takes them
  PREFIX.origin.tsv  for each pair, the direction, model directory and checkpoint of the model that
                     made it, with tabs between them; each further model adds these columns again
  PREFIX.json        models, settings, checksums of the text, and counts

examples:
  python -m transformer_mt augment corpus/back --backward runs/de-en --target news.de --sampling
  python -m transformer_mt augment corpus/more --forward runs/a runs/b --source corpus/train.en \\
      --backward runs/c --target corpus/train.de
  python -m transformer_mt augment corpus/distilled --forward runs/a runs/b --ensemble \\
      --source corpus/train.en
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from transformer_mt import __version__
from transformer_mt.commands import arguments
from transformer_mt.commands.translating import find_engine, made_from, translating
from transformer_mt.data.synthetic_pairs import Counts, SyntheticPairs
from transformer_mt.decoding.lines import (
    WINDOW,
    ResumableFile,
    in_windows,
    input_lines,
    resumable_file,
)
from transformer_mt.decoding.output import Line
from transformer_mt.export.registry import EngineSpec
from transformer_mt.model_directory import require_safe_outputs
from transformer_mt.utils import files
from transformer_mt.utils.console import progress, say, show, warn
from transformer_mt.utils.errors import UsageError

# Which text the models of a direction translate.
TEXT_OF = {"forward": "source", "backward": "target"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "prefix",
        metavar="PREFIX",
        help="the first part of the names of the files that are written, as in corpus/back",
    )
    for direction, side in TEXT_OF.items():
        parser.add_argument(
            f"--{direction}",
            metavar="MODEL",
            nargs="+",
            action="extend",
            default=[],
            help=f"models that translate --{side}: MODEL_DIR, MODEL_DIR:CHECKPOINT or an export. "
            "May be repeated",
        )
    arguments.add_files(
        parser,
        source="text of the source language, one sentence per line",
        target="text of the target language, one sentence per line",
    )
    parser.add_argument(
        "--ensemble",
        dest="as_ensemble",
        action="store_true",
        help="the models of each direction translate together, with the mean of their "
        "probabilities. They must have the same subwords",
    )
    arguments.add_switches(parser, resume="continue a command that was interrupted")
    arguments.add_model_choice(parser, arguments.ONE_BEST, ensemble=False)


def run(options: argparse.Namespace) -> None:
    texts = _texts(options)
    models, languages = _models(options, texts)
    prefix = options.prefix
    if os.path.basename(prefix) in ("", ".", ".."):  # the names would begin with dots
        example = os.path.join(prefix, "back")
        raise UsageError(f"{prefix}: give the first part of a file's name, as in {example}")
    if languages[0] == languages[1]:
        raise UsageError(f"both sides are {languages[0]}, so their files would have the same name")
    # They get their names from the last to the first.
    endings = {"target": languages[1], "source": languages[0], "origin": "origin.tsv"}
    endings["description"] = "json"
    outputs = {name: Path(f"{prefix}.{ending}") for name, ending in endings.items()}
    require_safe_outputs({**outputs}, {f"--{side}": text.path for side, text in texts.items()})
    if any(model.spec.config.subword.type == "vocabulary" for model in models):
        warn(
            "translations of models with subword.type: vocabulary have no @@. Apply the same BPE "
            "to them before you train on them"
        )
    made: dict[str, Any] = {f"--{side}": text.content.sha256 for side, text in texts.items()}
    for model in models:
        made |= {f"{model.title}: {key}": value for key, value in made_from(model.spec).items()}
        made[f"{model.title}: name"] = _names(model.spec)
    Path(prefix).parent.mkdir(parents=True, exist_ok=True)
    # The translations of all models stand in one file, which is deleted at the end.
    with resumable_file(Path(f"{prefix}.translations"), made, WINDOW, options.resume) as file:
        _translate(models, file)
        counts = _write(models, texts, languages, file.written(), outputs)
        file.delete()
    show(f"made      {counts.made:,} pairs")
    for reason, count in (
        ("empty on a side", counts.empty),
        ("pairs of the parallel text itself", counts.original),
        ("repeated", counts.repeated),
    ):
        if count:
            show(f"left out  {count:,}: {reason}")
    if len(texts) == 2 and not _are_parallel(texts):
        show("          --source and --target have not as many lines, so they are no parallel text")
    show(f"written   {counts.pairs:,} pairs of {counts.sources:,} sources:")
    for path in outputs.values():
        show(f"          {path}")


# ---- What is asked for ----


@dataclass(frozen=True)
class _Text:
    path: Path
    content: files.Content

    @property
    def padding(self) -> int:
        """The number of empty lines behind its translations. With them, those of the next model
        begin at a window, where the file can be resumed."""
        return -self.content.line_count % WINDOW


@dataclass(frozen=True)
class _Model:
    """A model, or an ensemble, and the text that it translates. `title` is the direction and the
    number of the model."""

    direction: str
    title: str
    spec: EngineSpec
    text: _Text


def _names(spec: EngineSpec) -> list[tuple[str, str]]:
    """The model directory and the checkpoint of each model of an engine. An export has no
    checkpoint."""
    checkpoints = [(str(path.parent.parent), path.name) for path in spec.checkpoints]
    return checkpoints or [(str(spec.folder), "")]


def _texts(options: argparse.Namespace) -> dict[str, _Text]:
    """Reads the texts that are given, to count and hash them.

    Raises:
        UsageError: a text is missing, or is not needed.
    """
    if not options.forward and not options.backward:
        raise UsageError("give --forward MODEL --source FILE, or --backward MODEL --target FILE")
    texts = {}
    for direction, side in TEXT_OF.items():
        path = getattr(options, side)
        if path is None and getattr(options, direction):
            raise UsageError(f"--{direction} needs the text that it translates: give --{side} FILE")
        if path is not None and not path.is_file():
            raise UsageError(f"--{side}: {path}: there is no such file (a pipe can't be used here)")
        if path is not None:
            texts[side] = _Text(path, files.content_of(path))
    for direction, side in TEXT_OF.items():
        if side in texts and not getattr(options, direction) and not _are_parallel(texts):
            raise UsageError(f"--{side}: there is no --{direction} model to translate it")
    return texts


def _are_parallel(texts: dict[str, _Text]) -> bool:
    return len(texts) == 2 and len({text.content.line_count for text in texts.values()}) == 1


def _models(
    options: argparse.Namespace, texts: dict[str, _Text]
) -> tuple[list[_Model], tuple[str, str]]:
    """Returns the models, and the source language and the target language of the pairs.

    Raises:
        UsageError: there is no such model, it can't be used so, or it is given twice; or the
            directions of two models do not fit together.
        UserError: a model is damaged.
    """
    models: list[_Model] = []
    languages: tuple[str, str] = ("", "")
    for direction, side in TEXT_OF.items():
        names = getattr(options, direction)
        specs = [find_engine(options, name, n_best=1) for name in names]
        for name, spec in zip(names, specs, strict=True):
            own = spec.config.data.source_lang, spec.config.data.target_lang
            pair = own if direction == "forward" else own[::-1]
            languages = languages if languages[0] else pair
            if pair != languages:
                raise UsageError(
                    f"--{direction} {name}: it translates from {' to '.join(own)}, but the pairs "
                    f"are from {' to '.join(languages)}"
                    + (". Is it a model of the other direction?" * (pair == languages[::-1]))
                )
        folders = [path for spec in specs for path in spec.checkpoints or [spec.folder]]
        if len(set(map(os.path.realpath, folders))) < len(folders):
            raise UsageError(f"--{direction}: the same model is given twice")
        if options.as_ensemble and names:
            # An export, which has no checkpoint, is refused.
            others = [":".join(filter(None, _names(spec)[0])) for spec in specs[1:]]
            specs = [find_engine(options, names[0], ensemble=others, n_best=1)]
        for number, spec in enumerate(specs, 1):
            models.append(_Model(direction, f"{direction} {number}", spec, texts[side]))
    return models, languages


# ---- What is written ----


def _translate(models: list[_Model], file: ResumableFile) -> None:
    """Writes the translations of one model after the other, from where the file was left."""
    start = 0
    for model in models:
        text = model.text
        total, done = text.content.line_count, max(0, file.lines - start)
        start += total + text.padding
        if file.lines >= start:
            continue
        say(f"{model.title}: translating {total:,} lines of {text.path}")
        with translating(model.spec, model.title, total, done) as (translator, bar):
            lines = in_windows(map(Line, input_lines(text.path, done)))
            for translation in translator.stream(lines, finished=bar.update, first=done + 1):
                file.write_line(translation.text)
        for _ in range(text.padding):
            file.write_line("")


def _write(
    models: list[_Model],
    texts: dict[str, _Text],
    languages: tuple[str, str],
    translations: Path,
    outputs: dict[str, Path],
) -> Counts:
    """Merges the translations of all models, and writes the files."""
    originals: Iterator[tuple[str, str]] = iter(())
    if _are_parallel(texts):
        originals = zip(*(_lines(texts[side].path) for side in ("source", "target")), strict=True)
    with SyntheticPairs(translations.parent, originals) as merged, ExitStack() as stack:
        translated = _lines(translations)
        for number, model in enumerate(models):
            for line in _lines(model.text.path):
                pair = line, next(translated)
                merged.add(*(pair if model.direction == "forward" else pair[::-1]), number)
            list(islice(translated, model.text.padding))
        counts, pairs = merged.merge()
        # They get their names from the last to the first.
        streams = {name: stack.enter_context(files.atomic(path)) for name, path in outputs.items()}
        columns = [
            "\t".join([model.direction, *map(" + ".join, zip(*_names(model.spec), strict=True))])
            for model in models
        ]
        for source, target, made_by in progress(
            iterable=pairs, total=counts.pairs, title="writing", unit="pairs", unit_scale=True
        ):
            streams["source"].write(files.as_line(source))
            streams["target"].write(files.as_line(target))
            streams["origin"].write("\t".join(columns[number] for number in made_by) + "\n")
        facts = {
            "version": __version__,
            "languages": {"source": languages[0], "target": languages[1]},
            "texts": {
                side: {
                    "file": str(text.path),
                    "lines": text.content.line_count,
                    "sha256": text.content.sha256,
                }
                for side, text in texts.items()
            },
            "parallel": _are_parallel(texts),
            "models": [
                {
                    "direction": model.direction,
                    "names": [
                        {"model_dir": folder, "checkpoint": checkpoint or None}
                        for folder, checkpoint in _names(model.spec)
                    ],
                    "made_from": made_from(model.spec),
                }
                for model in models
            ],
            "counts": asdict(counts),
        }
        streams["description"].write(json.dumps(facts, indent=2) + "\n")
        for stream in streams.values():
            stream.flush()  # A full disk must be noticed while the files of before are there.
        # Files can't be renamed together. As long as there is no target, nobody can take lines of
        # one command and lines of another for pairs.
        if files.is_replaceable(outputs["target"]):
            Path(os.path.realpath(outputs["target"])).unlink(missing_ok=True)
    return counts


def _lines(path: Path) -> Iterator[str]:
    """Yields the lines as `input_lines` does, but without its warnings, which were shown."""
    for number, line in enumerate(files.byte_lines(path)):
        text = line.decode("utf-8", errors="replace")
        yield text if number else text.removeprefix("\ufeff")
