"""Can it learn? Tiny models learn to reverse and sort digits, to the last one, in seconds.

Reversing needs attention by position, sorting needs the content of the whole source and
what was put out before.
"""

import numpy as np
import pytest

from tests.support import LEARNER, LEARNING, learn, make_config
from transformer_mt.data.subword import Subwords
from transformer_mt.data.vocabulary import WordVocabulary
from transformer_mt.decoding.line_translator import LineTranslator

TASKS = {"reverse": lambda digits: digits[::-1], "sort": sorted}
STEPS, HELD_OUT = 400, 100


def different_sequences(count, random):
    """Five digits each."""
    found = {}
    while len(found) < count:
        found[tuple(random.integers(0, 10, 5).tolist())] = None
    return [list(digits) for digits in found]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "norm", "beam_size"),
    [("reverse", "pre", 3), ("sort", "post", 1)],
)
def test_learning(tmp_path, task, norm, beam_size):
    sequences = different_sequences(5000, np.random.default_rng(1))
    pairs = [
        tuple(" ".join(map(str, side)) for side in (digits, TASKS[task](digits)))
        for digits in sequences
    ]
    digits = WordVocabulary([str(digit) for digit in range(10)])
    config = make_config(
        tmp_path,
        model={**LEARNER, "norm": norm},
        training={**LEARNING, "max_steps": STEPS, "batch_tokens": 500, "device_tokens": 500},
    )
    subwords = Subwords(digits, digits)
    engine = learn(config, pairs[HELD_OUT:], subwords)

    decoding = config.decoding.model_copy(update={"beam_size": beam_size})
    translator = LineTranslator(engine, subwords, config).with_settings(decoding)
    found = translator.translate(source for source, _ in pairs[:HELD_OUT])
    wrong = [pair for pair, output in zip(pairs, found, strict=False) if output != pair[1]]
    assert not wrong, f"{len(wrong)} of {HELD_OUT}: {wrong[:5]}"
