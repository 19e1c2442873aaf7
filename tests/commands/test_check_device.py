"""The command `check-device`: the whole of it on a CPU, and faults that it finds."""

import json
import signal

import numpy as np
import paddle
import pytest

from tests.support import run, run_command, start
from transformer_mt.decoding import batch
from transformer_mt.device_check import checks, processes
from transformer_mt.device_check.checks import Check
from transformer_mt.device_check.report import Finding
from transformer_mt.inspect import memory
from transformer_mt.inspect.flops import FlopCounter
from transformer_mt.model import operations, transformer
from transformer_mt.training import checkpoint
from transformer_mt.training.update import Outcome
from transformer_mt.utils.errors import UserError

# The checks that a fault in their group is not tried on, because they take long.
SLOW = ("processes", "50 updates")


# ---- The whole command ----


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What the command says on the CPU, and the file that it writes."""
    path = tmp_path_factory.mktemp("check") / "check.json"
    return run("check-device", "--device", "cpu", "--json", path), path


def test_a_cpu_passes(whole):
    done, path = whole
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    report = json.loads(path.read_text(encoding="utf-8"))
    assert report["finished"] and report["passed"]
    names = [(check.group, check.name) for check in checks.all_checks()]
    assert [(line["group"], line["check"]) for line in report["checks"]] == names
    assert "transformer_mt" in report["machine"]["Program"]
    assert paddle.__version__ in report["machine"]["Paddle"]
    for line in report["checks"]:
        assert line["verdict"] in ("ok", "left out")
        assert line["found"]
        for figure in line["figures"]:
            # Speeds have no limit.
            assert figure["limit"] == "inf" or figure["value"] <= figure["limit"]


def test_what_a_cpu_leaves_out_is_what_needs_a_gpu(whole):
    lines = json.loads(whole[1].read_text(encoding="utf-8"))["checks"]
    left_out = {line["check"] for line in lines if line["verdict"] == "left out"}
    needs_gpu = {"outputs beside the CPU's", "running out of memory"}
    too_slow = {name for name in left_out if "big" in name or "base" in name}
    half = {name for name in left_out if name.endswith(("bfloat16", "float16"))}
    assert left_out == needs_gpu | too_slow | half
    assert needs_gpu <= left_out and too_slow and half


def test_every_line_is_printed_below_the_heading_of_its_group(whole):
    done, path = whole
    report = json.loads(path.read_text(encoding="utf-8"))
    place = 0
    for line in report["checks"]:
        place = done.stdout.index(f"  {line['verdict']:<8}  {line['check']}", place)
        heading = done.stdout.rindex("\n\n", 0, place)
        assert done.stdout[heading:].startswith(f"\n\n{line['group']}\n")
    assert max(map(len, done.stdout.split("\n"))) <= 100


def test_ctrl_c_ends_it_and_leaves_what_is_known(tmp_path):
    path = tmp_path / "check.json"
    process = start("check-device", "--device", "cpu", "--json", path)
    for line in process.stdout:
        if "linear layer" in line:
            process.send_signal(signal.SIGINT)
            break
    process.stdout.read()
    assert process.wait(timeout=60) == 130
    report = json.loads(path.read_text(encoding="utf-8"))
    assert not report["finished"]
    assert report["checks"][0]["check"] == "products of matrices"


# ---- Faults ----


def failing(monkeypatch, tmp_path, names) -> dict[str, str]:
    """Runs the checks with these names, or of these groups; returns those that fail, and their
    messages. The command must fail if one of them does."""
    chosen = [
        check
        for check in checks.all_checks()
        if check.name in names or (check.group in names and not check.name.startswith(SLOW))
    ]
    assert chosen
    monkeypatch.setattr(checks, "all_checks", lambda: chosen)
    path = tmp_path / "check.json"
    try:
        run_command("check-device", device="cpu", json=path)
        has_failed = False
    except UserError as error:
        assert error.exit_code == 1
        has_failed = True
    report = json.loads(path.read_text(encoding="utf-8"))
    assert report["finished"]
    assert [line["check"] for line in report["checks"]] == [check.name for check in chosen]
    failed = {line["check"]: line for line in report["checks"] if line["verdict"] == "FAILED"}
    assert all(line["advice"] for line in failed.values())
    assert report["passed"] == (not has_failed) == (not failed)
    return {name: line["found"] for name, line in failed.items()}


def no_mask(self, ids):
    return paddle.zeros([len(ids), 1, 1, ids.shape[1]], "bool")


def another_dropout(function, *arguments):
    """As `recompute`, but the layer draws another dropout than without it."""
    paddle.rand([3])
    return function(*arguments)


def of_all(function, change):
    return lambda *arguments, **options: change(function(*arguments, **options))


layer_norm, dropout, plus_softmax = (
    operations.layer_norm, operations.dropout, operations.plus_softmax,
)  # fmt: skip
Adam, never_chosen = paddle.optimizer.Adam, batch.never_chosen
FAULTS = {
    "layer norm off by 1 %": (
        (operations, "layer_norm", of_all(layer_norm, lambda x: x * 1.01)),
        checks.OPERATIONS,
        {"layer norm", "residual and norm", "residual with dropout"},
    ),
    "dropout at a wrong rate": (
        (operations, "dropout", lambda x, rate: dropout(x, rate + 0.01)),
        checks.OPERATIONS,
        {"dropout", "residual with dropout"},
    ),
    "a wrong gradient of copying": (
        (operations, "plus_softmax", of_all(plus_softmax, lambda x: x * 1.01)),
        checks.OPERATIONS,
        {"mixture of copying"},
    ),
    "no mask of padding": (
        (transformer.Transformer, "_source_mask", no_mask),
        checks.MODEL,
        # Copying reads the weights of the attention, which must be 0 at padding.
        {"padding", "copying"},
    ),
    "no mask of later positions": (
        (transformer, "causal_mask", lambda length: paddle.zeros([length, length], "bool")),
        checks.MODEL,
        {"causality", "padding"},  # a query also attends to padding at the end
    ),
    "another rule of Adam": (
        (paddle.optimizer, "Adam", lambda **options: Adam(**{**options, "beta2": 0.9})),
        {"50 updates, float32", "clipping", "recompute"},
        {"50 updates, float32"},
    ),
    "an update that is not skipped": (
        (Outcome, "is_finite", True),
        checks.TRAINING,
        {"skipped update, float32"},
    ),
    "another dropout with recompute": (
        (transformer, "recompute", another_dropout),
        checks.TRAINING,
        {"recompute"},
    ),
    "a checkpoint that is not loaded": (
        (checkpoint, "load_weights", lambda path, model: None),
        checks.TRAINING,
        {"checkpoint, device to CPU", "checkpoint, CPU to device"},
    ),
    "a search that drops an id": (
        (batch, "never_chosen", lambda target: (*never_chosen(target), 4, 31)),
        checks.DECODING,
        {"greedy search", "beam search", "sampling"},
    ),
    "scores that leave out the end": (
        (
            batch,
            "sums_of_log_probs",
            of_all(batch.sums_of_log_probs, lambda x: [0.9 * y for y in x]),
        ),
        checks.DECODING,
        {"scores"},
    ),
    "memory that is predicted wrongly": (
        (memory, "activation_bytes", of_all(memory.activation_bytes, lambda x: x // 2)),
        checks.MEMORY,
        {"an update, float32"},
    ),
    "an error while speed is measured": (
        (FlopCounter, "training", property(lambda self: 1 / 0)),
        {"training tiny, float32", "decoding tiny, beam of 1"},
        {"training tiny, float32"},
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_fails_its_own_lines(monkeypatch, tmp_path, capsys, fault):
    (owner, name, broken), group, expected = FAULTS[fault]
    monkeypatch.setattr(owner, name, broken)
    names = {group} if isinstance(group, str) else group
    assert failing(monkeypatch, tmp_path, names).keys() == expected
    shown = capsys.readouterr().out
    assert f"{len(expected)} failed" in shown and "What to do:" in shown


def test_processes_that_end_fail_their_line_alone(monkeypatch, tmp_path):
    def run_workers(*arguments):
        raise UserError("a training process was killed or stopped")

    monkeypatch.setattr(processes, "run_workers", run_workers)
    names = {"processes beside one process", "clipping"}
    failed = failing(monkeypatch, tmp_path, names)
    assert failed == {
        "processes beside one process": "UserError: a training process was killed or stopped"
    }


def test_processes_that_add_up_wrongly_are_seen(monkeypatch, tmp_path):
    """The workers are other processes, so that what they hand over is changed."""
    read = processes.tensors.read

    def run_workers(make, config, data, directory, *others):
        start = read(directory.path / processes.BEFORE)
        processes.tensors.write(directory.path / processes.AFTER, start)  # no gradient arrived

    monkeypatch.setattr(processes, "run_workers", run_workers)
    names = {"processes beside one process"}
    assert failing(monkeypatch, tmp_path, names).keys() == names


def test_errors_of_all_kinds_are_failures_of_their_lines(monkeypatch, tmp_path):
    paddles = (
        "\n\n------------\nC++ Traceback (most recent call last):\n------------\n0  phi::f()\n\n"
        "------------\nError Message Summary:\n------------\nFatalError: CUDA error(700)\n"
    )

    def raising(error):
        def check(machine):
            raise error

        return check

    made = [
        Check("One", "first", raising(RuntimeError(paddles)), "report it"),
        Check("One", "second", raising(MemoryError("none left")), "report it"),
        Check("Two", "third", raising(AssertionError()), "report it"),
        Check("Two", "fourth", lambda machine: Finding(True, "fine"), "report it"),
    ]
    monkeypatch.setattr(checks, "all_checks", lambda: made)
    found = failing(monkeypatch, tmp_path, {"One", "Two"})
    assert found == {
        "first": "RuntimeError: FatalError: CUDA error(700)",
        "second": "MemoryError: none left",
        "third": "AssertionError: ",
    }


def test_numbers_that_are_not_numbers_fail(monkeypatch, tmp_path):
    monkeypatch.setattr(
        operations, "linear", of_all(operations.linear, lambda x: x * np.float32("nan"))
    )
    failed = failing(monkeypatch, tmp_path, {"linear layer", "output layer"})
    assert failed.keys() == {"linear layer"} and "nan" in failed["linear layer"]
