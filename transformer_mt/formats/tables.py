"""Tables: CSV (RFC 4180) and TSV."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from transformer_mt.formats.columns import require_columns
from transformer_mt.formats.document import Unit, clean
from transformer_mt.formats.spliced import Edit, SplicedDocument, as_line
from transformer_mt.utils.errors import UserError
from transformer_mt.utils.files import lines as lines_of_file

_SEPARATORS = ",;\t|"
_FIRST_ROW = re.compile(r'(?:"[^"]*"|[^"\r\n])*')
_QUOTED = r'"[^"]*(?:""[^"]*)*"'
# In TSV, mostly nothing is quoted, so quotes around a field belong to its text. Programs that do
# quote have to if a field has a quote, and then double it.
_QUOTED_IN_TSV = re.compile(r'"[^"\t\r\n]*(?:""[^"\t\r\n]*)+"(?=[\t\r\n]|\Z)')
_LINE_END = re.compile(r"\r\n|[\r\n]")


class TableDocument(SplicedDocument):
    """A CSV or TSV file. The field of the source is a unit in each row that has one.

    Args:
        name: of the file; one that contains .tsv has tabs. Others have what separates most fields
            in the first row.
        columns: the column of the source, and that for the translation. None: the translation
            replaces the source. A column is the name in the first row, or a number from 1. If both
            are numbers, the first row is one like the others.
    """

    def __init__(
        self,
        content: bytes,
        name: str,
        languages: tuple[str, str],
        columns: tuple[str, str | None],
    ) -> None:
        super().__init__(content, name)
        self._separator = _separator(name, self.text)
        self._is_tsv = is_tsv(name)
        # The field that a translation replaces, and the separators before it, if it is missing.
        self._places: list[tuple[int, int, str]] = []
        rows = self._rows()
        first = next(rows, None)
        if first is None:
            return
        names = [self._value(*field) for field in first[1]]
        both = (columns[0], columns[1] or columns[0])
        source, target, has_header = _indices(names, both, languages, self.name)
        self.replaces_sources = target == source
        for number, fields in rows if has_header else chain([first], rows):
            if source < len(fields):
                self._add(number, fields, source, target)

    def _rows(self) -> Iterator[tuple[int, list[tuple[int, int]]]]:
        """Yields the number of the line at which each row begins, and the places of its fields."""
        separator = re.escape(self._separator)
        if self._is_tsv:
            quoted = _QUOTED_IN_TSV
        else:
            quoted = re.compile(rf"{_QUOTED}(?={separator}|[\r\n]|\Z)")
        plain = re.compile(rf"[^\r\n{separator}]*")
        number, position = 1, 0
        while position < len(self.text):
            start, fields = position, []
            while True:
                field = quoted.match(self.text, position)
                if not field:
                    if self.text.startswith('"', position) and not self._is_tsv:
                        raise self.error(
                            position, "a field begins with a quote that does not end it"
                        )
                    field = plain.match(self.text, position)
                fields.append(field.span())
                position = field.end()
                if not self.text.startswith(self._separator, position):
                    break
                position += 1
            if len(fields) > 1 or fields[0][0] < fields[0][1]:
                yield number, fields
            if line_end := _LINE_END.match(self.text, position):
                position = line_end.end()
            number += self.text.count("\n", start, position)

    def _value(self, start: int, end: int) -> str:
        return _unquoted(self.text[start:end], self._is_tsv)

    def _add(self, number: int, fields: list[tuple[int, int]], source: int, target: int) -> None:
        text, translation = clean(self._value(*fields[source])), ""
        if not text.strip():
            return
        if target < len(fields):
            translation = "" if target == source else clean(self._value(*fields[target]))
            self._places.append((*fields[target], ""))
        else:
            end = fields[-1][1]
            self._places.append((end, end, self._separator * (target + 1 - len(fields))))
        self.units.append(Unit(f"line {number}", text, translation, bool(translation.strip())))

    def edits(self, index: int, translation: str) -> Iterator[Edit]:
        start, end, before = self._places[index]
        original = self.text[start:end]
        if original != _unquoted(original, self._is_tsv):
            is_quoted = True
        elif self._is_tsv:
            is_quoted = False
            translation = re.sub(r"[\t\r\n]+", " ", translation)
        else:
            is_quoted = any(char in translation for char in f'"\r\n{self._separator}')
        written = '"' + translation.replace('"', '""') + '"' if is_quoted else translation
        yield Edit(start, end, before + written)


def pairs(
    path: Path, languages: tuple[str, str], columns: tuple[str, str] | None = None
) -> Iterator[tuple[str, str]]:
    """Yields the pairs of a CSV or TSV file. Rows without one of the texts are left out."""
    rest = (f"{line}\n" for line in lines_of_file(path))
    first_line = next(rest, "")
    lines = chain([first_line], rest)
    if is_tsv(path.name):
        rows = _tsv_rows(lines)
    else:
        rows = _csv_rows(lines, _separator(path.name, first_line), path)
    first = next(rows, None)
    if first is None:
        return
    source, target, has_header = _indices(first, columns, languages, str(path))
    for row in rows if has_header else chain([first], rows):
        if max(source, target) < len(row):
            pair = as_line(row[source]), as_line(row[target])
            if all(pair):
                yield pair


def is_tsv(name: str) -> bool:
    """Returns whether a file of this name, which can be compressed, has tabs."""
    return ".tsv" in Path(name.lower()).suffixes


def _tsv_rows(lines: Iterable[str]) -> Iterator[list[str]]:
    for line in lines:
        if line != "\n":
            yield [_unquoted(field, True) for field in line[:-1].split("\t")]


def _csv_rows(lines: Iterable[str], separator: str, path: Path) -> Iterator[list[str]]:
    reader = csv.reader(lines, delimiter=separator, strict=True)
    try:
        yield from filter(None, reader)
    except csv.Error as error:
        raise UserError(
            f"{path}, line {reader.line_num}: {error}. Are its quotes balanced?"
        ) from None


def _separator(name: str, text: str) -> str:
    if is_tsv(name):
        return "\t"
    first_row = re.sub('"[^"]*"', "", _FIRST_ROW.match(text)[0])
    return max(_SEPARATORS, key=first_row.count)


def _unquoted(field: str, is_tsv: bool) -> str:
    if _QUOTED_IN_TSV.fullmatch(field) if is_tsv else field.startswith('"'):
        return field[1:-1].replace('""', '"')
    return field


def _indices(
    first_row: list[str], columns: tuple[str, str] | None, languages: tuple[str, str], place: str
) -> tuple[int, int, bool]:
    """The places of the source and the target in a row, and whether the first row has names."""
    numbers = [str(number + 1) for number in range(len(first_row))]
    names = require_columns([*first_row, *numbers], columns, languages, place)
    indices = [numbers.index(name) if name in numbers else first_row.index(name) for name in names]
    return indices[0], indices[1], not set(names) <= set(numbers)
