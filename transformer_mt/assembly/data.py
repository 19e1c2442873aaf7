"""The data of a config, with what its mechanisms need besides the text, and what the text decides
about decoding."""

from pathlib import Path

from transformer_mt.config.decoding import DecodingConfig
from transformer_mt.config.schema import Config
from transformer_mt.data.facts import Facts
from transformer_mt.data.prepare import PreparedData, prepare
from transformer_mt.data.subword import Subwords
from transformer_mt.model_directory import ModelDirectory

# If more than this share of the lines has several sentences, the model has learnt to translate
# several together.
SEVERAL_SENTENCES = 0.25


def prepare_for(
    config: Config, subwords: Subwords | None = None, resumed: ModelDirectory | None = None
) -> tuple[Config, PreparedData]:
    """Calls `prepare` with the word alignments that attention is guided by, if it is.

    Args:
        resumed: the directory of a run that is resumed; the model training.init_from is not needed
            then.

    Returns: the config, with the decoding settings that the text decides, and the data.

    Raises:
        UserError: something is wrong with the data.
    """
    alignments = config.guided_attention.alignments
    data = prepare(config, subwords, None if alignments is None else Path(alignments))
    earlier = DecodingConfig()
    if config.training.init_from is not None:
        earlier = (resumed or ModelDirectory(config.training.init_from)).load_config().decoding
    decoding = decided(config.decoding, data.facts, earlier)
    return config.model_copy(update={"decoding": decoding}), data


def decided(decoding: DecodingConfig, facts: Facts, earlier: DecodingConfig) -> DecodingConfig:
    """Returns the settings with those in place of null that follow from the training text.

    Args:
        facts: those about the text.
        earlier: the settings of the model that training starts from, which has seen other text.
    """
    source = facts["source"]
    values = {
        "max_length_ratio": max(facts["length_ratio"], earlier.max_length_ratio or 0.0),
        "split_sentences": source["several_sentences"] <= SEVERAL_SENTENCES,
        "max_source_length": max(source["longest"], earlier.max_source_length or 0),
    }
    missing = {key: value for key, value in values.items() if getattr(decoding, key) is None}
    return decoding.model_copy(update=missing)
