"""Fine-tuning adds the symbols that it needs to the subwords and the weights of another model."""

import numpy as np
import pytest
import yaml

from tests.support import (
    demo_pairs,
    make_config,
    make_model_directory,
    marian_subwords,
    run_command,
    write_pairs,
)
from transformer_mt.data.spans import SYMBOLS
from transformer_mt.data.vocabulary import SPACE
from transformer_mt.model_directory import ModelDirectory, subwords_to_keep
from transformer_mt.training import settings
from transformer_mt.training.loop import Trainer
from transformer_mt.training.run import prepare_for
from transformer_mt.translator import Translator
from transformer_mt.utils.errors import UsageError
from transformer_mt.weights import NewRows, read_weights

PAIRS = [(f"{a} {{name}}", f"{{name}} {b}") for a, b in demo_pairs(120)]
NEW = ["<term>", "ACME™"]
MARIAN = {"type": "marian", "user_symbols": [">>deu<<", ">>fra<<"]}
CASES = {
    "bpe": ({}, {}),
    "unigram, untied": ({"type": "unigram"}, {"tie_embeddings": False}),
    "two vocabularies": ({"joint": False}, {}),
    "marian": (MARIAN, {}),
    "marian, two lists, untied": (MARIAN | {"joint": False}, {"tie_embeddings": False}),
}


def make_general(folder, subword, model=None):
    config = make_config(folder, subword=subword, model=model or {})
    imported = subword.get("type") == "marian"
    subwords = marian_subwords(PAIRS, subword.get("joint", True)) if imported else None
    return make_model_directory(folder / "general", PAIRS, config, subwords=subwords)


def write_recipe(folder, other, **sections):
    for name, pairs in (("train", PAIRS[:80]), ("dev", PAIRS[80:90]), ("test", PAIRS[90:100])):
        write_pairs(folder / "text", name, pairs)
    data = {"dev": "dev", "test": "test", **sections.pop("data", {})}
    training = {"init_from": str(other), "devices": 1, "max_steps": 2}
    values = make_config(folder, data=data, training=training).model_dump()
    values = {key: values[key] for key in ("model_dir", "data", "training", "decoding")}
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(values | sections))
    return path


@pytest.mark.parametrize("case", CASES)
def test_old_rows_are_the_same_and_new_ones_are_means(tmp_path, case):
    subword, model = CASES[case]
    other = make_general(tmp_path, subword, model)
    recipe = write_recipe(
        tmp_path, other.path, data={"protect": ["placeholders"]}, subword={"user_symbols": NEW}
    )
    config = settings.load(recipe)
    assert config.subword.type == subword.get("type", "bpe")
    assert config.subword.user_symbols == [*subword.get("user_symbols", []), *NEW]
    config, data = prepare_for(config, subwords_to_keep(config))
    trainer = Trainer(config, data)
    trainer.start()

    old, theirs = read_weights(other.checkpoint()), other.load_subwords()
    sides = {"source": (theirs.source, data.subwords.source)}
    sides["target"] = (theirs.target, data.subwords.target)
    new = {name: parameter.numpy() for name, parameter in trainer.model.named_parameters()}
    assert new.keys() == old.keys()
    longer = {name for name in new if new[name].shape != old[name].shape}
    untied = {"generator.weight"} if model else set()
    is_apart = model or not data.subwords.joint
    apart = {"source_embedding.weight"} if is_apart else set()
    assert longer == {"target_embedding.weight", *untied, *apart}
    for name, weight in old.items():
        assert np.array_equal(new[name][: len(weight)], weight)
        if name not in longer:
            continue
        before, after = sides[name.partition("_")[0] if "embedding" in name else "target"]
        added = after.pieces(range(before.size, after.size))
        assert {*added} == {*SYMBOLS, *NEW}
        for symbol, row in zip(added, new[name][before.size :], strict=True):
            ids = [i for i in before.encode(symbol) if before.pieces([i]) != [SPACE]]
            # Only rounding to float32 differs.
            expected = np.mean([weight[i].astype(np.float64) for i in ids], axis=0)
            np.testing.assert_allclose(row, expected, rtol=1e-6, atol=1e-7)


def test_any_weight_of_the_vocabulary_gets_new_rows():
    new = NewRows(3, ["x", "y"], [[0, 2], [1]])
    bias = np.array([1, 2, 4], np.float32)  # as that of an output layer
    assert new.added_to(bias, [5]).tolist() == [1, 2, 4, 2.5, 2]
    assert new.added_to(bias, [5]).dtype == np.float32
    for weight, shape in (
        (bias, [3]),  # of a model without the new subwords
        (bias, [4]),  # of another length
        (np.ones((3, 2), np.float32), [5, 4]),  # of another width
        (np.ones(7, np.float32), [5]),
    ):
        assert new.added_to(weight, shape) is weight
    assert NewRows(3, [], []).added_to(bias, [3]) is bias


@pytest.mark.parametrize("subword", [{}, MARIAN], ids=["bpe", "marian"])
def test_a_model_without_symbols_learns_to_protect(tmp_path, subword, capsys):
    other = make_general(tmp_path, subword)
    recipe = write_recipe(
        tmp_path,
        other.path,
        data={"protect": ["placeholders"], "train": [{"text": "train", "tag": "<it>"}]},
        subword={"user_symbols": NEW},
    )
    run_command("train", recipe, device="cpu")
    messages = capsys.readouterr().err
    assert f"new symbols: <it> {' '.join(NEW)} {SYMBOLS[0]}" in messages
    assert "random" not in messages and "have no effect" not in messages

    directory = ModelDirectory(tmp_path / "model")
    tuned, before = directory.load_subwords(), other.load_subwords()
    assert tuned.source.user_symbols.keys() >= {"<it>", *NEW, *SYMBOLS}
    assert tuned.source.pieces(range(before.source.size)) == before.source.pieces(
        range(before.source.size)
    )
    line = "<it> the {name} of ACME™ and {other}"
    (translation,) = Translator.load(directory.path).translate([line])
    assert translation.count("{name}") == translation.count("{other}") == 1
    # The run goes on with the subwords that it has.
    run_command("train", recipe, "training.max_steps=3", device="cpu")
    assert (directory.path / "checkpoints" / "step_3").is_dir()
    with pytest.raises(UsageError, match=r"subword\.user_symbols"):
        run_command(
            "train", recipe, "training.max_steps=4", "subword.user_symbols=[<x>]", device="cpu"
        )
    # A model that was fine-tuned can be fine-tuned again, and keeps what it has.
    again = settings.load(recipe, [f"training.init_from={directory.path}", "model_dir=x"])
    assert {*again.subword.user_symbols} == {*subword.get("user_symbols", []), "<it>", *NEW}
    assert subwords_to_keep(again).content() == tuned.content()


def test_terms_are_not_annotated_for_imported_models(tmp_path):
    """Each side of one splits only its own language."""
    other = make_general(tmp_path, MARIAN)
    recipe = write_recipe(tmp_path, other.path, data={"annotate_terms": 0.2})
    with pytest.raises(UsageError, match=r"data\.annotate_terms: 0\.2: needs subword\.type"):
        run_command("train", recipe)


def test_special_subwords_are_no_tags(tmp_path):
    other = make_general(tmp_path, {})
    train = [{"text": "train", "tag": "<unk>"}]
    recipe = write_recipe(tmp_path, other.path, data={"train": train})
    with pytest.raises(UsageError, match=r"init_from: .*<unk> is a special subword"):
        run_command("train", recipe)
