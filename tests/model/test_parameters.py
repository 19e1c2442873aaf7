"""Parameters are those of the model that the same config builds."""

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_mt.config.schema import ModelConfig
from transformer_mt.model.costs import VocabularySizes, parts
from transformer_mt.model.variants import build_model

# The base model of Vaswani et al. 2017, table 3, is the default.
BIG = {"d_model": 1024, "d_ff": 4096, "num_heads": 16}


KINDS = [{}, {"copying": True}, {"non_autoregressive": "length"}, {"non_autoregressive": "end"}]


def built(config, vocabularies):
    """The model of a config, with vocabularies that have nothing but a size."""
    target = SimpleNamespace(size=vocabularies.target, pad=0)
    source = target if vocabularies.joint else SimpleNamespace(size=vocabularies.source, pad=0)
    return build_model(
        config, SimpleNamespace(source=source, target=target, joint=source is target)
    )


@st.composite
def configs(draw):
    num_heads = draw(st.integers(1, 3))
    config = ModelConfig(
        num_layers=draw(st.integers(1, 2)),
        num_encoder_layers=draw(st.none() | st.integers(1, 3)),
        num_decoder_layers=draw(st.none() | st.integers(1, 3)),
        d_model=num_heads * draw(st.integers(1, 4)),
        num_heads=num_heads,
        d_ff=draw(st.integers(1, 9)),
        norm=draw(st.sampled_from(["pre", "post"])),
        tie_embeddings=draw(st.booleans()),
        bias=draw(st.booleans()),
        **draw(st.sampled_from(KINDS)),
    )
    target = draw(st.integers(5, 9))
    joint = config.copying or draw(st.booleans())
    return config, VocabularySizes(target if joint else draw(st.integers(5, 9)), target, joint)


@given(configs())
@settings(max_examples=25)
def test_the_parts_are_all_of_the_built_model_and_nothing_else(config_and_vocabularies):
    config, vocabularies = config_and_vocabularies
    model = built(config, vocabularies)
    counted = [
        shape
        for part in parts(config, vocabularies)
        for shape in part.tensors
        for _ in range(part.count)
    ]
    assert sorted(counted) == sorted(tuple(tensor.shape) for tensor in model.parameters())


@given(configs())
@settings(max_examples=25)
def test_the_formulas_give_the_numbers_beside_them(config_and_vocabularies):
    config, vocabularies = config_and_vocabularies
    for part in parts(config, vocabularies):
        if part.count == 0:
            assert part.formula == "the target embedding's" and part.parameters == 0
            continue
        formula = part.formula.replace(" x ", " * ").replace("^", "**")
        for side in ("source", "target"):
            formula = formula.replace(f"{side} vocabulary", str(getattr(vocabularies, side)))
        formula = formula.replace("vocabulary", str(vocabularies.target))
        assert eval(formula, {"d_model": config.d_model, "d_ff": config.d_ff}) == part.each


@pytest.mark.parametrize(("sizes", "millions"), [({}, 65), (BIG, 213)])
def test_the_papers_models(sizes, millions):
    """Table 3 of the paper, with about 37,000 types (section 5.1); that number is rounded."""
    vocabularies = VocabularySizes(37_000, 37_000, True)
    total = sum(part.parameters for part in parts(ModelConfig(**sizes), vocabularies))
    assert total / 1e6 == pytest.approx(millions, rel=0.03)
