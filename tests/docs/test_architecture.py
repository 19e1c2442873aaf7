"""The names in docs/architecture.md are those of the code."""

import re

from tests.docs.code_names import DOCS, PACKAGE, defined, placed
from tests.support import ROOT

PAGE = (DOCS / "architecture.md").read_text(encoding="utf-8").replace("\\_", "_")
# A name and its file may be on two lines.
TEXT = re.sub(r"\s+", " ", PAGE)


def test_names_are_in_the_files_that_the_page_says():
    names = placed(TEXT)
    assert len(names) > 70
    for name, path in names:
        assert name in defined(PACKAGE / path), (name, path)


def test_the_picture_has_true_arrows():
    picture = PAGE.split("```mermaid\n")[1].split("```")[0]
    arrows = re.findall(r"(?m)^\s+(\w+)\S*.*? --> (\w+)", re.sub(r'\["[^"]*"\]', "", picture))
    folders = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    assert {name for arrow in arrows for name in arrow} == folders
    for importer, imported in arrows:
        sources = (path.read_text("utf-8") for path in (PACKAGE / importer).rglob("*.py"))
        assert any(f"transformer_mt.{imported}" in source for source in sources), importer


def test_every_file_of_the_package_is_listed():
    section = PAGE.split("## Every file in one line")[1].split("\n## ")[0]
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).parts
        if path.name.startswith("__") or parts[0] == "commands":
            continue
        if parts[0] in ("mechanisms", "backends", "data") and len(parts) > 2:
            assert f"{parts[1]}/" in section, path
        else:
            assert re.search(rf"\b{re.escape(path.name)}\b", section), path


def test_files_and_folders_that_are_named_exist():
    def exists(path: str) -> bool:
        return any((folder / path).exists() for folder in (PACKAGE, ROOT)) or any(
            PACKAGE.glob(f"*/{path}")
        )

    paths = re.findall(r"(?<![\w/.])(?:[\w.]+/)+(?:\w+\.(?:py|yaml|txt|sh|html)\b)?", TEXT)
    assert len(paths) > 100
    for path in paths:
        assert path.startswith((".venv/", "runs/")) or exists(
            path.removeprefix("../").rstrip("/")
        ), path
