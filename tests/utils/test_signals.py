"""Signals, sent to real processes: an exception at once, or at the end of a block held together."""

import os
import pty
import re
import signal
import subprocess
import sys
import termios
import time
from contextlib import suppress

import paddle
import pytest

from tests.support import (
    ROOT,
    TIMEOUT,
    demo_pairs,
    make_config,
    make_model_directory,
    run_command,
    run_python,
    write_lines,
    write_pairs,
)
from transformer_mt.config.file import dump
from transformer_mt.utils import signals
from transformer_mt.utils.errors import Interrupted, UserError

PROGRAM = """
import sys, time
from transformer_mt.utils import signals
from transformer_mt.utils.errors import Interrupted

def wait(seconds=20):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.01)

def say(text):
    print(text, flush=True)

try:
    with signals.raised():
        {body}
except Interrupted as stop:
    say("interrupted")
    sys.exit(stop.exit_code)
"""


def start(body, *before):
    code = PROGRAM.format(body=body.strip().replace("\n", "\n        "))
    command = [*before, sys.executable, "-c", code]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, encoding="utf-8")


# In each, a signal comes after "ready": at once, held back, within a handler of errors, and twice.
BLOCKS = {
    "too late": ("say('ready')\nwait()\nsay('too late')", "interrupted\n"),
    "held back": (
        """
with signals.held_back():
    with signals.held_back():
        say("ready")
        wait(0.5)
        say("inner")
    say("outer")
say("too late")
""",
        "inner\nouter\ninterrupted\n",
    ),
    "not swallowed": (
        """
try:
    say("ready")
    wait()
except Exception:
    say("swallowed")
""",
        "interrupted\n",
    ),
    "raised once": (
        """
try:
    with signals.held_back():
        say("ready")
        wait(0.5)
except Interrupted as stop:
    with signals.held_back():
        say("once")
    sys.exit(stop.exit_code)
""",
        "once\n",
    ),
}


@pytest.mark.parametrize(
    ("number", "code", "block"),
    [(signal.SIGINT, 130, name) for name in BLOCKS]
    + [(signal.SIGTERM, 143, "held back"), (signal.SIGHUP, 129, "too late")],
)
def test_a_signal_is_raised_at_once_or_at_the_end_of_the_outermost_block(number, code, block):
    body, expected = BLOCKS[block]
    process = start(body)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    assert process.communicate(timeout=10)[0] == expected
    assert process.returncode == code


def test_a_signal_while_an_object_is_deleted():
    """Python ignores an exception there."""

    class Object:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            sum(range(1000))  # the handler runs in here

    with pytest.raises(Interrupted), signals.raised():
        thing = Object()
        del thing
        time.sleep(TIMEOUT)


def test_a_second_ctrl_c_is_not_held_back():
    process = start(
        """
with signals.held_back():
    say("ready")
    while not signals.pending():
        wait(0.01)
    say("pending")
    wait()
"""
    )
    for expected in ("ready\n", "pending\n"):
        assert process.stdout.readline() == expected
        process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=10)[0] == "interrupted\n"
    assert process.returncode == 130


def test_a_lost_terminal_is_ignored_under_nohup():
    process = start("say('ready')\nwait(1)\nsay('done')", "nohup")
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGHUP)
    assert process.communicate(timeout=10)[0] == "done\n"
    assert process.returncode == 0


# ---- From the first moment of a run to its last ----

# Runs the program, which sends itself a signal when it begins to import the named module, or
# when Python is ending.
AT_A_MODULE = """
import atexit, os, runpy, sys

number, moment = int(sys.argv[1]), sys.argv[2]

def send():
    os.kill(os.getpid(), number)

class Sender:
    def find_spec(self, name, path=None, target=None):
        if name == moment:
            send()

if moment == "the end":
    atexit.register(send)
sys.meta_path.insert(0, Sender())
del sys.argv[1:3]
runpy.run_module("transformer_mt", run_name="__main__", alter_sys=True)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model directory, text to translate, and a config to train from."""
    folder = tmp_path_factory.mktemp("signals")
    pairs = demo_pairs(120)
    write_pairs(folder / "text", "train", pairs)
    write_lines(folder / "in", [source for source, _ in pairs[:3]])
    config = make_config(folder, data={"held_out": 0})
    (folder / "recipe.yaml").write_text(dump(config), encoding="utf-8")
    make_model_directory(folder / "translator", pairs, config)
    return folder


def run_with_signal(folder, number, moment, *arguments) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", AT_A_MODULE, str(int(number)), moment, *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        encoding="utf-8",
        timeout=TIMEOUT,
    )


@pytest.mark.parametrize(
    ("number", "code", "moment"),
    [
        (signal.SIGINT, 130, "transformer_mt.cli"),
        (signal.SIGTERM, 143, "argparse"),
        (signal.SIGHUP, 129, "transformer_mt.commands.translate"),
        (signal.SIGINT, 130, "paddle.base.libpaddle"),
        # Paddle has put a handler of its own in place by then.
        (signal.SIGTERM, 143, "paddle.nn"),
    ],
)
def test_a_signal_while_modules_are_imported(folder, number, code, moment):
    command = ("translate", folder / "translator", "--threads", "1", "--input", folder / "in")
    done = run_with_signal(folder, number, moment, *command)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "interrupted\n")


def test_what_an_import_of_paddle_leaves_behind():
    """No handler of a crash, which would print a trace of C++ code; and Python still looks for
    garbage."""
    code = """
import gc
from transformer_mt.utils import signals
with signals.raised():
    import paddle
with open("/proc/self/status") as file:
    caught = next(line for line in file if line.startswith("SigCgt"))
print(int(caught.split()[1], 16), gc.isenabled())
"""
    done = run_python("-c", code, is_fresh=True)
    caught, is_enabled = done.stdout.split()
    assert is_enabled == "True", done.stderr
    for number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL):
        assert not int(caught) >> (number - 1) & 1


def test_a_signal_when_all_is_done(folder):
    command = ("translate", folder / "translator", "--threads", "1", "--input", folder / "in")
    done = run_with_signal(folder, signal.SIGTERM, "the end", *command)
    assert done.returncode in (0, 143) and len(done.stdout.splitlines()) == 3
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr


def test_a_lost_terminal_saves_a_training(folder, tmp_path):
    """With it, what the run says can't be written any more; SIGHUP comes to the run alone."""
    terminal, end = pty.openpty()
    termios.tcsetwinsize(end, (24, 80))
    model_dir = tmp_path / "model"
    process = subprocess.Popen(
        [sys.executable, "-m", "transformer_mt", "train", folder / "recipe.yaml",
         "training.devices=1", "training.max_steps=100000", "training.log_every=1",
         f"model_dir={model_dir}"],
        cwd=ROOT, stdin=end, stdout=end, stderr=end, start_new_session=True,
        preexec_fn=lambda: os.close(os.open(os.ttyname(0), os.O_RDWR)),
    )  # fmt: skip
    os.close(end)
    said = b""
    while not re.search(rb"[3-9]\d*/100,000 steps", said):  # the progress bar
        said += os.read(terminal, 1000)
    os.close(terminal)
    assert process.wait(timeout=TIMEOUT) == 129, said
    (saved,) = (model_dir / "checkpoints").iterdir()
    assert int(saved.name.removeprefix("step_")) >= 3


# ---- In the middle of C++ code, which replaces exceptions of Python with its own ----


def interrupt(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def interrupted_backward(*_: object) -> None:
    weight = paddle.ones([1])
    weight.stop_gradient = False
    weight.register_hook(interrupt)
    weight.sum().backward()


def test_an_error_that_hides_a_signal_is_not_told():
    with pytest.raises(Interrupted) as stopped, signals.raised():
        interrupted_backward()
    assert stopped.value.exit_code == 143


def test_other_errors_are_told_after_a_signal():
    """What the user has to know, and what happens later, such as at the next prompt."""
    with pytest.raises(UserError), signals.raised():
        try:
            interrupt()
        except Interrupted:
            raise UserError("the disk is full") from None
    with pytest.raises(ZeroDivisionError), signals.raised():
        with suppress(Interrupted):
            interrupt()
        with signals.undisguised():
            _ = 1 / 0


def test_an_export_to_paddle_is_not_broken_off_within_paddle(folder, monkeypatch, tmp_path):
    save, saved = paddle.jit.save, []

    def interrupted(*arguments):
        interrupt()
        save(*arguments)
        saved.append(arguments)

    monkeypatch.setattr(paddle.jit, "save", interrupted)
    with pytest.raises(Interrupted), signals.raised():
        run_command("export", folder / "translator", format="paddle", output=tmp_path / "export")
    assert saved and list(tmp_path.iterdir()) == []
