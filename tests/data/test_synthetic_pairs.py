"""Synthetic pairs are merged as a plain loop over all of them would do it."""

from hypothesis import given
from hypothesis import strategies as st

from transformer_mt.data.synthetic_pairs import SyntheticPairs

# Few different texts, so that many are equal. Blank ones of several kinds, and odd characters.
TEXTS = st.sampled_from(["", " ", "\t", "a", "b", "a b", "ab", "a\u2028b", "ü", "a\r", "\u3000"])
PAIRS = st.tuples(TEXTS, TEXTS)


def merged_by_hand(made, originals):
    """In the order of the sources, of which each lists its targets with their models."""
    sources = {}
    empty = original = repeated = 0
    for source, target, model in made:
        own = sources.setdefault(source, {})
        if source.strip() == "" or target.strip() == "":
            empty += 1
        elif (source, target) in originals:
            original += 1
        elif target in own:
            repeated += 1
            if model not in own[target]:
                own[target].append(model)
        else:
            own[target] = [model]
    pairs = [(source, target, by) for source, own in sources.items() for target, by in own.items()]
    kept = sum(1 for own in sources.values() if own)
    return pairs, (len(made), empty, original, repeated, len(pairs), kept)


def check(folder, made, originals):
    with SyntheticPairs(folder, iter(originals)) as merged:
        for item in made:
            merged.add(*item)
        counts, pairs = merged.merge()
        expected, numbers = merged_by_hand(made, originals)
        assert [tuple(pair) for pair in pairs] == expected
        assert tuple(vars(counts).values()) == numbers
    assert not list(folder.iterdir())


@given(
    made=st.lists(st.tuples(TEXTS, TEXTS, st.integers(0, 3)), max_size=40),
    originals=st.lists(PAIRS, max_size=5),
)
def test_merged_as_by_hand(tmp_path_factory, made, originals):
    check(tmp_path_factory.mktemp("pairs"), made, originals)


def test_many_pairs(tmp_path):
    """More than a byte can count, of texts that begin alike."""
    made = [(f"source {i % 700}", f"target {i % 1100}", i // 1000) for i in range(5_000)]
    check(tmp_path, made, [("source 5", "target 5")])
