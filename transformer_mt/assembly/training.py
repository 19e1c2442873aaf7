"""Puts together what a training run consists of."""

import paddle

from transformer_mt.assembly.model import build_model
from transformer_mt.assembly.objective import decoded_lengths, make_objective
from transformer_mt.config.schema import Config, TrainingConfig
from transformer_mt.data.prepare import PreparedData
from transformer_mt.data.subword import Subwords
from transformer_mt.model import fused
from transformer_mt.training.plan import Plan
from transformer_mt.training.processes import ALONE, Processes
from transformer_mt.training.trainer import Trainer
from transformer_mt.training.update import Updater

# Matrix products of half precision use tensor cores best if sizes are multiples of 8.
GPU_LENGTH_MULTIPLE = 8


def make_plan(config: Config, data: PreparedData, batches: tuple[int, ...] | None = None) -> Plan:
    """Returns the plan of a run; no model is built.

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
    """Builds model, objective and optimiser."""
    # The same weights in every process, whatever was drawn before.
    paddle.seed(config.training.seed)
    model = build_model(config.model, subwords, config.training.recompute)
    objective = make_objective(config, model, subwords)
    # Fused operations are tested now, because the test reads on the host.
    sizes = config.model
    dtype = getattr(paddle, config.training.precision)
    fused.prepare(sizes.d_model // sizes.num_heads, sizes.d_model, dtype)
    return Updater(config, objective, processes)


def make_trainer(config: Config, data: PreparedData, processes: Processes = ALONE) -> Trainer:
    """Builds all that is needed to train on prepared data, as one of `processes`."""
    plan = make_plan(config, data)
    updater = make_updater(config, data.subwords, processes)
    return Trainer(config, data, plan, updater)
