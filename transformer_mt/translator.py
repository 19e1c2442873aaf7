"""Translators of model directories and exports."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from inspect import signature
from itertools import chain, islice
from pathlib import Path
from typing import Any

from transformer_mt.config import file as config_file
from transformer_mt.config.decoding import SEARCH_KEYS
from transformer_mt.config.problems import nearest
from transformer_mt.data.terms import Term, parse
from transformer_mt.decoding.documents import (
    TranslatedDocument,
    naming_units,
    protected_in_documents,
    translate_document,
)
from transformer_mt.decoding.engine import Engine
from transformer_mt.decoding.line_translator import (
    Finished,
    LineTranslator,
    Result,
    Runner,
    Work,
    ignore,
)
from transformer_mt.decoding.lines import in_windows
from transformer_mt.decoding.memory import Memory
from transformer_mt.decoding.output import Aligned, Line, Translation
from transformer_mt.export import registry
from transformer_mt.export.registry import EngineSpec
from transformer_mt.formats import registry as formats
from transformer_mt.utils.console import warn
from transformer_mt.utils.errors import UsageError, UserError
from transformer_mt.utils.files import write_atomically
from transformer_mt.utils.signals import process_pool


class Translator(LineTranslator):
    """Translates with a saved model. `from transformer_mt import Translator` gives this class, and
    `Translator.load` makes one.

    Several threads may use a translator; one of them computes at a time.
    """

    def __init__(self, spec: EngineSpec, engine: Engine | Runner) -> None:
        self._spec = spec
        super().__init__(engine, spec.subwords, spec.config, spec.at_once, limits=spec.limits)

    @classmethod
    def load(
        cls,
        model_dir: str | Path,
        checkpoint: str | None = None,
        *,
        engine: str | None = None,
        ensemble: Sequence[str] = (),
        threads: int = 1,
        device: str | None = None,
        **decoding: Any,
    ) -> Translator:
        """The translator of a model directory or of an export.

        Args:
            model_dir: a model directory, or the folder of an export.
            checkpoint: step_N, average_..., best or last; None chooses the best.
            engine: paddle, paddle_inference or ctranslate2; None chooses the one that the folder is
                for.
            ensemble: more models with the same subwords, each as MODEL_DIR or MODEL_DIR:CHECKPOINT.
            threads: the number of cores to use.
            device: cpu or gpu; None chooses a GPU if there is one.
            decoding: settings that replace those of the model's config, such as beam_size=1.

        Raises:
            TypeError: there is no such setting.
            UserError: something is missing or damaged, or a setting is wrong.
        """
        _require_known(cls.load, decoding)
        spec = registry.find(model_dir, engine, checkpoint, ensemble, threads, device)
        # The settings are checked before the seconds that loading takes.
        spec = registry.with_decoding(spec, decoding)
        return cls(spec, spec.load())

    def translate(
        self,
        lines: Iterable[str],
        finished: Finished = ignore,
        *,
        terms: Iterable[Sequence[str]] | None = None,
        **settings: Any,
    ) -> list[str]:
        """The translation of each line. The translation of an empty line is empty.

        Args:
            finished: is called with the number of lines that have just been translated.
            terms: how terms are translated, each as (term, translation, further forms ...). If the
                last item is "forbidden", the translation is not used.
            settings: settings of decoding for this call, such as beam_size=1.

        Raises:
            TypeError: `lines` is one str, an item of it is none, or there is no such setting.
            UserError: a line has a line end, a setting is wrong, or the model can't do what is
                asked for.
        """
        _require_known(self.translate, settings)
        found = self._translations(lines, finished, False, terms, settings)
        return [translation.text for translation in found]

    def translate_full(
        self,
        lines: Iterable[str],
        finished: Finished = ignore,
        *,
        alignment: bool = False,
        terms: Iterable[Sequence[str]] | None = None,
        **settings: Any,
    ) -> list[Translation]:
        """As `translate`, with scores, subwords, warnings, and the n_best outputs of each line.

        Args:
            terms: as in `translate`.
            alignment: whether to find which words belong together.
            settings: settings of decoding for this call, such as n_best=3.
        """
        _require_known(self.translate_full, settings)
        return list(self._translations(lines, finished, alignment, terms, settings))

    def translate_document(
        self,
        input: str | Path,
        output: str | Path,
        *,
        all: bool = False,
        columns: tuple[str, str | None] | None = None,
        memory: Sequence[str | Path] = (),
        finished: Finished = ignore,
    ) -> TranslatedDocument:
        """Translates a document, such as a PO file, into another file of its format.

        Args:
            all: whether units that have a finished translation are translated too.
            columns: of a table or JSON Lines: the column or field of the source, and that for the
                translation; None in its place: the translation replaces the source.
            memory: files with finished translations, which are taken where the source is the same.
            finished: as in `translate`.

        Returns: what happened, with the content of `output`.

        Raises:
            UserError: a file can't be read or written, or its format is unknown.
        """
        source, target = Path(input), Path(output)
        data = self._reader.config.data
        languages = data.source_lang, data.target_lang
        document = formats.read(source, languages, columns)
        formats.require_alike(source, target)
        protect = protected_in_documents(self._reader.config)
        settings = config_file.with_changes(self._decoding, {"protect": protect, "n_best": 1})

        def translate(lines: Mapping[str, str]) -> list[str]:
            translator = self.with_settings(settings, warn=naming_units(warn, lines))
            return translator.translate(list(lines), finished)

        known = Memory.read(map(Path, memory), languages) if memory else None
        made_by = registry.model_name(self._spec.folder)
        found = translate_document(document, translate, made_by, all=all, memory=known)
        write_atomically(target, found.content)
        return found

    def _translations(
        self,
        lines: Iterable[str],
        finished: Finished,
        alignment: bool,
        terms: Iterable[Sequence[str]] | None,
        settings: dict[str, Any],
    ) -> Iterator[Translation]:
        if isinstance(lines, str):
            raise TypeError(
                'expected a list of lines, as in translate(["A line."]), and not one str'
            )
        translator: LineTranslator = self
        if settings or alignment or terms is not None:
            decoding = config_file.with_changes(self._decoding, settings)
            registry.require_possible(self._spec, decoding, ["alignment"] if alignment else [])
            own_terms = None if terms is None else _parsed(terms)
            translator = self.with_settings(decoding, terms=own_terms)
        windows = in_windows(map(Line, _checked(lines)))
        return translator.stream(windows, finished=finished, need_alignment=alignment)

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


def _parsed(terms: Iterable[Sequence[str]]) -> list[Term]:
    """
    Raises:
        TypeError: a term is a str.
        UsageError: a term has no translation.
    """
    found = []
    for number, columns in enumerate(terms):
        if isinstance(columns, str):
            raise TypeError(f'terms[{number}]: expected ("term", "translation"), got one str')
        try:
            found.append(parse(columns))
        except ValueError as error:
            raise UsageError(f"terms[{number}]: {error}") from None
    return found


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
        if name not in SEARCH_KEYS:
            near = nearest("decoding", name, arguments)
            hint = f"did you mean {near}?" if near else f"the settings are {', '.join(SEARCH_KEYS)}"
            raise TypeError(f"{method.__name__}() has no argument {name!r}; {hint}")


@contextmanager
def translator_of(spec: EngineSpec) -> Iterator[Translator]:
    """A translator whose engine is loaded in this process, or in several."""
    if spec.processes == 1:
        yield Translator(spec, spec.load())
        return
    with engine_processes(spec) as runner:
        yield Translator(spec, runner)


@contextmanager
def engine_processes(spec: EngineSpec) -> Iterator[Runner]:
    """A runner of `spec.processes` processes that each load the engine. No more processes are
    started than there are batches. As long as batches come alone, as for a line that is typed, this
    process computes them, because starting another one would take longer. Results do not depend on
    the number of processes, because each batch is computed as a whole.

    Raises:
        UserError: one of the processes was killed. Errors of the engines are passed on.
    """
    work = _EngineProcess(spec)
    pool: Runner | None = None

    def run(batches: Iterator[Work | None]) -> Iterator[Result | None]:
        nonlocal pool
        while pool is None:
            ahead = list(islice(batches, 1))
            if ahead and ahead[0] is not None:
                ahead += islice(batches, 1)
            if len(ahead) == 2 and ahead[1] is not None:
                pool = stack.enter_context(process_pool(spec.processes, _EngineProcess(spec)))
                batches = chain(ahead, batches)
            elif ahead:
                yield from (None if batch is None else work(batch) for batch in ahead)
            else:
                return
        yield from pool(batches)

    try:
        with ExitStack() as stack:
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
