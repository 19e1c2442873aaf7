"""Makes the files of this folder: checkpoints of PyTorch, and their tensors as NumPy arrays.

They are the work of PyTorch itself, which the project's environment does not have. In another one,
with `pip install torch numpy`: python make.py
"""

from collections import OrderedDict
from pathlib import Path

import numpy as np
import torch

HERE = Path(__file__).parent


def tensors():
    torch.manual_seed(1)
    weight = torch.randn(6, 4)
    whole = torch.randn(30)
    yield "float32", OrderedDict(weight=weight, bias=torch.randn(4), scalar=torch.tensor(2.5))
    yield "float16", {"weight": weight.half(), "bias": torch.randn(4).half()}
    yield "bfloat16", {"weight": weight.bfloat16()}
    yield "float64", {"weight": torch.randn(3, 2, dtype=torch.float64), "empty": torch.zeros(0, 3)}
    yield (
        "integers",
        {
            "ids": torch.arange(-3, 5),
            "int32": torch.arange(3, dtype=torch.int32),
            "mask": torch.tensor([True, False]),
        },
    )
    yield "tied", {"shared": weight, "embed": weight, "head": weight.t()}
    yield (
        "views",
        {"part": whole[5:17].view(3, 4), "strided": whole[1::3], "rows": weight[2:4, 1:3]},
    )
    yield "parameter", {"weight": torch.nn.Parameter(weight)}
    yield "module", torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)).state_dict()


def as_numpy(tensor):
    tensor = tensor.detach()
    return (tensor.float() if tensor.is_floating_point() else tensor).contiguous().numpy()


if __name__ == "__main__":
    for name, state in tensors():
        torch.save(state, HERE / f"{name}.zip.bin")
        torch.save(state, HERE / f"{name}.legacy.bin", _use_new_zipfile_serialization=False)
        np.savez(HERE / f"{name}.npz", **{key: as_numpy(tensor) for key, tensor in state.items()})
