"""Which columns of a table, or fields of records, hold the source and the target."""

from __future__ import annotations

from collections.abc import Sequence

from transformer_mt.formats.spliced import as_line, valid
from transformer_mt.utils.errors import UsageError


def require_columns(
    names: Sequence[str], columns: tuple[str, str] | None, languages: tuple[str, str], place: str
) -> tuple[str, str]:
    """Returns the columns of the source and of the target.

    Args:
        names: of all columns. That of a field within a column has a dot: translation.en.
        columns: as the user names them; None if they have one of the usual names.
        languages: the codes of the source and the target language.
        place: of the table, in messages.

    Raises:
        UsageError: a column is missing.
    """
    usual = [
        ("source", "target"),
        languages,
        (f"translation.{languages[0]}", f"translation.{languages[1]}"),
    ]
    for pair in usual if columns is None else [columns]:
        if set(pair) <= set(names):
            return pair
    if columns is None:
        missing = " nor ".join(" and ".join(pair) for pair in usual)
        missing = f"neither {missing}, so the columns must be named"
    else:
        missing = f"no {' and no '.join(name for name in columns if name not in names)}"
    raise UsageError(f"{place}: there is {missing}. It has {', '.join(names[:50]) or 'nothing'}")


def text_of(record: object, name: str) -> str:
    """Returns the text of a field as a line; "" if the record has no text there.

    Args:
        name: of the field, or the names and numbers that lead to it, with dots between.
    """
    for key in [name] if isinstance(record, dict) and name in record else name.split("."):
        if isinstance(record, dict):
            record = record.get(key)
        elif isinstance(record, list) and key.isdecimal() and int(key) < len(record):
            record = record[int(key)]
        else:
            record = None
    return as_line(valid(record)) if isinstance(record, str) else ""
