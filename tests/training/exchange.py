"""What the processes of tests/training/test_gradients.py run, started by Paddle's launcher.

It trains each variant for some updates, and writes what the first process finds to OUT.npz.
"""

import sys
from pathlib import Path

import numpy as np
import paddle
import pytest

from tests.device_path import counted_host_reads, use_device_path
from tests.small_trainers import trainer_of
from transformer_mt.training import parallel
from transformer_mt.training.parallel import Processes

STEPS = 5
# Small, so that a tiny model has several.
BUCKET_BYTES = 4000
RATE = {"learning_rate": 0.01, "warmup_steps": 0, "schedule": "constant"}
ADAM = {**RATE, "optimizer": "adam", "clip_norm": 0.5}
SOME = {"freeze": ["encoder.*"], "learning_rate_factors": {"*embedding*": 0.5, "*norm*": 2.0}}
VARIANTS = {
    "host": ADAM,
    "host, sgd": {**RATE, "optimizer": "sgd"},
    "host, muon": {**ADAM, "optimizer": "muon", "momentum": 0.8},
    "host, bfloat16": {**RATE, "optimizer": "sgd", "gradient_sum_precision": "bfloat16"},
    "sharded": {**ADAM, "sharding": True},
    "sharded, adamw": {**ADAM, "optimizer": "adamw", "weight_decay": 0.1, "sharding": True},
    "sharded, sgd": {**RATE, "optimizer": "sgd", "sharding": True},
    "device": ADAM,
    "device, adamw": {**ADAM, "optimizer": "adamw", "weight_decay": 0.1},
    "device, sgd": {**RATE, "optimizer": "sgd"},
    "device, muon": {**ADAM, "optimizer": "muon", "momentum": 0.8},
    "device, sharded": {**ADAM, "sharding": True},
    "host, some": {**ADAM, **SOME},
    "sharded, some": {**ADAM, **SOME, "sharding": True},
    "device, some": {**ADAM, **SOME},
    "device, muon, some": {**ADAM, **SOME, "optimizer": "muon"},
    "device, one loss is not finite": ADAM,
}


def trained(variant: str, processes: Processes, folder: Path) -> dict[str, np.ndarray]:
    """The weights and the optimiser's state after some updates, and other findings."""
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parallel, "BUCKET_BYTES", BUCKET_BYTES)
        if variant.startswith("device"):
            use_device_path(patch)
        training = {"batch_tokens": 600, "device_tokens": 150, **VARIANTS[variant]}
        trainer = trainer_of(folder, processes=processes, training=training)
        updater = trainer.updater
        plain_losses = updater.losses

        def losses(batch, step):
            loss, nll = plain_losses(batch, step)
            is_broken = "not finite" in variant and step == 3 and processes.rank == 0
            return (loss * float("inf"), nll) if is_broken else (loss, nll)

        updater.losses = losses
        sent = []
        send_the_rest = updater.gradients._send_the_rest

        def noted():
            if updater.gradients._is_last_pass:
                sent.append(len(updater.gradients._sums))
            send_the_rest()

        updater.gradients._send_the_rest = noted
        plan = list(enumerate(trainer.plan.epoch_updates(0)))[:STEPS]
        # The last update is so small that not every process has a batch.
        plan[-1] = (plan[-1][0], [plan[-1][1][0][:1]])
        updates = [trainer.read(0, *item) for item in plan]
        with counted_host_reads() as reads:
            outcomes = [updater.apply(update, step + 1) for step, update in enumerate(updates)]
        found["reads"] = np.array(sum(reads.values()))
        found["buckets"] = np.array(len(updater.gradients.buckets))
        found["sent in the backward pass"] = np.array(sent)
        norms = [outcome.gradient_norm for outcome in outcomes]
        if outcomes[0].unread is not None:
            norms = [float(outcome.unread[2]) for outcome in outcomes]
        found["norms"] = np.array(norms)
        if updater.optimizer.__class__.__name__ == "DeviceOptimizer":
            own = [bucket.state for bucket in updater.optimizer.buckets]
            found["own state"] = np.array(sum(t.size for kinds in own for t in kinds.values()))
        found |= {f"weights/{n}": p.numpy().copy() for n, p in trainer.model.named_parameters()}
        found |= {f"state/{name}": value for name, value in updater.optimizer.state().items()}
    return found


def main(names: list[str], out: Path) -> None:
    processes = Processes.join()
    results = {name: trained(name, processes, out.parent) for name in names}
    if processes.is_first:
        arrays = {f"{name}|{key}": v for name, own in results.items() for key, v in own.items()}
        np.savez(out, **arrays)
    processes.wait()


if __name__ == "__main__":
    paddle.set_device("cpu")
    main(sys.argv[2:], Path(sys.argv[1]))
