"""Faster ways to compute what the model, the losses and the search compute, with the same results.

`choose` decides once which of them a process uses.
"""

import paddle

from transformer_mt.model import operations


def choose() -> None:
    """Chooses the operations of all models for the device that Paddle is set to."""
    if paddle.get_device() == "cpu":
        from transformer_mt.kernels import onednn
        from transformer_mt.kernels.cpu import CpuOperations
        from transformer_mt.kernels.cpu_onednn import OneDnnOperations

        library = onednn.library()
        operations.use(CpuOperations() if library is None else OneDnnOperations(library))
    else:
        from transformer_mt.kernels.gpu import GpuOperations

        operations.use(GpuOperations())
