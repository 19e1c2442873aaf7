"""Signals, sent to real processes: an exception at once, or at the end of a block held together."""

import signal
import subprocess
import sys

import pytest

from tests.support import ROOT

PROGRAM = """
import sys, time
from transformer_mt import signals
from transformer_mt.errors import Interrupted

signals.install()

def wait(seconds=20):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.01)

def say(text):
    print(text, flush=True)

try:
    {body}
except Interrupted as stop:
    say("interrupted")
    sys.exit(stop.exit_code)
"""


def start(body):
    code = PROGRAM.format(body=body.strip().replace("\n", "\n    "))
    return subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, encoding="utf-8"
    )


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_is_an_exception(number, code):
    process = start("say('ready')\nwait()\nsay('too late')")
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    assert process.communicate(timeout=10)[0] == "interrupted\n"
    assert process.returncode == code


HELD = """
with signals.held_back():
    with signals.held_back():
        say("ready")
        wait(0.5)
        say("inner")
    say("outer")
say("too late")
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_is_held_back_to_the_end_of_the_outermost_block(number, code):
    process = start(HELD)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    assert process.communicate(timeout=10)[0] == "inner\nouter\ninterrupted\n"
    assert process.returncode == code


def test_without_a_signal_nothing_happens():
    output, _ = start(HELD).communicate(timeout=10)
    assert output == "ready\ninner\nouter\ntoo late\n"


def test_no_handler_of_ordinary_errors_swallows_it():
    process = start(
        """
try:
    say("ready")
    wait()
except Exception:
    say("swallowed")
"""
    )
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=10)[0] == "interrupted\n"


def test_a_signal_is_raised_once():
    process = start(
        """
try:
    with signals.held_back():
        say("ready")
        wait(0.5)
except Interrupted:
    with signals.held_back():
        say("once")
say("done")
"""
    )
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=10)[0] == "once\ndone\n"
    assert process.returncode == 0


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
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "pending\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=10)[0] == "interrupted\n"
    assert process.returncode == 130
