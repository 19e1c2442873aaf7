"""Config files: reading them with overrides, checking them, and writing them.

Nothing heavy is imported here, so that a mistake in a config is reported at once.
"""

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Set
from operator import attrgetter
from pathlib import Path
from string import Template
from types import SimpleNamespace
from typing import Any

import yaml
from pydantic import ValidationError

from transformer_mt.config.decoding import DecodingConfig
from transformer_mt.config.problems import describe, printable, shown, unknown_key
from transformer_mt.config.rules import RULES
from transformer_mt.config.schema import SECTIONS, Config
from transformer_mt.config.section import Section
from transformer_mt.config.text import FORMS, DataConfig
from transformer_mt.utils.errors import UsageError

Complete = Callable[[dict[str, Any]], None]

# The keys that name files and folders.
PATHS = (
    *("model_dir", "data.root", "data.cache", "subword.vocabulary", "training.init_from"),
    "guided_attention.alignments",
)
_VARIABLE = re.compile(r"\$(\w+|\{[^}]*\})")
# An error message lists at most this many problems.
LISTED = 20


def load(
    path: str | Path,
    overrides: Iterable[str] = (),
    complete: Complete = lambda values: None,
) -> Config:
    """Reads and validates a config file, with `section.key=value` overrides in place of its values.

    Args:
        complete: may add values to the sections, before they are validated.

    Raises:
        UsageError: the file is no config; the message names all problems at once.
    """
    return parse(_read(Path(path)), str(path), overrides, complete)


def parse(
    text: str,
    path: str,
    overrides: Iterable[str] = (),
    complete: Complete = lambda values: None,
) -> Config:
    """Validates the text of a config file, as `load` does.

    Args:
        path: the name of the file in messages.
    """
    values = _parse(text, path)
    problems = [problem for text in overrides if (problem := _apply_override(values, text))]
    problems += _expand_paths(values)
    complete(values)
    config, own_problems = _validate(Config, values)
    if problems := [*problems, *own_problems]:
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        raise _refusal(f"{path}: {count}", problems)
    return config


class _OnlyDecoding(Section):
    """A config without the other sections."""

    decoding: DecodingConfig


def with_changes(decoding: DecodingConfig, changes: dict[str, Any]) -> DecodingConfig:
    """Returns the section with some keys replaced.

    Raises:
        UsageError: a value is wrong; the message names all problems at once.
    """
    values = {"decoding": decoding.model_dump() | changes}
    changed, problems = _validate(_OnlyDecoding, values)
    if problems:
        raise UsageError("\n".join(problems))
    return changed.decoding


def require_together(config: Config, subject: str) -> None:
    """Checks the rules between the keys of a config that was put together from others.

    Raises:
        UsageError: some values cannot be combined; the message begins with `subject`.
    """
    if problems := _broken_rules(config.model_dump()):
        raise _refusal(subject, problems)


def dump(config: Config) -> str:
    """The resolved config as YAML that `load` reads back to an equal Config."""
    return dump_yaml(config.model_dump())


def changed(config: Config) -> dict[str, Any]:
    """Returns the values that differ from the schema's defaults, by their full names such as
    "training.max_steps", in the order of the schema. Keys without a default are included, as is
    "model_dir"."""
    values = {"model_dir": config.model_dir}
    given = config.model_dump(exclude={"model_dir"}, exclude_defaults=True)
    for name, section in given.items():
        values |= {f"{name}.{key}": value for key, value in section.items()}
    return values


def _validate(schema: type[Section], given: dict[str, Any]) -> tuple[Any, list[str]]:
    """Validates a config.

    Args:
        schema: Config, or another class that has some of its sections.

    Returns: the config (None if a value is wrong), and all problems, unknown keys last.
    """
    valid: Any = None
    problems: list[str] = []
    unknown: list[str] = []
    # No rule may look at sections that are not given.
    wrong = SECTIONS.keys() - schema.model_fields.keys()
    try:
        valid = schema.model_validate(given)
    except ValidationError as error:
        for item in error.errors():
            item["loc"] = tuple(part for part in item["loc"] if part not in FORMS)
            key = ".".join(map(str, item["loc"][:2]))
            if item["type"] != "extra_forbidden":
                problems.append(describe(item))
                wrong.add(key)
                continue
            # There may be thousands of unknown keys if the file is no config at all.
            unknown.append(describe(item) if len(unknown) < LISTED else key)
            if len(item["loc"]) > 2:  # a key of a text in data.train
                wrong.add(key)
    return valid, problems + _broken_rules(given, wrong) + unknown


def _broken_rules(given: dict[str, Any], wrong: Set[str] = frozenset()) -> list[str]:
    """Returns a line with the key, its value and the problem, for each rule that a config breaks.

    The rules are checked on the values as they are given, so that no mistake hides another; but no
    problem is reported that involves a value that is wrong in itself.

    Args:
        given: the values of each section, without those that are left to their defaults.
        wrong: names of sections and of keys ("model.d_model") that are wrong in themselves.
    """
    config: Any = SimpleNamespace()
    for name, section in SECTIONS.items():
        values = dict.fromkeys(
            key for key, field in section.model_fields.items() if field.is_required()
        )
        if name not in wrong:
            own = given.get(name, {})
            known = section.model_fields.keys() & own.keys()
            values |= {key: own[key] for key in known if f"{name}.{key}" not in wrong}
        setattr(config, name, section.model_construct(**values))
    lines = []
    for rule in RULES:
        for keys, problem in rule(config):
            if not any(key in wrong or key.partition(".")[0] in wrong for key in keys):
                lines.append(f"{keys[0]}: {shown(attrgetter(keys[0])(config))}: {problem}")
    return lines


def _refusal(subject: str, problems: list[str]) -> UsageError:
    """An error that lists the first problems, and says how many more there are."""
    lines = [subject, *problems[:LISTED]]
    if len(problems) > LISTED:
        lines.append(f"... and {len(problems) - LISTED:,} more")
    return UsageError("\n  ".join(lines))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(f"{path}: there is no such config file") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{path}, line {line}: not UTF-8, as a config must be") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: can't be read as a config: {error}") from None


def _parse(text: str, name: str) -> dict[str, Any]:
    where = ""
    try:
        values = parse_yaml(text)
    except YAML_ERRORS as error:
        problem = str(error)
        if isinstance(error, yaml.MarkedYAMLError):
            problem = error.problem
            if mark := error.problem_mark:
                where = f", line {mark.line + 1}, column {mark.column + 1}"
        if "mapping values" in problem:
            problem += ". Is a space missing after a colon, here or in the line above?"
        problem = f"not valid YAML: {printable(problem, 200)}"
    else:
        if isinstance(values, dict):
            return values
        problem = f"expected `model_dir` and the sections {', '.join(SECTIONS)}"
    raise UsageError(f"{name}{where}: {problem}")


def _expand_paths(values: dict[str, Any]) -> Iterator[str]:
    """Expands ~ and $NAME in the paths of a parsed file. Yields the problems."""
    for name in PATHS:
        section, _, key = name.rpartition(".")
        target = values.get(section) if section else values
        text = target.get(key) if isinstance(target, dict) else None
        if not isinstance(text, str):
            continue
        target[key] = path = os.path.expandvars(os.path.expanduser(text))
        if path.startswith("~"):
            yield f"{name}: {shown(text)}: no such user; a file of this name is written ./~..."
        elif unset := _VARIABLE.search(path):
            yield f"{name}: {shown(text)}: the environment variable {unset[0]} is not set"


def _apply_override(values: dict[str, Any], override: str) -> str | None:
    """Puts `section.key=value` into the parsed file; returns the problem, if there is one."""
    path, equals, text = override.partition("=")
    section, _, key = path.partition(".")
    if not equals or not path:
        return f"{shown(override)}: expected section.key=value, as in training.max_steps=1000"
    if path == "model_dir":
        values[path] = text
        return None
    if section in SECTIONS and not key:
        example = next(iter(SECTIONS[section].model_fields))
        return f"{path}: a section; give one of its keys, as in {section}.{example}=..."
    if section not in SECTIONS:
        return unknown_key(path)
    target = values.setdefault(section, {})
    if not isinstance(target, dict):
        return None  # The file's own section is wrong; the schema reports that.
    target[key] = text
    field = SECTIONS[section].model_fields.get(key)
    kind = None if field is None else field.annotation
    training_texts = DataConfig.model_fields["train"].annotation
    is_list = kind == training_texts and text.startswith("[")
    if kind not in (str, str | None, training_texts) or is_list:
        # For text that is no YAML, the schema reports what it expected.
        with contextlib.suppress(*YAML_ERRORS):
            target[key] = parse_yaml(text)
    elif text in ("", "null") and kind == str | None:
        target[key] = None
    return None


# ---- YAML: the scalars of version 1.2, by PyYAML ----

# What PyYAML raises for text that is no YAML, or a value that is not what it looks like.
YAML_ERRORS = (yaml.YAMLError, ValueError, RecursionError)


def parse_yaml(text: str) -> Any:
    """The value that a YAML document stands for.

    Raises: one of YAML_ERRORS; a `yaml.MarkedYAMLError` knows the place.
    """
    return yaml.load(text, Loader=_Loader)


def dump_yaml(values: dict[str, Any]) -> str:
    """YAML that `parse_yaml` reads back to equal values. Each value is on one line."""
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


_TAG = "tag:yaml.org,2002:"
_BOOLS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
for _name, _pattern, _first, _convert in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""], lambda text: None),
    ("bool", "|".join(_BOOLS), list("tTfF"), _BOOLS.__getitem__),
    # PyYAML's own constructors read "010" as octal and "1_0" as ten.
    ("int", r"[-+]?[0-9]+", list("-+0123456789"), int),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", list("-+.0123456789"), float),
    ("merge", r"<<", ["<"], None),
):
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(_TAG + _name, re.compile(rf"^(?:{_pattern})\Z"), _first)
    if _convert:
        _Loader.add_constructor(_TAG + _name, _constructor(_convert))
_Dumper.add_representer(str, _represent_text)


# ---- The recipe of the command `new` ----


def recipe_text(template: str, values: dict[str, Any], blocks: dict[str, str], file: str) -> str:
    """Returns a recipe for text files, whose comments explain every line.

    Args:
        template: recipe.yaml, or fine_tuning.yaml.
        values: a value for each name in the template.
        blocks: whole lines in place of a name.
        file: the name of the recipe, as it is typed at a shell.
    """
    text = Path(__file__).with_name(template).read_text(encoding="utf-8")
    shown = {key: on_a_line(value) for key, value in values.items()}
    return Template(text).substitute(shown, **blocks, file=file)


def on_a_line(value: Any) -> str:
    """Returns a value as YAML without a line end."""
    if isinstance(value, list):
        return f"[{', '.join(map(_in_a_list, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_in_a_list(own)}' for key, own in value.items())}}}"
    return dump_yaml({"": value}).partition(": ")[2].rstrip("\n")


def _in_a_list(value: Any) -> str:
    # YAML takes these characters for the end of an item. A string of JSON is one of YAML.
    is_split = isinstance(value, str) and not {*",[]{}"}.isdisjoint(value)
    return json.dumps(value, ensure_ascii=False) if is_split else on_a_line(value)
