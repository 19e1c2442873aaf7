"""Attention maps as one self-contained HTML page: all that it shows and does is in the file.

This module fills the data into attention_page.html, which is the page. It knows nothing of models.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

# Weights go into the page as whole numbers of this part of 1: three digits are more than the eye
# tells apart, and most weights are then a single character.
PRECISION = 1000
TEMPLATE = Path(__file__).with_name("attention_page.html")


class Token(NamedTuple):
    """A subword as the page shows it; `kind` says what is no text: a special one, or unk."""

    text: str
    kind: Literal["", "special", "unknown"] = ""


@dataclass(frozen=True)
class Axis:
    """The subwords along one side of a map, in the order in which the model has them.

    Attributes:
        lang: such as zh, by which a browser chooses the shapes of characters.
    """

    tokens: list[Token]
    lang: str = ""


@dataclass(frozen=True)
class Map:
    """One of a model's attentions.

    Attributes:
        name: such as Encoder.
        caption: what its rows and columns are.
        weights: floating (layers, heads, len(queries.tokens), len(keys.tokens)), from 0 to 1.
    """

    name: str
    caption: str
    queries: Axis
    keys: Axis
    weights: np.ndarray


@dataclass(frozen=True)
class Sentence:
    """A sentence above the maps: what it is to be called, its text, and its language."""

    label: str
    text: str
    lang: str = ""


def html(title: str, sentences: list[Sentence], maps: list[Map]) -> str:
    """The page, in which the last of the maps is shown first. Any text at all may be in it."""
    data = {
        "title": title,
        "sentences": [vars(sentence) for sentence in sentences],
        "maps": [
            {
                "name": one.name,
                "caption": one.caption,
                "queries": vars(one.queries),
                "keys": vars(one.keys),
                "weights": np.rint(one.weights * PRECISION).astype(int).tolist(),
            }
            for one in maps
        ],
    }
    # Without "<" no text can end the element that the data is in, or begin a comment there.
    text = json.dumps(data, separators=(",", ":")).replace("<", r"\u003c")
    return TEMPLATE.read_text(encoding="utf-8").replace("__DATA__", text)
