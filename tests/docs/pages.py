"""Reads the Markdown pages of the project: headings, links, code, tables, commands."""

import functools
import re
import shlex
import subprocess
from collections import Counter
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath

from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[2]
_MARKDOWN = MarkdownIt("commonmark").enable("table")
_OPERATORS = "();<>|&"


@dataclass(frozen=True)
class Text:
    """A piece of a page, with the number of its line."""

    text: str
    line: int


@dataclass(frozen=True)
class Heading(Text):
    level: int
    anchor: str


@dataclass(frozen=True)
class Block(Text):
    """A block of code. `line` is that of its first line of code. The language is "" if none is
    given, and "indented" for a block without fences."""

    language: str


@dataclass
class Page:
    """What a page holds, each in the order of the page."""

    path: str  # from the root of the project, with slashes
    source: str
    headings: list[Heading] = field(default_factory=list)
    links: list[Text] = field(default_factory=list)  # also of images and of HTML
    anchors: set[str] = field(default_factory=set)
    blocks: list[Block] = field(default_factory=list)
    spans: list[Text] = field(default_factory=list)  # `code` in the running text
    bold: list[Text] = field(default_factory=list)  # with the backticks of the code in it
    tables: list[list[list[str]]] = field(default_factory=list)  # tables of rows of cells

    def place(self, part: Text) -> str:
        return f"{self.path}:{part.line}"

    def blocks_in(self, *languages: str) -> list[Block]:
        return [block for block in self.blocks if block.language in languages]


class _Tag(HTMLParser):
    """The links and anchors of a piece of HTML."""

    def __init__(self, html: str):
        super().__init__()
        self.links, self.anchors = [], []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name in ("href", "src"):
                self.links.append(value or "")
            elif name == "srcset":
                self.links += [part.split()[0] for part in (value or "").split(",")]
            elif name in ("id", "name"):
                self.anchors.append(value or "")


def parse(text: str, path: str = "page.md") -> Page:
    page = Page(path, text)
    seen = Counter()
    level, row = 0, None
    for token in _MARKDOWN.parse(text):
        line = token.map[0] + 1 if token.map else 0
        if token.type == "heading_open":
            level = int(token.tag[1])
        elif token.type == "heading_close":
            level = 0
        elif token.type == "table_open":
            page.tables.append([])
        elif token.type == "tr_open":
            row = []
            page.tables[-1].append(row)
        elif token.type == "tr_close":
            row = None
        elif token.type == "fence":
            language = token.info.split()[0] if token.info.strip() else ""
            page.blocks.append(Block(token.content, line + 1, language))
        elif token.type == "code_block":
            page.blocks.append(Block(token.content, line, "indented"))
        elif token.type == "html_block":
            _add_html(page, token.content, line)
        elif token.type == "inline":
            _add_inline(page, token.children, line)
            if level:
                title = "".join(
                    part.content for part in token.children if part.type in ("text", "code_inline")
                )
                page.headings.append(Heading(token.content, line, level, _anchor(title, seen)))
            if row is not None:
                row.append(token.content)
    page.anchors |= {heading.anchor for heading in page.headings}
    return page


def _add_inline(page: Page, parts, line: int) -> None:
    bold = None
    for part in parts:
        if part.type in ("softbreak", "hardbreak"):
            line += 1
        elif part.type == "code_inline":
            page.spans.append(Text(part.content, line))
        elif part.type == "link_open":
            page.links.append(Text(str(part.attrs["href"]), line))
        elif part.type == "image":
            page.links.append(Text(str(part.attrs["src"]), line))
        elif part.type == "html_inline":
            _add_html(page, part.content, line)
        elif part.type == "strong_open":
            bold = ""
        elif part.type == "strong_close":
            page.bold.append(Text(bold, line))
            bold = None
        if bold is not None:
            is_code = part.type == "code_inline"
            bold += f"`{part.content}`" if is_code else part.content
            bold += " " * (part.type == "softbreak")


def _add_html(page: Page, html: str, line: int) -> None:
    tag = _Tag(html)
    page.links += [Text(link, line) for link in tag.links]
    page.anchors |= set(tag.anchors)


def _anchor(title: str, seen: Counter) -> str:
    """The anchor that GitHub gives a heading: `seen` counts those of the headings before it."""
    anchor = re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-")
    number = seen[anchor]
    seen[anchor] += 1
    return f"{anchor}-{number}" if number else anchor


# ---- The pages of the project ----


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
    folders = {str(parent) for name in files for parent in PurePosixPath(name).parents}
    return frozenset(files | folders)


@functools.cache
def pages() -> dict[str, Page]:
    """All pages of the project by their paths."""
    names = sorted(name for name in project_files() if name.endswith(".md"))
    return {name: parse((ROOT / name).read_text(encoding="utf-8"), name) for name in names}


def find_page(name: str) -> Page:
    assert name in pages(), f"there is no {name}"
    return pages()[name]


def example(section: str, module) -> dict:
    """The names that a module has with the example below a heading of docs/architecture.md."""
    page = find_page("docs/architecture.md")
    start = next(one.line for one in page.headings if one.text == section)
    code = next(one.text for one in page.blocks_in("python") if one.line > start)
    # What stands for the other entries of a dictionary takes them over.
    code = re.sub(r"(?m)^(\w+) = \{\n +# \.\.\..*$", r"\1 = {\n    **\1,", code)
    names = dict(vars(module))
    exec(code, names)
    return names


# ---- Shell commands ----


def commands(block: Block) -> list[Text]:
    """The commands of a bash block as they are typed, without comments. Continued lines are
    joined. A command holds the lines of its quoted texts and of its here-documents."""
    found, lines = [], iter(enumerate(block.text.splitlines(), block.line))
    for number, line in lines:
        text = _without_comment(line)
        while text.endswith("\\") or _is_open(text):
            following = next(lines, None)
            if following is None:
                break
            if text.endswith("\\"):
                text = text[:-1] + _without_comment(following[1].lstrip())
            else:
                text = _without_comment(f"{text}\n{following[1]}")
        for quoted, end in re.findall(r"<<-?\s*(['\"]?)(\w+)\1", text):
            del quoted
            for _, following in lines:
                text += f"\n{following}"
                if following.strip() == end:
                    break
        if text.strip():
            found.append(Text(text.strip(), number))
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


@dataclass(frozen=True)
class SimpleCommand:
    """One program that a command starts: its environment variables, its words, and the files that
    it reads or writes by redirection."""

    environment: dict[str, str]
    words: list[str]
    redirected: list[str]


def simple_commands(command: str) -> list[SimpleCommand]:
    """The programs that a command starts, which `|`, `;`, `&&` and `||` separate."""
    text = re.sub(r"(<<-?\s*['\"]?\w+['\"]?[^\n]*)\n.*", r"\1", command, flags=re.DOTALL)
    lexer = shlex.shlex(text.replace("\n", " ; "), posix=True, punctuation_chars=_OPERATORS)
    lexer.whitespace_split, lexer.commenters = True, ""
    found, current = [], SimpleCommand({}, [], [])
    is_file = False
    for word in lexer:
        if set(word) <= set(_OPERATORS) and word:
            if set(word) & set("<>"):
                if current.words and current.words[-1] == "2":
                    current.words.pop()
                is_file = True
            else:
                found.append(current)
                current = SimpleCommand({}, [], [])
        elif is_file:
            current.redirected.append(word)
            is_file = False
        elif not current.words and (match := re.fullmatch(r"([A-Z_]+)=(.*)", word)):
            current.environment[match[1]] = match[2]
        else:
            current.words.append(word)
    return [one for one in [*found, current] if one.words]
