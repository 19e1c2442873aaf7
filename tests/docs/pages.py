"""Reads the Markdown pages of the project: headings, links, code and commands."""

import functools
import re
import shlex
import subprocess
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[2]
_MARKDOWN = MarkdownIt("commonmark").enable("table")


@dataclass(frozen=True)
class Block:
    """A block of code, with the number of its first line. The language is "" if none is given,
    and "indented" for a block without fences."""

    text: str
    line: int
    language: str = ""


@dataclass
class Page:
    path: str  # from the root of the project, with slashes
    headings: list[tuple[str, int]] = field(default_factory=list)  # with their lines
    links: list[str] = field(default_factory=list)  # also of images and of HTML
    anchors: set[str] = field(default_factory=set)
    blocks: list[Block] = field(default_factory=list)
    spans: list[str] = field(default_factory=list)  # `code` in the running text

    def blocks_in(self, *languages: str) -> list[Block]:
        return [block for block in self.blocks if block.language in languages]


def parse(text: str, path: str = "page.md") -> Page:
    page, seen, is_heading = Page(path), Counter(), False
    for token in _MARKDOWN.parse(text):
        line = token.map[0] + 1 if token.map else 0
        if token.type in ("heading_open", "heading_close"):
            is_heading = token.type == "heading_open"
        elif token.type in ("fence", "code_block"):
            language = (token.info.split() or [""])[0] if token.type == "fence" else "indented"
            page.blocks.append(Block(token.content, line + (token.type == "fence"), language))
        elif token.type == "html_block":
            _add_html(page, token.content)
        elif token.type == "inline":
            for part in token.children:
                if part.type == "code_inline":
                    page.spans.append(part.content)
                elif part.type in ("link_open", "image"):
                    page.links.append(str(part.attrs["href" if "href" in part.attrs else "src"]))
                elif part.type == "html_inline":
                    _add_html(page, part.content)
            if is_heading:
                texts = [part for part in token.children if part.type in ("text", "code_inline")]
                title = "".join(part.content for part in texts)
                # The anchor that GitHub makes of it.
                anchor = re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-")
                page.anchors.add(f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor)
                seen[anchor] += 1
                page.headings.append((title, line))
    return page


def _add_html(page: Page, html: str) -> None:
    page.links += re.findall(r"\b(?:href|src|srcset)=\"([^\" ]*)", html)
    page.anchors |= set(re.findall(r"\b(?:id|name)=\"([^\"]*)", html))


@functools.cache
def project_files() -> frozenset[str]:
    """All files that are in git, or would be with `git add`, and their folders. In a copy of the
    project without git, all files that are not hidden."""
    if (ROOT / ".git").exists():
        command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
        output = subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout
        names = output.decode().split("\0")
    else:
        names = [path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*") if path.is_file()]
        names = [name for name in names if not re.search(r"(^|/)\.(?!ci/|git)|__pycache__", name)]
    files = {name for name in names if name and (ROOT / name).exists()}
    return frozenset(files | {str(up) for name in files for up in PurePosixPath(name).parents})


@functools.cache
def pages() -> dict[str, Page]:
    """All pages of the project by their paths."""
    names = sorted(name for name in project_files() if name.endswith(".md"))
    return {name: parse((ROOT / name).read_text(encoding="utf-8"), name) for name in names}


def find_page(name: str) -> Page:
    return pages()[name]


def example(section: str, module) -> dict:
    """The names that a module has with the example below a heading of docs/architecture.md."""
    page = find_page("docs/architecture.md")
    start = next(line for title, line in page.headings if title == section)
    code = next(block.text for block in page.blocks_in("python") if block.line > start)
    # What stands for the other entries of a dictionary takes them over.
    code = re.sub(r"(?m)^(\w+) = \{\n +# \.\.\..*$", r"\1 = {\n    **\1,", code)
    names = dict(vars(module))
    exec(code, names)
    return names


def commands(text: str) -> list[str]:
    """The commands of a bash block as they are typed, without comments, each with the lines of its
    quoted texts and of its here-documents. Continued lines are joined."""
    found, lines = [], iter(text.replace("\\\n", " ").splitlines())
    for line in lines:
        command = _without_comment(line)
        while _is_open(command):
            command = _without_comment(f"{command}\n{next(lines)}")
        for end in re.findall(r"<<-?\s*['\"]?(\w+)", command):
            for following in lines:
                command += f"\n{following}"
                if following.strip() == end:
                    break
        if command.strip():
            found.append(command.strip())
    return found


def _is_open(text: str) -> bool:
    """Whether a quoted text goes on in the next line."""
    try:
        shlex.split(text)
    except ValueError:
        return True
    return False


def _without_comment(text: str) -> str:
    """Cuts a text at a `#` that begins a word outside quotes."""
    quote = ""
    for place, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"" and text[place - 1 : place] != "\\":
            quote = character
        elif character == "#" and (place == 0 or text[place - 1].isspace()):
            return text[:place].rstrip()
    return text.rstrip()
