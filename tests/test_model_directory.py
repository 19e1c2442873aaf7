"""The model directory: whose it is, what is in it, and that it can be moved."""

import json
import math
import shutil
import subprocess
import sys

import pytest

from tests.support import ROOT, make_config, make_model_directory, train_subwords
from transformer_mt.data.subword import Subwords, WordVocabulary
from transformer_mt.decoding.translator import Translator
from transformer_mt.errors import UsageError, UserError
from transformer_mt.model_directory import ModelDirectory, subwords_to_keep

PAIRS = [("A dog runs.", "Ein Hund rennt."), ("A cat sleeps.", "Eine Katze schläft.")] * 3


@pytest.fixture(scope="module")
def subwords():
    return train_subwords(PAIRS, 40)


@pytest.fixture
def config(tmp_path):
    return make_config(tmp_path, subword={"vocab_size": 40})


def started(path, config, subwords):
    directory = ModelDirectory(path)
    directory.claim()
    directory.start(config, subwords, [])
    return directory


def entries(path):
    return sorted(entry.name for entry in path.iterdir())


# ---- Whose it is ----


def test_a_run_is_left_as_it_is_when_claimed(tmp_path, config, subwords):
    started(tmp_path / "run", config, subwords).release()
    before = entries(tmp_path / "run")
    directory = ModelDirectory(tmp_path / "run")
    directory.claim()
    assert directory.holds_run and entries(tmp_path / "run") == before


def test_a_folder_of_something_else_is_refused(tmp_path):
    folder = tmp_path / "thesis"
    folder.mkdir()
    (folder / "chapter1.tex").write_text("years of work")
    with pytest.raises(UsageError, match=r"not a model directory \(chapter1\.tex"):
        ModelDirectory(folder).claim()
    assert entries(folder) == ["chapter1.tex"]


def test_a_folder_of_another_program_with_a_config_is_refused(tmp_path):
    folder = tmp_path / "theirs"
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "config.yaml").write_text("model: transformer")
    with pytest.raises(UsageError, match=r"not a model directory \(config\.yaml"):
        ModelDirectory(folder).claim()
    assert (folder / "checkpoints").is_dir()


def test_restart_clears_what_is_the_runs_own(tmp_path, config, subwords):
    directory = started(tmp_path / "run", config, subwords)
    directory.log(kind="train", step=1)
    (directory.checkpoints / "step_1").mkdir()
    (directory.checkpoints / "step_1" / "model.pdparams").write_text("")
    directory.set_best(directory.checkpoints / "step_1")
    (directory.path / "held_out").mkdir()
    (directory.path / "notes.txt").write_text("the learning rate was too high")
    directory.release()
    again = ModelDirectory(tmp_path / "run")
    again.claim()
    again.start(config, subwords, [])
    assert entries(tmp_path / "run") == [
        ".lock", "checkpoints", "config.yaml", "format_version", "notes.txt", "subword.model"
    ]  # fmt: skip
    assert entries(again.checkpoints) == []
    assert (tmp_path / "run" / "notes.txt").read_text() == "the learning rate was too high"


def test_a_path_that_is_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(UserError, match="model_dir: "):
            ModelDirectory(path).claim()


HOLD = """
import sys, time
from transformer_mt.model_directory import ModelDirectory, subwords_to_keep
directory = ModelDirectory(sys.argv[1])
directory.claim()
print("held", flush=True)
sys.stdin.read()
"""


def holder(path):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "held\n"
    return process


@pytest.mark.parametrize("is_new", [False, True])
def test_one_process_at_a_time(tmp_path, config, subwords, is_new):
    path = tmp_path / "run"
    if not is_new:
        started(path, config, subwords).release()
    process = holder(path)
    try:
        refused = ModelDirectory(path)
        with pytest.raises(UserError, match="in use by another process"):
            refused.claim()
        refused.release()
        assert (path / ".lock").exists()  # it was not ours to remove
    finally:
        process.kill()
        process.wait()
    # However the other one ended, its hold ends with it.
    mine = ModelDirectory(path)
    mine.claim()
    mine.release()


def test_release_removes_a_folder_that_nothing_has_come_into(tmp_path, config, subwords):
    directory = ModelDirectory(tmp_path / "run")
    directory.claim()
    directory.release()
    assert not (tmp_path / "run").exists()
    directory = started(tmp_path / "run", config, subwords)
    directory.release()
    directory.release()
    assert (tmp_path / "run" / "config.yaml").is_file()


def test_a_lock_whose_file_is_gone_is_no_lock(tmp_path):
    """Who waits while the holder gives up and removes the folder must not lock a deleted file:
    the next one would lock a new one."""
    first, second = ModelDirectory(tmp_path / "run"), ModelDirectory(tmp_path / "run")
    first.claim()
    lock_is_in_place = second._lock_is_in_place
    answers = []

    def after_someone_removed_it():
        if not answers:
            (tmp_path / "run" / ".lock").unlink()
        answers.append(lock_is_in_place())
        return answers[-1]

    second._lock_is_in_place = after_someone_removed_it
    first.release()
    second.claim()
    assert answers == [False, True]
    with pytest.raises(UserError, match="in use"):
        ModelDirectory(tmp_path / "run").claim()


# ---- What is in it ----


def test_what_a_run_has_from_its_beginning(tmp_path, config, subwords):
    held_out = tmp_path / "dev.en"
    held_out.write_text("A dog.\n")
    directory = ModelDirectory(tmp_path / "run")
    directory.claim()
    directory.start(config, subwords, [held_out])
    assert directory.load_config() == config
    assert directory.load_subwords().content() == subwords.content()
    assert (directory.path / "held_out" / "dev.en").read_text() == "A dog.\n"
    with pytest.raises(UsageError, match="has no checkpoint yet"):
        directory.checkpoint()


@pytest.mark.parametrize("content", ["2\n", "", None, b"\xff\xfe"])
def test_another_version_is_refused(tmp_path, config, subwords, content):
    directory = started(tmp_path / "run", config, subwords)
    version = directory.path / "format_version"
    if content is None:
        version.unlink()
    else:
        version.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(UsageError, match=r"format version .*, this program reads 1"):
        directory.load_config()


def test_what_is_no_model_directory(tmp_path):
    for path in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(UsageError, match="not a model directory"):
            ModelDirectory(path).load_config()
    assert not (tmp_path / "nothing").exists()


def test_checkpoints_by_name(tmp_path, config, subwords):
    directory = started(tmp_path / "run", config, subwords)
    for step in (9, 10, 100):
        (directory.checkpoints / f"step_{step}").mkdir()
    (directory.checkpoints / ".step_200.tmp").mkdir()
    assert directory.checkpoint().name == "step_100"  # no best yet
    directory.set_best(directory.checkpoints / "step_9")
    found = [directory.checkpoint(name).name for name in (None, "best", "last", "step_10")]
    assert found == ["step_9", "step_9", "step_100", "step_10"]
    for wrong in ("step_11", "../..", "", ".step_200.tmp", "step_"):
        with pytest.raises(UsageError, match="it has best, last, step_9, step_10, step_100"):
            directory.checkpoint(wrong)


@pytest.mark.parametrize("content", ["", "step_7\n", "..\n"])
def test_a_best_that_is_not_there_is_the_last(tmp_path, config, subwords, content):
    directory = started(tmp_path / "run", config, subwords)
    (directory.checkpoints / "step_3").mkdir()
    (directory.path / "best").write_text(content)
    assert directory.best() is None
    assert directory.checkpoint().name == "step_3"


def test_metrics_are_json_whatever_the_numbers(tmp_path, config, subwords):
    directory = started(tmp_path / "run", config, subwords)
    directory.log(kind="train", step=1, loss=2.5, signature='a"b')
    directory.log(kind="train", step=2, loss=math.nan, perplexity=math.inf)

    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    lines = (directory.path / "metrics.jsonl").read_text().splitlines()
    values = [json.loads(line, parse_constant=refuse) for line in lines]
    assert values[0] == {"kind": "train", "step": 1, "loss": 2.5, "signature": 'a"b'}
    assert values[1] == {"kind": "train", "step": 2, "loss": None, "perplexity": None}


def test_it_can_be_moved(tmp_path):
    config = make_config(tmp_path, subword={"vocab_size": 40})
    make_model_directory(tmp_path / "here", PAIRS, config)
    before = list(Translator.load(tmp_path / "here").translate(["A dog sleeps.", "A cat."]))
    (tmp_path / "else where").mkdir()
    shutil.move(tmp_path / "here", tmp_path / "else where" / "there")
    after = Translator.load(tmp_path / "else where" / "there")
    assert list(after.translate(["A dog sleeps.", "A cat."])) == before


# ---- Fine-tuning ----


def test_subwords_of_bped_text_are_kept_for_files_of_ones_own(tmp_path, config):
    """As the copy of WMT14 has them: its list of types is no file that the other config names."""
    vocabulary = WordVocabulary(["<s>", "<e>", "<unk>", "a@@", "b", "c"])
    theirs = make_config(
        tmp_path, data={"dataset": "wmt14ende"}, subword={"type": "vocabulary", "vocabulary": None}
    )
    started(tmp_path / "base", theirs, Subwords(vocabulary, vocabulary)).release()

    def keep(**model):
        training = {"init_from": str(tmp_path / "base")}
        return subwords_to_keep(make_config(tmp_path, training=training, model=model))

    assert keep().source.encode("a@@ c") == vocabulary.encode("a@@ c")
    assert keep(copying=True).joint
    assert subwords_to_keep(config) is None


def test_subwords_that_do_not_go_together_with_a_config_are_refused(tmp_path, config):
    subwords = train_subwords(PAIRS, 40, joint=False)
    theirs = make_config(tmp_path, subword={"joint": False, "vocab_size": 40})
    started(tmp_path / "base", theirs, subwords).release()
    training = {"init_from": str(tmp_path / "base")}
    tuned = make_config(tmp_path, training=training, model={"copying": True})
    with pytest.raises(UsageError, match="its subwords do not go together") as raised:
        subwords_to_keep(tuned)
    assert "model.copying: True: needs subword.joint: true" in str(raised.value)
