"""Replacing ranges of a file, while all else stays as it is."""

from __future__ import annotations

from bisect import bisect_left
from typing import AnyStr, Generic


class Edits(Generic[AnyStr]):
    """The replacements in a text, or in bytes.

    They are added in the order of their ends, because a range that is replaced may hold others that
    were replaced before, such as the alt text of an image inside a sentence.
    """

    def __init__(self, content: AnyStr) -> None:
        self._content: AnyStr = content
        self._starts: list[int] = []
        self._ranges: list[tuple[int, int, AnyStr]] = []  # (start, end, what stands there now)

    def replace(self, start: int, end: int, new: AnyStr) -> None:
        """Puts `new` in the place of [start, end). What was replaced within is in `new` already."""
        while self._starts and self._starts[-1] >= start:
            self._starts.pop()
            self._ranges.pop()
        self._starts.append(start)
        self._ranges.append((start, end, new))

    def between(self, start: int, end: int) -> AnyStr:
        """Returns [start, end) with the replacements in it."""
        parts = []
        for index in range(bisect_left(self._starts, start), len(self._starts)):
            from_, to, new = self._ranges[index]
            if from_ >= end:
                break
            parts += [self._content[start:from_], new]
            start = to
        parts.append(self._content[start:end])
        return self._content[:0].join(parts)

    def all(self) -> AnyStr:
        """Returns the whole content with the replacements."""
        return self.between(0, len(self._content))
