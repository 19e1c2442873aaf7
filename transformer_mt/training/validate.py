"""What a run measures: the loss and the scores of the dev set while it trains, and at its end the
choice between checkpoints and the score of the test set."""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import paddle

from transformer_mt.config.schema import Config
from transformer_mt.data.batches import collate, ordered_batches
from transformer_mt.data.corpus import Split
from transformer_mt.data.encoded import EncodedCorpus
from transformer_mt.data.normalization import normalized
from transformer_mt.data.prepare import DevSet, PreparedData
from transformer_mt.data.subword import Subwords
from transformer_mt.decoding.engine import NON_AUTOREGRESSIVE_LIMITS, default_at_once
from transformer_mt.decoding.line_translator import LineTranslator
from transformer_mt.decoding.paddle_engine import engine_of, sentences_in_free_memory
from transformer_mt.scoring.groups import Group, spread
from transformer_mt.scoring.metrics import (
    DEFAULT_METRICS,
    MANY_LINES,
    METRICS,
    NEAR_ZERO_BLEU,
    Scores,
    score_for,
    tokenizer_for,
)
from transformer_mt.scoring.significance import Difference, MetricComparison, paired_tests
from transformer_mt.scoring.suspicions import suspicions
from transformer_mt.training import checkpoint
from transformer_mt.training.folder import RunDirectory
from transformer_mt.training.objective import decoded_lengths
from transformer_mt.training.progress import perplexity
from transformer_mt.training.update import Updater
from transformer_mt.translator import Translator
from transformer_mt.utils import signals
from transformer_mt.utils.console import progress, say, show, warn

# The number of lines that a process translates between checks whether it was asked to stop.
DEV_LINES = 100
GPU_DEV_LINES = 1_000


@dataclass(frozen=True)
class DevScores:
    """The measurements of the dev set.

    Attributes:
        loss, nll: the smoothed loss and the negative log-likelihood, in nats per target token.
        perplexity: exp(nll).
        scores: the scores of the translations.
        hypotheses: the translations, one per line of the dev set.
    """

    loss: float
    nll: float
    perplexity: float
    scores: Scores
    hypotheses: list[str]

    def as_dict(self) -> dict[str, float | str]:
        """Returns the measurements under the keys of metrics.jsonl."""
        losses = {"loss": self.loss, "nll": self.nll, "perplexity": self.perplexity}
        return losses | self.scores.by_key()

    def ranks(self, metric: str) -> list[float]:
        """Returns what decides which of two checkpoints is better: the value of a metric, then
        chrF, then the loss. Higher values are better, so the others are negated.

        A BLEU near zero says nothing: it counts the few words that are right by chance. It counts
        as zero, so chrF decides. A value that is not a number is worse than any other.
        """
        values = self.scores.values | {"loss": self.loss, "perplexity": self.perplexity}
        ranks = []
        for key in dict.fromkeys((metric, "chrf", "loss")):
            value = values.get(key, math.nan)
            if key == "bleu" and value < NEAR_ZERO_BLEU:
                value = 0.0
            if key not in METRICS or not METRICS[key].higher_is_better:
                value = -value
            ranks.append(-math.inf if math.isnan(value) else value)
        return ranks


def metrics_of(config: Config) -> list[str]:
    """Returns the metrics that training computes: the default ones, and training.best_metric."""
    return list(dict.fromkeys([*DEFAULT_METRICS, deciding_metric(config)]))


def deciding_metric(config: Config) -> str:
    """Returns the metric that decides at the end of a run: training.best_metric, or BLEU if that is
    no score of translations."""
    best = config.training.best_metric
    return best if best in METRICS else "bleu"


def validate(config: Config, dev: DevSet, subwords: Subwords, updater: Updater) -> DevScores | None:
    """Measures a dev set, shared by all processes; None if one of them was asked to stop."""
    with updater.final_weights():
        nll, loss = dev_loss(config, dev.encoded, subwords, updater)
        hypotheses = dev_hypotheses(config, dev.split.text[0], subwords, updater)
    if hypotheses is None:
        return None
    scores = score_for(config, hypotheses, dev.split.text[1], metrics=metrics_of(config))
    return DevScores(loss, nll, perplexity(nll), scores, hypotheses)


def dev_loss(
    config: Config, corpus: EncodedCorpus, subwords: Subwords, updater: Updater
) -> tuple[float, float]:
    """Returns the negative log-likelihood and the smoothed loss per target token of a dev set, in
    nats."""
    processes = updater.processes
    lengths = corpus.source.lengths, corpus.target.lengths
    decoded = decoded_lengths(config, *lengths)
    batches = ordered_batches(lengths[0], decoded, config.training.device_tokens)
    updater.model.eval()

    def own_share() -> np.ndarray:
        sums = np.zeros(3)  # of the negative log-likelihood, the loss and the target tokens
        found = []
        with paddle.no_grad():
            for sentences in batches[processes.rank :: processes.world_size]:
                batch = collate(corpus, sentences, subwords)
                loss, nll = updater.losses(batch)
                found.append(paddle.stack([nll, loss]))
                sums[2] += batch.target_tokens
        # They are read at the end, so that a GPU does not wait after each batch.
        for losses in paddle.stack(found).numpy() if found else ():
            sums[:2] += losses
        return sums

    nll, loss, tokens = sum(processes.gather_work(own_share)).tolist()
    return nll / tokens, loss / tokens


def dev_hypotheses(
    config: Config, sources: list[str], subwords: Subwords, updater: Updater
) -> list[str] | None:
    """Translates the sources of a dev set; None if a process was asked to stop."""
    processes = updater.processes
    beam_size = config.evaluation.validation_beam_size
    decoding = config.decoding.model_copy(
        update={
            **{"beam_size": beam_size, "n_best": 1, "sampling": False},
            **{"segmentations": 1, "shortlist": False},
        }
    )
    if paddle.get_device() == "cpu":
        lines, at_once = DEV_LINES, default_at_once
    else:
        vocab_size = subwords.target.size
        lines = GPU_DEV_LINES
        at_once = partial(sentences_in_free_memory, [config.model], vocab_size)
    translator = LineTranslator(
        engine_of([updater.model], subwords),
        subwords,
        config.model_copy(update={"decoding": decoding}),
        at_once,
        # At first, a model may say nothing but the same word, up to the greatest length.
        warn=lambda message, kind: None,
        limits=NON_AUTOREGRESSIVE_LIMITS if config.model.non_autoregressive else None,
    )
    hypotheses = [""] * len(sources)
    count = processes.world_size
    with progress(total=len(sources), title="validating", unit="lines") as bar:
        for window in range(0, len(sources), lines * count):
            if processes.any(signals.pending() is not None):
                return None
            # Each process translates every `count`th line of a window.
            end = min(window + lines * count, len(sources))
            own = slice(window + processes.rank, end, count)
            shares = processes.gather_work(partial(translator.translate, sources[own]))
            for rank, share in enumerate(shares):
                hypotheses[window + rank : end : count] = share
            bar.update(end - window)
    return hypotheses


# ---------------------------------------------------------------------------- the end of a run


def choose_average(config: Config, data: PreparedData, directory: RunDirectory) -> None:
    """Averages the last checkpoints. The average becomes the checkpoint to translate with, unless
    the best checkpoint is better on the dev set by more than chance. (It was chosen on this dev
    set, and partly by luck. On other text, averages are usually better.)"""
    asked = config.training.average_last
    count = min(asked, len(directory.trained_checkpoints()))
    if count < asked:
        warn(f"training.average_last: {asked}: only {count} checkpoints exist; using those")
    best = directory.best()
    average = checkpoint.average(directory, "last", count)
    if data.dev_split is None or best is None:
        directory.set_best(average)
        return
    # Both are scored with the beam of decoding, because validations use another one.
    _, references = data.dev_split.text
    translations = []
    for path, kind in ((average, "average"), (best, "best")):
        scores, hypotheses = scored(config, data.dev_split, directory, path.name)
        translations.append(hypotheses)
        directory.log(kind=kind, checkpoint=path.name, **scores.as_dict())
        if path == average:
            for message in suspicions(None, hypotheses, [references], scores):
                warn(f"dev set: {message}")
        brief = "  ".join(scores.labelled())
        say(f"dev set, beam {config.decoding.beam_size}, {path.name}: {brief}")
    difference = tested_difference(config, deciding_metric(config), translations, references)
    is_best_better = difference.is_significant and difference.gain > 0
    chosen = best if is_best_better else average
    directory.set_best(chosen)
    how = "significantly" if is_best_better else "not significantly"
    say(f"{best.name} is {how} better than the average (p = {difference.p:.3f})")
    say(f"{chosen.name} is the model to translate with")


def tested_difference(
    config: Config, metric: str, translations: list[list[str]], references: list[str]
) -> Difference:
    """Tests whether the second of two translations differs from the first in a metric by more than
    chance."""
    (compared,) = compared_scores(config, [metric], translations, references)
    return compared.scores[1].difference


def compared_scores(
    config: Config, metrics: list[str], translations: list[list[str]], references: list[str]
) -> list[MetricComparison]:
    """Tests whether a translation differs from the first of several by more than chance, in each
    metric. Of very many lines, only some are read, which tell the same and fit into the memory."""
    lines = Group("", spread(len(references), MANY_LINES))
    systems = [lines.of(own) for own in translations]
    own = [normalized(line, config.subword.normalization) for line in lines.of(references)]
    return paired_tests(systems, [own], tokenizer_for(config), metrics)


def score_test(config: Config, split: Split, directory: RunDirectory) -> list[str]:
    """Translates a test set with the checkpoint to translate with, and prints the score and some
    samples. Returns the translations."""
    name = directory.checkpoint().name
    title = split.name.replace("_", " ")
    sources, references = split.text
    # The confidence intervals of more lines would need gigabytes.
    confidence = len(references) <= MANY_LINES
    scores, hypotheses = scored(config, split, directory, name, confidence)
    for message in suspicions(sources, hypotheses, [references], scores):
        warn(f"{title} set: {message}")
    texts = {"source": sources, "reference": references, "hypothesis": hypotheses}
    for side, text in texts.items():
        directory.write_lines(f"{split.name}.{side}", text)
    directory.log(kind=split.name, checkpoint=name, **scores.as_dict())
    for index in spread(len(sources), config.evaluation.samples):
        show(f"source      {sources[index]}")
        show(f"translation {hypotheses[index]}")
        show(f"reference   {references[index]}\n")
    show(f"{title} set, {name}: {scores}")
    return hypotheses


def scored(
    config: Config,
    split: Split,
    directory: RunDirectory,
    name: str,
    confidence: bool = False,
    **decoding: Any,
) -> tuple[Scores, list[str]]:
    """Translates a split with the checkpoint of a name; returns the scores and the translations.

    Args:
        confidence: whether the scores get confidence intervals.
        decoding: settings in place of those of the config.
    """
    sources, references = split.text
    translator = Translator.load(directory.path, name, device=paddle.get_device(), **decoding)
    with progress(total=len(sources), title=f"{split.name} set, {name}", unit="lines") as bar:
        hypotheses = translator.translate(sources, bar.update)
    metrics = metrics_of(config)
    scores = score_for(config, hypotheses, references, metrics=metrics, confidence=confidence)
    return scores, hypotheses
