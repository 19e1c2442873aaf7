"""The parts of `check-device`: its lines and file, its agreement with the recipes, and the branches
for a GPU, as far as a CPU can run them."""

import contextlib
import json
import math
import re

import numpy as np
import paddle
import pytest

from tests.device_path import use_device_path
from tests.support import ROOT
from transformer_mt.config import file as config_file
from transformer_mt.device_check import (
    checks,
    decoding,
    examples,
    machine,
    memory,
    model,
    operations,
    speed,
    training,
)
from transformer_mt.device_check.machine import Machine, relative_error
from transformer_mt.device_check.report import Figure, Finding, LeftOut, Line, Report
from transformer_mt.device_check.run import line_of
from transformer_mt.utils import device as devices

RECIPES = sorted((ROOT / "configs").glob("*.yaml"))
NAMED = {check.name: check for check in checks.all_checks()}


# ---- Lines and the file ----


@pytest.mark.parametrize(
    ("value", "limit", "passes"),
    [(1e-6, 1e-5, True), (2e-5, 1e-5, False), (math.nan, 1.0, False), (0, 0, True), (1, 0, False)],
)
def test_a_figure_passes_up_to_its_limit(value, limit, passes):
    assert Figure("", value, limit).passes == passes
    assert Finding.of([Figure("", 0.0, 1.0), Figure("", value, limit)]).passed == passes


def test_the_worst_figure_of_each_title_is_shown():
    figures = [
        Figure("float32", 1e-6, 1e-5, "value"),
        Figure("float32", 3e-5, 1e-5, "gradient of x"),
        Figure("float16", 1e-3, 5e-3, "value"),
    ]
    text = Finding.of(figures, "and more").text
    assert text == (
        "float32 3e-05 (limit 1e-05) (gradient of x); float16 0.001 (limit 0.005); and more"
    )
    assert "nan" in Finding.of([Figure("", 1e-6, 1e-5), Figure("", math.nan, 1e-5)]).text


def test_the_file_is_whole_after_every_line(tmp_path, capsys):
    path = tmp_path / "check.json"
    report = Report({"Device": "a CPU"}, path)
    assert json.loads(path.read_text())["checks"] == []
    report.add(Line("One", "first", "ok", "fine", figures=[Figure("x", math.nan, math.inf)]))
    read = json.loads(path.read_text())
    assert not read["finished"] and read["passed"]
    assert read["checks"][0]["figures"] == [
        {"title": "x", "value": "nan", "limit": "inf", "detail": ""}
    ]
    report.add(Line("One", "second", "FAILED", "wrong", "Do this."))
    report.finish(1.0)
    read = json.loads(path.read_text())
    assert read["finished"] and not read["passed"]
    shown = capsys.readouterr().out
    assert "1 ok, 1 failed, 0 left out, in 1 s\nFailed: second\n" in shown
    assert "            What to do: Do this.\n" in shown


def test_relative_errors():
    assert relative_error([1.0, 2.2], [1.0, 2.0]) == pytest.approx(0.1)
    assert relative_error([0.0, 1e-9], [0.0, 0.0]) == 1e-9
    assert math.isnan(relative_error([1.0, math.inf], [1.0, 2.0]))
    with pytest.raises(ValueError, match="shape"):
        relative_error([1.0], [1.0, 2.0])


def test_every_check_has_a_name_of_its_own_that_fits_its_column():
    everything = checks.all_checks()
    assert len(NAMED) == len(everything)
    assert all(len(check.name) <= 32 and check.advice.endswith(".") for check in everything)


# ---- The recipes ----


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_the_widths_of_every_recipe_are_checked(path):
    model = config_file.load(path, []).model
    assert model.d_model // model.num_heads in operations.HEAD_WIDTHS
    assert model.attention_dropout == 0.0  # fused attention is checked without


def test_the_measured_models_are_those_of_the_recipes():
    recipes = {"tiny": "multi30k_en_de", "base": "wmt14_en_de_base", "big": "wmt14_en_de_big"}
    for name, recipe in recipes.items():
        model = config_file.load(ROOT / "configs" / f"{recipe}.yaml", []).model.model_dump()
        assert speed.MODELS[name] == {key: model[key] for key in speed.MODELS[name]}


# ---- The code for a GPU ----

ON_A_CPU = [
    check.name
    for check in checks.all_checks()
    if check.group not in (checks.SPEED, checks.MEMORY)
    and not check.name.endswith(("bfloat16", "float16"))
    and not check.name.startswith(("processes", "outputs beside"))
]


def test_the_operations_for_a_gpu_pass_too(monkeypatch):
    """Those that Paddle computes where the tensors are not in the memory of the host."""
    use_device_path(monkeypatch)
    machine = Machine("cpu")
    lines = [line_of(machine, NAMED[name]) for name in ON_A_CPU]
    assert {line.check: line.found for line in lines if line.verdict != "ok"} == {}


@pytest.mark.filterwarnings("ignore:amp_guard can only be enabled")
@pytest.mark.parametrize(
    "name", ["50 updates", "skipped update", "an update", "loss and gradients"]
)
def test_the_code_for_half_precision_runs(monkeypatch, name):
    """Paddle casts nothing on a CPU, so that the results are those in float32. The factor of the
    loss is that of float16."""
    use_device_path(monkeypatch)
    monkeypatch.setattr(devices, "require_precision", lambda precision, device: None)
    seeming = Machine("cpu")
    found = [check for check in NAMED.values() if check.name.startswith(name)]
    for check in found:
        line = line_of(seeming, check)
        assert line.verdict == "ok", line.found
        assert "float16" in line.check + line.found or check.name.endswith("float32")


@pytest.fixture
def seeming_gpu(monkeypatch) -> Machine:
    """A machine whose checks take their branches for a GPU, while Paddle computes on the CPU."""

    class Properties:
        name, major, minor, total_memory, multi_processor_count = "NVIDIA A100", 8, 0, 80e9, 108

    monkeypatch.setattr(paddle.device, "synchronize", lambda *_: None)
    cuda = paddle.device.cuda
    monkeypatch.setattr(cuda, "get_device_properties", lambda *_: Properties)
    monkeypatch.setattr(cuda, "get_device_name", lambda *_: Properties.name)
    monkeypatch.setattr(cuda, "device_count", lambda: 1)
    monkeypatch.setattr(cuda, "empty_cache", lambda: None)
    machine = Machine("cpu")
    machine.name, machine.is_gpu = "gpu", True
    return machine


def test_a_seeming_gpu_is_described(seeming_gpu):
    found = seeming_gpu.describe()
    assert found["GPU"] == "NVIDIA A100, compute capability 8.0"
    assert found["Memory"] == "80.0 GB" and found["GPUs"] == "1"
    assert found["Driver"]  # "not known", unless there is one


def test_what_is_not_known_of_a_device_stops_nothing(seeming_gpu, monkeypatch):
    def properties(*arguments):
        raise AttributeError("no such thing")

    monkeypatch.setattr(paddle.device.cuda, "get_device_properties", properties)
    found = seeming_gpu.describe()
    assert found["GPU"] == found["Memory"] == "not known (AttributeError: no such thing)"
    assert found["GPUs"] == "1"


@pytest.mark.parametrize(
    "name", ["outputs beside the CPU's", "copying", "guided attention", "scheduled sampling"]
)
def test_what_is_compared_with_the_cpu_is_equal_to_it(seeming_gpu, name):
    line = line_of(seeming_gpu, NAMED[name])
    assert line.verdict == "ok", line.found
    assert all(figure.value == 0 for figure in line.figures)


def test_a_gpu_that_differs_from_the_cpu_fails(seeming_gpu, monkeypatch):
    """Losses are 1 % larger, except within `on_cpu`."""
    on_cpu, losses, inside = Machine.on_cpu, model.Updater.losses, []

    @contextlib.contextmanager
    def entered(self):
        with on_cpu(self):
            inside.append(True)
            yield
            inside.pop()

    def larger(self, batch, step=None):
        loss, nll = losses(self, batch, step)
        return (loss if inside else loss * 1.01), nll

    monkeypatch.setattr(Machine, "on_cpu", entered)
    monkeypatch.setattr(model.Updater, "losses", larger)
    line = line_of(seeming_gpu, NAMED["copying"])
    assert line.verdict == "FAILED" and "0.01" in line.found


def test_one_gpu_leaves_out_several_processes(seeming_gpu):
    line = line_of(seeming_gpu, NAMED["processes beside one process"])
    assert line.verdict == "left out" and "several GPUs" in line.found


@pytest.mark.parametrize("share", [0.5, 1.0, 1.6])
def test_the_memory_of_an_update_beside_the_prediction(seeming_gpu, monkeypatch, share):
    monkeypatch.setattr(memory, "_allocated", lambda machine: 1000)
    cuda = paddle.device.cuda
    config = examples.make_config({**memory.MODEL, "dropout": 0.1}, {"optimizer": "adam"})
    used = int(share * sum(memory.predicted(config))) + 1000
    monkeypatch.setattr(cuda, "reset_max_memory_allocated", lambda *_: None)
    monkeypatch.setattr(cuda, "max_memory_allocated", lambda *_: used)
    line = line_of(seeming_gpu, NAMED["an update, float32"])
    assert line.verdict == ("ok" if share == 1.0 else "FAILED")


OUT_OF_MEMORY = (
    "\n\nError Message Summary:\n----------------------\nResourceExhaustedError: \n\n"
    "Out of memory error on GPU 0. Cannot allocate 119.2GB memory on GPU 0, 1GB memory has been "
    "allocated and available memory is only 78GB.\n"
)


@pytest.mark.parametrize(
    ("message", "verdict"), [(OUT_OF_MEMORY, "ok"), ("CUDA error(700)", "FAILED")]
)
def test_running_out_of_memory(seeming_gpu, monkeypatch, message, verdict):
    """With a tensor that cannot be made, and an update that cannot be."""

    def empty(*arguments, **options):
        raise RuntimeError(message)

    losses = memory.Updater.losses

    def too_large(self, batch, step=None):
        if len(batch.source) > 2:
            raise RuntimeError(message)
        return losses(self, batch, step)

    monkeypatch.setattr(memory.paddle, "empty", empty)
    monkeypatch.setattr(memory.Updater, "losses", too_large)
    monkeypatch.setattr(Machine, "memory_bytes", int(1e9))
    line = line_of(seeming_gpu, NAMED["running out of memory"])
    assert line.verdict == verdict, line.found
    if verdict == "ok":
        assert "Out of memory error on GPU 0" in line.found


def test_memory_that_does_not_run_out_fails(seeming_gpu, monkeypatch):
    monkeypatch.setattr(memory.paddle, "empty", lambda *_, **__: None)
    line = line_of(seeming_gpu, NAMED["running out of memory"])
    assert line.verdict == "FAILED" and "without an error" in line.found


def test_fused_attention_beside_plain(seeming_gpu, monkeypatch):
    """On a CPU both are the plain one in the precision that Paddle has there, float32."""
    from transformer_mt.device_check import attention

    monkeypatch.setattr(Machine, "require", lambda self, precision: None)
    monkeypatch.setattr(Machine, "tolerance", lambda self, precision="float32": 1e-5)

    def check(precision):
        # float64 stands for a second precision: both sides see the same rounded inputs.
        return attention.fused_beside_plain(seeming_gpu, precision)

    plain = attention.ScaledDotProductAttention.forward
    assert "plain instead of fused: 15" in check("float64").text

    def fused(self, query, key, value, mask=None, need_weights=True):
        if not need_weights:
            attention.F.scaled_dot_product_attention(query)
        return plain(self, query, key, value, mask, need_weights)

    monkeypatch.setattr(attention.F, "scaled_dot_product_attention", lambda *_: None)
    monkeypatch.setattr(attention.ScaledDotProductAttention, "forward", fused)
    finding = check("float64")
    assert finding.passed, finding.text
    kinds = len(operations.attention_masks(4))
    assert len(finding.figures) == len(operations.HEAD_WIDTHS) * kinds * 4 + 1
    with pytest.raises(LeftOut):
        check("float32")

    def wrong(self, query, key, value, mask=None, need_weights=True):
        return fused(self, query, key, value, mask if need_weights else None, need_weights)

    monkeypatch.setattr(attention.ScaledDotProductAttention, "forward", wrong)
    assert not check("float64").passed


def test_products_that_round_as_tf32_get_its_tolerance(monkeypatch):
    machine = Machine("cpu")
    assert machine.float32 == "float32" and machine.tolerance() == 1e-5
    matmul = paddle.matmul

    def rounded(x, y):
        def to_ten_bits(t):
            bits = t.numpy().view(np.uint32)
            return paddle.to_tensor(((bits + 0x1000) & 0xFFFFE000).view(np.float32))

        return matmul(to_ten_bits(x), to_ten_bits(y))

    monkeypatch.setattr(paddle, "matmul", rounded)
    tf32 = Machine("cpu")
    assert tf32.float32 == "TF32"
    assert tf32.product_error < tf32.tolerance() == 3e-3
    line = line_of(tf32, NAMED["products of matrices"])
    assert line.verdict == "ok" and "TF32 is used" in line.found


def test_peak_speeds_are_found_by_the_name_of_the_gpu(seeming_gpu):
    assert speed._peak(seeming_gpu, "float32") == 19.5
    assert speed._peak(seeming_gpu, "bfloat16") == 312
    assert speed._peak(Machine("cpu"), "float32") is None


# ---- The page ----

PAGE = (ROOT / "docs" / "check-device.md").read_text(encoding="utf-8")


def test_the_page_shows_every_check():
    output = PAGE.partition("```text\n")[2].partition("```")[0]
    found = re.findall(r"(?m)^  (ok      |left out)  (.{32})", output)
    assert [name.rstrip() for _, name in found] == [check.name for check in checks.all_checks()]
    for check in checks.all_checks():
        assert f"\n\n{check.group}\n" in output
    assert "0 failed" in output


def test_the_limits_of_the_page_are_those_of_the_program():
    rows = {}
    for line in PAGE.partition("## Limits")[2].partition("\n\n## ")[0].split("\n"):
        name, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        rows[name] = [float(cell) for cell in cells if re.fullmatch(r"\d[\d.]*(e-\d+)?", cell)]
    order = ["float32", "TF32", "float16", "bfloat16"]
    operation = [machine.TOLERANCES[name] for name in order]
    assert rows["an operation, value and gradient"] == operation
    whole = [model.MODEL_FACTOR * limit for limit in operation]
    assert rows["a whole model, value and gradient"] == pytest.approx(whole)
    assert rows["the loss of each of 50 updates"] == [training.LOSS_LIMITS[n] for n in order]
    logs = [decoding.LOG_PROB_LIMITS[name] for name in order[:2]]
    assert rows["a log-probability, in nats"] == logs
    shares = [decoding.DIFFERENT[name] for name in order[:2]]
    assert rows["the share of outputs that differ"] == shares
    usual, half = memory.LIMITS["float32"], memory.LIMITS["float16"]
    assert rows["the memory of an update"] == [usual, usual, half, memory.LIMITS["bfloat16"]]
