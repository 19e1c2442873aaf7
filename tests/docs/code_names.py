"""Pages that name parts of the code, and the names that the code has."""

import ast
import functools
import re

from tests.support import ROOT

DOCS = ROOT / "docs"
PACKAGE = ROOT / "transformer_mt"


def in_backticks(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


@functools.cache
def defined(path) -> set[str]:
    """What a module defines: classes and functions, and methods as Class.method."""
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            inner = (one for one in node.body if isinstance(one, ast.FunctionDef))
            names |= {f"{node.name}.{one.name}" for one in inner}
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {one.id for one in targets if isinstance(one, ast.Name)}
    return names


@functools.cache
def defined_anywhere() -> set[str]:
    return set().union(*(defined(path) for path in PACKAGE.rglob("*.py")))


def placed(text: str) -> list[tuple[str, str]]:
    """The names of a text that are said to be in a file: (name, path) of "`name` in path.py"."""
    return re.findall(r"`([\w.]+)` in `?([\w/]+\.py)\b", text)
