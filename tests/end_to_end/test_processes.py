"""Several training processes: they train the model that one would, and fail as one."""

import json
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.support import (
    ROOT,
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
from transformer_mt.training import launch
from transformer_mt.utils.errors import UserError
from transformer_mt.weights import read_tensors


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    """A config file of a tiny model without dropout, on real lines."""
    folder = tmp_path_factory.mktemp("processes")
    pairs = demo_pairs(260)
    write_pairs(folder / "text", "train", pairs[:200])
    write_pairs(folder / "text", "dev", pairs[200:230])
    config = make_config(
        folder,
        data={"dev": "dev", "held_out": 0},
        # Two batches an update, so that the processes take whole ones; and then a last, single one.
        training={
            "max_steps": 6,
            "batch_tokens": 800,
            "device_tokens": 400,
            "log_every": 1,
            "validate_every": 3,
        },
    )
    path = folder / "recipe.yaml"
    path.write_text(dump(config), encoding="utf-8")
    return path


def weights(model_dir) -> dict[str, np.ndarray]:
    return read_tensors(model_dir / "checkpoints" / "step_6" / "model.safetensors")


def dev_losses(model_dir) -> list[float]:
    lines = (model_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [line["nll"] for line in map(json.loads, lines) if line["kind"] == "dev"]


@pytest.fixture(scope="module")
def one(recipe, tmp_path_factory) -> Path:
    """What one process trains, adding up the gradients of both batches of an update."""
    model_dir = tmp_path_factory.mktemp("one") / "model"
    train(recipe, 1, model_dir)
    return model_dir


def train(recipe, devices, model_dir, *more, **options):
    begin = run_here if devices == 1 else run
    command = ("train", recipe, f"training.devices={devices}", f"model_dir={model_dir}", *more)
    done = begin(*command, **options)
    assert done.returncode == 0, done.stderr
    return done


def assert_same_training(model_dir, other):
    found, expected = weights(model_dir), weights(other)
    for name in expected:
        # The gradient of a key's bias is 0 but for rounding, of which Adam makes whole steps.
        if "key_projection.bias" in name:
            continue
        # Sums in another order differ by float32's rounding, which Adam's division by the root of
        # a small second moment enlarges; an update moves a weight by 1e-4 to 1e-3.
        np.testing.assert_allclose(found[name], expected[name], atol=1e-5, err_msg=name)
    losses = dev_losses(other)
    assert len(losses) == 2 and dev_losses(model_dir) == pytest.approx(losses, rel=1e-5)


@pytest.fixture(scope="module")
def two(recipe, tmp_path_factory) -> Path:
    """A folder in which two processes have trained `model`, and have said what is in `log`. Where
    they share files, somebody else had put a link to the folder `other` before."""
    folder = tmp_path_factory.mktemp("two")
    (folder / "model").mkdir()
    (folder / "other").mkdir()
    (folder / "other" / "job.pickle").write_bytes(b"mine")
    (folder / "model" / ".workers").symlink_to(folder / "other")
    with open(folder / "log", "w") as log:
        train(recipe, 2, folder / "model", stdout=log, stderr=log)
    return folder


def test_two_processes_train_the_same_model_as_one(two, one):
    assert_same_training(two / "model", one)
    # Nothing that others left is read or followed.
    assert not (two / "model" / ".workers").is_symlink()
    assert (two / "other" / "job.pickle").read_bytes() == b"mine"
    assert os.listdir(two / "other") == ["job.pickle"]


@pytest.mark.slow
def test_a_divided_state_is_saved_whole(recipe, one, tmp_path):
    """Two processes that share the optimiser's state train a half; one process trains the rest."""
    train(recipe, 2, tmp_path / "model", "training.sharding=true", "training.max_steps=3")
    train(recipe, 1, tmp_path / "model")
    assert_same_training(tmp_path / "model", one)


@pytest.mark.slow
def test_two_machines_train_the_same_model_as_one(recipe, one, tmp_path):
    """Each with a launcher of its own, as on two machines; the second does not see the first's
    folder for encoded text."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    machines = []
    for number in ("1", "2"):
        command = [
            *(sys.executable, "-m", "paddle.distributed.launch"),
            *("--master", f"127.0.0.1:{port}", "--nnodes", "2", "--nproc_per_node", "1"),
            *("--log_dir", tmp_path / f"log{number}"),
            *(ROOT / "transformer_mt" / "__main__.py", "train", recipe),
            *(f"model_dir={tmp_path / 'model'}", f"data.cache={tmp_path / number}"),
        ]
        said = open(tmp_path / f"said{number}", "w")  # noqa: SIM115 (the child's)
        machines.append(subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT))
    try:
        codes = [machine.wait(timeout=TIMEOUT) for machine in machines]
    finally:
        for machine in machines:
            machine.kill()
    assert codes == [0, 0], "".join(path.read_text() for path in tmp_path.glob("said*"))
    assert_same_training(tmp_path / "model", one)


def test_a_log_file_has_everything_in_its_order(two):
    text = (two / "log").read_text(encoding="utf-8")
    marks = ["training pairs", "training into", "step 1/6", "dev smoothed loss", "step 6/6", "Next"]
    places = [text.index(mark) for mark in marks]
    assert places == sorted(places)
    # train.log has the same lines, after their times.
    own = (two / "model" / "train.log").read_text(encoding="utf-8").splitlines()
    assert sorted(line[21:] for line in own) == sorted(text.splitlines())


def test_a_killed_process_ends_the_run_with_its_reason(recipe, tmp_path):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    process = start(
        *("train", recipe, "training.devices=2", "training.max_steps=100000"),
        f"model_dir={tmp_path / 'model'}",
        env=os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)},
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
    assert messages[-1] == errors[0], messages  # and nothing of the other process' end
    assert not list(temporary.glob("transformer_mt-*"))


# Of every process that the tests start: in the second worker, the first validation fails.
FAILING = """
import os

if os.environ.get("PADDLE_TRAINER_ID") == "1":
    from transformer_mt.decoding.line_translator import LineTranslator

    def fail(*arguments):
        raise ValueError("could not broadcast")

    LineTranslator.translate = fail
"""


@pytest.mark.slow
def test_a_validation_that_fails_in_one_process_leaves_the_checkpoint(recipe, one, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(FAILING)
    command = ("train", recipe, "training.devices=2", f"model_dir={tmp_path / 'model'}")
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    done = run(*command, env=os.environ | {"PYTHONPATH": path, "LC_ALL": "C.UTF-8"})
    assert done.returncode == 1 and "could not broadcast" in done.stderr
    assert os.listdir(tmp_path / "model" / "checkpoints") == ["step_3"]
    assert "going on from" in train(recipe, 2, tmp_path / "model").stderr
    assert_same_training(tmp_path / "model", one)


# ---- What the processes share ----


# Writes a file with the rank of each process that reads a module.
IS_READ = """
import pathlib

pathlib.Path({folder!r}, os.environ.get("PADDLE_TRAINER_ID", "parent")).touch()
"""


@pytest.mark.slow
def test_the_workers_run_the_package_that_started_them(recipe, tmp_path):
    """A copy of the package that is not installed, where another one is."""
    copy, readers = tmp_path / "transformer_mt", tmp_path / "readers"
    shutil.copytree(ROOT / "transformer_mt", copy, ignore=shutil.ignore_patterns("__pycache__"))
    readers.mkdir()
    with open(copy / "training" / "parallel.py", "a") as file:
        file.write(IS_READ.format(folder=str(readers)))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"LC_ALL": "C.UTF-8"}
    train(recipe, 2, tmp_path / "model", cwd=tmp_path, env=environment, is_fresh=True)
    assert {path.name for path in readers.iterdir()} == {"parent", "0", "1"}


def test_a_worker_reads_only_what_its_run_has_written(tmp_path):
    job = tmp_path / "job.pickle"
    job.write_bytes(pickle.dumps("something else"))
    with pytest.raises(UserError, match="changed after the run wrote it"):
        launch.work(job, "0" * 64)
