"""The scores of a row's runs, and what docs/results keeps of them."""

from __future__ import annotations

import json
import statistics
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from transformer_mt import __version__
from transformer_mt.config import file as config_file
from transformer_mt.config.file import dump_yaml
from transformer_mt.config.schema import Config, TrainingConfig
from transformer_mt.config.text import DataConfig
from transformer_mt.data.datasets import DATASETS
from transformer_mt.data.normalization import LC_NORM_TOK, lc_norm_tok
from transformer_mt.export.registry import split_model
from transformer_mt.model_directory import DATA_FACTS, LOG, ModelDirectory
from transformer_mt.scoring.metrics import LC_NORM_TOK_NOTE, SACREBLEU, score, score_for
from transformer_mt.utils.console import duration
from transformer_mt.utils.errors import UserError
from transformer_mt.utils.files import lines, write_atomically
from transformer_mt.utils.folders import sha256
from transformer_mt.weights import WEIGHTS

from .row import SCORES, Places, Row, find
from .steps import Run, runs_of

PACKAGES = ("paddlepaddle", "sentencepiece", "sacrebleu", "sacremoses")
# The other files of a row's folder.
CONFIG, DEV_CURVE = "config.yaml", "dev.tsv"
# The columns of DEV_CURVE, which are keys of metrics.jsonl. They follow the seed.
_CURVE = ("step", "seconds", "loss", "bleu", "chrf")


def scores_in(
    row: Row, config: Config, hypotheses: list[str], references: list[str]
) -> dict[str, dict[str, Any]]:
    """Scores translations of the test set in each protocol of the row, with 95 % intervals.

    Returns: for each protocol, the scores under the keys of metrics.jsonl.
    """
    scores = {}
    for protocol in row.protocols:
        if protocol == LC_NORM_TOK and not DATASETS[config.data.dataset].is_lc_norm_tok:
            form = lc_norm_tok(config.data.target_lang)
            texts = list(map(form, hypotheses)), [list(map(form, references))]
            found = score(*texts, "none", LC_NORM_TOK_NOTE, confidence=True)
        else:  # as the config of the model says, whose text may be in the form
            found = score_for(config, hypotheses, references, confidence=True)
        scores[protocol] = found.as_dict()
    return scores


def of_runs(row: Row, places: Places, seeds: list[int]) -> dict[str, Any]:
    """Returns the content of scores.json for some seeds of a row, whose runs have ended.

    Raises:
        UserError: a file of a run is missing or damaged.
    """
    found: dict[str, Any] = {"seeds": {}, "data": {}}
    for seed in seeds:
        model = ModelDirectory(row.model_of(places, seed))
        hypotheses = list(lines(row.hypothesis_of(places, seed)))
        references = list(lines(model.own("test.reference")))
        checkpoint = model.checkpoint()
        start = next(line for line in _logged(model) if line["kind"] == "start")
        runs = _runs_for(row, places, seed)
        found["seeds"][str(seed)] = {
            "scores": scores_in(row, model.load_config(), hypotheses, references),
            **_named(checkpoint),
            "ensemble": list(map(_member, row.ensemble_of(places, seed))),
            "seconds": round(sum(run.seconds for run in runs)),
            "cpu_hours": round(sum(run.cpu_seconds for run in runs) / 3600, 4),
            "machine": {key: start[key] for key in ("device_name", "cores", "memory_gb")},
            "versions": {"transformer_mt": __version__, "python": start["python"]}
            | {package: version(package) for package in PACKAGES},
        }
        found["data"] |= _checksums(model, places)
    return found


def keep(row: Row, places: Places, found: dict[str, Any]) -> None:
    """Writes what is published of some seeds of a row into its folder: the scores, the translations
    of the test set, the course of the scores on the dev set, and the config. Seeds that the folder
    has already stay there.

    Raises:
        UserError: those were trained on another text or with another config. Nothing is written.
    """
    seeds = [int(seed) for seed in found["seeds"]]
    configs = [ModelDirectory(row.model_of(places, seed)).load_config() for seed in seeds]
    config = dump_yaml(_relative(_without_places(configs[0]).model_dump(), f"{places.runs}/"))
    curve = [line for seed in seeds for line in _dev_curve(row, places, seed)]
    if row.is_recorded:
        then = recorded(row)
        _require_equal(row, "data", then["data"], found["data"])
        # The file is read, so that a key which was added since then has its default.
        known = config_file.dump(config_file.load(row.folder / CONFIG))
        _require_equal(row, "config", known, config)
        found = {**found, "seeds": dict(sorted((then["seeds"] | found["seeds"]).items()))}
        for line in (row.folder / DEV_CURVE).read_text("utf-8").splitlines()[1:]:
            if int(line.split("\t")[0]) not in seeds:
                curve.append(line)
    curve.sort(key=lambda line: [float(value) for value in line.split("\t")[:2]])
    for seed in seeds:
        text = "".join(f"{line}\n" for line in lines(row.hypothesis_of(places, seed)))
        write_atomically(hypothesis_file(row, seed), text)
    text = "".join(f"{line}\n" for line in ("\t".join(("seed", *_CURVE)), *curve))
    write_atomically(row.folder / DEV_CURVE, text)
    write_atomically(row.folder / CONFIG, config)
    write_atomically(row.folder / SCORES, json.dumps(found, indent=1) + "\n")


def hypothesis_file(row: Row, seed: int) -> Path:
    """Returns the file that keeps a seed's translations of the test set."""
    return row.folder / f"seed_{seed}.hypothesis"


def recorded(row: Row) -> dict[str, Any]:
    """Returns the content of the row's scores.json."""
    return json.loads((row.folder / SCORES).read_text("utf-8"))


class Summary(NamedTuple):
    """The scores of all seeds in one protocol and one metric.

    Attributes:
        values: the score of each seed.
        half_width: half the width of the 95 % interval by bootstrap, the mean of the seeds'.
    """

    values: list[float]
    half_width: float

    @property
    def mean(self) -> float:
        return statistics.mean(self.values)

    def __str__(self) -> str:
        """Returns "41.20 ± 1.60", and the standard deviation if there are several seeds."""
        text = f"{self.mean:.2f} ± {self.half_width:.2f}"
        if len(self.values) > 1:
            text += f", σ {statistics.stdev(self.values):.2f}"
        return text

    def contains(self, value: float) -> bool:
        """Returns whether a value is in the interval."""
        return abs(value - self.mean) <= self.half_width


def summary(found: dict[str, Any], protocol: str, metric: str) -> Summary:
    """Summarises the content of a scores.json."""
    scores = [seed["scores"][protocol] for seed in found["seeds"].values()]
    widths = [(upper - lower) / 2 for lower, upper in (own["intervals"][metric] for own in scores)]
    return Summary([own[metric] for own in scores], statistics.mean(widths))


def table_line(row: Row) -> str:
    """Returns the line of docs/results.md about a row that was recorded."""
    found = recorded(row)
    columns = [f"`{row.name}`", row.title]
    for protocol, metric in ((SACREBLEU, "bleu"), (SACREBLEU, "chrf"), (LC_NORM_TOK, "bleu")):
        known = protocol in row.protocols
        columns.append(str(summary(found, protocol, metric)) if known else "–")
    seeds = list(found["seeds"].values())
    seconds = statistics.mean(seed["seconds"] for seed in seeds)
    number = (
        f"{len(seeds)}" if len(seeds) == len(row.seeds) else f"{len(seeds)} of {len(row.seeds)}"
    )
    columns.append(f"{duration(seconds)} × {number}")
    columns.append(f"{sum(seed['cpu_hours'] for seed in seeds):.2f}")
    names = {seed["machine"]["device_name"].replace("(R)", "") for seed in seeds}
    columns.append(", ".join(sorted(names)))
    return f"| {' | '.join(columns)} |"


def _runs_for(row: Row, places: Places, seed: int) -> list[Run]:
    """Returns all steps that ran for a seed of a row, also those that other seeds need too."""
    needed = [(find(name), seeds) for name, seeds in row.needs.items()]
    runs = []
    for other, seeds in (*needed, (row, [seed])):
        commands = other.commands(places, seeds)
        runs += [run for run in runs_of(places.of(other.name)) if run.command in commands]
    return runs


def _dev_curve(row: Row, places: Places, seed: int) -> list[str]:
    """Returns the lines of DEV_CURVE about a seed."""
    model = ModelDirectory(row.model_of(places, seed))
    dev = [line for line in _logged(model) if line["kind"] == "dev"]
    return ["\t".join(f"{v:.6g}" for v in (seed, *map(line.get, _CURVE))) for line in dev]


def _require_equal(row: Row, name: str, then: object, now: object) -> None:
    if then != now:
        raise UserError(
            f"{row.folder}: the seeds there have another {name} than these runs, so one table "
            f"can't hold both. Train all seeds, remove {SCORES} from this folder, and record them"
        )


def _logged(model: ModelDirectory) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines(model.own(LOG))]


def _named(checkpoint: Path) -> dict[str, str]:
    """Returns what tells a checkpoint from all others."""
    return {"checkpoint": checkpoint.name, "sha256": sha256(checkpoint / WEIGHTS)}


def _member(model: str) -> dict[str, str]:
    """Returns what tells a model of an ensemble, DIR or DIR:NAME, from all others."""
    folder, checkpoint = split_model(model)
    return {"model": Path(folder).name, **_named(ModelDirectory(folder).checkpoint(checkpoint))}


def _checksums(model: ModelDirectory, places: Places) -> dict[str, str]:
    """Returns the SHA-256 of each file of text that a model was trained on or scored with. Files
    that a step of a row wrote are left out: another computer rounds otherwise and writes others."""
    facts = json.loads(model.own(DATA_FACTS).read_text("utf-8"))
    paths = {Path(path) for split in facts["files"].values() for path in split}
    given = sorted(path for path in paths if not path.is_relative_to(places.runs))
    return {path.name: sha256(path) for path in given}


def _without_places(config: Config) -> Config:
    """Returns a config without the folders of one computer, and with the default seed."""
    data = config.data.model_copy(update={"cache": DataConfig.model_fields["cache"].default})
    if data.root is not None and Path(data.root).is_absolute():
        root = "FOLDER" if DATASETS[data.dataset].needs_root else None
        data = data.model_copy(update={"root": root})
    training = config.training.model_copy(
        update={"seed": TrainingConfig.model_fields["seed"].default}
    )
    return config.model_copy(update={"data": data, "training": training, "model_dir": "runs/model"})


def _relative(value: Any, folder: str) -> Any:
    """Returns the values of a config, where models and texts of other steps are given by their
    paths in a folder."""
    if isinstance(value, dict):
        return {key: _relative(own, folder) for key, own in value.items()}
    if isinstance(value, list):
        return [_relative(own, folder) for own in value]
    return value.removeprefix(folder) if isinstance(value, str) else value
