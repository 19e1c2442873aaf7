"""The command `shortlist`.

A shortlist says to which target subwords each source subword is likely translated. With
--shortlist, `translate` and the other commands compute the probabilities of these subwords alone,
and not those of the whole vocabulary, which is faster on a CPU. So a translation can only consist
of them; measure with `evaluate` what that costs.

The translations are learnt from the training text, by IBM Model 1 (Brown et al. 1993). The command
shows how many target subwords it finds in pairs that it has not learnt from. It writes the file
shortlist.tsv into the model directory. An export for CTranslate2 that is made afterwards holds the
shortlist too.

examples:
  python -m transformer_mt shortlist runs/demo
  python -m transformer_mt translate runs/demo --shortlist < in.txt
  python -m transformer_mt shortlist runs/demo --source train.en --target train.de
"""

import argparse
import tempfile
from pathlib import Path

from transformer_mt.commands import arguments
from transformer_mt.model_directory import SHORTLIST
from transformer_mt.utils.console import say
from transformer_mt.utils.errors import UsageError, UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add_model_dir(parser)
    arguments.add_files(
        parser,
        source="the source side of the text to learn from, one sentence per line (default: the "
        "training text that the config of the model names)",
        target="the target side of it, one line for each line of the source",
    )


def run(options: argparse.Namespace) -> None:
    """Learns a shortlist, writes it, and says how good it is.

    Raises:
        UsageError: the arguments don't fit, or the training text is missing.
        UserError: the model or the text is damaged.
    """
    # Help does not need them.
    from transformer_mt.commands.translating import contents
    from transformer_mt.data.corpus import training_filter
    from transformer_mt.data.encoded import Limits, encoded_corpus
    from transformer_mt.data.prepare import changes_of, prepare
    from transformer_mt.data.shortlist import learn
    from transformer_mt.training.folder import RunDirectory
    from transformer_mt.utils.files import lines

    source, target = options.source, options.target
    if (source is None) != (target is None):
        raise UsageError("--source and --target need each other")
    directory = RunDirectory(options.model_dir)
    config, subwords = directory.load_config(), directory.load_subwords()
    if source is None:
        try:
            data = prepare(config, subwords)
        except UserError as error:
            other = "Text in other files can be given with --source and --target"
            raise type(error)(f"the training text of {directory.path}: {error}. {other}") from None
        shortlist, tested = learn(data.train, subwords)
    else:
        contents(source, target)  # reports if they have not as many lines
        pairs = list(zip(lines(source), lines(target), strict=True))
        limits = Limits(config.data.max_length, config.data.max_length_ratio)
        with tempfile.TemporaryDirectory() as folder:
            # Nothing else reads this text again, so the cache of the config is not used.
            corpus = encoded_corpus(
                *(pairs, "", subwords, limits, Path(folder), "encoding the text"),
                training_filter(frozenset(), config.data.drop_duplicates),
                changes_of(config),
            )
            shortlist, tested = learn(corpus, subwords)
    directory.write_shortlist(shortlist, subwords)
    print(directory.own(SHORTLIST))
    say(f"{tested}; to translate with it: --shortlist")
