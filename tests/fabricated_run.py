"""Writes what a training run records into a model directory, without training: the lines of
metrics.jsonl, the dev and test sets with translations, and data.json."""

import json
import math
from pathlib import Path

import numpy as np

from tests.support import write_lines

LOG_EVERY, VALIDATE_EVERY, STEPS = 50, 500, 8000
SECONDS_PER_STEP = 0.9


def fabricate(path: Path, pairs, seed: int = 0, quality: float = 1.0, steps: int = STEPS) -> None:
    """Records a run that has ended.

    Args:
        pairs: of the test set; the first of them are the dev set.
        quality: how fast the run learns; 1 is usual.
    """
    random = np.random.default_rng(seed)
    dev = pairs[:20]
    lines = [start(), samples(dev[:2])]
    for step in range(LOG_EVERY, steps + 1, LOG_EVERY):
        lines.append(train(step, quality, random))
        if step % VALIDATE_EVERY == 0:
            hypotheses = translate(dev, error_rate(step, quality), random)
            lines.append(validation(step, quality, hypotheses[:2]))
            write_lines(path / "dev" / f"step_{step}.hypothesis", hypotheses)
    lines.append(test(quality))
    write_metrics(path, lines)
    write_text(path / "dev", "", dev)
    write_text(path, "test.", pairs)
    hypotheses = translate(pairs, error_rate(steps, quality), random)
    write_lines(path / "test.hypothesis", hypotheses)
    (path / "data.json").write_text(json.dumps(FACTS), encoding="utf-8")


def write_metrics(path: Path, lines) -> None:
    write_lines(path / "metrics.jsonl", map(json.dumps, lines))


def write_text(folder: Path, prefix: str, pairs) -> None:
    for side, name in enumerate(("source", "reference")):
        write_lines(folder / f"{prefix}{name}", [pair[side] for pair in pairs])


def at(step: int) -> dict:
    hours, rest = divmod(round(step * SECONDS_PER_STEP), 3600)
    time = f"2026-11-22T{12 + hours:02d}:{rest // 60:02d}:{rest % 60:02d}+00:00"
    return {"time": time, "step": step, "seconds": step * SECONDS_PER_STEP}


def start(step: int = 0, **values) -> dict:
    return {
        "kind": "start", **at(step), "version": "0.2.0", "paddle": "3.3.1", "python": "3.11.7",
        "device": "cpu", "device_name": "A processor", "cores": 2, "memory_gb": 16.4,
        "parameters": 3_190_784, "updates_per_epoch": 250, "total_steps": STEPS,
    } | values  # fmt: skip


def samples(pairs) -> dict:
    source, reference = (list(side) for side in zip(*pairs, strict=True))
    return {"kind": "samples", "time": at(0)["time"], "step": 0, "source": source,
            "reference": reference}  # fmt: skip


def nll(step: int, quality: float) -> float:
    return 1.1 + 6 * math.exp(-step * quality / 1200)


def error_rate(step: int, quality: float) -> float:
    return min(0.9, 0.08 + 0.8 * math.exp(-step * quality / 1500))


def train(step: int, quality: float, random) -> dict:
    value = nll(step, quality) - step / 40000 + 0.04 * random.standard_normal()
    return {
        "kind": "train", **at(step), "epoch": step // 250 + 1, "loss": value + 0.9, "nll": value,
        "perplexity": math.exp(value),
        "learning_rate": 0.003 * min(step / 2000, (2000 / step) ** 0.5),
        "gradient_norm": None if step == 1000 else float(random.lognormal(-0.8, 0.5)),
        "tokens_per_second": float(6400 + 120 * random.standard_normal()),
        "padding": 0.06 + 0.01 * random.random(), "skipped": int(step > 1000),
    }  # fmt: skip


def validation(step: int, quality: float, hypotheses, **values) -> dict:
    value = nll(step, quality) + 0.15 + step / 60000
    bleu = 38 * (1 - math.exp(-step * quality / 1800))
    return {
        "kind": "dev", **at(step), "epoch": step // 250 + 1, "loss": value + 0.9, "nll": value,
        "perplexity": math.exp(value), "bleu": bleu, "chrf": 22 + bleu, "signature": "BLEU|…",
        "chrf_signature": "chrF2|…", "best": step <= 6000, "samples": hypotheses,
    } | values  # fmt: skip


def test(quality: float) -> dict:
    bleu = 30 + 4 * quality
    return {
        "kind": "test", "time": at(STEPS)["time"], "checkpoint": "step_6000", "bleu": bleu,
        "signature": "BLEU|nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0",
        "chrf": bleu + 24, "chrf_signature": "chrF2|nrefs:1|case:mixed|version:2.6.0",
        "length_ratio": 0.99, "lines": 200, "note": "",
        "intervals": {"bleu": [bleu - 1.3, bleu + 1.3], "chrf": [bleu + 23, bleu + 25]},
    }  # fmt: skip


def translate(pairs, rate: float, random) -> list[str]:
    """References of which some words are wrong, missing or doubled."""
    vocabulary = [word for _, target in pairs for word in target.split(" ")]
    found = []
    for _, target in pairs:
        words = []
        own = rate * random.random() * 2
        for word in target.split(" "):
            chance = random.random()
            if chance < 0.5 * own:
                words.append(vocabulary[random.integers(len(vocabulary))])
            elif chance < 0.9 * own:
                continue
            else:
                words += [word, word] if chance < own else [word]
        found.append(" ".join(words))
    return found


_SIDE = {
    "sentences": 29000, "subwords": 412000, "words": 377000, "characters": 1_780_000,
    "subwords_per_word": 1.09, "mean": 14.2, "longest": 52, "vocabulary": 8000, "rare": 0.31,
    "lengths": [[1, 5, 210], [6, 10, 7400], [11, 15, 13200], [16, 20, 5800], [21, 25, 1700],
                [26, 30, 480], [31, 35, 150], [36, 40, 60]],
}  # fmt: skip
FACTS = {
    "files": {"train": ["data/text/train.en", "data/text/train.de"], "dev": [], "test": []},
    "pairs": 28944, "unknown": 12, "dev": 20, "test": 200,
    "dropped": {
        "empty on one side": {"count": 6, "examples": [["A dog runs.", ""]]},
        "too long": {"count": 50, "examples": [["A very long sentence", "Ein langer Satz"]]},
    },
    "source": _SIDE,
    "target": _SIDE | {"subwords_per_word": 1.31, "rare": 0.52, "longest": 61,
                       "lengths": [[1, 5, 390], [6, 10, 8100], [11, 15, 12800], [16, 20, 5200],
                                   [21, 25, 1800], [26, 30, 500], [31, 35, 140], [36, 40, 70]]},
    "overlap": {"dev": {"lines": 2, "pairs": 1, "examples": [["A man.", "Ein Mann."]]},
                "test": {"lines": 0, "pairs": 0, "examples": []}},
    "copies": {"count": 3, "examples": [["OK", "OK"]]},
}  # fmt: skip
