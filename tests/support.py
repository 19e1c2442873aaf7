"""What several tests of running the program share: its processes, and small models to run it on."""

import contextlib
import io
import os
import resource
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import paddle
import pytest
import sentencepiece
import yaml

from tests.forked import ForkedProcess
from transformer_mt import cli
from transformer_mt.config.schema import Config
from transformer_mt.config.text import SubwordConfig
from transformer_mt.data.alignments import encoded_alignments
from transformer_mt.data.encoded import Limits, encoded_corpus
from transformer_mt.data.marian_vocabulary import MarianVocabulary, PieceIds
from transformer_mt.data.prepare import PreparedData
from transformer_mt.data.subword import Subwords
from transformer_mt.decoding.engine import Engine
from transformer_mt.decoding.paddle_engine import engine_of
from transformer_mt.model.variants import build_model
from transformer_mt.training import checkpoint
from transformer_mt.training.checkpoint import State
from transformer_mt.training.folder import RunDirectory
from transformer_mt.training.loop import Trainer
from transformer_mt.training.optimizers import make_optimizer
from transformer_mt.training.progress import Progress
from transformer_mt.training.update import Outcome

ROOT = Path(__file__).resolve().parent.parent
# Long enough for a busy machine: a process imports for two to five seconds, then works for one.
TIMEOUT = 300
# In the environment, it says that no process is forked: with --attack, and in tests marked fresh.
ONLY_FRESH = "TESTS_ONLY_FRESH_PROCESSES"


def examples(few: int, many: int) -> int:
    """How many examples a test draws: `many` with `--attack`, where processes are fresh too."""
    return many if ONLY_FRESH in os.environ else few


def demo_pairs(count: int) -> list[tuple[str, str]]:
    """English-German pairs of the demo corpus, the same on every machine, and all different."""
    sides = []
    for lang in ("en", "de"):
        text = (ROOT / "data" / "demo" / f"train.{lang}").read_text(encoding="utf-8")
        sides.append(text.split("\n")[:count])
    return list(zip(*sides, strict=True))


def words(text: str) -> list[str]:
    """What stands between spaces, and nothing else: text.split() would split at more."""
    return [word for word in text.split(" ") if word]


def log_softmax(logits) -> np.ndarray:
    """In float64, whatever the logits are in."""
    logits = np.asarray(logits, np.float64)
    return logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)


def write_lines(path: Path, lines) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
    return path


def write_pairs(folder: Path, name: str, pairs, langs=("en", "de")) -> None:
    for side, lang in enumerate(langs):
        write_lines(folder / f"{name}.{lang}", [pair[side] for pair in pairs])


# ---- A command in this process ----


def run_command(*arguments, **flags) -> None:
    """Runs a command, as `main` does, but raises its errors.

    Args:
        flags: beam_size=4 is --beam-size=4, resume=True is --resume, and None is nothing.
    """
    texts = list(map(str, arguments))
    for name, value in flags.items():
        flag = "--" + name.replace("_", "-")
        if value is not None:
            texts.append(flag if value is True else f"{flag}={value}")
    options = cli.parse(texts)
    options.run(options)


def run_here(*arguments) -> subprocess.CompletedProcess:
    """As `run`, but in this process, which is faster."""
    output, messages = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(messages):
        code = cli.main(list(map(str, arguments)))
    return subprocess.CompletedProcess(arguments, code, output.getvalue(), messages.getvalue())


# ---- The program in processes of its own ----


def python(*arguments, is_fresh=False, file_size: int | None = None, **options) -> subprocess.Popen:
    """Starts Python, with pipes for its output, which is text.

    Args:
        is_fresh: whether the process must begin as one of a user does, before all imports. Others
            are forked from a process that has imported everything (see ONLY_FRESH).
        file_size: bytes beyond which the process can write no file, as if the disk were full.
        options: of subprocess.Popen.
    """
    options = {
        "cwd": ROOT,
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "encoding": "utf-8",
        "env": os.environ | {"PYTHONPATH": str(ROOT), "LC_ALL": "C.UTF-8"},
        **options,
    }
    command = [sys.executable, *map(str, arguments)]
    if not is_fresh and ONLY_FRESH not in os.environ:
        return ForkedProcess(command, file_size, **options)
    if file_size is not None:
        limits = (file_size, file_size)
        options["preexec_fn"] = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    return subprocess.Popen(command, **options)


def run_python(*arguments, **options) -> subprocess.CompletedProcess:
    """Runs Python to its end, as `python` starts it."""
    return finished(python(*arguments, **options))


def finished(process: subprocess.Popen, stdin: str | bytes | None = None):
    try:
        output, messages = process.communicate(stdin, timeout=TIMEOUT)
    finally:
        process.kill()
    return subprocess.CompletedProcess(process.args, process.returncode, output, messages)


def start(*arguments, **options) -> subprocess.Popen:
    """Starts `python -m transformer_mt` as `python` does."""
    return python("-m", "transformer_mt", *arguments, **options)


def run(*arguments, stdin: str | bytes | None = None, **options) -> subprocess.CompletedProcess:
    """Runs the program to its end. With `stdin` as bytes, its output is bytes too."""
    if stdin is not None:
        options["stdin"] = subprocess.PIPE
        if isinstance(stdin, bytes):
            options["encoding"] = None
    return finished(start(*arguments, **options), stdin)


def run_benchmark(script: Path, *arguments) -> subprocess.CompletedProcess:
    # What this project sets for itself must not reach the other side.
    return run_python(script, *arguments, env=os.environ | {"FLAGS_use_stride_kernel": "0"})


def children(pid: int) -> list[int]:
    """In the order in which they were started, as far as their numbers tell."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended in the meantime
            # pid (name) state parent ...; the name may hold anything, so from its end on
            if int(stat.read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(stat.parent.name))
    return sorted(found)


def sacrebleu(hypothesis: Path, reference: Path | list[Path], *options: str, **environment):
    """What sacreBLEU's own command says: BLEU unless the options choose another metric. Several
    metrics give a list."""
    references = reference if isinstance(reference, list) else [reference]
    command = [sys.executable, "-m", "sacrebleu", *references, "-i", hypothesis, *options]
    output = subprocess.run(
        list(map(str, command)),
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | environment,
    ).stdout
    return yaml.safe_load(output)


# ---- Small models ----

TINY = {"num_layers": 1, "d_model": 16, "num_heads": 2, "d_ff": 32, "norm": "pre", "dropout": 0.0}


def make_config(folder: Path, **sections) -> Config:
    """A valid config of a tiny model; `sections` are laid over its own, key by key."""
    values = {
        "model_dir": str(folder / "model"),
        "data": {
            "root": str(folder / "text"),
            "source_lang": "en",
            "target_lang": "de",
            "cache": str(folder / "cache"),
        },
        "subword": {"vocab_size": 200},
        "model": TINY,
        "training": {
            "max_steps": 4,
            "batch_tokens": 400,
            "device_tokens": 400,
            "warmup_steps": 10,
            "learning_rate": 0.003,
        },
        "decoding": {"beam_size": 2, "max_length_ratio": 1.0, "max_length_extra": 3},
    }
    for section, keys in sections.items():
        values[section] = {**values.get(section, {}), **keys} if isinstance(keys, dict) else keys
    return Config.model_validate(values)


def train_subwords(pairs, vocab_size: int = 200, symbols=(), **options) -> Subwords:
    config = SubwordConfig.model_validate({"vocab_size": vocab_size, **options})
    return Subwords.train(lambda: iter(pairs), config, symbols)


def marian_subwords(pairs, joint: bool = True, tokens=(">>deu<<", ">>fra<<")) -> Subwords:
    """Subwords as those of OPUS-MT: SentencePiece's own defaults, and the ids by frequency."""
    models, lists = [], []
    for text in zip(*pairs, strict=True):
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(text),
            model_writer=model,
            vocab_size=120,
            hard_vocab_limit=False,
            character_coverage=0.995,
            minloglevel=2,
        )
        models.append(model.getvalue())
        processor = sentencepiece.SentencePieceProcessor(model_proto=models[-1])
        pieces = (piece for line in text for piece in processor.encode(line, out_type=str))
        lists.append(Counter(pieces))
    if joint:
        lists = [lists[0] + lists[1]]
    ids = []
    for counts in lists:
        own = [piece for piece, count in counts.most_common() if count > 1]
        all_pieces = ("</s>", "<unk>", *own, *tokens, "<pad>", "<s>")
        last = len(all_pieces) - 1
        ids.append(PieceIds(all_pieces, pad=last - 1, unk=1, bos=last, eos=0))
    sides = zip(models, (ids[0], ids[-1]), strict=True)
    return Subwords(*(MarianVocabulary(model, own) for model, own in sides))


def as_if_trained(model, subwords: Subwords, end: float):
    """The model, with pad, bos and unk as unlikely as training makes them, and eos so likely, by
    `end`, that not all outputs run into their limits. The first dimension of the output decides."""
    norm = model.decoder.norm or model.decoder.layers[-1].feed_forward_residual.norm
    offset, rows = norm.bias.numpy(), model.generator.weight.numpy()
    offset[0], rows[:, 0] = 10.0, 0.0
    rows[[subwords.target.pad, subwords.target.bos, subwords.target.unk], 0] = -3.0
    rows[subwords.target.eos, 0] = end
    norm.bias.set_value(offset)
    model.generator.weight.set_value(rows)
    return model


def make_model_directory(
    path: Path, pairs, config: Config, seed: int = 7, subwords: Subwords | None = None
) -> RunDirectory:
    """A model directory with checkpoints of a model that was never trained.

    Its weights are drawn wide, so that it is as sure of what it says as a trained one is: its
    choices are no ties, which the least rounding would turn.
    """
    directory = RunDirectory(path)
    subwords = subwords or Subwords.train(lambda: iter(pairs), config.subword)
    directory.claim()
    directory.start(config, subwords, [])
    model = wide_model(config, subwords, seed)
    optimizer = make_optimizer(config.training, model)
    for step in (5, 10):
        progress = Progress((1, 400), step=step, best=[(1.0, 10), (0.5, 5)])
        path = directory.checkpoints / f"step_{step}"
        checkpoint.save(path, model, optimizer.state(), State(progress))
    directory.set_best(path)
    directory.release()
    return directory


def wide_model(config: Config, subwords: Subwords, seed: int = 7):
    """A model whose weights were never trained, several times as large as fresh ones."""
    paddle.seed(seed)
    model = build_model(config.model, subwords)
    random = np.random.default_rng(seed)
    for _, parameter in model.named_parameters():
        if len(parameter.shape) > 1:
            values = 0.5 * random.standard_normal(tuple(parameter.shape))
            parameter.set_value(values.astype("float32"))
    return model


def prepared(config: Config, pairs, subwords, dev=None) -> PreparedData:
    """Encoded pairs as training reads them; `dev` are pairs as well."""

    def encode(some, name):
        return encoded_corpus(
            some,
            content=name,
            subwords=subwords,
            limits=Limits(),
            cache=Path(config.data.cache),
            title=name,
        )

    return PreparedData(
        subwords=subwords,
        train=encode(pairs, "train"),
        dev=encode(dev, "dev") if dev else None,
        dev_split=PairList(dev) if dev else None,
        test_split=None,
        held_out_files=[],
    )


def with_links(data: PreparedData, folder: Path) -> PreparedData:
    """The same data, where the first two words of every pair are aligned."""
    path = write_lines(folder / "links", ["0-0 1-1"] * len(data.train))
    links = encoded_alignments(path, data.train, data.subwords, ("en", "de"), folder)
    return replace(data, alignments=links)


# What a model needs to learn a small task to the last word in some hundred steps.
LEARNER = {"d_model": 64, "num_heads": 4, "d_ff": 128}
LEARNING = {
    "schedule": "inverse_sqrt",
    "warmup_steps": 60,
    "learning_rate": 5e-3,
    "label_smoothing": 0.0,
    "clip_norm": 1.0,
}


def learn(config: Config, pairs, subwords: Subwords) -> Engine:
    """Trains a model for the config's steps, and gives what translates with it. The rate falls to
    zero at the end: what is asked for is not how fast it learns, but whether it can."""
    steps = config.training.max_steps
    trainer = Trainer(config, prepared(config, pairs, subwords))
    rate = trainer.updater.rate
    trainer.updater.rate = lambda step: rate(step) * (1 - step / (steps + 1))
    take_steps(trainer, steps)
    return engine_of([trainer.model], subwords)


class PairList(list):
    """Pairs in memory that can be asked for what a split of a corpus can."""

    @property
    def text(self) -> tuple[list[str], list[str]]:
        return [source for source, _ in self], [target for _, target in self]


def take_steps(trainer, steps: int) -> list[Outcome]:
    """The first steps of a run, without anything that a run does besides."""
    outcomes = []
    epoch = 0
    while True:
        for number, sentences in enumerate(trainer.plan.epoch_updates(epoch)):
            if len(outcomes) == steps:
                return outcomes
            update = trainer.read(epoch, number, sentences)
            outcomes.append(trainer.updater.apply(update, len(outcomes) + 1))
        epoch += 1


def files(folder: Path) -> list[str]:
    """The paths of everything in a folder, relative to it."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def assert_refused(done: subprocess.CompletedProcess, code: int, *words: str) -> None:
    """That a command gave a clear message, and nothing but that."""
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr and "This should not happen" not in done.stderr
    assert done.stdout == ""
    for word in words:
        assert word in done.stderr
    assert "error: " in done.stderr


def important(messages: str) -> str:
    """Messages without the warnings of outputs that have reached their greatest length, as those of
    models that were never trained do."""
    lines = messages.splitlines(keepends=True)
    return "".join(
        line for line in lines if "reached the" not in line and "reached their" not in line
    )


def onednn_operations():
    """The operations that oneDNN computes. Without the library, the test is skipped."""
    from transformer_mt.kernels import onednn
    from transformer_mt.kernels.cpu_onednn import OneDnnOperations

    library = onednn.library()
    if library is None:
        pytest.skip(onednn.problem())
    return OneDnnOperations(library)


def emulate_bfloat16(monkeypatch) -> None:
    """Makes products of bfloat16 possible on any processor. The rounded factors are multiplied in
    float32, as the instructions do it, up to the order of the sums."""
    from transformer_mt.kernels import onednn

    library, plain = onednn_operations()._library, onednn.Library.product

    def product(self, a, b, out, add=False):
        if a.dtype == np.uint16:
            a, b = widened(a), widened(b)
        plain(self, a, b, out, add)

    monkeypatch.setattr(onednn.Library, "product", product)
    monkeypatch.setattr(library, "has_bfloat16", True)


def widened(bits: np.ndarray) -> np.ndarray:
    """The float32 numbers of these bits of bfloat16 (uint16), in any strides."""
    return (bits.astype("uint32") << 16).view("float32")
