"""The keys, flags and commands that docs/glossary.md names exist, and its terms are in order."""

import re

from tests.docs.code_names import DOCS, in_backticks
from transformer_mt import cli
from transformer_mt.config.schema import SECTIONS

TEXT = re.sub(r"\s+", " ", (DOCS / "glossary.md").read_text(encoding="utf-8"))
TERMS = re.findall(r"\*\*([^*]+)\*\*( \([^)]*[\u4e00-\u9fff][^)]*\))?\. ", TEXT)
# Their Chinese names are the same.
NAMES = {"BLEU", "chrF", "sacreBLEU", "SentencePiece", "Transformer"}


def test_terms_are_in_order_and_have_their_chinese_names():
    assert len(TERMS) > 80 and len(TERMS) == TEXT.count("**") / 2
    terms = [re.sub(r"[^\w ]", "", term.lower()) for term, _ in TERMS]
    assert terms == sorted(terms)
    assert {term for term, chinese in TERMS if not chinese} == NAMES


def test_keys_exist():
    keys = [name.split(":")[0] for name in in_backticks(TEXT) if re.match(r"[a-z_]+\.[a-z_]", name)]
    assert len(keys) > 40
    for key in keys:
        section, _, name = key.partition(".")
        assert name in SECTIONS[section].model_fields, key


def test_flags_and_commands_exist(capsys):
    names = [name for name in in_backticks(TEXT) if "--" in name or name in cli.COMMANDS]
    assert len(names) > 20
    help_texts = {}
    for command in cli.COMMANDS:
        try:
            cli.parse([command, "--help"])
        except SystemExit:
            help_texts[command] = capsys.readouterr().out
    for name in names:
        *command, flag = name.split()
        if flag in cli.COMMANDS:
            continue
        flags = [re.findall(r"--[\w-]+", help_texts[one]) for one in command or help_texts]
        assert any(flag in own for own in flags), name
