"""`new` writes a recipe that fits the text, which trains without a warning."""

import os
from functools import partial
from pathlib import Path

import pytest
import yaml

from tests.support import ROOT, demo_pairs, run_command, write_lines, write_pairs
from transformer_mt.commands import new
from transformer_mt.config import file as config_file
from transformer_mt.training import run
from transformer_mt.training.advice import advice
from transformer_mt.training.recipes import plan, timing
from transformer_mt.training.recipes.draft import FEWEST_STEPS, Draft
from transformer_mt.training.recipes.sizes import SIZES
from transformer_mt.training.recipes.text import GREAT_LENGTH
from transformer_mt.utils.errors import UsageError, UserError

PLACE = {"model_dir": "runs/my", "root": "corpus", "train": "train", "dev": None, "test": None}
PLACE |= {"source_lang": "en", "target_lang": "de"}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    """The current folder, with a small text. Speeds are measured in a moment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(timing, "MEASURED_SECONDS", 0.01)
    monkeypatch.setattr(run, "seconds_per_step", partial(run.seconds_per_step, seconds=0.01))
    write_pairs(tmp_path / "corpus", "train", demo_pairs(300))
    return tmp_path


def make(*arguments, languages=("en", "de"), **flags):
    """Writes my.yaml, and returns its config."""
    source, target = languages
    flags = {"device": "cpu", "source_lang": source, "target_lang": target} | flags
    run_command("new", "my.yaml", *arguments, **{"train": "corpus/train", "minutes": 1, **flags})
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
    assert "dev pairs       500" in check_without_warning(capsys)
    # It says what is in the file.
    assert f"{config.training.max_steps:,} steps" in said
    assert f"{config.subword.vocab_size:,}, shared" in said
    assert f"d_model {config.model.d_model}" in said


def test_a_text_with_tags(folder, capsys):
    """They are protected if the text has some, and the vocabulary has room for their symbols."""
    pairs = demo_pairs(400)
    write_pairs(folder / "corpus", "train", pairs)
    assert make().data.protect == []
    tagged = [(f"<b>{a}</b>", f"<b>{b}</b>") for a, b in pairs[:4]]
    write_pairs(folder / "corpus", "train", tagged + pairs[4:])
    config = make("--force")
    assert "tags" in config.data.protect and "numbers" not in config.data.protect
    assert "1.0% of the pairs" in capsys.readouterr().out
    assert "unmatched" not in check_without_warning(capsys)


def test_a_text_with_long_sentences(folder, capsys):
    """They are read if there are several, and not left out."""
    pairs = demo_pairs(300)
    long = [tuple(" ".join([text] * 60) for text in pair) for pair in pairs[:20]]
    write_pairs(folder / "corpus", "train", long + pairs[20:])
    config = make()
    assert config.data.max_length == GREAT_LENGTH
    assert "pairs of up to 512 subwords" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("device", "width", "has_bfloat16", "precision"),
    [
        ("cpu", 256, True, "float32"), ("cpu", 512, True, "bfloat16"),
        ("cpu", 512, False, "float32"), ("gpu:0", 128, True, "bfloat16"),
        ("gpu:0", 128, False, "float32"),
    ],
)  # fmt: skip
def test_the_precision(monkeypatch, device, width, has_bfloat16, precision):
    monkeypatch.setattr(plan, "has_bfloat16", lambda used: has_bfloat16)
    (size,) = {size.d_model: size for size in SIZES if size.d_model == width}.values()
    assert plan._precision(size, device) == precision


def test_a_small_tsv_file(capsys, folder):
    write_lines(folder / "my pairs.tsv", ("\t".join(pair) for pair in demo_pairs(50)))
    config = make(train="my pairs.tsv")
    assert (config.data.root, config.data.train) == (".", "my pairs.tsv")
    assert config.data.dev is config.data.test is None
    assert "dev pairs       5" in check_without_warning(capsys)


def test_more_time_gives_more_steps_and_odd_text_is_reported(folder, capsys):
    """A text of 300 pairs is seen often enough within minutes."""
    pairs = demo_pairs(150)
    write_pairs(folder / "corpus", "train", pairs + [(pair[0], pair[0]) for pair in pairs])
    write_pairs(folder / "other", "dev", pairs[:20])
    # The name of a file stands for both.
    config = make(train="corpus/train.en", dev=folder / "other" / "dev.de", minutes=0.05)
    assert (config.data.train, config.data.dev) == ("train", "../other/dev")
    messages = capsys.readouterr().err
    assert "warning: data.dev" in messages and "is a copy of the source" in messages
    with pytest.raises(UsageError, match="--force"):
        make()
    longer = make("--force", minutes=600)
    most = longer.training.max_steps
    assert config.training.max_steps < most and most > 0.9 * FEWEST_STEPS
    assert most <= FEWEST_STEPS
    assert (config.consistency.method, longer.consistency.method) == (None, "r_drop")


# ---- The values ----


@pytest.mark.parametrize("most", [1, 7, 59, 100, 119, 999, 1000, 1234, 6250, 99_999, 1_234_567])
def test_any_number_of_steps(most):
    draft = Draft(Path("my.yaml"), PLACE)
    draft.set_steps(most)
    config = draft.config()
    assert 0.9 * most <= config.training.max_steps <= most
    side = {"rare": 0.0, "vocabulary": 10, "unspaced_script": 0.0}
    overlap = {name: {"lines": 0} for name in ("dev", "test")}
    facts = {"source": side, "target": side, "overlap": overlap, "dev": 10, "pairs": 100}
    facts |= {"dropped": {}, "unknown_text": {}, "copies": {"count": 0}, "test": 10}
    assert advice(config, facts, config.training.max_steps) == []
    assert config.training.max_steps // config.training.validate_every <= 12 or most < 120


@pytest.mark.parametrize(
    ("pairs", "hours", "size"),
    [
        (1000, 0.1, (128, 2)), (1000, 1000, (128, 2)),
        (40_000, 0.1, (128, 4)), (40_000, 1000, (128, 4)),
        (160_000, 0.5, (128, 4)), (160_000, 1, (192, 4)), (160_000, 1000, (256, 4)),
        (2_000_000, 1, (128, 2)), (2_000_000, 1000, (512, 6)),
    ],
)  # fmt: skip
def test_a_larger_model_needs_text_and_time(pairs, hours, size):
    """Of the models that the text is enough for, the largest that sees it often enough."""

    def measure(size):
        step = size.num_layers * size.d_model**2 / 1e6
        return timing.Timing(size, "cpu", step, 60, pairs // 100, int(3600 * hours / step))

    draft = Draft(Path("my.yaml"), PLACE)
    lines = plan.choose_size(draft, pairs, measure)
    model = draft.config().model
    assert (model.d_model, model.num_layers) == size and f"d_model {size[0]}," in lines[0]


def test_a_recipe_has_the_keys_of_the_template():
    template = yaml.safe_load((ROOT / "configs" / "template.yaml").read_text("utf-8"))
    own = yaml.safe_load(Draft(Path("my.yaml"), PLACE).text())
    assert {name: list(values) for name, values in own.items() if name != "model_dir"} == {
        name: list(values) for name, values in template.items() if name != "model_dir"
    }


@pytest.mark.parametrize("text", ["no", "1e3", "a: b", "a #b", "x$", "a\nb", "ü 'q' \"", "x" * 300])
def test_any_name_is_written_as_yaml(text):
    place = {key: value and text for key, value in PLACE.items()} | {"target_lang": f"{text}x"}
    config = Draft(Path(text), place).config()
    assert (config.model_dir, config.data.root, config.data.train) == (text, text, text)
    assert (config.data.source_lang, config.data.target_lang) == (text, f"{text}x")


# ---- Mistakes ----


@pytest.mark.parametrize(
    ("name", "flags", "problem"),
    [
        ("my.txt", {}, "ends in .yaml"),
        ("none/my.yaml", {}, "there is no folder none"),
        ("my.yaml", {"train": "corpus/text"}, "data.train: there is no file text.en"),
        ("my.yaml", {"train": "none/train"}, "data.root: none: there is no such folder"),
        ("my.yaml", {"dev": "corpus/dev"}, "data.dev: there is no file dev.en"),
        ("my.yaml", {"target_lang": "fr"}, "there is no file train.fr"),
        ("my.yaml", {"train": "corpus"}, "There is text in corpus/train (de, en)"),
        ("my.yaml", {"target_lang": "en"}, "is also the source language"),
        ("my.yaml", {"device": "tpu"}, "--device: 'tpu'"),
        # Without a terminal, nothing can be asked.
        ("my.yaml", {"train": None, "target_lang": None},
         "--train, --target-lang: not given. There is text in corpus/train (de, en)"),
    ],
)  # fmt: skip
def test_mistakes_in_the_arguments(folder, name, flags, problem):
    flags = {"train": "corpus/train", "source_lang": "en", "target_lang": "de"} | flags
    with pytest.raises(UsageError) as error:
        run_command("new", name, **flags)
    assert problem in str(error.value)
    assert [path.name for path in folder.iterdir()] == ["corpus"]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("Hallo.\n" * 29, "300 lines in corpus/train.en"),
        ("Grüße\n".encode("latin1") * 300, "train.de, line 1: not UTF-8"),
        (("Hallo Welt.\n" * 300).encode("utf-16"), "the encoding is UTF-16"),
    ],
)
def test_mistakes_in_the_text(folder, content, problem):
    content = content if isinstance(content, bytes) else content.encode()
    (folder / "corpus" / "train.de").write_bytes(content)
    with pytest.raises(UserError, match=problem):
        make()
    assert not (folder / "my.yaml").exists()


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
    assert new.parallel_files(folder / "none") == {}


# ---- Questions ----


def ask(monkeypatch, answers):
    """Runs the command as at a terminal. Returns the questions."""
    questions, answers = [], iter(answers)

    def answer(question):
        questions.append(question)
        try:
            return next(answers)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr(new, "at_terminal", lambda: True)
    monkeypatch.setattr("builtins.input", answer)
    run_command("new", "my.yaml", device="cpu")
    return questions


def test_the_questions(folder, monkeypatch, capsys):
    write_pairs(folder / "corpus", "valid", demo_pairs(9))
    answers = ["nothing", "", "en", "", "", "none", "soon", "1"]
    questions = "\n".join(ask(monkeypatch, answers))
    for default in ("corpus/train", "de", "corpus/valid", "none", "60"):
        assert f"[{default}]" in questions
    messages = capsys.readouterr().err
    assert "There is text in corpus/train (de, en), corpus/valid (de, en)" in messages
    assert "nothing: there are no files" in messages and "'soon': expected a number" in messages
    data = config_file.load(folder / "my.yaml").data
    assert (data.root, data.train, data.dev, data.test) == ("corpus", "train", "valid", None)
    assert (data.source_lang, data.target_lang) == ("en", "de")
