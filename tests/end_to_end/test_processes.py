"""Several training processes: they train the model that one would, and fail as one."""

import contextlib
import os
import signal
from pathlib import Path

import numpy as np
import paddle
import pytest
from support import make_config, real_pairs, run, start, write_pairs

from transformer_mt.config import dump


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    """A config file of a tiny model without dropout, on real lines."""
    folder = tmp_path_factory.mktemp("processes")
    pairs = real_pairs(260)
    write_pairs(folder / "text", "train", pairs[:200])
    write_pairs(folder / "text", "dev", pairs[200:230])
    config = make_config(
        folder,
        data={"dev": "dev", "held_out": 0},
        # Two batches an update, so that the processes take whole ones; and then a last, single one.
        training={"max_steps": 6, "batch_tokens": 800, "device_tokens": 400, "log_every": 1},
    )
    path = folder / "recipe.yaml"
    path.write_text(dump(config), encoding="utf-8")
    return path


def weights(model_dir) -> dict[str, np.ndarray]:
    loaded = paddle.load(str(model_dir / "checkpoints" / "step_6" / "model.pdparams"))
    return {name: weight.numpy() for name, weight in loaded.items()}


def test_two_processes_train_the_same_model_as_one(recipe, tmp_path):
    for devices in (1, 2):
        done = run(
            *(
                "train",
                recipe,
                f"training.devices={devices}",
                f"model_dir={tmp_path / str(devices)}",
            )
        )
        assert done.returncode == 0, done.stderr
    one, two = weights(tmp_path / "1"), weights(tmp_path / "2")
    for name in one:
        # Sums in another order differ by float32's rounding, which Adam's division by the root of
        # a small second moment enlarges; an update moves a weight by 1e-4 to 1e-3.
        np.testing.assert_allclose(two[name], one[name], atol=1e-5, err_msg=name)


def test_a_log_file_has_everything_in_its_order(recipe, tmp_path):
    with open(tmp_path / "log", "w") as log:
        options = {"stdout": log, "stderr": log}
        model_dir = tmp_path / "model"
        run("train", recipe, "training.devices=2", f"model_dir={model_dir}", **options)
    text = (tmp_path / "log").read_text(encoding="utf-8")
    marks = [
        "training pairs",
        "training into",
        "step 1/6",
        "step 6/6",
        "dev loss",
        "done in",
        "Next",
    ]
    places = [text.index(mark) for mark in marks]
    assert places == sorted(places)


@pytest.mark.parametrize("devices", [1, 2])
def test_ctrl_c_saves_and_is_told_by_the_exit_code(recipe, tmp_path, devices):
    process = start(
        *("train", recipe, f"training.devices={devices}", "training.max_steps=100000"),
        f"model_dir={tmp_path / 'model'}",
    )
    for line in process.stderr:
        if line.startswith("step 3/"):
            process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130
    (saved,) = (tmp_path / "model" / "checkpoints").iterdir()
    assert int(saved.name.removeprefix("step_")) >= 3


def test_a_killed_process_ends_the_run_with_its_reason(recipe, tmp_path):
    process = start(
        *("train", recipe, "training.devices=2", "training.max_steps=100000"),
        f"model_dir={tmp_path / 'model'}",
    )
    workers: list[int] = []
    messages = []
    for line in process.stderr:
        messages.append(line)
        if line.startswith("step 3/"):
            (launcher,) = children(process.pid)
            workers = children(launcher)
            os.kill(workers[1], signal.SIGKILL)
    assert process.wait(timeout=60) == 1
    errors = [line for line in messages if line.startswith("error")]
    assert len(errors) == 1
    assert "a training process was killed" in errors[0]
    assert len(workers) == 2
    assert not any(os.path.exists(f"/proc/{worker}") for worker in workers)


def children(pid: int) -> list[int]:
    """In the order in which they were started, as far as their numbers tell."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended in the meantime
            # pid (name) state parent ...; the name may hold anything, so from its end on
            if int(stat.read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(stat.parent.name))
    return sorted(found)
