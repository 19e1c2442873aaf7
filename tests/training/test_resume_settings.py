"""Which settings may change when a run goes on."""

import pytest

from tests.support import make_config
from transformer_mt.training.resume import differences


@pytest.fixture
def changed(tmp_path):
    """The differences between a model's config and the same with other settings of decoding."""

    def run(kind, **decoding):
        configs = [
            make_config(tmp_path, model={"non_autoregressive": kind}, decoding=values)
            for values in ({}, decoding)
        ]
        return differences(*configs)

    return run


@pytest.mark.parametrize("kind", [None, "length", "end"])
def test_the_search_may_change(changed, kind):
    assert changed(kind, beam_size=3, length_penalty=0.5, iterations=2) == []


def test_what_a_model_is_trained_to_put_out_may_not(changed):
    """With `end` the greatest length is how much the decoder is trained to fill."""
    longer = {"max_length_ratio": 3.0, "max_length_extra": 50}
    assert changed(None, **longer) == changed("length", **longer) == []
    ratio, extra = changed("end", **longer)
    assert ratio.startswith("decoding.max_length_ratio: ") and ratio.endswith(", now 3.0")
    assert extra.startswith("decoding.max_length_extra: ") and extra.endswith(", now 50")
