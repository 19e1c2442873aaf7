"""The end of fine-tuning: the choice of a mix of the model before and after it, and what it has
gained and lost."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from transformer_mt.config.schema import Config
from transformer_mt.data.corpus import Split
from transformer_mt.data.prepare import PreparedData
from transformer_mt.model_directory import START
from transformer_mt.scoring.metrics import METRICS, metric_of
from transformer_mt.scoring.significance import MetricComparison, p_number, verdict
from transformer_mt.training import checkpoint
from transformer_mt.training.folder import RunDirectory
from transformer_mt.training.validate import (
    compared_scores,
    deciding_metric,
    metrics_of,
    scored,
)
from transformer_mt.utils.console import say, show, table, warn

# The mixes that are tried, beside the two models themselves: the percentage of the model after.
PERCENTAGES = (20, 40, 60, 80)


def choose_mix(config: Config, data: PreparedData, directory: RunDirectory) -> None:
    """Mixes the weights of the model before fine-tuning with those of the checkpoint to translate
    with, scores the mixes on the dev sets, and translates with the best one from now on.

    The best mix is the one with the highest mean of the scores of `PreparedData.dev_sets`. Without
    data.general_dev, this is the score of the dev set: somebody who gives no other text asks for
    nothing else. With it, a point that is gained on the domain is worth a point that is lost on
    general text. The mean differs from the mean of the two gains by a constant, so neither set
    counts more because its scores are higher. Of equal mixes, the one with more of the fine-tuned
    model is chosen.

    The scores are those of the `deciding_metric`, with the beam of validations, because only their
    differences count and it takes a third of the time. The dev set has also chosen the checkpoint,
    so its scores flatter the choice a little; the test sets do not.
    """
    before, after = directory.checkpoints / START, directory.checkpoint()
    if after.name == START:
        return  # `tell_changes` says so
    key = deciding_metric(config)
    metric = METRICS[key]
    beam_size = config.evaluation.validation_beam_size
    paths, means = {0: before, 100: after}, {}
    rows = [("after", *(f"{kind.replace('_', ' ')} {metric.label}" for kind in data.dev_sets))]
    for percent in (0, *PERCENTAGES, 100):
        if percent not in paths:
            paths[percent] = checkpoint.mix(directory, before, after, percent)
        name, values = paths[percent].name, []
        for kind, dev in data.dev_sets.items():
            scores, _ = scored(config, dev.split, directory, name, beam_size=beam_size)
            share = {"set": kind, "share": percent / 100, "checkpoint": name}
            directory.log(kind="mix", **share, **scores.as_dict())
            values.append(scores.values[key])
        means[percent] = fmean(values) if metric.higher_is_better else -fmean(values)
        rows.append((f"{percent} %", *(f"{value:.{metric.digits}f}" for value in values)))
    chosen = max(means, key=lambda percent: (means[percent], percent))
    directory.set_best(paths[chosen])
    for percent in PERCENTAGES:
        if percent != chosen:
            checkpoint.remove(paths[percent])
    say("mixes of the model before fine-tuning and the model after:")
    say("\n".join(table(rows, ">", indent="  ")))
    of = "the dev set" if len(data.dev_sets) == 1 else "the mean of both dev sets"
    say(f"best on {of}: {chosen} %; {paths[chosen].name} is the model to translate with")


def tell_changes(
    config: Config,
    splits: Sequence[Split],
    translations: Sequence[list[str]],
    directory: RunDirectory,
) -> None:
    """Compares the model before fine-tuning with the model to translate with, on each test set, as
    the command `compare` does. Warns if the general test set has lost by more than chance in any of
    the metrics: chrF often shows a loss that BLEU is too rough to show.

    Args:
        splits: the test sets.
        translations: those of the model to translate with, of each set.
    """
    name = directory.checkpoint().name
    if not (directory.checkpoints / START).is_dir():
        return  # an earlier version of the program has begun this run
    if name == START:
        say("the model before fine-tuning is the best on the dev set, so it stays the one to use")
    metrics = sorted(metrics_of(config), key=lambda key: key != deciding_metric(config))
    rows: list[tuple[str, ...]] = [("", "", "before", "after", "difference", "p")]
    verdicts, lost = [], []
    for split, after in zip(splits, translations, strict=True):
        before = after if name == START else scored(config, split, directory, START)[1]
        directory.write_lines(f"{split.name}.before", before)
        tests = compared_scores(config, metrics, [before, after], split.text[1])
        differences = [(test.metric.label, test.scores[1].difference) for test in tests]
        if split.name == "general_test":
            lost = [label for label, own in differences if own.is_significant and own.gain < 0]
        outcome, text = verdict(
            *("the fine-tuned model", "the model before", differences, len(after)),
            is_identical=before == after,
        )
        title = f"{split.name.replace('_', ' ')} set"
        verdicts.append(f"{title}: {text}")
        directory.log(
            kind="change",
            set=split.name,
            checkpoint=name,
            lines=len(after),
            outcome=outcome,
            verdict=text,
            scores={test.key: _as_dict(test) for test in tests},
        )
        for test in tests:
            rows.append((title, *_row(test)))
    if not splits:
        return
    show("\nbefore and after fine-tuning:")
    show("\n".join(table(rows, "<<", indent="  ")))
    for text in verdicts:
        show(f"  {text}")
    if lost:
        mixed = any(text.general for text in config.data.texts)
        ways = [
            "raise the weight of the general text in data.train"
            if mixed
            else "mix general text into data.train, as a list with weights",
            "train less of the model (training.freeze, or an adapter)",
            "lower training.learning_rate",
        ]
        if not config.training.interpolate:
            ways.append("mix the models before and after (training.interpolate: true)")
        warn(
            f"the model has become worse on general text by more than chance ({', '.join(lost)}). "
            f"If it has to translate such text too: {'; '.join(ways)}"
        )


def _row(test: MetricComparison) -> tuple[str, ...]:
    """The label, the scores before and after, their difference, and its p-value."""
    before, after = test.scores
    digits = metric_of(test.key).digits
    values = (f"{before.value:.{digits}f}", f"{after.value:.{digits}f}")
    difference = after.difference
    return test.metric.label, *values, f"{difference.value:+.{digits}f}", p_number(difference.p)


def _as_dict(test: MetricComparison) -> dict[str, object]:
    """The values of a metric for metrics.jsonl."""
    before, after = test.scores
    return {
        "before": before.value,
        "after": after.value,
        "intervals": [list(before.interval), list(after.interval)],
        "difference": after.difference.value,
        "interval": list(after.difference.interval),
        "p": after.difference.p,
        "signature": test.signatures["bootstrap"],
    }
