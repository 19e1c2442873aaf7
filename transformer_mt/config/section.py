"""What every section of the config is made of: its base class, its texts, and the types of values.

The docstring of a section introduces it, and the docstring below a key explains the key. These are
the texts that users read: scripts/write_reference.py puts them into the comments of
configs/demo.yaml and into the site of the documents, and the flags of the commands show them in
`--help`.

Their form is simple. The first sentence says what the key is. A line that contains two or more
spaces in a row describes a value: the value (or several, separated by commas), the spaces, and its
meaning. Formulas are in backticks. The default is not mentioned, because it is added.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError


class Section(BaseModel):
    """A section of the config. Unknown keys and values of a wrong type are errors."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        validate_default=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )

    @field_validator("*", mode="before")
    @classmethod
    def _require_utf8(cls, value: Any) -> Any:
        # Python stands for other bytes, as in the name of a folder, by halves of characters.
        if isinstance(value, str) and re.search("[\ud800-\udfff]", value):
            raise PydanticCustomError(
                "utf8", "not UTF-8, so no recipe can hold it; use other names"
            )
        return value


# ------------------------------------------------------------------------------------------- texts


def parts(text: str) -> list[str | dict[str, str]]:
    """Splits the text of a key or section into its paragraphs, and its lists of values with the
    meaning of each."""
    result: list[str | dict[str, str]] = []
    for line in filter(None, map(str.strip, text.split("\n"))):
        last = result[-1] if result else None
        if value := re.fullmatch(r"(\S+(?: \S+)*) {2,}(.*)", line):
            if not isinstance(last, dict):
                result.append(last := {})
            last[value[1]] = value[2]
        elif isinstance(last, str):
            result[-1] = f"{last} {line}"
        else:
            result.append(line)
    return result


def one_line(text: str) -> str:
    """The text of a key as one line, for `--help`."""
    listed = [
        part if isinstance(part, str) else "; ".join(map(": ".join, part.items())) + "."
        for part in parts(text)
    ]
    return " ".join(listed)


# ------------------------------------------------------------------------------------------- types


# Numbers are bounded where arithmetic would fail or memory would run out at once. The bounds lie
# far beyond all useful values.

# No array could hold more elements than this.
PositiveInt = Annotated[int, Field(gt=0, lt=2**31)]
NaturalNumber = Annotated[int, Field(ge=0, lt=2**31)]
PositiveFloat = Annotated[float, Field(gt=0)]
Probability = Annotated[float, Field(ge=0, lt=1)]

NonEmptyText = Annotated[str, Field(min_length=1)]


def is_symbol(text: str) -> bool:
    """Returns whether a text can be a subword by itself: it has no space and no control character,
    and neither U+2581, which SentencePiece writes for a space, nor U+2585, for which it ignores a
    line."""
    return bool(text) and text.isprintable() and not set(text) & {" ", "\u2581", "\u2585"}


def _symbol(text: str) -> str:
    if is_symbol(text):
        return text
    raise PydanticCustomError("symbol", "expected a word without spaces, such as <bt>")


Symbol = Annotated[str, AfterValidator(_symbol)]


def default_by(key: str, defaults: Mapping[str, float]) -> AfterValidator:
    """Puts a default that depends on the value of another key of the section in the place of null.

    The other key must stand before this one.
    """

    def replace_null(value: float | None, info: ValidationInfo) -> float | None:
        return defaults.get(info.data.get(key)) if value is None else value

    return AfterValidator(replace_null)
