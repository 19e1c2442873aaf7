"""Builds what a training run consists of: data, plan, model, objective, optimiser and trainer."""

from pathlib import Path

import paddle

from transformer_mt import kernels
from transformer_mt.config.decoding import DecodingConfig
from transformer_mt.config.schema import Config, TrainingConfig
from transformer_mt.data.facts import Facts
from transformer_mt.data.prepare import PreparedData, prepare
from transformer_mt.data.subword import Subwords
from transformer_mt.model import operations
from transformer_mt.model.variants import build_model
from transformer_mt.model_directory import ModelDirectory
from transformer_mt.training.loop import Trainer
from transformer_mt.training.parallel import ALONE, Processes
from transformer_mt.training.plan import Plan
from transformer_mt.training.terms import decoded_lengths, make_objective
from transformer_mt.training.update import Updater

# If more than this share of the lines has several sentences, the model has learnt to translate
# several together.
SEVERAL_SENTENCES = 0.25
# Matrix products of half precision use tensor cores best if sizes are multiples of 8.
GPU_LENGTH_MULTIPLE = 8


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


def make_plan(config: Config, data: PreparedData, batches: tuple[int, ...] | None = None) -> Plan:
    """Returns the plan of a run.

    Args:
        batches: as in `Plan`, of a run that is resumed; None for a new one.
    """
    source, target = data.train.source.lengths, data.train.target.lengths
    decoded = decoded_lengths(config, source, target)
    batches = batches or _new_batches(config.training)
    return Plan(config.training, source, decoded, batches, data.texts)


def _new_batches(training: TrainingConfig) -> tuple[int, ...]:
    default = 1 if paddle.get_device() == "cpu" else GPU_LENGTH_MULTIPLE
    multiple = training.length_multiple or default
    return training.batch_plan if multiple == 1 else (*training.batch_plan, multiple)


def make_updater(config: Config, subwords: Subwords, processes: Processes = ALONE) -> Updater:
    """Builds model, objective and optimiser, on the device that Paddle is set to."""
    kernels.choose()
    # The same weights in every process, whatever was drawn before.
    paddle.seed(config.training.seed)
    model = build_model(config.model, subwords, config.training.recompute)
    sizes, dtype = config.model, getattr(paddle, config.training.precision)
    operations.current.prepare(sizes.d_model // sizes.num_heads, sizes.d_model, dtype)
    return Updater(config, make_objective(config, model, subwords), processes)


def make_trainer(
    config: Config, data: PreparedData, processes: Processes = ALONE, plan: Plan | None = None
) -> Trainer:
    """Builds all that is needed to train on prepared data, as one of `processes`.

    Args:
        plan: the plan of the run, if it is known already.
    """
    updater = make_updater(config, data.subwords, processes)
    return Trainer(config, data, plan or make_plan(config, data), updater)
