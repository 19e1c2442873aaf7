"""JSON Lines: a JSON object on each line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from transformer_mt.formats.columns import require_columns, text_of
from transformer_mt.formats.document import Unit, clean
from transformer_mt.formats.json_values import Value, parsed, string_writer, values
from transformer_mt.formats.spliced import Edit, SplicedDocument, lines, valid
from transformer_mt.utils.errors import UsageError, UserError
from transformer_mt.utils.files import lines as lines_of_file


class JSONLDocument(SplicedDocument):
    """A file of JSON Lines. The source of each object is a unit; an object may have none.

    Args:
        columns: the field of the source, and that of the translation, which is added to an object
            that has none, at its end. None: the translation replaces the source. The name of a
            field within others has dots: translation.en.
    """

    def __init__(
        self,
        content: bytes,
        name: str,
        languages: tuple[str, str],
        columns: tuple[str, str | None],
    ) -> None:
        super().__init__(content, name)
        self._source, self._target = columns[0], columns[1] or columns[0]
        self.replaces_sources = self._target == self._source
        self._write = string_writer(self.text)
        # What a translation replaces, and what stands around it there.
        self._places: list[tuple[int, int, str, str]] = []
        for number, start, end in lines(self.text):
            if self.text[start:end].strip():
                self._add(number, start, end)
        if self.text.strip() and not self.units:
            raise UsageError(f"{self.name}: no line has a text in the field {self._source}")

    def _add(self, number: int, start: int, end: int) -> None:
        _object(self.text[start:end], self.name, number)
        found = {value.name: value for value in values(self.text, start, end)}
        source = self._string(found.get(self._source)) or ""
        if not source.strip():
            return
        target = self._string(found.get(self._target))
        if target is None:
            place = f"{self.name}, line {number}"
            raise UserError(f"{place}: the field {self._target} has something else than a text")
        if self._target == self._source:
            target = ""
        self.units.append(Unit(f"line {number}", source, target, bool(target)))
        field = found.get(self._target)
        self._places.append(
            (field.start, field.end, "", "") if field else self._new_field(number, found)
        )

    def _string(self, value: Value | None) -> str | None:
        """The text of a value; "" if it is missing or null, None if it is something else."""
        written = "null" if value is None else self.text[value.start : value.end]
        if written.startswith('"'):
            return clean(valid(json.loads(written)))
        return "" if written == "null" else None

    def _new_field(self, number: int, found: dict[str, Value]) -> tuple[int, int, str, str]:
        """Where the field of the translation is added, with those around it that are missing."""
        keys = self._target.split(".")
        depth = next(n for n in reversed(range(len(keys))) if ".".join(keys[:n]) in found)
        parent = found[".".join(keys[:depth])]
        if self.text[parent.start] != "{":
            place = f"{self.name}, line {number}"
            raise UserError(f"{place}: {parent.name} is no object, so {self._target} has no place")
        source = found[self._source]
        space = " " if self.text[source.start - 1] == " " else ""
        before = self.text[parent.start : parent.end - 1].rstrip()
        opening = "{".join(f"{self._write(key)}:{space}" for key in keys[depth:])
        at = parent.start + len(before)
        comma = "" if before == "{" else f",{space}"
        return at, at, comma + opening, "}" * (len(keys) - depth - 1)

    def edits(self, index: int, translation: str) -> Iterator[Edit]:
        start, end, before, after = self._places[index]
        yield Edit(start, end, before + self._write(translation) + after)


def pairs(
    path: Path, languages: tuple[str, str], columns: tuple[str, str] | None = None
) -> Iterator[tuple[str, str]]:
    """Yields the pairs of a file of JSON Lines. Objects without one of the texts are left out."""
    is_empty = True
    for number, line in enumerate(lines_of_file(path), 1):
        if not line.strip():
            continue
        record = _object(line, str(path), number)
        if columns is None:
            names = [value.name for value in values(line)]
            columns = require_columns(names, None, languages, f"{path}, line {number}")
        source, target = (text_of(record, name) for name in columns)
        if source and target:
            is_empty = False
            yield source, target
    if columns and is_empty:
        raise UsageError(f"{path}: no line has texts in the fields {' and '.join(columns)}")


def _object(line: str, name: str, number: int) -> dict:
    try:
        record = parsed(line)
    except json.JSONDecodeError as error:
        message = f"not JSON: {error.msg} (column {error.colno})"
    except ValueError as error:
        message = str(error)
    else:
        if isinstance(record, dict):
            return record
        message = "not a JSON object"
    raise UserError(f"{name}, line {number}: {message}")
