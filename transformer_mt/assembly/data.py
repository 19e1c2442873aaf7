"""The data of a config, with what its mechanisms need besides the text."""

from pathlib import Path

from transformer_mt.config.schema import Config
from transformer_mt.data.prepare import PreparedData, prepare
from transformer_mt.data.subword import Subwords


def prepare_for(config: Config, subwords: Subwords | None = None) -> PreparedData:
    """Calls `prepare` with the word alignments that attention is guided by, if it is.

    Raises:
        UserError: something is wrong with the data.
    """
    alignments = config.guided_attention.alignments
    return prepare(config, subwords, None if alignments is None else Path(alignments))
