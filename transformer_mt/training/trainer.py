"""The training loop."""

from __future__ import annotations

import itertools
import math
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import paddle

from transformer_mt import signals
from transformer_mt.assembly import build_model
from transformer_mt.config import Config, TrainingConfig
from transformer_mt.console import on_terminal, progress, say
from transformer_mt.data.batches import (
    Batch,
    collate,
    epoch_batches,
    ordered_batches,
    share,
    updates,
)
from transformer_mt.data.prepare import PreparedData
from transformer_mt.decoding.translator import Translator
from transformer_mt.errors import Interrupted, UserError
from transformer_mt.evaluation.metrics import Scores, score_for
from transformer_mt.model_directory import ModelDirectory
from transformer_mt.training import checkpoint
from transformer_mt.training.loss import LabelSmoothedCrossEntropy
from transformer_mt.training.processes import Processes
from transformer_mt.training.schedule import learning_rate

# Lines of the dev set translated between looks at whether to stop.
DEV_LINES = 200


@dataclass
class Progress:
    """Where a run is: all that the loop counts, saved with every checkpoint."""

    step: int = 0  # updates done
    epoch: int = 0  # the one being read, from 0
    update: int = 0  # updates of it done
    best_bleu: float | None = None


@dataclass
class Meter:
    """Sums since the last line of the log."""

    loss: float = 0.0
    nll: float = 0.0
    tokens: int = 0
    seconds: float = 0.0

    def line(self) -> dict[str, float]:
        return {
            "loss": self.loss / self.tokens,
            "nll": self.nll / self.tokens,
            "perplexity": perplexity(self.nll / self.tokens),
            "tokens_per_second": self.tokens / self.seconds,
        }


def perplexity(nll: float) -> float:
    """exp of the plain negative log-likelihood a token (not of the smoothed loss)."""
    return math.exp(min(nll, 700.0))  # exp(710) is beyond a float


def batch_plan(config: TrainingConfig) -> tuple[int, int]:
    """How many batches an update adds up, and the padded tokens of each."""
    count = -(-config.batch_tokens // config.device_tokens)
    return count, config.batch_tokens // count


def make_optimizer(config: TrainingConfig, model: paddle.nn.Layer) -> paddle.optimizer.Optimizer:
    """The optimiser of the config; the loop sets its rate before every update."""
    common = {
        "learning_rate": 0.0,
        "parameters": model.parameters(),
        "grad_clip": paddle.nn.ClipGradByGlobalNorm(config.clip_norm) if config.clip_norm else None,
    }
    if config.optimizer == "sgd":
        return paddle.optimizer.Momentum(momentum=config.momentum, **common)
    common |= {"beta1": config.betas[0], "beta2": config.betas[1], "epsilon": config.epsilon}
    if config.optimizer == "adam":
        return paddle.optimizer.Adam(**common)
    return paddle.optimizer.AdamW(weight_decay=config.weight_decay, **common)


class Trainer:
    """Trains one model on prepared data, as one of `processes`."""

    def __init__(self, config: Config, data: PreparedData, processes: Processes) -> None:
        self.config = config
        self.data = data
        self.processes = processes
        self.progress = Progress()
        # The same weights everywhere, then a dropout of its own in each process.
        paddle.seed(config.training.seed)
        self.model = build_model(config.model, data.subwords)
        paddle.seed(config.training.seed + processes.rank)
        self.optimizer = make_optimizer(config.training, self.model)
        self.criterion = LabelSmoothedCrossEntropy(
            config.training.label_smoothing, data.subwords.target.pad
        )

    # ----------------------------------------------------------------------------- the plan

    def epoch_updates(self, epoch: int) -> list[list[np.ndarray]]:
        """The updates of an epoch, each the sentence numbers of its batches."""
        count, tokens = batch_plan(self.config.training)
        corpus = self.data.train
        batches = epoch_batches(
            corpus.source.lengths, corpus.target.lengths, tokens, self.config.training.seed, epoch
        )
        return updates(batches, count)

    def total_steps(self) -> int:
        """The updates of the whole run. Every epoch has as many: the sorted lengths, which the cuts
        follow from, are the same."""
        training = self.config.training
        ends = [training.max_steps] if training.max_steps else []
        if training.max_epochs:
            ends.append(training.max_epochs * len(self.epoch_updates(0)))
        return min(ends)

    # ------------------------------------------------------------------------------ a step

    def update(self, batches: list[np.ndarray], meter: Meter) -> bool:
        """One update of the weights from the gradient of all its batches, in all processes.

        The loss is that of a target token: its sum over the batches is divided by the real target
        tokens of the whole update, which every process knows from the plan.

        Returns whether any of the processes has been asked to stop: all hear of it at the same
        step, so that none waits for one that is gone.

        Raises:
            UserError: the loss is not finite; the weights are left as they were.
        """
        started = time.perf_counter()
        tokens = sum(int((self.data.train.target.lengths[b] + 1).sum()) for b in batches)
        loss_sum = nll_sum = 0.0
        self.model.train()
        for sentences in share(batches, self.processes.rank, self.processes.world_size):
            loss, nll = self.losses(collate(self.data.train, sentences, self.data.subwords))
            (loss / tokens).backward()
            loss_sum += float(loss)
            nll_sum += float(nll)
        stopping = signals.pending() is not None
        loss_sum, nll_sum, stopping = self.processes.sum(loss_sum, nll_sum, stopping)
        if not math.isfinite(loss_sum):
            raise UserError(
                f"the loss of step {self.progress.step + 1} is not a number any more: training "
                "has diverged. Lower training.learning_rate, raise training.warmup_steps, or set "
                "training.clip_norm. Checkpoints saved before are whole"
            )
        self.processes.sum_gradients(self.model)
        self.optimizer.set_lr(self.rate(self.progress.step + 1))
        self.optimizer.step()
        self.optimizer.clear_grad()
        self.progress.step += 1
        self.progress.update += 1
        meter.loss += loss_sum
        meter.nll += nll_sum
        meter.tokens += tokens
        meter.seconds += time.perf_counter() - started
        return stopping > 0

    def losses(self, batch: Batch) -> tuple[paddle.Tensor, paddle.Tensor]:
        """Summed smoothed loss and negative log-likelihood of a batch."""
        source = paddle.to_tensor(batch.source)
        hidden = self.model.decode(
            paddle.to_tensor(batch.target_input), self.model.encode(source), source
        )
        # Only real positions go on to the vocabulary, the widest and most costly part.
        targets = batch.target_output.reshape(-1)
        real = np.flatnonzero(targets != self.data.subwords.target.pad)
        hidden = hidden.reshape([-1, hidden.shape[-1]]).gather(paddle.to_tensor(real))
        return self.criterion(self.model.generator(hidden), paddle.to_tensor(targets[real]))

    def rate(self, step: int) -> float:
        return learning_rate(step, self.config.training, self.config.model.d_model)

    # ------------------------------------------------------------------------------ the run

    def run(self, directory: ModelDirectory) -> None:
        """Trains to the end, saving and validating into `directory` on the way.

        Raises:
            Interrupted: after saving a checkpoint, if a signal came.
        """
        training = self.config.training
        total = self.total_steps()
        meter = Meter()
        with signals.held_back(), progress(total=total, title="training", unit="steps") as bar:
            for epoch in itertools.count(self.progress.epoch):
                self.progress.epoch = epoch
                plan = self.epoch_updates(epoch)
                for batches in plan[self.progress.update :]:
                    stopping = self.update(batches, meter)
                    bar.update()
                    step = self.progress.step
                    is_end = step == total
                    if step % training.log_every == 0 or is_end:
                        self._log(directory, meter, total, bar)
                        meter = Meter()
                    if not stopping and (step % training.validate_every == 0 or is_end):
                        self._validate(directory)
                    if step % training.save_every == 0 or is_end or stopping:
                        self._save(directory)
                    if is_end:
                        return
                    if stopping:
                        self._say_stopped(directory)
                        # If it was another process that was asked, it was by the launcher.
                        raise Interrupted(signals.pending() or signal.SIGTERM)
                self.progress.update = 0

    def _say_stopped(self, directory: ModelDirectory) -> None:
        if self.processes.is_first:
            say(
                f"stopped at step {self.progress.step}, which is saved. To translate with it: "
                f"bash scripts/translate.sh {directory.path} FILE"
            )

    def _log(self, directory: ModelDirectory, meter: Meter, total: int, bar) -> None:
        step = self.progress.step
        if not self.processes.is_first:
            return
        line = meter.line()
        rate = self.rate(step)
        directory.log(
            kind="train", step=step, epoch=self.progress.epoch, learning_rate=rate, **line
        )
        numbers = (
            f"epoch {self.progress.epoch + 1}  loss {line['loss']:.3f}  "
            f"ppl {line['perplexity']:.2f}  lr {rate:.2e}  "
            f"{line['tokens_per_second']:,.0f} tokens/s"
        )
        if on_terminal():
            bar.set_postfix_str(numbers)
            return
        left = (total - step) * meter.seconds / min(step, self.config.training.log_every)
        say(f"step {step:,}/{total:,}  {numbers}  {left / 60:.0f} min left")

    def _save(self, directory: ModelDirectory) -> Path:
        path = directory.checkpoints / f"step_{self.progress.step}"
        if self.processes.is_first and not path.is_dir():
            state = vars(self.progress)
            checkpoint.save(directory, self.progress.step, self.model, self.optimizer, state)
            checkpoint.remove_old(directory, self.config.training.keep_last)
        return path

    # --------------------------------------------------------------------------- validation

    def _validate(self, directory: ModelDirectory) -> None:
        """Dev loss and BLEU; the checkpoint with the highest BLEU becomes the best."""
        if self.data.dev is None or not self.processes.is_first:
            return
        nll, loss = self.dev_loss()
        scores = self.dev_scores()
        if scores is None:
            return
        progress_ = self.progress
        is_best = progress_.best_bleu is None or scores.bleu > progress_.best_bleu
        say(
            f"step {progress_.step:,}  dev loss {loss:.3f}  ppl {perplexity(nll):.2f}  "
            f"BLEU {scores.bleu:.2f}{'  (best so far)' if is_best else ''}"
        )
        directory.log(
            kind="dev",
            step=progress_.step,
            loss=loss,
            nll=nll,
            perplexity=perplexity(nll),
            bleu=scores.bleu,
            chrf=scores.chrf,
            signature=scores.signature,
        )
        if is_best:
            progress_.best_bleu = scores.bleu
            directory.set_best(self._save(directory))

    def dev_loss(self) -> tuple[float, float]:
        """Negative log-likelihood and smoothed loss of a dev token, in nats."""
        corpus = self.data.dev
        nll_sum = loss_sum = 0.0
        tokens = 0
        self.model.eval()
        with paddle.no_grad():
            for sentences in ordered_batches(
                corpus.source.lengths,
                corpus.target.lengths,
                batch_plan(self.config.training)[1],
            ):
                batch = collate(corpus, sentences, self.data.subwords)
                loss, nll = self.losses(batch)
                loss_sum += float(loss)
                nll_sum += float(nll)
                tokens += batch.target_tokens
        return nll_sum / tokens, loss_sum / tokens

    def dev_scores(self) -> Scores | None:
        """BLEU and chrF of the dev set; None if a signal came, for then they are not waited for."""
        config = self.config
        beam_size = config.evaluation.validation_beam_size
        translator = Translator(
            self.model,
            self.data.subwords,
            config.decoding.model_copy(update={"beam_size": beam_size}),
            config.data.max_length,
            config.data.target_lang,
        )
        sources = [source for source, _ in self.data.dev_split]
        with progress(total=len(sources), title="validating", unit="lines") as bar:
            hypotheses = []
            for window in range(0, len(sources), DEV_LINES):
                if signals.pending():
                    return None
                part = sources[window : window + DEV_LINES]
                hypotheses += translator.translate(part, bar.update)
        return score_for(config, hypotheses, self.data.dev_split.references())


def seconds_per_step(trainer: Trainer, seconds: float = 10.0) -> float:
    """Measures some steps of a trainer that is thrown away afterwards.

    Raises:
        UserError: the corpus makes no update at all.
    """
    plan = trainer.epoch_updates(0)
    if not plan:
        raise UserError("there is no batch to train on")
    trainer.update(plan[0], Meter())  # the first step allocates, and tells nothing
    meter = Meter()
    started = time.perf_counter()
    for steps, batches in enumerate(itertools.cycle(plan), 1):
        trainer.update(batches, meter)
        if time.perf_counter() - started > seconds:
            return meter.seconds / steps
    raise AssertionError
