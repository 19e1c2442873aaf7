"""The files for VisualDL, read by its own reader, and for TensorBoard, read by their format."""

import json
import struct
import sys

import pytest
from tensorboardX.proto.event_pb2 import Event
from visualdl import LogReader

from tests.small_trainers import SHORT
from transformer_mt.training import event_files
from transformer_mt.training.event_files import EventFiles
from transformer_mt.utils.errors import UserError

TIME = "2026-11-22T12:00:00+00:00"


def train_line(step, **values):
    figures = {"loss": 5.0 / step, "perplexity": 2.0, "padding": 0.25, "skipped": 0}
    return {"kind": "train", "time": TIME, "step": step, "epoch": 1, **figures, **values}


def of_visualdl(folder, tag):
    """(step, value, milliseconds) of each point."""
    (path,) = folder.iterdir()
    points = LogReader(file_path=str(path)).get_data("scalar", tag)
    return [(point.id, point.value, point.timestamp) for point in points]


def of_tensorboard(folder):
    """(tag, step, value or text, seconds) of each event. A record of the file is a length, its
    checksum, the bytes, and their checksum."""
    (path,) = folder.iterdir()
    content, found = path.read_bytes(), []
    while content:
        (length,) = struct.unpack("<Q", content[:8])
        event = Event.FromString(content[12 : 12 + length])
        content = content[16 + length :]
        for value in event.summary.value:
            text = value.tensor.string_val
            shown = text[0].decode() if text else value.simple_value
            found.append((value.tag, event.step, shown, event.wall_time))
    return found


def test_both_kinds_hold_the_lines(tmp_path):
    folders = {kind: tmp_path / kind for kind in ("visualdl", "tensorboard")}
    samples = {"kind": "samples", "step": 0, "source": ["Hallo ü"], "reference": ["<b>hello</b>"]}
    files = EventFiles(folders, [samples, train_line(50)])
    files.add(train_line(100, loss=None, learning_rate=1e-3))
    files.add({"kind": "dev", "time": TIME, "step": 100, "bleu": 12.5, "samples": ["hi"]})
    files.close()
    milliseconds = 1795348800000
    folder = folders["visualdl"]
    assert of_visualdl(folder, "train/loss") == [(50, pytest.approx(0.1), milliseconds)]
    assert of_visualdl(folder, "train/padding") == [(n, 0.25, milliseconds) for n in (50, 100)]
    assert of_visualdl(folder, "dev/bleu") == [(100, 12.5, milliseconds)]
    (path,) = folder.iterdir()
    (text,) = LogReader(file_path=str(path)).get_data("text", "samples/1")
    expected = "source: Hallo ü  \nreference: <b>hello</b>  \ntranslation: hi"
    assert text.text.encoded_text_string == expected
    events = of_tensorboard(folders["tensorboard"])
    assert ("train/loss", 50, pytest.approx(0.1), milliseconds / 1000) in events
    assert ("dev/bleu", 100, 12.5, milliseconds / 1000) in events
    assert [value for tag, _, value, _ in events if tag.startswith("samples/1")] == [expected]
    assert ("train/loss", 100) not in [event[:2] for event in events]


def test_a_resumed_run_has_no_step_twice(make_trainer, run_in):
    """The files are written again from metrics.jsonl, also those that a killed run has left."""
    trainer = make_trainer(dev=True, **SHORT, log_to=["visualdl"])
    directory, lines = run_in(trainer)
    folder = directory.path / "visualdl"
    steps = [point[0] for point in of_visualdl(folder, "train/loss")]
    assert steps == [2, 4, 6, 8, 10, 12]
    (folder / "vdlrecords.1.log").write_bytes(b"of a killed run")
    (folder / "mine.txt").write_text("not ours")
    kept = [json.dumps(line) + "\n" for line in lines if line["step"] <= 6]
    (directory.path / "metrics.jsonl").write_text("".join(kept))
    EventFiles(directory.event_folders(["visualdl"]), directory.logged()).close()
    assert (folder / "mine.txt").read_text() == "not ours"
    (folder / "mine.txt").unlink()
    assert [point[0] for point in of_visualdl(folder, "train/loss")] == [2, 4, 6]


def test_a_missing_package_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    monkeypatch.setattr(event_files, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="pip install tensorboardX"):
        event_files.require_packages(["tensorboard"])


def test_a_full_disk_ends_the_files_and_not_the_training(tmp_path, capsys):
    files = EventFiles({"tensorboard": tmp_path}, [])
    writer, _ = files._open["tensorboard"]

    def full(*arguments, **options):
        raise OSError(28, "No space left on device")

    writer.add_scalar = full
    files.add(train_line(1))
    files.add(train_line(2))
    said = capsys.readouterr().err
    assert said.count("No space left on device") == 1 and "nothing more is written" in said
