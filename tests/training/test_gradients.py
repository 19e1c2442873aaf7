"""Several processes add up their gradients while the backward pass goes on, in half precision, or
with the optimiser's state divided among them; and train the same model as one process."""

import os
import subprocess
import sys
from collections import defaultdict

import numpy as np
import paddle
import pytest

from tests.support import ROOT, TIMEOUT
from tests.training.exchange import STEPS, VARIANTS, trained
from transformer_mt.training.parallel import ALONE, Gradients, Processes

pytestmark = pytest.mark.slow

COUNT = 3


def launched(count, folder):
    """What the first of `count` processes has found, by variant."""
    out = folder / "out.npz"
    command = [
        *(sys.executable, "-m", "paddle.distributed.launch", "--nproc_per_node", str(count)),
        *("--log_dir", folder / "log", ROOT / "tests" / "training" / "exchange.py", out),
    ]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "all", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*command, *VARIANTS], env=environment, capture_output=True, timeout=TIMEOUT
    )
    assert done.returncode == 0, (folder / "log" / "workerlog.0").read_text(errors="replace")
    found = defaultdict(dict)
    with np.load(out) as arrays:
        for key in arrays.files:
            variant, name = key.split("|")
            found[variant][name] = arrays[key]
    return found


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    """What the first of three processes finds, by variant."""
    return launched(COUNT, tmp_path_factory.mktemp("several"))


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What one process finds, by variant."""
    folder = tmp_path_factory.mktemp("alone")
    return {name: trained(name, ALONE, folder) for name in VARIANTS}


def assert_same_weights(found, expected, tolerance):
    for name, value in expected.items():
        # The gradient of a key's bias is 0 but for rounding, of which Adam makes whole steps.
        if name.startswith(("weights/", "state/")) and "key_projection.bias" not in name:
            assert found[name].shape == value.shape
            np.testing.assert_allclose(found[name], value, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("variant", VARIANTS)
def test_several_processes_train_the_same_model_as_one(several, alone, variant):
    """Weights move by 0.01 in an update of Adam. Sums in another order differ by float32's
    rounding, which Adam enlarges where a second moment is small. bfloat16 rounds a gradient, of at
    most 1, to 0.4 %, and the rate is 0.01."""
    expected, tolerance = alone[variant], 1e-4
    if "bfloat16" in variant:
        expected = {name: value for name, value in expected.items() if "state/" not in name}
        tolerance = 5 * 0.01 * 0.004
    assert_same_weights(several[variant], expected, tolerance)
    norms = alone[variant]["norms"]
    if "not finite" not in variant:
        np.testing.assert_allclose(several[variant]["norms"], norms, rtol=0.01)


def test_bfloat16_does_round(several):
    name = "weights/target_embedding.weight"
    assert not np.array_equal(several["host, sgd"][name], several["host, bfloat16"][name])


@pytest.mark.parametrize("variant", ["host", "device"])
def test_buckets_are_sent_in_the_backward_pass(several, variant):
    """The process of the first rank has a batch in every update, so all of them are."""
    found = several[variant]
    assert found["buckets"] > 5
    assert list(found["sent in the backward pass"]) == [found["buckets"]] * STEPS


def test_each_process_keeps_its_share_of_the_state(several, alone):
    whole = alone["device"]["own state"]
    assert several["device"]["own state"] == whole
    for variant in ("sharded", "device, sharded"):
        # A bucket is filled up to a multiple of the number of processes.
        padding = 2 * COUNT * several[variant]["buckets"]
        assert whole / COUNT <= several[variant]["own state"] <= whole / COUNT + padding


@pytest.mark.parametrize("kind", ["", ", adamw", ", sgd", ", muon", ", some"])
def test_the_device_optimizer_is_paddles(alone, kind):
    """Paddle's optimisers, and our own without host reads: weights, and the state for checkpoints.
    (On a CPU, a single process uses Paddle's, with `sharding` too.)"""
    host = alone[f"host{kind}" if f"host{kind}" in alone else f"sharded{kind}"]
    assert host.keys() <= alone[f"device{kind}"].keys()
    assert_same_weights(alone[f"device{kind}"], host, 1e-5)


def test_an_update_that_is_not_finite_changes_nothing(several, alone):
    """The third update is left out: as if it had not been, in weights and optimiser."""
    for found in (several, alone):
        broken = found["device, one loss is not finite"]
        norms = broken["norms"]
        assert not np.isfinite(norms[2]) and np.isfinite(norms[[0, 1, 3, 4]]).all()
        assert all(np.isfinite(value).all() for key, value in broken.items() if "/" in key)
        # Adam's powers of beta count the updates: four and the next one.
        power = next(v for key, v in broken.items() if key.endswith("beta1_pow_acc"))
        assert power == pytest.approx(0.9**STEPS, rel=1e-6)


@pytest.mark.parametrize("variant", [name for name in VARIANTS if name.startswith("device")])
def test_no_update_reads_the_device(several, alone, variant):
    assert several[variant]["reads"] == 0
    assert alone[variant]["reads"] == 0


def test_the_error_of_a_lost_process_is_not_replaced(monkeypatch):
    """It is raised within Paddle's backward pass, which would raise a SystemError instead."""

    def lost(tensor, sync_op=True):
        raise RuntimeError("Connection closed by peer")

    monkeypatch.setattr("paddle.distributed.all_reduce", lost)
    layer = paddle.nn.Linear(2, 3)
    gradients = Gradients(layer, Processes(rank=0, world_size=2, connected=True))
    loss = layer(paddle.ones([4, 2])).sum()
    with pytest.raises(RuntimeError, match="closed by peer"), gradients.last_pass():
        loss.backward()
