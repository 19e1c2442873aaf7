"""How fast and how well this project translates, compared with PaddleNLP with the same weights.

    .venv/bin/python scripts/benchmark_decoding.py MODEL_DIR --source FILE --reference FILE > out.md

MODEL_DIR holds a trained model, FILE is one side of a test set (Multi30k's test2016, for example).
The weights are copied into PaddleNLP's InferTransformerModel. Nothing is measured unless the logits
of the two models agree. Then all competitors translate the same lines, with beams of 5 and of 1:

- with one thread each, in batches of many lines, and line by line;
- with the defaults of each, in batches: this project on all cores, PaddleNLP on one, because it
  cannot use more.

The competitors are PaddleNLP's searches v1 and v2, this project's `Translator`, and its other
engines whose packages are installed. They take turns, each in a process of its own, so that the
state of the machine affects all alike. Results go to stdout as Markdown, progress to stderr. With
1,000 lines and a small model the benchmark takes about 25 minutes.

How to read the results

All competitors have the same weights in float32, except where a line says int8, and the same
subwords. Outputs have at most 20 subwords more than their source (PaddleNLP: than the longest
source of the batch). Scores are divided by ((5 + length) / 6)^1, except in v1, which has no length
penalty. transformer_mt batches by its config, and is timed from text to text. PaddleNLP is timed
from ids to ids; its batches consist of sentences of nearly equal length, and have the number of
rows that was fastest in a trial with 8, 16, 32, 64 and 128. PaddleNLP's v1 fails on Paddle 3 when
its cache is empty; the function that fails is replaced. Importing packages and reading weights is
not timed.

Speeds are medians over the rounds (minimum–maximum). A ratio is computed within a round. Target
tokens are the subwords and end-of-sentence of a competitor's own outputs. The score is the mean
over all lines of log p / ((5 + length) / 6), where p is the probability of a competitor's output
by transformer_mt's model.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks import harness
from benchmarks.harness import OURS, Failure, Turn, Worker, cores, padded, read_lines, say, spread
from benchmarks.paddlenlp_competitor import EXTRA_LENGTH, PaddleNLPTranslation, model_arguments

# The largest accepted difference of the logits, whose standard deviation is about 2.
TOLERANCE = 1e-4
# The number of sentences whose logits are compared.
COMPARED = 32
# The trial that chooses the rows of PaddleNLP's batches: the candidates, lines and repetitions.
BATCH_ROWS = (8, 16, 32, 64, 128)
TUNING_LINES = 128
TRIALS = 2

V1, V2 = "PaddleNLP v1", "PaddleNLP v2"
# The engines that need an export: a name, the package, and the arguments of `export`.
EXPORTS = (
    ("paddle_inference", "paddle", ["--format", "paddle"]),
    ("CTranslate2 float32", "ctranslate2", ["--format", "ctranslate2"]),
    ("CTranslate2 int8", "ctranslate2", ["--format", "ctranslate2", "--quantization", "int8"]),
)

# Seconds, the ids of each output, and the outputs as text or None.
Translated = tuple[float, list[list[int]], list[str] | None]


@dataclass(frozen=True)
class Text:
    """The lines to translate, their references, and their subword ids."""

    sources: list[str]
    references: list[str]
    source_ids: list[list[int]]

    def first(self, count: int) -> Text:
        return Text(self.sources[:count], self.references[:count], self.source_ids[:count])


@dataclass(frozen=True)
class Quality:
    """Mean score, BLEU and its signature, and the number of outputs with an unknown subword."""

    score: float
    bleu: float
    signature: str
    unknown: int


class Judge:
    """This project's model, which encodes the lines, provides the weights, and scores outputs."""

    def __init__(self, model_dir: Path, checkpoint: str | None) -> None:
        from transformer_mt import kernels
        from transformer_mt.decoding.paddle_engine import PaddleEngine
        from transformer_mt.model.variants import build_model
        from transformer_mt.model_directory import ModelDirectory
        from transformer_mt.utils.device import use as use_device
        from transformer_mt.weights import load_weights

        use_device("cpu")
        kernels.choose()
        directory = ModelDirectory(model_dir)
        self.config = directory.load_config()
        self.subwords = directory.load_subwords()
        self.model = build_model(self.config.model, self.subwords)
        load_weights(directory.checkpoint(checkpoint), self.model)
        self.model.eval()
        self.engine = PaddleEngine([self.model], self.subwords)

    def encode(self, sources: list[str], references: list[str]) -> Text:
        """The lines that all can translate: neither empty nor longer than data.max_length."""
        longest = self.config.data.max_length
        encoded = [self.subwords.source.encode(line) for line in sources]
        kept = [i for i, ids in enumerate(encoded) if 0 < len(ids) <= longest]
        return Text(*([rows[i] for i in kept] for rows in (sources, references, encoded)))

    def export(self, text: Text) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """The arguments and the arrays of `PaddleNLPTranslation`."""
        import paddle

        from transformer_mt.model.layers import sinusoids

        source, target = self.subwords.source, self.subwords.target
        positions = max(map(len, text.source_ids)) + 2 + EXTRA_LENGTH
        sources = [[*ids, source.eos] for ids in text.source_ids[:COMPARED]]
        references = [target.encode(line)[: positions - 1] for line in text.references[:COMPARED]]
        arrays = {name: value.numpy() for name, value in self.model.named_parameters()}
        arrays["positions"] = sinusoids(positions, self.config.model.d_model).astype(np.float32)
        arrays["source"] = padded(sources, source.pad)
        arrays["target"] = padded([[target.bos, *ids] for ids in references], target.pad)
        inputs = (paddle.to_tensor(arrays[side]) for side in ("source", "target"))
        with paddle.no_grad():
            arrays["logits"] = self.model(*inputs).numpy()
        return model_arguments(self.config.model, self.subwords, positions), arrays

    def quality(self, text: Text, ids: list[list[int]], outputs: list[str] | None) -> Quality:
        """The quality of the outputs for a text; `outputs` are decoded from `ids` if not given."""
        from transformer_mt.scoring.metrics import score_for

        target = self.subwords.target
        outputs = outputs or [target.decode(row) for row in ids]
        scores = score_for(self.config, outputs, text.references)
        lengths = np.array([len(row) + 1 for row in ids])
        log_probs = self.log_probs(text.source_ids, ids)
        score = float(np.mean(log_probs / ((5 + lengths) / 6)))
        bleu, signature = scores.values["bleu"], scores.signatures["bleu"]
        return Quality(score, bleu, signature, sum(target.unk in row for row in ids))

    def log_probs(self, sources: list[list[int]], outputs: list[list[int]]) -> np.ndarray:
        """The log-probability of each output with its end, given its source: (outputs,)."""
        result = np.zeros(len(outputs))
        order = np.argsort([len(ids) for ids in outputs], kind="stable")
        for batch in np.array_split(order, -(-len(order) // 32)):
            pairs = [sources[i] for i in batch], [outputs[i] for i in batch]
            result[batch] = self.engine.log_probs(*pairs)
        return result


class OurTranslation:
    """This project's `Translator` with one of its engines.

    Args:
        model: a model directory, or an export.
        cores: the number of cores that the engine uses.
    """

    def __init__(self, model: Path, checkpoint: str | None, cores: int) -> None:
        from transformer_mt.export.registry import find as find_engine
        from transformer_mt.model_directory import ModelDirectory
        from transformer_mt.translator import engine_processes

        self.spec = find_engine(model, None, checkpoint, (), cores, "cpu")
        self.stack = contextlib.ExitStack()
        if self.spec.processes > 1:
            self.engine = self.stack.enter_context(engine_processes(self.spec))
        else:
            self.engine = self.spec.load()
        vocabulary = ModelDirectory(model).load_subwords().target
        self.ids = {piece: i for i, piece in enumerate(vocabulary.pieces(range(vocabulary.size)))}

    def translate(self, beam: int, line_by_line: bool, lines: list[str]) -> Translated:
        from transformer_mt.decoding.lines import in_windows
        from transformer_mt.decoding.output import Line
        from transformer_mt.export.registry import with_decoding
        from transformer_mt.translator import Translator

        decoding = {
            "beam_size": beam,
            "length_penalty": 1.0,
            "length_penalty_kind": "gnmt",
            "max_length_ratio": 1.0,
            "max_length_extra": EXTRA_LENGTH,
        }
        translator = Translator(with_decoding(self.spec, decoding), self.engine)
        started = perf_counter()
        # `Translator.translate` does the same, but does not return the subwords.
        windows = ([Line(line)] for line in lines) if line_by_line else in_windows(map(Line, lines))
        outputs = [translation.outputs[0] for translation in translator.stream(windows)]
        seconds = perf_counter() - started
        ids = [[self.ids[piece] for piece in output.pieces] for output in outputs]
        return seconds, ids, [output.text for output in outputs]


# --------------------------------------------------------------------------------- measurements


@dataclass(frozen=True)
class TranslationTurn(Turn):
    """A turn that translated `amount` lines into `tokens` target tokens."""

    tokens: int


def measure(options: argparse.Namespace, folder: Path) -> Iterator[str]:
    check(options)
    packages = ["paddlepaddle", "paddlenlp"] + ["ctranslate2"] * bool(find_spec("ctranslate2"))
    yield f"{harness.machine(*packages)} Rounds: {options.rounds}."
    with contextlib.ExitStack() as stack:
        yield from Comparison(options, folder, stack).results()


class Comparison:
    """All measurements of one model, and the processes of its competitors."""

    def __init__(self, options: argparse.Namespace, folder: Path, stack: contextlib.ExitStack):
        self.options = options
        self.folder = folder
        self.stack = stack
        self.rows: dict[tuple[str, int], int] = {}  # of PaddleNLP's batches, by search and beam
        self.quality: dict[str, Quality] = {}  # of the last measurement, by competitor
        self.judge = self.worker(Judge, options.model_dir, options.checkpoint, threads=cores())

    def worker(self, kind: type, *arguments: Any, threads: int = 1) -> Worker:
        return self.stack.enter_context(Worker(self.folder, threads, kind, *arguments))

    def results(self) -> Iterator[str]:
        options = self.options
        say("reading the model and the text")
        files = [read_lines(path)[: options.lines] for path in (options.source, options.reference)]
        text: Text = self.judge.ask("encode", *files)
        if not text.sources:
            raise Failure("there is no line to translate")
        self.paddlenlp = self.worker(PaddleNLPTranslation, *self.judge.ask("export", text))
        left_out = len(files[0]) - len(text.sources)
        note = f" ({left_out} empty or over-long ones left out)" if left_out else ""
        yield f"{len(text.sources):,} lines{note}. {self.check_logits(len(text.sources))}"
        few = text.first(options.single)
        models, notes = self.models()
        one_core, all_cores = (
            {name: self.worker(OurTranslation, *model, count) for name, model in models.items()}
            for count in (1, cores())
        )
        for worker in (*one_core.values(), *all_cores.values()):
            worker.ask("translate", options.beams[0], False, few.sources)
        for beam in options.beams:
            self.choose_rows(beam, text)
            yield from self.measure("One thread", beam, False, one_core, text)
        for beam in options.beams:
            yield from self.measure("One thread", beam, True, one_core, few)
        for beam in options.beams:
            yield from self.measure(f"Defaults, {cores()} cores", beam, False, all_cores, text)
        yield f"BLEU is sacreBLEU's {self.quality[OURS].signature}"
        yield from notes

    def check_logits(self, lines: int) -> str:
        """Compares the logits of both models.

        Raises:
            Failure: they differ by more than TOLERANCE.
        """
        difference = max(
            self.paddlenlp.ask("difference", search, beam)
            for search in ("v1", "v2")
            for beam in self.options.beams
        )
        found = f"The logits of both models differ by at most {difference:.1e}"
        if not difference <= TOLERANCE:
            raise Failure(f"{found}, so the copied weights are wrong")
        return f"{found}, on {min(COMPARED, lines)} sentences and their references."

    def models(self) -> tuple[dict[str, tuple[Path, str | None]], list[str]]:
        """The arguments of each `OurTranslation`, and notes on exports that failed."""
        model_dir, checkpoint = self.options.model_dir, self.options.checkpoint
        models, notes = {OURS: (model_dir, checkpoint)}, []
        chosen = ["--checkpoint", checkpoint] if checkpoint else []
        for name, package, arguments in EXPORTS:
            if find_spec(package):
                output = self.folder / name
                command = ["export", model_dir, *arguments, "--output", output, *chosen]
                try:
                    harness.program(*command, quiet=True)
                    models[f"{OURS}, {name}"] = (output, None)
                except Failure as failure:
                    notes.append(f"Without {name}, because the export failed: {failure}")
        return models, notes

    def choose_rows(self, beam: int, text: Text) -> None:
        """Finds the rows of PaddleNLP's fastest batches, on lines of medium length."""
        ordered = sorted(text.source_ids, key=len)
        start = max(0, (len(ordered) - TUNING_LINES) // 2)
        lines = ordered[start : start + TUNING_LINES]
        for search in ("v1", "v2"):
            translate = partial(self.paddlenlp.ask, "translate", search, beam)
            translate(1, lines[:1])
            sizes = [rows for rows in BATCH_ROWS if rows <= len(lines)] or BATCH_ROWS[:1]
            # The minimum of the trials, which differ by disturbances only.
            seconds = {
                rows: min(translate(rows, lines)[0] for _ in range(TRIALS)) for rows in sizes
            }
            self.rows[search, beam] = min(sizes, key=seconds.get)
            speeds = ", ".join(f"{rows}: {len(lines) / seconds[rows]:.1f}" for rows in sizes)
            say(f"PaddleNLP {search}, beam {beam}, sentences/s by rows of a batch: {speeds}")

    def measure(
        self, title: str, beam: int, line_by_line: bool, ours: dict[str, Worker], text: Text
    ) -> Iterator[str]:
        """The results of one table."""
        how = "line by line" if line_by_line else "batches"
        title = f"{title}, beam {beam}, {how}, {len(text.sources):,} lines"
        say(f"{title}: warming up")
        competitors: dict[str, Callable[[], Translated]] = {}
        for name, search in ((V1, "v1"), (V2, "v2")):
            rows = 1 if line_by_line else self.rows[search, beam]
            translate = partial(self.paddlenlp.ask, "translate", search, beam, rows)
            translate(text.source_ids[:2])
            competitors[name] = partial(translate, text.source_ids)
        for name, worker in ours.items():
            beams = {name: beam}
            if name == OURS and beam > 1 and not line_by_line:
                # v2 also counts ends that are not among the best of a step. A beam of one more
                # reaches a better score than v2.
                beams[f"{OURS}, beam {beam + 1}"] = beam + 1
            for label, size in beams.items():
                translate = partial(worker.ask, "translate", size, line_by_line, text.sources)
                translate()  # the whole text, so that all processes of a pool start
                competitors[label] = translate
        self.quality = {}

        def turn(name: str, number: int) -> TranslationTurn:
            seconds, ids, outputs = competitors[name]()
            if name not in self.quality:
                self.quality[name] = self.judge.ask("quality", text, ids, outputs)
            return TranslationTurn(len(ids), seconds, sum(len(row) + 1 for row in ids))

        work = {name: partial(turn, name) for name in competitors}
        turns = harness.take_turns(f"{title}, sentences", self.options.rounds, work)
        if not line_by_line:
            v1, v2 = (self.rows[search, beam] for search in ("v1", "v2"))
            title += f" (rows of PaddleNLP's batches: v1 {v1}, v2 {v2})"
        yield from report(title, turns, self.quality)


def report(
    title: str, turns: dict[str, list[TranslationTurn]], quality: dict[str, Quality]
) -> Iterator[str]:
    """A table with a line for each competitor."""
    lines = []
    for name, its in turns.items():
        speeds = spread([turn.speed for turn in its], ".1f")
        tokens = spread([turn.tokens / turn.seconds for turn in its], ",.0f")
        ratios = [harness.ratio(turns, name, baseline) for baseline in (V1, V2)]
        scores = [f"{quality[name].score:.4f}", f"{quality[name].bleu:.2f}"]
        lines.append([name, speeds, *ratios, tokens, *scores])
    header = ["", "sentences/s", "times v1", "times v2", "target tokens/s", "score", "BLEU"]
    yield f"### {title}"
    yield harness.table(header, lines)
    if unknown := [f"{name} {its.unknown}" for name, its in quality.items() if its.unknown]:
        yield f"Outputs with an unknown subword: {', '.join(unknown)}."


# ------------------------------------------------------------------------------------ arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model_dir", metavar="MODEL_DIR", type=Path)
    file = {"metavar": "FILE", "type": Path, "required": True}
    parser.add_argument("--source", **file, help="text to translate")
    parser.add_argument("--reference", **file, help="its translation, line for line")
    parser.add_argument(
        "--checkpoint", metavar="NAME", help="best, last, step_N or average_... (best)"
    )
    number = {"metavar": "N", "type": harness.positive(int)}
    parser.add_argument("--rounds", **number, default=3, help="turns of each competitor (3)")
    parser.add_argument("--lines", **number, help="use the first N lines of the files (all)")
    parser.add_argument("--single", **number, default=100, help="lines for line by line (100)")
    parser.add_argument("--beams", **number, nargs="+", default=[5, 1], help="beam sizes (5 1)")


def check(options: argparse.Namespace) -> None:
    options.model_dir = options.model_dir.resolve()  # `export` runs in another folder
    for path in (options.model_dir / "config.yaml", options.source, options.reference):
        if not path.is_file():
            raise harness.WrongArguments(f"{path}: there is no such file")
    counts = [len(read_lines(path)) for path in (options.source, options.reference)]
    if counts[0] != counts[1]:
        raise harness.WrongArguments(f"--source has {counts[0]:,} lines, --reference {counts[1]:,}")


if __name__ == "__main__":
    harness.run(__doc__, add_arguments, measure)
