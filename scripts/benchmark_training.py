"""How fast this project trains, beside PaddleNLP's Transformer, on the CPU of this machine.

    .venv/bin/python scripts/benchmark_training.py --data FOLDER > results.md

FOLDER holds a parallel corpus, train.en and train.de (Multi30k's, say). Three things are measured:

- a training step (batch, forward, loss, backward, optimiser), one thread each, on the same batches:
  this project's trainer as `train` runs it, against PaddleNLP's TransformerModel,
  CrossEntropyCriterion and Paddle's Adam;
- whole training with each side's defaults, from the corpus's ids on: `python -m transformer_mt
  train` on all cores, against PaddleNLP's model trained as its machine_translation/transformer
  example does (one process, its own batches, see `example_batches`);
- the peak memory of the two losses, forward and backward.

The two sides take turns, each in a process of its own, so that what else the machine does, and how
warm it is, meets both alike; a ratio is of two neighbours. The side that waits uses no CPU. Speed
is in real target tokens: end-of-sentence counts, padding and begin-of-sentence do not. Results go
to stdout as Markdown, what is going on to stderr. It takes about 15 minutes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarking import (
    Failure,
    Side,
    clear_settings,
    cores,
    exit_code,
    machine,
    say,
    spread,
    table,
    tail,
)

# Nothing else is imported here: the two sides set Paddle up in different ways, and how it is set up
# is decided when it is imported, so each imports it in its own process.


@dataclass(frozen=True)
class Size:
    """A Transformer of both sides; num_layers is that of the encoder and that of the decoder."""

    num_layers: int
    d_model: int
    d_ff: int
    num_heads: int


SIZES = {
    "tiny": Size(num_layers=4, d_model=128, d_ff=256, num_heads=4),
    "base": Size(num_layers=6, d_model=512, d_ff=2048, num_heads=8),
}
VOCAB_SIZE = 8000
# PaddleNLP's example has these, and this project's config the same defaults.
BATCH_TOKENS = 4096
DROPOUT = 0.1
LABEL_SMOOTHING = 0.1
# Of the loss's memory: the vocabulary of WMT14 as PaddleNLP has it.
LOSS_VOCAB_SIZE = 33_708
# Steps of a training run before it is timed.
WARM_UP_STEPS = 2
# Epochs whose batches are known beforehand, more than a round reaches.
PLANNED_EPOCHS = 20

PADDLENLP = "PaddleNLP"
OURS = "transformer_mt"
OURS_SAME_DROPOUT = "transformer_mt, PaddleNLP's dropout"

# Where dropout is applied makes a difference in time; there PaddleNLP has it in two more places.
SAME_DROPOUT = [f"model.attention_dropout={DROPOUT}", f"model.feed_forward_dropout={DROPOUT}"]

NOTES = f"""\
Both have the same widths, heads, layers, tied embeddings, vocabulary, label smoothing and Adam, and
dropout {DROPOUT} on embeddings and on each sub-layer's output. What differs, by each side's
defaults: PaddleNLP has pre-norm, and dropout on the attention weights and inside the feed-forward
layers too; transformer_mt has post-norm and, but for the line that says so, no dropout in these two
places.

Numbers are medians over the rounds (least–greatest); a ratio is that of the two sides in a round.
Utilisation is the FLOPs of the model's matrix products for real tokens, forward and backward, over
what a float32 matrix product of 2048 x 2048 does on the same cores just before. Padding is the
share of padded positions, both sides counted."""


# --------------------------------------------------------------------------------------- the corpus


class Corpus:
    """The encoded corpus, from the file that `Preparation` has written.

    source_lengths, target_lengths: tokens with end-of-sentence, (sentences,). sentence_flops: of
    training on each, (sentences,). batches: sentence numbers of each step of this project's first
    epoch. step_tokens: real target tokens of the steps of PLANNED_EPOCHS.
    """

    def __init__(self, path: Path) -> None:
        with np.load(path) as arrays:
            self.ids = {side: arrays[f"{side}_ids"] for side in ("source", "target")}
            self.offsets = {side: arrays[f"{side}_offsets"] for side in ("source", "target")}
            self.batches = np.split(arrays["batch_sentences"], arrays["batch_ends"][:-1])
            self.step_tokens = arrays["step_tokens"]
            self.sentence_flops = arrays["sentence_flops"]
            self.vocab_size, self.bos, self.eos, self.pad = arrays["vocabulary"].tolist()
        self.source_lengths = np.diff(self.offsets["source"]) + 1
        self.target_lengths = np.diff(self.offsets["target"]) + 1

    def sentence(self, side: str, index: int) -> list[int]:
        start, end = self.offsets[side][index : index + 2]
        return self.ids[side][start:end].tolist()

    def target_tokens(self, sentences: np.ndarray) -> int:
        return int(self.target_lengths[sentences].sum())

    def flops(self, sentences: np.ndarray) -> float:
        return float(self.sentence_flops[sentences].sum())

    def padding(self, batches: list[np.ndarray]) -> float:
        """The share of padded positions, both sides counted, in the arrays of these batches."""
        real = padded = 0
        for lengths in (self.source_lengths, self.target_lengths):
            real += sum(int(lengths[batch].sum()) for batch in batches)
            padded += sum(int(lengths[batch].max()) * len(batch) for batch in batches)
        return 1 - real / padded


def example_batches(
    source_lengths: np.ndarray, target_lengths: np.ndarray, random: np.random.Generator
) -> list[np.ndarray]:
    """The batches of an epoch as PaddleNLP's machine_translation/transformer example makes them.

    With the defaults of its transformer.base.yaml (sort_type global, batch_size 4096 tokens,
    bsz_multi 8, pad_seq 1, shuffle_batch): all sentences sorted by source, then target length; cut
    where rows times the longest sentence of either side would exceed the tokens; each batch is
    cut down to a multiple of 8 rows, and what is over begins the next; the batches are shuffled.

    Args:
        source_lengths, target_lengths: tokens with end-of-sentence, (sentences,).
    """
    order = np.lexsort((target_lengths, source_lengths))
    longer_side = np.maximum(source_lengths, target_lengths)
    batches = []
    rows: list[int] = []
    longest = 0
    for sentence in order.tolist():
        length = int(longer_side[sentence])
        if max(longest, length) * (len(rows) + 1) > BATCH_TOKENS:
            kept = max(len(rows) // 8 * 8, len(rows) % 8)
            batches.append(np.array(rows[:kept]))
            rows = rows[kept:]
            longest = max((int(longer_side[row]) for row in rows), default=0)
        rows.append(sentence)
        longest = max(longest, length)
    batches.append(np.array(rows))
    return [batches[i] for i in random.permutation(len(batches))]


# ------------------------------------------------------------------------------------ the sides


class Preparation:
    """Encodes the corpus with this project's subwords, for both sides."""

    def write(self, recipe: Path, path: Path) -> None:
        from transformer_mt.assembly.training import make_trainer
        from transformer_mt.config import file as config_file
        from transformer_mt.data.prepare import prepare
        from transformer_mt.inspect.flops import training_flops

        config = config_file.load(recipe)
        data = prepare(config)
        trainer = make_trainer(config, data)
        corpus, vocabulary = data.train, data.subwords.target
        source_lengths, target_lengths = (
            side.lengths.astype(np.float64) + 1 for side in (corpus.source, corpus.target)
        )
        flops = training_flops(config.model, vocabulary.size, source_lengths, target_lengths)
        steps = [
            [np.concatenate(update) for update in trainer.plan.epoch_updates(epoch)]
            for epoch in range(PLANNED_EPOCHS)
        ]
        np.savez(
            path,
            source_ids=corpus.source.ids,
            source_offsets=corpus.source.offsets,
            target_ids=corpus.target.ids,
            target_offsets=corpus.target.offsets,
            batch_sentences=np.concatenate(steps[0]),
            batch_ends=np.cumsum([len(step) for step in steps[0]]),
            sentence_flops=flops.total,
            step_tokens=[int(target_lengths[step].sum()) for epoch in steps for step in epoch],
            vocabulary=[vocabulary.size, vocabulary.bos, vocabulary.eos, vocabulary.pad],
        )


class OurSteps:
    """This project's training steps, set up as `train` does it."""

    def __init__(self, recipe: Path, overrides: list[str]) -> None:
        from transformer_mt.assembly.training import make_trainer
        from transformer_mt.config import file as config_file
        from transformer_mt.data.prepare import prepare
        from transformer_mt.runtime import device

        device.use("cpu")
        config = config_file.load(recipe, overrides)
        self.trainer = make_trainer(config, prepare(config))
        self.updates = self.trainer.plan.epoch_updates(0)

    def steps(self, first: int, end: int) -> float:
        """Seconds for the steps of the epoch from `first` to before `end`."""
        started = time.perf_counter()
        for number in range(first, end):
            update = self.trainer.read(0, number, self.updates[number])
            self.trainer.updater.update(update, number + 1)
        return time.perf_counter() - started


class PaddleNLPTraining:
    """PaddleNLP's model, trained as its example does."""

    def __init__(self, size: Size, corpus: Path) -> None:
        import paddle
        from paddlenlp.transformers import CrossEntropyCriterion, TransformerModel

        paddle.set_device("cpu")
        paddle.seed(1)
        self.corpus = Corpus(corpus)
        self.model = TransformerModel(
            src_vocab_size=self.corpus.vocab_size,
            trg_vocab_size=self.corpus.vocab_size,
            max_length=257,
            num_encoder_layers=size.num_layers,
            num_decoder_layers=size.num_layers,
            n_head=size.num_heads,
            d_model=size.d_model,
            d_inner_hid=size.d_ff,
            dropout=DROPOUT,
            weight_sharing=True,
            bos_id=self.corpus.bos,
            eos_id=self.corpus.eos,
            pad_id=self.corpus.pad,
        )
        self.criterion = CrossEntropyCriterion(LABEL_SMOOTHING, self.corpus.pad)
        self.rate = paddle.optimizer.lr.NoamDecay(size.d_model, 4000, 2.0, last_epoch=0)
        self.optimizer = paddle.optimizer.Adam(
            learning_rate=self.rate,
            beta1=0.9,
            beta2=0.997,
            epsilon=1e-9,
            parameters=self.model.parameters(),
            use_multi_tensor=True,
        )
        random = np.random.default_rng(1)
        lengths = self.corpus.source_lengths, self.corpus.target_lengths
        epochs = (example_batches(*lengths, random) for _ in itertools.count())
        self.batches = itertools.chain.from_iterable(epochs)

    def steps(self, first: int, end: int) -> float:
        """Seconds for the steps of this project's first epoch from `first` to before `end`."""
        started = time.perf_counter()
        for batch in self.corpus.batches[first:end]:
            self._step(batch)
        return time.perf_counter() - started

    def train(self, seconds: float) -> tuple[int, float]:
        """Goes on training on the example's batches; returns real target tokens, and seconds."""
        tokens = 0
        started = time.perf_counter()
        for batch in self.batches:
            self._step(batch)
            tokens += self.corpus.target_tokens(batch)
            if time.perf_counter() - started > seconds:
                break
        return tokens, time.perf_counter() - started

    def _step(self, batch: np.ndarray) -> None:
        import paddle

        source, target_input, target_output = map(paddle.to_tensor, self._collate(batch))
        logits = self.model(src_word=source, trg_word=target_input)
        _, loss, _ = self.criterion(logits, target_output)
        loss.backward()
        self.optimizer.step()
        self.optimizer.clear_grad()
        self.rate.step()

    def _collate(self, batch: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Padded source and target input, (batch, len), and labels, (batch, target_len, 1)."""
        bos, eos = [self.corpus.bos], [self.corpus.eos]
        sources = [self.corpus.sentence("source", i) for i in batch]
        targets = [self.corpus.sentence("target", i) for i in batch]
        return (
            self._padded([ids + eos for ids in sources]),
            self._padded([bos + ids for ids in targets]),
            self._padded([ids + eos for ids in targets])[:, :, np.newaxis],
        )

    def _padded(self, rows: list[list[int]]) -> np.ndarray:
        array = np.full((len(rows), max(map(len, rows))), self.corpus.pad, np.int64)
        for index, row in enumerate(rows):
            array[index, : len(row)] = row
        return array


class MatrixProduct:
    """The yardstick: how fast these cores multiply float32 matrices."""

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
    """The memory of a loss of BATCH_TOKENS target tokens, from the logits and back to them."""

    def growth(self, side: str) -> float:
        """Bytes by which the peak of the resident memory grows beyond what the logits take."""
        import paddle

        paddle.set_device("cpu")
        targets = paddle.randint(1, LOSS_VOCAB_SIZE, [BATCH_TOKENS])
        if side == OURS:
            from transformer_mt.runtime import device
            from transformer_mt.training.loss import LabelSmoothedCrossEntropy

            device.use("cpu")
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
    """Bytes of memory that this process has (VmRSS), or has had at its peak (VmHWM)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    raise LookupError(name)


# ------------------------------------------------------------------------------------ processes


def train_ours(
    recipe: Path, folder: Path, seconds: float, step_tokens: np.ndarray
) -> tuple[int, float]:
    """A `train` run that is stopped after some time; returns real target tokens, and seconds.

    Timed by the clock between two lines of metrics.jsonl, one a step.

    Raises:
        Failure: the run has ended by itself.
    """
    model_dir, log = folder / "model", folder / "train.log"
    command = [sys.executable, "-m", "transformer_mt", "train", str(recipe), "--device", "cpu"]
    with open(log, "w") as output:
        process = subprocess.Popen(
            [*command, f"model_dir={model_dir}"], stdout=output, stderr=subprocess.STDOUT
        )
    try:

        def wait_for_step(step: int, moment: float) -> tuple[int, float]:
            """The first step seen from `step` on and not before `moment`, and when it was seen."""
            while True:
                done = _steps_done(model_dir / "metrics.jsonl")
                now = time.perf_counter()
                if done >= step and now >= moment:
                    return done, now
                if process.poll() is not None:
                    raise Failure(f"`transformer_mt train` has ended:\n{tail(log)}")
                time.sleep(0.005)

        first, started = wait_for_step(WARM_UP_STEPS, 0.0)
        # The next step to end after the time is over is the last.
        last, _ = wait_for_step(first, started + seconds)
        last, ended = wait_for_step(last + 1, 0.0)
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(model_dir, ignore_errors=True)
    return int(step_tokens[first:last].sum()), ended - started


def _steps_done(metrics: Path) -> int:
    try:
        whole_lines = metrics.read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return 0
    return json.loads(whole_lines[-1])["step"] if whole_lines else 0


# --------------------------------------------------------------------------------- measurements


@dataclass(frozen=True)
class Round:
    """What was done between two readings of the clock, and the yardstick's FLOP/s just before."""

    tokens: int
    flops: float
    seconds: float
    product_rate: float

    @property
    def speed(self) -> float:
        return self.tokens / self.seconds

    @property
    def utilisation(self) -> float:
        return self.flops / self.seconds / self.product_rate


# The rounds of each side, by its name.
Rounds = dict[str, list[Round]]


class Benchmark:
    """The measurements of one size; its processes live as long as needed."""

    def __init__(self, name: str, options: argparse.Namespace, folder: Path) -> None:
        self.name = name
        self.size = SIZES[name]
        self.options = options
        self.folder = folder
        self.recipe = write_recipe(self.size, options, folder)
        path = folder / "corpus.npz"
        say(f"{name}: encoding the corpus")
        with Side(folder, 1, Preparation) as preparation:
            preparation.ask("write", self.recipe, path)
        self.corpus = Corpus(path)
        self.corpus_path = path

    def run(self) -> tuple[Rounds, Rounds]:
        """The rounds of the steps, and those of whole training."""
        with Side(self.folder, 1, PaddleNLPTraining, self.size, self.corpus_path) as paddlenlp:
            return self._steps(paddlenlp), self._training(paddlenlp)

    def _steps(self, paddlenlp: Side) -> Rounds:
        with (
            Side(self.folder, 1, OurSteps, self.recipe, []) as ours,
            Side(self.folder, 1, OurSteps, self.recipe, SAME_DROPOUT) as ours_same_dropout,
            Side(self.folder, 1, MatrixProduct) as product,
        ):
            sides = {PADDLENLP: paddlenlp, OURS: ours, OURS_SAME_DROPOUT: ours_same_dropout}
            say(f"{self.name}: starting the processes of the steps, and a step of each to warm up")
            product.ask("rate")
            for side in sides.values():
                side.ask("steps", 0, 0)  # while one starts, no other is timed
            warm_up = [side.ask("steps", 0, 1) for side in sides.values()]
            batches = self.corpus.batches[1:]
            count = min(
                max(1, int(self.options.seconds / max(warm_up))),
                max(1, len(batches) // self.options.rounds),
            )
            rounds: Rounds = {name: [] for name in sides}
            for number in range(self.options.rounds):
                first = 1 + number * count % max(1, len(batches) - count + 1)
                sentences = np.concatenate(self.corpus.batches[first : first + count])
                tokens = self.corpus.target_tokens(sentences)
                flops = self.corpus.flops(sentences)
                for name, side in sides.items():
                    product_rate = product.ask("rate")
                    seconds = side.ask("steps", first, first + count)
                    rounds[name].append(Round(tokens, flops, seconds, product_rate))
                self._say_speeds(f"steps, {count} a turn", number, rounds)
        return rounds

    def _training(self, paddlenlp: Side) -> Rounds:
        everything = np.arange(len(self.corpus.target_lengths))
        a_token = self.corpus.flops(everything) / self.corpus.target_tokens(everything)
        rounds: Rounds = {PADDLENLP: [], OURS: []}
        with Side(self.folder, cores(), MatrixProduct) as product:
            product.ask("rate")
            paddlenlp.ask("train", 0.0)
            for number in range(self.options.rounds):
                product_rate = product.ask("rate")
                tokens, seconds = paddlenlp.ask("train", self.options.seconds)
                rounds[PADDLENLP].append(Round(tokens, a_token * tokens, seconds, product_rate))
                product_rate = product.ask("rate")
                tokens, seconds = train_ours(
                    self.recipe, self.folder, self.options.seconds, self.corpus.step_tokens
                )
                rounds[OURS].append(Round(tokens, a_token * tokens, seconds, product_rate))
                self._say_speeds("whole training", number, rounds)
        return rounds

    def _say_speeds(self, what: str, number: int, rounds: Rounds) -> None:
        speeds = ", ".join(f"{name} {its[-1].speed:,.0f}" for name, its in rounds.items())
        say(f"{self.name}: {what}, round {number + 1} of {self.options.rounds}: {speeds} tokens/s")

    def paddings(self) -> dict[str, float]:
        lengths = self.corpus.source_lengths, self.corpus.target_lengths
        examples = example_batches(*lengths, np.random.default_rng(1))
        return {
            PADDLENLP: self.corpus.padding(examples),
            OURS: self.corpus.padding(self.corpus.batches),
        }


def write_recipe(size: Size, options: argparse.Namespace, folder: Path) -> Path:
    """A recipe with the config's defaults for everything but the size, and no end to it."""
    recipe = {
        "model_dir": str(folder / "model"),
        "data": {
            "root": str(options.data.resolve()),
            "source_lang": options.source_lang,
            "target_lang": options.target_lang,
            "held_out": 0,
            "cache": str(folder / "cache"),
        },
        "subword": {"vocab_size": VOCAB_SIZE},
        "model": vars(size),
        "training": {
            "max_steps": 10**9,
            "log_every": 1,
            "validate_every": 10**9,
            "save_every": 10**9,
        },
    }
    path = folder / "recipe.yaml"
    path.write_text(json.dumps(recipe))  # JSON is YAML
    return path


def loss_memory(folder: Path) -> dict[str, float]:
    """Bytes of each loss's peak, see `LossMemory`."""
    say("memory of the losses")
    growth = {}
    for name in (PADDLENLP, OURS):
        with Side(folder, 1, LossMemory) as side:
            growth[name] = side.ask("growth", name)
    return growth


# --------------------------------------------------------------------------------------- output


def speed_table(rounds: Rounds, labels: dict[str, str], paddings: dict[str, float]) -> str:
    """A line for each side; a column for padding if it is given."""
    header = ["", "target tokens/s", "times PaddleNLP", "utilisation"] + ["padding"] * bool(
        paddings
    )
    lines = []
    for name, its in rounds.items():
        ratios = [
            one.speed / other.speed for one, other in zip(its, rounds[PADDLENLP], strict=True)
        ]
        line = [
            labels.get(name, name),
            spread([one.speed for one in its], ",.0f"),
            "1" if name == PADDLENLP else f"**{spread(ratios, '.2f')}**",
            spread([one.utilisation for one in its], ".1%"),
        ]
        lines.append(line + ([f"{paddings[name]:.1%}"] if paddings else []))
    return table(header, lines)


def report(name: str, benchmark: Benchmark, steps: Rounds, training: Rounds) -> Iterator[str]:
    """The results of one size as paragraphs of Markdown."""
    size = benchmark.size
    rates = [one.product_rate / 1e9 for one in steps[OURS]]
    all_rates = [one.product_rate / 1e9 for one in training[OURS]]
    yield (
        f"### {name}: {size.num_layers} + {size.num_layers} layers, d_model {size.d_model}, d_ff "
        f"{size.d_ff}, {size.num_heads} heads, {benchmark.corpus.vocab_size:,} subwords"
    )
    yield f"A training step, one thread (a matrix product: {spread(rates, '.0f')} GFLOP/s):"
    yield speed_table(steps, {}, {})
    yield (
        f"Whole training with each side's defaults on {cores()} cores (a matrix product: "
        f"{spread(all_rates, '.0f')} GFLOP/s):"
    )
    labels = {PADDLENLP: "PaddleNLP, as its example", OURS: "transformer_mt `train`"}
    yield speed_table(training, labels, benchmark.paddings())


def memory_report(growth: dict[str, float]) -> Iterator[str]:
    yield (
        f"### The loss: peak memory for {BATCH_TOKENS:,} target tokens, {LOSS_VOCAB_SIZE:,} "
        "subwords, forward and backward, beside the logits"
    )
    lines = [[name, f"{size / 1e6:,.0f}"] for name, size in growth.items()]
    yield table(["", "MB"], lines)


# ---------------------------------------------------------------------------------- the command


def main() -> None:
    options = parse()
    clear_settings()
    with tempfile.TemporaryDirectory(prefix="benchmark_training-") as name:
        rounds = f"Rounds: {options.rounds}, of {options.seconds:g} s."
        paragraphs = [f"{machine('paddlepaddle', 'paddlenlp')} {rounds}", NOTES]
        for size in options.sizes:
            folder = Path(name) / size
            folder.mkdir()
            benchmark = Benchmark(size, options, folder)
            paragraphs += report(size, benchmark, *benchmark.run())
        paragraphs += memory_report(loss_memory(Path(name)))
    print("\n\n".join(paragraphs))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", metavar="FOLDER", type=Path, required=True, help="holds train.en and train.de"
    )
    parser.add_argument("--source-lang", metavar="LANG", default="en", help="its ending (en)")
    parser.add_argument("--target-lang", metavar="LANG", default="de", help="its ending (de)")
    parser.add_argument(
        "--sizes", nargs="+", choices=SIZES, default=list(SIZES), help="of the model (all of them)"
    )
    parser.add_argument("--rounds", metavar="N", type=int, default=3, help="turns of a side (3)")
    parser.add_argument("--seconds", metavar="S", type=float, default=25.0, help="of a turn (25)")
    options = parser.parse_args()
    for language in (options.source_lang, options.target_lang):
        path = options.data / f"train.{language}"
        if not path.is_file():
            parser.error(f"--data: {path}: there is no such file")
    if options.rounds < 1 or not 0 < options.seconds < float("inf"):
        parser.error("--rounds and --seconds: expected numbers above 0")
    return options


if __name__ == "__main__":
    sys.exit(exit_code(main))
