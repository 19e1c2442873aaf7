"""The harness runs objects in processes of their own, lets them take turns, and reports errors."""

import os
import signal
import sys
from collections import Counter

import pytest

from benchmarks import harness


class Remembering:
    """What a worker of these tests runs."""

    def __init__(self, *values):
        self.values = list(values)

    def add(self, value):
        print("adding", value, flush=True)
        self.values.append(value)
        return self.values, os.getpid(), os.environ["OMP_NUM_THREADS"]

    def fail(self):
        raise ValueError("the text of the error")

    def die(self):
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_worker_is_one_object_in_a_process_of_its_own(tmp_path):
    with harness.Worker(tmp_path, 3, Remembering, 1, 2) as worker:
        assert worker.ask("add", 3)[0] == [1, 2, 3]
        values, process, threads = worker.ask("add", 4)
        assert values == [1, 2, 3, 4] and process != os.getpid() and threads == "3"
        with pytest.raises(harness.Failure, match=r"was killed:\nadding 3\nadding 4$"):
            worker.ask("die")
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)
    with (
        harness.Worker(tmp_path, 1, Remembering) as worker,
        pytest.raises(harness.Failure, match="ValueError: the text of the error"),
    ):
        worker.ask("fail")


def test_a_worker_in_another_python(tmp_path):
    with harness.OtherPythonWorker(tmp_path, 1, sys.executable, Counter, "abb") as worker:
        worker.begin("update", "ccc")
        assert worker.result() is None
        assert worker.ask("most_common", 2) == [("c", 3), ("b", 2)]
        with pytest.raises(harness.Failure, match="no attribute 'fail'"):
            worker.ask("fail")
    assert worker._process.returncode == 0


def test_competitors_take_turns():
    calls = []

    def competitor(name):
        return lambda number: calls.append((number, name)) or harness.Turn(14, 2.0)

    turns = harness.take_turns("title", 2, {name: competitor(name) for name in "abc"})
    assert calls == [(number, name) for number in range(2) for name in "abc"]
    assert [[turn.speed for turn in turns[name]] for name in "abc"] == [[7.0, 7.0]] * 3
