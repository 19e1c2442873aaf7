"""Reads from files of unknown origin, with limits on what they can make this program do.

All functions here raise a ValueError with one sentence, whatever is wrong with a file.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from transformer_mt.utils.zips import shown

# The largest models of translation that are published have 3 billion parameters.
LARGEST = 16 << 30


def finite_float32(name: str, array: np.ndarray) -> np.ndarray:
    """Returns an array of any float type as float32, C-contiguous and aligned. It is copied only if
    it was not so already.

    Raises:
        ValueError: it holds NaN or infinity, or a number that float32 does not have.
    """
    with np.errstate(over="ignore"):
        numbers = np.require(array, np.float32, ["C", "A"])
    if not np.isfinite(numbers).all():
        raise ValueError(f"{shown(name)} holds NaN or infinity")
    return numbers


def read_json(content: bytes) -> dict[str, Any]:
    """Returns the object that a JSON file holds.

    Raises:
        ValueError: it is not JSON in UTF-8 or not an object, or an object in it has a key twice.
    """

    def without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(pairs)
        if len(values) < len(pairs):
            seen: set[str] = set()
            twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            raise ValueError(f"it has {shown(twice)!r} twice")
        return values

    try:
        values = json.loads(content.decode("utf-8-sig"), object_pairs_hook=without_duplicates)
    except UnicodeDecodeError:
        raise ValueError("it is not in UTF-8") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON: {error}") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(values, dict):
        raise ValueError("it is not an object of JSON")
    return values
