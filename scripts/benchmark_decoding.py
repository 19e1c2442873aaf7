"""How fast and how well this project translates, beside PaddleNLP's search with the same weights.

    .venv/bin/python scripts/benchmark_decoding.py MODEL_DIR --source FILE --reference FILE > out.md

MODEL_DIR holds a trained model, FILE a test set (Multi30k's test2016, say). The weights are copied
into PaddleNLP's InferTransformerModel; nothing is measured unless the two models' logits agree.
Then all sides translate the same lines, with beams of 5 and of 1:

- one thread each, in batches of many lines, and line by line;
- as whole programs with their defaults, in batches: this project on all cores, PaddleNLP on one,
  for it has no way to use more.

The sides are PaddleNLP's searches v1 and v2, this project's `Translator`, and its other engines
where their packages are installed. They take turns, each in a process of its own, so that what else
the machine does meets all alike; a ratio is of two neighbours. Results go to stdout as Markdown,
what is going on to stderr. With 1,000 lines and a small model it takes about 25 minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import multiprocessing
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarking import (
    ROOT,
    Failure,
    Side,
    clear_settings,
    cores,
    exit_code,
    machine,
    say,
    spread,
    table,
)

# Nothing else is imported here: the sides set Paddle up in different ways, and how it is set up is
# decided when it is imported, so each imports it in its own process.

# An output may be so much longer than its source, in subwords: PaddleNLP's own default.
EXTRA_LENGTH = 20
# Of both models' logits, whose standard deviation is about 2.
TOLERANCE = 1e-4
# Sentences whose logits are compared.
COMPARED = 32
# What PaddleNLP's batches may be, and the lines to choose by, and how often each is tried.
BATCH_ROWS = (8, 16, 32, 64, 128)
TUNING_LINES = 128
TRIALS = 2

V1, V2 = "PaddleNLP v1", "PaddleNLP v2"
OURS = "transformer_mt"

NOTES = f"""\
All sides have the same weights in float32 unless a line says int8, and read and write the same
subwords. Outputs have at most {EXTRA_LENGTH} subwords more than their source (PaddleNLP: than the
longest source of the batch). Scores are divided by ((5 + length) / 6)^1, except in v1, which
has no length penalty. transformer_mt batches by its config, and is timed from text to text;
PaddleNLP is timed from ids to ids, its batches are of sentences of nearly equal length, and have
the number of rows with which it was fastest in a trial ({", ".join(map(str, BATCH_ROWS))}).
Its v1 fails on Paddle 3 when its cache is empty; what fails there is replaced. Nobody's start is
timed, neither the import of packages nor the reading of weights.

Speeds are medians over the rounds (least–greatest); a ratio is that of the two sides in a round.
Target tokens are subwords and end-of-sentence of a side's own outputs. The score is that of
transformer_mt's model for a side's ids, log p / ((5 + length) / 6), the mean of all lines."""


# ------------------------------------------------------------------------ what all sides work on


@dataclass(frozen=True)
class Text:
    """The lines that are translated, and what is known of them."""

    sources: list[str]
    references: list[str]
    source_ids: list[list[int]]

    def first(self, count: int) -> Text:
        return Text(self.sources[:count], self.references[:count], self.source_ids[:count])


def padded(rows: list[list[int]], pad: int) -> np.ndarray:
    """int64 (rows, longest)."""
    array = np.full((len(rows), max(map(len, rows))), pad, np.int64)
    for index, row in enumerate(rows):
        array[index, : len(row)] = row
    return array


class Judge:
    """This project's model: it says what the lines are, what the weights, and how good outputs are.

    `sizes` are the arguments of PaddleNLP's model that follow from the config.
    """

    def __init__(self, model_dir: Path, checkpoint: str | None) -> None:
        from transformer_mt.assembly.model import build_model
        from transformer_mt.model_directory import ModelDirectory
        from transformer_mt.runtime import device
        from transformer_mt.weights import load_weights

        device.use("cpu")
        directory = ModelDirectory(model_dir)
        self.config = directory.load_config()
        self.subwords = directory.load_subwords()
        self.model = build_model(self.config.model, self.subwords)
        load_weights(directory.checkpoint(checkpoint), self.model)
        self.model.eval()

    def encode(self, sources: list[str], references: list[str]) -> Text:
        """The lines that all sides can translate: neither empty nor longer than the config says."""
        longest = self.config.data.max_length
        encoded = [self.subwords.source.encode(line) for line in sources]
        kept = [i for i, ids in enumerate(encoded) if 0 < len(ids) <= longest]
        return Text(
            *([rows[i] for i in kept] for rows in (sources, references, encoded)),
        )

    def export(self, text: Text, path: Path) -> dict[str, Any]:
        """Writes weights, positions, and the logits of some sentences; returns `sizes`."""
        from transformer_mt.model.embedding import sinusoids

        model, config, target = self.model, self.config.model, self.subwords.target
        source = self.subwords.source
        if (source.bos, source.eos, source.pad) != (target.bos, target.eos, target.pad):
            raise ValueError("PaddleNLP's model has the same bos, eos and pad on both sides")
        arrays = {name: value.numpy() for name, value in model.named_parameters()}
        longest = max(map(len, text.source_ids)) + 1 + EXTRA_LENGTH
        references = [target.encode(line)[:longest] for line in text.references[:COMPARED]]
        sources = [[*ids, source.eos] for ids in text.source_ids[:COMPARED]]
        arrays["source"] = padded(sources, source.pad)
        arrays["target"] = padded([[target.bos, *ids] for ids in references], target.pad)
        arrays["logits"] = self._logits(arrays["source"], arrays["target"])
        arrays["positions"] = sinusoids(longest + 1, config.d_model).astype(np.float32)
        np.savez(path, **arrays)
        return {
            "src_vocab_size": source.size,
            "trg_vocab_size": target.size,
            "max_length": longest + 1,
            "num_encoder_layers": config.encoder_layers,
            "num_decoder_layers": config.decoder_layers,
            "n_head": config.num_heads,
            "d_model": config.d_model,
            "d_inner_hid": config.d_ff,
            "weight_sharing": config.tie_embeddings and self.subwords.joint,
            "bos_id": target.bos,
            "eos_id": target.eos,
            "pad_id": target.pad,
            "normalize_before": config.norm == "pre",
        }

    def decode(self, rows: list[list[int]]) -> list[str]:
        return [self.subwords.target.decode(row) for row in rows]

    def log_probs(self, sources: list[list[int]], outputs: list[list[int]]) -> list[float]:
        """The log-probability of each output and of its end, given its source."""
        source, target = self.subwords.source, self.subwords.target
        result = np.zeros(len(outputs))
        order = np.argsort([len(ids) for ids in outputs], kind="stable")
        for batch in np.array_split(order, -(-len(order) // 32)):
            logits = self._logits(
                padded([sources[i] + [source.eos] for i in batch], source.pad),
                padded([[target.bos, *outputs[i]] for i in batch], target.pad),
            ).astype(np.float64)
            logits -= logits.max(axis=-1, keepdims=True)
            logits -= np.log(np.exp(logits).sum(axis=-1, keepdims=True))
            for row, i in zip(logits, batch, strict=True):
                ids = [*outputs[i], target.eos]
                result[i] = row[np.arange(len(ids)), ids].sum()
        return result.tolist()

    def bleu(self, texts: list[str], references: list[str]) -> tuple[float, str]:
        """The score, and its signature."""
        from transformer_mt.evaluation.metrics import score_for

        scores = score_for(self.config, texts, references)
        return scores.bleu, scores.signature

    def unknown(self, rows: list[list[int]]) -> int:
        """How many outputs have an unknown subword."""
        return sum(self.subwords.target.unk in row for row in rows)

    def _logits(self, source: np.ndarray, target: np.ndarray) -> np.ndarray:
        import paddle

        with paddle.no_grad():
            return self.model(paddle.to_tensor(source), paddle.to_tensor(target)).numpy()


# ------------------------------------------------------------------------------------ the sides


class PaddleNLPTranslation:
    """PaddleNLP's model with this project's weights, one for each search and beam."""

    def __init__(self, arrays: Path, sizes: dict[str, Any]) -> None:
        import paddle

        paddle.set_device("cpu")
        with np.load(arrays) as file:
            self.arrays = dict(file)
        self.sizes = sizes
        self.models: dict[tuple[str, int], Any] = {}

    def difference(self, search: str, beam: int) -> float:
        """The greatest difference of its logits from this project's, where nothing is padded."""
        import paddle
        from paddlenlp.transformers import TransformerModel

        source, target = self.arrays["source"], self.arrays["target"]
        with paddle.no_grad():
            logits = TransformerModel.forward(
                self._model(search, beam), paddle.to_tensor(source), paddle.to_tensor(target)
            ).numpy()
        real = target != self.sizes["pad_id"]
        return float(np.abs(logits - self.arrays["logits"])[real].max())

    def translate(
        self, search: str, beam: int, rows: int, sources: list[list[int]]
    ) -> tuple[float, list[list[int]]]:
        """Seconds, and the ids of the best output of each source, in batches of `rows`."""
        import paddle

        model = self._model(search, beam)
        eos, pad = self.sizes["eos_id"], self.sizes["pad_id"]
        outputs: list[list[int]] = [[] for _ in sources]
        started = time.perf_counter()
        order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
        for start in range(0, len(order), rows):
            batch = order[start : start + rows]
            source = padded([sources[i] + [eos] for i in batch], pad)
            # Both count the end; v1 takes one step more than it is told.
            model.max_out_len = source.shape[1] + EXTRA_LENGTH - (search == "v1")
            with paddle.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # v2 has some at every step
                found = model(paddle.to_tensor(source)).numpy()[:, :, 0]  # (batch, len): the best
            for i, ids in zip(batch, found.tolist(), strict=True):
                ids = ids[1:] if search == "v2" else ids  # it begins with bos
                outputs[i] = ids[: ids.index(eos)] if eos in ids else ids
        return time.perf_counter() - started, outputs

    def _model(self, search: str, beam: int) -> Any:
        if (search, beam) not in self.models:
            from paddlenlp.transformers import InferTransformerModel

            model = InferTransformerModel(
                **self.sizes,
                dropout=0.0,
                beam_size=beam,
                beam_search_version=search,
                alpha=1.0,  # of ((5 + length) / 6)^alpha; only v2 reads it
            )
            copy_weights(self.arrays, model)
            fit_to_paddle_3(model.decode)
            model.eval()
            self.models[search, beam] = model
        return self.models[search, beam]


# This project's names of a layer's parts, and those of Paddle's own Transformer, by which PaddleNLP
# goes. The first that fits is taken.
PARTS = {
    "self_attention_residual.norm": "norm1",
    "cross_attention_residual.norm": "norm2",
    "self_attention.query_projection": "self_attn.q_proj",
    "self_attention.key_projection": "self_attn.k_proj",
    "self_attention.value_projection": "self_attn.v_proj",
    "self_attention.output_projection": "self_attn.out_proj",
    "cross_attention.query_projection": "cross_attn.q_proj",
    "cross_attention.key_projection": "cross_attn.k_proj",
    "cross_attention.value_projection": "cross_attn.v_proj",
    "cross_attention.output_projection": "cross_attn.out_proj",
    "feed_forward.inner_projection": "linear1",
    "feed_forward.output_projection": "linear2",
}


def copy_weights(arrays: dict[str, np.ndarray], model: Any) -> None:
    """Fills all of PaddleNLP's `model` from this project's weights and positions.

    Raises:
        LookupError: a parameter of either side has no counterpart.
    """
    parameters = dict(model.named_parameters())
    target = arrays["target_embedding.weight"]
    values = {
        "trg_word_embedding.word_embedding.weight": target,
        "src_word_embedding.word_embedding.weight": arrays.get("source_embedding.weight", target),
        "linear.weight": arrays.get("generator.weight", target).T,
        "src_pos_embedding.pos_encoder.weight": arrays["positions"],
        "trg_pos_embedding.pos_encoder.weight": arrays["positions"],
    }
    for name, value in arrays.items():
        stack, _, rest = name.partition(".")
        if stack in ("encoder", "decoder"):
            for part, counterpart in PARTS.items():
                rest = rest.replace(part, counterpart)
            last_norm = "norm2" if stack == "encoder" else "norm3"
            rest = rest.replace("feed_forward_residual.norm", last_norm)
            name = f"transformer.{stack}.{rest}"
            if name not in parameters:
                raise LookupError(f"PaddleNLP's model has no {name}")
            values[name] = value
    for name, parameter in parameters.items():
        if name not in values and not name.endswith(".bias"):
            raise LookupError(f"PaddleNLP's {name} would not be filled")
        parameter.set_value(values.get(name, np.zeros(parameter.shape, np.float32)))


def fit_to_paddle_3(decoder: Any) -> None:
    """Makes v1 run: Paddle 3 takes a 0 in the shape that a tensor is to have as it stands, and no
    longer for "as before", if the tensor is empty, as the cache is before the first step."""
    import paddle

    merge = decoder._merge_batch_beams_with_var_dim

    def merge_empty_too(cache: Any) -> Any:
        batch, beams, heads, length, width = cache.shape
        if length:
            return merge(cache)
        return paddle.zeros([batch * beams, heads, 0, width], cache.dtype)

    decoder._merge_batch_beams_with_var_dim = merge_empty_too


class OurTranslation:
    """This project's `Translator`, with one of its engines.

    Args:
        model: what `Translator.load` takes: a model directory with a checkpoint, or an export.
        cores: as many are used, in the way of the engine.
    """

    def __init__(self, model: Path, checkpoint: str | None, cores: int) -> None:
        self.model = model
        self.checkpoint = checkpoint
        self.cores = cores
        self.engine: Any = None
        self.pools = contextlib.ExitStack()

    def translate(
        self, beam: int, line_by_line: bool, lines: list[str]
    ) -> tuple[float, list[str], list[list[int]]]:
        """Seconds, the translations, and their ids."""
        from transformer_mt.decoding.stream import in_windows
        from transformer_mt.decoding.translator import Line
        from transformer_mt.model_directory import ModelDirectory

        translator = self._translator(beam)
        vocabulary = ModelDirectory(self.model).load_subwords().target
        ids_of = {piece: i for i, piece in enumerate(vocabulary.pieces(range(vocabulary.size)))}
        started = time.perf_counter()
        # What `translate` does, but for the subwords, which it does not tell.
        windows = ([Line(line)] for line in lines) if line_by_line else in_windows(map(Line, lines))
        outputs = [translation.outputs[0] for translation in translator.stream(windows)]
        seconds = time.perf_counter() - started
        ids = [[ids_of[piece] for piece in output.pieces] for output in outputs]
        return seconds, [output.text for output in outputs], ids

    def _translator(self, beam: int) -> Any:
        from transformer_mt.assembly import backends as engines
        from transformer_mt.assembly.translator import Translator, engine_processes

        spec = engines.find(self.model, None, self.checkpoint, (), self.cores, "cpu")
        if self.engine is None:
            if spec.processes > 1:
                # A process that is to end with its parent, as this one is, may not start any, for
                # those would be left. These end with it by themselves.
                multiprocessing.current_process()._config["daemon"] = False
                self.engine = self.pools.enter_context(engine_processes(spec))
            else:
                self.engine = spec.load()
        settings = {
            "beam_size": beam,
            "length_penalty": 1.0,
            "length_penalty_kind": "gnmt",
            "max_length_ratio": 1.0,
            "max_length_extra": EXTRA_LENGTH,
        }
        return Translator.of(engines.with_decoding(spec, settings), self.engine)


# --------------------------------------------------------------------------------- measurements


@dataclass(frozen=True)
class Turn:
    """A side's translation of the text: how many lines and target tokens, in how many seconds."""

    lines: int
    tokens: int
    seconds: float


@dataclass(frozen=True)
class Quality:
    """The mean score and BLEU of a side's outputs, and how many have an unknown subword."""

    score: float
    bleu: float
    unknown: int


# What translates lines: seconds, translations, and their ids.
Translate = Callable[[Text], tuple[float, list[str], list[list[int]]]]


@dataclass(frozen=True)
class Measurement:
    """A table: the turns of each side, and the quality of its outputs, by its name."""

    title: str
    turns: dict[str, list[Turn]]
    quality: dict[str, Quality]


class Benchmark:
    """All measurements of one model, and its processes."""

    def __init__(self, options: argparse.Namespace, folder: Path, stack: contextlib.ExitStack):
        self.options = options
        self.folder = folder
        self.stack = stack
        self.rows: dict[tuple[str, int], int] = {}  # of PaddleNLP's batches
        self.notes: list[str] = []
        self.signature = ""
        say("reading the model and the text")
        self.judge = self._side(Judge, options.model_dir, options.checkpoint, threads=cores())
        lines = read_lines(options.source)[: options.lines]
        references = read_lines(options.reference)[: options.lines]
        self.text = self.judge.ask("encode", lines, references)
        self.left_out = len(lines) - len(self.text.sources)
        if not self.text.sources:
            raise Failure("there is no line to translate")
        sizes = self.judge.ask("export", self.text, folder / "arrays.npz")
        self.paddlenlp = self._side(PaddleNLPTranslation, folder / "arrays.npz", sizes)
        self.difference = max(
            self.paddlenlp.ask("difference", search, beam)
            for search in ("v1", "v2")
            for beam in options.beams
        )
        say(f"logits of both models differ by at most {self.difference:.1e}")
        if not self.difference <= TOLERANCE:
            raise Failure(
                f"the copied weights give other logits: they differ by {self.difference:.1e}"
            )

    def summary(self) -> str:
        return (
            f"{len(self.text.sources):,} lines"
            + (f" ({self.left_out} empty or over-long ones left out)" if self.left_out else "")
            + f". Logits of both models on {min(COMPARED, len(self.text.sources))} sentences and "
            f"their references differ by at most {self.difference:.1e}."
        )

    def run(self) -> Iterator[Measurement]:
        """The measurements, one by one."""
        few = self.text.first(self.options.single)
        models = self._models()
        one_core, all_cores = (
            {
                name: self._side(OurTranslation, model, checkpoint, count)
                for name, (model, checkpoint) in models.items()
            }
            for count in (1, cores())
        )
        for side in (*one_core.values(), *all_cores.values()):
            side.ask("translate", self.options.beams[0], False, few.sources)
        for beam in self.options.beams:
            self._choose_rows(beam)
            title = f"One thread, beam {beam}, batches, {len(self.text.sources):,} lines"
            yield self._measure(title, beam, False, one_core, self.text)
        for beam in self.options.beams:
            title = f"One thread, beam {beam}, line by line, {len(few.sources):,} lines"
            yield self._measure(title, beam, True, one_core, few)
        for beam in self.options.beams:
            title = f"Defaults, {cores()} cores, beam {beam}, {len(self.text.sources):,} lines"
            yield self._measure(title, beam, False, all_cores, self.text)

    def _models(self) -> dict[str, tuple[Path, str | None]]:
        """What this project translates with, and its checkpoint."""
        models = {OURS: (self.options.model_dir, self.options.checkpoint)}
        for name, package, arguments in EXPORTS:
            if find_spec(package):
                folder = self.folder / name
                say(f"exporting: {name}")
                if problem := export(self.options, arguments, folder):
                    self.notes.append(f"Without {name}, for the export failed: {problem}")
                else:
                    models[f"{OURS}, {name}"] = (folder, None)
        return models

    def _side(self, kind: type, *arguments: Any, threads: int = 1) -> Side:
        return self.stack.enter_context(Side(self.folder, threads, kind, *arguments))

    def _choose_rows(self, beam: int) -> None:
        """Finds out with which batches PaddleNLP is fastest, on lines of middling length."""
        ordered = sorted(self.text.source_ids, key=len)
        start = max(0, (len(ordered) - TUNING_LINES) // 2)
        lines = ordered[start : start + TUNING_LINES]
        for search in ("v1", "v2"):
            self.paddlenlp.ask("translate", search, beam, 1, lines[:1])
            sizes = [rows for rows in BATCH_ROWS if rows <= len(lines)] or BATCH_ROWS[:1]
            seconds = dict.fromkeys(sizes, float("inf"))
            for rows in list(sizes) * TRIALS:
                taken, _ = self.paddlenlp.ask("translate", search, beam, rows, lines)
                # The best, for only disturbances differ.
                seconds[rows] = min(seconds[rows], taken)
            self.rows[search, beam] = min(seconds, key=seconds.get)
            speeds = ", ".join(
                f"{rows}: {len(lines) / taken:.1f}" for rows, taken in seconds.items()
            )
            say(f"PaddleNLP {search}, beam {beam}, sentences/s by rows of a batch: {speeds}")

    def _measure(
        self, title: str, beam: int, line_by_line: bool, ours: dict[str, Side], text: Text
    ) -> Measurement:
        def paddlenlp(search: str) -> Translate:
            rows = 1 if line_by_line else self.rows[search, beam]

            def translate(text: Text) -> tuple[float, list[str], list[list[int]]]:
                seconds, ids = self.paddlenlp.ask("translate", search, beam, rows, text.source_ids)
                return seconds, self.judge.ask("decode", ids), ids

            return translate

        def own(side: Side, beam: int) -> Translate:
            return lambda text: side.ask("translate", beam, line_by_line, text.sources)

        sides = {V1: paddlenlp("v1"), V2: paddlenlp("v2")}
        for name, side in ours.items():
            sides[name] = own(side, beam)
            if name == OURS and beam > 1 and not line_by_line:
                # v2 also counts ends that are not among the best of a step. This beats its score.
                sides[f"{OURS}, beam {beam + 1}"] = own(side, beam + 1)
        say(f"{title}: starting")
        for name, translate in sides.items():
            # All of the text where more processes than one are to have begun.
            translate(text if name.startswith(OURS) else text.first(2))
        turns: dict[str, list[Turn]] = {name: [] for name in sides}
        quality = {}
        for number in range(self.options.rounds):
            for name, translate in sides.items():
                seconds, texts, ids = translate(text)
                tokens = sum(len(row) + 1 for row in ids)
                turns[name].append(Turn(len(text.sources), tokens, seconds))
                if name not in quality:
                    quality[name] = self._quality(text, texts, ids)
            speeds = ", ".join(f"{name} {text_speed(its[-1]):.1f}" for name, its in turns.items())
            say(f"round {number + 1} of {self.options.rounds}: {speeds} sentences/s")
        return Measurement(self._titled(title, beam, line_by_line), turns, quality)

    def _titled(self, title: str, beam: int, line_by_line: bool) -> str:
        if line_by_line:
            return title
        rows = f"v1 {self.rows['v1', beam]}, v2 {self.rows['v2', beam]}"
        return f"{title} (rows of PaddleNLP's batches: {rows})"

    def _quality(self, text: Text, texts: list[str], ids: list[list[int]]) -> Quality:
        log_probs = self.judge.ask("log_probs", text.source_ids, ids)
        scores = [
            log_prob / ((5 + len(row) + 1) / 6)
            for log_prob, row in zip(log_probs, ids, strict=True)
        ]
        bleu, self.signature = self.judge.ask("bleu", texts, text.references)
        return Quality(float(np.mean(scores)), bleu, self.judge.ask("unknown", ids))


# The engines that need an export of the model: a name, the package without which they are left
# out, and the arguments of the verb `export`.
EXPORTS = (
    ("paddle_inference", "paddle", ["--format", "paddle"]),
    ("CTranslate2 float32", "ctranslate2", ["--format", "ctranslate2"]),
    ("CTranslate2 int8", "ctranslate2", ["--format", "ctranslate2", "--quantization", "int8"]),
)


def export(options: argparse.Namespace, arguments: list[str], folder: Path) -> str | None:
    """Runs the verb `export`. Returns what it has to say if it fails."""
    command = [sys.executable, "-m", "transformer_mt", "export", str(options.model_dir)]
    command += [*arguments, "--output", str(folder)]
    if options.checkpoint:
        command += ["--checkpoint", options.checkpoint]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return done.stderr.strip()[-1000:] if done.returncode else None


def digest(folder: Path) -> str:
    """Of all Python files of a folder."""
    total = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        total.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes() + b"\0")
    return total.hexdigest()


def read_lines(path: Path) -> list[str]:
    return path.read_bytes().decode().removesuffix("\n").split("\n")


# --------------------------------------------------------------------------------------- output


def text_speed(turn: Turn) -> float:
    return turn.lines / turn.seconds


def result_table(measurement: Measurement) -> str:
    """A line for each side."""
    header = ["", "sentences/s", "times v1", "times v2", "target tokens/s", "score", "BLEU"]
    lines = []
    for name, its in measurement.turns.items():
        ratios = []
        for other in (V1, V2):
            pairs = zip(its, measurement.turns[other], strict=True)
            values = [text_speed(one) / text_speed(their) for one, their in pairs]
            ratio = spread(values, ".2f")
            ratios.append(
                "1" if name == other else f"**{ratio}**" if name.startswith(OURS) else ratio
            )
        quality = measurement.quality[name]
        lines.append(
            [
                name,
                spread([text_speed(one) for one in its], ".1f"),
                *ratios,
                spread([one.tokens / one.seconds for one in its], ",.0f"),
                f"{quality.score:.4f}",
                f"{quality.bleu:.2f}",
            ]
        )
    return table(header, lines)


def report(measurement: Measurement) -> Iterator[str]:
    """The results as paragraphs of Markdown."""
    yield f"### {measurement.title}"
    yield result_table(measurement)
    unknown = {name: its.unknown for name, its in measurement.quality.items() if its.unknown}
    if unknown:
        counts = ", ".join(f"{name} {count}" for name, count in unknown.items())
        yield f"Outputs with an unknown subword: {counts}."


# ---------------------------------------------------------------------------------- the command


def main() -> None:
    options = parse()
    clear_settings()
    with (
        tempfile.TemporaryDirectory(prefix="benchmark_decoding-") as name,
        contextlib.ExitStack() as stack,
    ):
        code = digest(ROOT / "transformer_mt")
        benchmark = Benchmark(options, Path(name), stack)
        packages = ["paddlepaddle", "paddlenlp"] + ["ctranslate2"] * bool(find_spec("ctranslate2"))
        paragraphs = (f"{machine(*packages)} Rounds: {options.rounds}.", NOTES, benchmark.summary())
        print(*paragraphs, sep="\n\n", end="\n\n", flush=True)
        # Each as soon as it is there: all together take long.
        for measurement in benchmark.run():
            print(*report(measurement), sep="\n\n", end="\n\n", flush=True)
        if digest(ROOT / "transformer_mt") != code:
            # Processes that start at different times have read different versions of it.
            raise Failure("the code has changed meanwhile: these are no results of any version")
        print(f"BLEU is sacreBLEU's {benchmark.signature}", *benchmark.notes, sep="\n\n")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model_dir", metavar="MODEL_DIR", type=Path)
    parser.add_argument("--source", metavar="FILE", type=Path, required=True)
    parser.add_argument("--reference", metavar="FILE", type=Path, required=True)
    parser.add_argument("--checkpoint", metavar="NAME", help="step_N, best or last (the best)")
    parser.add_argument("--rounds", metavar="N", type=int, default=3, help="turns of a side (3)")
    parser.add_argument("--lines", metavar="N", type=int, help="the first N of the files (all)")
    parser.add_argument(
        "--single", metavar="N", type=int, default=100, help="lines one by one (the first 100)"
    )
    parser.add_argument(
        "--beams", metavar="N", nargs="+", type=int, default=[5, 1], help="beam sizes (5 1)"
    )
    options = parser.parse_args()
    options.model_dir = options.model_dir.resolve()
    for path in (options.model_dir / "config.yaml", options.source, options.reference):
        if not path.is_file():
            parser.error(f"{path}: there is no such file")
    counts = [len(read_lines(path)) for path in (options.source, options.reference)]
    if counts[0] != counts[1]:
        parser.error(f"--source has {counts[0]:,} lines, --reference {counts[1]:,}")
    if min(options.rounds, options.lines or 1, options.single, *options.beams) < 1:
        parser.error("--rounds, --lines, --single and --beams: expected numbers above 0")
    return options


if __name__ == "__main__":
    sys.exit(exit_code(main))
