"""Translators of model directories and exports."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from inspect import signature
from pathlib import Path
from typing import Any, Generic, Literal, TypedDict, overload

from typing_extensions import TypeVar, Unpack

from transformer_mt.assembly import backends
from transformer_mt.backends.backend import EngineSpec
from transformer_mt.config import file as config_file
from transformer_mt.config.decoding import SEARCH_KEYS
from transformer_mt.config.problems import nearest
from transformer_mt.decoding.engine import Engine
from transformer_mt.decoding.stream import in_windows
from transformer_mt.decoding.translation import Aligned, Line, Translation
from transformer_mt.decoding.translator import (
    Finished,
    LineTranslator,
    Result,
    Runner,
    Work,
    ignore,
)
from transformer_mt.runtime.errors import UsageError, UserError
from transformer_mt.runtime.process_pool import process_pool

# What `translate` returns for each line: its text, or a Translation.
Found = TypeVar("Found", default=str)


class Settings(TypedDict, total=False):
    """The keys of the config's section `decoding`, without n_best."""

    beam_size: int
    length_penalty: float
    length_penalty_kind: Literal["gnmt", "average"]
    min_length_ratio: float
    min_length_extra: int
    max_length_ratio: float | None
    max_length_extra: int
    split_sentences: bool | None
    max_source_length: int | None
    sampling: bool
    temperature: float
    top_k: int | None
    top_p: float
    seed: int
    segmentations: int
    segmentation_rate: float | None
    iterations: int
    length_candidates: int
    batch_tokens: int | None


class LoadOptions(Settings, total=False):
    """What `Translator.load` takes by name, without n_best and alignment."""

    engine: str | None
    ensemble: Sequence[str]
    threads: int
    device: str | None


class Translator(LineTranslator, Generic[Found]):
    """Translates with a model that lies on the disk. `from transformer_mt import Translator` gives
    this class. `Translator.load` makes one.

    Several threads may use a translator; one of them computes at a time.
    """

    def __init__(
        self, spec: EngineSpec, engine: Engine | Runner, alignment: bool | None, has_details: bool
    ) -> None:
        self._spec, config = spec, spec.config
        self._alignment, self._has_details = alignment, has_details
        super().__init__(
            engine,
            spec.subwords,
            config.decoding,
            config.data.max_length,
            config.data.target_lang,
            config.data.source_lang,
            partial(spec.backend.sentences_at_once, spec),
            config.subword.sampling,
            config.tags,
        )

    @overload
    @classmethod
    def load(
        cls,
        model_dir: str | Path,
        checkpoint: str | None = ...,
        *,
        n_best: int,
        alignment: bool | None = ...,
        **options: Unpack[LoadOptions],
    ) -> Translator[Translation]: ...

    @overload
    @classmethod
    def load(
        cls,
        model_dir: str | Path,
        checkpoint: str | None = ...,
        *,
        n_best: None = ...,
        alignment: bool,
        **options: Unpack[LoadOptions],
    ) -> Translator[Translation]: ...

    @overload
    @classmethod
    def load(
        cls,
        model_dir: str | Path,
        checkpoint: str | None = ...,
        **options: Unpack[LoadOptions],
    ) -> Translator[str]: ...

    @classmethod
    def load(
        cls,
        model_dir: str | Path,
        checkpoint: str | None = None,
        *,
        n_best: int | None = None,
        alignment: bool | None = None,
        engine: str | None = None,
        ensemble: Sequence[str] = (),
        threads: int = 1,
        device: str | None = None,
        **decoding: Any,
    ) -> Translator[Any]:
        """The translator of a model directory or of an export.

        Args:
            checkpoint, engine, ensemble, threads, device: as in `backends.find`.
            n_best, alignment: as in `translate`, for all of its calls.
            decoding: settings that replace those of the model's config, such as beam_size=1.

        Raises:
            TypeError: there is no such setting.
            UserError: something is missing or damaged, or a setting is wrong.
        """
        _require_known(cls.load, decoding)
        spec = backends.find(model_dir, engine, checkpoint, ensemble, threads, device)
        if n_best is not None:
            decoding["n_best"] = n_best
        # The settings are checked before the seconds that loading takes.
        spec = backends.with_decoding(spec, decoding, ["alignment"] if alignment else [])
        has_details = n_best is not None or alignment is not None
        return Translator(spec, spec.load(), alignment, has_details)

    @classmethod
    def of(cls, spec: EngineSpec, engine: Engine | Runner) -> Translator[str]:
        """The translator of an engine that is loaded, or of a runner of several."""
        return Translator(spec, engine, None, False)

    @overload
    def translate(
        self,
        lines: Iterable[str],
        finished: Finished = ...,
        *,
        n_best: int,
        alignment: bool | None = ...,
        **settings: Unpack[Settings],
    ) -> list[Translation]: ...

    @overload
    def translate(
        self,
        lines: Iterable[str],
        finished: Finished = ...,
        *,
        n_best: None = ...,
        alignment: bool,
        **settings: Unpack[Settings],
    ) -> list[Translation]: ...

    @overload
    def translate(
        self, lines: Iterable[str], finished: Finished = ..., **settings: Unpack[Settings]
    ) -> list[Found]: ...

    def translate(
        self,
        lines: Iterable[str],
        finished: Finished = ignore,
        *,
        n_best: int | None = None,
        alignment: bool | None = None,
        **settings: Any,
    ) -> list[Any]:
        """The translation of each line. The translation of an empty line is empty.

        Args:
            finished: is called with the number of lines that have just been translated.
            n_best: the number of outputs of each line.
            alignment: whether to find which words belong together.
            settings: settings of decoding for this call, such as beam_size=1.

        Returns: a list of str. If n_best or alignment is given, here or to `load`, a list of
            `Translation`, which also hold scores, subwords, other outputs and the alignment.

        Raises:
            TypeError: `lines` is one str, an item of it is none, or there is no such setting.
            UserError: a line has a line end, a setting is wrong, or the model can't do what is
                asked for.
        """
        if isinstance(lines, str):
            raise TypeError(
                'translate() takes a list of lines, as in translate(["A line."]), not a str'
            )
        _require_known(self.translate, settings)
        has_details = self._has_details or n_best is not None or alignment is not None
        if n_best is not None:
            settings["n_best"] = n_best
        if alignment is None:
            alignment = self._alignment or False
        translator = self
        if settings or alignment:
            decoding = config_file.with_changes(self._decoding, settings)
            backends.require_possible(self._spec, decoding, ["alignment"] if alignment else [])
            translator = self.with_settings(decoding)
        found = translator.stream(
            in_windows(map(Line, _checked(lines))), finished=finished, need_alignment=alignment
        )
        return list(found) if has_details else [translation.text for translation in found]

    def scores(
        self, pairs: Iterable[tuple[str, str]], finished: Finished = ignore
    ) -> Iterator[float]:
        return super().scores(_checked_pairs(pairs), finished)

    def alignments(
        self, pairs: Iterable[tuple[str, str]], finished: Finished = ignore
    ) -> Iterator[Aligned]:
        return super().alignments(_checked_pairs(pairs), finished)

    scores.__doc__ = LineTranslator.scores.__doc__
    alignments.__doc__ = LineTranslator.alignments.__doc__


def _checked(lines: Iterable[str], name: str = "lines") -> Iterator[str]:
    """Yields the lines.

    Raises:
        TypeError: one of them is no str, as an empty cell of a table is.
        UsageError: one of them has a line end.
    """
    for number, line in enumerate(lines):
        if not isinstance(line, str):
            raise TypeError(f"{name}[{number}]: expected a str, got {reprlib.repr(line)}")
        if "\n" in line:
            raise UsageError(f"{name}[{number}]: there is a line end in it; give one line")
        yield line


def _checked_pairs(pairs: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    for number, pair in enumerate(pairs):
        source, target = _checked(pair, f"pairs[{number}]")
        yield source, target


def _require_known(method: Callable[..., object], settings: Iterable[str]) -> None:
    """
    Raises:
        TypeError: a setting is no key of `decoding`; the message names the nearest one, or the
            nearest argument of the method.
    """
    arguments = list(signature(method).parameters)
    for name in settings:
        if name in SEARCH_KEYS:
            continue
        if near := nearest("decoding", name, arguments):
            hint = f"did you mean {near}?"
        elif name in signature(Translator.load).parameters:
            hint = "it is an argument of Translator.load"
        else:
            hint = f"the settings are {', '.join(SEARCH_KEYS)}"
        raise TypeError(f"{method.__name__}() has no argument {name!r}; {hint}")


@contextmanager
def translator_of(spec: EngineSpec) -> Iterator[Translator[str]]:
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

    def __call__(self, work: Work[Result]) -> Result:
        return work(self.engine)
