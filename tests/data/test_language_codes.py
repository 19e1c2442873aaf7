"""What the codes of languages mean."""

import pytest

from transformer_mt.data.languages import (
    has_spaces,
    is_in_unspaced_script,
    joins_sentences_with_space,
    primary,
    standard,
    taken_for,
)
from transformer_mt.scoring.tokenizers import tokenizer_for_language


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


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("ger", "de"),
        ("zh_tw", "zh-TW"),
        ("cn", "zh"),
        ("jp-JP", "ja-JP"),
        ("pt-BR", "pt-BR"),
        ("iw", "he"),
        ("my language", "my language"),
        ("", ""),
    ],
)
def test_standard_codes(code, expected):
    assert standard(code) == expected
    assert primary(code) == expected.split("-")[0]


def test_codes_that_are_known_to_be_wrong():
    assert taken_for("cn") == taken_for("CN_Hans") == "zh" and taken_for("kr") == "ko"
    assert all(taken_for(code) is None for code in ("zh", "chi", "kau", "en", "xx", ""))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\u6211\u7528 Linux \u7cfb\u7edf\u548c\u5176\u4ed6\u4e1c\u897f\u3002", True),
        ("\u0e20\u0e32\u0e29\u0e32\u0e44\u0e17\u0e22", True),
        ("The sign says \u4f60\u597d.", False),
        ("\ud55c\uad6d\uc5b4 \ubb38\uc7a5", False),
        ("12:30", False),
        ("", False),
    ],
)
def test_scripts_without_spaces(text, expected):
    assert is_in_unspaced_script(text) is expected
