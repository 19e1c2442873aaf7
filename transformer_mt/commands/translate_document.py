"""The part of the command `translate` for documents."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from transformer_mt.commands import memories
from transformer_mt.commands.translating import find_engine, opened, translating
from transformer_mt.commands.warnings_file import warnings_file
from transformer_mt.data import terms
from transformer_mt.decoding import documents
from transformer_mt.decoding.lines import in_windows
from transformer_mt.decoding.output import Line
from transformer_mt.export import registry
from transformer_mt.formats import registry as formats
from transformer_mt.utils.console import say, warn
from transformer_mt.utils.errors import UsageError
from transformer_mt.utils.files import is_replaceable


def run(options: argparse.Namespace) -> None:
    """Translates INPUT, which is a document, into OUTPUT.

    Raises:
        UserError: something is wrong with the model, the arguments or the files.
    """
    source, target = options.input, options.output
    _require_possible(options)
    if target is not None and is_replaceable(target):
        formats.require_alike(source, target)
    asked = [] if options.terms is None else ["terms"]
    spec = find_engine(options, options.model_dir, *asked)
    config = spec.config
    if config.decoding.n_best > 1:
        raise UsageError(f"--n-best {config.decoding.n_best}: a document has one translation")
    languages = config.data.source_lang, config.data.target_lang
    document = formats.read(source, languages, options.columns)
    for difference in documents.other_languages(document, languages):
        warn(f"{source}: {difference}")
    memory = memories.read(options, languages)
    own_terms = None if options.terms is None else terms.read(options.terms, languages)
    protect = documents.protected_in_documents(config)
    spec = registry.with_decoding(spec, {"protect": protect})

    def translate(lines: Mapping[str, str]) -> list[str]:
        with translating(spec, "translating", len(lines)) as (found, bar):
            settings, named = spec.config.decoding, documents.naming_units(warn, lines)
            translator = found.with_settings(settings, warn=named, terms=own_terms)
            texts = []
            windows = in_windows(map(Line, lines))
            translations = translator.stream(windows, finished=bar.update)
            for unit, translation in zip(lines.values(), translations, strict=True):
                texts.append(translation.text)
                if warnings is not None:
                    warnings.add(unit, translation.warnings)
            return texts

    with (
        warnings_file(options.warnings, options.strict, "text") as warnings,
        opened(target) as stream,
        memories.reporting(options.memory_report) as report,
    ):
        made_by = registry.model_name(spec.folder)
        found = documents.translate_document(
            document, translate, made_by, all=options.all, memory=memory
        )
        for place, entry in found.found:
            report.add(place, entry)
        stream.write(found.content)
    say(f"{source}: {found}{report.similar}")


def _require_possible(options: argparse.Namespace) -> None:
    """
    Raises:
        UsageError: an argument has no meaning for a document.
    """
    for name, is_given, reason in (
        ("format", options.format != "plain", "a document keeps its own format"),
        ("alignment", options.alignment, "a document has no place for it"),
        ("prefix", options.prefix is not None, "a document is not translated line by line"),
        ("resume", options.resume, "a document is written as a whole, when all is translated"),
    ):
        if is_given:
            raise UsageError(f"--{name}: {options.input} is a document. {reason.capitalize()}")
