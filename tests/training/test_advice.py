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


@pytest.mark.parametrize("at_the_limit", [
    {"warmup_steps": 1000},
    {"validate_every": 1000},
    {"average_last": 4, "save_every": 250},
    {"average_last": 4, "save_every": 300},  # the last is saved at the end
    {"average_last": 1, "save_every": 5000},
])  # fmt: skip
def test_numbers_that_just_fit(tmp_path, at_the_limit):
    assert advised(tmp_path, **at_the_limit) == []


def test_the_steps_may_come_from_the_epochs(tmp_path):
    own = {"max_steps": None, "max_epochs": 2}
    assert advised(tmp_path, steps=500, **own) == []
    assert len(advised(tmp_path, steps=150, **own)) == 1


def test_without_a_dev_set(tmp_path):
    facts = FACTS | {"dev": 0}
    assert advised(tmp_path, facts, validate_every=5000) == []
    (message,) = advised(tmp_path, facts, patience=3)
    assert message.startswith("training.patience: 3: there is no dev set")


def rare(source: float, target: float) -> dict:
    sides = {"source": source, "target": target}
    return FACTS | {name: FACTS[name] | {"rare": share} for name, share in sides.items()}


def test_subwords_that_are_too_rare(tmp_path):
    assert advised(tmp_path, rare(0.5, 0.5)) == []
    (message,) = advised(tmp_path, rare(0.51, 0.51))
    assert message.startswith("subword.vocab_size: 51% of the 8,000 subwords occur less than 10")
    (message,) = advised(tmp_path, rare(0.2, 0.8), {"joint": False})
    assert message.startswith("subword.target_vocab_size: 80%")
    # They belong to a model that is trained before.
    assert advised(tmp_path, rare(0.8, 0.8), init_from="base") == []
    listed = {"type": "vocabulary", "vocabulary": "types"}
    (message,) = advised(tmp_path, rare(0.8, 0.8), listed)
    assert message.startswith("subword.vocabulary: 80%")


def test_text_of_the_tests_that_is_trained_on(tmp_path):
    overlap = {"dev": {"lines": 1, "pairs": 0}, "test": {"lines": 1000, "pairs": 2}}
    dev, test = advised(tmp_path, FACTS | {"overlap": overlap})
    assert dev.startswith("data.dev: ") and "1 of its 1,000 pairs" in dev
    assert test.startswith("data.test: ") and "1,000 of its 1,000" in test and "(2 as" in test


def test_unknown_text(tmp_path):
    def facts(share: float, *examples: str, name: str = "train") -> dict:
        side = {"share": share, "examples": list(examples)}
        return FACTS | {"unknown_text": {name: {"target": side}}}

    assert advised(tmp_path, facts(0.019, "x")) == []
    (message,) = advised(tmp_path, facts(0.021, "x", "y"))
    assert message.startswith("data.train: 2.1%") and "x, y" in message
    (message,) = advised(tmp_path, facts(0.5, "e", "U+0301", name="test"))
    assert "data.test" in message and "nfc" in message


def test_much_text_is_left_out_for_the_held_out_pairs(tmp_path):
    def facts(count: int) -> dict:
        held = {"count": count, "examples": [["Yes.", "Ja."]]}
        return FACTS | {"dropped": {"held out for dev or test": held}}

    assert advised(tmp_path, facts(3000), held_out=True) == []
    (message,) = advised(tmp_path, facts(3001), held_out=True)
    assert message.startswith("data.held_out: 2,000 pairs") and "1,001 others" in message
    # Labels of held-out pairs may be trained on.
    overlap = {"dev": {"lines": 1000, "pairs": 0}, "test": {"lines": 1000, "pairs": 0}}
    assert advised(tmp_path, FACTS | {"overlap": overlap}, held_out=True) == []


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


def test_copies_of_the_source(tmp_path):
    assert advised(tmp_path, FACTS | {"copies": {"count": 99}}) == []
    (message,) = advised(tmp_path, FACTS | {"copies": {"count": 1_500}})
    assert message.startswith("data.train: in 1,500 pairs (1.5%), the target is a copy")


def of_model(tmp_path, precision, **model) -> list[str]:
    config = make_config(tmp_path, training=STEPS | {"precision": precision}, model=model)
    return advice(config, FACTS, 1000)


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
