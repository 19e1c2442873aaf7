"""Every mistake in a config is told with its path, its value and what was expected, all at once."""

import contextlib
import re
import subprocess
import sys
from functools import reduce
from operator import getitem
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.support import examples
from transformer_mt.config import file as config_file
from transformer_mt.config.problems import OTHER_NAMES
from transformer_mt.config.schema import SECTIONS, Config
from transformer_mt.utils.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]

VALID = """\
model_dir: runs/x
data: {root: text, source_lang: en, target_lang: de}
training: {max_steps: 10}
"""


def test_a_valid_config_and_its_defaults(load):
    config = load(VALID)
    assert config.model_dir == "runs/x"
    assert (config.data.root, config.data.source_lang) == ("text", "en")
    assert config.training.max_steps == 10 and config.training.max_epochs is None
    # The paper's base model.
    assert (config.model.num_layers, config.model.d_model, config.model.num_heads) == (6, 512, 8)
    assert config.training.betas == [0.9, 0.98] and config.training.epsilon == 1e-9


# ------------------------------------------------------------------------------ single problems


@pytest.mark.parametrize(
    "override, expected",
    [
        # unknown keys, and the nearest known one
        ("model.num_head=8", "model.num_head: unknown key; did you mean model.num_heads?"),
        # a name that pydantic has for itself
        ("data.cls=1", "data.cls: unknown key; known keys: dataset, root, train, dev, test,"),
        ("model.beam_size=4", "model.beam_size: unknown key; did you mean decoding.beam_size?"),
        # names that other toolkits have for it
        ("training.lr=1", "training.lr: unknown key; did you mean training.learning_rate?"),
        ("model.heads=4", "model.heads: unknown key; did you mean guided_attention.heads or"),
        # what would disturb a terminal
        ("decoding.\x1b[31m=1", "decoding.\\x1b[31m: unknown key; known keys: beam_size,"),
        ("data.root.x=3", "data.root.x: unknown key; did you mean data.root?"),
        ("decoding.zzz=3", "decoding.zzz: unknown key; known keys: beam_size, length_penalty,"),
        # not of the form section.key=value
        ("model=3", "model: a section; give one of its keys, as in model.num_layers=..."),
        ("=3", "'=3': expected section.key=value, as in training.max_steps=1000"),
        # wrong types
        ("training.max_steps=abc", "training.max_steps: 'abc': expected a whole number"),
        ("training.max_steps=[1]", "training.max_steps: [1]: expected a whole number"),
        ("training.max_steps=1_000", "training.max_steps: '1_000': expected a whole number"),
        ("training.betas=[0.9,0.98,1]", "training.betas: [0.9, 0.98, 1]: List should have at"),
        ("training.betas=[0.9,1.0]", "training.betas.1: 1.0: expected at most 0.999999"),
        ("model.bias=yes", "model.bias: 'yes': expected true or false"),
        ("model.norm=middle", "model.norm: 'middle': expected 'pre' or 'post'"),
        ("model_dir=", "model_dir: '': expected at least 1 character"),
        # out of range
        ("training.max_steps=0", "training.max_steps: 0: expected greater than 0"),
        ("model.dropout=1", "model.dropout: 1: expected less than 1"),
        ("training.learning_rate=1e999", "training.learning_rate: inf: expected a finite number"),
        (f"training.learning_rate={'9' * 5000}", "training.learning_rate: '999"),
        (f"training.max_steps=-{'9' * 5000}", "training.max_steps: '-999"),
        ("subword.vocab_size=4", "subword.vocab_size: 4: expected greater than 4"),
        # so large or small that arithmetic or memory would break
        ("decoding.length_penalty=500", "decoding.length_penalty: 500: expected at most 10"),
        ("decoding.temperature=1e-38", "decoding.temperature: 1e-38: expected at least 0.001"),
        ("training.epsilon=1e-40", "training.epsilon: 1e-40: expected at least 0.0000"),
        # combinations
        ("model.num_heads=7", "model.num_heads: 7: must divide model.d_model (512)"),
        ("data.target_lang=en", "data.target_lang: 'en': must differ from data.source_lang"),
        ("data.root=null", "data.root: null: data.dataset: files needs the folder that holds"),
        ("training.max_steps=null", "training.max_epochs: null: give training.max_steps or"),
        ("training.schedule=inverse_sqrt", "training.learning_rate: null: schedule"),
        ("training.warmup_steps=0", "training.warmup_steps: 0: schedule noam needs at least 1"),
        ("training.weight_decay=0.1", "training.weight_decay: 0.1: needs training.optimizer:"),
        ("training.optimizer=muon;training.sharding=true", "training.sharding: True: needs"),
        # The last one holds.
        ("training.max_steps=3;training.max_steps=none", "training.max_steps: 'none': expected a"),
        ("subword.source_vocab_size=500", "subword.source_vocab_size: 500: needs"),
        ("subword.type=vocabulary", "subword.vocabulary: null: subword.type: vocabulary needs"),
        ("data.dataset=wmt14ende", "data.dataset: 'wmt14ende': needs subword.type: vocabulary"),
    ],
)
def test_a_mistake_is_told_with_path_value_and_what_was_expected(problems, override, expected):
    count, problem = problems(VALID, *override.split(";"))
    assert count == ": 1 problem" and problem.startswith(expected)


@pytest.mark.parametrize(
    "sections, expected",
    [
        ("model: {num_head: 8}", "model.num_head: unknown key; did you mean model.num_heads?"),
        ("modle: {num_heads: 8}", "modle: unknown key; did you mean model?"),
        ("model: 8", "model: 8: expected a section with keys of its own"),
        ("model:", "model: null: expected a section with keys of its own"),
        ("model: {d_ff: '8'}", "model.d_ff: '8': expected a whole number"),
        ("model: {d_ff: 2020-01-01}", "model.d_ff: '2020-01-01': expected a whole number"),
        ("model: {dropout: .nan}", "model.dropout: '.nan': expected a number"),
        ("training.seed: 600", "training.seed: unknown key; in a file, write seed below training:"),
        # Given by neither side, so that only the defaults clash.
        ("model: {d_model: 100}", "model.num_heads: 8: must divide model.d_model (100)"),
    ],
)
def test_a_mistake_in_the_file(problems, sections, expected):
    assert problems(VALID + sections) == [": 1 problem", expected]


def test_missing_sections_and_keys(problems):
    assert problems("model_dir: x") == [
        ": 2 problems",
        "data: missing; it must be given (see docs/config.md)",
        "training: missing; it must be given (see docs/config.md)",
    ]
    keys = [line.split(": ")[0] for line in problems("data: {root: x}\ntraining: {max_steps: 1}")]
    assert keys[1:] == ["model_dir", "data.source_lang", "data.target_lang"]


def test_all_problems_at_once(problems):
    """A mistake hides no other: not in another section, nor in the same, nor in an override."""
    text = """\
model_dir: 3
data: {dataset: wmt14ende, source_lang: en, target_lang: en, tran: x, max_length: -1}
subword: {vocab_size: many}
model: {d_model: 100, num_heads: 7, d_ff: x}
training: {max_stps: 10, schedule: constant}
decoding: 5
foo: 3
"""
    found = problems(text, "model.nope=3", "trainig.seed=3", "training.betas=x")
    expected = """
        model_dir data.target_lang data.tran data.max_length subword.vocab_size data.dataset
        model.num_heads model.d_ff model.nope training.max_stps training.max_epochs
        training.learning_rate training.betas trainig.seed decoding foo
    """
    assert sorted(line.split(": ")[0] for line in found[1:]) == sorted(expected.split())
    assert found[0] == ": 16 problems"


def test_a_value_that_holds_itself_many_times(problems):
    """Some hundred characters of YAML stand for 10^30 values."""
    text = "x0: &x0 [0, 0]\n"
    for i in range(100):
        text += f"x{i + 1}: &x{i + 1} [*x{i}, *x{i}]\n"
    found = problems(text + VALID + "model: *x100\n")
    assert len("\n".join(found)) < 5000
    (line,) = problems("x: &x [*x]\n" + VALID + "model: *x\n")[2:]
    assert "model: [[" in line or "x: unknown key" in line


def test_nothing_that_is_printed_disturbs_a_terminal(problems):
    """YAML can write any character, and so can whoever wrote the file."""
    text = VALID + '"\\e[31m\\u202e": 1\nmodel: {"\\0": 1, norm: "\\e]0;\\a"}\nsubword: "\\x9b"\n'
    text += 'decoding: {"\\n": 1}\n'
    found = problems(text)
    assert found[0] == ": 5 problems" and len(found) == 6
    assert all(line.isprintable() for line in found)
    for content in ('a: !!int "\\e"', "a: !<\x7f> 3", '"\\e": 1\n"\\e": 2', "a: !%1b%5b x"):
        assert all(line.isprintable() for line in problems(content)), content


def test_the_names_of_other_toolkits_stand_for_keys_that_there_are():
    for name, key in OTHER_NAMES.items():
        section, _, own = key.partition(".")
        assert key == "model_dir" or own in SECTIONS[section].model_fields, (name, key)


# -------------------------------------------------------------------------------- not a config


@pytest.mark.parametrize(
    "content, expected",
    [
        ("", ": expected `model_dir` and the sections data, subword, model, training, "),
        ("- model_dir: x", ": expected `model_dir` and the sections"),
        ("model_dir: a: b", ", line 1, column 13: not valid YAML: mapping values are not allowed"),
        ("a:\n  b:1\n  c: 2", "here. Is a space missing after a colon, here or in the line above?"),
        ("a: 1\n\tb: 2", ", line 2, column 1: not valid YAML: found character"),
        ("a: [1", "not valid YAML: expected ',' or ']'"),
        (b"a: 1\nb: \xe9\n", ", line 2: not UTF-8"),
        (VALID.encode("utf-16"), ", line 1: not UTF-8"),
        (b"a: 1\n\nb: \x1b[3m", ": not valid YAML: unacceptable character #x001b"),
        ("a: " + "[" * 1500, ": not valid YAML: maximum recursion depth"),
        ("a: 1\nb: 2\na: 3", ", line 3, column 1: not valid YAML: the key 'a' is given twice"),
        ("1: x", ", line 1, column 1: not valid YAML: a key must be text, not '1'"),
        ("[x]: y", ", line 1, column 1: not valid YAML: a key must be text, not a list"),
        ("a: 1\n---\nb: 2", ", line 2, column 1: not valid YAML: but found another document"),
        ("a: !!python/name:os.system", "not valid YAML: could not determine a constructor"),
        ("a: !!int x", ", line 1, column 4: not valid YAML: not a int"),
        ("a: !!float [x]", ", line 1, column 4: not valid YAML: expected a scalar node"),
        ("a: *" + "n" * 5000, ", line 1, column 4: not valid YAML: found undefined alias 'nnn"),
        ("a: {<<: 3}", "not valid YAML: expected a mapping or list of mappings for merging"),
    ],
)
def test_what_is_no_config_says_where(problems, content, expected):
    (line,) = problems(content)
    assert expected in line and len(line) < 300


def test_a_missing_file_and_a_folder(tmp_path):
    with pytest.raises(UsageError, match=r"no\.yaml: there is no such config file"):
        config_file.load(tmp_path / "no.yaml")
    with pytest.raises(UsageError, match=r"can't be read as a config: .*directory"):
        config_file.load(tmp_path)


# --------------------------------------------------------------------------------- YAML's types


def test_numbers_and_words_are_as_people_mean_them(load):
    config = load("""\
model_dir: 2020-01-01
data: {root: off, source_lang: no, target_lang: 'on', train: y, cache: 1_000}
model: {dropout: .5, attention_dropout: 1e-3, bias: FALSE}
training: {max_steps: 010, epsilon: 1e-9, learning_rate: 5, weight_decay: 0., clip_norm: 1E+1}
""")
    assert config.model_dir == "2020-01-01"
    assert (config.data.source_lang, config.data.target_lang) == ("no", "on")
    assert (config.data.root, config.data.train, config.data.cache) == ("off", "y", "1_000")
    assert (config.model.dropout, config.model.attention_dropout) == (0.5, 0.001)
    assert config.model.bias is False
    assert (config.training.max_steps, config.training.epsilon) == (10, 1e-9)
    assert (config.training.learning_rate, config.training.clip_norm) == (5.0, 10.0)


# ------------------------------------------------------------------------------------ overrides


@pytest.mark.parametrize(
    "override, value",
    [
        ("data.root=123", "123"),
        ("data.train=null", "null"),
        ("data.dev=null", None),
        ("data.dev=no", "no"),
        ("model_dir=1e3", "1e3"),
        ("training.betas=[ 0.8 , 0.9 ]", [0.8, 0.9]),
        ("training.epsilon=1e-9", 1e-9),
        ("training.learning_rate=1", 1.0),
        ("training.clip_norm=null", None),
        ("model.bias=false", False),
        ("evaluation.tokenize=none", "none"),
        ("decoding.beam_size=2", 2),  # a section that the file does not have
    ],
)
def test_overrides_have_the_types_of_the_schema(load, override, value):
    config = load(VALID, override)
    for name in override.partition("=")[0].split("."):
        config = getattr(config, name)
    assert config == value and type(config) is type(value)


# ----------------------------------------------------------------------------------- round trip

small = st.integers(5, 2**31 - 1)
vocabulary = st.integers(5, 10_000_000)
share = st.floats(0, 1, exclude_max=True)
positive = st.floats(0, exclude_min=True, allow_infinity=False)
# Text that some reader of YAML takes for something else, and any other.
CONFUSING = (
    "no off y 1e5 1e-9 08 010 0x1f 1_000 12:30 .inf nan ~ null true = << 2020-01-01 - ? #x &a *a !x"
    " [a] {b} 'c' %d @e `f : -1 1. .5 \ufeff \x85 \u2028 \r\n \x00 a:b >"
)
text = st.text(min_size=1) | st.sampled_from(CONFUSING.split(" "))
# Not a path that is expanded: the round trip of those has its own tests.
path = text.filter(lambda path: not path.startswith("~") and "$" not in path)


@st.composite
def configs(draw):
    source_lang, target_lang = draw(st.lists(text, min_size=2, max_size=2, unique=True))
    heads = draw(st.integers(1, 1000))
    joint = draw(st.booleans())
    values = {
        "model_dir": draw(path),
        "data": {
            "root": draw(path | st.just("")),
            "dev": draw(st.none() | path),
            "source_lang": source_lang,
            "target_lang": target_lang,
        },
        "subword": {
            "type": draw(st.sampled_from(["bpe", "unigram", "char", "word"])),
            "vocab_size": draw(vocabulary),
            "joint": joint,
            "source_vocab_size": None if joint else draw(st.none() | vocabulary),
        },
        "model": {
            "num_heads": heads,
            "d_model": heads * draw(st.integers(1, 50)),
            "dropout": draw(share),
        },
        "training": {
            "max_steps": draw(small),
            "max_epochs": draw(st.none() | small),
            "learning_rate": draw(st.floats(0, 100, exclude_min=True)),
            "betas": draw(st.lists(st.floats(0, 0.999), min_size=2, max_size=2)),
            "clip_norm": draw(st.none() | positive),
        },
        "evaluation": {"tokenize": draw(st.sampled_from([None, "none", "13a", "zh"]))},
    }
    return Config.model_validate(values)


@settings(max_examples=examples(40, 100))
@given(config=configs())
def test_dump_then_load_gives_the_same_config(config, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "round_trip.yaml"
    text = config_file.dump(config)
    path.write_text(text, encoding="utf-8")
    assert config_file.load(path) == config
    # Other readers of YAML, which follow version 1.1, see the same.
    assert yaml.safe_load(text) == config.model_dump()


@settings(max_examples=examples(40, 100))
@given(config=configs())
def test_what_a_config_changes_is_enough_to_make_it_again(config):
    changed = config_file.changed(config)
    values = {}
    for name, value in changed.items():
        section, _, key = name.rpartition(".")
        (values.setdefault(section, {}) if section else values)[key] = value
    assert Config.model_validate(values) == config
    # Without a key of it, the config is another one, or none.
    for name in changed:
        section, _, key = name.rpartition(".")
        within = values[section] if section else values
        value = within.pop(key)
        with contextlib.suppress(ValidationError):
            assert Config.model_validate(values) != config, name
        within[key] = value


# ------------------------------------------------------------------------------- from the shell


def test_nothing_heavy_is_imported():
    code = (
        "import sys, transformer_mt.config.file as c; c.load(sys.argv[1])\n"
        "print(sorted({'paddle', 'paddlenlp', 'numpy', 'sentencepiece', 'sacrebleu', 'datasets'}"
        " & set(sys.modules)))"
    )
    command = [sys.executable, "-c", code, str(ROOT / "configs" / "demo.yaml")]
    assert subprocess.check_output(command, cwd=ROOT, text=True) == "[]\n"


# ---- Paths ----


def test_home_and_variables_are_expanded_in_every_path(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("SCRATCH", "scratch")
    seen: list[dict] = []
    # Not all of these keys go together, but the paths are expanded before that is found.
    with contextlib.suppress(UsageError):
        overrides = [f"{key}=~/${{SCRATCH}}/$SCRATCH" for key in config_file.PATHS]
        config_file.parse("data: {source_lang: en}", "x", overrides, seen.append)
    assert [reduce(getitem, key.split("."), seen[0]) for key in config_file.PATHS] == [
        "/home/me/scratch/scratch"
    ] * len(config_file.PATHS)


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("$NOWHERE_AT_ALL/x", "the environment variable $NOWHERE_AT_ALL is not set"),
        ("${NOWHERE_AT_ALL}", "the environment variable ${NOWHERE_AT_ALL} is not set"),
        ("~no-such-user-at-all/x", "no such user"),
    ],
)
def test_a_path_that_can_not_be_expanded_is_refused(path, problem):
    text = "model_dir: x\ndata: {root: text, source_lang: en, target_lang: de}\n"
    text += "training: {max_steps: 1}"
    with pytest.raises(UsageError, match=re.escape(problem)):
        config_file.parse(text, "x", [f"model_dir={path}"])
    config = config_file.parse(text, "x", ["model_dir=./~/x", "data.train=~cost$"])
    assert (config.model_dir, config.data.train) == ("./~/x", "~cost$")


@pytest.mark.parametrize("key", ["model_dir", "data.root", "training.init_from"])
def test_names_that_are_not_utf8(key):
    """A recipe is UTF-8, so they can't be kept in it."""
    text = "model_dir: x\ndata: {root: text, source_lang: en, target_lang: de}\n"
    text += "training: {max_steps: 1}\n"
    with pytest.raises(UsageError, match=f"{key}: .*udcff': not UTF-8"):
        config_file.parse(text, "x", [f"{key}=a\udcff"])
