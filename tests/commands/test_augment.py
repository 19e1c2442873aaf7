"""The command `augment`: pairs of real models, killed and resumed, and what it refuses."""

import contextlib
import json
import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.support import (
    TIMEOUT,
    demo_pairs,
    make_config,
    make_model_directory,
    run,
    run_command,
    start,
    write_lines,
    write_pairs,
)
from transformer_mt.decoding.lines import WINDOW
from transformer_mt.utils.errors import Interrupted, UsageError, UserError

PAIRS = demo_pairs(300)
FAST = ("--beam-size", "1", "--max-length-ratio", "0.5")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Two models from en to de with the same subwords, and one from de to en; and text."""
    folder = tmp_path_factory.mktemp("augment")
    for name, seed in (("a", 7), ("b", 8)):
        make_model_directory(folder / name, PAIRS, make_config(folder), seed)
    config = make_config(folder, data={"source_lang": "de", "target_lang": "en"})
    make_model_directory(folder / "back", [(t, s) for s, t in PAIRS], config, 9)
    pairs = [*PAIRS[:30], ("", "leer"), PAIRS[3], PAIRS[40]]
    write_pairs(folder, "train", pairs)
    write_lines(folder / "news.de", [target for _, target in PAIRS[50:70]])
    return folder


def read(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split("\n")[:-1]


def translated(model: Path, source: Path, *options: str) -> list[str]:
    """What `translate` says, independently of `augment`."""
    output = source.with_name("translated")
    done = run("translate", model, source, output, *FAST, *options)
    assert done.returncode == 0, done.stderr
    return read(output)


def written(prefix: Path) -> list[tuple[str, str, str]]:
    names = ("en", "de", "origin.tsv")
    return list(zip(*(read(Path(f"{prefix}.{name}")) for name in names), strict=True))


def merged_by_hand(made: list[tuple[str, str, str]], originals=()) -> list[tuple[str, str, str]]:
    sources: dict[str, dict[str, list[str]]] = {}
    for source, target, origin in made:
        own = sources.setdefault(source, {})
        if source.strip() and target.strip() and (source, target) not in originals:
            own.setdefault(target, []).append(origin)
    return [
        (source, target, "\t".join(dict.fromkeys(origins)))
        for source, own in sources.items()
        for target, origins in own.items()
    ]


def test_pairs_of_both_directions(folder, tmp_path, capsys):
    source, target = folder / "train.en", folder / "train.de"
    prefix = tmp_path / "new" / "more"
    run_command(
        "augment", prefix, *FAST, "--forward", folder / "a", folder / "b", "--source", source,
        "--backward", folder / "back", "--target", target,
    )  # fmt: skip
    sources, targets = read(source), read(target)
    made = []
    for name in ("a", "b"):
        lines = translated(folder / name, source)
        assert len(lines) == len(sources)
        origin = f"forward\t{folder / name}\tstep_10"
        made += [(*pair, origin) for pair in zip(sources, lines, strict=True)]
    lines = translated(folder / "back", target)
    made += [
        (*pair, f"backward\t{folder / 'back'}\tstep_10")
        for pair in zip(lines, targets, strict=True)
    ]
    originals = set(zip(sources, targets, strict=True))
    expected = merged_by_hand(made, originals)
    assert written(prefix) == expected and len(expected) > 60
    facts = json.loads(Path(f"{prefix}.json").read_text())
    counts = facts["counts"]
    assert counts["made"] == 99 and counts["pairs"] == len(expected) and facts["parallel"]
    empty = sum(not (source.strip() and target.strip()) for source, target, _ in made)
    assert counts["empty"] == empty >= 2
    assert counts["sources"] == len({source for source, _, _ in expected})
    assert counts["made"] == sum(
        counts[name] for name in ("empty", "original", "repeated", "pairs")
    )
    assert facts["texts"]["source"]["lines"] == 33
    assert [model["direction"] for model in facts["models"]] == ["forward", "forward", "backward"]
    assert sorted(os.listdir(tmp_path / "new")) == [
        "more.de", "more.en", "more.json", "more.origin.tsv"
    ]  # fmt: skip
    printed = capsys.readouterr().out
    assert "made      99 pairs" in printed and f"{empty:,}: empty on a side" in printed
    assert f"{counts['pairs']:,} pairs of {counts['sources']:,} sources" in printed


def test_pairs_of_the_parallel_text_are_left_out(folder, tmp_path):
    """The text's targets are translations of the model, so all of its pairs are equal to them."""
    source = folder / "train.en"
    target = write_lines(tmp_path / "own.de", translated(folder / "a", source))
    prefix = tmp_path / "out"
    command = ("augment", prefix, *FAST, "--forward", folder / "a", folder / "b")
    run_command(*command, "--source", source, "--target", target)
    counts = json.loads(Path(f"{prefix}.json").read_text())["counts"]
    assert counts["original"] >= 30 and all(
        origin.split("\t")[1] == str(folder / "b") for _, _, origin in written(prefix)
    )
    # A text of another length is no parallel text.
    with pytest.raises(UsageError, match="--target: there is no --backward model"):
        run_command(*command, "--source", source, "--target", folder / "news.de")


def test_back_translation_by_sampling(folder, tmp_path):
    target = folder / "news.de"
    options = ("--sampling", "--top-k", "5", "--seed", "3")
    command = ("augment", tmp_path / "bt", *FAST, *options, "--target", target)
    run_command(*command, "--backward", folder / "back")
    lines = translated(folder / "back", target, *options)
    origin = f"backward\t{folder / 'back'}\tstep_10"
    made = [(source, t, origin) for source, t in zip(lines, read(target), strict=True)]
    assert written(tmp_path / "bt") == merged_by_hand(made)
    settings = json.loads((tmp_path / "bt.json").read_text())["models"][0]["made_from"]
    assert settings["decoding.top_k"] == 5 and settings["decoding.sampling"] is True


def test_an_ensemble_is_one_model(folder, tmp_path):
    source = folder / "train.en"
    names = (f"{folder / 'a'}:step_5", folder / "b")
    run_command(
        "augment", tmp_path / "out", *FAST, "--forward", *names, "--ensemble", "--source", source
    )
    lines = translated(
        folder / "a", source, "--checkpoint", "step_5", "--ensemble", str(folder / "b")
    )
    origin = f"forward\t{folder / 'a'} + {folder / 'b'}\tstep_5 + step_10"
    made = [(*pair, origin) for pair in zip(read(source), lines, strict=True)]
    assert written(tmp_path / "out") == merged_by_hand(made)


def test_lines_that_are_odd(folder, tmp_path):
    """Bytes that are not UTF-8, a byte order mark, Windows' ends of lines, compressed text."""
    source = tmp_path / "in.en"
    source.write_bytes(b"\xef\xbb\xbfthe sun\r\nbad \xff byte\r\na\xe2\x80\xa8b\n\nlast")
    run_command("augment", tmp_path / "out", *FAST, "--forward", folder / "a", "--source", source)
    sources = [source for source, _, _ in written(tmp_path / "out")]
    expected = ["the sun", "bad \ufffd byte", "a\u2028b", "last"]
    assert sources == [line for line in expected if line in sources] and len(sources) >= 3


# ---- What is refused ----


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "give --forward MODEL --source FILE, or --backward"),
        ("--forward a", "--forward needs the text that it translates: give --source FILE"),
        ("--forward a --source none", "--source: none: there is no such file"),
        ("--forward a --source .", r"--source: \.: it must be a file"),
        ("--forward a --source train.en --target news.de", "--target: there is no --backward"),
        ("--forward a a --source train.en", "--forward a: this model is given twice"),
        ("--forward a a --ensemble --source train.en", "--forward a: this model is given twice"),
        ("--forward a back --source train.en",
         r"--forward back: it translates from de to en, but --forward a from en to de\. "
         "Give it as --backward"),
        ("--forward a back --ensemble --source train.en", "--ensemble: back translates from de"),
        ("--forward a --source train.en --backward b --target train.de",
         r"--backward b: it translates from en to de, .*\. Give it as --forward"),
        ("--forward a --source train.en --temperature 0", "--temperature: "),
        ("--forward nowhere --source train.en", "nowhere"),
    ],
)  # fmt: skip
def test_wrong_arguments(folder, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(folder)
    with pytest.raises(UserError, match=message) as error:
        run_command("augment", tmp_path / "out", *arguments.split())
    assert error.value.exit_code == 2 and not os.listdir(tmp_path)


@pytest.mark.parametrize("prefix", [".", "..", "new/..", "new/"])
def test_no_hidden_names(folder, tmp_path, monkeypatch, prefix):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"the first part of a file's name, as in .*/back"):
        run_command("augment", prefix, "--forward", folder / "a", "--source", folder / "train.en")
    assert not os.listdir(tmp_path)


def test_a_model_whose_name_is_not_utf8(folder, tmp_path):
    model = os.fsdecode(os.fsencode(tmp_path) + b"/a\xff")
    os.symlink(folder / "a", model)
    source = write_lines(tmp_path / "in.en", [PAIRS[0][0]])
    run_command("augment", tmp_path / "out", *FAST, "--forward", model, "--source", source)
    assert written(tmp_path / "out")[0][2].endswith("a\\udcff\tstep_10")


def test_inputs_are_not_overwritten(folder, tmp_path):
    write_pairs(tmp_path, "text", PAIRS[:3])
    before = (tmp_path / "text.en").read_bytes()
    with pytest.raises(UsageError, match="are the same file"):
        run_command(
            "augment", tmp_path / "text", "--forward", folder / "a",
            "--source", tmp_path / "text.en",
        )  # fmt: skip
    assert (tmp_path / "text.en").read_bytes() == before


# ---- Interrupted ----


@pytest.fixture(scope="module")
def long_text(tmp_path_factory):
    """More than two windows of lines."""
    draw = random.Random(1)
    words = sorted({word for pair in PAIRS for word in pair[0].split()})
    lines = [" ".join(draw.choices(words, k=draw.randrange(8))) for _ in range(2 * WINDOW + 300)]
    return write_lines(tmp_path_factory.mktemp("long") / "in.en", lines)


@pytest.fixture(scope="module")
def command(folder, long_text):
    return (
        *("--forward", folder / "a", folder / "b", "--source", long_text),
        *("--backward", folder / "back", "--target", folder / "news.de", *FAST),
    )


@pytest.fixture(scope="module")
def expected(command, tmp_path_factory):
    prefix = tmp_path_factory.mktemp("expected") / "out"
    done = run("augment", prefix, *command, "--threads", "1")
    assert done.returncode == 0, done.stderr
    return files(prefix)


def files(prefix: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(prefix.parent.iterdir())}


def wait_for(condition, process):
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)


def lines_in(path: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        return path.read_bytes().count(b"\n")
    return 0


@pytest.mark.parametrize(
    ("number", "threads"), [(signal.SIGKILL, ("2", "1")), (signal.SIGINT, ("1", "2"))]
)
def test_interrupted_twice_and_resumed(command, expected, tmp_path, number, threads):
    """In the first model, and in the second one when the first is done."""
    prefix, partial = tmp_path / "out", tmp_path / ".out.translations.partial"
    for i, lines in enumerate((WINDOW, 4 * WINDOW)):  # the text has two windows and a part of one
        resume = ("--resume",) if i else ()
        process = start("augment", prefix, *command, "--threads", threads[i], *resume)
        wait_for(lambda lines=lines: lines_in(partial) >= lines, process)
        process.send_signal(number)
        _, messages = process.communicate(timeout=TIMEOUT)
        if number == signal.SIGINT:
            assert process.returncode == 130
            assert "to continue, add --resume to the command" in messages
            assert messages.endswith("interrupted\n")
    assert not Path(f"{prefix}.en").exists()

    kept = files(prefix)
    refused = run("augment", prefix, *command, "--resume", "--beam-size", "2")
    assert refused.returncode == 2
    assert "begun with another forward 1: decoding.beam_size" in refused.stderr
    assert files(prefix) == kept

    done = run("augment", prefix, *command, "--resume", "--threads", threads[0])
    assert done.returncode == 0, done.stderr
    assert "forward 1: translating" not in done.stderr and "going on after line" in done.stderr
    assert files(prefix) == expected


def test_pairs_that_cannot_be_written(command, expected, tmp_path):
    """All models are done then, and none of them has to translate again."""
    prefix = tmp_path / "out"
    (tmp_path / "out.de").mkdir()
    done = run("augment", prefix, *command)
    assert done.returncode == 1 and "out.de: can't be written: Is a directory" in done.stderr
    assert "lines are kept; to continue, add --resume" in done.stderr
    (tmp_path / "out.de").rmdir()
    done = run("augment", prefix, *command, "--resume")
    assert done.returncode == 0 and "translating" not in done.stderr
    assert files(prefix) == expected


@pytest.mark.parametrize("renamed", range(5))
def test_stopped_between_the_renaming_of_its_files(folder, tmp_path, monkeypatch, renamed):
    """All are old, all are new, or there is no target, so that nobody reads mixed pairs."""
    prefix, names = tmp_path / "out", ("en", "de", "origin.tsv", "json")
    command = ("--forward", folder / "a", "--source", folder / "train.en")
    run_command("augment", prefix, *FAST, *command)
    new = files(prefix)
    for name in names:
        write_lines(tmp_path / f"out.{name}", ["old"])
    rename, left = os.replace, iter(range(renamed))

    def stop(old, new):
        if Path(new).name in {f"out.{name}" for name in names} and next(left, None) is None:
            raise Interrupted(signal.SIGTERM)
        rename(old, new)

    with monkeypatch.context() as patch, contextlib.suppress(Interrupted):
        patch.setattr(os, "replace", stop)
        run_command("augment", prefix, *FAST, *command)
    if renamed < len(names):
        assert not (tmp_path / "out.de").exists()
        run_command("augment", prefix, *FAST, *command, "--resume")
    assert files(prefix) == new


def test_begun_anew(folder, command, expected, tmp_path):
    """Without --resume, and with it if there is nothing to continue."""
    prefix = tmp_path / "out"
    process = start("augment", prefix, *command, "--seed", "5", "--sampling")
    wait_for(lambda: lines_in(tmp_path / ".out.translations.partial") >= WINDOW, process)
    process.kill()
    process.communicate()
    done = run("augment", prefix, *command)
    assert done.returncode == 0 and files(prefix) == expected
    (tmp_path / ".out.translations.partial").touch()  # of a process that was killed at once
    done = run("augment", prefix, *command, "--resume")
    assert done.returncode == 0 and "there is nothing to continue" in done.stderr
    assert files(prefix) == expected


def test_two_processes_do_not_mix(command, expected, tmp_path):
    prefix = tmp_path / "out"
    process = start("augment", prefix, *command)
    wait_for(lambda: (tmp_path / ".out.translations.partial.json").exists(), process)
    other = run("augment", prefix, *command)
    assert other.returncode == 1 and "is being written by another process" in other.stderr
    _, messages = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0, messages
    assert files(prefix) == expected
