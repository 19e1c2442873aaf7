"""Configs and flags of all sorts: each is refused in few words, or works."""

import random

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import ROOT
from transformer_mt.config import file as config_file
from transformer_mt.config.decoding import SEARCH_KEYS
from transformer_mt.config.schema import SECTIONS
from transformer_mt.utils.errors import UsageError

TEXT = (ROOT / "configs" / "demo.yaml").read_bytes()
DEMO = yaml.safe_load(TEXT)
WORDS = ["null", "true", "1e-9", "0x10", "1_000", "~", "bpe", "../..", "\x1b[31m", "\0"]
ODD = st.one_of(
    *(st.none(), st.booleans(), st.integers(-(10**400), 10**400), st.integers(-2, 12)),
    *(st.floats(), st.text(max_size=30), st.lists(st.integers(), max_size=3)),
    *(st.dictionaries(st.text(max_size=5), st.integers(), max_size=2), st.sampled_from(WORDS)),
)
KEYS = st.sampled_from([(name, key) for name in SECTIONS for key in SECTIONS[name].model_fields])
PATHS = st.one_of(KEYS, st.tuples(st.sampled_from([*SECTIONS, "lr", "x"]), st.text(max_size=10)))
CHANGES = st.lists(st.tuples(PATHS, ODD), min_size=1, max_size=6)
OVERRIDES = st.tuples(PATHS, st.one_of(ODD.map(str), st.text()))
MOST_WORDS = 6_000  # characters of an answer


def is_refused_or_returned(path, overrides=()):
    try:
        config = config_file.load(path, list(overrides))
    except UsageError as error:
        assert 0 < len(str(error)) < MOST_WORDS, error
        return
    again = path.with_name("again.yaml")
    again.write_text(config_file.dump(config), encoding="utf-8")
    assert config_file.load(again) == config


def test_values_of_all_sorts(tmp_path, is_large):
    path, demo = tmp_path / "config.yaml", tmp_path / "demo.yaml"
    demo.write_bytes(TEXT)

    @settings(max_examples=1500 if is_large else 40)
    @given(CHANGES, st.lists(OVERRIDES, min_size=1, max_size=4))
    def attack(changes, overrides):
        values = {name: dict(v) if isinstance(v, dict) else v for name, v in DEMO.items()}
        for (section, key), value in changes:
            values.setdefault(section, {})[key] = value
        path.write_text(yaml.safe_dump(values, allow_unicode=True), encoding="utf-8")
        is_refused_or_returned(path)
        is_refused_or_returned(demo, [f"{s}.{key}={value}" for (s, key), value in overrides])

    attack()


NUMBERS = ["0", "1", "2", "40", "1000", "1001", "-1", "0.5", "1e-38", "1e308", "nan", "inf", "500"]
NUMBERS += ["9" * 5000, "", "x", "null", "true", "2147483648", "1e-9", "100", "gnmt", "average"]


@pytest.mark.parametrize("engine", ["paddle", "ctranslate2", "paddle_inference"])
def test_flags_of_all_sorts(driver, model, engine, is_large):
    drawn = random.Random(engine)
    names = [name for name in SEARCH_KEYS if name != "batch_tokens"]
    for _ in range(400 if is_large else 20):
        flags = []
        for name in drawn.sample(names, drawn.randrange(1, 4)):
            value = "" if name == "sampling" else f"={drawn.choice(NUMBERS)}"
            flags.append(f"--{name.replace('_', '-')}{value}")
        options = "--engine", engine, "--format", "jsonl", "--threads", 1, *flags
        answer = driver.run("translate", model, *options, stdin=b"A dog runs.\n\nA\n")
        answer.require_clear()
        assert answer.code != 1, answer.stderr
        assert answer.code or answer.stdout.count("\n") == 3, flags
