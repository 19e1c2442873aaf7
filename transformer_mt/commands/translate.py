"""The command `translate`.

At a terminal, if INPUT and OUTPUT are not given, there is a prompt: each sentence that you type is
translated at once. `:n 3` shows three translations of each, `:help` shows more, and Ctrl-D ends.

formats, all with one line for each line of the input:
  plain  the best translation
  tsv    columns with tabs between them: the source, the translation, its score and, with
         --alignment, its alignment. With --n-best, each further translation adds these columns
         again, without the source. A tab or an end of line in a text becomes a space
  jsonl  `{"source", "source_pieces", "source_parts", "outputs": [{"text", "score", "log_prob",
         "pieces", "parts", "alignment"}, ...]}`, with the best output first. Pieces are subwords.
         Parts are what was translated by itself: each sentence, unless --no-split-sentences

The score is log_prob, the natural logarithm of the probability, divided by the length penalty.

An alignment consists of pairs i-j of a source word i and a target word j, both counted from 0. Each
word of the translation is paired with the source word that it attends to most. Words are separated
by spaces (U+2581 in pieces). In languages without spaces, such as zh and ja, each piece counts as a
word.

examples:
  python -m transformer_mt translate runs/demo in.txt out.txt
  python -m transformer_mt translate runs/demo --input in.txt --output out.txt
  python -m transformer_mt translate runs/demo < in.txt > out.txt
  echo 'Where is the station?' | python -m transformer_mt translate runs/demo
  python -m transformer_mt translate runs/demo --n-best 3 --format tsv < in.txt
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from transformer_mt.commands import line_files, prompt
from transformer_mt.commands.arguments import (
    MODEL_OR_EXPORT,
    add_files,
    add_model_dir,
    require_files,
)
from transformer_mt.commands.model_choice import (
    add_model_choice,
    find_engine,
    made_from,
    translating,
)
from transformer_mt.decoding import output
from transformer_mt.decoding.lines import WINDOW, arriving, in_windows, input_lines
from transformer_mt.decoding.resumable import resumable_file
from transformer_mt.model_directory import require_safe_outputs
from transformer_mt.utils.errors import UsageError
from transformer_mt.utils.files import content_of, is_replaceable

if TYPE_CHECKING:
    from transformer_mt.decoding.output import Line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_dir(parser, MODEL_OR_EXPORT)
    for name in ("input", "output"):
        parser.add_argument(
            f"{name}_by_position", metavar=name.upper(), nargs="?", help=f"the same as --{name}"
        )
    add_files(
        parser,
        input="the text to translate, one sentence per line (default, or -: the standard input)",
        output="the file for the translations (default, or -: the standard output)",
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="continue an --output that was interrupted; --input must be a file too",
    )
    add_files(
        parser,
        prefix="for each line of the input, one line with the beginning of its translation",
    )
    parser.add_argument(
        "--format",
        choices=output.FORMATS,
        default="plain",
        help="the format of the output, explained below (default: plain)",
    )
    parser.add_argument(
        "--alignment",
        action="store_true",
        help="also write which words of source and translation belong together; needs --format tsv "
        "or jsonl",
    )
    add_model_choice(parser)


def run(options: argparse.Namespace) -> None:
    for name in ("input", "output"):
        by_position, path = getattr(options, f"{name}_by_position"), getattr(options, name)
        if by_position is not None and path is not None:
            raise UsageError(
                f"{by_position}: {name.upper()} was also given as --{name}; give it once"
            )
        path = by_position or path  # - stands for the standard input or output
        setattr(options, name, None if path is None or str(path) == "-" else Path(path))
    require_files(options, "input", "prefix")
    source, target, prefix = options.input, options.output, options.prefix
    if (source is None and sys.stdin is None) or (target is None and sys.stdout is None):
        raise UsageError("stdin or stdout is closed: give --input FILE and --output FILE")
    read = {"stdin": 0} if source is None else {"--input": source}
    require_safe_outputs(line_files.written(target), {**read, "--prefix": prefix})
    asked = ["prefix"] * (prefix is not None) + ["alignment"] * options.alignment
    spec = find_engine(options, options.model_dir, *asked)
    decoding = spec.config.decoding
    has_prompt = prompt.is_wanted(options) and not options.resume
    if options.format == "plain" and decoding.n_best > 1 and not has_prompt:
        raise UsageError(
            f"--n-best {decoding.n_best}: plain text has one translation for each line. Add "
            "--format tsv or --format jsonl, or --n-best 1"
        )
    if options.format == "plain" and options.alignment:
        raise UsageError("--alignment: plain text has no place for it; add --format tsv or jsonl")
    if has_prompt:
        prompt.run(spec, options.format, options.alignment)
        return
    is_file = source is not None and source.is_file()
    can_resume = is_file and target is not None and is_replaceable(target)
    if options.resume and not can_resume:
        raise UsageError("--resume: --input and --output must be files")
    text, prefixes = line_files.content(source), line_files.content(prefix)
    if text and prefixes:
        line_files.require_equal(source, text.line_count, prefix, prefixes.line_count)

    with contextlib.ExitStack() as stack:
        write_line: Callable[[str], object]
        done, flush = 0, lambda: None
        if can_resume:
            settings = {
                **made_from(spec),
                "--format": options.format,
                "--alignment": options.alignment,
                "input": text.sha256,
                "--prefix": None if prefix is None else (prefixes or content_of(prefix)).sha256,
            }
            file = stack.enter_context(resumable_file(target, settings, WINDOW, options.resume))
            write_line, done = file.write_line, file.lines
        else:
            stream = stack.enter_context(line_files.opened(target))
            write_line, flush = line_files.line_writer(stream), stream.flush
        # A file's windows do not depend on how fast it is read, nor does its translation.
        lines = in_windows(input_lines(source, done)) if is_file else _arriving(source)
        total = text and text.line_count
        translator, bar = stack.enter_context(translating(spec, "translating", total, done))
        translations = translator.stream(
            _flushing(_with_prefixes(lines, source, prefix, done), flush),
            finished=bar.update,
            need_alignment=options.alignment,
            first=done + 1,
        )
        as_text = output.formatter(options.format, decoding.n_best)
        for translation in translations:
            write_line(as_text(translation))


def _arriving(source: Path | None) -> Iterator[list[str]]:
    if source is None:
        return arriving(sys.stdin.fileno(), "stdin")
    return arriving(os.open(source, os.O_RDONLY), str(source))


def _with_prefixes(
    lines: Iterator[list[str]], source: Path | None, prefix: Path | None, done: int
) -> Iterator[list[Line]]:
    from transformer_mt.decoding.output import Line

    if prefix is None:
        return ([Line(text) for text in window] for window in lines)
    pairs = line_files.paired(lines, source, prefix, done)
    return ([Line(*pair) for pair in window] for window in pairs)


def _flushing(lines: Iterator[list[Line]], flush: Callable[[], object]) -> Iterator[list[Line]]:
    """Flushes the output whenever more input is read, so that no output is held back by a pause."""
    for window in lines:
        yield window
        flush()
