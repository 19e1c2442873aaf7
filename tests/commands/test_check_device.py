"""The command `check-device`: the whole of it on a CPU, and faults that it finds."""

import json
import math
import signal

import numpy as np
import paddle
import pytest

from tests.device_path import use_device_path
from tests.support import ROOT
from transformer_mt import kernels
from transformer_mt.commands import check_device
from transformer_mt.commands.check_device import Device, Found, checks, result
from transformer_mt.config import file as config_file
from transformer_mt.kernels.cpu import CpuOperations
from transformer_mt.model import costs, operations
from transformer_mt.utils.errors import Interrupted


@pytest.fixture(scope="module")
def device():
    return Device("cpu")


@pytest.fixture
def check(call, tmp_path):
    """Runs the command, with some of its checks. Returns the exit code, the output and the JSON."""

    def run(monkeypatch=None, *words):
        if words:
            every = checks(Device("cpu"))
            some = {name: every[name] for name in every if any(word in name for word in words)}
            monkeypatch.setattr(check_device, "checks", lambda device: some)
        done = call("check-device", "--device", "cpu", "--json", tmp_path / "check.json")
        report = json.loads((tmp_path / "check.json").read_text(encoding="utf-8"))
        return done.returncode, done.stdout, report

    return run


def test_a_cpu_passes(check, device):
    code, output, report = check()
    assert code == 0 and report["finished"] and paddle.__version__ in output
    assert "float16 needs a GPU" in report["machine"]["Left out"]
    assert report["machine"]["Products"] == kernels.cpu_products()
    assert [line["check"] for line in report["checks"]] == list(checks(device))
    for line in report["checks"]:
        assert line["verdict"] == "ok" and f"ok      {line['check']} " in output
        assert all(error <= line["limit"] for error in line["errors"].values())


def test_ctrl_c_ends_it_and_leaves_what_is_known(check, monkeypatch, tmp_path):
    def stop():
        raise Interrupted(signal.SIGINT)

    some = {"first": lambda: Found({"x": 0.0}, 1.0), "second": stop}
    monkeypatch.setattr(check_device, "checks", lambda device: some)
    code, _, report = check()
    assert code == 130 and not report["finished"]
    assert [line["check"] for line in report["checks"]] == ["first"]


def test_the_measured_models_are_those_of_the_recipes():
    for name, recipe in {"tiny": "multi30k_en_de", "base": "wmt14_en_de_base"}.items():
        model = config_file.load(ROOT / "configs" / f"{recipe}.yaml", []).model.model_dump()
        own = check_device.SIZES[name]
        assert own == {key: model[key] for key in own}


# ---- Faults ----


class WrongNorm(CpuOperations):
    def layer_norm(self, *arguments):
        return super().layer_norm(*arguments) * 1.01


class WrongMixture(CpuOperations):
    def plus_softmax(self, *arguments):
        return super().plus_softmax(*arguments) * 1.01


activation_bytes = costs.activation_bytes
GRADIENTS = {f"gradients, {kind}, float32" for kind in check_device.KINDS}
# What is broken, and the checks that find it; the reference is not broken.
FAULTS = {
    "layer norm off by 1 %": (
        (kernels, "choose", lambda: operations.use(WrongNorm())),
        GRADIENTS | {"ten updates, float32"},
    ),
    "a wrong gradient of copying": (
        (kernels, "choose", lambda: operations.use(WrongMixture())),
        {"gradients, copying, float32"},
    ),
    "an error while speed is measured": (
        (Device, "speed", lambda *_: 1 / 0),
        {"speed of training, tiny, float32", "speed of decoding, tiny"},
    ),
    "memory that is predicted wrongly": (
        (costs, "activation_bytes", lambda *args: activation_bytes(*args) // 2),
        {"memory of an update"},
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_fails_its_own_lines(monkeypatch, check, fault):
    (owner, name, broken), expected = FAULTS[fault]
    monkeypatch.setattr(owner, name, broken)
    code, output, report = check(monkeypatch, *expected)
    failed = {line["check"] for line in report["checks"] if line["verdict"] == "FAILED"}
    assert code == 1 and report["finished"] and failed == expected
    assert all(f"FAILED  {name} " in output for name in expected)


PADDLES = (
    "\n\n------------\nC++ Traceback (most recent call last):\n------------\n0  phi::f()\n\n"
    "------------\nError Message Summary:\n------------\nFatalError: CUDA error(700)\n"
)


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (RuntimeError(PADDLES), "RuntimeError: FatalError: CUDA error(700)"),
        (MemoryError("none left"), "MemoryError: none left"),
    ],
)
def test_errors_of_all_kinds_are_failures_of_their_lines(device, error, found):
    def raising():
        raise error

    line = result(device, "name", raising)
    assert (line["verdict"], line["found"]) == ("FAILED", found)


@pytest.mark.parametrize(
    ("error", "verdict"), [(1e-6, "ok"), (2e-5, "FAILED"), (math.nan, "FAILED")]
)
def test_the_worst_error_decides(device, error, verdict):
    found = Found({"small": 1e-9, "x": error}, 1e-5)
    line = result(device, "name", lambda: found)
    assert line["verdict"] == verdict
    assert ("x" in line["found"].partition(")")[2]) == (verdict == "FAILED")
    json.dumps(line, allow_nan=False)


# ---- The code for a GPU ----


@pytest.mark.filterwarnings("ignore:amp_guard can only be enabled")
def test_the_code_for_a_gpu_and_for_half_precision_runs(monkeypatch, device):
    """What Paddle computes where tensors are not in the memory of the host. It casts nothing on a
    CPU, so that half precision is as float32, with the loss scale of float16."""
    use_device_path(monkeypatch)
    monkeypatch.setitem(device.rounding, "float16", "float16")
    named = checks(device)
    for name in ("gradients, copying, float32", "a beam of 5, pre-norm", "ten updates, float16"):
        line = result(device, name, named[name])
        assert line["verdict"] == "ok", line["found"]


def test_products_that_round_as_tf32_get_its_limit(monkeypatch, device):
    assert device.rounding["float32"] == "float32"
    matmul = paddle.matmul

    def to_ten_bits(t):
        bits = t.numpy().view(np.uint32)
        return paddle.to_tensor(((bits + 0x1000) & 0xFFFFE000).view(np.float32))

    monkeypatch.setattr(paddle, "matmul", lambda x, y: matmul(to_ten_bits(x), to_ten_bits(y)))
    assert Device("cpu").rounding["float32"] == "TF32"
