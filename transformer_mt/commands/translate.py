"""The verbs `translate`, `score`, `align`, and what all verbs that use a model have in common."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, TypeVar

from tqdm import tqdm

from transformer_mt import __version__
from transformer_mt.assembly import backends
from transformer_mt.assembly.translator import Translator, translator_of
from transformer_mt.backends.backend import EngineSpec
from transformer_mt.config.schema import DecodingConfig
from transformer_mt.data import pharaoh
from transformer_mt.decoding import output
from transformer_mt.decoding.resumable_file import resumable_file
from transformer_mt.decoding.stream import WINDOW, arriving, in_windows, input_lines
from transformer_mt.decoding.translator import Aligned, Line
from transformer_mt.runtime.checksums import CHECKSUMS
from transformer_mt.runtime.console import progress, warn
from transformer_mt.runtime.errors import UsageError, UserError
from transformer_mt.runtime.files import (
    atomic,
    content_hash,
    count_lines,
    is_replaceable,
    require_distinct,
)

Item = TypeVar("Item")


@dataclass(frozen=True)
class ModelChoice:
    """Which model a command is to use, and how; see `backends.find`.

    Attributes:
        threads: how many cores; None: all.
        decoding: settings in place of those of the model's config.
    """

    model_dir: str
    engine: str | None = None
    checkpoint: str | None = None
    ensemble: tuple[str, ...] = ()
    threads: int | None = None
    device: str | None = None
    decoding: dict[str, Any] = field(default_factory=dict)

    def find(self, *asked: str) -> EngineSpec:
        """
        Args:
            asked: what it is to do besides searching; see `backends.require_possible`.

        Raises:
            UsageError: there is no such model, or it can't be used so.
        """
        spec = backends.find(
            self.model_dir,
            self.engine,
            self.checkpoint,
            self.ensemble,
            self.threads or len(os.sched_getaffinity(0)),
            self.device,
        )
        try:
            spec = backends.with_decoding(spec, self.decoding, asked)
        except UsageError as error:
            raise UsageError(_with_flags(str(error))) from None
        config = spec.config
        for name, reason in _without_effect(config.model.non_autoregressive, config.decoding):
            if name in self.decoding:
                warn(f"--{name.replace('_', '-')} makes no difference {reason}")
        return spec


def _without_effect(kind: str | None, decoding: DecodingConfig) -> Iterator[tuple[str, str]]:
    """Settings that change nothing, and why; `kind` is the config's model.non_autoregressive."""
    if not decoding.sampling:
        for name in ("temperature", "top_k", "top_p", "seed"):
            yield name, "without --sampling"
    if kind is None:
        yield "iterations", "to an autoregressive model"
    else:
        yield "beam_size", "to a non-autoregressive model"
    if kind != "length":
        yield "length_candidates", "to a model that does not predict lengths"


def _with_flags(message: str) -> str:
    """A message about settings, in which they go by the names of their flags."""

    def flag(match: re.Match[str]) -> str:
        return "--" + (match[1] or match[2]).replace("_", "-")

    return re.sub(r"(?m)^(\w+)(?=: )|decoding\.(\w+)", flag, message)


def translate(
    model: ModelChoice,
    source: Path | None,
    target: Path | None,
    *,
    prefix: Path | None = None,
    format: str = "plain",
    alignment: bool = False,
    resume: bool = False,
) -> None:
    """Translates a file (None: stdin) into a file (None: stdout).

    Args:
        prefix: a file with the beginning of each line's translation.
        format: one of `output.FORMATS`.
        resume: go on with an output file that was begun.

    Raises:
        UserError: anything wrong with the model directory or the files.
    """
    if (source is None and sys.stdin is None) or (target is None and sys.stdout is None):
        raise UsageError("stdin or stdout is closed: give --input FILE and --output FILE")
    require_distinct(_written(target), {**_read(source), "--prefix": prefix})
    asked = ["prefix"] * (prefix is not None) + ["alignment"] * alignment
    spec = model.find(*asked)
    decoding = spec.config.decoding
    if format == "plain" and decoding.n_best > 1:
        raise UsageError(
            f"--n-best {decoding.n_best}: plain text has one translation for each line. Add "
            "--format tsv or --format jsonl, or --n-best 1"
        )
    if format == "plain" and alignment:
        raise UsageError("--alignment: plain text has no place for it; add --format tsv or jsonl")
    is_file = source is not None and source.is_file()
    can_resume = is_file and target is not None and is_replaceable(target)
    if resume and not can_resume:
        raise UsageError("--resume: --input and --output must be files")
    total = _count(source)
    if total is not None and (count := _count(prefix)) is not None:
        require_equal(source, total, prefix, count)

    with contextlib.ExitStack() as stack:
        done, flush = 0, lambda: None
        if can_resume:
            made_from = _made_from(spec, source, prefix, format, alignment)
            file = stack.enter_context(resumable_file(target, made_from, WINDOW, resume))
            write_line, done = file.write_line, file.lines
        else:
            stream = stack.enter_context(_opened(target))
            write_line, flush = _line_writer(stream), stream.flush
        # A file's windows do not depend on how fast it is read, nor does its translation.
        lines = in_windows(input_lines(source, done)) if is_file else _arriving(source)
        translator = stack.enter_context(translator_of(spec))
        bar = stack.enter_context(
            progress(total=total, initial=done, title="translating", unit="lines")
        )
        translations = translator.stream(
            _flushing(_with_prefixes(lines, source, prefix, done), flush),
            finished=bar.update,
            need_alignment=alignment,
            first=done + 1,
        )
        as_text = output.formatter(format, decoding.n_best)
        for translation in translations:
            write_line(as_text(translation))


def score(model: ModelChoice, source: Path, target: Path, into: Path | None) -> None:
    """Writes the score that the model gives each line of `target` as a translation of the same line
    of `source`, a line each, into a file (None: stdout).

    Raises:
        UserError: anything wrong with the model directory or the files.
    """
    asked = "scoring", "scores"
    with _reading(model, source, target, into, *asked) as (translator, pairs, bar, write_line):
        for value in translator.scores(pairs, bar.update):
            write_line(output.score(value))


def align(
    model: ModelChoice,
    source: Path,
    target: Path,
    into: Path | None,
    seen: Callable[[Aligned], object] = lambda aligned: None,
) -> None:
    """Writes which words of each line of `target` and of the same line of `source`, whose
    translation it is, belong together: Pharaoh's format, a line each, into a file (None: stdout).

    Args:
        seen: is given what is written of each line.

    Raises:
        UserError: anything wrong with the model directory or the files.
        UsageError: several models are to align.
    """
    if model.ensemble:
        raise UsageError("--ensemble: what is attended to is one model's; leave it out")
    asked = "aligning", "attention"
    with _reading(model, source, target, into, *asked) as (translator, pairs, bar, write_line):
        for aligned in translator.alignments(pairs, bar.update):
            write_line(pharaoh.write(aligned.links))
            seen(aligned)


@contextlib.contextmanager
def _reading(
    model: ModelChoice, source: Path, target: Path, into: Path | None, title: str, asked: str
) -> Iterator[tuple[Translator, Iterator[tuple[str, str]], tqdm, Callable[[str], object]]]:
    """A model, what it is to read line by line, a progress bar, and what writes a line."""
    if into is None and sys.stdout is None:
        raise UsageError("stdout is closed: give --output FILE")
    require_distinct(_written(into), {"--source": source, "--target": target})
    spec = model.find(asked)
    total, count = _count(source), _count(target)
    if None not in (total, count):
        require_equal(source, total, target, count)
    with contextlib.ExitStack() as stack:
        stream = stack.enter_context(_opened(into))
        translator = stack.enter_context(translator_of(spec))
        bar = stack.enter_context(progress(total=total, title=title, unit="lines"))
        pairs = _paired(in_windows(input_lines(source)), source, target)
        yield translator, chain.from_iterable(pairs), bar, _line_writer(stream)


def _written(target: Path | None) -> dict[str, Path | int]:
    """For `require_distinct`, what is written: a file, or (None) stdout."""
    return {"stdout": 1} if target is None else {"--output": target}


def _read(source: Path | None) -> dict[str, Path | int]:
    return {"stdin": 0} if source is None else {"--input": source}


def _opened(target: Path | None) -> contextlib.AbstractContextManager[IO[bytes]]:
    """What is written into: a file, or (None) stdout."""
    return contextlib.nullcontext(sys.stdout.buffer) if target is None else atomic(target, "wb")


def require_equal(first: Path, first_count: int, second: Path, second_count: int) -> None:
    """
    Raises:
        UserError: the numbers of lines differ.
    """
    if first_count != second_count:
        raise UserError(
            f"{first} has {first_count:,} lines, {second} has {second_count:,}: one line of each "
            "belongs together"
        )


def _count(path: Path | None) -> int | None:
    """The number of lines of a file; None: it is none, and can be read but once."""
    return count_lines(path) if path is not None and path.is_file() else None


def _line_writer(stream: IO[bytes]) -> Callable[[str], object]:
    return lambda line: stream.write(f"{line}\n".encode())


def _arriving(source: Path | None) -> Iterator[list[str]]:
    if source is None:
        return arriving(sys.stdin.fileno(), "stdin")
    return arriving(os.open(source, os.O_RDONLY), str(source))


def _with_prefixes(
    lines: Iterator[list[str]], source: Path | None, prefix: Path | None, done: int
) -> Iterator[list[Line]]:
    if prefix is None:
        return ([Line(text) for text in window] for window in lines)
    pairs = _paired(lines, source, prefix, done)
    return ([Line(*pair) for pair in window] for window in pairs)


def _paired(
    lines: Iterator[list[str]], source: Path | None, other: Path, skip: int = 0
) -> Iterator[list[tuple[str, str]]]:
    """Windows of lines of `source`, each line with its line of another file, of which the first
    `skip` are left out."""
    unequal = UserError(f"{source or 'stdin'} and {other} have not as many lines")
    others = input_lines(other, skip)
    for window in lines:
        own = list(islice(others, len(window)))
        if len(own) < len(window):
            raise unequal
        yield list(zip(window, own, strict=True))
    if next(others, None) is not None:
        raise unequal


def _flushing(lines: Iterator[Item], flush: Callable[[], object]) -> Iterator[Item]:
    """Flushes the output whenever more input is asked for: after a pause that is all there is."""
    for window in lines:
        yield window
        flush()


def _made_from(
    spec: EngineSpec,
    source: Path,
    prefix: Path | None,
    format: str,
    alignment: bool,
) -> dict[str, Any]:
    """All that a translation follows from, under names that a person understands."""
    config = spec.config
    model = hashlib.sha256(spec.subwords.content())
    for folder in spec.checkpoints or [spec.folder]:
        with contextlib.suppress(OSError):  # which loading will complain of
            model.update((folder / CHECKSUMS).read_bytes())
    return {
        "version of this program": __version__,
        "model": model.hexdigest(),
        "--engine": spec.backend.name,
        "--device": spec.device,
        "data.max_length": config.data.max_length,
        "data.target_lang": config.data.target_lang,
        **{f"decoding.{key}": value for key, value in config.decoding.model_dump().items()},
        "--format": format,
        "--alignment": alignment,
        "input": content_hash(source),
        "--prefix": None if prefix is None else content_hash(prefix),
    }
