"""Signs that scores do not say what their reader takes them to say: files that were mixed up, text
that still has marks of subwords or is in another form than the reference, a tokeniser that does not
suit the text, and a BLEU near 0."""

import html
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence

from transformer_mt.data.normalization import looks_tokenized
from transformer_mt.scoring.metrics import NEAR_ZERO_BLEU, Scores, tokenizer_for_text

# A few lines, such as names and numbers, may be the same in both languages.
SAME_LINES = 0.01
# What is left of subwords in text whose subwords were not joined, and what makes them.
SUBWORD_MARKS = {
    "@@ ": (re.compile("@@(?: |$)"), "BPE. Remove it with: sed -E 's/@@( |$)//g'"),
    "\u2581": (re.compile("\u2581"), "SentencePiece. Join its subwords before scoring"),
}
# Tokenised text has signs of it in most lines.
TOKENIZED_LINES = 0.1
_ENTITY = re.compile(r"&(?:\w+|#\d+|#[xX][\da-fA-F]+);")
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u2060\ufeff]")


# Forms of text in which equal words count as different if only one side has them: whether a line is
# in the form, and the line of the other side is not, as far as it shows; the share of such lines
# below which a side is not in this form; what a message calls it; what to do.
_TOKENIZED = "are tokenised (a space before . and ,)"
_LOWER = "are in lower case only"
_FORMS: tuple[tuple[Callable[[str, str], bool], float, str, str], ...] = (
    (
        lambda line, _: not unicodedata.is_normalized("NFC", line),
        *(0.01, "have decomposed letters (they are not in Unicode's form NFC)"),
        "Convert both sides to NFC",
    ),
    (
        lambda line, _: any(html.unescape(entity) != entity for entity in _ENTITY.findall(line)),
        *(0.01, "have HTML entities, such as &quot;", "Replace the entities by their characters"),
    ),
    (
        lambda line, _: _INVISIBLE.search(line) is not None,
        *(0.01, "have invisible characters, such as soft hyphens (U+00AD) or U+200B"),
        "Remove these characters",
    ),
    (
        lambda line, _: looks_tokenized(line),
        *(TOKENIZED_LINES, _TOKENIZED, "Score raw text against raw text: detokenise that side"),
    ),
    (
        lambda line, other: line.islower() and other != other.lower(),
        *(0.5, _LOWER, "Restore upper case on that side, or score with --lowercase"),
    ),
)
# Tokenisers that split marks from words, so that text which is split already is split again.
_OF_RAW_TEXT = ("13a", "intl")
# A side is in another form than the other one if it has this many times its signs.
_MANY_TIMES = 10
# Fewer lines may be in lower case by chance.
FEW_LINES = 10


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
        scores: the scores of the hypotheses. None leaves out the warnings about them.
    """
    found = []
    for number, reference in enumerate(references, 1):
        name = "the reference" if len(references) == 1 else f"reference {number}"
        if sources is not None:
            found += _same_as_source(sources, reference, name)
        found += _other_forms(hypotheses, reference, name, scores)
    for mark, (pattern, maker) in SUBWORD_MARKS.items():
        count = sum(bool(pattern.search(line)) for line in hypotheses)
        # References that have the marks too are in subwords on purpose.
        if count and not any(pattern.search(line) for line in references[0]):
            found.append(
                f"{count:,} of {len(hypotheses):,} translations contain {mark!r}, a mark of {maker}"
            )
    if scores is not None:
        found += _low_or_wrong_bleu(scores, references[0])
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


def _other_forms(
    hypotheses: list[str], reference: list[str], name: str, scores: Scores | None
) -> list[str]:
    found = []
    lines = len(hypotheses)
    tokenize, case = _bleu_option(scores, "tok"), _bleu_option(scores, "case")
    for is_in, share, what, advice in _FORMS:
        if what is _LOWER and (case == "lc" or lines < FEW_LINES):
            continue
        counts = sum(map(is_in, hypotheses, reference)), sum(map(is_in, reference, hypotheses))
        is_common = [count and count >= share * lines for count in counts]
        if any(is_common) and max(counts) >= _MANY_TIMES * min(counts):
            found.append(
                f"{counts[0]:,} of {lines:,} translations, but {counts[1]:,} of {name}, {what}. "
                f"This lowers the scores. {advice}"
            )
        elif what is _TOKENIZED and all(is_common) and tokenize in _OF_RAW_TEXT:
            found.append(
                f"the translations and {name} {what}, so BLEU with the tokeniser {tokenize} "
                "is not comparable with that of raw text. Detokenise both, or score with "
                "--tokenize none (evaluation.tokenize in the recipe)"
            )
    return found


def _bleu_option(scores: Scores | None, name: str) -> str | None:
    """Returns what the signature of BLEU says, such as 13a as "tok"; None if there is no BLEU."""
    signature = scores.signatures.get("bleu", "") if scores else ""
    match = re.search(rf"\|{name}:([^|]*)", signature)
    return match[1] if match else None


def _low_or_wrong_bleu(scores: Scores, reference: list[str]) -> list[str]:
    bleu = scores.values.get("bleu")
    if bleu is None:
        return []
    reasons = []
    # "ja-mecab-0.996-IPA" is the tokeniser ja-mecab.
    used = _bleu_option(scores, "tok") or ""
    better = tokenizer_for_text(reference)
    # Characters and the subwords of flores200 suit every language.
    if not used.startswith((better, "char", "flores200")) and better != "13a":
        reasons.append(
            f"the tokeniser {used} does not suit the language; {better} does (--tokenize, or "
            "evaluation.tokenize in the recipe)"
        )
    if bleu >= NEAR_ZERO_BLEU:
        # Korean has spaces.
        return reasons if used in _OF_RAW_TEXT and better != "ko-mecab" else []
    reasons += [
        "source and target are swapped, or the lines of the files do not belong together",
        "the translations are in another language than the reference",
        "the model has not learned enough yet",
    ]
    listed = "; ".join(f"({number}) {reason}" for number, reason in enumerate(reasons, 1))
    chrf = f" (chrF is {scores.values['chrf']:.2f})" if "chrf" in scores.values else ""
    return [f"BLEU is {bleu:.2f}, which is near 0{chrf}. Likely reasons: {listed}"]
