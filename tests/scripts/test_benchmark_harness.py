"""The harness runs objects in processes of their own, lets them take turns, and reports errors."""

import argparse
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


def test_an_error_in_a_worker_is_told(tmp_path):
    for kind, arguments, method, error in (
        (Remembering, (1,), "fail", "ValueError: the text of the error"),
        (int, ("x",), "bit_length", "ValueError: invalid literal for int() with base 10: 'x'"),
    ):
        with harness.Worker(tmp_path, 1, kind, *arguments) as worker:
            with pytest.raises(harness.Failure) as failure:
                worker.ask(method)
            assert str(failure.value) == error


def test_competitors_take_turns():
    calls = []

    def competitor(name, speed):
        def work(number):
            calls.append((number, name))
            return harness.Turn(speed * 2, 2.0)

        return work

    turns = harness.take_turns("title", 2, {name: competitor(name, 7) for name in "abc"})
    assert calls == [(number, name) for number in range(2) for name in "abc"]
    assert {name: [turn.speed for turn in its] for name, its in turns.items()} == {
        name: [7.0, 7.0] for name in "abc"
    }


def run(monkeypatch, measure, *arguments):
    """Exit code of a benchmark with one argument, --count."""
    monkeypatch.setattr("sys.argv", ["benchmark_x.py", *arguments])
    monkeypatch.setattr("sys.path", list(sys.path))
    monkeypatch.setattr("os.environ", {**os.environ, "FLAGS_x": "1"})

    def add_arguments(parser):
        parser.add_argument("--count", type=harness.positive(int), default=1)

    before = signal.getsignal(signal.SIGTERM)
    try:
        harness.run(f"What it measures.{harness.NOTES}The notes.", add_arguments, measure)
    except SystemExit as exit:
        return exit.code
    finally:
        signal.signal(signal.SIGTERM, before)
    return 0


def test_results_are_printed_before_an_error(monkeypatch, capsys):
    folders = []

    def measure(options: argparse.Namespace, folder):
        folders.append(folder)
        assert folder.is_dir() and folder.name.startswith("benchmark_x-")
        assert "FLAGS_x" not in os.environ and sys.path[0] == str(harness.ROOT)
        assert os.environ["PYTHONPATH"].split(os.pathsep)[0] == str(harness.ROOT)
        yield f"first of {options.count}"
        if options.count == 3:
            raise harness.WrongArguments("3 is wrong")
        if options.count == 2:
            raise harness.Failure("2 has failed")
        yield "second"

    assert run(monkeypatch, measure) == 0
    assert capsys.readouterr().out == "first of 1\n\nsecond\n\nThe notes.\n"
    assert run(monkeypatch, measure, "--count", "2") == 1
    out, err = capsys.readouterr()
    assert out == "first of 2\n\n" and err.endswith(" error: 2 has failed\n")
    assert run(monkeypatch, measure, "--count", "3") == 2
    assert capsys.readouterr().err.endswith("error: 3 is wrong\n")
    assert run(monkeypatch, measure, "--count", "0") == 2
    assert "--count: 0: expected a number above 0" in capsys.readouterr().err
    assert len(folders) == 3 and not any(folder.exists() for folder in folders)


def test_a_change_of_the_code_is_an_error(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(harness, "ROOT", tmp_path)
    module = tmp_path / "transformer_mt" / "package" / "module.py"
    module.parent.mkdir(parents=True)
    module.write_text("one")

    def change(*_):
        module.with_suffix(".pyc").write_text("no source")
        yield "unchanged"
        module.write_text("two")

    assert run(monkeypatch, change) == 1
    assert "the code of transformer_mt has changed" in capsys.readouterr().err
