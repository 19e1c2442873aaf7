"""The exponential moving average of the weights (Polyak and Juditsky 1992)."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import paddle
from paddle import nn

# Ends the names of the trained weights in the state, beside those of the optimiser.
TRAINED = "/trained"


class MovingAverage:
    """An average of the weights after each update, in which older ones count less and less.

    After update t, the average is d * average + (1 - d) * weights with
    d = min(decay, (1 + t) / (10 + t)), so that the random first weights are soon forgotten.
    """

    def __init__(self, model: nn.Layer, decay: float) -> None:
        self.decay = decay
        self._parameters = dict(model.named_parameters())
        self.restart()

    def restart(self) -> None:
        """Starts again from the weights that the model has now."""
        self._averages = {name: p.detach().clone() for name, p in self._parameters.items()}

    def update(self, step: int) -> None:
        """Counts the weights after update number `step`, from 1."""
        share = 1.0 - min(self.decay, (1 + step) / (10 + step))
        with paddle.no_grad():
            for name, parameter in self._parameters.items():
                average = self._averages[name]
                average.add_((parameter - average).scale_(share))

    @contextmanager
    def in_model(self) -> Iterator[None]:
        """A block in which the model has the averages as its weights."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def state(self) -> dict[str, np.ndarray]:
        """Returns the trained weights, by name. The averages are the weights of a checkpoint."""
        return {f"{name}{TRAINED}": p.numpy() for name, p in self._parameters.items()}

    def load(self, arrays: dict[str, np.ndarray]) -> None:
        """Takes the averages from the model, and its trained weights from what `state` returned,
        which is removed from `arrays`.

        Raises:
            KeyError: the state is that of another model.
        """
        self.restart()
        for name, parameter in self._parameters.items():
            parameter.set_value(arrays.pop(f"{name}{TRAINED}"))

    def _swap(self) -> None:
        for name, parameter in self._parameters.items():
            trained = parameter.detach().clone()
            parameter.set_value(self._averages[name])
            self._averages[name] = trained
