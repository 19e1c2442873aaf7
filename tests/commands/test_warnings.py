"""`translate --warnings` and `--strict`: what the file holds, and the exit code."""

import contextlib
import csv
import json
import threading
import time

import pytest

from tests.support import TIMEOUT, demo_pairs, write_lines
from transformer_mt import Translator
from transformer_mt.decoding.lines import WINDOW

LINES = [*(source for source, _ in demo_pairs(5)), "", "There are 777 and\t{name} of 888", "Dogs."]
FAST = (
    "--threads",
    "1",
    "--beam-size",
    "1",
    "--max-length-ratio",
    "0.5",
    "--protect",
    "placeholders",
)


@pytest.fixture(scope="module")
def expected(model):
    """The warnings of each line: [line, kind, what]."""
    translator = Translator.load(model, beam_size=1, max_length_ratio=0.5, protect=["placeholders"])
    return [
        [str(number), kind, what.replace("\t", " ")]
        for number, found in enumerate(translator.translate_full(LINES), 1)
        for kind, what in found.warnings
    ]


def rows(path):
    text = path.read_text("utf-8")
    return list(csv.reader(text.splitlines(), delimiter="\t", quoting=csv.QUOTE_NONE))


@pytest.mark.parametrize("format", ["plain", "tsv", "jsonl"])
def test_the_file_holds_the_warnings_and_the_output_is_the_same(
    model, call, expected, format, tmp_path
):
    source, path = write_lines(tmp_path / "in", LINES), tmp_path / "warnings.tsv"
    command = ["translate", model, source, tmp_path / "out", "--format", format, *FAST]
    assert call(*command).returncode == 0
    output = (tmp_path / "out").read_bytes()
    done = call(*command, "--warnings", path)
    assert done.returncode == 0
    assert rows(path) == [["line", "kind", "what"], *expected]
    # The model was never trained, so that it can't write the numbers.
    assert ["7", "number", "777 is missing"] in expected
    lines = len({line for line, _, _ in expected})
    assert f"warnings: {lines} lines: " in done.stderr and f"; see {path}" in done.stderr
    new = (tmp_path / "out").read_bytes()
    if format != "jsonl":
        assert new == output
        return
    found = [json.loads(line) for line in new.splitlines()]
    assert [
        [str(number), *warning.values()]
        for number, line in enumerate(found, 1)
        for warning in line.pop("warnings")
    ] == expected
    ways = [line.pop("protected_by") for line in found]
    assert ways[6] is not None and set(ways[:6] + ways[7:]) == {None}
    assert found == [json.loads(line) for line in output.splitlines()]


def test_strict_ends_with_its_exit_code_and_writes_all(model, call, expected, tmp_path):
    losses = {line for line, kind, _ in expected if kind in ("span", "number", "empty")}
    source = write_lines(tmp_path / "in", LINES)
    done = call("translate", model, source, tmp_path / "out", "--strict", *FAST)
    assert done.returncode == 6 and "Traceback" not in done.stderr
    noun = "line" if len(losses) == 1 else "lines"
    assert f"error: --strict: {len(losses)} {noun} lost something" in done.stderr
    assert len((tmp_path / "out").read_text("utf-8").split("\n")) == len(LINES) + 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]
    done = call("translate", model, "--strict", *FAST, stdin="\n\n")
    assert done.returncode == 0 and done.stdout == "\n\n"
    assert "warnings: none" in done.stderr


def test_the_warnings_of_lines_that_were_written_before_are_not_lost(model, call, tmp_path):
    lines = [*LINES, *[""] * (WINDOW - len(LINES)), *LINES]
    source, path = write_lines(tmp_path / "in", lines), tmp_path / "warnings.tsv"
    output = tmp_path / "out"
    description, content = tmp_path / ".out.partial.json", b""

    def read():  # what it is made from, which is there as long as the command runs
        nonlocal content
        while not content:
            with contextlib.suppress(OSError):
                content = description.read_bytes()
            time.sleep(0.005)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    command = ["translate", model, source, output, "--format", "tsv", *FAST, "--warnings", path]
    assert call(*command).returncode == 0
    thread.join(TIMEOUT)
    expected = path.read_bytes(), output.read_bytes()
    path.unlink()
    # As if the process had been killed after the first window.
    description.write_bytes(content)
    written = b"".join(output.read_bytes().splitlines(keepends=True)[:WINDOW])
    (tmp_path / ".out.partial").write_bytes(written)
    output.unlink()
    done = call(*command, "--resume")
    assert done.returncode == 0 and f"going on after line {WINDOW:,}" in done.stderr
    assert (path.read_bytes(), output.read_bytes()) == expected


def test_the_warnings_are_no_other_file(model, call, tmp_path):
    source = write_lines(tmp_path / "in", LINES)
    for path in (source, tmp_path / "out", model / "config.yaml"):
        done = call("translate", model, source, tmp_path / "out", "--warnings", path)
        assert done.returncode == 2 and "--warnings" in done.stderr
    assert not (tmp_path / "out").exists()
