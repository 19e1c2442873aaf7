"""Breaks a text into lines of about the same length."""

from __future__ import annotations

import re
from bisect import bisect_left
from itertools import accumulate, pairwise

from transformer_mt.formats.document import MARKUP
from transformer_mt.utils.languages import joins_sentences_with_space

# What stays together: words, each with the spaces behind it. In Chinese and Japanese, a line may
# break between most characters, but not before closing or after opening punctuation.
_WORD = re.compile(rf"(?:{MARKUP.pattern}|\S)+\s*|\s+")
_CHARACTER = re.compile(
    rf"(?:{MARKUP.pattern}|[（［｛「『〈《【〔“‘])*(?:[!-~]+|\S)"
    rf"(?:{MARKUP.pattern}|[）］｝」』〉》】〕”’、。，．：；！？…‥・ー々ぁぃぅぇぉっゃゅょァィゥェォッャュョ])*\s*|\s+"
)


def balanced(text: str, count: int, language: str) -> list[str]:
    """Returns the lines of a text, which joined are that text. Inline markup counts no characters.

    Args:
        count: at most so many lines.
        language: of the text.
    """
    token = _WORD if joins_sentences_with_space(language) else _CHARACTER
    pieces = token.findall(text)
    if count <= 1 or len(pieces) <= 1:
        return [text]
    ends = list(accumulate(len(MARKUP.sub("", piece)) for piece in pieces))

    def nearest(length: float) -> int:
        """The number of pieces that have about this length together."""
        after = min(bisect_left(ends, length), len(ends) - 1)
        is_nearer = after > 0 and length - ends[after - 1] <= ends[after] - length
        return after if is_nearer else after + 1

    breaks = sorted({0, len(pieces)} | {nearest(ends[-1] * n / count) for n in range(1, count)})
    return ["".join(pieces[start:end]) for start, end in pairwise(breaks)]
