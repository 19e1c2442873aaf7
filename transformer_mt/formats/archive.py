"""The zip files that office documents are: read with limits, and written with some members changed.

Nothing is written to a disk.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO

from transformer_mt.utils.errors import UserError
from transformer_mt.utils.zips import MB, ZipArchive

_LARGEST = 200 * MB
_OLD_OR_ENCRYPTED = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"  # OLE, which Office puts around both


class Archive:
    """The members of a zip file.

    Args:
        content: the file.
        name: its name, in messages.

    Raises:
        UserError: it is damaged or encrypted, or its members are not those of a document.
    """

    def __init__(self, content: bytes, name: str) -> None:
        if content.startswith(_OLD_OR_ENCRYPTED):
            raise UserError(
                f"{name} is protected by a password, or has the format of Office before 2007. Save "
                "it without a password, in the present format"
            )
        self.name = name
        with self._telling():
            self._zip = ZipArchive(BytesIO(content), _LARGEST)
        self._names = set(self._zip.names())

    def __contains__(self, member: str) -> bool:
        return member in self._names

    def read(self, member: str) -> bytes:
        """Returns the content of a member."""
        with self._telling():
            return self._zip.read(member).tobytes()

    def with_members(self, changed: Mapping[str, bytes]) -> bytes:
        """Returns the zip file with some members changed, as `ZipArchive.copy_to` writes it."""
        result = BytesIO()
        with self._telling():
            self._zip.copy_to(result, changed)
        return result.getvalue()

    @contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            raise UserError(
                f"{self.name} can't be read as a document: {error}. Open it in its program, and "
                "save it again"
            ) from None
