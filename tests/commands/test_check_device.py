"""The command `check-device`: the whole of it on a CPU, and faults that it finds."""

import json
import math
import signal

import numpy as np
import paddle
import pytest

from tests.device_path import use_device_path
from tests.support import ROOT, run, run_command, start
from transformer_mt import kernels
from transformer_mt.commands import check_device
from transformer_mt.commands.check_device import Check, Device, Found, LeftOut, result
from transformer_mt.config import file as config_file
from transformer_mt.decoding import batch
from transformer_mt.kernels.cpu import CpuOperations
from transformer_mt.model import costs, operations
from transformer_mt.utils.errors import UserError

NAMED = {check.name: check for check in check_device.checks()}


# ---- The whole command ----


def test_a_cpu_passes(tmp_path):
    path = tmp_path / "check.json"
    done = run("check-device", "--device", "cpu", "--json", path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == "" and max(map(len, done.stdout.split("\n"))) <= 100
    report = json.loads(path.read_text(encoding="utf-8"))
    assert report["finished"]
    assert "transformer_mt" in report["machine"]["Program"]
    assert paddle.__version__ in report["machine"]["Paddle"]
    assert [line["check"] for line in report["checks"]] == list(NAMED)
    place = 0
    for line in report["checks"]:
        name = line["check"]
        place = done.stdout.index(f"{line['verdict']:<8}  {name}", place)
        needs_gpu = name.endswith(("bfloat16", "float16")) or " base" in name
        assert line["verdict"] == ("left out" if needs_gpu else "ok"), line
        assert all(error <= line["limit"] for error in line["errors"].values())


def test_ctrl_c_ends_it_and_leaves_what_is_known(tmp_path):
    path = tmp_path / "check.json"
    process = start("check-device", "--device", "cpu", "--json", path)
    for line in process.stdout:
        if "pre-norm" in line:
            process.send_signal(signal.SIGINT)
            break
    process.stdout.read()
    assert process.wait(timeout=60) == 130
    report = json.loads(path.read_text(encoding="utf-8"))
    assert not report["finished"]
    assert report["checks"][0]["check"] == "gradients, post-norm, float32"


def test_the_measured_models_are_those_of_the_recipes():
    for name, recipe in {"tiny": "multi30k_en_de", "base": "wmt14_en_de_base"}.items():
        model = config_file.load(ROOT / "configs" / f"{recipe}.yaml", []).model.model_dump()
        own = check_device.SIZES[name]
        assert own == {key: model[key] for key in own}


# ---- Faults ----


def of_all(function, change):
    return lambda *arguments, **options: change(function(*arguments, **options))


def no_mask(self, ids):
    return paddle.zeros([len(ids), 1, 1, ids.shape[1]], "bool")


class WrongNorm(CpuOperations):
    def layer_norm(self, *arguments):
        return super().layer_norm(*arguments) * 1.01


class WrongMixture(CpuOperations):
    def plus_softmax(self, *arguments):
        return super().plus_softmax(*arguments) * 1.01


def chosen(kind):
    return lambda: operations.use(kind())


GRADIENTS = {f"gradients, {kind}, float32" for kind in check_device.KINDS}
Adam, never_chosen = paddle.optimizer.Adam, batch.never_chosen
# What is broken, and the checks that find it; the reference is not broken.
FAULTS = {
    "layer norm off by 1 %": (
        (kernels, "choose", chosen(WrongNorm)), GRADIENTS | {"ten updates, float32"},
    ),
    "a wrong gradient of copying": (
        (kernels, "choose", chosen(WrongMixture)), {"gradients, copying, float32"},
    ),
    "an error while speed is measured": (
        (Device, "seconds", lambda *_: 1 / 0),
        {"speed: training tiny, float32", "speed: decoding tiny"},
    ),
    "memory that is predicted wrongly": (
        (costs, "activation_bytes", of_all(costs.activation_bytes, lambda x: x // 2)),
        {"memory of an update"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_fails_its_own_lines(monkeypatch, tmp_path, capsys, fault):
    (owner, name, broken), expected = FAULTS[fault]
    monkeypatch.setattr(owner, name, broken)
    some = [check for check in check_device.checks() if not check.name.endswith("float16")]
    some = [check for check in some if check.name in expected or "post-norm" in check.name]
    monkeypatch.setattr(check_device, "checks", lambda: some)
    path = tmp_path / "check.json"
    with pytest.raises(UserError) as caught:
        run_command("check-device", device="cpu", json=path)
    assert caught.value.exit_code == 1
    report = json.loads(path.read_text(encoding="utf-8"))
    failed = [line for line in report["checks"] if line["verdict"] == "FAILED"]
    assert report["finished"] and all(line["advice"] for line in failed)
    assert expected <= {line["check"] for line in failed}
    assert "What to do:" in capsys.readouterr().out


def test_errors_of_all_kinds_are_failures_of_their_lines():
    paddles = (
        "\n\n------------\nC++ Traceback (most recent call last):\n------------\n0  phi::f()\n\n"
        "------------\nError Message Summary:\n------------\nFatalError: CUDA error(700)\n"
    )

    def raising(error):
        def check(machine):
            raise error

        return check

    device = Device("cpu")
    for error, verdict, found in (
        (RuntimeError(paddles), "FAILED", "RuntimeError: FatalError: CUDA error(700)"),
        (MemoryError("none left"), "FAILED", "MemoryError: none left"),
        (LeftOut("no GPU"), "left out", "no GPU"),
    ):
        line = result(device, Check("name", raising(error), "Report it"))
        assert (line["verdict"], line["found"]) == (verdict, found)


@pytest.mark.parametrize(
    ("error", "verdict"), [(1e-6, "ok"), (2e-5, "FAILED"), (math.nan, "FAILED")]
)
def test_the_worst_error_decides(error, verdict):
    found = Found({"small": 1e-9, "x": error}, 1e-5)
    line = result(Device("cpu"), Check("name", lambda device: found, "Report it"))
    assert line["verdict"] == verdict
    assert ("x" in line["found"].partition(")")[2]) == (verdict == "FAILED")


# ---- The code for a GPU ----


def test_the_operations_for_a_gpu_pass_too(monkeypatch):
    """Those that Paddle computes where the tensors are not in the memory of the host."""
    use_device_path(monkeypatch)
    device = Device("cpu")
    for name in ("gradients, copying, float32", "ten updates, float32", "a beam of 5, pre-norm"):
        line = result(device, NAMED[name])
        assert line["verdict"] == "ok", line["found"]


@pytest.mark.filterwarnings("ignore:amp_guard can only be enabled")
def test_the_code_for_half_precision_runs(monkeypatch):
    """Paddle casts nothing on a CPU, so that the results are those in float32. The factor of the
    loss is that of float16."""
    use_device_path(monkeypatch)
    monkeypatch.setattr(Device, "require", lambda self, precision: None)
    for name in ("gradients, post-norm, float16", "ten updates, float16"):
        line = result(Device("cpu"), NAMED[name])
        assert line["verdict"] == "ok", line["found"]


def test_products_that_round_as_tf32_get_its_limit(monkeypatch):
    assert Device("cpu").rounding("float32") == "float32"
    matmul = paddle.matmul

    def rounded(x, y):
        def to_ten_bits(t):
            bits = t.numpy().view(np.uint32)
            return paddle.to_tensor(((bits + 0x1000) & 0xFFFFE000).view(np.float32))

        return matmul(to_ten_bits(x), to_ten_bits(y))

    monkeypatch.setattr(paddle, "matmul", rounded)
    assert Device("cpu").rounding("float32") == "TF32"
