"""The model directory: whose it is, what is in it, and that it can be moved."""

import json
import math
import shutil
import subprocess
from datetime import datetime

import numpy as np
import pytest

from tests.support import (
    make_config,
    make_model_directory,
    python,
    run_command,
    train_subwords,
    write_lines,
)
from transformer_mt.data.subword import Subwords
from transformer_mt.data.vocabulary import WordVocabulary
from transformer_mt.model_directory import require_safe_outputs, subwords_to_keep
from transformer_mt.training.folder import RunDirectory
from transformer_mt.training.progress import Progress
from transformer_mt.translator import Translator
from transformer_mt.utils.errors import UsageError, UserError

PAIRS = [("A dog runs.", "Ein Hund rennt."), ("A cat sleeps.", "Eine Katze schläft.")] * 3


@pytest.fixture(scope="module")
def subwords():
    return train_subwords(PAIRS, 40)


@pytest.fixture
def config(tmp_path):
    return make_config(tmp_path, subword={"vocab_size": 40})


def started(path, config, subwords):
    directory = RunDirectory(path)
    directory.claim()
    directory.start(config, subwords, [])
    return directory


def entries(path):
    return sorted(entry.name for entry in path.iterdir())


AT_THE_START = [
    *(".lock", "SHA256SUMS", "checkpoints", "config.yaml", "format_version", "subword.model")
]


# ---- Whose it is ----


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize(
    "name",
    ["chapter1.tex", "checkpoints/step_5/weights", "export/model", "best", "metrics.jsonl",
     "config.yaml", "format_version", "subword.model"],
)  # fmt: skip
def test_a_folder_of_something_else_is_refused(tmp_path, name, restart):
    path = tmp_path / "theirs" / name
    path.parent.mkdir(parents=True)
    path.write_text("years of work")
    with pytest.raises(UsageError, match="holds no run of this program"):
        RunDirectory(tmp_path / "theirs").claim(restart)
    assert path.read_text() == "years of work"
    assert entries(tmp_path / "theirs") == [name.split("/")[0]]


@pytest.mark.parametrize("restart", [False, True])
def test_a_run_without_its_config_is_refused(tmp_path, config, restart):
    directory = make_model_directory(tmp_path / "run", PAIRS, config)
    (directory.path / "config.yaml").unlink()
    before = entries(directory.path)
    with pytest.raises(UsageError, match=r"put its config\.yaml back"):
        RunDirectory(directory.path).claim(restart)
    assert {*before} - {*entries(directory.path)} <= {".lock"}


def test_a_run_whose_checkpoints_are_gone_is_not_begun_anew(tmp_path, config):
    """Its export may be all that is left of it."""
    directory = make_model_directory(tmp_path / "run", PAIRS, config)
    shutil.rmtree(directory.checkpoints)
    (directory.path / "export" / "theirs").mkdir(parents=True)
    with pytest.raises(UsageError, match=r"without a checkpoint .* best, export.*--restart"):
        RunDirectory(directory.path).claim()
    assert (directory.path / "export" / "theirs").is_dir()


@pytest.mark.parametrize("files", [["format_version"], ["format_version", "config.yaml"], None])
def test_a_run_that_was_killed_before_its_first_checkpoint_begins_again(
    tmp_path, config, subwords, files
):
    directory = started(tmp_path / "run", config, subwords)
    directory.log(kind="train", step=1)
    directory.release()
    for entry in list(directory.path.iterdir()):
        if files is not None and entry.name not in files:
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    again = started(tmp_path / "run", config, subwords)
    assert entries(again.path) == AT_THE_START


def test_restart_renames_the_folder_and_keeps_one(tmp_path, config, subwords, capsys):
    directory = make_model_directory(tmp_path / "run", PAIRS, config)
    outside = tmp_path / "outside"
    outside.mkdir()
    (directory.checkpoints / "step_7").symlink_to(outside)
    (tmp_path / "run.before-restart").mkdir()
    with pytest.raises(UsageError, match=r"run\.before-restart"):  # it is something else
        RunDirectory(directory.path).claim(restart=True)
    (tmp_path / "run.before-restart").rmdir()
    for text in ("first", "second"):
        (directory.path / "notes.txt").write_text(text)
        before = entries(directory.path)
        again = RunDirectory(tmp_path / "run")
        again.claim(restart=True)
        again.start(config, subwords, [])
        assert entries(again.path) == AT_THE_START
        aside = tmp_path / "run.before-restart"
        assert {*entries(aside)} == {*before, ".lock"}
        assert (aside / "notes.txt").read_text() == text and str(aside) in capsys.readouterr().err
        with pytest.raises(UserError, match="in use by another process"):
            RunDirectory(tmp_path / "run").claim()
        again.release()
    assert entries(tmp_path) == ["outside", "run", "run.before-restart"]


def test_a_path_that_is_a_file_or_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "run", "/proc/nothing/here"):
        with pytest.raises(UserError, match="model_dir: "):
            RunDirectory(path).claim()


HOLD = """
import sys
from transformer_mt.training.folder import RunDirectory
directory = RunDirectory(sys.argv[1])
directory.claim()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("is_new", [False, True])
def test_one_process_at_a_time(tmp_path, config, subwords, is_new):
    path = tmp_path / "run"
    if not is_new:
        started(path, config, subwords).release()
    process = python("-c", HOLD, path, stdin=subprocess.PIPE)
    try:
        assert process.stdout.readline() == "held\n"
        refused = RunDirectory(path)
        with pytest.raises(UserError, match="in use by another process"):
            refused.claim()
        refused.release()
        assert (path / ".lock").exists()  # it was not ours to remove
    finally:
        process.kill()
        process.wait()
    # However the other one ended, its hold ends with it. A run is left as it is when claimed.
    before = [] if is_new else AT_THE_START
    mine = RunDirectory(path)
    mine.claim()
    assert {*entries(path)} == {*before, ".lock"} and mine.holds_run == (not is_new)
    mine.release()


def test_what_a_run_has_from_its_beginning(tmp_path, config, subwords):
    held_out = tmp_path / "dev.en"
    held_out.write_text("A dog.\n")
    for path, problem in ((tmp_path, r"config\.yaml in it"), (tmp_path / "run", "such folder")):
        with pytest.raises(UsageError, match=f"not a model directory .there is no {problem}"):
            RunDirectory(path).load_config()
    directory = RunDirectory(tmp_path / "run")
    directory.claim()
    directory.release()  # removes a folder that nothing has come into
    assert not (tmp_path / "run").exists()
    directory.claim()
    directory.start(config, subwords, [held_out])
    directory.release()
    directory.release()
    assert directory.load_config() == config
    assert directory.load_subwords().content() == subwords.content()
    assert (directory.path / "held_out" / "dev.en").read_text() == "A dog.\n"
    with pytest.raises(UsageError, match="has no checkpoint yet"):
        directory.checkpoint()


# ---- What is in it ----


def test_another_version_is_refused(tmp_path, config, subwords):
    directory = started(tmp_path / "run", config, subwords)
    version = directory.path / "format_version"
    for content in (b"3\n", b"", b"\xff\xfe", b"\x1b[31m2\n", None):
        version.unlink() if content is None else version.write_bytes(content)
        with pytest.raises(UsageError, match=r"format version .*, this program reads 2") as raised:
            directory.load_config()
        assert str(raised.value).isprintable()


@pytest.mark.parametrize("name", ["config.yaml", "subword.model", "format_version", "best"])
def test_any_flipped_bit_is_noticed(tmp_path, config, capsys, name):
    directory = make_model_directory(tmp_path / "run", PAIRS, config)
    path = directory.path / name
    whole = path.read_bytes()
    random = np.random.default_rng(1)
    places = range(len(whole)) if len(whole) < 100 else random.integers(len(whole), size=100)
    for place in places:
        bit = 1 << int(random.integers(8))
        path.write_bytes(whole[:place] + bytes([whole[place] ^ bit]) + whole[place + 1 :])
        if name == "best":
            changed = path.read_bytes().strip() != whole.strip()
            assert (directory.best() is None) == changed
            assert ("best: " in capsys.readouterr().err) == changed
            continue
        if name == "format_version" and path.read_bytes().strip() == b"2":
            continue  # another end of line
        with pytest.raises(UserError, match=r"damaged|format version|not a model directory"):
            directory.load_config()
            directory.load_subwords()


def test_what_leads_outside_is_not_followed(tmp_path, config):
    secret = tmp_path / "secret"
    secret.write_text("d_model: hunter2\n")
    for name in ("config.yaml", "format_version", "subword.model", "best", "checkpoints",
                 "checkpoints/step_10", "checkpoints/step_10/model.safetensors"):  # fmt: skip
        directory = make_model_directory(tmp_path / name.replace("/", "-"), PAIRS, config)
        path = directory.path / name
        aside = tmp_path / f"{path.name}-{name.count('/')}-aside"
        path.rename(aside)
        path.symlink_to(aside)
        with pytest.raises(UserError, match=r"place outside|leads out") as raised:
            Translator.load(directory.path)
        assert "hunter2" not in str(raised.value)
        # The whole directory may be a link, and moved.
        path.unlink()
        aside.rename(path)
        link = tmp_path / f"{path.name}-{name.count('/')}-link"
        link.symlink_to(directory.path)
        assert RunDirectory(link).checkpoint().name == "step_10"


def test_checkpoints_by_name(tmp_path, config, subwords):
    directory = started(tmp_path / "run", config, subwords)
    for step in (9, 10, 100):
        (directory.checkpoints / f"step_{step}").mkdir()
        (directory.checkpoints / f"step_{step}" / "SHA256SUMS").write_text(f"{step}")
    (directory.checkpoints / ".step_200.tmp").mkdir()
    assert directory.checkpoint().name == "step_100"  # no best yet
    directory.set_best(directory.checkpoints / "step_9")
    found = [directory.checkpoint(name).name for name in (None, "best", "last", "step_10")]
    assert found == ["step_9", "step_9", "step_100", "step_10"]
    for wrong in ("step_11", "../..", "", ".step_200.tmp", "step_"):
        with pytest.raises(UsageError, match="it has best, last, step_9, step_10, step_100"):
            directory.checkpoint(wrong)


NOTHING = "0" * 64


@pytest.mark.parametrize(
    "content",
    [
        "",
        "step_3\n",
        f"{NOTHING}  checkpoints/../SHA256SUMS\n",
        f"{NOTHING}  /etc/SHA256SUMS\n",
        f"{NOTHING}  checkpoints/step_7/SHA256SUMS\n",  # which is not there
        f"{NOTHING}  checkpoints/step_3/SHA256SUMS\n",  # which has changed since
    ],
)
def test_the_last_takes_the_place_of_a_best_that_is_not_there(
    tmp_path, config, subwords, capsys, content
):
    directory = started(tmp_path / "run", config, subwords)
    (directory.checkpoints / "step_3").mkdir()
    (directory.path / "best").write_text(content)
    assert directory.checkpoint().name == "step_3"
    said = capsys.readouterr().err
    assert "best: damaged, or its checkpoint is gone or has changed; the last" in said


def test_an_export_of_another_checkpoint_is_told_of(tmp_path, config, capsys):
    directory = make_model_directory(tmp_path / "run", PAIRS, config)
    run_command("export", directory.path, format="ctranslate2")
    made = directory.path / "export" / "ctranslate2"
    for folder, engine in ((directory.path, "ctranslate2"), (made, None)):
        capsys.readouterr()
        directory.set_best(directory.checkpoints / "step_10")
        Translator.load(folder, engine=engine)
        assert "warning" not in capsys.readouterr().err
        directory.set_best(directory.checkpoints / "step_5")
        Translator.load(folder, engine=engine)
        said = capsys.readouterr().err
        assert "was made of step_10" in said and "step_5 now" in said
    # Elsewhere it stands for itself, and a model directory may be moved too.
    texts = Translator.load(directory.path).translate(["A dog sleeps.", "A cat."])
    capsys.readouterr()
    shutil.move(made, tmp_path / "moved")
    Translator.load(tmp_path / "moved")
    assert "warning" not in capsys.readouterr().err
    shutil.move(directory.path, tmp_path / "else where")
    assert Translator.load(tmp_path / "else where").translate(["A dog sleeps.", "A cat."]) == texts


def test_metrics_are_json_whatever_the_numbers(tmp_path, config, subwords):
    directory = started(tmp_path / "run", config, subwords)
    directory.log(kind="train", step=1, loss=2.5, signature='a"b')
    directory.log(kind="train", step=2, loss=math.nan, perplexity=math.inf)

    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    path = directory.path / "metrics.jsonl"
    lines = path.read_text().splitlines()
    values = [json.loads(line, parse_constant=refuse) for line in lines]
    for value in values:
        assert datetime.fromisoformat(value.pop("time")).utcoffset() is not None
    assert values[0] == {"kind": "train", "step": 1, "loss": 2.5, "signature": 'a"b'}
    assert values[1] == {"kind": "train", "step": 2, "loss": None, "perplexity": None}
    # Lines that are none are left out, when a run goes on.
    broken = ["3", "[]", "{}", '{"kind": []}', '{"kind": "train", "step": "x"}', "[" * 9999, '{"ki']
    path.write_text("\n".join([lines[0], *broken[:-1], lines[1], broken[-1]]))
    directory.resume(config, Progress((1, 400), step=2, validated=2), [])
    assert path.read_text().splitlines() == lines


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


# ---- No output replaces what is read ----


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Models from en to de, one of them as an export, and a text."""
    folder = tmp_path_factory.mktemp("models")
    make_model_directory(folder / "model", PAIRS, make_config(folder, subword={"vocab_size": 40}))
    run_command("export", folder / "model", format="ctranslate2", output=folder / "exported")
    for side, name in enumerate(("in.en", "in.de")):
        write_lines(folder / name, [pair[side] for pair in PAIRS])
    (folder / "link.en").symlink_to("in.en")
    (folder / "other_name").symlink_to("model")
    (folder / "to_weights").symlink_to("model/checkpoints/step_5/model.safetensors")
    return folder


OWN = [
    *("model/config.yaml", "model/best", "model/subword.model", "model/SHA256SUMS", "model/dev"),
    *("model/checkpoints/step_5/model.safetensors", "model/checkpoints/new", "model/metrics.jsonl"),
    *("model/test.hypothesis", "model/tune.json", "model/README.md", "model/held_out/dev.en"),
    *("other_name/config.yaml", "to_weights", "model/export/../config.yaml", "in.en", "link.en"),
    *("exported/config.yaml", "exported/model.bin", "exported/SHA256SUMS", "exported/checkpoint"),
]


def test_an_output_replaces_no_file_of_a_model_and_no_input(models):
    message = r"--output .*(belongs to the model|are the same file)"
    for name in OWN:
        with pytest.raises(UsageError, match=message):
            require_safe_outputs({"--output": models / name}, {"--input": models / "in.en"})


def test_other_names_are_free_even_in_a_model_directory(models):
    for name in (
        "model/out.de",
        "model/report.html",
        "model/export/out",
        "exported/out.de",
        "best",
    ):
        require_safe_outputs({"--output": models / name, "stdout": 1, "--json": None}, {})


def test_a_loop_of_links_is_no_output_and_no_part_of_a_model(models, tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(UsageError, match="a loop of links"):
        require_safe_outputs({"--output": tmp_path / "loop"}, {})
    shutil.copytree(models / "model", tmp_path / "model")
    for name, message in (("subword.model", "subword.model is"), ("config.yaml", "not a model")):
        (tmp_path / "model" / name).unlink()
        (tmp_path / "model" / name).symlink_to(name)
        with pytest.raises(UserError, match=message):
            Translator.load(tmp_path / "model")
    with pytest.raises(UserError, match="loop"):
        run_command("report", tmp_path / "loop")
    for name in ("out.zst", "out.de.ZIP", "out.7z"):
        with pytest.raises(UsageError, match="can't be written"):
            require_safe_outputs({"--output": tmp_path / name}, {})


COMMANDS = [
    "translate model in.en OUT", "translate model in.en OUT --resume",
    "score model --source in.en --target in.de --output OUT",
    "align model --source in.en --target in.de --output OUT",
    "attention model --text dog --output OUT",
    "evaluate model in.en in.de --output OUT", "evaluate model in.en in.de --json OUT",
    "evaluate model in.en in.de --sentences OUT",
    "compare --reference in.de in.de in.en --html OUT",
    "compare --reference in.de in.de in.en --json OUT",
    "report model --output OUT", "check-device --device cpu --json OUT",
    "export model --format pdparams --output OUT", "export model --format ctranslate2 --output OUT",
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_checks_its_output(models, monkeypatch, command):
    monkeypatch.chdir(models)
    before = (models / "model/config.yaml").read_bytes()
    with pytest.raises(UsageError, match=r"config\.yaml belongs to the model"):
        run_command(*command.replace("OUT", "model/config.yaml").split(" "))
    assert (models / "model/config.yaml").read_bytes() == before


def test_augment_and_new_check_the_files_that_they_write(models, monkeypatch):
    monkeypatch.chdir(models)
    # PREFIX.json is a file of the model directory.
    with pytest.raises(UsageError, match=r"data\.json belongs to the model"):
        run_command("augment", "model/data", forward="model", source="in.en")
    (models / "my.yaml").symlink_to("in.de")
    for recipe, message in (("my.yaml", "the same file"), ("model/config.yaml", "belongs to")):
        with pytest.raises(UsageError, match=f"RECIPE {recipe}.*{message}"):
            run_command("new", recipe, train="in", source_lang="en", target_lang="de", force=True)
