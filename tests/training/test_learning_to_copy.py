"""Can it learn to copy what it has never seen? Tiny models, trained for seconds on sentences with
some of the names, are asked for sentences with the others. And can it begin with a plain model?"""

import numpy as np
import pytest

from tests.support import LEARNER, LEARNING, demo_pairs, learn, make_config, make_model_directory
from transformer_mt.data.subword import Subwords
from transformer_mt.data.vocabulary import WordVocabulary
from transformer_mt.decoding.line_translator import LineTranslator
from transformer_mt.model.variants import build_model
from transformer_mt.utils.errors import UserError
from transformer_mt.weights import load_weights, take_weights

NAMES = [f"name{number}" for number in range(330)]
SEEN, UNSEEN = NAMES[:300], NAMES[300:]
VERBS = {"sees": "gesehen", "hears": "gehört", "finds": "gefunden", "calls": "gerufen"}
STEPS, HELD_OUT = 120, 100
BATCHES = {"batch_tokens": 400, "device_tokens": 400}


def sentences(names, count, random):
    """As in ("name3 sees name5", "name5 wird von name3 gesehen")."""
    pairs = []
    for _ in range(count):
        subject, object_ = random.choice(names, 2, replace=False)
        verb = random.choice(list(VERBS))
        source = f"{subject} {verb} {object_}"
        pairs.append((source, f"{object_} wird von {subject} {VERBS[verb]}"))
    return pairs


@pytest.mark.parametrize("copying", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_names_that_training_never_had(tmp_path, copying):
    random = np.random.default_rng(1)
    train, held_out = sentences(SEEN, 2000, random), sentences(UNSEEN, HELD_OUT, random)
    vocabulary = WordVocabulary([*NAMES, *VERBS, *VERBS.values(), "wird", "von"])
    config = make_config(
        tmp_path,
        model={**LEARNER, "copying": copying},
        training=LEARNING | {"max_steps": STEPS, "warmup_steps": 40} | BATCHES,
    )
    subwords = Subwords(vocabulary, vocabulary)
    engine = learn(config, train, subwords)
    for beam_size in (1, 4):
        changes = {"beam_size": beam_size, "max_length_extra": 5}
        decoding = config.decoding.model_copy(update=changes)
        translator = LineTranslator(engine, subwords, config).with_settings(decoding)
        found = translator.translate(source for source, _ in held_out)
        right = sum(output == target for output, (_, target) in zip(found, held_out, strict=True))
        # With five seeds 84 to 98, and without copying 0 or 1.
        assert right >= 75 if copying else right <= 10


def test_fine_tuning_from_a_plain_model(tmp_path):
    """Its weights are taken, and the gate's are new."""
    config = make_config(tmp_path)
    directory = make_model_directory(tmp_path / "plain", demo_pairs(60), config)
    subwords, plain = directory.load_subwords(), directory.checkpoint("last")
    model = build_model(config.model.model_copy(update={"copying": True}), subwords)
    assert take_weights(plain, model) == ["gate.weight is missing", "gate.bias is missing"]
    expected = build_model(config.model, subwords)
    load_weights(plain, expected)
    for name, parameter in expected.named_parameters():
        np.testing.assert_array_equal(parameter, dict(model.named_parameters())[name])
    with pytest.raises(UserError, match=r"fit the config: gate\.weight is missing"):
        load_weights(plain, model)
