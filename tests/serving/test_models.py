"""A served model: its translations are those of the command `translate`, whoever else asks."""

import json
import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support import ROOT, demo_pairs, make_config, make_model_directory, run_command
from transformer_mt.data.terms import Term
from transformer_mt.serving.batching import Limits, Ticket
from transformer_mt.serving.libretranslate import PLACEHOLDER
from transformer_mt.serving.models import serving
from transformer_mt.utils.errors import UsageError

LINES = [source for source, _ in demo_pairs(60)]
# Lines of every kind.
LINES += ["", "   ", "x" * 300, "日本語", "\u202eabc", "two\tcolumns", " ".join(LINES[:12])]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    config = make_config(folder, decoding={"beam_size": 3}, data={"max_length": 40})
    directory = make_model_directory(folder / "model", demo_pairs(200), config)
    lines = [
        {"kind": "test", "checkpoint": "step_5", "bleu": 12.0},
        {"kind": "test", "checkpoint": "step_10", "bleu": 20, "intervals": {"bleu": [19, 22]}},
    ]
    (directory.path / "metrics.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    (directory.path / "data.json").write_text('{"pairs": 12345}')
    return directory.path


@pytest.fixture(scope="module")
def models(directory):
    folders = [str(directory), f"{directory}:step_5"]
    with serving(folders, Limits(max_lines=200, max_subwords=5000)) as models:
        yield models


@pytest.fixture(scope="module")
def model(models):
    return models["model"]


@pytest.fixture(scope="module")
def expected(directory):
    """What the command `translate` writes for LINES, with two outputs and alignment."""
    file = directory.parent / "lines"
    file.write_text("".join(line + "\n" for line in LINES), encoding="utf-8")
    output = directory.parent / "output.jsonl"
    flags = {"input": file, "output": output, "format": "jsonl", "n_best": 2, "threads": 1}
    run_command("translate", directory, "--alignment", **flags)
    return [json.loads(line) for line in output.read_text("utf-8").splitlines()]


def test_a_tag_for_all_lines(directory):
    """The model knows a word of its vocabulary as a tag; a tag that it lacks is refused."""
    with serving([str(directory)], Limits(), tag="a") as models:
        (tagged,) = ask(models["model"], ["the dog"])
    with serving([str(directory)], Limits()) as models:
        plain, by_hand = ask(models["model"], ["the dog", "a the dog"])
    assert tagged.text == by_hand.text != plain.text
    message = r"decoding\.tag: <x>: the model has no such subword"
    with pytest.raises(UsageError, match=message), serving([str(directory)], Limits(), tag="<x>"):
        pytest.fail("it was loaded")


def ask(model, lines, **options):
    return model.translate(lines, Ticket(), **options)


def same(translation, values) -> bool:
    """Whether a translation is what the command wrote, with scores to 4 digits."""
    links = [" ".join(f"{i}-{j}" for i, j in output.alignment) for output in translation.outputs]
    return (
        [output.text for output in translation.outputs] == [o["text"] for o in values["outputs"]]
        and links == [output["alignment"] for output in values["outputs"]]
        and [output.score for output in translation.outputs]
        == pytest.approx([output["score"] for output in values["outputs"]], abs=5e-5)
    )


def test_the_translations_are_those_of_the_command_whoever_else_asks(model, expected):
    def client(line):
        return ask(model, [line], n_best=2, alignment=True)[0]

    with ThreadPoolExecutor(16) as pool:
        answers = pool.map(client, LINES)
        whole = ask(model, LINES, n_best=2, alignment=True)
    for one, of_all, values in zip(answers, whole, expected, strict=True):
        assert same(one, values) and same(of_all, values), values["source"]


def test_requests_with_other_settings_do_not_mix(model):
    sizes = (1, 2, 3, 4)
    with ThreadPoolExecutor(4) as pool:
        together = [*pool.map(lambda size: ask(model, LINES[:20], beam_size=size), sizes)]
    alone = [ask(model, LINES[:20], beam_size=size) for size in sizes]
    texts = [[[t.text for t in answer] for answer in answers] for answers in (together, alone)]
    assert texts[0] == texts[1] and texts[0][0] != texts[0][3]


def test_the_card_says_what_the_model_is(model, models):
    values = model.card.model_dump()
    assert (values["source_lang"], values["target_lang"]) == ("en", "de")
    assert values["pairs"] == 12345
    assert values["data"] == "12,345 pairs"
    # Only the score of the checkpoint that translates counts.
    assert values["test"] == {"metric": "BLEU", "score": 20.0, "interval": 1.5}
    assert models["model:step_5"].card.test.score == 12.0
    assert (values["n_best"], values["alignment"], values["attention"]) == (3, True, True)
    assert values["limits"]["lines"] == 200


def test_more_outputs_than_the_beam_is_wide_widen_the_beam(model):
    (translation,) = ask(model, LINES[:1], n_best=6)
    assert len(translation.outputs) == 6
    with pytest.raises(UsageError, match="n_best: 21: expected a number from 1 to 20"):
        ask(model, LINES[:1], n_best=21)
    with pytest.raises(UsageError, match="beam_size"):
        ask(model, LINES[:1], n_best=4, beam_size=2)


def test_terms_are_followed_whoever_else_asks(model):
    assert model.card.terms
    word = LINES[0].split()[1]
    terms = [Term(word, ("Bahnhof",))]
    with ThreadPoolExecutor(2) as pool:
        plain, given = pool.map(lambda own: ask(model, LINES[:4], terms=own), [None, terms])
    assert "Bahnhof" in given[0].text and "Bahnhof" not in plain[0].text
    assert [t.text for t in plain] == [t.text for t in ask(model, LINES[:4])]


def test_too_much_is_refused(model):
    for lines, problem in (
        (["a b " * 2000] * 3, "24,000 characters; a request may have 20,000"),
        (["a", "中" * 10_001], "line 2 has 10,001 characters; a line may have 10,000"),
        (["a b " * 2000] * 2, "8,000 subwords; a request may have 5,000"),
    ):
        with pytest.raises(UsageError, match=problem):
            ask(model, lines)
    assert model.queue.waiting == 0


def test_the_attention_page_is_that_of_a_pair(model):
    page = model.attention_page(LINES[0], "Wo ist der Bahnhof?", Ticket())
    assert page.startswith("<!doctype html>") or page.startswith("<!DOCTYPE html>")
    for source, problem in (("", "source: 0 subwords"), ("word " * 50, "source: ")):
        with pytest.raises(UsageError, match=problem):
            model.attention_page(source, "x", Ticket())


def test_an_export_is_served_without_paddle_and_says_what_it_was_trained_on(directory, tmp_path):
    pytest.importorskip("ctranslate2")
    export = tmp_path / "run" / "export" / "ctranslate2"
    export.parent.mkdir(parents=True)
    run_command("export", directory, format="ctranslate2", output=export)
    with serving([str(export), str(export)], Limits()) as models:
        assert list(models) == ["run-ctranslate2", "run-ctranslate2-2"]
        served = models["run-ctranslate2"]
        assert served.card.engine == "CTranslate2"
        assert (served.card.pairs, served.card.test.score) == (12345, 20.0)
        assert not served.card.attention and not served.card.terms
        with pytest.raises(UsageError, match="CTranslate2's search can't"):
            ask(served, LINES[:1], terms=[Term("dog", ("Hund",))])
        assert len(ask(served, LINES[:20])) == 20
        with pytest.raises(UsageError, match="does not give the weights"):
            served.attention_page("a", "b", Ticket())


def test_a_folder_without_a_model_is_reported():
    with pytest.raises(UsageError, match="not a model directory"), serving([str(ROOT)], Limits()):
        pass


def test_markup_of_documents_is_protected(model):
    line = "A \ue000<b>\ue001dog\ue000</b>\ue001 runs {0}."
    (found,) = ask(model, [line], in_document=True)
    for piece in ("\ue000<b>\ue001", "\ue000</b>\ue001", "{0}"):
        assert found.text.count(piece) == 1
    (found,) = ask(model, [line])
    assert "<b>" not in found.text


@pytest.fixture(scope="module")
def model_with_symbols(tmp_path_factory):
    folder = tmp_path_factory.mktemp("symbols")
    config = make_config(folder, data={"protect": ["placeholders"]})
    directory = make_model_directory(folder / "model", demo_pairs(200), config)
    with serving([str(directory.path)], Limits()) as models:
        yield models["model"]


@pytest.mark.parametrize(
    ("name", "kept"), [("model", PLACEHOLDER), ("model_with_symbols", rf"{PLACEHOLDER}|{{x}}")]
)
def test_what_a_client_protects_is_in_the_translation_once(name, kept, request):
    own = request.getfixturevalue(name)
    lines = ["The [X4X] dog [X12X] runs.", "[X0X]", "[X0X]dog[X6X]", "A dog {x} [X8X].", *LINES]
    lines.append(" ".join(f"[X{number}X]" for number in range(20)) + " dogs")
    plain, found = ask(own, lines), ask(own, lines, protect=(PLACEHOLDER,))
    for line, without, translation in zip(lines, plain, found, strict=True):
        for piece in re.findall(kept, line):
            assert translation.text.count(piece) == 1
        if not re.search(PLACEHOLDER, line):
            assert translation.text == without.text
