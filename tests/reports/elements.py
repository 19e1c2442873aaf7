"""What a page consists of, and what a browser makes of it."""

import html
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest

from tests.support import TIMEOUT


class Elements(HTMLParser):
    """The tags of a page with their attributes, and its text.

    Attributes:
        tags: (name, attributes); the name of an end begins with "/".
        texts: (the attributes of the tag before it, text).
        definitions: the text of each dd.
    """

    def __init__(self, page):
        super().__init__()
        self.tags, self.texts, self.definitions = [], [], []
        self._is_in_definition = False
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, attributes))
        if tag == "dd":
            self.definitions.append("")
            self._is_in_definition = True

    def handle_endtag(self, tag):
        self.tags.append(("/" + tag, []))
        self._is_in_definition &= tag != "dd"

    def handle_data(self, text):
        self.texts.append((self.tags[-1][1] if self.tags else [], text))
        if self._is_in_definition:
            self.definitions[-1] += text

    @property
    def text(self):
        return "".join(text for _, text in self.texts)

    @property
    def names(self):
        return {name for name, _ in self.tags if not name.startswith("/")}

    @property
    def attributes(self):
        return [attribute for _, attributes in self.tags for attribute in attributes]


def visit(folder, *flags, file="page.html"):
    """Opens a page in a browser, whose script leaves JSON in the attribute data-seen of its root.

    Returns: this JSON (None if there is none), and what the console said.
    """
    if not shutil.which("chromium"):
        pytest.skip("needs a browser, chromium")
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", *flags,
               "--enable-logging=stderr", f"--user-data-dir={folder / 'profile'}", "--dump-dom",
               (folder / file).as_uri()]  # fmt: skip
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=TIMEOUT)
    match = re.search(r'<html[^>]* data-seen="([^"]*)"', done.stdout)
    console = [line for line in done.stderr.split("\n") if "CONSOLE" in line]
    return match and json.loads(html.unescape(match[1])), console
