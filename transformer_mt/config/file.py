"""Config files: reading them with overrides, checking them, and writing them.

Nothing heavy is imported here, so that a mistake in a config is reported at once.
"""

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml
from pydantic import ValidationError

from transformer_mt.config import yaml_text
from transformer_mt.config.decoding import DecodingConfig
from transformer_mt.config.problems import describe, printable, shown, unknown_key
from transformer_mt.config.rules import RULES
from transformer_mt.config.schema import SECTIONS, Config
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
    config, own_problems, unknown = _validate(values)
    problems += own_problems
    if count := len(problems) + len(unknown):
        subject = f"{path}: {'1 problem' if count == 1 else f'{count} problems'}"
        raise _refusal(subject, problems, unknown)
    return config


def with_changes(decoding: DecodingConfig, changes: dict[str, Any]) -> DecodingConfig:
    """Returns the section with some keys replaced.

    Raises:
        UsageError: a value is wrong; the message names all problems at once.
    """
    changed, problems, unknown = _validate(
        {"decoding": decoding.model_dump() | changes}, "decoding"
    )
    if problems or unknown:
        raise UsageError("\n".join([*problems, *map(unknown_key, unknown)]))
    return changed


def require_together(config: Config, subject: str) -> None:
    """Checks the rules between the keys of a config that was put together from others.

    Raises:
        UsageError: some values cannot be combined; the message begins with `subject`.
    """
    if problems := _broken_rules(config.model_dump()):
        raise _refusal(subject, problems)


def dump(config: Config) -> str:
    """The resolved config as YAML that `load` reads back to an equal Config."""
    return yaml_text.dump(config.model_dump())


def changed(config: Config) -> dict[str, Any]:
    """Returns the values that differ from the schema's defaults, by their full names such as
    "training.max_steps", in the order of the schema. Keys without a default are included, as is
    "model_dir"."""
    values = {"model_dir": config.model_dir}
    for name, section in SECTIONS.items():
        given = getattr(config, name).model_dump()
        for key, field in section.model_fields.items():
            value = given[key]
            if field.is_required() or value != field.default:
                values[f"{name}.{key}"] = value
    return values


def _validate(given: dict[str, Any], only: str | None = None) -> tuple[Any, list[str], list[str]]:
    """Validates a whole config, or only one section of it.

    Returns: the config or section (None if a value is wrong), the problems, and the unknown keys.
        There may be thousands of unknown keys if the file is no config at all.
    """
    valid: Any = None
    problems, unknown, wrong = [], [], set()
    try:
        if only is None:
            valid = Config.model_validate(given)
        else:
            wrong = SECTIONS.keys() - {only}  # They are not given, so no rule may look at them.
            valid = SECTIONS[only].model_validate(given[only])
    except ValidationError as error:
        for item in error.errors():
            item["loc"] = item["loc"] if only is None else (only, *item["loc"])
            item["loc"] = tuple(part for part in item["loc"] if part not in FORMS)
            path = [str(part) for part in item["loc"]]
            if item["type"] == "extra_forbidden":
                unknown.append(".".join(path))
                if len(path) > 2:  # a key of a text in data.train
                    wrong.add(".".join(path[:2]))
            else:
                problems.append(describe(item))
                wrong.add(".".join(path[:2]))
    return valid, problems + _broken_rules(given, wrong), unknown


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


def _refusal(subject: str, problems: list[str], unknown: Sequence[str] = ()) -> UsageError:
    """An error that lists the first problems, and says how many more there are."""
    lines = [subject, *problems[:LISTED]]
    lines += [unknown_key(path) for path in unknown[: LISTED - len(problems[:LISTED])]]
    if (more := len(problems) + len(unknown) - LISTED) > 0:
        lines.append(f"... and {more:,} more")
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
        values = yaml_text.parse(text)
    except yaml.MarkedYAMLError as error:
        problem = printable(error.problem, 200)
        if mark := error.problem_mark:
            where = f", line {mark.line + 1}, column {mark.column + 1}"
            if re.match(" *\t", text.split("\n")[mark.line]):
                where = f", line {mark.line + 1}"
                problem = "a tab is no indentation; write spaces"
            elif "mapping values" in problem:
                problem += ". Is a space missing after a colon, here or in the line above?"
    except RecursionError:
        problem = "nested too deeply"
    except yaml.reader.ReaderError as error:
        where = f", line {text.count(chr(10), 0, error.position) + 1}"
        problem = f"there is a control character (U+{error.character:04X}) in it"
    except (yaml.YAMLError, ValueError) as error:
        problem = printable(str(error), 200)
    else:
        if isinstance(values, dict):
            return values
        raise UsageError(f"{name}: expected `model_dir` and the sections {', '.join(SECTIONS)}")
    raise UsageError(f"{name}{where}: not valid YAML: {problem}")


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
        with contextlib.suppress(*yaml_text.ERRORS):
            target[key] = yaml_text.parse(text)
    elif text in ("", "null") and kind == str | None:
        target[key] = None
    return None
