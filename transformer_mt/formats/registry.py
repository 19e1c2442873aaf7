"""The formats of documents and of files with pairs, by the endings of their names."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path, PurePath
from types import ModuleType
from typing import NamedTuple

from transformer_mt.formats.document import Codes, Document
from transformer_mt.utils.errors import UsageError
from transformer_mt.utils.files import is_compressed


class Format(NamedTuple):
    """A format. Its module is imported when a file of this format is read.

    Attributes:
        module: the name of a module of this package. If files of the format have pairs, it has the
            function `pairs(path, languages, columns)`, and it may have `languages(path)`.
        document: the name of its class of documents; None if they are not translated.
        has_pairs: whether files of the format have pairs of a source and a target.
        has_columns: whether its files have columns, or fields. For a document, the user has to say
            which of them are translated.
    """

    module: str
    document: str | None
    has_pairs: bool = False
    has_columns: bool = False

    @property
    def is_whole_document(self) -> bool:
        """Whether its files are translated as documents without naming columns."""
        return self.document is not None and not self.has_columns

    def load(self) -> ModuleType:
        return import_module(f"transformer_mt.formats.{self.module}")


FORMATS = {
    ".po": Format("po", "PODocument", has_pairs=True),
    ".pot": Format("po", "PODocument"),
    ".tmx": Format("tmx", "Tmx", has_pairs=True),
    ".xlf": Format("xliff", "Xliff", has_pairs=True),
    ".xliff": Format("xliff", "Xliff", has_pairs=True),
    ".ts": Format("qt", "QtLinguist", has_pairs=True),
    ".xml": Format("android", "AndroidStrings"),
    ".resx": Format("resx", "Resx"),
    ".properties": Format("properties", "PropertiesDocument"),
    ".json": Format("json_values", "JSONDocument"),
    ".yaml": Format("yaml_values", "YAMLDocument"),
    ".yml": Format("yaml_values", "YAMLDocument"),
    ".csv": Format("tables", "TableDocument", has_pairs=True, has_columns=True),
    ".tsv": Format("tables", "TableDocument", has_pairs=True, has_columns=True),
    ".jsonl": Format("jsonl", "JSONLDocument", has_pairs=True, has_columns=True),
    ".parquet": Format("parquet", None, has_pairs=True, has_columns=True),
    ".srt": Format("subtitles", "SRTDocument"),
    ".vtt": Format("subtitles", "VTTDocument"),
    ".html": Format("html", "HTMLDocument"),
    ".htm": Format("html", "HTMLDocument"),
    ".xhtml": Format("html", "HTMLDocument"),
    ".md": Format("markdown", "MarkdownDocument"),
    ".docx": Format("docx", "DOCXDocument"),
    ".docm": Format("docx", "DOCXDocument"),
    ".odt": Format("odt", "ODTDocument"),
    ".pptx": Format("pptx", "PPTXDocument"),
    ".pptm": Format("pptx", "PPTXDocument"),
}


def is_document(path: PurePath, columns: tuple[str, str | None] | None = None) -> bool:
    """Returns whether a file is translated as a document, and not line by line.

    Args:
        columns: see `parse`. Without them, a table or JSON Lines are lines of text.
    """
    found = FORMATS.get(path.suffix.lower())
    return bool(found and (found.is_whole_document or (found.document and columns)))


def require_alike(source: PurePath, target: PurePath) -> None:
    """Checks that the name of a translated document ends like that of the source. Only a template
    of PO files may become a PO file.

    Raises:
        UsageError: it does not.
    """
    endings = source.suffix.lower(), target.suffix.lower()
    if endings[0] != endings[1] and endings != (".pot", ".po"):
        raise UsageError(
            f"{target}: a translated document stays in its format. Give a name that ends in "
            f"{source.suffix}, as that of {source} does"
        )


def read(
    path: Path, languages: tuple[str, str], columns: tuple[str, str | None] | None = None
) -> Document:
    """Reads a document.

    Args:
        languages, columns: see `parse`.

    Raises:
        UsageError: there is no such file; or see `parse`.
        UserError: see `parse`.
    """
    _require_document(path, str(path), columns)
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise UsageError(f"{path}: there is no such file") from None
    except OSError as error:
        raise UsageError(f"{path}: can't be read: {error.strerror}") from None
    return parse(content, str(path), languages, columns)


def parse(
    content: bytes,
    name: str,
    languages: tuple[str, str],
    columns: tuple[str, str | None] | None = None,
) -> Document:
    """Reads a document whose content is known.

    Args:
        name: of the file, whose ending tells the format.
        languages: the codes of the source and the target language.
        columns: of a table or JSON Lines: the column or field of the source, and that for the
            translation; None in its place: the translation replaces the source.

    Raises:
        UsageError: the format is unknown, or columns are missing or have no meaning for it.
        UserError: the content breaks a rule of its format.
    """
    found = _require_document(PurePath(name), name, columns)
    document = getattr(found.load(), str(found.document))
    arguments = (columns,) if found.has_columns else ()
    return document(content, name, languages, *arguments)


def _require_document(path: PurePath, name: str, columns: tuple[str, str | None] | None) -> Format:
    found = FORMATS.get(path.suffix.lower())
    if not found or not found.document:
        endings = ", ".join(ending for ending, its in FORMATS.items() if its.document)
        raise UsageError(f"{name}: not a document. Their names end in {endings}")
    if found.has_columns != (columns is not None):
        raise UsageError(
            f"{name}: the column to translate must be named"
            if found.has_columns
            else f"{name}: files whose names end in {path.suffix} have no columns"
        )
    return found


def pairs(
    path: Path, languages: tuple[str, str], columns: tuple[str, str] | None = None
) -> Iterator[tuple[str, str]]:
    """Returns the finished pairs of a file, each text as a line.

    Args:
        languages: the codes of the source and the target language.
        columns: of a table, JSON Lines or Parquet; None: `source` and `target`, the codes of the
            languages, or those within `translation`, as in the datasets of Hugging Face.

    Raises:
        UsageError: the file is not one of pairs, or does not have these columns.
        OtherLanguagesError: it has pairs of other languages alone.
        UserError: it breaks a rule of its format. All may come while the pairs are read.
    """
    found = _format_of_pairs(path)
    if columns and not found.has_columns:
        raise UsageError(f"{path}: files of this format have no columns")
    return found.load().pairs(path, languages, columns)


def languages_of_pairs(path: Path) -> Iterator[Codes]:
    """Returns the languages of each text of a file of pairs, or of the whole file; nothing if the
    format does not name them.

    Raises:
        UsageError, UserError: see `pairs`.
    """
    module = _format_of_pairs(path).load()
    return module.languages(path) if hasattr(module, "languages") else iter(())


def has_pairs(path: Path) -> bool:
    """Returns whether a file has pairs, judged by its name. It may be compressed."""
    found = FORMATS.get(ending(path))
    return found is not None and found.has_pairs


def _format_of_pairs(path: Path) -> Format:
    if not has_pairs(path):
        endings = ", ".join(ending for ending, its in FORMATS.items() if its.has_pairs)
        raise UsageError(f"{path}: not a file of pairs. Their names end in {endings}")
    return FORMATS[ending(path)]


def ending(path: Path) -> str:
    """Returns the ending of a name in lower case, without that of a compressed file."""
    return (path.with_suffix("") if is_compressed(path) else path).suffix.lower()
