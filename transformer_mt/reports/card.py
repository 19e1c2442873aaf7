"""What a model is, for the people it is given to: a few facts, and the model card.

The card is Markdown. It begins with metadata in YAML, which model hubs read (Hugging Face, "Model
Cards"; the idea is that of Mitchell et al. 2019, arXiv 1810.03993). Text of a recipe or a folder's
name can neither break the metadata nor add markup to the page.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError

from transformer_mt.config import file as config_file
from transformer_mt.config.file import dump_yaml
from transformer_mt.config.schema import Config
from transformer_mt.data.datasets import DATASETS
from transformer_mt.model_directory import MODEL_CARD, ModelDirectory
from transformer_mt.reports.page import render
from transformer_mt.reports.record import Record, changes_of, number, read, scores_of
from transformer_mt.scoring.metrics import METRICS, Scores
from transformer_mt.utils.console import duration, visible
from transformer_mt.utils.errors import UserError
from transformer_mt.utils.folders import sealed
from transformer_mt.utils.languages import primary

# The file of an export that holds what its model directory says about the training.
CARD = "card.json"
# What ISO 639 has as the code of a language.
_LANGUAGE = re.compile(r"[a-z]{2,3}")

# An identifier of a license, and a name on a hub.
_LICENSE = re.compile(r"[a-z0-9.+-]+")
_ON_A_HUB = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
_DATASET = f"^({'|'.join(name for name in DATASETS if name != 'files')})$"

Number = Annotated[float, Field(allow_inf_nan=False)]


class Score(BaseModel):
    """The score of a model on its test set, as it is printed. `interval` is half the width of the
    95 % confidence interval; None if it is not known."""

    metric: Literal["BLEU"] = "BLEU"
    score: Number
    interval: Number | None = None


class Training(BaseModel):
    """What is known about the training of a model.

    Attributes:
        pairs: the number of training pairs.
        dataset: the name of the dataset; None if the text was files of the user.
    """

    pairs: Annotated[int, Field(ge=0)] | None = None
    dataset: Annotated[str, Field(pattern=_DATASET)] | None = None
    test: Score | None = None


def of_training(model_dir: Path, checkpoint: str) -> Training:
    """What a model directory says about a checkpoint of it. The score is None if it was measured
    with another checkpoint. What can't be read is left out."""
    with contextlib.suppress(UserError, OSError):
        record = read(model_dir, model_dir.name)
        tests = [line for line in record.lines("test") if line.get("checkpoint") == checkpoint]
        pairs = record.facts.pairs
        dataset = record.config.data.dataset if record.config else "files"
        return Training(
            pairs=None if pairs is None else max(0, int(pairs)),
            dataset=None if dataset == "files" else dataset,
            test=_score(tests[-1]) if tests else None,
        )
    return Training()


def of_export(folder: Path) -> Training:
    """What an export says about the training of its model; nothing if it says nothing."""
    with contextlib.suppress(UserError, OSError, ValidationError):
        return Training.model_validate_json(ModelDirectory(folder).own(CARD).read_bytes())
    return Training()


def _score(line: dict[str, Any]) -> Score | None:
    """The score of a line of metrics.jsonl."""
    scores = scores_of(line)
    if "bleu" not in scores.values:
        return None
    half = None
    if "bleu" in scores.intervals:
        low, high = scores.intervals["bleu"]
        half = round((high - low) / 2, 2)
    return Score(score=round(scores.values["bleu"], 2), interval=half)


def card_of(
    directory: ModelDirectory,
    checkpoint: str,
    for_transformers: bool = False,
    base_name: str | None = None,
) -> str:
    """Returns the card of a checkpoint: the one in the directory if a person has edited it, and
    otherwise a new one.

    Args:
        for_transformers, base_name: as in `model_card`.

    Raises:
        UserError, UsageError: the directory can't be read.
        ModuleNotFoundError: Jinja2 is not installed.
    """
    if directory.has_edited_card:
        return directory.own(MODEL_CARD).read_bytes().decode("utf-8", errors="replace")
    record = read(directory.path, directory.path.resolve().name)
    config = directory.load_config()
    return sealed_card(model_card(record, config, checkpoint, for_transformers, base_name))


def sealed_card(text: str) -> str:
    """Returns a card with its checksum at the end, by which an edited one is told from it."""
    return sealed(text, "<!-- {} -->")


def model_card(
    record: Record,
    config: Config,
    checkpoint: str,
    for_transformers: bool = False,
    base_name: str | None = None,
) -> str:
    """Returns the card of a run.

    Args:
        checkpoint: the checkpoint to translate with. Only scores of it are shown.
        for_transformers: whether the card is for an export to Hugging Face's `transformers`.
        base_name: of adapters alone, the name of the model that they were trained for.
    """
    splits = {"dev": _dev_line(record, checkpoint), "test": record.last("test")}
    splits = {name: line for name, line in splits.items() if line.get("checkpoint") == checkpoint}
    scores = {split: scores_of(line) for split, line in splits.items()}
    notes = [_code(note) for own in scores.values() for note in own.notes()]
    recipe = dump_yaml(_recipe(config))
    text = render(
        "card.md",
        metadata=dump_yaml(_metadata(record, config, scores.get("test"), for_transformers)),
        origin=_origin(record),
        for_transformers=for_transformers,
        record=record,
        start=record.last("start"),
        config=config,
        checkpoint=checkpoint,
        base_name=base_name,
        parameters=number(record.last("start").get("parameters")),
        scores=scores,
        metrics=METRICS,
        changes=[own for own in changes_of(record) if own.checkpoint == checkpoint],
        notes=list(filter(None, dict.fromkeys(notes))),
        dataset=DATASETS[config.data.dataset],
        files=[Path(path).name for path in record.facts.files.get("train", ())],
        time=None if record.seconds is None else duration(record.seconds),
        recipe=recipe,
        fence="`" * max(3, 1 + max(map(len, re.findall("`+", recipe)), default=0)),
    )
    return visible(text)


def _origin(record: Record) -> dict[str, str]:
    """Returns the name and the license of the model that a run or an import began with; empty if
    it began with none, or only with one of the user's own."""
    line = record.last("origin")
    return {key: _code(line.get(key)) for key in ("name", "license") if _code(line.get(key))}


def _metadata(
    record: Record, config: Config, test: Scores | None, for_transformers: bool
) -> dict[str, Any]:
    """Returns what model hubs read. Only what is known is in it."""
    codes = [primary(code) for code in (config.data.source_lang, config.data.target_lang)]
    languages = [code for code in dict.fromkeys(codes) if _LANGUAGE.fullmatch(code)]
    metadata: dict[str, Any] = {"language": languages} if languages else {}
    metadata |= {
        "library_name": "transformers" if for_transformers else "transformer_mt",
        "pipeline_tag": "translation",
        "tags": ["translation", "transformer", "marian" if for_transformers else "paddlepaddle"],
    }
    origin = _origin(record)
    if _LICENSE.fullmatch(origin.get("license", "")):
        metadata["license"] = origin["license"]
    if _ON_A_HUB.fullmatch(origin.get("name", "")):
        metadata["base_model"] = origin["name"]
    if test is None:
        return metadata
    values = {
        METRICS[key].label: round(value, METRICS[key].digits) for key, value in test.values.items()
    }
    name = "files of the author" if config.data.dataset == "files" else config.data.dataset
    result = {
        "task": {"type": "translation", "name": f"Translation {codes[0]}-{codes[1]}"},
        "dataset": {"type": config.data.dataset, "name": name, "split": "test"},
        "metrics": [
            {"type": label.lower(), "name": label, "value": value}
            for label, value in values.items()
        ],
    }
    return metadata | {
        "metrics": [label.lower() for label in values],
        "model-index": [{"name": record.name, "results": [result]}],
    }


def _dev_line(record: Record, checkpoint: str) -> dict[str, Any]:
    """Returns the scores of a checkpoint on the dev set: with the settings of the search if it was
    compared with an average or with mixes, and otherwise those of its validation."""
    lines = [
        *({**line, "checkpoint": f"step_{line.get('step')}"} for line in record.lines("dev")),
        *(line for line in record.lines("mix") if line.get("set") == "dev"),
        *record.lines("average"),
        *record.lines("best"),
    ]
    return next((line for line in reversed(lines) if line.get("checkpoint") == checkpoint), {})


def _recipe(config: Config) -> dict[str, Any]:
    """Returns the settings that differ from their defaults, without the folders of one computer."""
    recipe: dict[str, Any] = {}
    for name, value in config_file.changed(config).items():
        section, _, key = name.rpartition(".")
        if name == "model_dir":
            value = Path(value).name or "model"
        elif name == "data.root":
            value = "FOLDER"
        elif name == "data.cache":
            continue
        elif isinstance(value, str) and Path(value).is_absolute():
            value = Path(value).name
        (recipe.setdefault(section, {}) if section else recipe)[key] = value
    return recipe


def _code(value: Any) -> str:
    """Returns a value as text of one line that can't end a block of code."""
    return " ".join(str(value or "").split()).replace("`", "'")
