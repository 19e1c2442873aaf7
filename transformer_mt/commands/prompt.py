"""The prompt of `translate` at a terminal: each sentence that is typed is translated at once.

Python's `readline` edits the line and keeps the history of the session. No file of it is written.
"""

from __future__ import annotations

import argparse
import contextlib
import locale
import os
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from transformer_mt.decoding import output
from transformer_mt.export import registry
from transformer_mt.export.registry import EngineSpec
from transformer_mt.utils import signals
from transformer_mt.utils.console import say, visible
from transformer_mt.utils.errors import Interrupted, UsageError

if TYPE_CHECKING:
    from transformer_mt.decoding.line_translator import LineTranslator
    from transformer_mt.decoding.output import Translation

CTRL_C = 130  # the exit code

HELP = """\
Type a sentence and press Enter to translate it. The arrow keys edit it, and bring back what you
typed before.
  :n 3     shows the 3 best translations of a sentence, with their scores. :n 1 shows only the best
  :help    shows this help
  Ctrl-C   clears the line, or stops the translation. A second Ctrl-C ends the program
  Ctrl-D   ends the program
To translate a text that begins with a colon, type a space before it."""


def is_wanted(options: argparse.Namespace) -> bool:
    """Whether `translate` shows a prompt: it reads from a terminal, and writes to one."""
    names = "input", "output", "prefix"
    return all(getattr(options, name) is None for name in names) and all(
        stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout)
    )


def run(spec: EngineSpec, format: str, need_alignment: bool) -> None:
    """Translates what is typed, until Ctrl-D or a second Ctrl-C.

    Args:
        format: a name in `output.FORMATS`. With "plain", alternatives are shown with their scores.

    Raises:
        Interrupted: Ctrl-C was pressed twice in a row, or another signal arrived.
        UserError: the model can't be loaded.
    """
    from transformer_mt.translator import translator_of  # which help does not need

    _prepare_editing()
    say(f"loading {spec.folder} ...")
    # One process is as fast as several, because sentences come one at a time.
    spec = replace(spec, threads=1)
    with translator_of(spec) as translator:
        say("Type a sentence and press Enter. Ctrl-D ends the program, and :help shows more.")
        _Session(spec, translator, format, need_alignment).run()


def _prepare_editing() -> None:
    """Makes `input` edit the line."""
    # In the locale C, Python reads UTF-8 all the same, but readline would edit single bytes.
    if sys.flags.utf8_mode and locale.nl_langinfo(locale.CODESET) != "UTF-8":
        os.environ["LC_ALL"] = "C.UTF-8"  # which readline reads for each line
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 (it reads the locale)


class _Session:
    def __init__(
        self, spec: EngineSpec, translator: LineTranslator, format: str, need_alignment: bool
    ) -> None:
        self._spec = spec
        self._translator = translator
        self._format = format
        self._need_alignment = need_alignment
        self._count = 0  # of the lines so far

    def run(self) -> None:
        prompt = f"{visible(self._spec.config.data.source_lang)}> "
        is_interrupted = False
        while True:
            try:
                # Text that is pasted may have several lines.
                for line in re.split(r"\r\n|\r|\n", input(prompt)):
                    is_interrupted = False
                    with signals.undisguised():
                        self._answer(line)
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

    def _answer(self, line: str) -> None:
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
        beam_size = self._spec.config.decoding.beam_size
        changes = {"n_best": count}
        if count > beam_size and not self._spec.config.decoding.sampling:
            changes["beam_size"] = count
        try:
            self._spec = registry.with_decoding(self._spec, changes)
        except UsageError as error:
            say(str(error))
            return
        self._translator = self._translator.with_settings(self._spec.config.decoding)
        if "beam_size" in changes:
            say(f"The beam size is now {count} instead of {beam_size}.")

    def _translate(self, line: str) -> None:
        from transformer_mt.decoding.output import Line

        self._count += 1
        (translation,) = self._translator.stream(
            [[Line(line)]], need_alignment=self._need_alignment, first=self._count
        )
        print(visible(self._as_text()(translation)), flush=True)

    def _as_text(self) -> Callable[[Translation], str]:
        n_best = self._spec.config.decoding.n_best
        if self._format == "plain" and n_best > 1:
            return _alternatives
        return output.formatter(self._format, n_best)


def _alternatives(translation: Translation) -> str:
    """The translations, each on a line after its score."""
    return "\n".join(f"{one.score:9.4f}  {one.text}" for one in translation.outputs)
