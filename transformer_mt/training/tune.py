"""Chooses the length penalty and the beam size of a model on its dev set."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from time import perf_counter
from typing import Literal

from transformer_mt.config import file as config_file
from transformer_mt.config.decoding import DecodingConfig
from transformer_mt.config.schema import Config
from transformer_mt.export import registry
from transformer_mt.export.registry import EngineSpec
from transformer_mt.model_directory import CONFIG, TUNING, ModelDirectory
from transformer_mt.scoring.metrics import METRICS, Scores, require_tokenizer, score_for
from transformer_mt.training.validate import metrics_of, tested_difference
from transformer_mt.translator import translator_of
from transformer_mt.utils import signals
from transformer_mt.utils.console import progress, show
from transformer_mt.utils.errors import UsageError, UserError
from transformer_mt.utils.files import lines, write_atomically
from transformer_mt.utils.folders import sealed

Kind = Literal["gnmt", "average"]
# The exponents that are tried first. 0 is no penalty, which is the same for both kinds.
COARSE: dict[Kind, tuple[float, ...]] = {
    "gnmt": (0.0, 0.5, 1.0, 1.5, 2.0),
    "average": (0.5, 1.0, 1.5),
}
# The distance of the finer exponents from the best one.
FINE = 0.25
BEAM_SIZES = (1, 2, 4, 5, 8, 12)
# The recipe's setting, the coarse ones, two finer ones of each kind, and the beam sizes.
MOST_SETTINGS = 1 + sum(map(len, COARSE.values())) + 2 * len(COARSE) + len(BEAM_SIZES)
# Scores that are equal to this number of digits count as equal.
DIGITS = 2
# The columns of the table of settings.
_COLUMNS = "{:<8} {:>7} {:>5} {:>7} {:>6} {:>8}"


@dataclass(frozen=True)
class Setting:
    """A length penalty and a beam size."""

    length_penalty_kind: Kind
    length_penalty: float
    beam_size: int

    @classmethod
    def of(cls, decoding: DecodingConfig) -> Setting:
        kind, penalty = decoding.length_penalty_kind, decoding.length_penalty
        # Without a penalty the kind makes no difference, and no setting is searched twice.
        return cls(kind if penalty else "gnmt", penalty, decoding.beam_size)

    def __str__(self) -> str:
        return ", ".join(f"{key} {value}" for key, value in asdict(self).items())


@dataclass(frozen=True)
class _Trial:
    """A setting that was tried, and the seconds that the dev set took to translate."""

    scores: Scores
    seconds: float
    hypotheses: list[str]


def require_tunable(config: Config, has_dev_set: bool, subject: str) -> None:
    """
    Args:
        subject: what asks for the choice, for messages.

    Raises:
        UsageError: there is nothing to choose, or nothing to choose it on.
    """
    if config.model.non_autoregressive is not None:
        reason = (
            "a non-autoregressive model has no beam and no length penalty. Its settings are "
            "decoding.iterations and decoding.length_candidates"
        )
    elif config.decoding.sampling:
        reason = "the model draws its outputs at random (decoding.sampling)"
    elif not has_dev_set:
        reason = "there is no dev set to choose on: give data.dev or data.held_out"
    else:
        return
    raise UsageError(f"{subject}: {reason}")


def _dev_set(directory: ModelDirectory) -> tuple[list[str], list[str]]:
    """Returns the sources and references that a model directory keeps, if it has a dev set.

    Raises:
        UserError: they are damaged.
    """
    paths = [directory.own(f"dev/{name}") for name in ("source", "reference")]
    if not all(path.is_file() for path in paths):
        return [], []
    sources, references = (list(lines(path)) for path in paths)
    if not sources or len(sources) != len(references):
        raise UserError(f"{paths[0].parent}: damaged: source and reference differ in length")
    return sources, references


def choose(
    directory: ModelDirectory,
    checkpoint: str | None = None,
    threads: int = 1,
    device: str | None = None,
    dry_run: bool = False,
) -> None:
    """Chooses the length penalty and the beam size on the dev set of a model directory, shows how,
    and writes the choice into its config and everything that was tried into tune.json.

    Nothing is written before the end, so an interrupted search leaves the config as it was.

    Args:
        checkpoint, threads, device: as in `registry.find`.
        dry_run: whether nothing is written.

    Raises:
        UsageError: there is nothing to choose, or nothing to choose it on.
        UserError: the model is damaged.
    """
    config = directory.load_config()
    dev = _dev_set(directory)
    require_tunable(config, bool(dev[0]), str(directory.path))
    require_tokenizer(config)
    spec = registry.find(directory.path, "paddle", checkpoint, (), threads, device)
    # Values that were chosen earlier are chosen again from those of the recipe.
    earlier, current = _recorded(directory), Setting.of(config.decoding)
    own = earlier[0] if earlier and earlier[1] == current else current
    # The loss does not depend on the search.
    key = config.training.best_metric if config.training.best_metric in METRICS else "bleu"
    chosen, tried = _search(registry.with_decoding(spec, {"n_best": 1}), own, config, dev, key)
    label, best, p = METRICS[key].label, tried[chosen], None
    show(f"\nrecipe   {label} {tried[own].scores.values[key]:.2f}  ({own})")
    if chosen == own:
        show("Nothing is better than the values of the recipe, so they stay.")
    else:
        show(f"chosen   {label} {best.scores.values[key]:.2f}  ({chosen})")
        translations = [trial.hypotheses for trial in (tried[own], best)]
        difference = tested_difference(config, key, translations, dev[1])
        p, (low, high) = difference.p, difference.interval
        show(
            f"difference {difference.value:+.2f} {label}, 95 % interval {low:+.2f} to {high:+.2f}: "
            f"{'' if difference.is_significant else 'not '}more than chance (p = {p:.3f})"
        )
    show(best.scores.signatures[key])
    if dry_run:
        show("--dry-run: nothing was written")
        return
    record = {
        "checkpoint": spec.checkpoints[0].name,
        "metric": key,
        "signature": best.scores.signatures[key],
        "lines": len(dev[0]),
        "recipe": asdict(own),
        "chosen": asdict(chosen),
        "p": p,
        "tried": [
            {
                **asdict(setting),
                **trial.scores.values,
                "length_ratio": trial.scores.length_ratio,
                "seconds": round(trial.seconds, 3),
            }
            for setting, trial in tried.items()
        ],
    }
    with signals.held_back():  # both files, or none
        write_atomically(directory.own(TUNING), json.dumps(record, indent=2) + "\n")
        if chosen != current:
            write_atomically(directory.own(CONFIG), sealed(config_file.dump(_with(config, chosen))))
    if chosen != current:
        show(f"{directory.path / CONFIG} has the chosen values now")


def keep_choice(config: Config, directory: ModelDirectory) -> Config:
    """Returns the config of a run that is resumed, with the values that were chosen for its model
    directory, if those of the recipe are still the ones that they were chosen instead of. (If the
    user has changed the recipe's values, the new ones hold.)"""
    recorded = _recorded(directory)
    values = Setting.of(config.decoding), Setting.of(directory.load_config().decoding)
    return _with(config, recorded[1]) if recorded and recorded == values else config


def _with(config: Config, setting: Setting) -> Config:
    decoding = config_file.with_changes(config.decoding, asdict(setting))
    return config.model_copy(update={"decoding": decoding})


def _recorded(directory: ModelDirectory) -> tuple[Setting, Setting] | None:
    """Returns the recipe's setting and the chosen one of tune.json; None if there are none. The
    file may come from anybody."""
    path = directory.own(TUNING)
    if not path.is_file():  # a pipe would wait for a writer
        return None
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        recipe, chosen = (
            Setting.of(config_file.with_changes(DecodingConfig(), asdict(Setting(**record[name]))))
            for name in ("recipe", "chosen")
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError, UsageError):
        return None
    return recipe, chosen


# ---- Searching ----


def tune(own: Setting, n_best: int, score: Callable[[Setting], float]) -> Setting:
    """Returns the best setting of a search by coordinates: first the penalty, from coarse to fine,
    with the beam size of `own`, and then the beam size with the best penalty.

    Of settings with equal scores, the one with the smaller beam is the best, because it is faster;
    then `own`; then the one that was tried first.

    Args:
        own: the setting of the recipe, which is tried first.
        n_best: the smallest beam size, because no output may have more hypotheses than the beam.
        score: is called once for each setting that is tried, at most MOST_SETTINGS times. Higher is
            better.
    """
    scores: dict[Setting, float] = {}

    def best_with(settings: list[Setting]) -> Setting:
        for setting in settings:
            if setting not in scores:
                scores[setting] = round(score(setting), DIGITS)
        # `min` returns the first one of several, and `own` is the first one of all.
        return min(scores, key=lambda tried: (-scores[tried], tried.beam_size))

    coarse = [Setting(kind, x, own.beam_size) for kind, xs in COARSE.items() for x in xs]
    best = best_with([own, *coarse])
    penalty = best.length_penalty
    kinds = (best.length_penalty_kind,) if penalty else tuple(COARSE)
    fine = [
        Setting(kind if x else "gnmt", x, own.beam_size)
        for kind in kinds
        for x in (penalty - FINE, penalty + FINE)
        if 0 <= x <= 10  # the greatest value that the config takes
    ]
    best = best_with(fine)
    return best_with([replace(best, beam_size=size) for size in BEAM_SIZES if size >= n_best])


def _search(
    spec: EngineSpec, own: Setting, config: Config, dev: tuple[list[str], list[str]], key: str
) -> tuple[Setting, dict[Setting, _Trial]]:
    """Searches with the metric `key`. Returns the best setting, and all that were tried, in their
    order."""
    sources, references = dev
    label, sign = METRICS[key].label, 1 if METRICS[key].higher_is_better else -1
    tried: dict[Setting, _Trial] = {}
    show(_COLUMNS.format("kind", "penalty", "beam", label, "ratio", "seconds"))
    with (
        translator_of(spec) as translator,
        progress(total=MOST_SETTINGS * len(sources), title="tuning", unit="lines") as bar,
    ):
        translator.warm_up(spec.processes)

        def score(setting: Setting) -> float:
            started = perf_counter()
            hypotheses = translator.translate(sources, bar.update, **asdict(setting))
            seconds = perf_counter() - started
            scores = score_for(config, hypotheses, references, metrics=metrics_of(config))
            tried[setting] = _Trial(scores, seconds, hypotheses)
            value, ratio, penalty = scores.values[key], scores.length_ratio, setting.length_penalty
            row = _COLUMNS.format(
                setting.length_penalty_kind if penalty else "none",
                f"{penalty:g}",
                setting.beam_size,
                f"{value:.2f}",
                "" if ratio is None else f"{ratio:.3f}",
                f"{seconds:.1f}",
            )
            with bar.external_write_mode():  # above the progress bar
                show(row)
            return sign * value

        return tune(own, config.decoding.n_best, score), tried
