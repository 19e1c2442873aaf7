"""Draws the pictures of docs/images again.

`terminal` and `social` need no model. The others show models of yours: they open pages in a
headless Chromium, at twice the resolution of the page, so that they are sharp on any screen. Fonts
are those of your computer: `apt-get install chromium fonts-inter fonts-noto-cjk` installs the ones
that the pages ask for first. Look at each picture before you commit it.

examples:
  python scripts/pictures.py terminal   # after a change of docs/images/terminal.txt
  python scripts/pictures.py social     # after a change of docs/images/social.svg
  python scripts/pictures.py report runs/tatoeba_de_en runs/earlier_recipe
  python scripts/pictures.py comparison comparison.html   # a page of compare --html
  python scripts/pictures.py attention runs/tatoeba_zh_en "你在哪里？" --name attention-zh
  python scripts/pictures.py attention runs/tatoeba_de_en "Wo bist du?" --name attention-de
  python scripts/pictures.py page runs/tatoeba_de_en
  python scripts/pictures.py page runs/tatoeba_zh_en --chinese
"""

from __future__ import annotations

import argparse
import base64
import html
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

if TYPE_CHECKING:
    from tests.serving.browser import Browser, Page

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
SCHEMES = {"": "light", "-dark": "dark"}  # by the end of the name
# Widths and heights in pixels of the page.
REPORT, ATTENTION, SOCIAL = (1000, 1250), (1240, 772), (1280, 640)
PAGE, PHONE = (1200, 740), (360, 780)

GERMAN = (
    "Meine Schwester wohnt in einem kleinen Haus. Sie trinkt jeden Tag eine Tasse Kaffee.\n\n"
    "Er hat das Fenster geöffnet, weil es heiß war."
)
CHINESE = "我不知道他什么时候回来。你能帮我吗？\n\n我妹妹住在一所小房子里。"

# ---- The terminal, which is drawn without a browser ----

# In units of the drawing. textLength makes a letter 8.43 wide, whatever the font is.
LETTER, LINE, LEFT, FIRST = 8.43, 21, 18, 56
# In seconds: for a letter that is typed, before and after a command, and before a line of output.
PER_LETTER, BEFORE, AFTER, PER_LINE, PER_GAP = 0.045, 0.6, 0.5, 0.22, 0.7
STYLE = """text { font: 14px ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", "Liberation Mono", monospace; white-space: pre; fill: #1f2328 }
.frame, .cover { fill: #f6f8fa } .frame { stroke: #d1d9e0 } .typed { fill: #0b5cad; font-weight: 600 } .quiet { fill: #59636e }
.score { fill: #b23a0a; font-weight: 600 } .dot { fill: #d1d9e0 } .cursor { fill: #59636e }
.cover, .cursor { opacity: 0 } .cover { transform-box: fill-box; transform-origin: right }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .frame, .cover { fill: #161b22 } .frame { stroke: #30363d } .typed { fill: #7cb7ff } .quiet, .cursor { fill: #9198a1 }
  .score { fill: #ffa46b } .dot { fill: #3d444d }
}
@media (prefers-reduced-motion: no-preference) {
  .out { animation: show .01s backwards } .cover { animation: uncover backwards } .cursor { animation: type }
}
@keyframes show { from { opacity: 0 } }
@keyframes uncover { from { opacity: 1 } to { opacity: 1; transform: scaleX(0) } }
@keyframes type { from { opacity: 1; transform: translateX(0) } to { opacity: 1; transform: translateX(var(--far)) } }
"""  # noqa: E501


def draw_terminal(lines: list[str]) -> str:
    """Returns an SVG in which commands are typed and their output appears, once.

    Where nothing moves, because the reader wants no motion or the program knows no animation, all
    text is there from the beginning.

    Args:
        lines: commands, which begin with "$ " or, where a command goes on, with "> "; and output,
            in which "…" stands for what is left out.
    """
    columns = max(map(len, lines))
    width, height = round(2 * LEFT + LETTER * columns), FIRST + LINE * len(lines) - 6
    drawn, at = [], 0.0
    for number, line in enumerate(lines):
        y, count = FIRST + LINE * number, len(line)
        size = f'textLength="{LETTER * count:.1f}" lengthAdjust="spacingAndGlyphs"'
        text = html.escape(line)
        if line.startswith(("$ ", "> ")):
            shown = at  # the prompt
            at += BEFORE if line[0] == "$" else 0
            letters = count - 2
            seconds = letters * PER_LETTER
            x, far = LEFT + 2 * LETTER, letters * LETTER
            timing = f"animation-duration:{seconds:.2f}s;animation-delay:{at:.2f}s"
            timing += f";animation-timing-function:steps({letters})"
            drawn += [
                f'<text class="typed out" style="animation-delay:{shown:.2f}s" '
                f'x="{LEFT}" y="{y}" {size}>{text}</text>',
                f'<rect class="cover" style="{timing}" x="{x:.1f}" y="{y - 15}" '
                f'width="{far + 2:.1f}" height="{LINE}"/>',
                f'<rect class="cursor" style="--far:{far:.1f}px;{timing}" x="{x:.1f}" '
                f'y="{y - 13}" width="8" height="16"/>',
            ]
            at += seconds + (AFTER if not text.endswith("|") else 0)
        elif line:
            at += PER_GAP if line == "…" else PER_LINE
            kind = "quiet" if line == "…" else "score" if line.startswith("test set") else ""
            names = f"{kind} out".strip()
            drawn.append(
                f'<text class="{names}" style="animation-delay:{at:.2f}s" x="{LEFT}" y="{y}" '
                f"{size}>{text}</text>"
            )
    commands = " ".join(line[2:] for line in lines if line.startswith(("$ ", "> ")))
    title = html.escape(f"A terminal: {commands}. The last line is: {lines[-1]}")
    dots = "".join(f'<circle class="dot" cx="{x}" cy="20" r="5"/>' for x in (24, 42, 60))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img" aria-labelledby="title" '
            'xml:space="preserve">',
            "<!-- scripts/pictures.py draws this from terminal.txt. -->",
            f'<title id="title">{title}</title>',
            f"<style>\n{STYLE}</style>",
            f'<rect class="frame" x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="8"/>',
            dots,
            *drawn,
            "</svg>\n",
        ]
    )


def terminal(options: argparse.Namespace) -> None:
    lines = (IMAGES / "terminal.txt").read_text("utf-8").removesuffix("\n").split("\n")
    path = options.into / "terminal.svg"
    path.write_text(draw_terminal(lines), encoding="utf-8", newline="\n")


# ---- Pictures of pages ----


@contextmanager
def browsing() -> Iterator[Browser]:
    """Starts the browser that the tests of the page look into."""
    sys.path.insert(0, str(ROOT))
    from tests.serving.browser import chromium

    # There is a mouse, which a headless browser lacks otherwise.
    mouse = "availableHoverTypes=2,primaryHoverType=2,availablePointerTypes=4,primaryPointerType=4"
    option = f"--blink-settings={mouse}"
    with tempfile.TemporaryDirectory() as profile, chromium(Path(profile), option) as browser:
        yield browser


def picture(
    browser: Browser,
    into: Path,
    url: str,
    name: str,
    size: tuple[int, int],
    scheme: str = "light",
    language: str = "en-US",
    prepare: Callable[[Page], None] = lambda page: None,
    scale: int = 2,
    keeps_colours: bool = False,
) -> None:
    """Writes `into`/`name`.png, of the beginning of a page.

    Args:
        prepare: what a person does on the page before.
        keeps_colours: whether there is a gradient, for which a palette is too coarse.
    """
    width, height = size
    page = browser.page(url, width, height, language, scheme=scheme)
    page.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
              deviceScaleFactor=scale, mobile=width <= 500)  # fmt: skip
    prepare(page)
    page.run("document.fonts.ready.then(() => true)")
    time.sleep(0.5)  # for what the browser shows after a tap
    data = base64.b64decode(page.call("Page.captureScreenshot", format="png")["data"])
    image = Image.open(io.BytesIO(data)).convert("RGB")
    if not keeps_colours:  # 256 colours cannot be told from all, in a third of the bytes
        image = image.quantize(256, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    path = into / f"{name}.png"
    image.save(path, optimize=True)
    print(f"{path}: {image.width} x {image.height}, {path.stat().st_size:,} bytes")


def run(*arguments: object) -> None:
    subprocess.run([sys.executable, "-m", "transformer_mt", *map(str, arguments)], check=True)


def in_both_schemes(into: Path, path: Path, name: str) -> None:
    with browsing() as browser:
        for end, scheme in SCHEMES.items():
            picture(browser, into, path.resolve().as_uri(), name + end, REPORT, scheme)


def social(options: argparse.Namespace) -> None:
    with browsing() as browser:
        picture(browser, options.into, (IMAGES / "social.svg").as_uri(), "social", SOCIAL, scale=1)


def report(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.html"
        run("report", *options.model_dirs, "--output", path)
        in_both_schemes(options.into, path, "report")


def comparison(options: argparse.Namespace) -> None:
    in_both_schemes(options.into, options.page, "comparison")


def attention(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "attention.html"
        run("attention", options.model_dir, "--text", options.text, "--output", path)
        url, name = path.as_uri(), options.name
        with browsing() as browser:
            picture(browser, options.into, url, name, ATTENTION, keeps_colours=True)


# ---- The page of the service ----


def translated(text: str) -> Callable[[Page], None]:
    """Types a text, and waits until it is translated and words can be pointed at."""

    def prepare(page: Page) -> None:
        page.until("document.querySelector('#about').checkVisibility()")
        page.click("#source")
        page.type(text)
        lines = text.count("\n") + 1
        page.until(f"document.querySelectorAll('#translation p').length === {lines}")
        page.until("document.querySelector('#translation p:last-child [data-word]')", 300)

    return prepare


def pointed_at(
    text: str, sentence: int, word: int, opens: bool = False, taps: bool = False
) -> Callable[[Page], None]:
    """The same, and then points at a word of the translation, or taps it as on a phone, or also
    opens the other translations of its sentence. Numbers are from 0."""

    def prepare(page: Page) -> None:
        translated(text)(page)
        selector = f"#translation p [data-sentence='{sentence}'] [data-word='{word}']"
        page.until(f"document.querySelector({json.dumps(selector)})", 10)
        (page.tap if taps else page.point)(selector)
        page.until("document.querySelector('.lit')")
        if opens and not taps:
            page.click(selector)
        if opens:
            page.until("document.querySelectorAll('#others button').length > 3", 300)

    return prepare


def page(options: argparse.Namespace) -> None:
    command = [sys.executable, "-m", "transformer_mt", "serve", *options.model_dirs, "--port", "0"]
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    service = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    )
    try:
        url = next((line.split()[0] for line in service.stdout if line.startswith("http")), None)
        if url is None:
            sys.exit("the service has ended")
        with browsing() as browser:
            if options.chinese:
                looked_at = pointed_at(CHINESE, 0, 3)
                picture(browser, options.into, url, "page-zh", PAGE, "dark", "zh-CN", looked_at)
                return
            looked_at, opened = pointed_at(GERMAN, 1, 5), pointed_at(GERMAN, 1, 5, opens=True)
            picture(browser, options.into, url, "page-desktop", PAGE, prepare=looked_at)
            picture(browser, options.into, url, "page-dark", PAGE, "dark", prepare=opened)
            opened = pointed_at(GERMAN, 0, 5, opens=True, taps=True)
            picture(browser, options.into, url, "page-phone", PHONE, prepare=opened)
    finally:
        service.terminate()
        service.wait()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--into", type=Path, default=IMAGES, help="the folder (default: docs/images)"
    )
    commands = parser.add_subparsers(required=True, metavar="PICTURE")

    def add(command: Callable[[argparse.Namespace], None], text: str) -> argparse.ArgumentParser:
        own = commands.add_parser(command.__name__, help=text)
        own.set_defaults(run=command)
        return own

    add(terminal, "terminal.svg, from terminal.txt")
    add(social, "social.png, from social.svg")
    add(report, "report.png, of one run or several").add_argument("model_dirs", nargs="+")
    add(comparison, "comparison.png, of a page that `compare --html` has written").add_argument(
        "page", type=Path
    )
    own = add(attention, "the picture that --name names")
    own.add_argument("model_dir")
    own.add_argument("text")
    own.add_argument("--name", required=True)
    own = add(page, "page-desktop.png, page-dark.png and page-phone.png, of models of the service")
    own.add_argument("model_dirs", nargs="+")
    own.add_argument(
        "--chinese", action="store_true", help="page-zh.png, of a model from Chinese, instead"
    )
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
