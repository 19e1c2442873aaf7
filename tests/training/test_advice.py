"""Advice about runs that would be trained, but not as their users want."""

import pytest

from tests.support import ROOT, make_config
from transformer_mt.config import file as config_file
from transformer_mt.training.advice import advice

QUIET = {"lines": 0, "pairs": 0, "examples": []}
FACTS = {
    "pairs": 100_000,
    "dropped": {},
    "unknown_text": {},
    "source": {"vocabulary": 8000, "rare": 0.1, "unspaced_script": 0.0},
    "target": {"vocabulary": 8000, "rare": 0.1, "unspaced_script": 0.0},
    "dev": 1000,
    "test": 1000,
    "overlap": {"dev": QUIET, "test": QUIET},
    "copies": {"count": 0, "examples": []},
}
STEPS = {"max_steps": 1000, "warmup_steps": 200, "validate_every": 100, "save_every": 100}


def advised(
    tmp_path, facts=FACTS, subword=None, steps=1000, held_out=False, **training
) -> list[str]:
    data = {} if held_out else {"dev": "dev", "test": "test"}
    config = make_config(tmp_path, training=STEPS | training, subword=subword or {}, data=data)
    return advice(config, facts, steps)


def test_nothing_is_odd_about_the_recipes(tmp_path):
    assert advised(tmp_path) == []
    for path in (ROOT / "configs").glob("*.yaml"):
        config = config_file.load(path)
        if config.training.max_steps:
            assert advice(config, FACTS, config.training.max_steps) == [], path.name


@pytest.mark.parametrize(("training", "key", "advised_value"), [
    ({"warmup_steps": 1001}, "warmup_steps", 200),
    ({"decay_steps": 900, "schedule": "linear", "learning_rate": 0.1}, "decay_steps", 1000),
    ({"decay_steps": 1100, "schedule": "cosine", "learning_rate": 0.1}, "decay_steps", 1000),
    ({"validate_every": 1001}, "validate_every", 100),
    ({"average_last": 4, "save_every": 400}, "save_every", 250),
])  # fmt: skip
def test_numbers_that_do_not_fit_the_length_of_the_run(tmp_path, training, key, advised_value):
    (message,) = advised(tmp_path, **training)
    first = next(iter(training))
    assert message.startswith(f"training.{first}: {training[first]}")
    # What the message advises helps.
    assert str(advised_value) in message
    assert advised(tmp_path, **training | {key: advised_value}) == []


def rare(source: float, target: float) -> dict:
    sides = {"source": source, "target": target}
    return {name: FACTS[name] | {"rare": share} for name, share in sides.items()}


def unknown(share: float, name: str, *examples: str) -> dict:
    return {"unknown_text": {name: {"target": {"share": share, "examples": list(examples)}}}}


def held_out(count: int) -> dict:
    held = {"count": count, "examples": [["Yes.", "Ja."]]}
    return {"dropped": {"held out for dev or test": held}}


EPOCHS = {"max_steps": None, "max_epochs": 2}
BASE = {"init_from": "base"}
OVERLAP = {"dev": {"lines": 1, "pairs": 0}, "test": {"lines": 1000, "pairs": 2}}
LABELS = {"dev": {"lines": 1000, "pairs": 0}, "test": {"lines": 1000, "pairs": 0}}
LISTED = {"type": "vocabulary", "vocabulary": "types"}


@pytest.mark.parametrize(("facts", "options", "beginnings"), [
    # Numbers that just fit the length of the run.
    ({}, {"warmup_steps": 1000}, []),
    ({}, {"validate_every": 1000}, []),
    ({}, {"average_last": 4, "save_every": 250}, []),
    ({}, {"average_last": 4, "save_every": 300}, []),  # the last is saved at the end
    ({}, {"average_last": 1, "save_every": 5000}, []),
    ({}, EPOCHS | {"steps": 500}, []),
    ({}, EPOCHS | {"steps": 150}, ["training.warmup_steps"]),
    ({"dev": 0}, {"validate_every": 5000}, []),
    ({"dev": 0}, {"patience": 3}, ["training.patience: 3: there is no dev set"]),
    # Subwords that are too rare, unless they belong to a model that is trained before.
    (rare(0.5, 0.5), {}, []),
    (rare(0.51, 0.51), {}, ["subword.vocab_size: 51% of the 8,000 subwords occur less than 10"]),
    (rare(0.2, 0.8), {"subword": {"joint": False}}, ["subword.target_vocab_size: 80%"]),
    (rare(0.8, 0.8), BASE, []),
    (rare(0.8, 0.8), {"subword": LISTED}, ["subword.vocabulary: 80%"]),
    # Text of the tests that is trained on; labels of held-out pairs may be.
    ({"overlap": OVERLAP}, {}, ["data.dev: the source or the target of 1 of", "data.test: "]),
    ({"overlap": LABELS}, {"held_out": True}, []),
    (unknown(0.019, "train", "x"), {}, []),
    (unknown(0.021, "train", "x"), {}, ["data.train: 2.1%"]),
    (unknown(0.5, "train", "x"), BASE, ["data.train: 50%"]),
    (unknown(0.5, "test", "e", "U+0301"), {}, ["data.test: 50%"]),
    (held_out(3000), {"held_out": True}, []),
    (held_out(3001), {"held_out": True}, ["data.held_out: 2,000 pairs"]),
    ({"copies": {"count": 99}}, {}, []),
    ({"copies": {"count": 1_500}}, {}, ["data.train: in 1,500 pairs (1.5%), the target is a copy"]),
])  # fmt: skip
def test_what_is_odd_about_the_text(tmp_path, facts, options, beginnings):
    messages = advised(tmp_path, FACTS | facts, **options)
    assert len(messages) == len(beginnings)
    assert all(map(str.startswith, messages, beginnings)), messages


def test_codes_of_languages(tmp_path):
    def messages(language: str, unspaced: float) -> list[str]:
        facts = FACTS | {"target": FACTS["target"] | {"unspaced_script": unspaced}}
        data = {"dev": "dev", "test": "test", "target_lang": language}
        return advice(make_config(tmp_path, training=STEPS, data=data), facts, 1000)

    assert messages("chi", 1.0) == messages("de", 0.1) == []
    assert messages("cn", 1.0) == ["data.target_lang: cn is taken for zh, the code of the language"]
    (message,) = messages("xx", 0.9)
    assert message.startswith("data.target_lang: the text is in a script without spaces")
    assert "xx is no" in message


def of_model(tmp_path, precision, **model) -> list[str]:
    config = make_config(tmp_path, training=STEPS | {"precision": precision}, model=model)
    on_a_cpu = advice(config, FACTS, 1000)
    assert on_a_cpu == []
    return advice(config, FACTS, 1000, on_gpu=True)


@pytest.mark.parametrize(("heads", "d_model", "key", "value"), [
    (8, 96, "num_heads", 6),  # width 12; 16 fits
    (1, 512, "num_heads", 2),  # wider than 256
    (4, 100, "d_model", 96),  # no number of heads of 100 fits
])  # fmt: skip
def test_heads_that_the_fused_attention_does_not_take(tmp_path, heads, d_model, key, value):
    sizes = {"num_heads": heads, "d_model": d_model}
    assert of_model(tmp_path, "float32", **sizes) == []
    (message,) = of_model(tmp_path, "bfloat16", **sizes)
    assert f"head has width {d_model // heads}," in message and f"{key} {value}" in message
    assert of_model(tmp_path, "float16", **sizes | {key: value}) == []


def test_layers_whose_weights_are_read_have_no_fused_attention(tmp_path):
    (message,) = of_model(tmp_path, "bfloat16", copying=True, num_heads=2, d_model=32)
    assert "decoder layer 1 is" in message and "copying" in message
