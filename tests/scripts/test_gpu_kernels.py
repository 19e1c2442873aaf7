"""Every operation that the program runs has a kernel on a GPU, as far as scripts/gpu_kernels.json
knows, which lists the kernels of a wheel for GPUs."""

import json
import sys

import paddle
import pytest

from tests.support import ROOT

sys.path.insert(0, str(ROOT / "scripts"))
import gpu_kernels

ADVICE = "after a new operation, run scripts/gpu_kernels.py --record (see docs/gpu-kernels.md)"


@pytest.fixture(scope="module")
def recorded() -> dict:
    return json.loads(gpu_kernels.RECORD.read_text("utf-8"))


@pytest.fixture(scope="module")
def used() -> dict[str, set[str]]:
    return gpu_kernels.operations_used()


@pytest.mark.slow
def test_no_kernel_is_missing(used, recorded):
    _, missing = gpu_kernels.report(used, recorded)
    assert missing == [], ADVICE


@pytest.mark.slow
def test_the_record_holds_what_is_run_and_nothing_else(used, recorded):
    assert recorded["kernels"].keys() == used.keys(), ADVICE


@pytest.mark.slow
def test_the_page_has_the_table(used, recorded):
    table, _ = gpu_kernels.report(used, recorded)
    assert table in (ROOT / "docs" / "gpu-kernels.md").read_text("utf-8"), ADVICE


def test_the_trace_sees_the_gradient_of_an_embedding():
    """Its kernel is the one that the profiler does not see."""
    weight = paddle.ones([5, 3])
    weight.stop_gradient = False
    found = gpu_kernels.traced(
        lambda: paddle.nn.functional.embedding(paddle.to_tensor([1, 4]), weight).sum().backward()
    )
    assert {"embedding", "embedding_grad"} <= found


def test_the_trace_sees_forward_and_backward_and_nothing_else():
    x = paddle.ones([2, 3])
    x.stop_gradient = False

    def run():
        paddle.tanh(x @ x.t()).sum().backward()

    found = gpu_kernels.traced(run)
    expected = {"transpose", "matmul", "tanh", "sum"}
    assert expected | {f"{name}_grad" for name in expected} <= found
    # Besides: the gradient of the end is made, and that of x added up from two.
    assert len(found) <= 2 * len(expected) + 2 and not found & {"relu", "softmax", "dropout"}


@pytest.mark.parametrize(
    ("operation", "users", "kernels", "problem"),
    [
        ("relu", {"model"}, {"relu": ["bfloat16", "float16", "float32"]}, None),
        ("relu", {"model"}, {"relu": ["float16", "float32"]}, "no kernel for bfloat16"),
        ("relu", {"training"}, {"relu": ["float32"]}, None),
        ("relu", {"decoding"}, {"relu": ["float64"]}, "no kernel for float32"),
        ("relu", {"model"}, {"relu": []}, "no kernel for a GPU"),
        ("relu", {"model"}, {"relu": None}, "does not know it"),
        ("relu", {"model"}, {}, "not in the record"),
        ("masked_fill", {"model"}, {"masked_fill": None}, None),
        ("bitwise_or", {"model"}, {"bitwise_or": ["bool", "int"]}, None),
        ("any", {"model"}, {"any": ["float32"]}, None),
    ],
)
def test_what_is_missing(operation, users, kernels, problem):
    found = gpu_kernels.problem_of(operation, users, kernels)
    assert found is None if problem is None else problem in found


def test_dtypes_are_read_from_what_a_wheel_lists():
    listed = [
        "(GPU, Undefined(AnyLayout), float32)",
        "(GPUDNN, Undefined(AnyLayout), bfloat16)",
        "(CPU, Undefined(AnyLayout), float64)",
        "(ONEDNN, ONEDNN, int8)",
    ]
    assert gpu_kernels.dtypes_on_a_gpu(listed) == {"float32", "bfloat16"}


def test_a_python_without_paddle_is_an_error(tmp_path):
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\necho no module named paddle >&2; exit 1\n")
    script.chmod(0o755)
    with pytest.raises(SystemExit, match="no module named paddle"):
        gpu_kernels.record(str(script), {"relu": {"model"}})
