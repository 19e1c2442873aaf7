"""`new` writes a recipe that fits the text, which trains without a warning."""

import contextlib
import os
import pty
import random
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest
import yaml

from tests.support import (
    ROOT,
    TIMEOUT,
    demo_pairs,
    run_command,
    write_lines,
    write_pairs,
)
from transformer_mt.commands import new
from transformer_mt.config import file as config_file
from transformer_mt.training import recipe, run
from transformer_mt.training.advice import advice
from transformer_mt.utils.errors import UsageError, UserError

PLACE = {
    "model_dir": "runs/my",
    "root": "corpus",
    "train": "train",
    "source_lang": "en",
    "target_lang": "de",
    "dev": None,
    "test": None,
}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    """The current folder. Speeds are measured in a moment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(recipe, "MEASURED_SECONDS", 0.01)
    monkeypatch.setattr(run, "seconds_per_step", partial(run.seconds_per_step, seconds=0.01))
    return tmp_path


def make(*arguments, languages=("en", "de"), **flags):
    """Writes my.yaml, and returns its config."""
    source, target = languages
    flags = {"device": "cpu", "source_lang": source, "target_lang": target} | flags
    run_command("new", "my.yaml", *arguments, **flags)
    return config_file.load("my.yaml")


def check_without_warning(capsys) -> str:
    """The messages of `train my.yaml --check`, which finds all data in the cache."""
    capsys.readouterr()  # of `new`
    entries = sorted(os.listdir("data/cache"))
    run_command("train", "my.yaml", "--check", device="cpu")
    assert sorted(os.listdir("data/cache")) == entries
    output, messages = capsys.readouterr()
    assert "warning" not in output + messages
    return output


# ---- Texts ----


def test_a_corpus_with_dev_and_test_set(capsys):
    demo = ROOT / "data" / "demo"
    config = make(train=demo / "train", dev=demo / "dev", test=demo / "test", minutes=2)
    assert (config.data.root, config.data.train) == (str(demo), "train")
    assert (config.data.dev, config.data.test, config.model_dir) == ("dev", "test", "runs/my")
    assert config.subword.joint and config.subword.character_coverage == 1.0
    said = capsys.readouterr().out
    output = check_without_warning(capsys)
    assert "dev pairs       500" in output
    # It says what is in the file.
    assert f"{config.training.max_steps:,} steps" in said
    assert f"{config.subword.vocab_size:,}, shared" in said
    assert f"d_model {config.model.d_model}" in said
    assert "bash scripts/train.sh my.yaml --check" in said


@pytest.mark.parametrize("count", [50, 400])
def test_a_small_corpus(capsys, folder, count):
    write_pairs(folder / "corpus", "train", demo_pairs(count))
    config = make(train="corpus/train", minutes=1)
    assert config.data.dev is config.data.test is None
    output = check_without_warning(capsys)
    assert f"dev pairs       {count // 10}" in output


def test_a_tsv_file(capsys, folder):
    write_lines(folder / "my pairs.tsv", ("\t".join(pair) for pair in demo_pairs(300)))
    config = make(train="my pairs.tsv", minutes=1)
    assert (config.data.root, config.data.train) == (".", "my pairs.tsv")
    check_without_warning(capsys)


def in_chinese(line: str, characters: list[str]) -> str:
    """A line in which the numbers of its letters choose characters."""
    return "".join(characters[hash_of(word) % len(characters)] for word in line.split())


def hash_of(word: str) -> int:
    return int.from_bytes(word.encode()[:6], "big")


def test_languages_with_other_letters(capsys, folder):
    """Words of the demo, each of which has one or two of 600 Chinese characters."""
    characters = [chr(0x4E00 + number) for number in range(600)]
    draw = random.Random(1)
    pairs = []
    for source, target in demo_pairs(2000):
        rare = "".join(draw.choices(characters, k=3))
        pairs.append((in_chinese(source, characters) + rare, target))
    write_pairs(folder / "corpus", "train", pairs, ("zh", "en"))
    config = make(train="corpus/train", languages=("zh", "en"), minutes=1)
    assert not config.subword.joint and config.subword.character_coverage < 1
    check_without_warning(capsys)


@pytest.mark.parametrize(
    ("name", "languages"),
    [
        ("tatoeba_zh-en", ("zh", "en")),
        pytest.param("tatoeba_de-en", ("de", "en"), marks=pytest.mark.slow),
    ],
)
def test_real_corpora(name, languages, capsys, shared_data):
    names = {"train": "train", "dev": "valid", "test": "test"}
    paths = {key: shared_data / name / value for key, value in names.items()}
    config = make(**paths, languages=languages)
    assert config.subword.joint == ("zh" not in languages)
    assert (config.subword.character_coverage == 1) == ("zh" not in languages)
    check_without_warning(capsys)


def test_pairs_that_are_left_out(capsys, folder):
    """Of pairs that training leaves out, the recipe does not count the sentences."""
    unlike = [(f"Word {number}", " ".join(["viel"] * (90 + number))) for number in range(300)]
    pairs = [*demo_pairs(300), *unlike, *[("", "leer")] * 300]
    write_pairs(folder / "corpus", "train", pairs)
    make(train="corpus/train", minutes=1)
    output = check_without_warning(capsys)
    assert "300: empty on a side" in output and "more than 6 to 1" in output


def test_odd_text_is_reported(capsys, folder):
    """What no setting can mend."""
    pairs = demo_pairs(300)
    write_pairs(folder / "corpus", "train", pairs + [(pair[0], pair[0]) for pair in pairs])
    write_pairs(folder / "corpus", "dev", pairs[:20])
    make(train="corpus/train", dev="corpus/dev", minutes=1)
    messages = capsys.readouterr().err
    assert "warning: data.dev" in messages and "is a copy of the source" in messages


# ---- Time ----


def test_more_time_gives_more_steps(folder):
    """A text of 300 pairs is seen often enough within minutes."""
    write_pairs(folder / "corpus", "train", demo_pairs(300))
    short = make(train="corpus/train", minutes=0.05).training
    longer = make("--force", train="corpus/train", minutes=600).training
    assert short.max_steps < longer.max_steps == recipe.FEWEST_STEPS


@pytest.mark.parametrize("most", [*range(1, 120), 999, 1000, 1234, 6250, 99_999, 1_234_567])
def test_any_number_of_steps(most):
    draft = recipe._Draft(Path("my.yaml"), PLACE)
    draft.set_steps(most)
    config = draft.config()
    assert 0.9 * most <= config.training.max_steps <= most
    side = {"rare": 0.0, "vocabulary": 10, "unspaced_script": 0.0}
    overlap = {name: {"lines": 0} for name in ("dev", "test")}
    facts = {"source": side, "target": side, "overlap": overlap, "dev": 10, "pairs": 100}
    facts |= {"dropped": {}, "unknown_text": {}, "copies": {"count": 0}, "test": 10}
    assert advice(config, facts, config.training.max_steps) == []
    assert config.training.max_steps // config.training.validate_every <= 12 or most < 120


def test_a_larger_model_needs_text_and_time(monkeypatch):
    """Of the models that the text is enough for, the largest that sees it often enough."""

    def measured(draft, size, data, seconds, used):
        step = size.num_layers * size.d_model**2 / 1e6
        per_epoch = data.facts["pairs"] // 100
        return recipe._Timing(size, used, step, 1, 60, per_epoch, int(seconds / step), False)

    monkeypatch.setattr(recipe, "_measure", measured)
    widths = {}
    for pairs in (1000, 40_000, 160_000, 2_000_000):
        for hours in (0.1, 1, 1000):
            draft = recipe._Draft(Path("my.yaml"), PLACE)
            data = type("Data", (), {"facts": {"pairs": pairs}})
            lines = recipe._choose_size(draft, data, hours * 3600, "cpu")
            config = draft.config()
            widths[pairs, hours] = config.model.d_model, config.model.num_layers
            assert f"d_model {config.model.d_model}," in lines[0]
    assert widths == {
        (1000, 0.1): (128, 2), (1000, 1): (128, 2), (1000, 1000): (128, 2),
        (40_000, 0.1): (128, 4), (40_000, 1): (128, 4), (40_000, 1000): (128, 4),
        (160_000, 0.1): (128, 4), (160_000, 1): (128, 4), (160_000, 1000): (256, 4),
        (2_000_000, 0.1): (128, 2), (2_000_000, 1): (128, 2), (2_000_000, 1000): (512, 6),
    }  # fmt: skip


# ---- The file ----


def test_a_recipe_has_the_keys_of_the_template(folder):
    template = yaml.safe_load((ROOT / "configs" / "template.yaml").read_text("utf-8"))
    own = yaml.safe_load(recipe._Draft(Path("my.yaml"), PLACE).text())
    assert own["model"].pop("bias") is False  # is as good, and faster
    assert {name: list(values) for name, values in own.items() if name != "model_dir"} == {
        name: list(values) for name, values in template.items() if name != "model_dir"
    }


@pytest.mark.parametrize("text", ["no", "1e3", "a: b", "a #b", "x$", "a\nb", "ü 'q' \"", "x" * 300])
def test_any_name_is_written_as_yaml(text):
    place = {key: value and text for key, value in PLACE.items()} | {"target_lang": f"{text}x"}
    draft = recipe._Draft(Path(text), place)
    config = draft.config()
    assert (config.model_dir, config.data.root, config.data.train) == (text, text, text)
    assert (config.data.source_lang, config.data.target_lang) == (text, f"{text}x")


def test_no_recipe_is_replaced(folder):
    write_pairs(folder / "corpus", "train", demo_pairs(100))
    (folder / "my.yaml").write_text("mine")
    with pytest.raises(UsageError, match="--force"):
        make(train="corpus/train")
    assert (folder / "my.yaml").read_text() == "mine"
    assert make("--force", train="corpus/train", minutes=1).data.root == "corpus"


# ---- Mistakes ----


def test_what_is_missing_is_named(folder):
    """Without a terminal, nothing can be asked."""
    write_pairs(folder / "corpus", "train", demo_pairs(3))
    with pytest.raises(UsageError) as error:
        run_command("new", "my.yaml")
    assert str(error.value) == (
        "--train, --source-lang, --target-lang: give them. There is text in corpus/train (de, en)"
    )
    with pytest.raises(UsageError, match=r"^--target-lang: give it.*corpus/train \(de, en\)$"):
        run_command("new", "my.yaml", train="corpus/train", source_lang="de")


def test_mistakes_in_the_arguments(folder):
    write_pairs(folder / "corpus", "train", demo_pairs(30))
    for name, flags, problem in (
        ("my.txt", {}, "ends in .yaml"),
        ("none/my.yaml", {}, "there is no folder none"),
        ("my.yaml", {"train": "corpus/text"}, "data.train: there is no file text.en"),
        ("my.yaml", {"train": "none/train"}, "data.root: none: there is no such folder"),
        ("my.yaml", {"dev": "corpus/dev"}, "data.dev: there is no file dev.en"),
        ("my.yaml", {"target_lang": "fr"}, "there is no file train.fr"),
        ("my.yaml", {"train": "corpus"}, "There is text in corpus/train (de, en)"),
        ("my.yaml", {"target_lang": "en"}, "is also the source language"),
        ("my.yaml", {"device": "tpu"}, "--device: 'tpu'"),
    ):
        flags = {"train": "corpus/train", "source_lang": "en", "target_lang": "de"} | flags
        with pytest.raises(UsageError) as error:
            run_command("new", name, **flags)
        assert problem in str(error.value)
    assert [path.name for path in folder.iterdir()] == ["corpus"]


def test_mistakes_in_the_text(folder):
    pairs = demo_pairs(30)
    write_pairs(folder / "unequal", "train", pairs)
    write_lines(folder / "unequal" / "train.de", [pair[1] for pair in pairs[:-1]])
    write_pairs(folder / "latin", "train", pairs)
    (folder / "latin" / "train.de").write_bytes("Grüße\n".encode("latin1") * 30)
    write_pairs(folder / "wide", "train", pairs)
    (folder / "wide" / "train.de").write_bytes(("Hallo Welt.\n" * 30).encode("utf-16"))
    for name, problem in (
        ("unequal", "30 lines in unequal/train.en"),
        ("latin", "train.de, line 1: not UTF-8"),
        ("wide", "the encoding is UTF-16"),
    ):
        with pytest.raises(UserError, match=problem):
            make(train=f"{name}/train")
    assert not (folder / "my.yaml").exists()


# ---- Files near by ----


def test_which_files_are_parallel_text(folder):
    for name in (
        "train.de.bz2", "train.en.gz", "train.zh-CN.xz", "alone.de", "read.me", "code.py",
        "code.md", "both.tsv", "x.en", "x.en.gz", "2.5.de", "2.5.fr",
    ):  # fmt: skip
        (folder / name).touch()
    assert new.parallel_files(folder) == {
        str(folder / "train"): ["de", "en", "zh-CN"],
        str(folder / "both.tsv"): [],
        str(folder / "2.5"): ["de", "fr"],
    }


def test_a_file_name_stands_for_both_files(folder):
    write_pairs(folder / "corpus", "train", demo_pairs(100))
    write_pairs(folder / "other", "dev", demo_pairs(3))
    config = make(train="corpus/train.en", dev=folder / "other" / "dev.de", minutes=1)
    assert (config.data.train, config.data.dev) == ("train", "../other/dev")


# ---- Questions ----


QUICK = "from transformer_mt.training import recipe; recipe.MEASURED_SECONDS = 0.01"


def at_terminal(folder, *arguments, answers: list[str], before="") -> tuple[int, str]:
    """Runs the command at a terminal, and types an answer to each question that has a default.

    Args:
        before: Python that is run before it.

    Returns: the exit code, and what the terminal shows.
    """
    terminal, end = pty.openpty()
    program = (
        # The terminal, whose Ctrl-C is a signal, becomes that of the new session.
        "import os, sys; os.close(os.open(os.ttyname(0), os.O_RDWR)); "
        f"from transformer_mt import cli; {before or None}; sys.exit(cli.main())"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, "new", "my.yaml", *arguments, "--device", "cpu"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "TERM": "dumb"},
        stdin=end,
        stdout=end,
        stderr=end,
        start_new_session=True,
    )
    os.close(end)
    left, shown = list(answers), b""
    overdue = threading.Timer(TIMEOUT, process.kill)
    overdue.start()
    try:
        # Reading fails when the program has ended.
        with contextlib.suppress(OSError):
            while part := os.read(terminal, 1000):
                shown += part
                if left and shown.endswith(b"] "):  # the default
                    # Ctrl-C is noticed only once Python waits for a key.
                    time.sleep(0.3)
                    os.write(terminal, left.pop(0).encode())
        return process.wait(timeout=TIMEOUT), shown.decode()
    finally:
        overdue.cancel()
        process.kill()
        os.close(terminal)


def test_the_questions(folder):
    write_pairs(folder / "corpus", "train", demo_pairs(100))
    write_pairs(folder / "corpus", "valid", demo_pairs(9))
    answers = ["nothing\n", "\n", "en\n", "\n", "\n", "none\n", "soon\n", "1\n"]
    code, shown = at_terminal(folder, answers=answers, before=QUICK)
    assert code == 0, shown
    assert "There is text in corpus/train (de, en), corpus/valid (de, en)." in shown
    assert "nothing: there are no files nothing.LANGUAGE of two languages" in shown
    assert "[corpus/train]" in shown and "[de]" in shown and "[corpus/valid]" in shown
    assert "'soon': expected a number above 0" in shown
    data = config_file.load(folder / "my.yaml").data
    assert (data.root, data.train, data.dev, data.test) == ("corpus", "train", "valid", None)
    assert (data.source_lang, data.target_lang) == ("en", "de")


def test_no_answer(folder):
    write_pairs(folder / "corpus", "train", demo_pairs(100))
    code, shown = at_terminal(folder, answers=["\x04"])
    assert code == 2 and "nothing was written" in shown
    code, shown = at_terminal(folder, answers=["\x03"])
    assert code == 130 and "interrupted" in shown
    assert not (folder / "my.yaml").exists()


def test_replacing_is_asked(folder):
    write_pairs(folder / "corpus", "train", demo_pairs(3))
    (folder / "my.yaml").write_text("mine")
    code, shown = at_terminal(folder, answers=["\n"])
    assert code == 2 and "Replace it? [no]" in shown and "my.yaml was not changed" in shown
    code, shown = at_terminal(folder, answers=["yes\n", "\x04"])
    assert code == 2 and "Which is the training text" in shown
    assert (folder / "my.yaml").read_text() == "mine"
