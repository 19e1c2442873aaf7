"""The prompt of `translate`: real terminals, with a process at their other end."""

import builtins
import contextlib
import json
import os
import pty
import re
import select
import signal
import sys
import termios
import time
from pathlib import Path

import pytest

from tests.support import ROOT, TIMEOUT, demo_pairs, important, run_command
from transformer_mt import cli
from transformer_mt.commands.translate import wants_prompt
from transformer_mt.translator import Translator
from transformer_mt.utils.errors import UsageError

SENTENCES = [source for source, _ in demo_pairs(4)]
QUICK = ("--threads", "1", "--beam-size", "2")
LEFT, UP, CTRL_A, CTRL_C, CTRL_D, BACKSPACE = "\x1b[D", "\x1b[A", "\x01", "\x03", "\x04", "\x7f"


def translated(model) -> list[str]:
    """The translations of the sentences."""
    return Translator.load(model, beam_size=2).translate(SENTENCES)


class Terminal:
    """The program at a terminal of its own."""

    def __init__(self, *arguments, **environment) -> None:
        command = [sys.executable, "-m", "transformer_mt", "translate", *map(str, arguments)]
        env = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", **environment}
        self._pid, self._own = pty.fork()
        if self._pid == 0:
            os.execve(sys.executable, command, env)
        termios.tcsetwinsize(self._own, (24, 200))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
        os.close(self._own)

    def shown(self, end: str = "en> ") -> str:
        """What appears up to a text, without it and without what moves the cursor."""
        found = b""
        deadline = time.monotonic() + TIMEOUT
        while not (text := _plain(found)).endswith(end):
            assert time.monotonic() < deadline, text
            if select.select([self._own], [], [], 1)[0]:
                found += os.read(self._own, 4096)  # an OSError if the process has ended
        return text.removesuffix(end)

    def write(self, keys: str) -> None:
        os.write(self._own, keys.encode())

    def rest(self) -> None:
        """Waits until the program sleeps. Python's readline leaves a Ctrl-C unnoticed up to the
        next key, if it comes after a key was read and before the next one is waited for."""
        stat = Path(f"/proc/{self._pid}/stat")
        deadline = time.monotonic() + TIMEOUT
        while stat.read_text().rpartition(")")[2].split()[0] != "S":
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def type(self, keys: str) -> str:
        """Types, and returns what appears up to the next prompt, below the line that was typed."""
        self.write(keys)
        return important(self.shown().partition("\n")[2])

    def end(self, keys: str) -> int:
        self.write(keys)
        with contextlib.suppress(OSError):
            while os.read(self._own, 4096):
                pass
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])


def _plain(output: bytes) -> str:
    text = output.decode("utf-8", "ignore").replace("\r\n", "\n")
    return re.sub(r"\x1b\[[\d;?]*[A-Za-z]|\x1b=|\x1b>", "", text)


def test_a_session(model):
    expected = translated(model)
    with Terminal(model, *QUICK, LC_ALL="C") as terminal:
        terminal.shown()
        # Answers only: no bar, no message.
        for text, answer in zip(SENTENCES[:2], expected, strict=False):
            assert terminal.type(f"{text}\n") == f"{answer}\n"
        assert terminal.type(UP + "\n") == f"{expected[1]}\n"
        assert terminal.type(UP + UP + UP + "\n") == f"{expected[0]}\n"
        assert terminal.type("\n") == "" and terminal.type("   \n") == ""

        assert terminal.type(":n 2\n") == ""
        first, second = terminal.type(f"{SENTENCES[0]}\n").splitlines()
        assert re.fullmatch(rf" +-\d+\.\d{{4}}  {re.escape(expected[0])}", first)
        assert re.fullmatch(r" +-\d+\.\d{4}  .*", second)
        assert float(first.split()[0]) >= float(second.split()[0])
        assert "The beam size is now 3 instead of 2" in terminal.type(":n 3\n")
        assert len(terminal.type(f"{SENTENCES[0]}\n").splitlines()) == 3
        assert "n_best: 0: expected" in terminal.type(":n 0\n")
        terminal.type(":n 1\n")
        assert terminal.type(f"{SENTENCES[0]}\n").count("\n") == 1

        assert ":n 3 " in terminal.type(":help\n")
        assert ":frob: there is no such command.\nType a sentence" in terminal.type(":frob\n")
        assert "there is no such command" not in terminal.type(" :frob\n")
        # Two lines that are pasted at once, in the way of terminals that tell so.
        pasted = terminal.type("\x1b[200~" + "\r".join(SENTENCES[:2]) + "\x1b[201~\n")
        assert len(pasted.splitlines()) >= 2

        # A key moves over a whole character, or deletes one.
        assert terminal.type(f":世{BACKSPACE}frob{LEFT}{BACKSPACE}界\n").startswith(":fr界b: there")
        assert terminal.type(f"é{CTRL_A}:日本語 \n").startswith(":日本語 é: there is no such")
        assert terminal.end(CTRL_D) == 0


def test_ctrl_c_clears_the_line_stops_an_answer_and_ends_at_the_second_time(model):
    endless = ("--min-length-extra", "9000", "--max-length-extra", "9000", "--no-stop-loops")
    hint = "To end the program, press Ctrl-D, or Ctrl-C again.\n"
    with Terminal(model, *QUICK, *endless) as terminal:
        terminal.shown()
        terminal.write("half a sentence")
        terminal.shown("half a sentence")
        terminal.rest()
        assert terminal.type(CTRL_C) == hint
        assert ":frob: there is no such command" in terminal.type(":frob\n")
        terminal.write(f"{SENTENCES[0]}\n")
        terminal.shown(f"{SENTENCES[0]}\n")
        time.sleep(0.3)  # the answer takes many times as long
        assert terminal.type(CTRL_C) == hint
        terminal.rest()
        assert terminal.end(CTRL_C) == 130


# ---- In this process, with a list of lines in place of the terminal ----


@pytest.fixture
def typed(monkeypatch, model, capsys):
    """Runs the prompt with lines, and exceptions in place of lines; gives what it printed."""

    def run_with(*lines, **flags):
        left = iter([*lines, EOFError()])

        def read(_):
            line = next(left)
            if isinstance(line, BaseException):
                raise line
            return line

        monkeypatch.setattr(builtins, "input", read)
        for name in ("stdin", "stdout"):
            monkeypatch.setattr(getattr(sys, name), "isatty", lambda: True, raising=False)
        run_command("translate", model, threads=1, beam_size=2, **flags)
        return capsys.readouterr()

    return run_with


def test_formats_and_alternatives_at_the_prompt(typed):
    output = typed(SENTENCES[0], ":n 2", SENTENCES[0], format="jsonl").out
    first, second = map(json.loads, output.strip().split("\n"))
    assert (len(first["outputs"]), len(second["outputs"])) == (1, 2)
    assert first["outputs"][0] == second["outputs"][0]
    # What a terminal would obey is shown.
    output = typed(f"\x1b[2J {SENTENCES[0]}", format="tsv", n_best=2, alignment=True).out
    assert output.count("\t") == 6 and "\x1b" not in output
    assert len(typed(SENTENCES[0], n_best=2).out.strip().splitlines()) == 2


def test_wrong_lines_and_options(typed):
    wrong = UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
    output, messages = typed(wrong, SENTENCES[0])
    assert "not UTF-8" in messages and output.strip()
    with pytest.raises(UsageError, match="--resume: --input and --output must be files"):
        typed(resume=True)
    with pytest.raises(UsageError, match="--alignment: plain text"):
        typed(alignment=True)


@pytest.mark.parametrize("name", ["stdin", "stdout"])
def test_without_a_terminal_there_is_no_prompt(monkeypatch, name):
    for stream in ("stdin", "stdout"):
        monkeypatch.setattr(getattr(sys, stream), "isatty", lambda: True, raising=False)
    options = cli.parse(["translate", "m"])
    assert wants_prompt(options)
    monkeypatch.setattr(getattr(sys, name), "isatty", lambda: False, raising=False)
    assert not wants_prompt(options)
    monkeypatch.setattr(sys, name, None)
    assert not wants_prompt(options)
