"""The part of the command `translate` for documents."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from transformer_mt.commands import memories
from transformer_mt.commands.translating import find_engine, opened, translating
from transformer_mt.decoding import documents
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
    spec = find_engine(options, options.model_dir)
    config = spec.config
    if config.decoding.n_best > 1:
        raise UsageError(f"--n-best {config.decoding.n_best}: a document has one translation")
    languages = config.data.source_lang, config.data.target_lang
    document = formats.read(source, languages, options.columns)
    for difference in documents.other_languages(document, languages):
        warn(f"{source}: {difference}")
    memory = memories.read(options, languages)
    protect = documents.protected_in_documents(config)
    spec = registry.with_decoding(spec, {"protect": protect})

    def translate(lines: Mapping[str, str]) -> list[str]:
        with translating(spec, "translating", len(lines)) as (translator, bar):
            settings, named = spec.config.decoding, documents.naming_units(warn, lines)
            return translator.with_settings(settings, warn=named).translate(list(lines), bar.update)

    with opened(target) as stream, memories.reporting(options.memory_report) as report:
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
