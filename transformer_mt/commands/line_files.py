"""What commands on lines of text share: files that belong together line by line, and the models
that translate or read them."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import IO, TYPE_CHECKING

from tqdm import tqdm

from transformer_mt.commands.model_choice import find_engine, translating
from transformer_mt.decoding.lines import in_windows, input_lines
from transformer_mt.export.registry import EngineSpec, split_model, with_decoding
from transformer_mt.model_directory import require_safe_outputs
from transformer_mt.utils.errors import UsageError, UserError
from transformer_mt.utils.files import Content, atomic, content_of

if TYPE_CHECKING:
    from transformer_mt.translator import Translator


@contextlib.contextmanager
def reading_pairs(
    options: argparse.Namespace, output: Path | None, title: str, asked: str
) -> Iterator[tuple[Translator, Iterator[tuple[str, str]], tqdm, Callable[[str], object]]]:
    """Opens a model and the files of sentence pairs that it reads.

    Yields: the translator, the pairs, a progress bar, and a function that writes a line of output.

    Args:
        options: of the command, among them the files --source and --target.
        output: the file to write; None: stdout.
        title: of the progress bar.
        asked: what the model does; see `backends.require_possible`.

    Raises:
        UserError: something is wrong with the model directory or the files.
    """
    if output is None and sys.stdout is None:
        raise UsageError("stdout is closed: give --output FILE")
    source, target = options.source, options.target
    require_safe_outputs(written(output), {"--source": source, "--target": target})
    spec = find_engine(options, options.model_dir, asked)
    text, translation = content(source), content(target)
    if text and translation:
        require_equal(source, text.line_count, target, translation.line_count)
    total = text and text.line_count
    with opened(output) as stream, translating(spec, title, total) as (translator, bar):
        pairs = paired(in_windows(input_lines(source)), source, target)
        yield translator, chain.from_iterable(pairs), bar, line_writer(stream)


def written(target: Path | None) -> dict[str, Path | int]:
    """What is written, for `require_safe_outputs`: a file, or stdout (None)."""
    return {"stdout": 1} if target is None else {"--output": target}


def opened(target: Path | None) -> contextlib.AbstractContextManager[IO[bytes]]:
    """A file that is written at once, or stdout (None)."""
    return contextlib.nullcontext(sys.stdout.buffer) if target is None else atomic(target, "wb")


def require_equal(first: Path, first_count: int, second: Path, second_count: int) -> None:
    """
    Raises:
        UserError: the numbers of lines differ.
    """
    if first_count != second_count:
        raise UserError(
            f"{first} has {first_count:,} lines, {second} has {second_count:,}: one line of each "
            "belongs together. Give two files of the same text, or add the lines that are missing"
        )


def content(path: Path | None) -> Content | None:
    """As `content_of`; None for a pipe, which can be read only once."""
    return content_of(path) if path is not None and path.is_file() else None


def line_writer(stream: IO[bytes]) -> Callable[[str], object]:
    return lambda line: stream.write(f"{line}\n".encode())


def paired(
    lines: Iterator[list[str]], source: Path | None, other: Path, skip: int = 0
) -> Iterator[list[tuple[str, str]]]:
    """Joins windows of lines of `source` (None: stdin) with the lines of another file, of which the
    first `skip` are left out.

    Raises:
        UserError: the two have different numbers of lines.
    """
    unequal = UserError(f"{source or 'stdin'} and {other} have not as many lines")
    others = input_lines(other, skip)
    for window in lines:
        own = list(islice(others, len(window)))
        if len(own) < len(window):
            raise unequal
        yield list(zip(window, own, strict=True))
    if next(others, None) is not None:
        raise unequal


def find_model(options: argparse.Namespace, text: str) -> EngineSpec:
    """The engine of a model that is given as MODEL_DIR, MODEL_DIR:CHECKPOINT or an export, with the
    arguments of `add_model_choice`. A checkpoint in the text takes precedence over --checkpoint.

    Raises:
        UsageError: there is no such model, or it can't be used so.
        UserError: the model is damaged.
    """
    folder, checkpoint = split_model(text)
    chosen = argparse.Namespace(**vars(options))
    chosen.checkpoint = checkpoint or options.checkpoint
    return with_decoding(find_engine(chosen, folder), {"n_best": 1})


def translate(spec: EngineSpec, sources: list[str]) -> tuple[list[str], float]:
    """Returns the translations of lines, and the seconds that they took, without the time to load
    the model."""
    with translating(spec, "translating", len(sources)) as (translator, bar):
        translator.warm_up(spec.processes)
        started = time.perf_counter()
        hypotheses = translator.translate(sources, bar.update)
        return hypotheses, time.perf_counter() - started
