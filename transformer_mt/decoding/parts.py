"""Over-long input, cut into parts that are translated one by one."""

from __future__ import annotations

from collections.abc import Callable


def parts(text: str, encode: Callable[[str], list[int]], max_length: int) -> list[list[int]]:
    """The ids of a text's parts, at most `max_length` each; none if there is no text."""
    ids = encode(text) if text.strip() else []
    return [ids[start : start + max_length] for start in range(0, len(ids), max_length)]
