"""--terms of `evaluate` and `compare`: what is counted, shown and kept, and what is rejected."""

import csv
import json
import re

import pytest

from tests.support import demo_pairs, make_config, make_model_directory, run_command, write_lines
from transformer_mt.utils.errors import UsageError, UserError

SOURCES, REFERENCES = (list(side) for side in zip(*demo_pairs(60), strict=True))
TBX = """<?xml version="1.0"?><tbx><text><body><conceptEntry>
<langSec xml:lang="en"><termSec><term>{}</term></termSec></langSec>
<langSec xml:lang="de"><termSec><term>{}</term></termSec></langSec>
</conceptEntry></body></text></tbx>"""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Translations that lack a term which the source and the reference have, and a list with it,
    another one, and a forbidden translation."""
    folder = tmp_path_factory.mktemp("terms")
    worse = [re.sub(r"\bist\b", "war", line) for line in REFERENCES]
    texts = {
        "source": SOURCES,
        "reference": REFERENCES,
        "worse": worse,
        "few.source": SOURCES[:6],
        "few.reference": REFERENCES[:6],
        "terms.tsv": ["# a list", "is\tist", "are\tsind", "the\tder\tforbidden"],
        "other.tsv": ["xyz\tabc"],
        "wrong.tsv": ["is"],
    }
    for name, lines in texts.items():
        write_lines(folder / name, lines)
    write_lines(folder / "terms.tbx", [TBX.format("is", "ist")])
    return folder


def has(word, line):
    return re.search(rf"\b{word}\b", line.lower()) is not None


def evaluated(files, capsys, *arguments, terms="terms.tsv", of="", **flags):
    path = files / "scores.json"
    own = {"source": files / f"{of}source", "reference": files / f"{of}reference"}
    run_command("evaluate", *arguments, **own, terms=files / terms, json=path, **flags)
    return capsys.readouterr().out, json.loads(path.read_text("utf-8"))


def test_files_are_checked_by_a_list(files, capsys, tmp_path):
    table = tmp_path / "table"
    hypothesis = ["--hypothesis", files / "worse"]
    output, kept = evaluated(files, capsys, *hypothesis, target_lang="de", sentences=table)
    hypotheses = (files / "worse").read_text("utf-8").split("\n")
    pairs = list(zip(SOURCES, hypotheses, strict=False))
    terms = [[has(one, s) for one in ("is", "are")] for s, _ in pairs]
    right = [(has("is", s) and has("ist", h)) + (has("are", s) and has("sind", h))
             for s, h in pairs]  # fmt: skip
    forbidden = [has("the", s) and has("der", h) for s, h in pairs]
    found = kept["terms"]
    assert found["terms"] == sum(map(sum, terms)) > 10
    assert found["lines"] == sum(map(any, terms))
    assert (found["exact"], found["forbidden"]) == (sum(right), sum(forbidden))
    assert found["accuracies"]["terms"] == pytest.approx(100 * sum(right) / found["terms"])
    assert f"({sum(right)} of {found['terms']} in {found['lines']} lines; " in output
    assert " % exact, " in output and " % by stem" in output
    with open(table, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, dialect="excel-tab"))
    assert [int(row["terms_exact"]) for row in rows] == right
    assert [int(row["terms_forbidden"]) for row in rows] == forbidden


def test_several_files_and_numbers_alone(files, capsys):
    both = "--hypothesis", files / "worse", "--hypothesis", files / "reference"
    output, kept = evaluated(files, capsys, *both)
    shown = re.findall(r"(?m)^(\S+) +terms: (.*) % exact \(", output)
    assert [name for name, _ in shown] == [str(files / "worse"), str(files / "reference")]
    accuracies = [one["terms"]["accuracies"]["terms"] for one in kept]
    assert accuracies[0] < accuracies[1]
    # Without a language, there are no stems.
    assert all("terms_by_stem" not in one["terms"]["accuracies"] for one in kept)
    output, _ = evaluated(files, capsys, *both, metrics="bleu", metric_only=True)
    numbers = [list(map(float, line.split("\t"))) for line in output.splitlines()]
    assert [own[1] for own in numbers] == pytest.approx(accuracies, abs=1e-4)


def test_tbx(files, capsys):
    hypothesis = ["--hypothesis", files / "reference"]
    languages = {"source_lang": "en", "target_lang": "de"}
    _, kept = evaluated(files, capsys, *hypothesis, terms="terms.tbx", **languages)
    lines = [has("ist", r) for s, r in zip(SOURCES, REFERENCES, strict=True) if has("is", s)]
    assert (kept["terms"]["terms"], kept["terms"]["exact"]) == (len(lines), sum(lines))


def test_a_model_follows_terms(files, capsys, model, tmp_path):
    write_lines(files / "few.tsv", [f"{s.split()[0]}\tHaus" for s in SOURCES[:6]])
    flags = {"of": "few.", "terms": "few.tsv", "threads": 1, "beam_size": 2, "metrics": "bleu"}
    _, without = evaluated(files, capsys, model, **flags)
    translations = tmp_path / "out"
    _, followed = evaluated(files, capsys, model, **flags, follow_terms=True, output=translations)
    assert without["terms"]["terms"] == followed["terms"]["terms"] == 6
    # A model that was never trained writes it within words, where it does not count.
    lines = translations.read_text("utf-8").splitlines()
    assert all("haus" in line.lower() for line in lines)
    exact = sum(has("haus", line) for line in lines)
    assert without["terms"]["exact"] == 0 < followed["terms"]["exact"] == exact


def test_a_model_that_cannot_follow_terms(files, tmp_path):
    config = make_config(tmp_path, model={"non_autoregressive": "length"})
    path = make_model_directory(tmp_path / "model", demo_pairs(60), config).path
    with pytest.raises(UsageError, match="non-autoregressive model predicts all words at once"):
        run_command(
            "evaluate", path, source=files / "source", reference=files / "reference",
            terms=files / "terms.tsv", follow_terms=True,
        )  # fmt: skip


def test_systems_are_compared(files, capsys, tmp_path):
    json_file, page = tmp_path / "out.json", tmp_path / "out.html"
    systems = files / "worse", files / "reference"
    texts = {"source": files / "source", "reference": files / "reference"}
    flags = {"terms": files / "terms.tsv", "target_lang": "de", "metrics": "bleu"}
    run_command("compare", *systems, **texts, **flags, json=json_file, html=page)
    output = capsys.readouterr().out
    kept = json.loads(json_file.read_text("utf-8"))
    assert list(kept["metrics"]) == ["bleu", "terms", "terms_by_stem"]
    own = kept["metrics"]["terms"]
    assert own["higher_is_better"]
    scores = {letter: system["score"] for letter, system in own["systems"].items()}
    for letter, path in zip("AB", systems, strict=True):
        _, alone = evaluated(files, capsys, "--hypothesis", path, target_lang="de")
        assert scores[letter] == pytest.approx(alone["terms"]["accuracies"]["terms"])
    difference = own["systems"]["B"]["difference"]
    assert (
        difference["value"] == pytest.approx(scores["B"] - scores["A"]) and difference["p"] < 0.01
    )
    assert f"\nB  {scores['B']:.2f}  " in output.partition("   Terms")[2]
    assert "Terms agrees (" in " ".join(output.split())
    assert any(note.startswith("Terms is how many of ") for note in kept["notes"])
    assert "Difference from A in Terms" in page.read_text("utf-8")


@pytest.mark.parametrize(
    ("flags", "error", "message"),
    [
        ({"terms": "none.tsv", "source": "source"}, UsageError, "none.tsv: there is no such file"),
        ({"terms": "wrong.tsv", "source": "source"}, UserError, "wrong.tsv, line 1: expected"),
        ({"terms": "other.tsv", "source": "source"}, UserError, "other.tsv: none of the terms"),
        ({"terms": "terms.tsv"}, UsageError, "--terms needs --source"),
        ({"terms": "terms.tbx", "source": "source"}, UsageError, "TBX needs --source-lang"),
        ({"source_lang": "en", "source": "source"}, UsageError, "--source-lang"),
        ({"json": "terms.tsv", "terms": "terms.tsv", "source": "source"}, UsageError, "same file"),
    ],
)
@pytest.mark.parametrize("command", ["evaluate", "compare"])
def test_what_is_rejected(files, command, flags, error, message):
    names = ("terms", "source", "json")
    flags = {key: files / own if key in names else own for key, own in flags.items()}
    systems = [files / "worse", files / "reference"]
    if command == "evaluate":
        systems = ["--hypothesis", systems[0]]
    with pytest.raises(error) as raised:
        run_command(command, *systems, reference=files / "reference", metrics="bleu", **flags)
    assert message in str(raised.value) and type(raised.value) is error


def test_terms_are_followed_by_models_only(files):
    texts = {"source": files / "source", "reference": files / "reference"}
    for flags in ({"terms": files / "terms.tsv"}, {}):
        with pytest.raises(UsageError, match="--follow-terms is for MODEL_DIR with --terms"):
            run_command("evaluate", hypothesis=files / "worse", **texts, **flags, follow_terms=True)
