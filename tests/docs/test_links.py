"""Every link and every path in the pages leads somewhere."""

import fnmatch
import posixpath
import re
from urllib.parse import unquote, urlsplit

import pytest

from tests.docs.pages import ROOT, Page, find_page, pages, parse, project_files

README_LINES = 180
# The pages that are only served over http.
HTTP_ONLY: set[str] = set()
# Folders at the root whose files are named in the pages.
TOP = ("configs", "data", "docs", "scripts", "tests", "transformer_mt", ".ci")
# Paths in backticks that look like the project's, but are those of others.
NOT_OURS = {"data/task1/raw"}  # in Multi30k's repository
# Paths of machines. The second kind are hosts from which packages and their sources are taken.
MACHINE_PATHS = re.compile(r"(?<![\w.])/(?:home|work|root|Users|mnt|tmp)/[\w.-]+|[A-Z]:\\")
REGISTRIES = re.compile(r"pypi\.org|pythonhosted|artifactory|nexus\.|tuna\.tsinghua|aliyun", re.I)


def problems_of_links(page: Page, others: dict[str, Page], files) -> list[str]:
    """What is wrong with the links of a page.

    Args:
        others: the pages of the project by their paths.
        files: the paths of the files and folders of the project.
    """
    found = []
    for link in page.links:
        problem = _problem(page, link.text, others, files)
        if problem:
            found.append(f"{page.place(link)}: {link.text}: {problem}")
    return found


def _problem(page: Page, target: str, others, files) -> str | None:
    if re.match(r"[a-z][a-z0-9+.-]*:", target, re.I):
        return _external_problem(target)
    path, _, anchor = unquote(target).partition("#")
    if path.startswith("/"):
        return "not relative to the page"
    whole = posixpath.normpath(posixpath.join(posixpath.dirname(page.path), path))
    if not path:
        whole = page.path
    if whole not in files and whole != page.path:
        return "there is no such file in the project"
    if not anchor:
        return None
    other = page if whole == page.path else others.get(whole)
    if other is None:
        return None if re.fullmatch(r"L\d+(-L\d+)?", anchor) else "an anchor in no page"
    return None if anchor in other.anchors else "the page has no such heading"


def _external_problem(target: str) -> str | None:
    parts = urlsplit(target)
    if parts.scheme == "http" and target not in HTTP_ONLY:
        return "not https"
    if parts.scheme not in ("http", "https"):
        return "neither a file nor https"
    if not re.fullmatch(r"([a-z0-9-]+\.)+[a-z]{2,}", parts.netloc) or re.search(r"\s", target):
        return "not well-formed"
    return None


def problems_of_paths(page: Page, files, ignored) -> list[str]:
    """The paths in backticks that do not exist. `ignored` are the folders that git ignores."""
    names = {posixpath.basename(name) for name in files}
    rooms = {name.split("/")[1] for name in files if re.match(r"transformer_mt/\w+/", name)}
    found = []
    for span in page.spans:
        text = span.text.rstrip("/").partition("#")[0]
        if re.search(r"[^\w./*-]", text) or text in NOT_OURS or re.search(r"[A-Z]{3}|\.\.\.", text):
            continue
        first = text.split("/")[0]
        if "/" in text and (first in TOP or first in rooms or text.endswith(".py")):
            is_there = _exists(text, files) or any(
                f"{text}/".startswith(folder) for folder in ignored
            )
            if first not in TOP or text.endswith(".py"):
                # In the pages about the code, paths may begin inside the package or the tests.
                inside = ("transformer_mt", "tests", "scripts")
                is_there = is_there or any(_exists(f"{top}/{text}", files) for top in inside)
        elif re.fullmatch(r"[\w*-]+\.(py|sh|cff|toml)|requirements[\w-]*\.txt", text):
            is_there = any(fnmatch.fnmatchcase(name, text) for name in names)
        else:
            continue
        if not is_there:
            found.append(f"{page.place(span)}: {span.text}")
    return found


def _exists(path: str, files) -> bool:
    if "*" in path:
        return any(fnmatch.fnmatchcase(name, path) for name in files)
    return path in files


def ignored_folders() -> list[str]:
    lines = (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    return [line.removeprefix("/") for line in lines if line.startswith("/")]


def linked_from(page: Page) -> set[str]:
    """The paths that a page links to."""
    folder = posixpath.dirname(page.path)
    paths = (link.text.partition("#")[0] for link in page.links if "://" not in link.text)
    return {posixpath.normpath(posixpath.join(folder, path)) for path in paths if path}


# ---- The pages ----


@pytest.mark.parametrize("name", pages())
def test_links_lead_to_files_and_headings(name):
    problems = problems_of_links(pages()[name], pages(), project_files())
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("name", pages())
def test_paths_in_backticks_exist(name):
    problems = problems_of_paths(pages()[name], project_files(), ignored_folders())
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("name", pages())
def test_no_page_names_a_machine_or_a_registry(name):
    source = pages()[name].source
    assert MACHINE_PATHS.findall(source) == [] and REGISTRIES.findall(source) == []


def test_every_page_is_linked_from_the_index():
    index = find_page("docs/README.md")
    own = {name for name in pages() if name.startswith("docs/")}
    assert own - linked_from(index) - {index.path} == set()


@pytest.mark.parametrize(
    ("name", "tutorial"),
    [("README.md", "docs/tutorial.md"), ("README.zh.md", "docs/tutorial.zh.md")],
)
def test_first_pages_link_to_the_index_and_the_tutorial(name, tutorial):
    assert {"docs/README.md", tutorial} <= linked_from(find_page(name))


def test_the_readme_is_short():
    count = len(find_page("README.md").source.splitlines())
    assert count <= README_LINES


def test_pages_are_finished():
    unfinished = re.compile(r"@@[A-Z]+@@|\b(TODO|FIXME|XXX)\b")
    assert [name for name, page in pages().items() if unfinished.search(page.source)] == []


def test_pages_begin_with_one_title():
    for name, page in pages().items():
        levels = [heading.level for heading in page.headings]
        assert levels.count(1) == 1 and levels[0] == 1, name


# ---- What the checks find ----

FILES = {"docs", "docs/a.md", "docs/b.md", "configs/demo.yaml", "transformer_mt/data/corpus.py"}


@pytest.mark.parametrize(
    ("link", "is_right"),
    [
        ("b.md", True),
        ("b.md#one-two", True),
        ("b.md#two", False),
        ("#own", True),
        ("#other", False),
        ("B.md", False),
        ("../configs/demo.yaml", True),
        ("../configs/demo.yaml#own", False),
        ("../configs", False),
        ("/docs/b.md", False),
        ("https://arxiv.org/abs/1706.03762", True),
        ("http://arxiv.org/abs/1706.03762", False),
        ("https://arxiv/abs", False),
        ("ftp://arxiv.org/abs", False),
    ],
)
def test_wrong_links_are_found(link, is_right):
    page = parse(f"# Own\n\n[x]({link})\n", "docs/a.md")
    others = {"docs/a.md": page, "docs/b.md": parse("# One, two")}
    assert bool(problems_of_links(page, others, FILES)) != is_right


@pytest.mark.parametrize(
    ("span", "is_right"),
    [
        ("configs/demo.yaml", True),
        ("configs/*.yaml", True),
        ("configs/other.yaml", False),
        ("data/cache/x", True),
        ("data/corpus.py", True),
        ("data/corpse.py", False),
        ("data/corpus", False),
        ("transformer_mt/data/corpus.py", True),
        ("transformer_mt/data/corpse.py", False),
        ("model/corpus.py", False),
        ("data", True),
        ("corpus.py", True),
        ("corpse.py", False),
        ("runs/demo", True),
        ("configs/NAME.yaml", True),
        ("a configs/x.yaml", True),
    ],
)
def test_wrong_paths_are_found(span, is_right):
    page = parse(f"see `{span}`")
    assert bool(problems_of_paths(page, FILES, ["data/cache/"])) != is_right


def test_linked_paths():
    page = parse("[a](a.md#x) [b](../b/) [c](https://a.org/c.md) [d](#d)", "docs/README.md")
    assert linked_from(page) == {"docs/a.md", "b"}


def test_machine_paths_and_registries_are_found():
    assert MACHINE_PATHS.search("in /home/me/x") and MACHINE_PATHS.search("`/tmp/x`")
    assert not MACHINE_PATHS.search("data/tmp/x or ./home/x or https://a.org/home/x")
    assert REGISTRIES.search("https://pypi.org/simple")
