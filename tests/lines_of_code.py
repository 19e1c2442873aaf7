"""Counts the lines of code of the package: without blank lines, comments and docstrings."""

import ast
import io
import tokenize
from pathlib import Path

NO_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.ENDMARKER),
    *(tokenize.INDENT, tokenize.DEDENT),
}


def lines_of_code(source: str) -> int:
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        # A string that stands alone is a docstring: of a module, class, function or attribute.
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                lines.difference_update(range(node.lineno, node.end_lineno + 1))
    return len(lines)


def lines_of_package(folder: Path) -> int:
    return sum(lines_of_code(path.read_text("utf-8")) for path in sorted(folder.rglob("*.py")))
