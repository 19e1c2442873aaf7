"""Where the sentences of a line are."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transformer_mt.utils.languages import sentences

CORPORA = Path(__file__).parents[3] / "shared" / "data"


def texts(line, language):
    return [line[start:end] for start, end in sentences(line, language)]


@pytest.mark.parametrize(
    ("language", "expected"),
    [
        ("en", ["Where is the station?", "The cat is asleep."]),
        ("en", ["where is it?", "the cat is asleep.", "yes."]),
        ("en", ["WHERE IS IT?", "YES!!", "NO?!"]),
        # Abbreviations, initials, numbers, addresses
        ("en", ["Dr. Smith met Mr. J. R. R. Jones at 5 p.m. in St. Louis.", "It cost 3.50."]),
        ("en", ["He lives in the U.S. Government office, approx. 3 in. long.", "See Fig. 3."]),
        ("en", ["Go to https://example.com/?A=1.Test or www.Example.Com now.", "Use ASP.NET."]),
        ("de", ["Herr Dr. Müller kam ca. um 5 Uhr.", "Der 2. Weltkrieg, z. B. am 3. Mai."]),
        ("fr", ["Où est M. Dupont ?", "Il est là !", "Voir art. 5."]),
        ("ru", ["Он живёт на ул. Ленина.", "Т. е. так.", "А. С. Пушкин писал."]),
        ("pt", ["O Sr. Silva vive na Av. Paulista.", "Sim."]),
        # Quotes and brackets
        ("en", ['He said "No!"', "She left.", "'Go.'"]),
        ("en", ['"Is it you?" she asked.', "“Wait…” he said."]),
        ("en", ["(See above.)", "Next.", "Hello (world. Foo bar.)", "Next one."]),
        ("zh", ["他说：“你好。我走了。”", "然后他走了。", "（见上。）", "完。"]),
        # Ellipses
        ("en", ["Wait... what?", "I don't know…", "Maybe.", "Mr. X... and he left."]),
        # Lists
        ("en", ["1. Open the door.", "2. Close the window.", "3. Leave."]),
        ("en", ["a) First.", "b) Second.", "(1) Third."]),
        # Other languages
        ("zh-CN", ["你好吗？", "第1.2节。", "我是学生！"]),
        ("ja", ["こんにちは。", "元気ですか？", "はい"]),
        ("ko", ["안녕하세요.", "저는 학생입니다.", "네?"]),
        ("hi", ["मैं घर जा रहा हूँ।", "तुम कहाँ हो?"]),
        ("ar", ["مرحبا.", "كيف حالك؟", "أنا بخير."]),
        ("th", ["ผมชื่อสมชาย", "ผมเป็นนักเรียน", "มี iPhone 15 ราคา 500 บาท"]),
        ("km", ["ខ្ញុំទៅសាលារៀន។", "អ្នកទៅណា?", "ខ្ញុំទៅផ្ទះ។"]),
        ("my", ["မင်္ဂလာပါ။", "နေကောင်းလား။"]),
        ("bo", ["བཀྲ་ཤིས་བདེ་ལེགས།", "ང་བོད་པ་ཡིན།"]),
        ("el", ["Πού είναι ο σταθμός;", "Η γάτα κοιμάται."]),
        ("xx", ["Nobody knows this language.", "Its sentences end all the same."]),
    ],
)
def test_each_sentence_is_found(language, expected):
    glue = "" if language.startswith(("zh", "ja")) else " "
    assert texts(glue.join(expected), language) == expected
    for sentence in expected:
        assert texts(sentence, language) == [sentence]


@pytest.mark.parametrize("line", ["", " ", "\t\u3000", "?! ... !!!", '"', "No end"])
def test_what_has_no_end_is_at_most_one(line):
    assert texts(line, "en") == ([line] if line.strip() else [])


def test_spaces_do_not_matter():
    assert texts("  One.\t Two.\u00a0\u3000Three.  ", "en") == ["One.", "Two.", "Three."]
    assert texts("One!Two?Three.", "en") == ["One!", "Two?", "Three."]


LINES = st.text(
    st.one_of(
        st.sampled_from('aB1 .!?…。？)"”\t\u3000(ཀ།กข'), st.characters(exclude_categories=[])
    ),
    max_size=40,
)


@given(line=LINES, language=st.sampled_from(["en", "de", "zh", "th", "bo", "", "x" * 40]))
def test_nothing_is_lost(line, language):
    end = 0
    for start, next_end in sentences(line, language):
        assert start < next_end and not line[end:start].strip()
        assert line[start:next_end] == line[start:next_end].strip()
        end = next_end
    assert not line[end:].strip()


@pytest.mark.parametrize(
    ("path", "most"),
    [
        ("multi30k/test2016.en", 0),
        ("multi30k/train.en", 10),
        ("tatoeba_zh-en/train.zh", 200),
        ("tatoeba_de-en/train.de", 250),
    ],
)
def test_text_of_single_sentences_has_few_lines_with_more(path, most):
    """Of 20,000 lines at most. Those of Tatoeba do have several, in about one line of a hundred."""
    if not CORPORA.is_dir():
        pytest.skip(f"{CORPORA} is not there")
    lines = (CORPORA / path).read_text("utf-8").split("\n")[:20_000]
    assert sum(len(sentences(line, path[-2:])) > 1 for line in lines) <= most
