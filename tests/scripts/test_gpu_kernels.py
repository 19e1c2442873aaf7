"""Every operation that the program runs has a kernel on a GPU, as far as scripts/gpu_kernels.json
knows, which lists the kernels of a wheel for GPUs."""

import json

import paddle
import pytest

import gpu_kernels

ADVICE = "after a new operation, run scripts/gpu_kernels.py --record (see docs/gpus.md)"


@pytest.mark.slow
def test_no_kernel_is_missing_and_the_record_is_current():
    recorded = json.loads(gpu_kernels.RECORD.read_text("utf-8"))
    used = gpu_kernels.operations_used()
    _, missing = gpu_kernels.report(used, recorded)
    assert missing == [] and recorded["kernels"].keys() == used.keys(), ADVICE


def test_the_trace_sees_forward_and_backward_and_nothing_else():
    """Also the gradient of an embedding, whose kernel is the one that the profiler does not see."""
    x = paddle.ones([2, 3])
    x.stop_gradient = False

    def run():
        found = paddle.nn.functional.embedding(paddle.to_tensor([1, 0]), x)
        paddle.tanh(found @ x.t()).sum().backward()

    found = gpu_kernels.traced(run)
    expected = {"transpose", "matmul", "tanh", "sum", "embedding"}
    assert expected | {f"{name}_grad" for name in expected} <= found
    # Besides: the gradient of the end is made, and that of x added up from two.
    assert len(found) <= 2 * len(expected) + 3 and not found & {"relu", "softmax", "dropout"}


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
