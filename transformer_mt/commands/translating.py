"""What commands that use a model share: the engine that their arguments choose, the text that they
read, and the lines that they write."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import re
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from tqdm import tqdm

from transformer_mt import __version__
from transformer_mt.commands.arguments import SETTINGS, flag
from transformer_mt.data.terms import Term, read
from transformer_mt.decoding.lines import in_windows, input_lines
from transformer_mt.export import registry
from transformer_mt.export.registry import EngineSpec, split_model
from transformer_mt.model_directory import require_safe_outputs
from transformer_mt.utils.console import progress, warn
from transformer_mt.utils.errors import UsageError, UserError
from transformer_mt.utils.files import Content, atomic, content_of, lines
from transformer_mt.utils.languages import written_like

if TYPE_CHECKING:
    from transformer_mt.scoring.terms import TermChecker
    from transformer_mt.translator import Translator

Pairs = Iterator[tuple[str, str]]

# ---- The model ----


def find_engine(
    options: argparse.Namespace,
    model: str,
    *asked: str,
    ensemble: Sequence[str] = (),
    **settings: Any,
) -> EngineSpec:
    """The engine that the arguments of `add_model_choice` choose for a model.

    Args:
        model: MODEL_DIR, MODEL_DIR:CHECKPOINT or an export. A checkpoint in it takes precedence
            over --checkpoint.
        asked: what the model does besides searching; see `registry.require_possible`.
        ensemble: more models that translate together with it, besides those of --ensemble.
        settings: decoding settings that the command needs.

    Raises:
        UsageError: there is no such model, or it can't be used so.
        UserError: the model is damaged.
    """
    folder, checkpoint = split_model(model)
    spec = registry.find(
        folder,
        options.engine,
        checkpoint or options.checkpoint,
        [*options.ensemble, *ensemble],
        options.threads,
        options.device,
    )
    changes = {name: value for name, value in vars(options).items() if name in SETTINGS}
    try:
        spec = registry.with_decoding(spec, changes | settings, asked)
    except UsageError as error:
        # With the flags in place of the keys.
        message = re.sub(r"decoding\.(\w+)", lambda key: flag(key[1]), str(error))
        raise UsageError(message) from None
    _warn_without_effect(changes, spec)
    return spec


def _warn_without_effect(given: Collection[str], spec: EngineSpec) -> None:
    """Warns of decoding settings that were given and have no effect."""
    kind, decoding = spec.config.model.non_autoregressive, spec.config.decoding
    segments = decoding.segmentations > 1
    for names, has_effect, reason in (
        (("temperature", "top_k", "top_p"), decoding.sampling, "without --sampling"),
        (("segmentation_rate",), segments, "without --segmentations"),
        (("seed",), decoding.sampling or segments, "without --sampling or --segmentations"),
        (("iterations",), kind is not None, "to an autoregressive model"),
        (("beam_size",), kind is None, "to a non-autoregressive model"),
        (("length_candidates",), kind == "length", "to a model that does not predict lengths"),
    ):
        for name in names:
            if name in given and not has_effect:
                warn(f"{flag(name)} makes no difference {reason}")


def made_from(spec: EngineSpec) -> dict[str, Any]:
    """Everything that a translation depends on besides the text, under names that a person
    understands."""
    config = spec.config
    model = b"".join([spec.subwords.content(), *spec.checksums()])
    return {
        "version of this program": __version__,
        "model": hashlib.sha256(model).hexdigest(),
        "--engine": spec.backend.name,
        "--device": spec.device,
        "data.max_length": config.data.max_length,
        "data.source_lang": config.data.source_lang,
        "data.target_lang": config.data.target_lang,
        **{f"decoding.{key}": value for key, value in config.decoding.model_dump().items()},
    }


@contextlib.contextmanager
def translating(
    spec: EngineSpec, title: str, total: int | None, done: int = 0
) -> Iterator[tuple[Translator, tqdm]]:
    """Loads an engine. Yields its translator, and a progress bar of `total` lines (None: it is not
    known how many), of which some are done."""
    from transformer_mt.translator import translator_of  # which help does not need

    with (
        translator_of(spec) as translator,
        progress(total=total, initial=done, title=title, unit="lines") as bar,
    ):
        yield translator, bar


def translate(
    spec: EngineSpec, sources: list[str], terms: Iterable[Term] | None = None
) -> tuple[list[str], float]:
    """Returns the translations of lines, and the seconds that they took, without the time to load
    the model.

    Args:
        terms: those that the search is to follow.
    """
    with translating(spec, "translating", len(sources)) as (translator, bar):
        if terms is not None:
            translator = translator.with_settings(spec.config.decoding, terms=terms)
        translator.warm_up(spec.processes)
        started = time.perf_counter()
        hypotheses = translator.translate(sources, bar.update)
        return hypotheses, time.perf_counter() - started


# ---- Terms ----


def read_terms(
    options: argparse.Namespace, specs: Sequence[EngineSpec], sources: list[str], target: list[str]
) -> tuple[list[Term], TermChecker]:
    """The list of --terms, and what checks translations by it.

    Args:
        specs: the models; their languages are those of the terms. Without one, --source-lang and
            --target-lang give them, or else the scripts of the texts.
        target: text in the target language.

    Raises:
        UsageError: there is no such file, or a language or a package is missing.
        UserError: the file is damaged, or has no term that is in the sources.
    """
    from transformer_mt.scoring.terms import TermChecker  # imports sacreBLEU, which takes a second

    path: Path = options.terms
    if specs:
        data = specs[0].config.data
        languages = data.source_lang, data.target_lang
    elif path.suffix.lower() == ".tbx" and not (options.source_lang and options.target_lang):
        raise UsageError(f"--terms {path}: TBX needs --source-lang and --target-lang, such as de")
    else:
        languages = (
            options.source_lang or written_like(sources),
            options.target_lang or written_like(target),
        )
    terms = read(path, languages)
    checker = TermChecker(terms, languages)
    try:
        checker.require_terms(sources)
    except UserError as error:
        raise UserError(f"--terms {path}: {error}") from None
    return terms, checker


# ---- Files that belong together line by line ----


def read_together(
    references: Sequence[Path], others: Iterable[Path | None]
) -> dict[Path | None, list[str]]:
    """The lines of reference translations, which must be UTF-8, and of other files (None is none),
    by their paths.

    Raises:
        UsageError: there is no such file.
        UserError: one is empty, or has not as many lines as the first reference.
    """
    texts: dict[Path | None, list[str]] = {path: list(lines(path)) for path in references}
    texts |= {path: list(input_lines(path)) for path in others if path and path not in texts}
    for path, own in texts.items():
        if not own:
            raise UserError(f"{path} is empty. Give a file with one sentence per line")
        require_equal(references[0], len(texts[references[0]]), path, len(own))
    return texts


def numbered(name: str, files: Iterable[Path | None]) -> dict[str, Path | int | None]:
    """Files under distinct names, for `require_safe_outputs`."""
    return {f"{name} {i}" if i > 1 else name: file for i, file in enumerate(files, 1)}


def require_equal(first: Path, first_count: int, second: Path | None, second_count: int) -> None:
    """
    Raises:
        UserError: the numbers of lines differ.
    """
    if first_count != second_count:
        raise UserError(
            f"{first} has {first_count:,} lines, {second} has {second_count:,}: one line of each "
            "belongs together. Give two files of the same text, or add the lines that are missing"
        )


def content(path: Path | None) -> Content | None:
    """As `content_of`; None for a pipe or a device, which can be read only once.

    Raises:
        UsageError: there is no such file.
    """
    is_stream = path is None or (path.exists() and not path.is_file())
    return None if is_stream else content_of(path)


def contents(first: Path | None, second: Path | None) -> tuple[Content | None, Content | None]:
    """The `content` of two files, which have as many lines.

    Raises:
        UsageError: there is no such file.
        UserError: the numbers of lines differ.
    """
    found = content(first), content(second)
    if found[0] and found[1]:
        require_equal(first, found[0].line_count, second, found[1].line_count)
    return found


def paired(
    windows: Iterator[list[str]], source: Path | None, other: Path, skip: int = 0
) -> Iterator[list[tuple[str, str]]]:
    """Joins windows of lines of `source` (None: stdin) with the lines of another file, of which the
    first `skip` are left out.

    Raises:
        UserError: the two have different numbers of lines.
    """
    unequal = UserError(f"{source or 'stdin'} and {other} have not as many lines")
    others = input_lines(other, skip)
    for window in windows:
        own = list(islice(others, len(window)))
        if len(own) < len(window):
            raise unequal
        yield list(zip(window, own, strict=True))
    if next(others, None) is not None:
        raise unequal


def written(output: Path | None) -> dict[str, Path | int]:
    """What is written, for `require_safe_outputs`: a file, or stdout (None)."""
    return {"stdout": 1} if output is None else {"--output": output}


def opened(output: Path | None) -> contextlib.AbstractContextManager[IO[bytes]]:
    """A file that is written at once, or stdout (None).

    Raises:
        UsageError: stdout is closed.
    """
    if output is not None:
        return atomic(output, "wb")
    if sys.stdout is None:
        raise UsageError("stdout is closed: give --output FILE")
    return contextlib.nullcontext(sys.stdout.buffer)


def write_for_pairs(
    options: argparse.Namespace,
    output: Path | None,
    title: str,
    asked: str,
    results: Callable[[Translator, Pairs, Callable[[int], object]], Iterable[str]],
) -> None:
    """Reads the sentence pairs of --source and --target, and writes a line for each of them.

    Args:
        output: the file to write; None: stdout.
        title: of the progress bar.
        asked: what the model does; see `registry.require_possible`.
        results: returns the lines, given the translator, the pairs, and what to call with the
            number of pairs that have just been computed.

    Raises:
        UserError: something is wrong with the model or the files.
    """
    source, target = options.source, options.target
    require_safe_outputs(written(output), {"--source": source, "--target": target})
    spec = find_engine(options, options.model_dir, asked)
    text, _ = contents(source, target)
    total = text and text.line_count
    with opened(output) as stream, translating(spec, title, total) as (translator, bar):
        pairs = chain.from_iterable(paired(in_windows(input_lines(source)), source, target))
        for line in results(translator, pairs, bar.update):
            stream.write(f"{line}\n".encode())
