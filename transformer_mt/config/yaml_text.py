"""YAML as this project reads and writes it: version 1.2's scalars, by PyYAML."""

import re
from collections.abc import Callable
from typing import Any

import yaml

# What PyYAML raises for text that is no YAML, or a value that is not what it looks like.
ERRORS = (yaml.YAMLError, ValueError, RecursionError)


def parse(text: str) -> Any:
    """The value that a YAML document stands for.

    Raises: one of ERRORS; a `yaml.MarkedYAMLError` knows the place.
    """
    return yaml.load(text, Loader=_Loader)


def dump(values: dict[str, Any]) -> str:
    """YAML that `parse` reads back to equal values. Each value is on one line."""
    return yaml.dump(
        values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=float("inf")
    )


class _Loader(yaml.SafeLoader):
    """YAML 1.2's scalars: `1e-9` is a number, `no` (Norwegian) is text; a key given twice is an
    error."""

    yaml_implicit_resolvers: dict = {}  # noqa: RUF012 (PyYAML's own attribute)

    def compose_mapping_node(self, anchor: str | None) -> yaml.MappingNode:
        # Here and not where the mapping is constructed: by then `<<` has put other keys into it.
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key_node, _ in node.value:
            key, mark = key_node.value, key_node.start_mark
            if key_node.tag not in (_TAG + "str", _TAG + "merge"):
                shown = repr(key) if isinstance(key, str) else "a list or a mapping"
                raise yaml.MarkedYAMLError(None, None, f"a key must be text, not {shown}", mark)
            if key in seen:
                raise yaml.MarkedYAMLError(None, None, f"the key {key!r} is given twice", mark)
            seen.add(key)
        return node


class _Dumper(yaml.SafeDumper):
    """Puts text in quotes that _Loader, or a reader of YAML 1.1, would take for something else."""


def _represent_text(dumper: _Dumper, text: str) -> yaml.Node:
    # Left to itself, PyYAML writes U+0085 in single quotes, where it reads a space.
    style = None if text.isprintable() else '"'
    return dumper.represent_scalar(_TAG + "str", text, style=style)


def _constructor(convert: Callable[[str], Any]) -> Callable[[_Loader, yaml.Node], Any]:
    def construct(loader: _Loader, node: yaml.Node) -> Any:
        try:
            return convert(loader.construct_scalar(node))
        except (ValueError, KeyError) as error:
            problem = f"not a {node.tag.removeprefix(_TAG)}: {error}"
            raise yaml.MarkedYAMLError(None, None, problem, node.start_mark) from None

    return construct


def _whole_number(text: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        # Python makes no int of more than 4,300 digits; as a float, they are infinite.
        return float(text)


_TAG = "tag:yaml.org,2002:"
_BOOLS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
for _name, _pattern, _first, _convert in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""], lambda text: None),
    ("bool", "|".join(_BOOLS), list("tTfF"), _BOOLS.__getitem__),
    # PyYAML's own constructors read "010" as octal and "1_0" as ten.
    ("int", r"[-+]?[0-9]+", list("-+0123456789"), _whole_number),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", list("-+.0123456789"), float),
    ("merge", r"<<", ["<"], None),
):
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(_TAG + _name, re.compile(rf"^(?:{_pattern})\Z"), _first)
    if _convert:
        _Loader.add_constructor(_TAG + _name, _constructor(_convert))
_Dumper.add_representer(str, _represent_text)
