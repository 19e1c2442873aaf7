"""Which settings may change when a run goes on."""

import pytest

from tests.support import make_config
from transformer_mt.config.decoding import DecodingConfig, EvaluationConfig
from transformer_mt.config.schema import SECTIONS
from transformer_mt.training.schedule import learning_rate
from transformer_mt.training.settings import differences


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


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_only_what_decides_no_weight_may_change(tmp_path):
    """Every key of the config is tried. A new key may not change until it is listed here, too.

    The other value has a type of its own, about which pydantic warns.
    """
    config = make_config(tmp_path)
    free = set()
    for section in SECTIONS:
        for key in SECTIONS[section].model_fields:
            changed = getattr(config, section).model_copy(update={key: "another value"})
            if not differences(config.model_copy(update={section: changed}), config):
                free.add(f"{section}.{key}")
    places = {"data.root", "data.cache", "subword.vocabulary", "guided_attention.alignments"}
    of_training = """max_steps max_epochs log_every validate_every save_every keep_last keep_best
        patience average_last interpolate max_skipped devices device_tokens recompute log_to
        gradient_sum_precision sharding"""
    of_use = [("decoding", DecodingConfig), ("evaluation", EvaluationConfig)]
    assert free == {
        *places,
        *(f"training.{key}" for key in of_training.split()),
        *(f"{section}.{key}" for section, schema in of_use for key in schema.model_fields),
    }


def test_what_a_model_is_trained_to_put_out_may_not(changed):
    """With `end` the greatest length is how much the decoder is trained to fill."""
    search = {"beam_size": 3, "length_penalty": 0.5, "iterations": 2}
    assert changed(None, **search) == changed("end", **search) == []
    longer = {"max_length_ratio": 3.0, "max_length_extra": 50}
    assert changed(None, **longer) == changed("length", **longer) == []
    ratio, extra = changed("end", **longer)
    assert ratio.startswith("decoding.max_length_ratio: ") and ratio.endswith(", now 3.0")
    assert extra.startswith("decoding.max_length_extra: ") and extra.endswith(", now 50")


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_the_length_of_a_run_may_change_and_the_rate_does_not_jump(tmp_path, schedule):
    options = {"schedule": schedule, "warmup_steps": 10, "decay_steps": 100, "learning_rate": 1.0}
    short = make_config(tmp_path, training=options | {"max_steps": 100})
    long = make_config(tmp_path, training=options | {"max_steps": 200, "max_epochs": 9})
    assert differences(short, long) == []
    rates = [[learning_rate(s, c.training, 64) for s in range(1, 201)] for c in (short, long)]
    assert rates[0] == rates[1]
    later = make_config(tmp_path, training=options | {"decay_steps": 101})
    assert differences(long, later) == ["training.decay_steps: 100, now 101"]
