"""The formats of output lines: plain text, tab-separated columns, and JSON."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from transformer_mt.data import pharaoh

if TYPE_CHECKING:
    from transformer_mt.decoding.translation import Output, Translation

# Characters that end a line for some readers, and that JSON does not require to be escaped.
_LINE_ENDS = re.compile("[\x7f-\x9f\u2028\u2029]")


def plain(translation: Translation) -> str:
    """The best translation."""
    return translation.text


def tsv(translation: Translation, n_best: int = 1) -> str:
    """The source, and for each output its text, its score and, if asked for, its alignment. Empty
    columns stand for outputs that are missing to `n_best`. A tab or an end of line in a text is
    written as a space."""
    columns = [translation.source]
    for output in translation.outputs:
        columns += [output.text, score(output.score)]
        if output.alignment is not None:
            columns.append(pharaoh.write(output.alignment))
    of_each = (len(columns) - 1) // len(translation.outputs)
    columns += [""] * (of_each * (n_best - len(translation.outputs)))
    return "\t".join(re.sub(r"[\t\r\n]", " ", column) for column in columns)


def jsonl(translation: Translation) -> str:
    """An object with source, source_pieces, source_parts and outputs. Each output has text, score,
    log_prob, pieces, parts and, if asked for, alignment. Parts are the texts that were translated
    by themselves."""
    source = translation.source
    values = {
        "source": source,
        "source_pieces": translation.source_pieces,
        "source_parts": [source[start:end] for start, end in translation.source_parts],
        "outputs": [_values(output) for output in translation.outputs],
    }
    text = json.dumps(values, ensure_ascii=False)
    return _LINE_ENDS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


FORMATS: dict[str, Callable[[Translation], str]] = {"plain": plain, "tsv": tsv, "jsonl": jsonl}


def formatter(name: str, n_best: int) -> Callable[[Translation], str]:
    """The function of one of FORMATS, for translations with up to `n_best` outputs."""
    return partial(tsv, n_best=n_best) if name == "tsv" else FORMATS[name]


def score(value: float) -> str:
    """A score, or a log-probability, as text."""
    return f"{value:.6f}"


def _values(output: Output) -> dict[str, Any]:
    values = {
        "text": output.text,
        "score": _number(output.score),
        "log_prob": _number(output.log_prob),
        "pieces": output.pieces,
        "parts": [output.text[start:end] for start, end in output.parts],
    }
    if output.alignment is not None:
        values["alignment"] = pharaoh.write(output.alignment)
    return values


def _number(value: float) -> float | None:
    # JSON has no numbers that are not finite.
    return round(value, 6) if math.isfinite(value) else None
