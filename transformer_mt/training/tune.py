"""Chooses the length penalty and the beam size of a model on its dev set."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, Literal

from transformer_mt.config import file as config_file
from transformer_mt.config.decoding import DecodingConfig
from transformer_mt.config.schema import Config
from transformer_mt.export import registry
from transformer_mt.export.registry import EngineSpec
from transformer_mt.model_directory import CONFIG, TUNING, ModelDirectory
from transformer_mt.scoring.groups import Group, spread
from transformer_mt.scoring.metrics import MANY_LINES, METRICS, Metric, Scores
from transformer_mt.scoring.significance import Difference, paired_tests
from transformer_mt.scoring.tokenizers import require_tokenizer, score_for, tokenizer_for
from transformer_mt.training.validate import metrics_of
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
# Scores that are equal to this number of digits count as equal.
DIGITS = 2
# The columns of the table of settings.
_COLUMNS = "{:<8} {:>7} {:>5} {:>7} {:>6} {:>8}"


@dataclass(frozen=True)
class Setting:
    """A length penalty and a beam size."""

    kind: Kind
    penalty: float
    beam_size: int

    @classmethod
    def of(cls, decoding: DecodingConfig) -> Setting:
        kind, penalty = decoding.length_penalty_kind, decoding.length_penalty
        # Without a penalty the kind makes no difference, and no setting is searched twice.
        return cls(kind if penalty else "gnmt", penalty, decoding.beam_size)

    def as_keys(self) -> dict[str, Any]:
        """Returns the keys of the config's section `decoding`."""
        return {
            "length_penalty_kind": self.kind,
            "length_penalty": self.penalty,
            "beam_size": self.beam_size,
        }


@dataclass(frozen=True)
class _Trial:
    """A setting that was tried.

    Attributes:
        value: the score in the metric that decides.
        seconds: how long the dev set took to translate.
    """

    setting: Setting
    value: float
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
        raise UsageError(
            f"{subject}: a non-autoregressive model has no beam and no length penalty. Its "
            "settings are decoding.iterations and decoding.length_candidates"
        )
    if config.decoding.sampling:
        raise UsageError(
            f"{subject}: the model draws its outputs at random (decoding.sampling), without beam "
            "and length penalty; nothing can be chosen"
        )
    if not has_dev_set:
        raise UsageError(
            f"{subject}: there is no dev set to choose on. Train with data.dev or data.held_out"
        )


def dev_set(directory: ModelDirectory) -> tuple[list[str], list[str]] | None:
    """Returns the sources and references that a model directory keeps; None if it has none.

    Raises:
        UserError: they are damaged.
    """
    paths = [directory.own(f"dev/{name}") for name in ("source", "reference")]
    if not all(path.is_file() for path in paths):
        return None
    sources, references = (list(lines(path)) for path in paths)
    if not sources or len(sources) != len(references):
        raise UserError(
            f"{paths[0].parent}: damaged: source has {len(sources):,} lines, and reference has "
            f"{len(references):,}"
        )
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
    dev = dev_set(directory)
    require_tunable(config, dev is not None, str(directory.path))
    assert dev is not None
    require_tokenizer(config)
    spec = registry.find(directory.path, "paddle", checkpoint, (), threads, device)
    # Values that were chosen earlier are chosen again from those of the recipe.
    earlier = _recorded(directory)
    current = Setting.of(config.decoding)
    own = earlier[0] if earlier and earlier[1] == current else current
    trials = _search(registry.with_decoding(spec, {"n_best": 1}), own, config, dev)
    chosen, metric, key = trials.chosen, trials.metric, trials.key
    first, best = trials.tried[own], trials.tried[chosen]
    difference = None
    show(f"\nrecipe   {_described(first, metric)}")
    if chosen == own:
        show("Nothing is better than the values of the recipe, so they stay.")
    else:
        show(f"chosen   {_described(best, metric)}")
        difference = _difference(first, best, dev[1], config, key)
        show(_verdict(difference, metric))
    show(best.scores.signatures[key])
    if dry_run:
        show("--dry-run: nothing was written")
        return
    record = {
        "checkpoint": spec.checkpoints[0].name,
        "metric": key,
        "signature": best.scores.signatures[key],
        "lines": len(dev[0]),
        "recipe": own.as_keys(),
        "chosen": chosen.as_keys(),
        "p": None if difference is None else difference.p,
        "tried": [_as_dict(trial) for trial in trials.tried.values()],
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
    if recorded is None or recorded[0] != Setting.of(config.decoding):
        return config
    if recorded[1] != Setting.of(directory.load_config().decoding):
        return config
    return _with(config, recorded[1])


def _with(config: Config, setting: Setting) -> Config:
    decoding = config_file.with_changes(config.decoding, setting.as_keys())
    return config.model_copy(update={"decoding": decoding})


def _recorded(directory: ModelDirectory) -> tuple[Setting, Setting] | None:
    """Returns the recipe's setting and the chosen one of tune.json; None if there are none. The
    file may come from anybody."""
    path = directory.own(TUNING)
    if not path.is_file():
        return None
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        recipe, chosen = (
            {key: record[name][key] for key in Setting("gnmt", 0.0, 1).as_keys()}
            for name in ("recipe", "chosen")
        )
        defaults = DecodingConfig()
        return (
            Setting.of(config_file.with_changes(defaults, recipe)),
            Setting.of(config_file.with_changes(defaults, chosen)),
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError, UsageError):
        return None


# --------------------------------------------------------------------------------------- searching


def tune(
    own: Setting, n_best: int, score: Callable[[Setting], float], start: Callable[[int], object]
) -> Setting:
    """Returns the best setting of a search by coordinates: first the penalty, from coarse to fine,
    with the beam size of `own`, and then the beam size with the best penalty.

    Of settings with equal scores, the one with the smaller beam is the best, because it is faster;
    then `own`; then the one that was tried first.

    Args:
        own: the setting of the recipe, which is tried first.
        n_best: the smallest beam size, because no output may have more hypotheses than the beam.
        score: is called once for each setting that is tried. Higher is better.
        start: is called with the greatest number of settings that may be tried in all, whenever
            it is known better.
    """
    scores: dict[Setting, float] = {}

    def best() -> Setting:
        # `min` returns the first one of several, and `own` is the first one of all.
        return min(scores, key=lambda one: (-scores[one], one.beam_size))

    def try_all(settings: list[Setting], later: int) -> None:
        new = [setting for setting in dict.fromkeys(settings) if setting not in scores]
        start(len(scores) + len(new) + later)
        for setting in new:
            scores[setting] = round(score(setting), DIGITS)

    coarse = [
        Setting(kind, penalty, own.beam_size)
        for kind, penalties in COARSE.items()
        for penalty in penalties
    ]
    beams = [size for size in BEAM_SIZES if size >= n_best and size != own.beam_size]
    try_all([own, *coarse], 2 + len(beams))
    found = best()
    kinds: tuple[Kind, ...] = (found.kind,) if found.penalty else ("gnmt", "average")
    fine = [
        Setting(kind, found.penalty + step, own.beam_size)
        for kind in kinds
        for step in (-FINE, FINE)
        if 0 <= found.penalty + step <= 10  # the greatest value that the config takes
    ]
    fine = [setting if setting.penalty else replace(setting, kind="gnmt") for setting in fine]
    try_all(fine, len(beams))
    found = best()
    try_all([replace(found, beam_size=size) for size in beams], 0)
    return best()


@dataclass(frozen=True)
class _Trials:
    """What was tried, and what was chosen.

    Attributes:
        tried: in the order in which they were tried.
        key: of `METRICS`, the metric that decides.
    """

    tried: dict[Setting, _Trial]
    chosen: Setting
    key: str

    @property
    def metric(self) -> Metric:
        return METRICS[self.key]


def _search(
    spec: EngineSpec, own: Setting, config: Config, dev: tuple[list[str], list[str]]
) -> _Trials:
    sources, references = dev
    # The loss does not depend on the search.
    key = config.training.best_metric if config.training.best_metric in METRICS else "bleu"
    label, sign = METRICS[key].label, 1 if METRICS[key].higher_is_better else -1
    tried: dict[Setting, _Trial] = {}
    show(_COLUMNS.format("kind", "penalty", "beam", label, "ratio", "seconds"))
    with (
        translator_of(spec) as translator,
        progress(total=None, title="tuning", unit="lines") as bar,
    ):
        translator.warm_up(spec.processes)

        def score(setting: Setting) -> float:
            started = perf_counter()
            hypotheses = translator.translate(sources, bar.update, **setting.as_keys())
            seconds = perf_counter() - started
            scores = score_for(config, hypotheses, references, metrics=metrics_of(config))
            trial = _Trial(setting, scores.values[key], scores, seconds, hypotheses)
            tried[setting] = trial
            with bar.external_write_mode():  # above the progress bar
                show(_row(trial))
            return sign * trial.value

        def start(settings: int) -> None:
            bar.total = settings * len(sources)
            bar.refresh()

        chosen = tune(own, config.decoding.n_best, score, start)
    return _Trials(tried, chosen, key)


def _difference(
    first: _Trial, best: _Trial, references: list[str], config: Config, key: str
) -> Difference:
    # Some of very many lines tell the same, and fit into the memory.
    some = Group("", spread(len(references), MANY_LINES))
    systems = [some.of(first.hypotheses), some.of(best.hypotheses)]
    (compared,) = paired_tests(systems, [some.of(references)], tokenizer_for(config), [key])
    difference = compared.scores[1].difference
    assert difference is not None
    return difference


# ----------------------------------------------------------------------------------------- showing


def _row(trial: _Trial) -> str:
    setting, ratio = trial.setting, trial.scores.length_ratio
    return _COLUMNS.format(
        setting.kind if setting.penalty else "none",
        f"{setting.penalty:g}",
        setting.beam_size,
        f"{trial.value:.2f}",
        "" if ratio is None else f"{ratio:.3f}",
        f"{trial.seconds:.1f}",
    )


def _described(trial: _Trial, metric: Metric) -> str:
    keys = ", ".join(f"{key} {value}" for key, value in trial.setting.as_keys().items())
    return f"{metric.label} {trial.value:.2f}  ({keys})"


def _verdict(difference: Difference, metric: Metric) -> str:
    low, high = difference.interval
    is_more = "more" if difference.is_significant else "not more"
    return (
        f"difference {difference.value:+.2f} {metric.label}, 95 % interval {low:+.2f} to "
        f"{high:+.2f}: {is_more} than chance (p = {difference.p:.3f})"
    )


def _as_dict(trial: _Trial) -> dict[str, Any]:
    return {
        **trial.setting.as_keys(),
        **trial.scores.values,
        "length_ratio": trial.scores.length_ratio,
        "seconds": round(trial.seconds, 3),
    }
