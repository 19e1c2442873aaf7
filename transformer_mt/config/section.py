"""What every section of the config is made of: its base class, bounds of numbers, and rules."""

import json
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError


class Section(BaseModel):
    """A section of the config. Unknown keys and values of a wrong type are errors."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, validate_default=True, allow_inf_nan=False
    )


# ------------------------------------------------------------------------------------------ bounds


def at_least(least: float, reason: str) -> AfterValidator:
    """A lower bound whose error message gives the reason for it."""
    return _bound(lambda value: value >= least, f"expected at least {least:g}: {reason}")


def at_most(most: float, reason: str) -> AfterValidator:
    """An upper bound whose error message gives the reason for it."""
    return _bound(lambda value: value <= most, f"expected at most {most:g}: {reason}")


def _bound(holds: Callable[[float], bool], message: str) -> AfterValidator:
    def check(value: float) -> float:
        if not holds(value):
            raise PydanticCustomError("bound", message)
        return value

    return AfterValidator(check)


# Numbers are bounded where arithmetic would fail or memory would run out at once. The bounds lie
# far beyond all useful values.

# No array could hold more elements than this.
PositiveInt = Annotated[int, Field(gt=0, lt=2**31)]
NaturalNumber = Annotated[int, Field(ge=0, lt=2**31)]
PositiveFloat = Annotated[float, Field(gt=0)]
Probability = Annotated[float, Field(ge=0, lt=1)]


# ------------------------------------------------------------------------------------------- rules

# A rule looks at a config and yields its problems. A problem is the keys that it is about, of which
# the first is the one to report it under, and a message.
Problems = Iterator[tuple[tuple[str, ...], str]]


def needs(config: Any, option: str, key: str, needed: Any, reason: str = "") -> Problems:
    """The rule that `key` must have the value `needed` if `option` is turned on."""
    if attrgetter(option)(config) and attrgetter(key)(config) != needed:
        shown = needed if isinstance(needed, str) else json.dumps(needed)
        yield (option, key), f"needs {key}: {shown}" + (f": {reason}" if reason else "")
