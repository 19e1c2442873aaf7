"""What is recorded of the golden models: for each observation a function that makes it.

Everything is asked of the program's outer interfaces, which stay as they are when modules move: the
command line and the files of a model directory. `logits` is the only function that knows modules.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import math
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from safetensors.numpy import load_file

from tests.golden import recipes
from transformer_mt.cli import main

# Updates that are recorded of a new training, and of one that goes on.
UPDATES = 3


def logits(model_dir: Path) -> np.ndarray:
    """What the model computes for a fixed batch, with padding on both sides: float32
    (2, target_len, vocabulary)."""
    import paddle

    from transformer_mt.model.variants import build_model
    from transformer_mt.model_directory import ModelDirectory
    from transformer_mt.weights import load_weights

    directory = ModelDirectory(model_dir)
    subwords = directory.load_subwords()
    model = build_model(directory.load_config().model, subwords)
    load_weights(directory.checkpoint("last"), model)
    model.eval()
    source, target = subwords.source, subwords.target
    sides = [
        paddle.to_tensor(
            [[4, 5, 6, 7, 8, 9, 10, 11], [12, 13, 14, 15, source.eos, *[source.pad] * 3]]
        ),
        paddle.to_tensor([[target.bos, 4, 5, 6], [target.bos, 7, 8, target.pad]]),
    ]
    with paddle.no_grad():
        return model(*sides).numpy()


# ---- Commands ----


class Refused(Exception):
    """The program ended with an exit code other than 0."""


def command(*arguments: object) -> str:
    """What a command of the program prints on stdout, run in this process."""
    stdout, stderr = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as end:  # argparse
            code = end.code
    if code != 0:
        raise Refused(f"exit code {code}", stderr.getvalue())
    return stdout.getvalue()


def output_of(*arguments: object) -> list[str]:
    """The lines that a command writes into its --output."""
    path = Path("output")
    command(*arguments, "--output", path)
    lines = path.read_text(encoding="utf-8").split("\n")
    assert lines.pop() == ""
    return lines


# The arguments that name lines and their translations.
PAIRS = ("--source", "pairs.source", "--target", "pairs.target")


def engine_options(name: str, engine: str) -> list[object]:
    """The arguments that choose a model and an engine; exports the model if that is needed."""
    form = {"paddle_inference": "paddle", "ctranslate2": "ctranslate2"}.get(engine)
    if form is not None and not Path(name, "export", form).exists():
        command("export", name, "--format", form, "--checkpoint", "last")
    return [name, "--engine", engine, "--threads", 1]


def recorded_logits(name: str) -> list[list[list[float]]]:
    """With as many digits as a float32 has."""
    rows = logits(Path(name))
    return [[[float(f"{x:.9g}") for x in step] for step in row] for row in rows]


# ---- Observations: each gives what JSON can hold for the model of a name ----


def translations(name: str, engine: str, *options: object) -> list[Any]:
    """As `translate` writes them: text, or with --format what the line says."""
    arguments = [*engine_options(name, engine), "--input", "source", *options]
    lines = output_of("translate", *arguments)
    if "jsonl" in options:
        return [[_short(output) for output in json.loads(line)["outputs"]] for line in lines]
    if "tsv" in options:
        return [[_value(column) for column in line.split("\t")] for line in lines]
    return lines


def scores(name: str, engine: str, *options: object) -> list[float]:
    arguments = [*engine_options(name, engine), *PAIRS, *options]
    return [float(line) for line in output_of("score", *arguments)]


def alignments(name: str, engine: str) -> list[str]:
    return output_of("align", *engine_options(name, engine), *PAIRS)


def alignment_error_rate(name: str) -> list[float]:
    sides = [Path(recipes.config(name)["data"]["root"], f"train.{lang}") for lang in ("en", "de")]
    arguments = ["--source", sides[0], "--target", sides[1], "--reference", "links"]
    return _numbers(command("align", *engine_options(name, "paddle"), *arguments))


def evaluation(name: str) -> dict[str, Any]:
    root = Path(recipes.config(name)["data"]["root"])
    arguments = ["--source", root / "test.en", "--reference", root / "test.de"]
    path = Path("scores.json")
    command("evaluate", *engine_options(name, "paddle"), *arguments, "--json", path)
    return _timeless(json.loads(path.read_text()))


def attention(name: str) -> list[dict[str, Any]]:
    """The maps of the page, their weights as numbers from 0 to 1."""
    path = Path("page.html")
    command("attention", name, "--text", "Anna sees the old house today .", "--output", path)
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', path.read_text())
    maps = json.loads(found[1])["maps"]
    # Weights are rounded to whole numbers there, and rows of them add up to nearly the whole.
    whole = round(np.mean([np.sum(one["weights"], axis=-1).mean() for one in maps]), -1)
    return [
        {
            "queries": [token[0] for token in one["queries"]["tokens"]],
            "keys": [token[0] for token in one["keys"]["tokens"]],
            "weights": (np.array(one["weights"]) / whole).tolist(),
        }
        for one in maps
    ]


def python_interface(name: str) -> dict[str, Any]:
    """What `transformer_mt.Translator` gives, with settings in place of the config's."""
    from transformer_mt import Translator

    translator = Translator.load(name, "last", beam_size=2)
    sources, targets = (
        Path(file).read_text(encoding="utf-8").split("\n")[:-1]
        for file in ("pairs.source", "pairs.target")
    )
    return {
        "translations": translator.translate(sources),
        "scores": list(translator.scores(zip(sources, targets, strict=True))),
        "alignments": [
            one._asdict()
            for one in translator.alignments(zip(sources[:8], targets[:8], strict=True))
        ],
    }


def average(name: str) -> dict[str, Any]:
    """The mean weights of the last two checkpoints, and a translation with them."""
    copy = _copy(name, "averaged")
    path = command("average", copy, "--last", 2).strip()
    options = ["--engine", "paddle", "--threads", 1, "--checkpoint", Path(path).name]
    return {
        "checkpoint": Path(path).name,
        "weights": _summary(Path(path)),
        "translations": output_of("translate", copy, *options, "--input", "source"),
    }


def beginning(name: str, part: str) -> Any:
    """A part of what the first updates of a new training leave. How such a model translates is
    left out: nothing of that is sure yet, and rounding decides."""
    found = _trained(name, f"{name}_new", UPDATES)[part]
    if part == "metrics":
        found = [line for line in found if line["kind"] in ("train", "dev")]
        found = [{k: v for k, v in line.items() if k not in ("bleu", "chrf")} for line in found]
    return found


def continuation(name: str, part: str) -> Any:
    """The same of a training that goes on from the kept checkpoint."""
    steps = recipes.config(name)["training"]["max_steps"]
    if not Path(f"{name}_continued").exists():
        _copy(name, "continued")
    return _trained(name, f"{name}_continued", steps + UPDATES)[part]


@functools.cache
def _trained(name: str, model_dir: str, steps: int) -> dict[str, Any]:
    """What a training up to a step leaves."""
    changes = [f"training.{key}={steps}" for key in ("max_steps", "validate_every", "save_every")]
    command("train", recipe(name), f"model_dir={model_dir}", *changes, "training.log_every=1")
    directory = Path(model_dir)
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    lines = [line for line in lines if line["kind"] in ("train", "dev", "test")]
    checkpoint = directory / "checkpoints" / f"step_{steps}"
    return {
        "metrics": [_timeless(line) for line in lines if line.get("step", steps) > steps - UPDATES],
        "state": _timeless(json.loads((checkpoint / "state.json").read_text())),
        "weights": _summary(checkpoint),
        "hypotheses": (directory / "test.hypothesis").read_text().splitlines(),
    }


def recipe(name: str) -> Path:
    """Writes the config of a model."""
    path = Path(f"{name}.yaml")
    path.write_text(yaml.safe_dump(recipes.config(name)), encoding="utf-8")
    return path


def _copy(name: str, what: str) -> str:
    """A copy of a kept model directory, under another name."""
    other = f"{name}_{what}"
    shutil.copytree(name, other, ignore=shutil.ignore_patterns("export"))
    return other


def _summary(checkpoint: Path) -> dict[str, list[float | None]]:
    """Of each tensor of a checkpoint two numbers, of size 1, that every element changes: the
    logarithm of its norm (None: it is zero), and its product with random signs, by its norm.

    Biases of keys are left out. They change no output, for a softmax stays the same where all of
    its inputs rise; so their gradient is nothing but rounding, which Adam makes whole steps of.
    Adam's second moments and the powers of its betas are left out too, to store less: they follow
    from the same gradients as the first moments, and from the step.
    """
    found = {}
    for path in sorted(checkpoint.glob("*.safetensors")):
        for key, tensor in load_file(path).items():
            if "key_projection.bias" in key or key.endswith(("_pow_acc", "moment2")):
                continue
            value = tensor.astype(np.float64).ravel()
            signs = np.random.default_rng(0).choice([-1.0, 1.0], value.size)
            norm = float(np.sqrt(value @ value))
            numbers = [math.log(norm), float(signs @ value) / norm] if norm else [None]
            found[f"{path.stem}: {key}"] = [x and float(f"{x:.12g}") for x in numbers]
    return found


def _timeless(value: dict[str, Any]) -> dict[str, Any]:
    """Without what is another number in every run."""
    timed = ("time", "seconds", "second")
    return {
        key: _timeless(part) if isinstance(part, dict) else part
        for key, part in value.items()
        if not key.endswith(timed)
    }


def _numbers(text: str) -> list[float]:
    """All numbers of a text for people, whose wording may change."""
    return [float(number.replace(",", "")) for number in re.findall(r"\d[\d,]*(?:\.\d+)?", text)]


def _short(output: dict[str, Any]) -> list[Any]:
    """An output of jsonl with less to store: subwords as one text, and no names."""
    rest = (value for key, value in output.items() if key not in ("text", "pieces", "parts"))
    return [output["text"], " ".join(output["pieces"]), *rest]


def _value(column: str) -> float | str:
    return float(column) if re.fullmatch(r"-?\d+\.\d+", column) else column


ENGINES = ("paddle", "paddle_inference", "ctranslate2")
# To load an export of Paddle Inference takes seconds, so it is asked less.
QUICK_ENGINES = ("paddle", "ctranslate2")
BEAM = ("--beam-size", 4, "--n-best", 4, "--format", "jsonl")

Observation = Callable[[str], Any]


def of_model(name: str) -> dict[str, Observation]:
    """The observations of a golden model, by their names."""
    found: dict[str, Observation] = {
        "logits": recorded_logits,
        "evaluation": evaluation,
        "beginning: metrics": partial(beginning, part="metrics"),
        "beginning: weights": partial(beginning, part="weights"),
    }
    if name in recipes.CONTINUED:
        for part in ("metrics", "state", "weights", "hypotheses"):
            found[f"continuation: {part}"] = partial(continuation, part=part)

    def add(function, title: str, engines: tuple[str, ...], *options: object) -> None:
        for engine in engines:
            found[f"{engine}: {title}"] = partial(_call, function, engine=engine, options=options)

    if recipes.is_non_autoregressive(name):
        add(translations, "as configured", ENGINES, "--format", "jsonl")
        for iterations in (1, 2):
            add(translations, f"{iterations} iterations", ("paddle",), "--iterations", iterations)
        add(translations, "one length", ("paddle",), "--length-candidates", 1)
        return found

    add(translations, "greedy", QUICK_ENGINES, "--beam-size", 1)
    engines = ENGINES if name in ("plain", "apart") else QUICK_ENGINES
    add(translations, "beam", engines, *BEAM, "--alignment")
    add(scores, "scores", QUICK_ENGINES)
    add(alignments, "alignments", QUICK_ENGINES)
    if name == "plain":
        sampling = ("--sampling", "--temperature", 1.2, "--n-best", 3, "--format", "jsonl")
        average_penalty = ("--length-penalty", 0.5, "--length-penalty-kind", "average")
        earlier = ("--ensemble", f"plain:{recipes.EARLIER}")
        add(scores, "scores", ("paddle_inference",))
        add(translations, "prefixes", QUICK_ENGINES, "--prefix", "prefix", *BEAM)
        add(translations, "sampling", ENGINES, *sampling)
        few = (*sampling, "--top-k", 4, "--top-p", 0.9, "--seed", 5)
        add(translations, "few sampled", QUICK_ENGINES, *few)
        add(translations, "average penalty", QUICK_ENGINES, *BEAM, *average_penalty)
        add(scores, "average penalty scores", QUICK_ENGINES, *average_penalty)
        short = ("--max-length-ratio", 0.5, "--max-length-extra", 2)
        add(translations, "short", QUICK_ENGINES, *short)
        add(translations, "long", QUICK_ENGINES, "--min-length-ratio", 1.2, "--min-length-extra", 1)
        add(translations, "table", QUICK_ENGINES, "--alignment", "--format", "tsv")
        add(translations, "ensemble", ("paddle",), *BEAM, *earlier)
        add(scores, "ensemble scores", ("paddle",), *earlier)
        add(translations, "earlier checkpoint", ("paddle",), "--checkpoint", recipes.EARLIER)
        found["Translator"] = python_interface
        found["average"] = average
    if name in ("plain", "alignment"):
        found["alignment error rate"] = alignment_error_rate
    if name in ("plain", "apart"):
        found["attention"] = attention
    return found


def _call(function, name: str, engine: str, options: tuple[object, ...]) -> Any:
    return function(name, engine, *options)


def observe(name: str, observation: Observation) -> Any:
    """An observation, or how the program refuses it."""
    try:
        return observation(name)
    except Refused as refusal:
        return {"refused": refusal.args[0]}


def all_observations() -> dict[str, dict[str, Observation]]:
    return {name: of_model(name) for name in recipes.MODELS}
