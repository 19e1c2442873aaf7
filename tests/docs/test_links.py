"""Every link and every path in the pages leads somewhere."""

import fnmatch
import posixpath
import re
from urllib.parse import unquote

import pytest

from tests.docs.pages import Page, find_page, pages, project_files

# Folders of the project whose files are named in the pages, and what is in them only later.
TOP = ("configs", "docs", "scripts", "tests", "transformer_mt", "data/demo", "data/names")
GONE = "CHANGELOG.md"  # which names files of earlier versions


def wrong_links(page: Page, others: dict[str, Page], files) -> list[str]:
    return [link for link in page.links if not _leads_somewhere(page, link, others, files)]


def _leads_somewhere(page: Page, link: str, others: dict[str, Page], files) -> bool:
    if re.match(r"[a-z][a-z0-9+.-]*:", link, re.I):
        return bool(re.match(r"https://([a-z0-9-]+\.)+[a-z]{2,}(/|$)", link))
    path, _, anchor = unquote(link).partition("#")
    whole = posixpath.normpath(posixpath.join(posixpath.dirname(page.path), path))
    whole = whole if path else page.path
    if path.startswith("/") or whole not in files:
        return False
    return not anchor or (whole in others and anchor in others[whole].anchors)


def wrong_paths(page: Page, files) -> list[str]:
    """The paths in backticks that do not exist. Those of code may begin inside the package."""
    found = []
    for span in page.spans:
        path = span.partition("#")[0].rstrip("/")
        if re.search(r"[^\w./*-]|[A-Z]{3}|\.\.\.", path) or "/" not in path:
            continue
        if path.startswith(TOP) or path.endswith(".py"):
            places = [
                path,
                *(f"{folder}/{path}" for folder in ("transformer_mt", "tests", "scripts")),
            ]
            if not any(fnmatch.filter(files, place) for place in places):
                found.append(span)
    return found


@pytest.mark.parametrize("name", pages())
def test_links_and_paths_exist(name):
    page = pages()[name]
    assert wrong_links(page, pages(), project_files()) == []
    if name != GONE:
        assert wrong_paths(page, project_files()) == []


def test_every_page_is_linked_from_the_index():
    links = {f"docs/{link.partition('#')[0]}" for link in find_page("docs/README.md").links}
    names = {name for name in pages() if re.fullmatch(r"docs/[^/]*", name)}
    assert names - links == {"docs/README.md"}
