"""Signs that scores do not say what their reader takes them to say: files that were mixed up, text
that still has marks of subwords or is in another form than the reference, a tokeniser that does not
suit the text, and a BLEU near 0."""

import html
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from transformer_mt.data.lc_norm_tok import looks_tokenized
from transformer_mt.scoring.metrics import NEAR_ZERO_BLEU, Scores
from transformer_mt.scoring.tokenizers import tokenizer_for_text

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


class _Form(NamedTuple):
    """A form of text in which equal words count as different if only one side has it.

    Attributes:
        is_in: whether a line is in it, and the line of the other side is not, as far as it shows.
        share: the share of such lines below which a side is not in this form.
        what: what a message calls it.
        advice: what to do.
    """

    is_in: Callable[[str, str], bool]
    share: float
    what: str
    advice: str


_TOKENIZED = _Form(
    lambda line, other: looks_tokenized(line),
    TOKENIZED_LINES,
    "are tokenised (a space before . and ,)",
    "Score raw text against raw text: detokenise that side",
)
_LOWER = _Form(
    lambda line, other: line.islower() and other != other.lower(),
    0.5,
    "are in lower case only",
    "Restore upper case on that side, or score with --lowercase",
)
_FORMS = (
    _Form(
        lambda line, other: not unicodedata.is_normalized("NFC", line),
        0.01,
        "have decomposed letters (they are not in Unicode's form NFC)",
        "Convert both sides to NFC",
    ),
    _Form(
        lambda line, other: any(
            html.unescape(entity) != entity for entity in _ENTITY.findall(line)
        ),
        0.01,
        "have HTML entities, such as &quot;",
        "Replace the entities by their characters",
    ),
    _Form(
        lambda line, other: _INVISIBLE.search(line) is not None,
        0.01,
        "have invisible characters, such as soft hyphens (U+00AD) or U+200B",
        "Remove these characters",
    ),
    _TOKENIZED,
    _LOWER,
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
    for form in _FORMS:
        if form is _LOWER and (case == "lc" or lines < FEW_LINES):
            continue
        own = sum(map(form.is_in, hypotheses, reference))
        other = sum(map(form.is_in, reference, hypotheses))
        is_common = [count and count >= form.share * lines for count in (own, other)]
        if any(is_common) and max(own, other) >= _MANY_TIMES * min(own, other):
            found.append(
                f"{own:,} of {lines:,} translations, but {other:,} of {name}, {form.what}. This "
                f"lowers the scores. {form.advice}"
            )
        elif form is _TOKENIZED and all(is_common) and tokenize in _OF_RAW_TEXT:
            found.append(
                f"the translations and {name} {form.what}, so BLEU with the tokeniser {tokenize} "
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
    used = _bleu_option(scores, "tok")
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
