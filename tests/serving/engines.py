"""Engines for the tests of the service, which need no model and can fail in every way."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

from transformer_mt.decoding.engine import Hypothesis
from transformer_mt.utils.errors import UserError

# Ids that make the engine do something else than to translate.
DIES, HANGS, REFUSES, FAILS = 901, 902, 903, 904


@dataclass(frozen=True)
class ReversingSpec:
    """Loads an engine that translates by reversing the ids.

    Attributes:
        seconds: what a batch takes.
        broken: a file; while it exists, the engine can't be loaded.
        weights: a file that stands for the weights.
    """

    threads: int = 1
    device: str = "cpu"
    seconds: float = 0.0
    broken: str = ""
    weights: str = ""

    def checksums(self):
        path = Path(self.weights) if self.weights else None
        return [path.read_bytes()] if path else []

    def load(self):
        if self.broken and os.path.exists(self.broken):
            raise UserError(f"{self.broken}: the model is damaged")
        return ReversingEngine(self.seconds)


class ReversingEngine:
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def search(self, sentences, settings):
        ids = {i for sentence in sentences for i in sentence.source}
        time.sleep(self.seconds)
        if DIES in ids:
            os._exit(9)
        if HANGS in ids:
            time.sleep(1000)
        if REFUSES in ids:
            raise UserError("this sentence is refused")
        if FAILS in ids:
            raise ZeroDivisionError("a mistake of the engine")
        return [[Hypothesis(s.source[::-1], -1.0, -1.0)] for s in sentences]
