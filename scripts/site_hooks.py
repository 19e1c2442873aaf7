"""What the site of the documents has beside the pages of docs/: MkDocs calls these functions.

The pages are written so that they also read well in the repository. So they link to files outside
docs/, which the site gets copies of, and the references of config keys and commands are not in the
repository, because they would say again what configs/demo.yaml and `--help` say.
"""

import functools
import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import transformer_mt
import write_reference

ROOT = Path(__file__).resolve().parents[1]
# Pages of the repository that are pages of the site too.
PAGES = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "data/README.md": "data-readme.md",
    "data/demo/README.md": "data-demo.md",
    "data/names/README.md": "data-names.md",
}
# The pages of the repository that the site's first page stands for.
INDEX = ("README.md", "README.zh.md")
API = """\
# API reference

This page lists what `from transformer_mt import …` gives. [Python](python.md) shows it at work.

"""
_LINK = re.compile(r"(!?\[(?:[^][]|\[[^][]*\])*\])\(([^)\s]+)\)")


@event_priority(-100)  # after the plug-in of the languages, which knows only files of docs/
def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds pages and copies of files."""
    _linked_files.cache_clear()  # a page may have changed since the last build
    members = "".join(f"::: transformer_mt.{name}\n\n" for name in transformer_mt.__all__)
    _add(files, config, "api.md", API + members)
    for path, name in PAGES.items():
        _add(files, config, name, (ROOT / path).read_text("utf-8"))
    for path in _linked_files():
        _add(files, config, f"files/{path}.txt", (ROOT / path).read_text("utf-8"))
    font = ROOT / "transformer_mt" / "serving" / "page" / "inter.woff2"
    _add(files, config, font.name, font.read_bytes())
    return files


def _add(files: Files, config: MkDocsConfig, name: str, content: str | bytes) -> None:
    if (old := files.get_file_from_path(name)) is not None:
        files.remove(old)
    file = File.generated(config, name, content=content)
    if config.theme["language"] == "zh":
        file.dest_uri = f"zh/{file.dest_uri}"
    files.append(file)


@functools.cache
def _linked_files() -> frozenset[str]:
    """The files outside docs/ that pages link to."""
    found = set()
    for page in [*(ROOT / "docs").glob("*.md"), *(ROOT / path for path in PAGES)]:
        for _, link in _LINK.findall(page.read_text("utf-8")):
            path = _path_of(link, posixpath.relpath(page.parent, ROOT))
            is_page = path is None or path in (*PAGES, *INDEX) or path.startswith("docs/")
            if not is_page and (ROOT / path).is_file():
                found.add(path)
    return frozenset(found)


def _path_of(link: str, folder: str) -> str | None:
    """The path of a link from the root of the project, or None for a link elsewhere."""
    if re.match(r"[a-z]+:|#", link):
        return None
    return posixpath.normpath(posixpath.join(folder, link.partition("#")[0]))


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Writes the references, and leads links outside docs/ to the copies."""
    source = page.file.src_uri
    if source == "config.md":
        markdown += "\n" + write_reference.config_reference()
    elif source == "commands.md":
        markdown += "\n" + write_reference.commands_reference()
    origin = {name: path for path, name in PAGES.items()}.get(source)
    folder = posixpath.dirname(origin) if origin is not None else "docs"
    is_chinese = page.file.dest_uri.startswith("zh/")
    is_english = not source.endswith(".zh.md")

    def lead(match: re.Match) -> str:
        text, link = match.groups()
        path = _path_of(link, folder)
        if path is None:
            return match[0]
        anchor = "".join(link.partition("#")[1:])
        if path.startswith("docs/"):
            name = path.removeprefix("docs/")
            if name.endswith(".zh.md"):
                name = name.removesuffix(".zh.md")
                if is_chinese:
                    return f"{text}({name}.md{anchor})"
                name = name.replace("README", "index")
                return f'<a href="zh/{name}.html">{text[1:-1]}</a>'
            if is_chinese and is_english and (ROOT / "docs" / f"{name[:-3]}.zh.md").exists():
                anchor = ""  # the headings of the Chinese page differ
            if (ROOT / path).is_dir() or name.startswith("serving/"):
                return text[1:-1]
            return f"{text}({name}{anchor})"
        if path in PAGES:
            return f"{text}({PAGES[path]}{anchor})"
        if path in INDEX:
            return f"{text}(README.md)"
        if path in _linked_files():
            return f'<a href="files/{path}.txt">{text[1:-1]}</a>'
        return text[1:-1]  # a folder

    # Blocks of code, which are the odd pieces, stay as they are.
    pieces = re.split(r"(?ms)(^```.*?^```)", markdown)
    pieces[::2] = [_LINK.sub(lead, piece) for piece in pieces[::2]]
    markdown = "".join(pieces)
    if is_chinese:  # whose folder has no images
        markdown = re.sub(r'\b(src|srcset)="images/', r'\1="../images/', markdown)
    return markdown
