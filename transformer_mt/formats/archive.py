"""The zip files that office documents are: read with limits, and written with some members changed.

Nothing is written to a disk.
"""

from __future__ import annotations

import copy
import zipfile
import zlib
from collections.abc import Mapping
from io import BytesIO

from transformer_mt.utils.errors import UserError

_MB = 1 << 20
_LARGEST = 200 * _MB
# Text of XML is seldom compressed to less than a thirtieth; that of a bomb is to a thousandth.
_LARGEST_RATIO = 100
_RATIO_COUNTS_FROM = 10 * _MB
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
        try:
            self._file = zipfile.ZipFile(BytesIO(content))
        except (zipfile.BadZipFile, ValueError, NotImplementedError, OverflowError) as error:
            raise self._damaged(error) from None
        self._members: dict[str, zipfile.ZipInfo] = {}
        total = 0
        for member in self._file.infolist():
            self._check(member)
            total += member.file_size
            if total > _LARGEST:
                raise UserError(
                    f"{name} has more than {_LARGEST // _MB} MB of content when it is "
                    "decompressed. Such documents are not read; split it"
                )
            self._members[member.filename] = member

    def __contains__(self, member: str) -> bool:
        return member in self._members

    def read(self, member: str) -> bytes:
        """Returns the content of a member."""
        return self._read(self._members[member])

    def with_members(self, changed: Mapping[str, bytes]) -> bytes:
        """Returns the zip file with some members changed. The others keep their content, and all
        keep their order, times and compression."""
        result = BytesIO()
        with zipfile.ZipFile(result, "w") as file:
            file.comment = self._file.comment
            for name, member in self._members.items():
                content = changed[name] if name in changed else self._read(member)
                file.writestr(copy.copy(member), content)
        return result.getvalue()

    def _check(self, member: zipfile.ZipInfo) -> None:
        inside = f"{self.name}: its member {member.filename!r}"
        if member.flag_bits & 0x1:
            raise UserError(f"{inside} is encrypted. Save the document without a password")
        parts = member.filename.replace("\\", "/").split("/")
        if member.filename.startswith(("/", "\\")) or ".." in parts or ":" in parts[0]:
            raise UserError(f"{inside} is named like a file outside. No document has that")
        if member.filename in self._members:
            raise UserError(f"{inside} is there twice. No document has that")
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise UserError(f"{inside} is compressed in a way that documents do not have")
        if (
            member.file_size > _RATIO_COUNTS_FROM
            and member.file_size > _LARGEST_RATIO * member.compress_size
        ):
            raise UserError(
                f"{inside} is more than {_LARGEST_RATIO} times as large as it is compressed. Such "
                "documents are not read, because they can fill the memory"
            )

    def _read(self, member: zipfile.ZipInfo) -> bytes:
        try:
            # zipfile reads no more than the size that was checked, and verifies the checksum.
            return self._file.read(member)
        except (
            zipfile.BadZipFile,
            zlib.error,
            EOFError,
            OSError,
            ValueError,
            NotImplementedError,
        ) as error:
            raise self._damaged(error) from None

    def _damaged(self, error: Exception) -> UserError:
        return UserError(
            f"{self.name} is damaged, or not a document of this kind: {error}. "
            "Open it in its program, and save it again"
        )
