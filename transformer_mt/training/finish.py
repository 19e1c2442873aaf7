"""The end of a training run: the choice of the model to translate with and of its decoding
settings, and the score of the test set."""

import os

import paddle

from transformer_mt.config.schema import Config
from transformer_mt.data.corpus import Split
from transformer_mt.data.prepare import PreparedData
from transformer_mt.model_directory import ModelDirectory
from transformer_mt.scoring.groups import Group, spread
from transformer_mt.scoring.metrics import MANY_LINES, METRICS, Scores
from transformer_mt.scoring.significance import paired_tests
from transformer_mt.scoring.suspicions import suspicions
from transformer_mt.scoring.tokenizers import score_for, tokenizer_for
from transformer_mt.training import checkpoint, tune
from transformer_mt.training.folder import RunDirectory
from transformer_mt.training.validate import metrics_of
from transformer_mt.translator import Translator
from transformer_mt.utils.console import progress, say, show, warn


def finish(config: Config, data: PreparedData, directory: RunDirectory) -> None:
    """Averages checkpoints and chooses decoding settings, if the config asks for it, and scores the
    test set."""
    if config.training.average_last is not None:
        _average(config, data, directory)
    if config.decoding.tune:
        tune.choose(directory, threads=len(os.sched_getaffinity(0)), device=paddle.get_device())
    if data.test_split is not None:
        score_test(config, data, directory)


def _average(config: Config, data: PreparedData, directory: RunDirectory) -> None:
    """Averages the last checkpoints. The average becomes the checkpoint to translate with, unless
    the best checkpoint is better on the dev set by more than chance. (It was chosen on this dev
    set, and partly by luck. On other text, averages are usually better.)"""
    asked = config.training.average_last
    count = min(asked, len(directory.saved_checkpoints()))
    if count < asked:
        warn(f"training.average_last: {asked}: only {count} checkpoints exist; using those")
    best = directory.best()
    average = checkpoint.average(directory, "last", count)
    if data.dev_split is None or best is None:
        directory.set_best(average)
        return
    # Both are scored with the beam of decoding, because validations use another one.
    translations = []
    for path, kind in ((average, "average"), (best, "best")):
        scores, _, hypotheses, references = _score(
            config, data.dev_split, directory, path.name, "dev set"
        )
        translations.append(hypotheses)
        directory.log(kind=kind, checkpoint=path.name, **scores.as_dict())
        if path == average:
            for message in suspicions(None, hypotheses, [references], scores):
                warn(f"dev set: {message}")
        brief = "  ".join(scores.labelled())
        say(f"dev set, beam {config.decoding.beam_size}, {path.name}: {brief}")
    metric = config.training.best_metric if config.training.best_metric in METRICS else "bleu"
    # Some of very many lines tell the same, and fit into the memory.
    lines = Group("", spread(len(references), MANY_LINES))
    systems = [lines.of(own) for own in translations]
    (compared,) = paired_tests(systems, [lines.of(references)], tokenizer_for(config), [metric])
    difference = compared.scores[1].difference
    is_best_better = difference.is_significant and difference.gain > 0
    chosen = best if is_best_better else average
    directory.set_best(chosen)
    how = "significantly" if is_best_better else "not significantly"
    say(f"{best.name} is {how} better than the average (p = {difference.p:.3f})")
    say(f"{chosen.name} is the model to translate with")


def score_test(config: Config, data: PreparedData, directory: RunDirectory) -> None:
    """Translates the test set with the best checkpoint and prints the score and some samples."""
    chosen = directory.checkpoint()
    scores, sources, hypotheses, references = _score(
        config, data.test_split, directory, chosen.name, "test set", with_interval=True
    )
    for message in suspicions(sources, hypotheses, [references], scores):
        warn(f"test set: {message}")
    texts = {"source": sources, "reference": references, "hypothesis": hypotheses}
    for name, text in texts.items():
        directory.write_lines(f"test.{name}", text)
    directory.log(kind="test", checkpoint=chosen.name, **scores.as_dict())
    for index in spread(len(sources), config.evaluation.samples):
        show(f"source      {sources[index]}")
        show(f"translation {hypotheses[index]}")
        show(f"reference   {references[index]}\n")
    show(f"test set, {chosen.name}: {scores}")


def _score(
    config: Config,
    split: Split,
    directory: ModelDirectory,
    name: str,
    title: str,
    with_interval: bool = False,
) -> tuple[Scores, list[str], list[str], list[str]]:
    """Translates a split with a checkpoint.

    Args:
        with_interval: whether the scores get confidence intervals. Those of more than MANY_LINES
            lines would need gigabytes, and are left out.

    Returns: the scores, and the sources, hypotheses and references.
    """
    sources, references = split.text
    translator = Translator.load(directory.path, name, device=paddle.get_device())
    with progress(total=len(sources), title=f"{title}, {name}", unit="lines") as bar:
        hypotheses = translator.translate(sources, bar.update)
    confidence = with_interval and len(references) <= MANY_LINES
    scores = score_for(
        config, hypotheses, references, metrics=metrics_of(config), confidence=confidence
    )
    return scores, sources, hypotheses, references
