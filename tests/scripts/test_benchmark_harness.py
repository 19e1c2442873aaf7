"""The harness runs objects in processes of their own, lets them take turns, and reports errors."""

import os
import signal
import sys

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


def test_competitors_take_turns():
    calls = []

    def competitor(name):
        return lambda number: calls.append((number, name)) or harness.Turn(14, 2.0)

    turns = harness.take_turns("title", 2, {name: competitor(name) for name in "abc"})
    assert calls == [(number, name) for number in range(2) for name in "abc"]
    assert [[turn.speed for turn in turns[name]] for name in "abc"] == [[7.0, 7.0]] * 3


@pytest.mark.parametrize(
    ("arguments", "code", "output", "error"),
    [
        ([], 0, "first of 1\n\nsecond\n\nThe notes.\n", ""),
        (["--count", "2"], 1, "first of 2\n\n", "error: 2 has failed\n"),
        (["--count", "3"], 2, "first of 3\n\n", "error: 3 is wrong\n"),
        (["--count", "4"], 1, "first of 4\n\nThe notes.\n", "transformer_mt has changed"),
        (["--count", "0"], 2, "", "--count: 0: expected a number above 0"),
    ],
)
def test_results_are_printed_before_an_error(
    monkeypatch, capsys, tmp_path, arguments, code, output, error
):
    monkeypatch.setattr("sys.argv", ["benchmark_x.py", *arguments])
    monkeypatch.setattr("sys.path", list(sys.path))
    monkeypatch.setattr("os.environ", {**os.environ, "FLAGS_x": "1"})
    monkeypatch.setattr(harness, "ROOT", tmp_path)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    (tmp_path / "transformer_mt").mkdir()
    folders = []

    def add_arguments(parser):
        parser.add_argument("--count", type=harness.positive(int), default=1)

    def measure(options, folder):
        folders.append(folder)
        assert folder.is_dir() and "FLAGS_x" not in os.environ
        assert sys.path[0] == os.environ["PYTHONPATH"].split(os.pathsep)[0] == str(tmp_path)
        yield f"first of {options.count}"
        if options.count == 3:
            raise harness.WrongArguments("3 is wrong")
        if options.count == 2:
            raise harness.Failure("2 has failed")
        if options.count == 4:
            (tmp_path / "transformer_mt" / "module.py").write_text("two")
        else:
            yield "second"

    try:
        harness.run(f"What it measures.{harness.NOTES}The notes.", add_arguments, measure)
        found = 0
    except SystemExit as stop:
        found = stop.code
    assert found == code and not any(folder.exists() for folder in folders)
    printed, messages = capsys.readouterr()
    assert printed == output and error in messages
