"""A run that nothing can spoil: stopped in whatever way, the same command goes on, and the end is
bit for bit that of a run that was never stopped."""

import hashlib
import json
import os
import random
import re
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from tests.support import (
    TIMEOUT,
    children,
    demo_pairs,
    make_config,
    run,
    run_here,
    start,
    write_pairs,
)
from transformer_mt.config.file import dump
from transformer_mt.data.encoded import PARALLEL_FROM
from transformer_mt.training.folder import RunDirectory
from transformer_mt.translator import Translator
from transformer_mt.weights import read_tensors

PAIRS = demo_pairs(420)
STEPS = 45
# Everything that has a state: dropout, sampled subwords, Adam's moments, a schedule, several
# batches an update, scores of the dev set, averaging. An epoch is some 14 updates.
SECTIONS = {
    "data": {"dev": "dev", "test": "test", "held_out": 0},
    "subword": {"vocab_size": 300, "sampling": 0.1},
    "model": {"d_model": 32, "num_heads": 4, "d_ff": 64, "dropout": 0.2},
    "training": {
        **{"max_steps": STEPS, "batch_tokens": 800, "device_tokens": 400, "clip_norm": 1.0},
        **{"log_every": 2, "validate_every": 12, "save_every": 5},
        **{"keep_last": 3, "keep_best": 2, "average_last": 2},
    },
}


@pytest.fixture(scope="module")
def recipe(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("resume")
    for name, part in (("train", PAIRS[:380]), ("dev", PAIRS[380:400]), ("test", PAIRS[400:])):
        write_pairs(folder / "text", name, part)
    path = folder / "recipe.yaml"
    path.write_text(dump(make_config(folder, **SECTIONS)), encoding="utf-8")
    return path


def arguments(recipe, model_dir, devices, *more):
    return "train", recipe, f"training.devices={devices}", f"model_dir={model_dir}", *more


@pytest.fixture(scope="module")
def unbroken(recipe, tmp_path_factory):
    """What runs that were never stopped have left, by the number of their processes."""
    made = {}

    def get(devices: int) -> Path:
        if devices not in made:
            model_dir = tmp_path_factory.mktemp("unbroken") / f"model{devices}"
            finish(recipe, model_dir, devices)
            made[devices] = model_dir
        return made[devices]

    return get


def left_by(model_dir: Path) -> dict[str, object]:
    """All that a run leaves: every file's hash but for what tells the time."""
    found: dict[str, object] = {}
    for path in sorted(model_dir.rglob("*")):
        name = str(path.relative_to(model_dir))
        if path.name in ("SHA256SUMS", ".lock") or path.is_dir() or ".damaged" in name:
            continue
        if path.parent.name == "visualdl" or path.name in ("train.log", "report.html", "README.md"):
            found[name.partition(".")[0]] = True  # they hold times
        elif path.name == "metrics.jsonl":
            lines = [timeless(json.loads(line)) for line in path.read_text().splitlines()]
            # A run that was stopped begins more than once.
            found[name] = [line for line in lines if line["kind"] != "start"]
        elif path.name == "best":
            found[name] = path.read_text().split()[1]  # the checksum is that of times, too
        elif path.name == "state.json":
            found[name] = timeless(json.loads(path.read_text()))
        elif path.name == "config.yaml":
            found[name] = [
                line
                for line in path.read_text().splitlines()
                if "model_dir" not in line and "# SHA-256" not in line
            ]
        else:
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def timeless(value):
    if not isinstance(value, dict):
        return value
    timed = ("time", "seconds", "tokens_per_second", "lines_per_second")
    return {key: timeless(part) for key, part in value.items() if key not in timed}


def assert_same(model_dir: Path, other: Path) -> None:
    found, expected = left_by(model_dir), left_by(other)
    assert sorted(found) == sorted(expected)
    for name, value in expected.items():
        assert found[name] == value, name


def messages_until(process, words: str) -> str:
    """What a process says on stderr, up to the first line with these words."""
    said = []
    for line in process.stderr:
        said.append(line)
        if words in line:
            return "".join(said)
    pytest.fail(f"{words!r} was never said, but:\n{''.join(said)}")


def finish(recipe, model_dir, devices, *more):
    begin = run_here if devices == 1 else run
    done = begin(*arguments(recipe, model_dir, devices, *more))
    assert done.returncode == 0, done.stderr
    return done


def refused(code, recipe, model_dir, *more):
    """What a run of one process says that must change nothing."""
    before = left_by(model_dir)
    done = run_here(*arguments(recipe, model_dir, 1, *more))
    assert done.returncode == code and "Traceback" not in done.stderr
    assert left_by(model_dir) == before
    return done.stderr


def wait_until_gone(pids: list[int]) -> None:
    """The kernel ends them at once; how soon that shows is its own affair."""
    limit = time.monotonic() + TIMEOUT
    while any(is_running(pid) for pid in pids):
        assert time.monotonic() < limit, f"{pids} live on"
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    try:
        # pid (name) state ...; a zombie has ended, and waits for its parent to notice.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def descendants(pid: int) -> list[int]:
    own = children(pid)
    return own + [far for near in own for far in descendants(near)]


# ---- Killed ----


def kill_at_random(process, moments: random.Random) -> None:
    messages_until(process, "step ")
    time.sleep(moments.uniform(0.0, 0.5))
    family = descendants(process.pid)
    process.kill()
    process.communicate()
    wait_until_gone(family)


def require_saved(process, code: int, model_dir: Path) -> int:
    """Waits for a process that was asked to stop. Returns the step that it has saved."""
    _, messages = process.communicate(timeout=TIMEOUT)
    assert process.returncode == code, messages
    (saved,) = [line for line in messages.splitlines() if line.startswith("stopped at step")]
    step = int(saved.split()[3].rstrip(","))
    assert (model_dir / "checkpoints" / f"step_{step}").is_dir()
    return step


@pytest.mark.slow
def test_two_processes_are_killed_and_asked_to_stop(recipe, unbroken, tmp_path):
    """One after the other; and then the run goes on."""
    model_dir = tmp_path / "model"
    kill_at_random(start(*arguments(recipe, model_dir, 2)), random.Random(2))

    process = start(*arguments(recipe, model_dir, 2))
    messages_until(process, "step 16/")
    process.send_signal(signal.SIGTERM)
    step = require_saved(process, 143, model_dir)
    assert step >= 16
    assert f"step_{step}" in finish(recipe, model_dir, 2).stderr
    assert_same(model_dir, unbroken(2))


@pytest.mark.slow
def test_killed_while_a_checkpoint_is_written(recipe, unbroken, tmp_path):
    model_dir = tmp_path / "model"
    process = start(*arguments(recipe, model_dir, 1))
    messages_until(process, "training into")
    checkpoints = model_dir / "checkpoints"
    while not any(name.endswith(".tmp") for name in os.listdir(checkpoints)):
        assert process.poll() is None
    process.kill()
    process.communicate()
    # It was caught at it: the half of a checkpoint is there, and is not taken for one.
    (half,) = (name for name in os.listdir(checkpoints) if name.endswith(".tmp"))
    assert half[1:-4] not in os.listdir(checkpoints)
    finish(recipe, model_dir, 1)
    assert_same(model_dir, unbroken(1))


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A config whose corpus is so large that more processes than one encode it."""
    folder = tmp_path_factory.mktemp("large")
    write_pairs(folder / "text", "train", PAIRS * (PARALLEL_FROM // len(PAIRS) + 1))
    config = make_config(folder, subword={"type": "char", "vocab_size": 200})
    path = folder / "recipe.yaml"
    path.write_text(dump(config), encoding="utf-8")
    return path


def test_killed_or_interrupted_while_text_is_encoded(large, tmp_path):
    """Ctrl-C reaches the processes that encode as well, here when Python is starting in them."""
    for number, code in ((signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)):
        process = start("train", large, f"model_dir={tmp_path}", start_new_session=True)
        limit = time.monotonic() + TIMEOUT
        while len(encoding := descendants(process.pid)) < 2 and process.poll() is None:
            assert time.monotonic() < limit
            time.sleep(0.01)
        assert len(encoding) >= 2, process.communicate()
        if number == signal.SIGINT:
            os.killpg(process.pid, number)
        else:
            process.kill()
        _, messages = process.communicate(timeout=TIMEOUT)
        assert process.returncode == code and "Traceback" not in messages
        assert number == signal.SIGKILL or messages.endswith("interrupted\n")
        wait_until_gone(encoding)


# ---- Asked to stop ----


def test_asked_to_stop(recipe, unbroken, tmp_path):
    model_dir = tmp_path / "model"
    process = start(*arguments(recipe, model_dir, 1))
    messages_until(process, "step 16/")
    process.send_signal(signal.SIGINT)
    step = require_saved(process, 130, model_dir)
    assert step >= 16
    translations = Translator.load(model_dir).translate(["A dog runs.", "", "Two men."])
    assert len(translations) == 3 and translations[1] == ""
    assert f"step_{step}" in finish(recipe, model_dir, 1).stderr
    assert_same(model_dir, unbroken(1))


# ---- A full disk ----


# Bytes, as if the disk were full: less than a checkpoint's weights.
LITTLE_ROOM = 50_000


@pytest.mark.parametrize("devices", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_full_disk(recipe, unbroken, tmp_path, devices):
    model_dir = tmp_path / "model"
    finish(recipe, model_dir, devices, "training.max_steps=5", "training.average_last=null")
    done = run(*arguments(recipe, model_dir, devices), file_size=LITTLE_ROOM)
    assert done.returncode == 1
    assert "step_10: the checkpoint can't be written: File too large" in done.stderr
    assert "The checkpoints before it are whole" in done.stderr
    assert "Traceback" not in done.stderr
    assert os.listdir(model_dir / "checkpoints") == ["step_5"]
    # And once there is room again:
    finish(recipe, model_dir, devices)
    last = f"checkpoints/step_{STEPS}/model.safetensors"
    assert left_by(model_dir)[last] == left_by(unbroken(devices))[last]


# ---- Goes on with other processes, from an older checkpoint, or not at all ----


@pytest.fixture(scope="module")
def ended_at_25(recipe, tmp_path_factory) -> Path:
    model_dir = tmp_path_factory.mktemp("half") / "model"
    finish(recipe, model_dir, 1, "training.max_steps=25", "training.average_last=null")
    return model_dir


@pytest.fixture
def half_way(ended_at_25, tmp_path) -> Path:
    """A run of one process that was ended at step 25."""
    return shutil.copytree(ended_at_25, tmp_path / "model")


def test_a_run_at_its_end_goes_on_with_more_steps(recipe, unbroken, half_way):
    finish(recipe, half_way, 1)
    expected = left_by(unbroken(1))
    found = left_by(half_way)
    # Step 25 was its end, where it was validated, as the other run was not.
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert (
            found[f"checkpoints/step_{STEPS}/{name}"]
            == (expected[f"checkpoints/step_{STEPS}/{name}"])
        )
    assert found["test.hypothesis"] == expected["test.hypothesis"]


@pytest.mark.slow
def test_the_number_of_processes_may_change(recipe, unbroken, half_way):
    done = finish(recipe, half_way, 2)
    assert "going on from" in done.stderr and "2 processes" in done.stderr
    logged = [
        [
            (line["step"], line["epoch"], line["nll"])
            for line in (json.loads(text) for text in (path / "metrics.jsonl").open())
            if line["kind"] == "train" and line["step"] % 2 == 0
        ]
        for path in (half_way, unbroken(1))
    ]
    # The same updates at the same places; what differs is what dropout leaves out.
    assert [line[:2] for line in logged[0]] == [line[:2] for line in logged[1]]
    for (step, _, found), (_, _, expected) in zip(*logged, strict=True):
        assert found == (expected if step <= 24 else pytest.approx(expected, rel=0.05)), step


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_a_damaged_checkpoint_is_passed_over(recipe, unbroken, half_way):
    """tests/attack/test_damage.py damages every file of a run."""
    name = "optimizer.safetensors"
    damage(half_way / "checkpoints" / "step_25" / name)
    done = finish(recipe, half_way, 1)
    assert "step_25 is damaged" in done.stderr and name in done.stderr
    assert "going on from" in done.stderr and "step_24" in done.stderr
    found = left_by(half_way)
    for file, value in left_by(unbroken(1)).items():
        assert found[file] == value, file


def test_only_damaged_checkpoints(recipe, half_way):
    for path in (half_way / "checkpoints").iterdir():
        (path / "model.safetensors").unlink()
    said = refused(1, recipe, half_way)
    assert "none of its checkpoints is whole" in said and "--restart" in said


def test_what_may_not_change(recipe, half_way, tmp_path):
    changes = ("model.d_ff=96", "training.learning_rate=0.1", "subword.sampling=null")
    said = refused(2, recipe, half_way, *changes)
    for line in ("model.d_ff: 64, now 96", "training.learning_rate: 0.003, now 0.1",
                 "subword.sampling: 0.1, now null"):  # fmt: skip
        assert line in said
    assert "max_steps" not in said and "--restart" in said
    text = shutil.copytree(recipe.parent / "text", tmp_path / "text")
    for lang in ("en", "de"):
        with open(text / f"train.{lang}", "a") as file:
            file.write("One more line.\n")
    assert "another text" in refused(1, recipe, half_way, f"data.root={text}")


def test_at_its_end_a_run_is_scored_again_and_not_trained(recipe, unbroken, tmp_path):
    model_dir = tmp_path / "model"
    shutil.copytree(unbroken(1), model_dir)
    done = finish(recipe, model_dir, 1)
    assert "has reached its end" in done.stderr and "training.max_steps" in done.stderr
    (chosen,) = re.findall(r"(\S+) is the model to translate with", done.stderr)
    assert f"test set, {chosen}: BLEU" in done.stdout
    assert_same(model_dir, unbroken(1))


def test_restart_begins_anew(recipe, half_way):
    finish(recipe, half_way, 1, "--restart", "training.max_steps=2", "training.average_last=null")
    log = [json.loads(line) for line in (half_way / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in log if line["kind"] == "train"] == [2]
    assert (half_way.with_name("model.before-restart") / "checkpoints" / "step_25").is_dir()


# ---- Fine-tuning ----


def test_fine_tuning(recipe, unbroken, tmp_path):
    """Begins with the other model's weights, its subwords, and a fresh optimiser."""
    base = unbroken(1)
    more = (f"training.init_from={base}", "training.max_steps=1", "training.learning_rate=1e-9")
    done = finish(recipe, tmp_path / "tuned", 1, *more, "training.average_last=null")
    best = RunDirectory(base).best()
    assert "training.init_from: " in done.stderr and f"weights are those of {best}\n" in done.stderr
    tuned = tmp_path / "tuned"
    assert (tuned / "subword.model").read_bytes() == (base / "subword.model").read_bytes()
    weights = [
        read_tensors(path / "model.safetensors")
        for path in (best, tuned / "checkpoints" / "step_1")
    ]
    for name, value in weights[0].items():
        # Adam moves a weight by at most about its rate.
        np.testing.assert_allclose(weights[1][name], value, atol=1e-7, err_msg=name)


def test_fine_tuning_a_model_of_another_size(recipe, unbroken, tmp_path):
    more = ("model.num_decoder_layers=2", "training.max_steps=1", "training.average_last=null")
    done = finish(recipe, tmp_path / "tuned", 1, f"training.init_from={unbroken(1)}", *more)
    assert "decoder.layers.1.self_attention.query_projection.weight is missing" in done.stderr
    assert "decoder.layers.0" not in done.stderr


def test_restart_is_not_begun_before_the_other_model_is_there(recipe, half_way):
    for other in (half_way, half_way.parent):
        said = refused(2, recipe, half_way, "--restart", f"training.init_from={other}")
        assert "training.init_from" in said
