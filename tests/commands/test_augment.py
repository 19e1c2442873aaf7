"""The command `augment`: pairs of real models, interrupted and resumed, and what it refuses."""

import contextlib
import json
import os
import signal
from pathlib import Path

import pytest

from tests.support import (
    demo_pairs,
    make_config,
    make_model_directory,
    run_command,
    write_lines,
    write_pairs,
)
from transformer_mt.commands import augment
from transformer_mt.decoding import lines
from transformer_mt.decoding.lines import ResumableFile
from transformer_mt.utils.errors import Interrupted, UsageError, UserError

PAIRS = demo_pairs(300)
FAST = ("--beam-size", "1", "--max-length-ratio", "0.5", "--threads", "1")


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


@pytest.fixture(autouse=True)
def in_folder(folder, monkeypatch):
    monkeypatch.chdir(folder)


def make(prefix: Path, arguments: str, *options: str) -> None:
    run_command("augment", prefix, *arguments.split(), *FAST, *options)


def read(path: str | Path) -> list[str]:
    return Path(path).read_text(encoding="utf-8").split("\n")[:-1]


def translated(model: str, source: str | Path, *options: str) -> list[str]:
    """What `translate` says, independently of `augment`."""
    run_command("translate", model, source, "translated", *FAST, *options)
    return read("translated")


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def written(prefix: Path) -> list[tuple[str, str, str]]:
    names = ("en", "de", "origin.tsv")
    return list(zip(*(read(f"{prefix}.{name}") for name in names), strict=True))


def merged_by_hand(made, originals=()) -> list[tuple[str, str, str]]:
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


ALL = "--forward a b --source train.en --backward back --target train.de"


def test_pairs_of_both_directions(tmp_path, capsys):
    prefix = tmp_path / "new" / "more"
    make(prefix, ALL)
    printed = capsys.readouterr().out
    sources, targets = read("train.en"), read("train.de")
    made = []
    for name in ("a", "b"):
        for pair in zip(sources, translated(name, "train.en"), strict=True):
            made.append((*pair, f"forward\t{name}\tstep_10"))
    for pair in zip(translated("back", "train.de"), targets, strict=True):
        made.append((*pair, "backward\tback\tstep_10"))
    expected = merged_by_hand(made, set(zip(sources, targets, strict=True)))
    assert written(prefix) == expected and len(expected) > 60
    facts = json.loads(Path(f"{prefix}.json").read_text())
    counts = facts["counts"]
    assert counts["made"] == 99 and counts["pairs"] == len(expected) and facts["parallel"]
    empty = sum(not (source.strip() and target.strip()) for source, target, _ in made)
    assert counts["empty"] == empty >= 2
    assert counts["sources"] == len({source for source, _, _ in expected})
    parts = ("empty", "original", "repeated", "pairs")
    assert counts["made"] == sum(counts[name] for name in parts)
    assert facts["texts"]["source"]["lines"] == 33
    assert [model["direction"] for model in facts["models"]] == ["forward", "forward", "backward"]
    assert sorted(os.listdir(prefix.parent)) == [
        "more.de", "more.en", "more.json", "more.origin.tsv"
    ]  # fmt: skip
    assert "99 pairs" in printed and f"{empty:,}: empty on a side" in printed


def test_pairs_of_the_parallel_text_are_left_out(tmp_path):
    """The text's targets are translations of the model, so all of its pairs are equal to them."""
    target = write_lines(tmp_path / "own.de", translated("a", "train.en"))
    make(tmp_path / "out", f"--forward a b --source train.en --target {target}")
    counts = json.loads((tmp_path / "out.json").read_text())["counts"]
    assert counts["original"] >= 30
    assert {origin.split("\t")[1] for _, _, origin in written(tmp_path / "out")} == {"b"}


@pytest.mark.parametrize(
    ("arguments", "command", "origin"),
    [
        ("--backward back --target news.de --sampling --top-k 5 --seed 3",
         ("back", "news.de", "--sampling", "--top-k", "5", "--seed", "3"),
         "backward\tback\tstep_10"),
        ("--forward a:step_5 b --ensemble --source train.en",
         ("a", "train.en", "--checkpoint", "step_5", "--ensemble", "b"),
         "forward\ta + b\tstep_5 + step_10"),
    ],
)  # fmt: skip
def test_sampling_and_an_ensemble(tmp_path, arguments, command, origin):
    make(tmp_path / "out", arguments)
    pairs = list(zip(read(command[1]), translated(*command), strict=True))
    if origin.startswith("backward"):
        pairs = [pair[::-1] for pair in pairs]
    assert written(tmp_path / "out") == merged_by_hand((*pair, origin) for pair in pairs)
    settings = json.loads((tmp_path / "out.json").read_text())["models"][0]["made_from"]
    assert settings["decoding.sampling"] is ("--sampling" in arguments)


def test_lines_and_names_that_are_odd(tmp_path):
    """Bytes that are not UTF-8, a byte order mark, Windows' ends of lines."""
    model = os.fsdecode(os.fsencode(tmp_path) + b"/a\xff")
    os.symlink(Path("a").absolute(), model)
    source = tmp_path / "in.en"
    source.write_bytes(b"\xef\xbb\xbfthe sun\r\nbad \xff byte\r\na\xe2\x80\xa8b\n\nlast")
    make(tmp_path / "out", f"--forward {model} --source {source}")
    sources = [source for source, _, _ in written(tmp_path / "out")]
    expected = ["the sun", "bad \ufffd byte", "a\u2028b", "last"]
    assert sources == [line for line in expected if line in sources] and len(sources) >= 3
    assert written(tmp_path / "out")[0][2].endswith("a\\udcff\tstep_10")


# ---- What is refused ----


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "give --forward MODEL --source FILE, or --backward"),
        ("--forward a", "--forward needs the text that it translates: give --source FILE"),
        ("--forward a --source none", "--source: none: there is no such file"),
        ("--forward a --source train.en --target news.de", "--target: there is no --backward"),
        ("--forward a a --source train.en", "--forward: the same model is given twice"),
        ("--forward a a --ensemble --source train.en", "--forward: the same model is given twice"),
        ("--forward a back --source train.en", "--forward back: it translates from de to en"),
        ("--forward a back --ensemble --source train.en", "--forward back: it translates from de"),
        ("--forward a --source train.en --backward b --target train.de",
         "--backward b: it translates from en to de, .* other direction"),
        ("--forward a --source train.en --temperature 0", "--temperature: "),
        ("--forward nowhere --source train.en", "nowhere"),
    ],
)  # fmt: skip
def test_wrong_arguments(tmp_path, arguments, message):
    with pytest.raises(UserError, match=message) as error:
        make(tmp_path / "out", arguments)
    assert error.value.exit_code == 2 and not os.listdir(tmp_path)


# ---- Interrupted ----


@pytest.fixture
def expected(tmp_path, monkeypatch):
    """What an uninterrupted command writes. A window has 8 lines, in place of thousands."""
    monkeypatch.setattr(augment, "WINDOW", 8)
    monkeypatch.setattr(lines, "WINDOW", 8)
    make(tmp_path / "expected" / "out", ALL)
    return files(tmp_path / "expected")


def interrupt(monkeypatch, at_line, *arguments):
    write_line = ResumableFile.write_line

    def stop(file, line):
        if file.lines == at_line:
            raise Interrupted(signal.SIGINT)
        write_line(file, line)

    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(ResumableFile, "write_line", stop)
        make(*arguments)


def test_interrupted_twice_and_resumed(expected, tmp_path, monkeypatch, capsys):
    """In the first model, and in the second one when the first is done: 33 lines, and 7 empty ones
    that complete its last window."""
    prefix = tmp_path / "new" / "out"
    interrupt(monkeypatch, 18, prefix, ALL)
    assert "16 lines are kept; to continue, add --resume" in capsys.readouterr().err
    interrupt(monkeypatch, 52, prefix, ALL, "--resume")
    kept = files(prefix.parent)
    assert not prefix.with_suffix(".en").exists() and kept
    with pytest.raises(UsageError, match=r"another forward 1: decoding\.beam_size"):
        make(prefix, ALL, "--resume", "--beam-size", "2")
    assert files(prefix.parent) == kept

    capsys.readouterr()
    (tmp_path / "new" / "out.de").mkdir()  # then nothing can be written, but all is translated
    with pytest.raises(UserError, match=r"out\.de: can't be written"):
        make(prefix, ALL, "--resume")
    messages = capsys.readouterr().err
    assert "forward 1: translating" not in messages and "going on after line 48" in messages
    (tmp_path / "new" / "out.de").rmdir()
    make(prefix, ALL, "--resume")
    assert "translating" not in capsys.readouterr().err
    assert files(prefix.parent) == expected

    interrupt(monkeypatch, 18, prefix, ALL, "--sampling")
    make(prefix, ALL)  # without --resume it begins anew
    assert files(prefix.parent) == expected


@pytest.mark.parametrize("renamed", range(5))
def test_stopped_between_the_renaming_of_its_files(tmp_path, monkeypatch, renamed):
    """All are old, all are new, or there is no target, so that nobody reads mixed pairs."""
    prefix, names = tmp_path / "out", ("en", "de", "origin.tsv", "json")
    write_lines(tmp_path / "in" / "text", PAIRS[0][:1])
    command = f"--forward a --source {tmp_path / 'in' / 'text'}"
    make(prefix, command)
    new = {name: Path(f"{prefix}.{name}").read_bytes() for name in names}
    for name in names:
        write_lines(tmp_path / f"out.{name}", ["old"])
    rename, left = os.replace, iter(range(renamed))

    def stop(old, new):
        if Path(new).name in {f"out.{name}" for name in names} and next(left, None) is None:
            raise Interrupted(signal.SIGTERM)
        rename(old, new)

    with monkeypatch.context() as patch, contextlib.suppress(Interrupted):
        patch.setattr(os, "replace", stop)
        make(prefix, command)
    if renamed < len(names):
        assert not (tmp_path / "out.de").exists()
        make(prefix, command, "--resume")
    assert {name: Path(f"{prefix}.{name}").read_bytes() for name in names} == new
