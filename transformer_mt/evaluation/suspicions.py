"""Signs that scores do not say what their reader takes them to say: files that were mixed up, text
that still has marks of subwords, and a BLEU near 0."""

import re
from collections.abc import Iterable, Sequence

from transformer_mt.evaluation.metrics import NEAR_ZERO_BLEU, Scores
from transformer_mt.evaluation.scoring import tokenizer_for_text

# A few lines, such as names and numbers, may be the same in both languages.
SAME_LINES = 0.01
# What is left of subwords in text whose subwords were not joined, and what makes them.
SUBWORD_MARKS = {
    "@@ ": (re.compile("@@(?: |$)"), "BPE. Remove it with: sed -E 's/@@( |$)//g'"),
    "\u2581": (re.compile("\u2581"), "SentencePiece. Join its subwords before scoring"),
}


def suspicions(
    sources: list[str] | None,
    hypotheses: list[str],
    references: Sequence[list[str]],
    scores: Scores | None = None,
) -> list[str]:
    """Returns warnings about translations and their references; an empty list if all looks right.

    Args:
        sources: None if they are not known.
        references: one or several sets of references, each with one line per hypothesis.
        scores: the scores of the hypotheses. None leaves out the warning about them.
    """
    found = []
    for number, reference in enumerate(references, 1):
        name = "the reference" if len(references) == 1 else f"reference {number}"
        if sources is not None:
            found += _same_as_source(sources, reference, name)
    for mark, (pattern, maker) in SUBWORD_MARKS.items():
        count = sum(bool(pattern.search(line)) for line in hypotheses)
        # References that have the marks too are in subwords on purpose.
        if count and not any(pattern.search(line) for line in references[0]):
            found.append(
                f"{count:,} of {len(hypotheses):,} translations contain {mark!r}, a mark of {maker}"
            )
    if scores is not None:
        found += _near_zero(scores, references[0])
    return found


def merged(found: Iterable[tuple[str, list[str]]]) -> list[str]:
    """Returns each warning once, with the names of the systems that it is about, unless it is about
    all of them.

    Args:
        found: the name of each system, and its warnings.
    """
    systems = list(found)
    names: dict[str, list[str]] = {}
    for name, messages in systems:
        for message in messages:
            names.setdefault(message, []).append(name)
    return [
        message if len(own) == len(systems) else f"{', '.join(own)}: {message}"
        for message, own in names.items()
    ]


def _same_as_source(sources: list[str], reference: list[str], name: str) -> list[str]:
    same = sum(bool(own) and own == other for own, other in zip(reference, sources, strict=True))
    if not same or same < SAME_LINES * len(sources):
        return []
    return [
        f"{same:,} of {len(sources):,} lines of {name} are identical to the source. Make sure that "
        f"{name} is the translation of the source"
    ]


def _near_zero(scores: Scores, reference: list[str]) -> list[str]:
    bleu = scores.values.get("bleu")
    if bleu is None or bleu >= NEAR_ZERO_BLEU:
        return []
    reasons = []
    # "ja-mecab-0.996-IPA" is the tokeniser ja-mecab.
    used = re.search(r"\|tok:([^|]*)", scores.signatures["bleu"])[1]
    better = tokenizer_for_text(reference)
    # Characters and the subwords of flores200 suit every language.
    if not used.startswith((better, "char", "flores200")) and better != "13a":
        reasons.append(
            f"the tokeniser {used} does not suit the language; {better} does (--tokenize, or "
            "evaluation.tokenize in the recipe)"
        )
    reasons += [
        "source and target are swapped, or the lines of the files do not belong together",
        "the translations are in another language than the reference",
        "the model has not learned enough yet",
    ]
    listed = "; ".join(f"({number}) {reason}" for number, reason in enumerate(reasons, 1))
    chrf = f" (chrF is {scores.values['chrf']:.2f})" if "chrf" in scores.values else ""
    return [f"BLEU is {bleu:.2f}, which is near 0{chrf}. Likely reasons: {listed}"]
