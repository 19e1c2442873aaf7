"""What every section of the config is made of: its base class, bounds of numbers, and rules."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Set
from operator import attrgetter
from types import SimpleNamespace
from typing import Annotated, Any, NamedTuple

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


class Rule(NamedTuple):
    """A combination of values that is refused.

    Attributes:
        key: the key that the problem is reported under, as in "model.num_heads".
        is_broken: tells from a config whether its values break the rule.
        message: what is wrong; `{model.d_model}` in it stands for that key's value.
    """

    key: str
    is_broken: Callable[[Any], object]
    message: str


def needs(option: str, key: str, needed: Any, reason: str) -> Rule:
    """The rule that `key` must have the value `needed` if `option` is turned on."""
    value, option_value = attrgetter(key), attrgetter(option)
    return Rule(
        option,
        lambda config: option_value(config) and value(config) != needed,
        f"needs {key}: {json.dumps(needed)}: {reason}",
    )


class _WrongValueError(Exception):
    """A rule looks at a value that is wrong in itself."""


class _GivenValues:
    """The values of a section as they are given, and the defaults of those that are not."""

    def __init__(self, section: type[Section], given: dict[str, Any], wrong: Set[str]) -> None:
        self._section, self._given, self._wrong = section, given, wrong

    def __getattr__(self, key: str) -> Any:
        if key in self._wrong:
            raise _WrongValueError
        attribute = vars(self._section).get(key)
        if isinstance(attribute, property):
            return attribute.fget(self)
        return self._given.get(key, self._section.model_fields[key].default)


def broken_rules(
    rules: Iterable[Rule],
    sections: dict[str, type[Section]],
    given: dict[str, Any],
    wrong: Set[str] = frozenset(),
) -> Iterator[tuple[str, Any, str]]:
    """The key, its value and the problem, for each rule that a config breaks.

    The rules are checked on the values as they are given, so that no mistake hides another. A rule
    is skipped if it looks at a value that is wrong in itself.

    Args:
        given: the values of each section, without those that are left to their defaults.
        wrong: names of sections and of keys ("model.d_model") that are wrong in themselves.
    """
    config = SimpleNamespace()
    for name, section in sections.items():
        if name in wrong:
            values = _GivenValues(section, {}, section.model_fields.keys())
        else:
            wrong_keys = {key for key in section.model_fields if f"{name}.{key}" in wrong}
            values = _GivenValues(section, given.get(name, {}), wrong_keys)
        setattr(config, name, values)
    for key, is_broken, message in rules:
        with contextlib.suppress(_WrongValueError):
            if is_broken(config):
                yield key, attrgetter(key)(config), message.format(**vars(config))
