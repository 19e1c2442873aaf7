"""Comparisons of systems, against sacreBLEU's own command and against statistics done by hand."""

import itertools
import json
import random
import re
import subprocess
import sys

import numpy as np
import pytest
import sacrebleu as library
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support import TIMEOUT, demo_pairs, write_lines
from transformer_mt.reports.comparison import as_text
from transformer_mt.scoring.comparison import (
    Piece,
    compare,
    differences,
    letter_of,
    most_changed,
)
from transformer_mt.scoring.groups import groupings
from transformer_mt.scoring.significance import (
    Difference,
    cautious_p,
    caveats,
    lines_needed,
    p_number,
    p_text,
    paired_tests,
    verdict,
)


def perturbed(lines, share, seed, words=("der", "eine", "mit", "steht")):
    """Translations of which a share of the words is lost, replaced or swapped."""
    generator = random.Random(seed)
    for line in lines:
        result = []
        for word in line.split(" "):
            kind = generator.random() / share
            if kind < 1 / 3:
                continue
            if kind < 2 / 3:
                word = generator.choice(words)
            result.insert(len(result) - (bool(result) and 2 / 3 <= kind < 1), word)
        yield " ".join(result)


REFERENCES = [target for _, target in demo_pairs(120)]
SOURCES = [source for source, _ in demo_pairs(120)]
SYSTEMS = [list(perturbed(REFERENCES, share, seed)) for seed, share in enumerate((0.3, 0.2, 0.29))]


def compared(systems, reference, sources=None, names="abc", tokenize="13a", **options):
    named = list(zip(names, systems, strict=False))
    groups = groupings(sources, reference)
    return compare(named, [reference], sources, tokenize=tokenize, groupings=groups, **options)


def test_equals_the_sacrebleu_command(tmp_path):
    """Both tests, to the last digit, with two references, upper and lower case the same."""
    references = [REFERENCES, list(perturbed(REFERENCES, 0.1, 6))]
    systems = SYSTEMS[:2]
    tests = paired_tests(systems, references, "13a", ["bleu", "chrf", "ter"], lowercase=True)
    names = {"bleu": "BLEU", "chrf": "chrF2", "ter": "TER"}
    texts = enumerate([*references, *systems])
    files = [write_lines(tmp_path / str(number), lines) for number, lines in texts]
    flags = ("-m", "bleu", "chrf", "ter", "--lowercase", "--chrf-lowercase")
    for test, flag in (("bootstrap", "--paired-bs"), ("randomisation", "--paired-ar")):
        done = subprocess.run(
            [sys.executable, "-m", "sacrebleu", *files[:2], "-i", *files[2:], flag, *flags],
            **{"check": True, "capture_output": True, "text": True, "timeout": TIMEOUT},
        )
        rows = json.loads(done.stdout)
        for metric in tests:
            shown = [row[names[metric.key]] for row in rows]
            assert [row["score"] for row in shown] == [system.value for system in metric.scores]
            p_values = [getattr(system.difference, f"{test}_p") for system in metric.scores[1:]]
            assert [row["p_value"] for row in shown] == [None, *p_values]
            if test == "bootstrap":
                intervals = [(system.mean, system.margin) for system in metric.scores]
                assert [(row["mean"], row["ci"]) for row in shown] == intervals
    for metric in tests:
        assert metric.seed == 12345
        assert metric.samples == {"bootstrap": 1000, "randomisation": 10_000}
        assert "|bs:1000|seed:12345|" in metric.signatures["bootstrap"]
        assert "|ar:10000|seed:12345|" in metric.signatures["randomisation"]
    # System 1 has fewer errors than the baseline: its TER is lower, which is a gain.
    difference = tests[2].scores[1].difference
    assert difference.value < 0 < difference.gain == -difference.value


def test_the_interval_of_the_difference_is_of_the_same_samples():
    """Resampled by hand: the mean of the differences is the difference of sacreBLEU's means."""
    for one in paired_tests(SYSTEMS, [REFERENCES], "13a", ["bleu"]):
        baseline, *others = one.scores
        for own in others:
            lower, upper = own.difference.interval
            middle = own.mean - baseline.mean
            assert lower < middle < upper
            # Near to what a normal distribution has: 1.96 deviations at each side. The ends of
            # 1,000 samples vary by about a tenth of a deviation.
            for end, sign in ((lower, -1), (upper, 1)):
                expected = middle + sign * 1.96 * own.difference.deviation
                assert end == pytest.approx(expected, abs=0.4 * own.difference.deviation)


# ---- How many lines it takes ----


def test_the_lines_needed_have_the_power_that_is_promised():
    """On sentence scores that are drawn, with a paired z-test by hand, in 4,000 test sets."""
    random = np.random.default_rng(11)
    mean, deviation, lines = 0.3, 4.0, 500
    needed = lines_needed(lines, mean, deviation / lines**0.5)
    draws = random.normal(mean, deviation, size=(4000, needed))
    z = draws.mean(axis=1) / (draws.std(axis=1, ddof=1) / needed**0.5)
    # 0.8, with three standard errors of 4,000 draws and the rounding to two digits.
    assert (abs(z) > 1.96).mean() == pytest.approx(0.8, abs=0.03)


def test_lines_needed_do_not_depend_on_the_set_in_hand():
    """The deviation of a set of four times the size is half as large."""
    assert lines_needed(250, 0.8, 0.6) == lines_needed(1000, 0.8, 0.3) == 1100
    assert lines_needed(1000, -0.8, 0.3) == 1100
    assert lines_needed(1000, 0.0, 0.3) is None
    assert lines_needed(1, 0.8, 0.0) is None


# ---- p-values of few lines ----


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=8))
@example([0, 0])
@example([2])
def test_no_honest_p_value_is_smaller(differences):
    """The exact p-value of exchanging sentence scores, over all outcomes."""
    observed = abs(sum(differences))
    outcomes = [
        abs(sum(sign * one for sign, one in zip(signs, differences, strict=True)))
        for signs in itertools.product((1, -1), repeat=len(differences))
    ]
    exact = sum(outcome >= observed for outcome in outcomes) / len(outcomes)
    changed = sum(one != 0 for one in differences)
    assert cautious_p(0.0, changed=changed) <= exact
    assert cautious_p(exact, 0.9, changed=8) == max(exact, 0.9)


@pytest.mark.parametrize("changed", [0, 1, 4])
def test_few_lines_are_no_evidence(changed):
    """sacreBLEU gives p-values below 0.01 where no line differs, and where all that differ are
    better."""
    baseline = [*REFERENCES[:20]]
    baseline[:changed] = [line[: len(line) // 2] for line in baseline[:changed]]
    better = [*baseline]
    better[:changed] = REFERENCES[:changed]
    (own,) = paired_tests([baseline, better], [REFERENCES[:20]], "13a", ["bleu"])
    difference = own.scores[1].difference
    assert difference.changed == changed
    assert difference.randomisation_p < 0.01
    assert difference.p == min(1, 2 ** (1 - changed)) and not difference.is_significant


# ---- Verdicts ----


def difference(value, p, needed=None, lower_is_better=False):
    gain = -value if lower_is_better else value
    return Difference(value, gain, (0.0, 0.0), 0.0, p, p, 500, p, needed)


def said(*differences, lines=1000, is_identical=False):
    labels = ("BLEU", "chrF", "TER")
    return verdict("B", "A", list(zip(labels, differences, strict=False)), lines, is_identical)


FEW = Difference(9.0, 9.0, (0.0, 9.0), 5.0, 0.1, 0.1, 4, 0.125, 6)


@pytest.mark.parametrize(
    ("first", "lines", "outcome", "parts"),
    [
        (difference(0.8, 0.003), 1000, "better", ["B", "better than A", "0.8 BLEU", "p = 0.003"]),
        (difference(-0.043, 0.0001), 1000, "worse", ["worse than A", "0.043 BLEU", "p < 0.001"]),
        (difference(0.3, 0.21, 5600), 1000, "unknown", ["ahead", "p = 0.210", "5,600", "1,000"]),
        (difference(-0.3, 0.21, 5600), 1000, "unknown", ["too small", "behind by 0.3 BLEU"]),
        (difference(0.001, 0.9, 5_600_000), 1000, "unknown", ["about 5,600,000 lines"]),
        (FEW, 5, "unknown", ["Only 4 of its 5 lines differ"]),
        (difference(0.3, 0.21, None), 1000, "unknown", ["Only 500 of its 1,000 lines differ"]),
        (difference(0, 1), 1000, "unknown", ["same BLEU", "not the same translations"]),
    ],
)
def test_verdicts(first, lines, outcome, parts):
    found, text = said(first, lines=lines)
    assert found == outcome
    assert [part for part in parts if part not in text] == []


def test_identical_systems():
    outcome, text = said(is_identical=True)
    assert outcome == "identical" and "1,000" in text


@pytest.mark.parametrize(
    ("first", "second", "sentence", "disagree"),
    [
        (difference(1, 0.01), difference(2, 0.01), "chrF agrees (+2.00, p = 0.010).", False),
        (difference(1, 0.01), difference(2, 0.3), "chrF does not confirm it", False),
        (difference(1, 0.01), difference(-2, 0.3), "chrF does not confirm it", False),
        (difference(1, 0.01), difference(-2, 0.01), "By chrF, B is worse", True),
        (difference(1, 0.3, 9000), difference(2, 0.01), "By chrF, B is better", True),
        (difference(1, 0.3, 9000), difference(2, 0.4), "chrF cannot tell either", False),
        (difference(1, 0.01), difference(-2, 0.01, None, True), "chrF agrees (-2.00", False),
    ],
)
def test_metrics_that_agree_or_not(first, second, sentence, disagree):
    _, text = said(first, second)
    assert sentence in text
    assert ("The metrics disagree" in text) == disagree


@given(st.floats(0, 1), st.floats(0, 1), st.floats(-90, 90), st.floats(-90, 90))
def test_equality_is_never_claimed(p, other_p, value, other):
    _, text = said(difference(value, p, 9000), difference(other, other_p, 9000))
    assert ("unlikely to be chance" in text) == (p < 0.05 and value != 0)
    # "the same BLEU" says what the numbers are, and what that does not show.
    claim = re.sub("does not show that they are equally good", "", text)
    assert not re.search("equal|no difference", claim)


@given(st.floats(0, 1))
@example(0.0499)
@example(500 / 10001)
@example(0.05)
def test_a_p_value_is_not_rounded_across_the_limit(p):
    text = p_number(p)
    assert text == "<0.001" if p < 0.001 else (float(text) < 0.05) == (p < 0.05)
    assert p_text(p) == ("p < 0.001" if p < 0.001 else f"p = {text}")


def test_many_comparisons_and_few_lines_are_noted():
    many, few = caveats(2, 20)
    assert "2 systems" in many and "0.025" in many and "up to 10 %" in many
    assert "only 20 lines" in few
    assert caveats(1, 100) == []


# ---- Where the systems differ ----


@pytest.fixture(scope="module")
def comparison():
    systems = [SYSTEMS[0], SYSTEMS[1], SYSTEMS[0]]
    return compared(systems, REFERENCES, SOURCES, names=["one", "two", "same"], examples=3)


def test_sentences_are_compared_by_their_chrf(comparison):
    before, after = (
        [
            library.sentence_chrf(line, [reference]).score
            for line, reference in zip(lines, REFERENCES, strict=True)
        ]
        for lines in SYSTEMS[:2]
    )
    contrast, _ = comparison.comparisons.values()
    gains = np.array(after) - before
    counts = [(gains > 0).sum(), (gains < 0).sum(), (gains == 0).sum()]
    assert list(vars(contrast.shares).values()) == counts
    for examples, expected in (
        (contrast.better, sorted(gains)[:-4:-1]),
        (contrast.worse, sorted(gains)[:3]),
    ):
        changes = [example.system_score - example.baseline_score for example in examples]
        assert changes == pytest.approx(expected)
        for changed in examples:
            line = changed.line - 1
            shown = changed.baseline_score, changed.system_score
            assert (before[line], after[line]) == pytest.approx(shown)
            assert [changed.baseline, changed.system] == [lines[line] for lines in SYSTEMS[:2]]
            assert (changed.source, changed.references) == (SOURCES[line], [REFERENCES[line]])


def test_groups_hold_every_line_once(comparison):
    contrast, identical = comparison.comparisons.values()
    assert len(contrast.groups) == 2
    for groups in contrast.groups.values():
        for kind, count in vars(contrast.shares).items():
            assert sum(getattr(group, kind) for group in groups) == count
    short = contrast.groups["by length of the source"][0]
    own = [n for n, source in enumerate(SOURCES) if 1 <= len(source.split()) <= 10]
    assert (short.name, short.lines) == ("1–10 words", len(own))
    for lines, value in zip(SYSTEMS, (short.baseline, short.system), strict=False):
        expected = library.corpus_bleu([lines[n] for n in own], [[REFERENCES[n] for n in own]])
        assert value == expected.score
    assert identical.groups == {} and identical.better == identical.worse == []


def test_the_text_says_it_all(comparison):
    text = as_text(comparison)
    assert "\x1b" not in text
    assert "A  one  (baseline)\nB  two\nC  same\n120 lines" in text
    for contrast in comparison.comparisons.values():
        assert contrast.verdict in " ".join(text.split())
    best = comparison.comparisons["B"].better[0]
    assert f"Line {best.line}: chrF {best.baseline_score:.1f} → {best.system_score:.1f}" in text
    words = re.sub(r"[\[\]]", "", text)
    for lines in (SOURCES, REFERENCES, *SYSTEMS[:2]):
        assert f" {lines[best.line - 1]}\n" in words
    # Tables and verdicts fit 80 columns; sentences and signatures may be longer.
    longer = re.compile("  (source|reference|A|B) |BLEU\\||chrF2\\|")
    assert all(len(line) <= 80 for line in text.split("\n") if not longer.match(line))
    coloured = as_text(comparison, colour=True)
    assert re.sub("\x1b\\[[0-9]*m", "", coloured) == text != coloured


def test_hostile_text_does_not_reach_the_terminal():
    hostile = ["\x1b[2J gone", "\u202e turned", "a\x07b", "now empty"]
    other = ["\x1b[2J gone more", "\u202e turned more", "a\x07b more", ""]
    text = as_text(compared([other, hostile], hostile, names=["\x1b[2J", "b"], metrics=["bleu"]))
    assert not re.search("[\x00-\x09\x0b-\x1f\u202e]", text)
    assert "\\x1b[2J gone [more]" in text and "(empty)" in text


def test_texts_without_spaces_are_compared_by_characters():
    references = ["图书馆在车站旁边。", "他喜欢喝茶。"] * 5
    other = [line.replace("茶", "水") for line in references]
    result = compared([other, references], references, tokenize="zh", metrics=["bleu"])
    assert not result.spaces
    assert "他喜欢喝[水]。" in as_text(result)


def test_letters_go_on_after_z():
    letters = [letter_of(number) for number in range(1000)]
    assert letters[:3] == ["A", "B", "C"] and letters[24:28] == ["Y", "Z", "AA", "AB"]
    assert len(set(letters)) == 1000


# ---- Where two systems differ ----

TEXT = st.text(st.sampled_from("ab c."), max_size=20)
SCORES = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=30)


@given(TEXT, TEXT, st.booleans())
def test_the_pieces_give_the_texts_back(first, second, spaces):
    glue = " " if spaces else ""
    pieces = differences(first, second, spaces)
    for text, own in zip((first, second), pieces, strict=True):
        assert glue.join(piece.text for piece in own) == text
    # What does not differ is the same in both.
    one, other = ([piece.text for piece in own if not piece.differs] for own in pieces)
    assert one == other
    if first == second:
        assert not any(piece.differs for own in pieces for piece in own)
    elif first and second:
        assert any(piece.differs for own in pieces for piece in own)


def test_words_and_characters():
    assert differences("Ein Hund rennt", "Ein Mann rennt schnell") == (
        [Piece("Ein", False), Piece("Hund", True), Piece("rennt", False)],
        [Piece("Ein", False), Piece("Mann", True), Piece("rennt", False), Piece("schnell", True)],
    )
    assert differences("图书馆", "图书店", spaces=False) == (
        [Piece("图书", False), Piece("馆", True)],
        [Piece("图书", False), Piece("店", True)],
    )


@given(SCORES, st.integers(0, 10))
def test_most_changed_are_the_extremes(pairs, count):
    before, after = zip(*pairs, strict=True)
    risen, fallen = most_changed(before, after, count)
    changes = [new - old for old, new in pairs]
    for own, sign in ((risen, 1), (fallen, -1)):
        all_of_them = sorted(sign * change for change in changes if sign * change > 0)[::-1]
        assert [sign * changes[line] for line in own] == all_of_them[:count]
        assert len(set(own)) == len(own)
        # Equal changes come in the order of the lines.
        assert own == sorted(own, key=lambda line: (-abs(changes[line]), line))


def test_long_texts_are_compared_in_full():
    """A word that is frequent in a long text is compared too; difflib would leave it out."""
    generator = random.Random(3)
    # Few enough pairs of equal words: more are not compared at all.
    words = [generator.choice(["der", *map(str, range(60))]) for _ in range(400)]
    other = [*words[:200], "neu", *words[200:]]
    _, pieces = differences(" ".join(words), " ".join(other))
    assert [piece.text for piece in pieces if piece.differs] == ["neu"]
