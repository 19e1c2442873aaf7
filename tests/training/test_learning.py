"""Can it learn? Tiny models learn to copy, reverse and sort digits, to the last one, in seconds.

Copying and reversing need attention by position, sorting needs the content of the whole source and
what was put out before.
"""

import numpy as np
import pytest

from tests.support import make_config, prepared, take_steps
from transformer_mt.data.subword import Subwords, WordVocabulary
from transformer_mt.decoding.paddle_engine import PaddleEngine
from transformer_mt.decoding.translator import Translator
from transformer_mt.training.processes import Processes
from transformer_mt.training.trainer import Trainer

TASKS = {"copy": list, "reverse": lambda digits: digits[::-1], "sort": sorted}
STEPS, HELD_OUT = 400, 200


def different_sequences(count, random):
    """Five digits each."""
    found = {}
    while len(found) < count:
        found[tuple(random.integers(0, 10, 5).tolist())] = None
    return [list(digits) for digits in found]


@pytest.mark.parametrize(
    ("task", "norm", "beam_size"),
    [("copy", "post", 1), ("reverse", "pre", 3), ("reverse", "post", 1), ("sort", "pre", 1),
     ("sort", "post", 3)],
)  # fmt: skip
def test_learning(tmp_path, task, norm, beam_size):
    sequences = different_sequences(5000, np.random.default_rng(1))
    pairs = [
        tuple(" ".join(map(str, side)) for side in (digits, TASKS[task](digits)))
        for digits in sequences
    ]
    digits = WordVocabulary([str(digit) for digit in range(10)])
    config = make_config(
        tmp_path,
        model={"d_model": 64, "num_heads": 4, "d_ff": 128, "norm": norm},
        training={
            "max_steps": STEPS,
            "batch_tokens": 500,
            "device_tokens": 500,
            "schedule": "inverse_sqrt",
            "warmup_steps": 60,
            "learning_rate": 5e-3,
            "label_smoothing": 0.0,
            "clip_norm": 1.0,
        },
    )
    data = prepared(config, pairs[HELD_OUT:], Subwords(digits, digits))
    trainer = Trainer(config, data, Processes())
    rate = trainer.updater.rate
    # The rate falls to zero at the end, where every output must be right.
    trainer.updater.rate = lambda step: rate(step) * (1 - step / (STEPS + 1))
    take_steps(trainer, STEPS)

    decoding = config.decoding.model_copy(update={"beam_size": beam_size})
    engine = PaddleEngine([trainer.model], data.subwords)
    translator = Translator(engine, data.subwords, decoding, 100, "de")
    found = translator.translate(source for source, _ in pairs[:HELD_OUT])
    wrong = [
        f"{source}: {output}"
        for (source, target), output in zip(pairs[:HELD_OUT], found, strict=True)
        if output != target
    ]
    assert not wrong, f"{len(wrong)} of {HELD_OUT}: {wrong[:5]}"
