"""Parquet files, as Hugging Face has them for its datasets: pairs for training."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from transformer_mt.formats.columns import require_columns, text_of
from transformer_mt.utils.errors import UsageError, UserError

_BATCH = 8192  # rows that are read at once


def pairs(
    path: Path, languages: tuple[str, str], columns: tuple[str, str] | None = None
) -> Iterator[tuple[str, str]]:
    """Yields the pairs of a Parquet file. Rows without one of the texts are left out.

    Args:
        columns: their names. That of a field in a struct has a dot: translation.en.

    Raises:
        UsageError: there is no such file or column, or pyarrow is not installed.
        UserError: the file can't be read, or a column has something else than texts.
    """
    try:
        from pyarrow import ArrowException  # type: ignore[import-untyped]
        from pyarrow.parquet import ParquetFile  # type: ignore[import-untyped]
    except ImportError:
        raise UsageError(
            f"{path}: Parquet files are read by the package pyarrow, which is not installed. "
            "Install it with: python -m pip install pyarrow"
        ) from None
    try:
        with ParquetFile(path) as file:
            schema = file.schema
            fields = {field.path: field for field in map(schema.column, range(len(schema)))}
            columns = require_columns(list(fields), columns, languages, str(path))
            for name in columns:
                if str(fields[name].logical_type) != "String":
                    raise UserError(f"{path}: the column {name} has something else than texts")
            for batch in file.iter_batches(_BATCH, columns=list(columns)):
                for record in batch.to_pylist():
                    source, target = (text_of(record, name) for name in columns)
                    if source and target:
                        yield source, target
    except FileNotFoundError:
        raise UsageError(f"{path}: there is no such file") from None
    except (ArrowException, OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: can't be read as a Parquet file: {error}") from None
