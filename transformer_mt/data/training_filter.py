"""Which pairs of the training text are used, before they are encoded."""

from __future__ import annotations

import hashlib

from transformer_mt.data.corpus import Pair


class TrainingFilter:
    """Decides pair by pair. Each pass over the text needs a new filter, which remembers the pairs
    that it has seen if `drop_duplicates` is set.

    Args:
        held_out: the texts of the pairs that are held out for dev and test. A pair with one of them
            on either side is dropped.
        drop_duplicates: whether exact repetitions of a pair are dropped.
    """

    def __init__(self, held_out: frozenset[str], drop_duplicates: bool) -> None:
        self._held_out = held_out
        self._seen: set[bytes] | None = set() if drop_duplicates else None

    def reason_to_drop(self, pair: Pair) -> str | None:
        """Returns None for a pair that is used."""
        if not is_full(pair):
            return "empty on a side"
        if not self._held_out.isdisjoint(pair):
            return "held out for dev or test"
        if self._seen is not None:
            # Sixteen bytes per pair: millions of them fit in memory, and none collide by chance.
            key = hashlib.blake2b("\n".join(pair).encode(), digest_size=16).digest()
            if key in self._seen:
                return "repeated"
            self._seen.add(key)
        return None


def is_full(pair: Pair) -> bool:
    """Whether neither side is blank."""
    return bool(pair[0].strip() and pair[1].strip())
