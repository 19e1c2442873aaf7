"""The references of config keys and commands for the site, and the comments of configs/demo.yaml.

Their texts come from the config's schema and from the commands. Run this after a change of the
schema, to write configs/demo.yaml:

    .venv/bin/python scripts/write_reference.py
"""

import argparse
import inspect
import json
import re
import textwrap
import types
import typing
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic.fields import FieldInfo

from transformer_mt.cli import COMMANDS, EXIT_CODES, parsers_of
from transformer_mt.commands.arguments import MODEL_GROUP, SETTINGS_GROUP
from transformer_mt.config.rules import RULES
from transformer_mt.config.schema import SECTIONS, Config
from transformer_mt.config.section import Section, parts
from transformer_mt.config.text import DataConfig

ROOT = Path(__file__).resolve().parents[1]
DEMO = ROOT / "configs" / "demo.yaml"
# Of demo.yaml: the longest line, and the column of the comments that stand beside a value.
WIDTH, COLUMN = 96, 28


# --------------------------------------------------------------------------------------- defaults


def default_of(field: FieldInfo) -> str | None:
    """The default of a key as YAML, or None if the key is required."""
    if field.is_required():
        return None
    text = field.default if isinstance(field.default, str) else json.dumps(field.default)
    return re.sub(r"^(\d)e-0*", r"\1.0e-", text)  # YAML 1.1 takes 1e-9 for text


# -------------------------------------------------------------------------------------- demo.yaml


def demo_yaml(text: str) -> str:
    """demo.yaml with the same header and values, and with comments from the schema."""
    blocks = [text.partition("\n\n")[0]]
    root = yaml.compose(text)
    given = {key.value: node for key, node in root.value}
    entry = _entry(
        "model_dir", Config.model_fields["model_dir"], _written(text, given["model_dir"])
    )
    blocks.append(entry)
    for name, section in SECTIONS.items():
        values = {key.value: _written(text, node) for key, node in given[name].value}
        lines = [*_comment(section.__doc__, ""), f"{name}:"]
        for key, field in section.model_fields.items():
            if key not in values:
                raise SystemExit(f"configs/demo.yaml lacks {name}.{key}")
            lines.append(textwrap.indent(_entry(key, field, values[key], "  "), "  "))
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def _written(text: str, node: yaml.Node) -> str:
    """A value as it is written in the file, such as 1.0e-9."""
    return text[node.start_mark.index : node.end_mark.index]


def _entry(key: str, field: FieldInfo, value: str, indent: str = "") -> str:
    """A key with its comment: beside it if there is room, or above it."""
    default = default_of(field)
    last = "It is required." if default is None else f"Default: {default}"
    comment = _comment(field.description, indent, last)
    beside = f"{key}: {value}".ljust(COLUMN - len(indent)) + comment[0]
    has_room = beside[COLUMN - len(indent) - 1] == " " and len(indent + beside) <= WIDTH
    if len(comment) == 1 and has_room:
        return beside
    return "\n".join([*comment, f"{key}: {value}"])


def _comment(text: str, indent: str, last: str = "") -> list[str]:
    """The lines of a comment. `last` is added to its end."""
    texts = parts(text)
    if last and isinstance(texts[-1], dict):
        texts.append(last)
    elif last:
        texts[-1] += f" {last}"
    lines = []
    for part in texts:
        if isinstance(part, str):
            lines += _wrapped(part, "# ", indent)
            continue
        width = max(map(len, part))
        for name, meaning in part.items():
            lines += _wrapped(meaning, f"#   {name:{width}}  ", indent)
    return lines


def _wrapped(text: str, start: str, indent: str) -> list[str]:
    text = text.replace("Default: ", "Default:\0")  # is not divided
    further = "#".ljust(len(start))
    lines = textwrap.wrap(
        text,
        WIDTH - len(indent),
        initial_indent=start,
        subsequent_indent=further,
        break_on_hyphens=False,
        break_long_words=False,
    )
    return [line.replace("\0", " ") for line in lines]


# -------------------------------------------------------------------------------------- config.md


def config_reference() -> str:
    """Every key of a recipe, for the page of the site."""
    blocks = [*_key("## `model_dir`", Config, "model_dir")]
    for name, section in SECTIONS.items():
        blocks.append(f"## {name}\n")
        blocks += _markdown(section.__doc__)
        for key in section.model_fields:
            blocks += _key(f"### `{name}.{key}`", section, key)
    blocks.append("## Rules between keys\n")
    blocks.append("These combinations are checked before training:\n")
    blocks.append("\n".join(inspect.cleandoc(rule.__doc__) for rule in RULES) + "\n")
    return "\n".join(blocks)


def _key(heading: str, section: type[Section], key: str) -> list[str]:
    default = default_of(section.model_fields[key])
    values = _values(typing.get_type_hints(section, include_extras=True)[key])
    values.append("required" if default is None else f"default: `{default}`")
    text = section.model_fields[key].description
    return [f"{heading}\n", _fill(" · ".join(values)) + "\n", *_markdown(text)]


def _values(annotation: Any, metadata: tuple = ()) -> list[str]:
    """Which values a type allows, as a list of phrases."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return _values(arguments[0], arguments[1:])
    if annotation == DataConfig.model_fields["train"].annotation:
        return ["text, or list of texts and mappings"]
    if origin in (types.UnionType, typing.Union):
        (other,) = (argument for argument in arguments if argument is not types.NoneType)
        first, *rest = _values(other)
        return [f"{first} or `null`", *rest]
    if origin is Literal:
        return [", ".join(f"`{name}`" for name in arguments)]
    if origin is list and typing.get_origin(arguments[0]) is Literal:
        return [f"list of {', '.join(_values(arguments[0]))}"]
    if origin is list and _values(arguments[0]) == ["text"]:
        return ["list of texts"]
    if origin is dict:
        first, *rest = _values(arguments[1])
        return [f"mapping of texts to {first}s", *rest]
    if origin is list:
        (length,) = (one.min_length for one in _constraints(metadata) if isinstance(one, MinLen))
        return [f"list of {length} numbers", *_values(arguments[0])[1:]]
    names = {bool: "`true`, `false`", int: "whole number", float: "number", str: "text"}
    return [names[annotation], *_limits(metadata, annotation is int)]


def _constraints(metadata: tuple) -> list:
    fields = [one for one in metadata if isinstance(one, FieldInfo)]
    return [constraint for field in fields for constraint in field.metadata]


def _limits(metadata: tuple, is_whole: bool) -> list[str]:
    least = most = None
    for one in _constraints(metadata):
        match one:
            case Gt(gt=value) if is_whole:
                least = f"at least {value + 1:,}"
            case Gt(gt=value):
                least = f"above {value:,}"
            case Ge(ge=value):
                least = f"at least {value:,}"
            case Le(le=value):
                most = f"at most {value:,}"
            case Lt(lt=value) if value != 2**31:
                most = f"below {value:,}"
    return [limit for limit in (least, most) if limit]


def _markdown(text: str) -> list[str]:
    """The text of a key or section as blocks of Markdown."""
    blocks = []
    for part in parts(text):
        if isinstance(part, str):
            blocks.append(_fill(part) + "\n")
        else:
            lines = (_fill(f"- {_code(names)}: {part[names]}", "  ") for names in part)
            blocks.append("\n".join(lines) + "\n")
    return blocks


def _code(names: str) -> str:
    return ", ".join(f"`{name}`" for name in names.split(", "))


def _fill(text: str, indent: str = "") -> str:
    """A paragraph with links to recipes, and with flags as code."""
    text = re.sub(r"`[^`]*`|--[a-z][\w-]*|configs/\w+\.yaml", _as_markdown, text)
    return textwrap.fill(text, 100, subsequent_indent=indent, break_on_hyphens=False)


def _as_markdown(match: re.Match) -> str:
    if match[0].startswith("configs/"):
        return f"[{match[0]}](../{match[0]})"
    return match[0] if match[0].startswith("`") else f"`{match[0]}`"


def _link(title: str, text: str = "") -> str:
    anchor = re.sub(r"[^\w -]", "", title).lower().replace(" ", "-")
    return f"[{text or title}](#{anchor})"


# ------------------------------------------------------------------------------------ commands.md

MODEL_TITLE, SETTINGS_TITLE = "Options for the model", "Decoding settings"


def commands_reference() -> str:
    """Every command with its options, for the page of the site."""
    blocks = ["## Shell scripts\n"]
    for name in ("train", "translate", "evaluate", "reproduce", "setup", "test"):
        script = (ROOT / "scripts" / f"{name}.sh").read_text("utf-8")
        usage = re.search(r"usage='(.*?)'", script, re.DOTALL)[1]
        blocks += [f"### scripts/{name}.sh\n", f"```text\n{usage}\n```\n"]
    for name, summary in COMMANDS.items():
        blocks += _command(name, summary)
    groups = _groups(_parser("translate"))
    blocks.append(f"## {MODEL_TITLE}\n")
    *names, last = (f"`{name}`" for name in COMMANDS if MODEL_GROUP in _groups(_parser(name)))
    blocks.append(f"The commands {', '.join(names)} and {last} share these options.\n")
    blocks.append(_options(_parser("translate"), groups[MODEL_GROUP]))
    blocks.append(f"## {SETTINGS_TITLE}\n")
    blocks.append(
        "These options replace the decoding settings of the model, which are in the section\n"
        "[decoding](config.md#decoding) of its config. That page has the possible values.\n"
    )
    blocks.append(_options(_parser("translate"), groups[SETTINGS_GROUP]))
    return "\n".join(blocks)


def _command(name: str, summary: str) -> list[str]:
    parser = _parser(name)
    groups = _groups(parser)
    common = {MODEL_GROUP: MODEL_TITLE, SETTINGS_GROUP: SETTINGS_TITLE}
    own = [action for title in groups if title not in common for action in groups[title]]
    blocks = [f"## {name}\n", _fill(summary) + "\n"]
    blocks += [f"```text\n{parser.format_usage().rstrip()}\n```\n", _options(parser, own)]
    for title in (title for title in common if title in groups):
        flags = ", ".join(f"`{action.option_strings[0]}`" for action in groups[title])
        blocks.append(_fill(f"{_link(common[title])}: {flags}") + "\n")
    epilog = parser.epilog.removesuffix(EXIT_CODES).strip("\n")
    return blocks + [_epilog_block(block) for block in epilog.split("\n\n") if block]


def _parser(name: str) -> argparse.ArgumentParser:
    return parsers_of(name)[1]


def _groups(parser: argparse.ArgumentParser) -> dict[str, list[argparse.Action]]:
    """The arguments of a command, without --help, by the titles of their groups."""
    groups = {group.title: group._group_actions for group in parser._action_groups}
    for title, actions in groups.items():
        groups[title] = [action for action in actions if action.dest != "help"]
    return {title: actions for title, actions in groups.items() if actions}


def _options(parser: argparse.ArgumentParser, actions: list[argparse.Action]) -> str:
    lines = []
    for action in actions:
        flags = parser._get_formatter()._format_action_invocation(action)
        required = " (required)" if action.option_strings and action.required else ""
        lines.append(_fill(f"- `{flags}`{required}: {action.help.replace('%%', '%')}", "  "))
    return "\n".join(lines) + "\n"


def _epilog_block(block: str) -> str:
    """A paragraph, the examples, or a list whose items are a name and its meaning."""
    first, *rest = block.split("\n")
    if not rest or not rest[0].startswith("  "):
        return _fill(block.replace("\n", " ")) + "\n"
    text = textwrap.dedent("\n".join(rest))
    if first == "examples:":
        text = text.replace("python -m", ".venv/bin/python -m")
        return f"Examples:\n\n```bash\n{text}\n```\n"
    items = [" ".join(item.split()) for item in re.split(r"\n(?=\S)", text)]
    lines = (_fill("- `{}`: {}".format(*item.split(" ", 1)), "  ") for item in items)
    return f"{first[0].upper()}{first[1:]}\n\n" + "\n".join(lines) + "\n"


if __name__ == "__main__":
    DEMO.write_text(demo_yaml(DEMO.read_text("utf-8")), encoding="utf-8")
