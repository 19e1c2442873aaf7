"""The command `translate`.

At a terminal, if INPUT and OUTPUT are not given, there is a prompt: each sentence that you type is
translated at once. `:n 3` shows three translations of each, `:help` shows more, and Ctrl-D ends.

An INPUT that is a document, judged by the ending of its name, stays what it is: only its texts are
translated. Documents are PO, XLIFF, TMX, Qt's .ts, Android's strings.xml, .resx, .properties,
JSON, YAML, .srt, .vtt, HTML, Markdown, .docx, .odt and .pptx; with --columns also CSV, TSV and
JSON Lines. Everything else is lines of text. docs/localisation.md says more.

formats of lines, all with one line for each line of the input:
  plain  the best translation
  tsv    columns with tabs between them: the source, the translation, its score and, with
         --alignment, its alignment. With --n-best, each further translation adds these columns
         again, without the source. A tab or an end of line in a text becomes a space
  jsonl  `{"source", "source_pieces", "source_parts", "outputs": [{"text", "score", "log_prob",
         "pieces", "parts", "alignment"}, ...]}`, with the best output first. Pieces are subwords.
         Parts are what was translated by itself: each sentence, unless --no-split-sentences.
         With --warnings or --strict, there are also "protected_by" (how protected spans came into
         the translation: by the search, by the word alignment, by cutting the line, or null) and
         "warnings": [{"kind", "what"}, ...]

The score is log_prob, the natural logarithm of the probability, divided by the length penalty.

An alignment consists of pairs i-j of a source word i and a target word j, both counted from 0. Each
word of the translation is paired with the source word that it attends to most. Words are separated
by spaces (U+2581 in pieces). In languages without spaces, such as zh and ja, each piece counts as a
word.

--warnings compares each translation with its source, and writes what was lost or looks wrong. With
--strict, a loss in any line gives the exit code 6. The first three kinds of warnings are losses.

kinds of warnings:
  span         a protected span (a tag, a placeholder, ...; see data.protect in the recipe) is
               missing, there too often, new, or in the wrong order
  number       a number is missing, changed or new
  empty        the source has text, and the translation has none
  punctuation  the sentence ends with another kind of mark
  length       much shorter or much longer than the source
  repetition   words are repeated that the source does not repeat
  copied       the source itself, not translated
  term         with --terms: the translation of a term is missing, or a forbidden one is there. This
               is a loss too

--terms is a file in TBX, or one whose lines have a term, a tab and its translation. Further columns
are other forms of the translation, such as its plural; the model chooses one. If the last column is
"forbidden", the translation is not used. Lines that begin with # are comments.

examples:
  python -m transformer_mt translate runs/demo in.txt out.txt
  python -m transformer_mt translate runs/demo --input in.txt --output out.txt
  python -m transformer_mt translate runs/demo < in.txt > out.txt
  echo 'Where is the station?' | python -m transformer_mt translate runs/demo
  python -m transformer_mt translate runs/demo --n-best 3 --format tsv < in.txt
  python -m transformer_mt translate runs/demo messages.pot de.po --memory ours.tmx
  python -m transformer_mt translate runs/demo goods.csv waren.csv --columns name,name_de
"""

from __future__ import annotations

import argparse
import contextlib
import locale
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_mt.commands import arguments, memories, translate_document
from transformer_mt.commands.translating import (
    contents,
    find_engine,
    made_from,
    numbered,
    opened,
    paired,
    translating,
    written,
)
from transformer_mt.commands.warnings_file import warnings_file
from transformer_mt.data import terms
from transformer_mt.decoding import output
from transformer_mt.decoding.lines import (
    WINDOW,
    arriving,
    in_windows,
    input_lines,
    resumable_file,
)
from transformer_mt.decoding.memory import EXACT
from transformer_mt.decoding.output import Line
from transformer_mt.export import registry
from transformer_mt.export.registry import EngineSpec
from transformer_mt.formats import registry as formats
from transformer_mt.model_directory import require_safe_outputs
from transformer_mt.utils import signals
from transformer_mt.utils.console import say, visible
from transformer_mt.utils.errors import Interrupted, UsageError
from transformer_mt.utils.files import content_of, is_compressed, is_replaceable

if TYPE_CHECKING:
    from transformer_mt.decoding.line_translator import LineTranslator

CTRL_C = 130  # the exit code

HELP = """\
Type a sentence and press Enter to translate it. The arrow keys edit it, and bring back what you
typed before.
  :n 3     shows the 3 best translations of a sentence, with their scores. :n 1 shows only the best
  :help    shows this help
  Ctrl-C   clears the line, or stops the translation. A second Ctrl-C ends the program
  Ctrl-D   ends the program
To translate a text that begins with a colon, type a space before it."""


class _Once(argparse.Action):
    """Stores a file that can be given by its position or by an option, but not by both. - is the
    standard input or output: None."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, text: Any, _=None) -> None:
        if getattr(namespace, self.dest, None) is not None:
            parser.error(f"{text}: give {self.dest.upper()} or --{self.dest}, and only once")
        setattr(namespace, self.dest, None if text == "-" else Path(text))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add_model_dir(parser, arguments.MODEL_OR_EXPORT)
    for name, help in {
        "input": "the text to translate, one sentence per line, or a document (default, or -: the "
        "standard input)",
        "output": "the file for the translations (default, or -: the standard output)",
    }.items():
        parser.add_argument(
            name,
            metavar=name.upper(),
            nargs="?",
            action=_Once,
            default=argparse.SUPPRESS,
            help=f"the same as --{name}",
        )
        parser.add_argument(f"--{name}", metavar="FILE", action=_Once, help=help)
    arguments.add_switches(
        parser,
        resume="continue an --output that was interrupted; --input must be a file too",
    )
    arguments.add_files(
        parser,
        prefix="for each line of the input, one line with the beginning of its translation",
    )
    parser.add_argument(
        "--format",
        choices=output.FORMATS,
        default="plain",
        help="the format of the output, explained below (default: plain)",
    )
    arguments.add_switches(
        parser,
        alignment="also write which words of source and translation belong together; needs "
        "--format tsv or jsonl",
    )
    arguments.add_files(
        parser,
        terms="a list of terms whose translations are given, explained below",
        warnings="a file for what was lost or looks wrong in the translations, explained below: "
        "columns line, kind and what, with tabs between them",
    )
    arguments.add_switches(
        parser,
        strict="end with the exit code 6 if something was lost: a protected span, a number or a "
        "whole line. All translations are written all the same",
    )
    group = parser.add_argument_group("options for documents")
    arguments.add_switches(
        group, all="translate all of a document, even what has a finished translation"
    )
    arguments.add_values(
        group,
        "SOURCE[,TARGET]",
        arguments.columns,
        columns="translate this column of a CSV or TSV file, or this field of JSON Lines, into the "
        "column TARGET, or without TARGET in its place. Columns have names, or numbers from 1",
    )
    memories.add_arguments(parser)
    arguments.add_model_choice(parser)


def run(options: argparse.Namespace) -> None:
    source, target, prefix = options.input, options.output, options.prefix
    if (source is None and sys.stdin is None) or (target is None and sys.stdout is None):
        raise UsageError("stdin or stdout is closed: give --input FILE and --output FILE")
    read: dict[str, Path | int | None] = {"stdin": 0} if source is None else {"--input": source}
    read |= {"--prefix": prefix, "--terms": options.terms, **numbered("--memory", options.memory)}
    outputs = {"--memory-report": options.memory_report, "--warnings": options.warnings}
    require_safe_outputs({**written(target), **outputs}, read)
    if source is not None and formats.is_document(source, options.columns):
        translate_document.run(options)
        return
    if source is not None and is_compressed(source) and formats.is_document(source.with_suffix("")):
        raise UsageError(f"{source}: a document that is compressed is not read. Unpack it first")
    for name in ("all", "columns"):
        if getattr(options, name):
            raise UsageError(f"--{name}: {source or 'the standard input'} is read as lines of text")
    asked = ["prefix"] * (prefix is not None) + ["alignment"] * options.alignment
    asked += ["terms"] * (options.terms is not None)
    spec = find_engine(options, options.model_dir, *asked)
    n_best = spec.config.decoding.n_best
    has_prompt = wants_prompt(options) and not options.resume and not options.memory
    if options.format == "plain" and n_best > 1 and not has_prompt:
        raise UsageError(
            f"--n-best {n_best}: plain text has one translation for each line. Add --format tsv or "
            "--format jsonl, or --n-best 1"
        )
    if options.format == "plain" and options.alignment:
        raise UsageError("--alignment: plain text has no place for it; add --format tsv or jsonl")
    if options.memory and (options.format != "plain" or prefix is not None):
        raise UsageError(
            "--memory: its translations have no scores, and do not begin with a given prefix. "
            "Leave out --memory, or --format and --prefix"
        )
    if options.resume and options.memory_report is not None:
        raise UsageError("--memory-report: with --resume, lines that are done are not looked up")
    languages = spec.config.data.source_lang, spec.config.data.target_lang
    memory = memories.read(options, languages)
    own_terms = None if options.terms is None else terms.read(options.terms, languages)
    if has_prompt:
        prompt(spec, options.format, options.alignment, own_terms)
        return
    text, prefixes = contents(source, prefix)
    is_file = text is not None
    can_resume = is_file and target is not None and is_replaceable(target)
    can_resume = can_resume and (prefix is None or prefixes is not None)
    if options.resume and not can_resume:
        raise UsageError("--resume: --input and --output must be files, and so must --prefix")

    with contextlib.ExitStack() as stack:
        warnings = stack.enter_context(warnings_file(options.warnings, options.strict))
        write_line: Callable[[str], object]
        done, flush = 0, lambda: None
        if can_resume:
            settings = {
                **made_from(spec),
                "--format": options.format,
                "--alignment": options.alignment,
                "--warnings": (options.format == "jsonl" and warnings is not None) or None,
                "input": text.sha256,
                "--prefix": prefixes and prefixes.sha256,
                "--memory": None if memory is None else memory.sha256,
                "--terms": None if options.terms is None else content_of(options.terms).sha256,
            }
            file = stack.enter_context(resumable_file(target, settings, WINDOW, options.resume))
            write_line, done = file.write_line, file.lines
        else:
            stream = stack.enter_context(opened(target))
            flush = stream.flush

            def write_line(line: str) -> object:
                return stream.write(f"{line}\n".encode())

        # A file's windows do not depend on how fast it is read, nor does its translation.
        if is_file:
            windows = in_windows(input_lines(source, done))
        else:
            descriptor = sys.stdin.fileno() if source is None else os.open(source, os.O_RDONLY)
            windows = arriving(descriptor, str(source or "stdin"))
        total = text and text.line_count
        found, bar = stack.enter_context(translating(spec, "translating", total, done))
        translator = found.with_settings(spec.config.decoding, terms=own_terms)
        lines = _lines(windows, source, prefix, done, flush)
        recall = None
        if memory is not None:
            report = stack.enter_context(memories.reporting(options.memory_report))
            recall = memories.Recall(memory, report, done + 1)
            lines = recall.without_known(lines)
        if warnings is not None and done:  # those of the lines that were written before
            both = input_lines(file.written()), islice(input_lines(source), done)
            for number, (old, line) in enumerate(zip(*both, strict=True), 1):
                best = output.best_in(old, options.format)
                warnings.add(number, translator.check_of(line)(best))
        translations = translator.stream(
            lines,
            finished=bar.update,
            need_alignment=options.alignment,
            first=done + 1,
        )
        as_text = output.formatter(options.format, n_best, warnings is not None)
        for number, translation in enumerate(translations, done + 1):
            known = recall.next() if recall else None
            write_line(as_text(translation) if known is None else known)
            if warnings is not None and known is None:
                warnings.add(number, translation.warnings)
    if recall:
        say(f"lines taken from the memory: {report.counts[EXACT]:,}{report.similar}")


def _lines(
    windows: Iterator[list[str]],
    source: Path | None,
    prefix: Path | None,
    done: int,
    flush: Callable[[], object],
) -> Iterator[list[Line]]:
    """The lines with their prefixes. Flushes the output whenever more input is read, so that no
    output is held back by a pause."""
    pairs: Iterator[list[tuple[str, ...]]] = ([(text,) for text in window] for window in windows)
    for window in pairs if prefix is None else paired(windows, source, prefix, done):
        yield [Line(*pair) for pair in window]
        flush()


# ---- The prompt: each sentence that is typed is translated at once ----


def wants_prompt(options: argparse.Namespace) -> bool:
    """Whether there is a prompt: the command reads from a terminal, and writes to one."""
    files = options.input, options.output, options.prefix, options.warnings
    return (
        not options.strict
        and files == (None,) * len(files)
        and all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout))
    )


def prompt(
    spec: EngineSpec, format: str, need_alignment: bool, own_terms: Iterable[terms.Term] | None
) -> None:
    """Translates what is typed, until Ctrl-D or a second Ctrl-C.

    Python's `readline` edits the line and keeps the history of the session. No file of it is
    written.

    Args:
        format: a name in `output.FORMATS`. With "plain", alternatives are shown with their scores.
        own_terms: those whose translations are given.

    Raises:
        Interrupted: Ctrl-C was pressed twice in a row, or another signal arrived.
        UserError: the model can't be loaded.
    """
    from transformer_mt.translator import translator_of  # which help does not need

    # In the locale C, Python reads UTF-8 all the same, but readline would edit single bytes.
    if sys.flags.utf8_mode and locale.nl_langinfo(locale.CODESET) != "UTF-8":
        os.environ["LC_ALL"] = "C.UTF-8"  # which readline reads for each line
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 (`input` edits the line then; it reads the locale)
    say(f"loading {spec.folder} ...")
    # One process is as fast as several, because sentences come one at a time.
    spec = replace(spec, threads=1)
    with translator_of(spec) as found:
        translator = found.with_settings(spec.config.decoding, terms=own_terms)
        say("Type a sentence and press Enter. Ctrl-D ends the program, and :help shows more.")
        session = _Session(spec, translator, format, need_alignment)
        is_interrupted = False
        while True:
            try:
                typed = input(f"{visible(spec.config.data.source_lang)}> ")
                # Text that is pasted may have several lines.
                for line in re.split(r"\r\n|\r|\n", typed):
                    is_interrupted = False
                    with signals.undisguised():
                        session.answer(line)
            except EOFError:
                print()
                return
            except UnicodeDecodeError:
                say("This is not UTF-8. Set the terminal to UTF-8.")
            except Interrupted as stop:
                print()
                if stop.exit_code != CTRL_C or is_interrupted:
                    raise
                is_interrupted = True
                say("To end the program, press Ctrl-D, or Ctrl-C again.")


@dataclass
class _Session:
    """The settings of a prompt, and the number of its lines so far."""

    spec: EngineSpec
    translator: LineTranslator
    format: str
    need_alignment: bool
    count: int = 0

    def answer(self, line: str) -> None:
        if re.fullmatch(r":n +\d{1,9} *", line):
            self._show_alternatives(int(line.removeprefix(":n")))
        elif line.startswith(":"):
            if line.strip() != ":help":
                say(f"{line}: there is no such command.")
            say(HELP)
        elif line.strip():
            self._translate(line)

    def _show_alternatives(self, count: int) -> None:
        """Shows this number of translations of each sentence from now on."""
        decoding = self.spec.config.decoding
        changes = {"n_best": count}
        if count > decoding.beam_size and not decoding.sampling:
            changes["beam_size"] = count
        try:
            self.spec = registry.with_decoding(self.spec, changes)
        except UsageError as error:
            say(str(error))
            return
        self.translator = self.translator.with_settings(self.spec.config.decoding)
        if "beam_size" in changes:
            say(f"The beam size is now {count} instead of {decoding.beam_size}.")

    def _translate(self, line: str) -> None:
        self.count += 1
        (found,) = self.translator.stream(
            [[Line(line)]], need_alignment=self.need_alignment, first=self.count
        )
        n_best = self.spec.config.decoding.n_best
        if self.format == "plain" and n_best > 1:
            text = "\n".join(f"{one.score:9.4f}  {one.text}" for one in found.outputs)
        else:
            text = output.formatter(self.format, n_best)(found)
        print(visible(text), flush=True)
