"""The Chinese pages have the commands, flags, figures and recipes of the English ones."""

import re

import pytest

from tests.docs.pages import Page, commands, find_page, parse, simple_commands

FIRST_PAGES = ("README.md", "README.zh.md")
TUTORIALS = ("docs/tutorial.md", "docs/tutorial.zh.md")
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
# A figure has a decimal point or a separator of thousands.
FIGURE = re.compile(r"(?<![\w.,])(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+\.\d+)(?![\w.]?\d)")


def bash_commands(page: Page) -> list[str]:
    return [command.text for block in page.blocks_in("bash", "sh") for command in commands(block)]


def figures_of_tables(page: Page) -> list[str]:
    return [
        number
        for table in page.tables
        for row in table[1:]
        for cell in row
        for number in NUMBER.findall(re.sub(r"`[^`]*`|\]\([^)]*\)", "", cell))
    ]


def bold_figures(page: Page) -> list[str]:
    return [number for bold in page.bold for number in NUMBER.findall(bold.text)]


def links_to_files(page: Page) -> set[str]:
    """The links to recipes, licences and pages that have one language only."""
    targets = {link.text.partition("#")[0] for link in page.links}
    return {target for target in targets if re.search(r"configs/|\.(cff|svg|png)$|LICENSE", target)}


def figures(page: Page) -> set[str]:
    """The figures in the text of a page, without those in its code."""
    text = re.sub(r"```.*?```|`[^`\n]*`|\]\([^)]*\)", " ", page.source, flags=re.DOTALL)
    return set(FIGURE.findall(text))


def program_calls(page: Page) -> list[tuple[str, ...]]:
    """What a tutorial calls, in its order: the script or command, its flags with the values that
    are no names of files, and the keys that it sets."""
    found = []
    for command in bash_commands(page):
        for one in simple_commands(command):
            program, *words = one.words
            if program == "bash":
                program, *words = words
            elif program.endswith("python") and words[:2] == ["-m", "transformer_mt"]:
                program, *words = words[2:]
            elif program.endswith("python") and words[:1] == ["-m"]:
                program, *words = words[1:]
            names = len([word for word in words if not re.match(r"-|[\w.]+=", word)])
            kept = [word.partition("=")[0] for word in words if re.match(r"-|[\w.]+=", word)]
            found.append((program, *kept, f"{names} names"))
    return found


# ---- The pages ----


@pytest.fixture(scope="module")
def first_pages() -> tuple[Page, Page]:
    return find_page(FIRST_PAGES[0]), find_page(FIRST_PAGES[1])


def test_first_pages_have_the_same_commands(first_pages):
    english, chinese = first_pages
    assert bash_commands(chinese) == bash_commands(english) != []


def test_first_pages_have_the_same_python_and_output(first_pages):
    english, chinese = (
        [block.text for block in page.blocks if block.language != "bash"] for page in first_pages
    )
    assert chinese == english


def test_first_pages_have_the_same_figures(first_pages):
    english, chinese = first_pages
    assert figures_of_tables(chinese) == figures_of_tables(english) != []
    assert bold_figures(chinese) == bold_figures(english) != []
    assert figures(chinese) - figures(english) == set()


def test_first_pages_have_the_same_links(first_pages):
    english, chinese = map(links_to_files, first_pages)
    assert chinese == english != set()


def test_first_pages_have_as_many_sections(first_pages):
    english, chinese = ([one.level for one in page.headings] for page in first_pages)
    assert chinese == english


def test_tutorials_call_the_same_commands():
    english, chinese = (program_calls(find_page(name)) for name in TUTORIALS)
    assert chinese == english != []


def test_tutorials_have_as_many_sections():
    english, chinese = ([one.level for one in find_page(name).headings] for name in TUTORIALS)
    assert chinese == english


# ---- What the checks find ----


def test_figures_and_calls_are_found():
    page = parse(
        "It takes 12 s, **39.09** of 200,000 lines (5.27 to `9.28`), [x](a/1.5), **no 7 or x**.\n"
        "\n| a1.2 | b |\n| --- | --- |\n| `4.5` 8,000 | 1 min 44 s |\n"
        "\n[r](configs/demo.yaml#x) [z](docs/a.md) ![i](docs/i.svg)\n"
        "\n```bash\nbash scripts/train.sh my.yaml model_dir=x --check  # why\n"
        "echo a | .venv/bin/python -m transformer_mt translate m --n-best 3\n```\n"
    )
    assert figures(page) == {"39.09", "200,000", "5.27", "8,000"}
    assert figures_of_tables(page) == ["8,000", "1", "44"]
    assert bold_figures(page) == ["39.09", "7"]
    assert links_to_files(page) == {"configs/demo.yaml", "docs/i.svg"}
    assert program_calls(page) == [
        ("scripts/train.sh", "model_dir", "--check", "1 names"),
        ("echo", "1 names"),
        ("translate", "--n-best", "2 names"),
    ]
