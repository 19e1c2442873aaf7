"""Text in the form lc.norm.tok, and Multi30k in it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_mt.config.text import DataConfig
from transformer_mt.data.corpus import open_corpus
from transformer_mt.data.normalization import lc_norm_tok, looks_tokenized
from transformer_mt.utils.errors import UsageError


def test_some_lines():
    german, english = lc_norm_tok("de"), lc_norm_tok("en")
    assert german("Ein Mann „schläft“, z.B. hier.") == (
        "ein mann &quot; schläft &quot; , z.b. hier ."
    )
    assert english("Isn't it a T-shirt & a [hat]?") == (
        "isn &apos;t it a t-shirt &amp; a &#91; hat &#93; ?"
    )
    assert english("") == english(" \u2028") == ""


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet=st.characters(exclude_characters="\n", exclude_categories=["Cs"])))
def test_a_line_stays_a_line_of_tokens(line):
    form = lc_norm_tok("de")(line)
    assert "\n" not in form
    assert form == " ".join(form.split())
    assert form == form.lower()


def test_a_language_without_spaces():
    with pytest.raises(UsageError, match="languages with spaces between words, and not for zh-CN"):
        lc_norm_tok("zh-CN")


def test_the_official_text_of_multi30k(shared_data):
    """The official test2016.de has this number of tokens; it was compared line by line."""
    languages = {"source_lang": "en", "target_lang": "de"}
    root, dataset = str(shared_data / "multi30k"), "multi30k_lc_norm_tok"
    config = DataConfig(dataset=dataset, root=root, dev="dev", test="test", **languages)
    raw = config.model_copy(update={"dataset": "multi30k"})
    corpus, raw_corpus = open_corpus(config), open_corpus(raw)
    sources, references = corpus.test.text
    assert len(references) == 1000 and sum(len(line.split()) for line in references) == 12_103
    assert sources[0] == "a man in an orange hat starring at something ."
    assert list(corpus.test) == list(zip(sources, references, strict=True))
    assert corpus.test.content() != raw_corpus.test.content()
    other_way = config.model_copy(update={"source_lang": "de", "target_lang": "en"})
    assert open_corpus(other_way).test.text == (references, sources)
    assert all(sum(map(looks_tokenized, text)) > 900 for text in (references, sources))
    assert all(sum(map(looks_tokenized, text)) < 5 for text in raw_corpus.test.text)
