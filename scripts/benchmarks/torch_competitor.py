"""PyTorch's nn.Transformer as a competitor: its training.

PyTorch and Paddle bring an OpenMP library each, so PyTorch is installed in an environment of its
own, whose Python runs `TorchTraining`. Everything else here runs without PyTorch.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import OtherPythonWorker, WrongArguments
from benchmarks.paddlenlp_competitor import DROPOUT, LABEL_SMOOTHING, Text

# The names of PyTorch's competitors begin with it.
PYTORCH = "PyTorch"
# Flags in /proc/cpuinfo of processors that multiply bfloat16, of Intel and AMD and of Arm.
BFLOAT16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}

# Source and labels of a step: int64 (rows, source_len) and (rows, target_len).
Batch = tuple[np.ndarray, np.ndarray]
# Trains for some seconds; returns target tokens, and seconds.
Train = Callable[[float], tuple[int, float]]


def version_of(python: str) -> str:
    """The version of PyTorch that is installed for a Python.

    Raises:
        WrongArguments: this Python can't import torch and numpy.
    """
    command = [python, "-c", "import numpy, torch; print(torch.__version__)"]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise WrongArguments(f"--torch-python: {error}") from None
    if done.returncode or not done.stdout:
        reason = done.stderr.strip().rpartition("\n")[2] or f"exit code {done.returncode}"
        raise WrongArguments(
            f"--torch-python: {python} must have torch and numpy, but it says: {reason}"
        )
    return done.stdout.strip()


def precisions() -> list[str]:
    """The precisions that are measured: bfloat16 only if the processor has instructions for it."""
    flags = set(re.findall(r"\w+", Path("/proc/cpuinfo").read_text()))
    return ["float32", "bfloat16"] if flags & BFLOAT16_FLAGS else ["float32"]


def dense_batches(source: Text, target: Text, steps: list[np.ndarray], eos: int) -> list[Batch]:
    """Batches without padding, of the same size as given ones.

    Each has as many rows as the given step has sentences, and its lengths are their mean lengths,
    rounded. The sentences of the step follow each other in the rows, cut where a row ends.

    Args:
        steps: the indices of the sentences of each step.
        eos: ends each sentence.
    """

    def dense(side: Text, step: np.ndarray) -> np.ndarray:
        ids = [token for sentence in step for token in [*side[sentence], eos]]
        # np.resize cuts or repeats the ids if rounding has changed their number.
        return np.resize(np.array(ids, np.int64), (len(step), round(len(ids) / len(step))))

    return [(dense(source, step), dense(target, step)) for step in steps]


@contextlib.contextmanager
def competitors(
    python: str, folder: Path, cores: int, arguments: dict[str, Any], batches: list[Batch]
) -> Iterator[dict[str, Train]]:
    """Starts the processes of PyTorch, and ends them.

    Args:
        python: has torch and numpy.
        folder: where the output of the processes goes.
        arguments: of PaddleNLP's model, see `paddlenlp_competitor.model_arguments`.
        batches: of a step, over all processes together.

    Yields:
        The competitors by their names.
    """
    with contextlib.ExitStack() as stack:

        def start(threads: int, its_batches: list[Batch]) -> OtherPythonWorker:
            worker = OtherPythonWorker(
                folder, threads, python, TorchTraining, arguments, its_batches
            )
            return stack.enter_context(worker)

        def part(number: int) -> list[Batch]:
            """Every process takes each cores-th row of each step."""
            rows = slice(number, None, cores)
            return [(source[rows], labels[rows]) for source, labels in batches if labels[rows].size]

        groups = {
            "one process": [start(cores, batches)],
            "one process per core": [start(1, part(number)) for number in range(cores)],
        }
        yield {
            f"{PYTORCH} {precision}, {name}": partial(train_together, workers, precision)
            for precision in precisions()
            for name, workers in groups.items()
        }


def train_together(
    workers: list[OtherPythonWorker], precision: str, seconds: float
) -> tuple[int, float]:
    """Trains in all processes at the same time.

    Returns:
        Target tokens, and seconds. The tokens are the sum of the speeds of the processes, each of
        which ends with a whole step, times these seconds.
    """
    for worker in workers:
        worker.begin("train", precision, seconds)
    done = [worker.result() for worker in workers]
    longest = max(its_seconds for _, its_seconds in done)
    return round(sum(tokens / its_seconds for tokens, its_seconds in done) * longest), longest


class TorchTraining:
    """PyTorch's nn.Transformer, which does the same work as this project's default model.

    The embeddings of both sides and the output layer share a weight, as the subwords are joint.
    """

    def __init__(self, arguments: dict[str, Any], batches: list[Batch]) -> None:
        """
        Args:
            arguments: of PaddleNLP's model, see `paddlenlp_competitor.model_arguments`.
            batches: of this process.
        """
        import torch
        from torch import nn

        torch.manual_seed(1)
        self.bos, width = arguments["bos_id"], arguments["d_model"]
        # Tensors are (len, batch, d_model), nn.Transformer's default. It was faster than the
        # other order of dimensions.
        self.transformer = nn.Transformer(
            d_model=width,
            nhead=arguments["n_head"],
            num_encoder_layers=arguments["num_encoder_layers"],
            num_decoder_layers=arguments["num_decoder_layers"],
            dim_feedforward=arguments["d_inner_hid"],
            dropout=DROPOUT,
        )
        for layer in (*self.transformer.encoder.layers, *self.transformer.decoder.layers):
            # No dropout in the feed-forward layer and of the attention weights, as in this project.
            layer.dropout = nn.Identity()
            for module in layer.children():
                if isinstance(module, nn.MultiheadAttention):
                    module.dropout = 0.0
        # With post-norm, the last layer has normalised its output already.
        self.transformer.encoder.norm = self.transformer.decoder.norm = None
        self.embedding = nn.Embedding(arguments["trg_vocab_size"], width)
        nn.init.normal_(self.embedding.weight, std=width**-0.5)
        parameters = [*self.transformer.parameters(), *self.embedding.parameters()]
        self.optimizer = torch.optim.Adam(
            parameters, lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True
        )
        length = max(side.shape[1] for batch in batches for side in batch)
        angles = torch.arange(length)[:, None] / 10000 ** (torch.arange(0, width, 2) / width)
        positions = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)
        self.positions = positions[:, None]  # (length, 1, d_model)
        tensors = [[torch.from_numpy(side.T.copy()) for side in batch] for batch in batches]
        self.batches = itertools.cycle(tensors)

    def train(self, precision: str, seconds: float) -> tuple[int, float]:
        """Continues training; returns target tokens, and seconds.

        Args:
            precision: float32 or bfloat16.
        """
        import torch

        tokens = 0
        started = time.perf_counter()
        for source, labels in self.batches:
            with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
                loss = self._loss(source, labels)
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            tokens += labels.numel()
            if time.perf_counter() - started > seconds:
                break
        return tokens, time.perf_counter() - started

    def _loss(self, source: Any, labels: Any) -> Any:
        """The loss of `source` (source_len, batch) and `labels` (target_len, batch)."""
        from torch.nn import functional as F

        target = labels.roll(1, dims=0)
        target[0] = self.bos
        output = self.transformer(
            self._embed(source),
            self._embed(target),
            tgt_mask=self.transformer.generate_square_subsequent_mask(len(target)),
            tgt_is_causal=True,  # so that attention need not read the mask
        )
        logits = F.linear(output, self.embedding.weight)  # (target_len, batch, subwords)
        return F.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), label_smoothing=LABEL_SMOOTHING
        )

    def _embed(self, ids: Any) -> Any:
        """Embeds `ids` (len, batch): (len, batch, d_model)."""
        from torch.nn import functional as F

        scaled = self.embedding(ids) * math.sqrt(self.embedding.embedding_dim)
        return F.dropout(scaled + self.positions[: len(ids)], DROPOUT)
