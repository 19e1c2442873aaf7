"""Translators of model directories and exports."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from transformer_mt.assembly import backends
from transformer_mt.backends.backend import EngineSpec
from transformer_mt.decoding import translator
from transformer_mt.decoding.engine import Engine
from transformer_mt.decoding.translator import Result, Runner, Work
from transformer_mt.runtime.errors import UserError
from transformer_mt.runtime.process_pool import process_pool


class Translator(translator.Translator):
    """Translates with a model that lies on the disk. `from transformer_mt import Translator` gives
    this class."""

    @classmethod
    def load(
        cls,
        model_dir: str | Path,
        checkpoint: str | None = None,
        *,
        engine: str | None = None,
        ensemble: tuple[str, ...] = (),
        threads: int = 1,
        device: str | None = None,
        **decoding,
    ) -> Translator:
        """The translator of a model directory or of an export.

        Args:
            checkpoint, engine, ensemble, threads, device: as in `backends.find`.
            decoding: settings that replace those of the model's config, such as beam_size=1.

        Raises:
            UserError: something is missing or damaged, or a setting is wrong.
        """
        spec = backends.find(model_dir, engine, checkpoint, ensemble, threads, device)
        # The settings are checked before the seconds that loading takes.
        spec = backends.with_decoding(spec, decoding)
        return cls.of(spec, spec.load())

    @classmethod
    def of(cls, spec: EngineSpec, engine: Engine | Runner) -> Translator:
        """The translator of an engine that is loaded, or of a runner of several."""
        config = spec.config
        return cls(
            engine,
            spec.subwords,
            config.decoding,
            config.data.max_length,
            config.data.target_lang,
            config.data.source_lang,
        )


@contextmanager
def translator_of(spec: EngineSpec) -> Iterator[Translator]:
    """A translator whose engine is loaded in this process, or in several."""
    if spec.processes == 1:
        yield Translator.of(spec, spec.load())
        return
    with engine_processes(spec) as runner:
        yield Translator.of(spec, runner)


@contextmanager
def engine_processes(spec: EngineSpec) -> Iterator[Runner]:
    """A runner of `spec.processes` processes that each load the engine. No more processes are
    started than there are batches. Results do not depend on the number of processes, because each
    batch is computed as a whole.

    Raises:
        UserError: one of the processes was killed. Errors of the engines are passed on.
    """
    try:
        with process_pool(spec.processes, _EngineProcess(spec)) as run:
            yield run
    except BrokenProcessPool:
        raise UserError(
            "a process that translates was killed, perhaps because memory ran out. Lower "
            "decoding.batch_tokens (--batch-tokens) or --threads"
        ) from None


@dataclass
class _EngineProcess:
    """The work of a process. It loads the engine when it is first called, and not when the process
    starts, so that the parent receives the errors of loading."""

    spec: EngineSpec

    @cached_property
    def engine(self) -> Engine:
        return self.spec.load()

    def __call__(self, work: Work) -> Result:
        return work(self.engine)
