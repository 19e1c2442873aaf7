"""The command `augment`.

Forward models translate --source, and backward models, which translate in the opposite direction,
translate --target. Each line of the text and its translation are a pair. docs/augmentation.md says
when to use which method, and how to train on the pairs.

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
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from transformer_mt import __version__
from transformer_mt.commands.arguments import add_files
from transformer_mt.commands.line_files import find_model
from transformer_mt.commands.model_choice import (
    add_model_choice,
    made_from,
    translating,
)
from transformer_mt.config.decoding import SEARCH_KEYS
from transformer_mt.data.synthetic_pairs import Counts, MergedPair, SyntheticPairs
from transformer_mt.decoding.lines import WINDOW, in_windows, input_lines
from transformer_mt.decoding.resumable import ResumableFile, resumable_file
from transformer_mt.export.registry import EngineSpec, split_model
from transformer_mt.model_directory import require_safe_outputs
from transformer_mt.utils.console import progress, say, show, warn
from transformer_mt.utils.errors import UsageError
from transformer_mt.utils.files import (
    Content,
    as_line,
    atomic,
    byte_lines,
    content_of,
    is_replaceable,
)

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
    add_files(
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
    parser.add_argument(
        "--resume", action="store_true", help="continue a command that was interrupted"
    )
    settings = [key for key in SEARCH_KEYS if key != "n_best"]
    add_model_choice(parser, settings, ensemble=False)


def run(options: argparse.Namespace) -> None:
    texts = _texts(options)
    models = _models(options)
    languages = _languages(models)
    outputs = _outputs(options.prefix, languages)
    require_safe_outputs(
        {**outputs},
        {f"--{side}": text.path for side, text in texts.items()},
    )
    _warn_of_bpe(models)
    description: dict[str, Any] = {f"--{side}": text.content.sha256 for side, text in texts.items()}
    for model in models:
        settings = {
            f"{model.title}: {name}": value for name, value in made_from(model.spec).items()
        }
        description |= {f"{model.title}: name": model.names, **settings}
    Path(options.prefix).parent.mkdir(parents=True, exist_ok=True)
    # The translations of all models stand in one file, which is deleted at the end.
    path = Path(f"{options.prefix}.translations")
    with resumable_file(path, description, WINDOW, options.resume) as file:
        _translate(models, texts, file)
        counts = _write(models, texts, file.written(), languages, outputs)
        file.delete()
    _show(texts, counts, outputs)


# ---------------------------------------------------------------------------- what is asked for


@dataclass(frozen=True)
class _Text:
    path: Path
    content: Content


@dataclass(frozen=True)
class _Model:
    """A model, or an ensemble, and what it translates.

    Attributes:
        number: from 1, among the models of its direction.
    """

    direction: str
    number: int
    spec: EngineSpec

    @property
    def title(self) -> str:
        return f"{self.direction} {self.number}"

    @property
    def side(self) -> str:
        return TEXT_OF[self.direction]

    @property
    def names(self) -> list[list[str]]:
        """The model directory and the checkpoint of each of its models. An export has no
        checkpoint."""
        checkpoints = self.spec.checkpoints
        if not checkpoints:
            return [[str(self.spec.folder), ""]]
        return [[str(path.parent.parent), path.name] for path in checkpoints]

    @property
    def columns(self) -> str:
        """Its columns in PREFIX.origin.tsv."""
        columns = [self.direction, *map(" + ".join, zip(*self.names, strict=True))]
        return "\t".join(re.sub(r"[\t\r\n]", " ", column) for column in columns)

    def pair(self, line: str, translation: str) -> tuple[str, str]:
        """Returns the source and the target of the pair that it made."""
        return (line, translation) if self.direction == "forward" else (translation, line)


def _texts(options: argparse.Namespace) -> dict[str, _Text]:
    """Reads the texts that are given, to count and hash them.

    Raises:
        UsageError: a text is missing, or is not needed.
    """
    if not options.forward and not options.backward:
        raise UsageError(
            "give --forward MODEL --source FILE, or --backward MODEL --target FILE, or both"
        )
    texts = {}
    for direction, side in TEXT_OF.items():
        path = getattr(options, side)
        if path is None and getattr(options, direction):
            raise UsageError(f"--{direction} needs the text that it translates: give --{side} FILE")
        if path is not None and not path.is_file():
            what = "it must be a file, which is read several times"
            raise UsageError(
                f"--{side}: {path}: {what if path.exists() else 'there is no such file'}"
            )
        if path is not None:
            texts[side] = _Text(path, content_of(path))
    for direction, side in TEXT_OF.items():
        if side in texts and not getattr(options, direction) and not _are_parallel(texts):
            raise UsageError(
                f"--{side}: there is no --{direction} model to translate it, and it does not have "
                "as many lines as the other text, whose pairs it could show"
            )
    return texts


def _are_parallel(texts: dict[str, _Text]) -> bool:
    return len(texts) == 2 and len({text.content.line_count for text in texts.values()}) == 1


def _models(options: argparse.Namespace) -> list[_Model]:
    """
    Raises:
        UsageError: there is no such model, or it can't be used so, or it is given twice.
        UserError: a model is damaged.
    """
    models = []
    for direction in TEXT_OF:
        names = getattr(options, direction)
        if options.as_ensemble and names:
            specs = [_ensemble(options, names)]
        else:
            specs = [find_model(options, name) for name in names]
        found = set()
        for number, (name, spec) in enumerate(zip(names, specs, strict=False), 1):
            models.append(_Model(direction, number, spec))
            read = tuple(os.path.realpath(path) for path in spec.checkpoints or [spec.folder])
            if read in found or len(set(read)) < len(read):
                raise UsageError(f"--{direction} {name}: this model is given twice")
            found.add(read)
    return models


def _ensemble(options: argparse.Namespace, names: list[str]) -> EngineSpec:
    first = find_model(options, names[0])
    others = []
    for name in names[1:]:
        folder, checkpoint = split_model(name)
        checkpoint = checkpoint or options.checkpoint
        others.append(f"{folder}:{checkpoint}" if checkpoint else name)
        own = _direction(find_model(options, name))
        if own != _direction(first):
            raise UsageError(
                f"--ensemble: {name} translates from {own[0]} to {own[1]}, but {names[0]} from "
                f"{' to '.join(_direction(first))}"
            )
    return find_model(argparse.Namespace(**{**vars(options), "ensemble": others}), names[0])


def _languages(models: list[_Model]) -> tuple[str, str]:
    """Returns the source language and the target language of the pairs.

    Raises:
        UsageError: the directions of two models do not fit together.
    """
    first = models[0]
    source, target = _direction(first.spec)
    if first.direction == "backward":
        source, target = target, source
    for model in models:
        own = _direction(model.spec)
        if own == ((source, target) if model.direction == "forward" else (target, source)):
            continue
        other = next(name for name in TEXT_OF if name != model.direction)
        is_reversed = set(own) == {source, target}
        first_own = " to ".join(_direction(first.spec))
        raise UsageError(
            f"--{model.direction} {model.spec.folder}: it translates from {own[0]} to {own[1]}, "
            f"but --{first.direction} {first.spec.folder} from {first_own}"
            + (f". Give it as --{other}" if is_reversed else "")
        )
    return source, target


def _direction(spec: EngineSpec) -> tuple[str, str]:
    return spec.config.data.source_lang, spec.config.data.target_lang


def _outputs(prefix: str, languages: tuple[str, str]) -> dict[str, Path]:
    """Returns the files that are written, by what they are called in messages."""
    if os.path.basename(prefix) in ("", ".", ".."):  # the names would begin with dots
        example = os.path.join(prefix, "back")
        raise UsageError(f"{prefix}: give the first part of a file's name, as in {example}")
    endings = {"source": languages[0], "target": languages[1], "origin": "origin.tsv"}
    endings["description"] = "json"
    if len(set(endings.values())) < len(endings):
        raise UsageError(f"the languages {' and '.join(languages)} are endings of other files")
    return {name: Path(f"{prefix}.{ending}") for name, ending in endings.items()}


def _warn_of_bpe(models: list[_Model]) -> None:
    if any(model.spec.config.subword.type == "vocabulary" for model in models):
        warn(
            "translations of models with subword.type: vocabulary have no @@. Apply the same BPE "
            "to them before you train on them"
        )


# ------------------------------------------------------------------------------- what is written


def _translate(models: list[_Model], texts: dict[str, _Text], file: ResumableFile) -> None:
    """Writes the translations of one model after the other, from where the file was left."""
    from transformer_mt.decoding.output import Line  # which help does not need

    start = 0
    for model in models:
        text = texts[model.side]
        total, done = text.content.line_count, max(0, file.lines - start)
        start += total + _padding(text)
        if file.lines >= start:
            continue
        say(f"{model.title}: translating {total:,} lines of {text.path}")
        with translating(model.spec, model.title, total, done) as (translator, bar):
            windows = in_windows(input_lines(text.path, done))
            lines = ([Line(line) for line in window] for window in windows)
            for translation in translator.stream(lines, finished=bar.update, first=done + 1):
                file.write_line(translation.text)
        for _ in range(_padding(text)):
            file.write_line("")


def _padding(text: _Text) -> int:
    """The number of empty lines behind the translations of a text. With them, those of the next
    model begin at a window, where the file can be resumed."""
    return -text.content.line_count % WINDOW


def _write(
    models: list[_Model],
    texts: dict[str, _Text],
    translations: Path,
    languages: tuple[str, str],
    outputs: dict[str, Path],
) -> Counts:
    """Merges the translations of all models, and writes the files."""
    originals: Iterator[tuple[str, str]] = iter(())
    if _are_parallel(texts):
        originals = zip(*(_lines(texts[side].path) for side in TEXT_OF.values()), strict=True)
    total = sum(texts[model.side].content.line_count for model in models)
    with SyntheticPairs(translations.parent, originals) as merged:
        with progress(total=total, title="merging", unit="pairs", unit_scale=True) as bar:
            lines = _lines(translations)
            for number, model in enumerate(models):
                text = texts[model.side]
                own = islice(lines, text.content.line_count)
                for line, translation in zip(_lines(text.path), own, strict=True):
                    merged.add(*model.pair(line, translation), number)
                    bar.update()
                for _ in range(_padding(text)):
                    next(lines)
        counts, pairs = merged.merge()
        _write_pairs(models, texts, counts, pairs, languages, outputs)
    return counts


def _write_pairs(
    models: list[_Model],
    texts: dict[str, _Text],
    counts: Counts,
    pairs: Iterable[MergedPair],
    languages: tuple[str, str],
    outputs: dict[str, Path],
) -> None:
    columns = [model.columns for model in models]
    # They get their names from the last to the first.
    with (
        atomic(outputs["target"]) as targets,
        atomic(outputs["source"]) as sources,
        atomic(outputs["origin"]) as origins,
        atomic(outputs["description"]) as description,
        progress(total=counts.pairs, title="writing", unit="pairs", unit_scale=True) as bar,
    ):
        for source, target, made_by in pairs:
            sources.write(as_line(source))
            targets.write(as_line(target))
            origins.write("\t".join(columns[number] for number in made_by) + "\n")
            bar.update()
        facts = _description(models, texts, counts, languages)
        description.write(json.dumps(facts, indent=2) + "\n")
        for file in (targets, sources, origins, description):
            file.flush()  # A full disk must be noticed while the files of before are there.
        # Files can't be renamed together. As long as there is no target, nobody can take lines of
        # one command and lines of another for pairs.
        if is_replaceable(outputs["target"]):
            Path(os.path.realpath(outputs["target"])).unlink(missing_ok=True)


def _lines(path: Path) -> Iterator[str]:
    """Yields the lines as `input_lines` does, but without its warnings, which were shown."""
    for number, line in enumerate(byte_lines(path)):
        text = line.decode("utf-8", errors="replace")
        yield text if number else text.removeprefix("\ufeff")


def _description(
    models: list[_Model], texts: dict[str, _Text], counts: Counts, languages: tuple[str, str]
) -> dict[str, Any]:
    """Returns the content of PREFIX.json."""
    return {
        "version": __version__,
        "languages": dict(zip(("source", "target"), languages, strict=True)),
        "texts": {
            side: {"file": str(text.path), "lines": text.content.line_count}
            | {"sha256": text.content.sha256}
            for side, text in texts.items()
        },
        "parallel": _are_parallel(texts),
        "models": [
            {
                "direction": model.direction,
                "names": [
                    {"model_dir": folder, "checkpoint": checkpoint or None}
                    for folder, checkpoint in model.names
                ],
                "made_from": made_from(model.spec),
            }
            for model in models
        ],
        "counts": asdict(counts),
    }


def _show(
    texts: dict[str, _Text],
    counts: Counts,
    outputs: dict[str, Path],
) -> None:
    show(f"made      {counts.made:,} pairs")
    left_out = {
        "empty on a side": counts.empty,
        "pairs of the parallel text itself": counts.original,
        "repeated": counts.repeated,
    }
    for reason, count in left_out.items():
        if count:
            show(f"left out  {count:,}: {reason}")
    if len(texts) == 2 and not _are_parallel(texts):
        show("          --source and --target have not as many lines, so they are no parallel text")
    show(f"written   {counts.pairs:,} pairs of {counts.sources:,} sources:")
    for name in ("source", "target", "origin", "description"):
        show(f"          {outputs[name]}")
