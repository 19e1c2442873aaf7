"""Whether paddle.jit.to_static makes a training step faster on the CPU of this machine.

    .venv/bin/python scripts/benchmark_static.py > results.md

The forward and backward pass of one model is computed in four ways: by the program as it is on a
CPU; by Paddle's plain operations, as on a GPU; by the same operations as one graph, which
paddle.jit.to_static makes; and by such a graph compiled by CINN, Paddle's compiler, if this Paddle
has it. The ways take turns, each in a process of its own on one core.

How to read the results

The model has 4 + 4 layers of width 128, 4 heads, 8,000 subwords and no padding: 128 x 20 tokens.
Speed is in target tokens per second, the median over the rounds (minimum–maximum). A ratio is
computed within a round. All ways compute the same label-smoothed loss. Every new shape of a batch
makes another graph, which is not counted here.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks import harness
from benchmarks.harness import Turn, Worker

MODEL = {"num_layers": 4, "d_model": 128, "num_heads": 4, "d_ff": 256}
VOCABULARY_SIZE, ROWS, LENGTH = 8000, 128, 20
OURS = "transformer_mt on a CPU"
PLAIN = "plain operations"
STATIC = "to_static"
CINN = "to_static with CINN"


class Steps:
    """A model and a batch in a process of its own.

    Args:
        way: one of the names above.
        sizes: the sizes of the model, the number of subwords, of rows and of tokens per row.
    """

    def __init__(self, way: str, dropout: float, sizes: tuple[dict, int, int, int]) -> None:
        import paddle

        from transformer_mt.model import operations
        from transformer_mt.training import examples

        paddle.set_device("cpu")
        # Training has a process per core, but Paddle runs a graph with several threads.
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        model, vocabulary_size, rows, length = sizes
        config = examples.make_config(model={**model, "dropout": dropout})
        self.updater = examples.make_updater(config, vocabulary_size)
        if way != OURS:
            operations.use(operations.PLAIN)
        self.updater.model.train()
        self.batch = examples.full_update(rows, length, vocabulary_size).batches[0]
        self._tensors = [
            paddle.to_tensor(array)
            for array in (self.batch.source, self.batch.target_input, self.batch.target_output)
        ]
        network, criterion = self.updater.model, self.updater.objective.criterion

        def loss_of(source, target, labels):
            return criterion(network(source, target), labels)[0]

        self._loss = loss_of
        if way == STATIC:
            self._loss = paddle.jit.to_static(loss_of, full_graph=True, backend=None)
        elif way == CINN:
            self._loss = paddle.jit.to_static(loss_of, full_graph=True, backend="CINN")

    def step(self) -> float:
        """Computes the gradients once; returns the loss."""
        loss = self._loss(*self._tensors)
        loss.backward()
        value = float(loss)
        self.updater.gradients.clear()
        return value

    def first(self) -> tuple[float, float]:
        """Returns the loss of the first step, and its seconds, in which graphs are compiled."""
        started = time.perf_counter()
        loss = self.step()
        return loss, time.perf_counter() - started

    def turn(self, seconds: float) -> Turn:
        count, started = 0, time.perf_counter()
        while not count or time.perf_counter() - started < seconds:
            self.step()
            count += 1
        return Turn(count * self.batch.target_tokens, time.perf_counter() - started)


def has_cinn() -> bool:
    import paddle

    return paddle.is_compiled_with_cinn()


def measure(options: argparse.Namespace, folder: Path) -> Iterator[str]:
    rounds = f"Rounds: {options.rounds}, of {options.seconds:g} s."
    yield f"{harness.machine('paddlepaddle')} {rounds}"
    sizes = MODEL, VOCABULARY_SIZE, ROWS, LENGTH
    for dropout in (0.0, 0.1):
        yield from compare(options, folder, dropout, sizes)


def compare(
    options: argparse.Namespace, folder: Path, dropout: float, sizes: tuple
) -> Iterator[str]:
    """Yields the table for one rate of dropout."""
    ways = [OURS, PLAIN, STATIC, *([CINN] if has_cinn() else [])]
    with contextlib.ExitStack() as stack:
        workers, firsts = {}, {}
        for way in ways:
            workers[way] = stack.enter_context(Worker(folder, 1, Steps, way, dropout, sizes))
            firsts[way] = workers[way].ask("first")
        turns = harness.take_turns(
            f"dropout {dropout:g}",
            options.rounds,
            {
                way: lambda _, worker=worker: worker.ask("turn", options.seconds)
                for way, worker in workers.items()
            },
        )
    lines = [
        [
            way,
            harness.spread([turn.speed for turn in turns[way]], ",.0f"),
            harness.ratio(turns, way, PLAIN),
            f"{firsts[way][1]:.1f} s",
            f"{firsts[way][0]:,.2f}",
        ]
        for way in ways
    ]
    header = ["", "tokens/s", "times plain", "first step", "loss of it"]
    yield f"### Dropout {dropout:g}\n\n{harness.table(header, lines)}"
    if CINN not in ways:
        yield "This Paddle was built without CINN (paddle.is_compiled_with_cinn())."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    number = {"type": harness.positive(int), "metavar": "N"}
    parser.add_argument("--rounds", **number, default=3, help="turns of each way (3)")
    seconds = {"type": harness.positive(float), "metavar": "S"}
    parser.add_argument("--seconds", **seconds, default=15.0, help="length of a turn (15)")


if __name__ == "__main__":
    harness.run(__doc__, add_arguments, measure)
