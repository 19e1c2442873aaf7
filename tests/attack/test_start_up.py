"""Signals through the whole of a start, most of which is the import of Paddle: the process ends at
once or at the end of the import, with its exit code, and without a trace of anybody's code."""

import random
import signal
import subprocess
import time

import pytest

from tests.support import start

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}
# Seconds until Python itself is up on a busy machine; before that, the system ends a process.
UP = 0.5


@pytest.mark.slow  # tests/utils/test_signals.py has signals at some moments of a start
@pytest.mark.parametrize("verb", ["translate", "train"])
def test_signals(recipe, model, verb, is_large):
    command = [verb, model, "--threads", 1] if verb == "translate" else [verb, recipe, "--restart"]
    if verb == "train":
        command.append("training.max_steps=1000000")
    count = 70 if is_large else 5
    drawn = random.Random(verb)
    for number in range(count):
        after = UP + 4.0 * (number + drawn.random()) / count
        kind = drawn.choice(list(CODES))
        where = f"{verb}, {kind.name} after {after:.2f} s"
        process = start(*command, is_fresh=True, stdin=subprocess.PIPE)
        time.sleep(after)
        process.send_signal(kind)
        try:
            stdout, stderr = process.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            process.kill()
            raise AssertionError(f"{where}: it hangs") from None
        assert process.returncode == CODES[kind], f"{where}: {process.returncode}\n{stderr}"
        assert verb == "train" or stdout == "", where
        for word in ("Traceback", "C++", "This should not happen", "FatalError", "Error:"):
            assert word not in stdout + stderr, f"{where}\n{stdout}{stderr}"
