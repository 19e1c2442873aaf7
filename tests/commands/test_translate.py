"""The commands `translate`, `score` and `align`: pipes, kills, several processes, any text."""

import contextlib
import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.support import (
    TIMEOUT,
    assert_refused,
    children,
    demo_pairs,
    important,
    run,
    run_command,
    start,
    words,
    write_lines,
)
from transformer_mt import cli
from transformer_mt.commands import align
from transformer_mt.decoding.lines import WINDOW
from transformer_mt.export.registry import find
from transformer_mt.model_directory import ModelDirectory
from transformer_mt.utils.errors import UsageError, UserError

PAIRS = demo_pairs(200)
SOURCES = [source for source, _ in PAIRS]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Nearly two windows of lines that are hardly two alike."""
    draw = random.Random(1)
    words = sorted({word for line in SOURCES for word in line.split()})
    lines = [" ".join(draw.choices(words, k=draw.randrange(6))) for _ in range(WINDOW * 7 // 4)]
    return write_lines(tmp_path_factory.mktemp("source") / "in", lines)


@pytest.fixture(scope="module")
def expected(model, source, tmp_path_factory):
    """Its translation by a single process that was never stopped."""
    path = tmp_path_factory.mktemp("expected") / "out"
    done = run("translate", model, "--input", source, "--output", path, "--threads", "1", *FAST)
    assert done.returncode == 0 and done.stdout == important(done.stderr) == ""
    return path.read_bytes()


FAST = ("--format", "jsonl", "--beam-size", "1", "--max-length-ratio", "0.5")


def of_pool(process):
    """The processes that translate, children of the one that was started."""
    return [pid for pid in children(process.pid) if b"spawn_main" in command_line(pid)]


def command_line(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def wait_for(condition, process):
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)


def lines_in(path):
    return path.read_bytes().count(b"\n") if path.exists() else 0


# ---- Pipes ----


@pytest.mark.parametrize("threads", ["1", "2"])
def test_each_line_is_answered_before_the_next_is_asked(model, threads):
    process = start("translate", model, "--threads", threads, stdin=subprocess.PIPE, bufsize=1)
    answers = []
    for line in [*SOURCES[:3], "", "a\u2028b\t\x00c", SOURCES[3]]:
        process.stdin.write(f"{line}\n")
        process.stdin.flush()
        answers.append(process.stdout.readline())
    # Some at once, and a pause in the middle of a line.
    process.stdin.write(f"{SOURCES[0]}\n{SOURCES[1]}\n{SOURCES[2][:5]}")
    process.stdin.flush()
    answers += [process.stdout.readline(), process.stdout.readline()]
    process.stdin.write(SOURCES[2][5:])
    process.stdin.close()
    answers.append(process.stdout.readline())
    assert process.stdout.read() == "" and process.wait(TIMEOUT) == 0
    (warning,) = important(process.stderr.read()).splitlines()
    assert "line 5" in warning and "such as U+2028, U+0009, U+0000" in warning
    assert answers[6:] == answers[:3] and answers[3] == "\n"
    assert all(answer.endswith("\n") for answer in answers)


# ---- Several processes, kills and going on ----


def test_two_processes_and_a_stream_write_what_one_does(model, source, expected, tmp_path):
    output = tmp_path / "out"
    done = run("translate", model, "--input", source, "--output", output, "--threads", "2", *FAST)
    assert done.returncode == 0 and done.stdout == important(done.stderr) == ""
    assert output.read_bytes() == expected
    few = "".join(source.read_text().splitlines(keepends=True)[:300])
    done = run("translate", model, "--threads", "2", *FAST, stdin=few)
    texts = [json.loads(line)["source"] for line in done.stdout.splitlines()]
    assert done.returncode == 0 and texts == few.split("\n")[:-1]


def test_a_killed_translation_is_gone_on_with(model, source, expected, tmp_path):
    output, partial = tmp_path / "out", tmp_path / ".out.partial"
    command = ["translate", model, "--input", source, "--output", output, *FAST]
    process = start(*command, "--threads", "2")
    wait_for(lambda: lines_in(partial) >= WINDOW, process)
    workers = of_pool(process)
    assert len(workers) == 2
    process.kill()
    process.wait()
    wait_for_end_of(workers)
    assert not output.exists()
    partial.write_bytes(partial.read_bytes() + b'{"torn')

    kept = partial.read_bytes()
    for options, called in ({"beam_size": 2}, "decoding.beam_size"), ({"format": "tsv"}, "format"):
        with pytest.raises(UsageError, match=f"begun with another .*{called}"):
            run_command(*command, "--resume", **options)
        assert partial.read_bytes() == kept

    done = run(*command, "--resume", "--threads", "1")
    assert done.returncode == 0 and "going on after line" in done.stderr
    assert output.read_bytes() == expected
    assert os.listdir(tmp_path) == ["out"]


def wait_for_end_of(pids):
    deadline = time.monotonic() + 10
    while any(b"spawn_main" in command_line(pid) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_ctrl_c_ends_a_pool_at_once(model, source, tmp_path):
    """At a terminal, it reaches the whole group."""
    output = tmp_path / "out"
    process = start(
        "translate", model, "--input", source, "--output", output, "--threads", "2", *FAST,
        start_new_session=True,
    )  # fmt: skip
    wait_for(lambda: lines_in(tmp_path / ".out.partial") >= WINDOW, process)
    workers = of_pool(process)
    since = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    _, messages = process.communicate(timeout=TIMEOUT)
    assert time.monotonic() - since < 5
    assert process.returncode == 130
    first, last = important(messages).splitlines()
    assert "lines are kept; to continue, add --resume" in first and last == "interrupted"
    wait_for_end_of(workers)
    assert len(workers) == 2 and not output.exists()


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_a_killed_process_of_a_pool(model, source, number):
    """It says nothing; its stdout is that of the translations."""
    process = start("translate", model, "--input", source, "--threads", "2", *FAST)
    first = process.stdout.readline()
    workers = of_pool(process)
    os.kill(workers[0], number)
    output, messages = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 1
    assert important(messages).startswith("error: a process that translates was killed")
    assert first and "SIGTERM" not in output and "detected" not in output
    wait_for_end_of(workers)


# ---- Where it is written ----


def test_stdout_by_name_is_written_to(model, tmp_path):
    """What `>>` was given keeps what it holds, whoever opens it."""
    log, source = tmp_path / "log", write_lines(tmp_path / "in", SOURCES[:2])
    expected = "\n".join(translated(model, source))
    (tmp_path / "out").unlink()
    log.write_text("old\n")
    with open(log, "a") as stdout:
        command = ["translate", model, "--input", source, "--output", "/dev/stdout"]
        done = run(*command, "--threads", "1", stdout=stdout)
    assert done.returncode == 0 and log.read_text() == f"old\n{expected}\n"
    assert sorted(os.listdir(tmp_path)) == ["in", "log"]


@pytest.fixture
def same(tmp_path):
    """Files of one line, one of them by three names; no file may change."""
    for name in ("one", "two", "three"):
        write_lines(tmp_path / name, SOURCES[:1])
    os.link(tmp_path / "one", tmp_path / "hard")
    (tmp_path / "soft").symlink_to("one")
    yield tmp_path
    names = ["hard", "one", "soft", "three", "two"]
    assert sorted(os.listdir(tmp_path)) == names
    assert all((tmp_path / name).read_text() == f"{SOURCES[0]}\n" for name in names)


@pytest.mark.parametrize(
    ("arguments", "written", "read"),
    [
        ("translate m --input one --output one", "--output one", "--input one"),
        ("translate m --input one --output hard", "--output hard", "--input one"),
        ("translate m --input one --output soft --resume", "--output soft", "--input one"),
        ("translate m --input two --prefix one --output hard", "--output hard", "--prefix one"),
        ("score m --source one --target two --output hard", "--output hard", "--source one"),
        ("align m --source two --target one --output one", "--output one", "--target one"),
        ("align m --source two --target three --reference one --output hard",
         "--output hard", "--reference one"),
        ("evaluate m --source one --reference two --output soft", "--output soft", "--source one"),
        ("evaluate m --source one --reference two --json two", "--json two", "--reference two"),
        ("evaluate --hypothesis one --reference two --json hard", "--json hard", "--hypothesis"),
        ("evaluate m --source one --reference two --output new --json ./new",
         "--output new", "--json new"),
    ],
)  # fmt: skip
def test_an_input_is_not_overwritten(same, monkeypatch, call, arguments, written, read):
    """It is said before a model is looked for."""
    monkeypatch.chdir(same)
    assert_refused(call(*arguments.split()), 2, f"{written} and {read}", "are the same file")


def test_streams_are_inputs_and_outputs_too(same):
    """Of `translate < one >> hard`, and the like."""
    texts = ["--source", same / "one", "--target", same / "two"]
    for arguments, expected in [
        (["translate"], "stdout and stdin"),
        (["translate", "--output", same / "soft"], f"--output {same}/soft and stdin"),
        (["score", *texts], f"stdout and --source {same}/one"),
    ]:
        verb, *rest = arguments
        with open(same / "one") as stdin, open(same / "hard", "a") as stdout:
            process = start(verb, "no-model", *rest, stdin=stdin, stdout=stdout)
            _, messages = process.communicate(timeout=TIMEOUT)
        assert process.returncode == 2
        assert important(messages).startswith(f"error: {expected} are the same file")


# ---- What is written ----


def translated(model, source, **options):
    output = source.with_name("out")
    run_command("translate", model, input=source, output=output, threads=1, **options)
    return output.read_text(encoding="utf-8").split("\n")[:-1]


def test_each_line_keeps_its_place(model, tmp_path):
    """tests/attack translates any bytes; here it is what each line has alone."""
    source = tmp_path / "in"
    source.write_bytes("\ufeffA dog.\r\nx\u2028y\x85z\n\udcff\r\na\ttab\n\nend\r".encode(
        errors="surrogateescape"))  # fmt: skip
    # The last line is not ended, so the carriage return belongs to it.
    texts = ["A dog.", "x\u2028y\x85z", "\ufffd", "a\ttab", "", "end\r"]
    plain = translated(model, source)
    objects = [json.loads(line) for line in translated(model, source, format="jsonl")]
    assert [found["source"] for found in objects] == texts
    assert [found["outputs"][0]["text"] for found in objects] == plain
    columns = [line.split("\t") for line in translated(model, source, format="tsv")]
    assert [len(row) for row in columns] == [3] * 6 and not any("\r" in text for text in plain)
    assert [row[1].strip() for row in columns] == [x.replace("\t", " ").strip() for x in plain]
    for text, translation in zip(texts, plain, strict=True):
        assert translated(model, write_lines(source, [text])) == [translation]
    source.write_bytes("one\ntwo\n".encode("utf-16"))
    with pytest.raises(UserError, match="Convert the file"):
        translated(model, source)


def test_n_best_and_alignments(model, tmp_path):
    source = write_lines(tmp_path / "in", [*SOURCES[:4], "", " ".join(SOURCES[:12])])
    options = {"beam_size": 4, "n_best": 3, "alignment": True}
    objects = [json.loads(line) for line in translated(model, source, format="jsonl", **options)]
    rows = [line.split("\t") for line in translated(model, source, format="tsv", **options)]
    for row, found in zip(rows, objects, strict=True):
        source_words, outputs = words(found["source"]), found["outputs"]
        assert 1 <= len(outputs) <= (3 if source_words else 1)
        for output in outputs:
            pairs = [tuple(map(int, pair.split("-"))) for pair in output["alignment"].split()]
            # Each word of the translation has its one word of the source.
            assert sorted(target for _, target in pairs) == list(range(len(words(output["text"]))))
            assert all(i < len(source_words) for i, _ in pairs)
        columns = [(one["text"], f"{one['score']:.6f}", one["alignment"]) for one in outputs]
        columns += [("", "", "")] * (3 - len(outputs))
        assert row[1:] == [text for column in columns for text in column]


def test_prefixes(model, tmp_path, call):
    source = write_lines(tmp_path / "in", SOURCES[:3])
    prefix = write_lines(tmp_path / "prefix", ["Ein Mann", "", "Zwei"])
    first, second, third = translated(model, source, prefix=prefix)
    assert first.startswith("Ein Mann") and third.startswith("Zwei")
    assert second == translated(model, source)[1]

    write_lines(prefix, ["a", "b", "c", "d"])
    with pytest.raises(UserError, match=r"in has 3 lines, .* has 4"):
        translated(model, source, prefix=prefix)
    for count in (2, 5):  # of stdin it is known at its end
        done = call("translate", model, "--prefix", prefix, stdin="A dog.\n" * count)
        assert_refused(done, 1, "stdin and")


# ---- score ----


def test_scores_are_those_of_force_decoding(model, tmp_path, call):
    """Of sentences one by one; that the search gives the same is tested with ids."""
    source = write_lines(tmp_path / "in", SOURCES[:20])
    target = write_lines(tmp_path / "target", [target for _, target in PAIRS[:20]])
    command = ["score", model, "--source", source, "--target", target, "--length-penalty", "0.5"]
    done = call(*command, "--threads", "1", "--batch-tokens", "50")
    scores = [float(line) for line in done.stdout.splitlines()]
    subwords = ModelDirectory(model).load_subwords()
    engine = find(model, device="cpu").load()
    expected = []
    for pair in PAIRS[:20]:
        ids = subwords.source.encode(pair[0]), subwords.target.encode(pair[1])
        (log_prob,) = engine.log_probs([ids[0]], [ids[1]])
        expected.append(log_prob / ((5 + len(ids[1]) + 1) / 6) ** 0.5)
    assert scores == pytest.approx(expected, rel=1e-4)

    write_lines(target, ["x"])
    assert_refused(call(*command), 1, "20 lines")


# ---- align ----


def test_alignments_and_their_error_rate(model, tmp_path, call):
    """Links a line; against true links, which are here what was found but for some."""
    sources = [*SOURCES[:20], "", "A dog"]
    targets = [*(target for _, target in PAIRS[:20]), "Ein Hund", ""]
    source, target = write_lines(tmp_path / "in", sources), write_lines(tmp_path / "out", targets)
    output, reference = tmp_path / "links", tmp_path / "gold"
    command = ["align", model, "--source", source, "--target", target]
    done = call(*command, "--threads", "2", "--batch-tokens", "50")
    assert done.returncode == 0 and important(done.stderr) == ""
    lines = done.stdout.splitlines()
    links = [line.split() for line in lines]
    assert list(map(len, links)) == [*(len(text.split()) for text in targets[:20]), 0, 0]

    def score(gold):
        write_lines(reference, (" ".join(line) for line in gold))
        files = ["--output", output, "--reference", reference]
        return align.scores(cli.parse(list(map(str, [*command, *files, "--threads", 1]))))

    gold = [[] if number < 2 else line for number, line in enumerate(links)]
    gold[3] = [link.replace("-", "?") for link in links[3]]
    scores = score(gold)
    assert output.read_text() == done.stdout  # in one process or two, in large batches or small
    found, right = sum(map(len, links)), sum(map(len, links[2:]))
    sure = right - len(links[3])
    assert (scores.lines, scores.links, scores.sure, scores.possible) == (22, found, sure, right)
    assert scores.precision == pytest.approx(100 * right / found) and scores.recall == 100
    assert scores.error_rate == pytest.approx(100 * (1 - (sure + right) / (found + sure)))

    count = len(SOURCES[1].split())
    for gold, message in (
        ([["0-0"]] * 21, r"in has 22 lines, .*gold has 21"),
        ([["0-0"], ["0?0", f"{count}-0"], *[[]] * 20], f"gold, line 2: {count}-0: there are"),
        ([["0-0"], ["0:0"], *[[]] * 20], "gold, line 2: '0:0' is no link"),
    ):
        with pytest.raises(UserError, match=message):
            score(gold)
    write_lines(reference, [*["0-0"] * 20, "", ""])
    done = call(*command, "--reference", reference, "--threads", "1")
    assert done.returncode == 0 and done.stdout.startswith("AER ")
