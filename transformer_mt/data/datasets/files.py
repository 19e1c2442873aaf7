"""Text files of the user's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from transformer_mt.data.datasets.base import Dataset, SplitFiles, first_existing
from transformer_mt.runtime.errors import UsageError, UserError
from transformer_mt.runtime.files import lines


class Files(Dataset):
    """PREFIX.LANG for each language, line by line, or one file of source<TAB>target whose name ends
    in .tsv. All of them can be gzipped."""

    needs_root = True

    def find(
        self, root: str | None, name: str, value: str, languages: tuple[str, str]
    ) -> SplitFiles:
        folder, key = Path(root), f"data.{name}"
        if not folder.is_dir():
            raise UsageError(f"data.root: {folder}: there is no such folder")
        if value.endswith((".tsv", ".tsv.gz")):
            return SplitFiles((first_existing(folder, [value], key),))
        names = (f"{value}.tsv", f"{value}.tsv.gz")
        tsv = next((other for other in names if (folder / other).is_file()), None)
        hint = f", but there is {tsv}; write {key}={tsv}" if tsv else ""
        source, target = (
            first_existing(folder, [f"{value}.{lang}", f"{value}.{lang}.gz"], key, hint)
            for lang in languages
        )
        return SplitFiles((source, target))

    @staticmethod
    def read(data_files: list[str]) -> Iterator[dict[str, str]]:
        if len(data_files) == 2:
            yield from Dataset.read(data_files)
            return
        (path,) = data_files
        for number, line in enumerate(lines(Path(path)), 1):
            columns = line.split("\t")
            if len(columns) != 2:
                raise UserError(
                    f"{path}, line {number}: {len(columns)} column(s), expected source<TAB>target"
                )
            yield {"source": columns[0], "target": columns[1]}
