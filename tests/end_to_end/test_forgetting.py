"""Fine-tuning that forgets: what is measured of general text, before and after, and what helps."""

import json
import shutil

import numpy as np
import pytest

from tests.support import LEARNER, make_config, run_command, write_pairs
from transformer_mt.config.file import dump
from transformer_mt.model_directory import ModelDirectory
from transformer_mt.reports.card import card_of
from transformer_mt.scoring.comparison import compare
from transformer_mt.utils.errors import UsageError
from transformer_mt.weights import read_weights

NAMES = ["anna", "ben", "cora", "dan", "eva", "finn", "greta", "hugo", "ida", "jan"]
SETS = {"general": 0, "domain": 1}
SIZES = {"train": 400, "dev": 30, "test": 30}
TRAINING = {
    "max_steps": 30, "batch_tokens": 300, "device_tokens": 300, "devices": 1, "log_every": 20,
    "schedule": "constant", "learning_rate": 0.01, "warmup_steps": 5, "validate_every": 15,
    "save_every": 15, "log_to": [], "label_smoothing": 0.0,
}  # fmt: skip


def pairs_of(random, count: int, shift: int) -> list[tuple[str, str]]:
    """A word, beside one that says nothing, and what it stands for; in the domain, each word has
    the meaning of the next one."""
    rows = random.integers(0, 10, (count, 2))
    return [(f"{NAMES[a]} {NAMES[b].upper()}", phrase(a + shift)) for a, b in rows]


def phrase(number: int) -> str:
    return " ".join(f"{letter}{NAMES[number % 10]}" for letter in "vwxyz")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Text of both kinds, and a recipe for each; the general model is trained."""
    folder = tmp_path_factory.mktemp("forgetting")
    random = np.random.default_rng(3)
    for kind, shift in SETS.items():
        for name, count in SIZES.items():
            write_pairs(folder / "text", f"{kind}_{name}", pairs_of(random, count, shift))
    for kind in SETS:
        data = {name: f"{kind}_{name}" for name in SIZES}
        config = make_config(
            folder,
            model_dir=str(folder / kind),
            data=data,
            subword={"type": "word"},
            model=LEARNER,
            training=TRAINING,
            evaluation={"samples": 1},
        )
        (folder / f"{kind}.yaml").write_text(dump(config), encoding="utf-8")
    train(folder, "general", "training.max_steps=60", "training.validate_every=60")
    return folder


def train(folder, kind, *overrides, **flags):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("transformer_mt.reports.run.write_report", lambda *_: None)
        run_command("train", folder / f"{kind}.yaml", *overrides, device="cpu", **flags)


def tune(folder, name, *overrides):
    train(
        folder,
        "domain",
        f"model_dir={folder / name}",
        f"training.init_from={folder / 'general'}",
        "data.general_dev=general_dev",
        *overrides,
    )


def texts_of(path):
    return path.read_text("utf-8").splitlines()


def lines_of(folder, name, kind):
    lines = map(json.loads, (folder / name / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if line["kind"] == kind]


@pytest.fixture(scope="module")
def tuned(folder):
    tune(folder, "tuned", "data.general_test=general_test", "training.interpolate=true")
    return folder


def test_the_curves_begin_with_the_model_before(tuned):
    domain, general = (lines_of(tuned, "tuned", kind) for kind in ("dev", "general_dev"))
    assert [line["step"] for line in domain] == [line["step"] for line in general] == [0, 15, 30]
    # The validation of the other run, of the same text and the same weights.
    (last,) = lines_of(tuned, "general", "dev")
    for key in ("loss", "nll", "bleu", "chrf"):
        assert general[0][key] == pytest.approx(last[key], rel=1e-6)
    assert general[0]["bleu"] > 60 and general[-1]["bleu"] < 40
    assert domain[0]["bleu"] < 40 and domain[-1]["bleu"] > 60
    start = read_weights(tuned / "tuned" / "checkpoints" / "step_0")
    for key, value in read_weights(ModelDirectory(tuned / "general").checkpoint()).items():
        np.testing.assert_array_equal(start[key], value)


def test_before_and_after_is_told(tuned):
    """As `compare` tells it of the same translations."""
    changes = {line["set"]: line for line in lines_of(tuned, "tuned", "change")}
    assert changes.keys() == {"test", "general_test"}
    assert changes["test"]["outcome"] == "better" and changes["general_test"]["outcome"] == "worse"
    log = (tuned / "tuned" / "train.log").read_text("utf-8")
    for name, line in changes.items():
        place = tuned / "tuned"
        tested = compare(
            [(side, texts_of(place / f"{name}.{side}")) for side in ("before", "hypothesis")],
            [texts_of(place / f"{name}.reference")],
            tokenize="13a",
            groupings={},
        )
        for key, metric in tested.metrics.items():
            own, (before, after) = line["scores"][key], metric.scores
            assert (own["before"], own["after"]) == pytest.approx((before.value, after.value))
            assert own["p"] == pytest.approx(after.difference.p)
            (logged,) = lines_of(tuned, "tuned", name)
            assert logged[key] == pytest.approx(after.value)
        assert line["verdict"] in log
    assert "warning: the model has become worse on general text" in log
    card = card_of(ModelDirectory(tuned / "tuned"), changes["test"]["checkpoint"])
    for words in (
        "Before and after fine-tuning",
        "general test set",
        "worse than the model before",
    ):
        assert words in card


def test_the_mix_is_the_best_of_the_logged_ones(tuned):
    means = {}
    for line in lines_of(tuned, "tuned", "mix"):
        means.setdefault(line["checkpoint"], []).append(line["bleu"])
    names = ["step_0", "mix_20", "mix_40", "mix_60", "mix_80", "step_30"]
    assert list(means) == names and all(len(values) == 2 for values in means.values())
    best = max(names, key=lambda name: (np.mean(means[name]), names.index(name)))
    assert ModelDirectory(tuned / "tuned").checkpoint().name == best
    kept = {path.name for path in (tuned / "tuned" / "checkpoints").iterdir()}
    assert kept == {"step_0", "step_15", "step_30", best}


def test_a_run_that_was_stopped_tells_the_same(tuned, tmp_path):
    """Without the general model, which is not needed any more."""
    folder = tuned / "stopped"
    shutil.copytree(tuned / "tuned", folder)
    for path in (folder / "checkpoints").iterdir():
        if path.name != "step_0":
            shutil.rmtree(path)
    (tuned / "general").rename(tuned / "away")
    try:
        tune(tuned, "stopped", "data.general_test=general_test", "training.interpolate=true")
    finally:
        (tuned / "away").rename(tuned / "general")
    for kind in ("dev", "general_dev", "mix", "change"):
        found, expected = (
            [{key: line[key] for key in line.keys() - {"time", "seconds"}} for line in lines]
            for lines in (lines_of(tuned, name, kind) for name in ("stopped", "tuned"))
        )
        assert found == expected, kind


def test_a_model_that_does_not_become_better_stays(folder, capsys):
    """Without a general test set, the domain's is still told."""
    tune(
        folder,
        "same",
        "training.learning_rate=1e-9",
        "training.max_steps=1",
        "data.general_dev=null",
    )
    (change,) = lines_of(folder, "same", "change")
    assert change["outcome"] == "identical" and change["checkpoint"] == "step_0"
    output = capsys.readouterr()
    assert "stays the one to use" in output.err and "before and after" in output.out
    assert "general text" not in output.err


def test_general_text_without_a_model_before(folder):
    for override in ("data.general_dev=general_dev", "training.interpolate=true"):
        with pytest.raises(UsageError, match=r"needs training\.init_from"):
            train(folder, "domain", override)
