"""Validation: the loss of the dev set, and the scores of its translations."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import paddle

from transformer_mt.config.schema import Config
from transformer_mt.data.batches import collate, ordered_batches
from transformer_mt.data.prepare import PreparedData
from transformer_mt.decoding.translator import Translator
from transformer_mt.evaluation.metrics import Scores, score_for
from transformer_mt.runtime import signals
from transformer_mt.runtime.console import progress
from transformer_mt.training.state import perplexity
from transformer_mt.training.update import Updater

# Lines that a process translates before it checks whether it was asked to stop.
DEV_LINES = 100
# The scores of the model itself; those of its translations are better if they are higher.
LOWER_IS_BETTER = ("loss", "nll", "perplexity")


@dataclass(frozen=True)
class DevScores:
    """loss and nll (smoothed and plain) in nats per target token, perplexity; BLEU and chrF, with
    their signatures."""

    loss: float
    nll: float
    perplexity: float
    bleu: float
    chrf: float
    signature: str
    chrf_signature: str

    def by(self, metric: str) -> float:
        """Returns the score by a metric as a number of which higher is better."""
        value = getattr(self, metric)
        if math.isnan(value):
            return -math.inf
        return -value if metric in LOWER_IS_BETTER else value


def validate(config: Config, data: PreparedData, updater: Updater) -> DevScores | None:
    """Measures the dev set in all processes together; None if one of them was asked to stop."""
    nll, loss = dev_loss(config, data, updater)
    scores = dev_scores(config, data, updater)
    if scores is None:
        return None
    signatures = scores.signature, scores.chrf_signature
    return DevScores(loss, nll, perplexity(nll), scores.bleu, scores.chrf, *signatures)


def dev_loss(config: Config, data: PreparedData, updater: Updater) -> tuple[float, float]:
    """Returns the negative log-likelihood and the smoothed loss per dev token, in nats."""
    corpus, processes = data.dev, updater.processes
    lengths = corpus.source.lengths, corpus.target.lengths
    decoded = updater.objective.decoded_lengths(config, *lengths)
    batches = ordered_batches(lengths[0], decoded, config.training.device_tokens)
    updater.model.eval()

    def own_share() -> tuple[float, float, int]:
        nll_sum = loss_sum = 0.0
        tokens = 0
        with paddle.no_grad():
            for sentences in batches[processes.rank :: processes.world_size]:
                batch = collate(corpus, sentences, data.subwords)
                loss, nll = updater.losses(batch)
                loss_sum += float(loss)
                nll_sum += float(nll)
                tokens += batch.target_tokens
        return nll_sum, loss_sum, tokens

    shares = processes.gather_work(own_share)
    nll_sum, loss_sum, tokens = map(sum, zip(*shares, strict=True))
    return nll_sum / tokens, loss_sum / tokens


def dev_scores(config: Config, data: PreparedData, updater: Updater) -> Scores | None:
    """Translates the dev set and scores it; None if a process was asked to stop meanwhile."""
    processes = updater.processes
    beam_size = config.evaluation.validation_beam_size
    translator = Translator(
        updater.objective.engine(data.subwords),
        data.subwords,
        config.decoding.model_copy(update={"beam_size": beam_size, "n_best": 1, "sampling": False}),
        config.data.max_length,
        config.data.target_lang,
    )
    sources, references = data.dev_split.text
    hypotheses = [""] * len(sources)
    count = processes.world_size
    with progress(total=len(sources), title="validating", unit="lines") as bar:
        for window in range(0, len(sources), DEV_LINES * count):
            if processes.any(signals.pending() is not None):
                return None
            # Of each window of lines, every process translates every `count`th one.
            end = min(window + DEV_LINES * count, len(sources))
            own = slice(window + processes.rank, end, count)
            shares = processes.gather_work(partial(translator.translate, sources[own]))
            for rank, share in enumerate(shares):
                hypotheses[window + rank : end : count] = share
            bar.update(end - window)
    return score_for(config, hypotheses, references)
