"""How fast this project trains on this machine's CPU, compared with PaddleNLP's Transformer.

    .venv/bin/python scripts/benchmark_training.py --data FOLDER > results.md

FOLDER holds a parallel corpus, train.en and train.de (Multi30k's, for example). Three things are
measured:

- a training step (batch, forward, loss, backward, optimiser) with one thread on the same batches:
  this project's trainer as `train` runs it, and PaddleNLP's TransformerModel and
  CrossEntropyCriterion with Paddle's Adam;
- whole training with the defaults of each, from the encoded corpus on: `python -m transformer_mt
  train` on all cores, and PaddleNLP's model trained as its machine_translation/transformer example
  does (one process, its own batches, see `example_batches`);
- the peak memory of the two losses, forward and backward.

The competitors take turns, each in a process of its own, so that the state of the machine affects
both alike. Waiting processes use no CPU. Results go to stdout as Markdown, progress to stderr. The
benchmark takes about 15 minutes.

PyTorch's nn.Transformer can be a third competitor in whole training. It is installed in an
environment of its own, here TORCH, so that the libraries of PyTorch and Paddle do not meet. A round
of whole training then has two more turns, or four with bfloat16:

    python3 -m venv TORCH
    TORCH/bin/pip install torch numpy --index-url https://download.pytorch.org/whl/cpu
    .venv/bin/python scripts/benchmark_training.py --data FOLDER --peer torch \
        --torch-python TORCH/bin/python > results.md

How to read the results

Both models have the same widths, heads, layers, tied embeddings, vocabulary, label smoothing and
Adam, and a dropout of 0.1 on the embeddings and on the output of each sub-layer. Their defaults
differ: PaddleNLP has pre-norm, and dropout on the attention weights and inside the feed-forward
layers. transformer_mt has post-norm and no dropout in these two places, except in the line that
names it.

Speed is in real target tokens: end-of-sentence counts, padding and begin-of-sentence do not.
Numbers are medians over the rounds (minimum–maximum). A ratio is computed within a round.
Utilisation is the FLOP/s of the model's matrix products for real tokens, forward and backward,
divided by the FLOP/s of a float32 matrix product of 2048 x 2048 on the same cores just before.
Padding is the share of padded positions on both sides.

PyTorch gets the best case. Its model and its dropout are those of transformer_mt, with label
smoothing and fused Adam, and without torch.compile. Its batches are made in advance and have no
padding, so it needs no masks of padding: a step has as many sentences as transformer_mt's, but all
have the mean length of that step. Its two ways to use all cores are one process with a thread per
core, and one process per core, which share the sentences of a step. Those processes do not exchange
gradients, which would take time, and the sum of their speeds counts. bfloat16 is torch.autocast's,
on a processor that has instructions for it; its utilisation is relative to float32, too.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import harness, paddlenlp_competitor, torch_competitor
from benchmarks.harness import OURS, Failure, Turn, Worker, cores, positive, say, spread
from benchmarks.padding import padding_share
from benchmarks.paddlenlp_competitor import BATCH_TOKENS, DROPOUT, LABEL_SMOOTHING, Text
from benchmarks.torch_competitor import PYTORCH

# The `model` section of the config. Encoder and decoder have num_layers layers each.
SIZES = {
    "tiny": {"num_layers": 4, "d_model": 128, "d_ff": 256, "num_heads": 4},
    "base": {"num_layers": 6, "d_model": 512, "d_ff": 2048, "num_heads": 8},
}
VOCAB_SIZE = 8000
# For the memory of the loss: PaddleNLP's vocabulary of WMT14.
LOSS_VOCAB_SIZE = 33_708
# Steps of `train` before its time is taken.
WARM_UP_STEPS = 2
# Epochs whose batches are computed in advance, more than a round reaches.
PLANNED_EPOCHS = 20

PADDLENLP = "PaddleNLP"
# PaddleNLP applies dropout in two more places, which takes time.
SAME_DROPOUT = [f"model.attention_dropout={DROPOUT}", f"model.feed_forward_dropout={DROPOUT}"]


@dataclass(frozen=True)
class Corpus:
    """The encoded corpus, and what follows from its lengths.

    Attributes:
        arguments: of PaddleNLP's model.
        batches: indices of the sentences of each step of this project's first epoch.
        step_tokens: real target tokens of the steps of PLANNED_EPOCHS.
        flops: of training on each sentence, (sentences,).
        paddings: the share of padded positions of PaddleNLP's and of this project's batches.
    """

    source: Text
    target: Text
    arguments: dict[str, Any]
    batches: list[np.ndarray]
    step_tokens: np.ndarray
    flops: np.ndarray
    paddings: list[float]


class OurTraining:
    """This project's training steps, prepared as `train` does it."""

    def __init__(self, recipe: Path, overrides: list[str]) -> None:
        from transformer_mt.config.file import load as load_config
        from transformer_mt.data.prepare import prepare
        from transformer_mt.training.loop import Trainer
        from transformer_mt.utils.device import use as use_device

        use_device("cpu")
        self.config = load_config(recipe, overrides)
        self.data = prepare(self.config)
        self.trainer = Trainer(self.config, self.data)
        self.updates = self.trainer.plan.epoch_updates(0)

    def steps(self, first: int, end: int) -> float:
        """Takes the steps of the first epoch from `first` to before `end`; returns seconds."""
        started = time.perf_counter()
        for number in range(first, end):
            update = self.trainer.read(0, number, self.updates[number])
            self.trainer.updater.apply(update, number + 1)
        return time.perf_counter() - started

    def corpus(self) -> Corpus:
        """The corpus for the benchmark and for PaddleNLP."""
        from transformer_mt.model.costs import FlopCounter

        train, model = self.data.train, self.config.model
        source, target = (
            Text(np.array(side.ids), np.array(side.offsets))
            for side in (train.source, train.target)
        )
        lengths = source.lengths, target.lengths
        arguments = paddlenlp_competitor.model_arguments(model, self.data.subwords, max_length=257)
        epochs = [self.trainer.plan.epoch_updates(epoch) for epoch in range(PLANNED_EPOCHS)]
        steps = [[np.concatenate(update) for update in epoch] for epoch in epochs]
        example = paddlenlp_competitor.example_batches(*lengths, np.random.default_rng(1))
        return Corpus(
            source,
            target,
            arguments={**arguments, "normalize_before": True},  # PaddleNLP's default
            batches=steps[0],
            step_tokens=np.array([lengths[1][step].sum() for epoch in steps for step in epoch]),
            flops=FlopCounter(model, arguments["trg_vocab_size"], *lengths).training().total,
            paddings=[padding_share(train, batches) for batches in (example, steps[0])],
        )


class MatrixProduct:
    """Measures how fast the cores multiply float32 matrices."""

    def __init__(self) -> None:
        import paddle

        paddle.set_device("cpu")
        self.matrix = paddle.rand([2048, 2048])

    def rate(self) -> float:
        """FLOP/s, the median of some products."""
        seconds = []
        for _ in range(8):
            started = time.perf_counter()
            self.matrix @ self.matrix
            seconds.append(time.perf_counter() - started)
        return 2 * 2048**3 / float(np.median(seconds))


class LossMemory:
    """Measures the memory of a loss of BATCH_TOKENS target tokens, forward and backward."""

    def growth(self, name: str) -> int:
        """Bytes by which the peak of the resident memory exceeds the memory with the logits."""
        import paddle

        paddle.set_device("cpu")
        targets = paddle.randint(1, LOSS_VOCAB_SIZE, [BATCH_TOKENS])
        if name == OURS:
            from transformer_mt import kernels
            from transformer_mt.training.objective import LabelSmoothedCrossEntropy
            from transformer_mt.utils.device import use as use_device

            use_device("cpu")
            kernels.choose()
            criterion = LabelSmoothedCrossEntropy(LABEL_SMOOTHING, pad_id=0)
            logits = paddle.uniform([BATCH_TOKENS, LOSS_VOCAB_SIZE])
        else:
            from paddlenlp.transformers import CrossEntropyCriterion

            criterion = CrossEntropyCriterion(LABEL_SMOOTHING, pad_idx=0)
            logits = paddle.uniform([128, BATCH_TOKENS // 128, LOSS_VOCAB_SIZE])
            targets = targets.reshape([128, -1, 1])
        logits.stop_gradient = False
        before = _resident("VmRSS")
        criterion(logits, targets)[0].backward()
        return _resident("VmHWM") - before


def _resident(name: str) -> int:
    """Bytes of resident memory of this process: VmRSS is the current value, VmHWM the peak."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(rf"{name}:\s+(\d+) kB", status)[1]) * 1024


# --------------------------------------------------------------------------------- measurements


@dataclass(frozen=True)
class TrainingTurn(Turn):
    """A turn that trained on `amount` real target tokens.

    Attributes:
        flops: of the model's matrix products for these tokens.
        product_rate: the FLOP/s of a matrix product just before.
    """

    flops: float
    product_rate: float

    @property
    def utilisation(self) -> float:
        return self.flops / self.seconds / self.product_rate


Turns = dict[str, list[TrainingTurn]]


def measure(options: argparse.Namespace, folder: Path) -> Iterator[str]:
    harness.check_corpus(options)
    about = harness.machine("paddlepaddle", "paddlenlp")
    if options.peer:
        about += f" {PYTORCH} {torch_competitor.version_of(options.torch_python)}."
        if "bfloat16" not in torch_competitor.precisions():
            about += (
                f" This processor has no instructions for bfloat16, which {PYTORCH} would only"
                " emulate, so bfloat16 is not measured."
            )
    yield f"{about} Rounds: {options.rounds}, of {options.seconds:g} s."
    for size in options.sizes:
        (folder / size).mkdir()
        yield from Comparison(size, options, folder / size).results()
    yield (
        f"### The loss: peak memory for {BATCH_TOKENS:,} target tokens, {LOSS_VOCAB_SIZE:,} "
        "subwords, forward and backward, without the logits"
    )
    lines = []
    for name in (PADDLENLP, OURS):
        with Worker(folder, 1, LossMemory) as loss:
            lines.append([name, f"{loss.ask('growth', name) / 1e6:,.0f}"])
    yield harness.table(["", "MB"], lines)


class Comparison:
    """The measurements of one size of the model."""

    def __init__(self, size: str, options: argparse.Namespace, folder: Path) -> None:
        self.size = size
        self.options = options
        self.folder = folder
        never = 10**9
        training = {"max_steps": never, "validate_every": never, "save_every": never}
        self.recipe = harness.write_recipe(
            folder,
            options,
            data={"held_out": 0},
            subword={"vocab_size": VOCAB_SIZE},
            model=SIZES[size],
            training={**training, "log_every": 1},
        )
        say(f"{size}: encoding the corpus")
        with Worker(folder, 1, OurTraining, self.recipe, []) as ours:
            self.corpus: Corpus = ours.ask("corpus")

    def results(self) -> Iterator[str]:
        corpus, size = self.corpus, SIZES[self.size]
        yield (
            f"### {self.size}: {size['num_layers']} + {size['num_layers']} layers, d_model "
            f"{size['d_model']}, d_ff {size['d_ff']}, {size['num_heads']} heads, "
            f"{corpus.arguments['trg_vocab_size']:,} subwords"
        )
        arguments = corpus.arguments, corpus.source, corpus.target, corpus.batches
        kind = paddlenlp_competitor.PaddleNLPTraining
        with Worker(self.folder, 1, kind, *arguments) as paddlenlp:
            steps = self.steps(paddlenlp)
            yield f"A training step, one thread ({product_rates(steps)}):"
            yield speed_table(steps)
            training = self.training(paddlenlp)
        title = f"Whole training with the defaults of each on {cores()} cores"
        yield f"{title} ({product_rates(training)}):"
        yield speed_table(training, corpus.paddings)

    def steps(self, paddlenlp: Worker) -> Turns:
        """Training steps on the same batches, with one thread."""
        with (
            Worker(self.folder, 1, OurTraining, self.recipe, []) as ours,
            Worker(self.folder, 1, OurTraining, self.recipe, SAME_DROPOUT) as ours_same_dropout,
            Worker(self.folder, 1, MatrixProduct) as product,
        ):
            workers = {
                PADDLENLP: paddlenlp,
                OURS: ours,
                f"{OURS}, PaddleNLP's dropout": ours_same_dropout,
            }
            say(f"{self.size}: starting the processes of the steps, with one step of each")
            for worker in workers.values():
                worker.ask("steps", 0, 0)
            product.ask("rate")
            slowest = max(worker.ask("steps", 0, 1) for worker in workers.values())
            batches, rounds = len(self.corpus.batches) - 1, self.options.rounds
            count = max(1, min(int(self.options.seconds / slowest), batches // rounds))

            def turn(worker: Worker, number: int) -> TrainingTurn:
                first = 1 + number * count % max(1, batches - count + 1)
                sentences = np.concatenate(self.corpus.batches[first : first + count])
                tokens = int(self.corpus.target.lengths[sentences].sum())
                product_rate = product.ask("rate")
                seconds = worker.ask("steps", first, first + count)
                flops = float(self.corpus.flops[sentences].sum())
                return TrainingTurn(tokens, seconds, flops, product_rate)

            competitors = {name: partial(turn, worker) for name, worker in workers.items()}
            title = f"{self.size}: {count} steps per turn, target tokens"
            return harness.take_turns(title, rounds, competitors)

    def training(self, paddlenlp: Worker) -> Turns:
        """Whole training with the defaults of each competitor, on all cores."""
        corpus = self.corpus
        flops_per_token = corpus.flops.sum() / corpus.target.lengths.sum()
        train_paddlenlp = partial(paddlenlp.ask, "train")
        train_ours = partial(run_train, self.recipe, self.folder, corpus.step_tokens)
        with Worker(self.folder, cores(), MatrixProduct) as product, self.torch() as train_torch:
            say(f"{self.size}: starting the processes of whole training, with one step of each")
            product.ask("rate")
            for train in (train_paddlenlp, *train_torch.values()):
                train(0.0)

            def turn(train: Callable[[float], tuple[int, float]], number: int) -> TrainingTurn:
                product_rate = product.ask("rate")
                tokens, seconds = train(self.options.seconds)
                return TrainingTurn(tokens, seconds, flops_per_token * tokens, product_rate)

            competitors = {
                f"{PADDLENLP}, as its example": partial(turn, train_paddlenlp),
                f"{OURS} `train`": partial(turn, train_ours),
                **{name: partial(turn, train) for name, train in train_torch.items()},
            }
            title = f"{self.size}: whole training, target tokens"
            return harness.take_turns(title, self.options.rounds, competitors)

    def torch(self) -> AbstractContextManager[dict[str, torch_competitor.Train]]:
        """The competitors of PyTorch, while their processes run; none without --peer torch."""
        if not self.options.peer:
            return nullcontext({})
        corpus, python = self.corpus, self.options.torch_python
        eos = corpus.arguments["eos_id"]
        batches = torch_competitor.dense_batches(corpus.source, corpus.target, corpus.batches, eos)
        return torch_competitor.competitors(python, self.folder, cores(), corpus.arguments, batches)


def run_train(
    recipe: Path, folder: Path, step_tokens: np.ndarray, seconds: float
) -> tuple[int, float]:
    """Runs `train` for some time.

    The time is taken between two lines of metrics.jsonl, which has one per step, and starts after
    WARM_UP_STEPS or more.

    Args:
        step_tokens: real target tokens of each step.

    Returns:
        Real target tokens, and seconds.

    Raises:
        Failure: the run has ended by itself.
    """
    model_dir, log = folder / "model", folder / "train.log"
    command = [sys.executable, "-m", "transformer_mt", "train", recipe, "--device", "cpu"]
    with open(log, "w") as output:
        streams = {"stdout": output, "stderr": subprocess.STDOUT}
        process = subprocess.Popen(command, cwd=harness.ROOT, **streams)
    first = last = 0
    started = float("inf")
    try:
        while process.poll() is None:
            step, now = steps_done(model_dir / "metrics.jsonl"), time.perf_counter()
            if not first and step >= WARM_UP_STEPS:
                first, started = step, now
            elif step > last and now - started >= seconds:
                return int(step_tokens[first:step].sum()), now - started
            last = step
            time.sleep(0.005)
        raise Failure(f"`transformer_mt train` has ended:\n{harness.tail(log)}")
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(model_dir, ignore_errors=True)


def steps_done(metrics: Path) -> int:
    """The number of the last step in metrics.jsonl."""
    if not metrics.exists():
        return 0
    whole_lines = metrics.read_bytes().split(b"\n")[:-1]
    return json.loads(whole_lines[-1])["step"] if whole_lines else 0


# --------------------------------------------------------------------------------------- output


def product_rates(turns: Turns) -> str:
    _, ours, *_ = turns.values()
    rates = spread([turn.product_rate / 1e9 for turn in ours], ".0f")
    return f"a matrix product: {rates} GFLOP/s"


def speed_table(turns: Turns, paddings: list[float] | None = None) -> str:
    """A line for each competitor, PaddleNLP first.

    There is a column for the padding, if that of PaddleNLP and of this project is given, and one
    for the ratio to PyTorch's best speed in each round, if PyTorch is among the competitors.
    """
    header = ["", "target tokens/s", "times PaddleNLP", "utilisation"]
    baseline = next(iter(turns))
    lines = []
    for name, its in turns.items():
        speeds = spread([turn.speed for turn in its], ",.0f")
        utilisations = spread([turn.utilisation for turn in its], ".1%")
        ratio = harness.ratio(turns, name, baseline)
        lines.append([name, speeds, ratio, utilisations])
    if paddings:
        header.append("padding")
        # PyTorch's lines are the last ones.
        for line, padding in zip_longest(lines, paddings, fillvalue=0.0):
            line.append(f"{padding:.1%}")
    if torch_turns := [its for name, its in turns.items() if name.startswith(PYTORCH)]:
        rounds = zip(*torch_turns, strict=True)
        best = [max(turns_of_round, key=lambda turn: turn.speed) for turns_of_round in rounds]
        header.append(f"times {PYTORCH}'s best")
        for line, name in zip(lines, turns, strict=True):
            line.append(harness.ratio({**turns, "best": best}, name, "best"))
    return harness.table(header, lines)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    harness.add_corpus(parser, "en", "de")
    sizes = list(SIZES)
    parser.add_argument("--sizes", nargs="+", choices=sizes, default=sizes, help="models (all)")
    number = {"metavar": "N", "type": positive(int)}
    parser.add_argument("--rounds", **number, default=3, help="turns of each competitor (3)")
    number["type"] = positive(float)
    parser.add_argument("--seconds", **number, default=25.0, help="length of a turn (25)")
    parser.add_argument("--peer", choices=["torch"], help="another competitor: PyTorch")
    meaning = "Python of an environment with torch and numpy (this one)"
    parser.add_argument("--torch-python", metavar="PATH", default=sys.executable, help=meaning)


if __name__ == "__main__":
    harness.run(__doc__, add_arguments, measure)
