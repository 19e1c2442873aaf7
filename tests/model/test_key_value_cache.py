"""Which positions are whose past, against lists of them; the rows of keys and values."""

import numpy as np
import paddle
import pytest

from transformer_mt.model.cache import AncestorMask, KeyValueCache


def test_pruning_forgets_only_what_is_no_past_of_any():
    """Each position carries its number; what a hypothesis may see stays what it was. Some sentences
    leave on the way."""
    mask = AncestorMask()
    rng = np.random.default_rng(3762)
    sentences, width = 4, 3
    numbers = np.zeros((sentences, 0), np.int64)  # of the positions kept
    pasts = [[[]] * width for _ in range(sentences)]
    pruned = 0
    for step in range(120):
        if step == 60:
            mask.select(left := np.array([3, 0]))
            sentences, numbers, pasts = 2, numbers[left], [pasts[i] for i in left]
        # Mostly the first hypothesis lives on, as in a beam.
        parents = np.where(rng.random((sentences, width)) < 0.8, 0, rng.integers(0, width))
        got = mask.grow(parents)
        new = step * width + np.arange(width)
        numbers = np.concatenate([numbers, np.broadcast_to(new, (sentences, width))], axis=1)
        pasts = [
            [[*own[parent], new[i]] for i, parent in enumerate(row)]
            for own, row in zip(pasts, parents, strict=True)
        ]
        for sentence in range(sentences):
            for i in range(width):
                assert numbers[sentence][~got[sentence, 0, i]].tolist() == pasts[sentence][i]
        kept = mask.prune()
        if kept is not None:
            pruned += 1
            numbers = np.take_along_axis(numbers, kept, axis=1)
    assert pruned > 1 and numbers.shape[1] < 300
    assert mask.length == 120


def test_a_single_hypothesis_needs_no_mask():
    mask = AncestorMask()
    for _ in range(4):
        assert mask.grow(np.zeros((2, 1), np.int64)) is None
    mask.select(np.array([1]))
    assert mask.grow(np.zeros((1, 1), np.int64)) is None


@pytest.mark.parametrize("index", [[2, 0, 1], [1, 1, 0, 0, 2], [2]])
def test_the_rows_of_a_cache_are_selected(normal, index):
    cache = KeyValueCache()
    cache.select(paddle.to_tensor(index))  # nothing to do while empty
    key, value = normal(3, 2, 4, 5), normal(3, 2, 4, 6)
    for part in (slice(1), slice(1, 4)):
        cache.update(key[:, :, part], value[:, :, part])
    cache.select(paddle.to_tensor(index))
    np.testing.assert_array_equal(cache.key, key.numpy()[index])
    np.testing.assert_array_equal(cache.value, value.numpy()[index])
