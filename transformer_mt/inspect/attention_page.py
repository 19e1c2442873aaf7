"""Makes a self-contained HTML page of attention maps.

This module inserts the data into the template attention_page.html. It does not depend on models.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

# Weights are written as integers, in units of 1 / PRECISION. Three digits are more than a reader
# can distinguish by colour, and most weights are then a single character.
PRECISION = 1000
TEMPLATE = Path(__file__).with_name("attention_page.html")
# The names and the captions of the maps of a Transformer.
ENCODER = (
    "Encoder self-attention",
    "Each row is a subword of the source; the columns are what it attends to.",
)
DECODER = (
    "Decoder self-attention",
    "Each row is the position at which the decoder predicts this subword; the columns are what the "
    "decoder reads.",
)
CROSS = (
    "Cross-attention",
    "Each row is the position at which the decoder predicts this subword; the columns are the "
    "source.",
)


class Token(NamedTuple):
    """A subword on the page. `kind` marks the special tokens and unk, which are not text."""

    text: str
    kind: Literal["", "special", "unknown"] = ""


@dataclass(frozen=True)
class Axis:
    """The subwords along one side of a map, in the order of the model.

    Attributes:
        lang: the language code, such as zh, by which a browser chooses the shapes of characters.
    """

    tokens: list[Token]
    lang: str = ""


@dataclass(frozen=True)
class Map:
    """The weights of one kind of attention.

    Attributes:
        name: its name, such as "Cross-attention".
        caption: explains its rows and columns.
        weights: floating (layers, heads, len(queries.tokens), len(keys.tokens)), from 0 to 1.
    """

    name: str
    caption: str
    queries: Axis
    keys: Axis
    weights: np.ndarray


@dataclass(frozen=True)
class Sentence:
    """A sentence that is shown above the maps, with its label and its language."""

    label: str
    text: str
    lang: str = ""


def html(title: str, sentences: list[Sentence], maps: list[Map]) -> str:
    """Returns the page, which shows the last map first. Labels and tokens may hold any text."""
    data = {
        "title": title,
        "sentences": [asdict(sentence) for sentence in sentences],
        "maps": [asdict(one) for one in maps],
    }
    # Without "<", no text can close the element that holds the data, or begin a comment in it.
    text = json.dumps(data, separators=(",", ":"), default=_rounded).replace("<", r"\u003c")
    return TEMPLATE.read_text(encoding="utf-8").replace("__DATA__", text)


def _rounded(weights: np.ndarray) -> list:
    return np.rint(weights * PRECISION).astype(int).tolist()
