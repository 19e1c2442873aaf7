"""What the codes of languages mean."""

import pytest

from transformer_mt.scoring.metrics import tokenizer_for_language
from transformer_mt.utils.languages import (
    has_spaces,
    has_spaces_in,
    joins_sentences_with_space,
    primary,
    standard,
    taken_for,
)


@pytest.mark.parametrize(
    ("tokenizer", "codes"),
    [
        ("zh", "zh zho chi cmn yue nan lzh zh-CN ZH_Hant zh_tw zh-yue zh-min-nan cn CN cn-TW zht"),
        ("ja-mecab", "ja jpn jp ja_JP"),
        ("ko-mecab", "ko kor kr ko-KR"),
        ("char", "th tha lo lao km khm kh my mya bur mm my-MM bo bod tib dz shn"),
        ("13a", "de ger deu de-AT de_tok en2 src x zh.txt cs cz kau vi tw"),
    ],
)
def test_all_codes_of_a_language_are_one(tokenizer, codes):
    for code in [*codes.split(), *([""] if tokenizer == "13a" else [])]:
        assert tokenizer_for_language(code) == tokenizer, code
        assert has_spaces(code) is (tokenizer in ("13a", "ko-mecab"))
        assert joins_sentences_with_space(code) is (tokenizer not in ("zh", "ja-mecab"))


def test_standard_codes():
    codes = {"ger": "de", "zh_tw": "zh-TW", "cn": "zh", "jp-JP": "ja-JP", "pt-BR": "pt-BR"}
    for code, expected in (codes | {"iw": "he", "my language": "my language", "": ""}).items():
        assert standard(code) == expected and primary(code) == expected.split("-")[0]


def test_codes_that_are_known_to_be_wrong():
    assert taken_for("cn") == taken_for("CN_Hans") == "zh" and taken_for("kr") == "ko"
    assert all(taken_for(code) is None for code in ("zh", "chi", "kau", "en", "xx", ""))


def test_scripts_without_spaces():
    for text in ("我用 Linux 系统和其他东西。", "ภาษาไทย"):
        assert not has_spaces_in([text])
    for text in ("The sign says 你好.", "한국어 문장", "12:30", ""):
        assert has_spaces_in([text])
