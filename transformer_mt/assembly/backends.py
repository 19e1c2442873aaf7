"""The registry of backends, and the choice of the engine that a command uses."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_mt.backends import ctranslate2, paddle_inference
from transformer_mt.backends.backend import Backend, EngineSpec
from transformer_mt.config import file as config_file
from transformer_mt.config.decoding import DecodingConfig
from transformer_mt.config.mechanisms import Heads
from transformer_mt.config.rules import decoding_rules
from transformer_mt.config.schema import Config, ModelConfig
from transformer_mt.mechanisms.mask_predict import config as mask_predict
from transformer_mt.model_directory import ModelDirectory, made_of_checkpoint, named
from transformer_mt.runtime.console import quoted, warn
from transformer_mt.runtime.errors import UsageError, UserError

if TYPE_CHECKING:
    from transformer_mt.data.subword import Subwords
    from transformer_mt.decoding.engine import Engine


class Paddle(Backend):
    """This package's own model, from the checkpoints of model directories."""

    def load(self, spec: EngineSpec) -> Engine:
        from transformer_mt.assembly.model import build_model
        from transformer_mt.runtime import device as devices
        from transformer_mt.weights import load_weights

        devices.use(spec.device)
        models = []
        for config, checkpoint in zip(spec.models, spec.checkpoints, strict=True):
            models.append(build_model(config, spec.subwords))
            load_weights(checkpoint, models[-1])
            models[-1].eval()
        return paddle_engine(models, spec.subwords, spec.config.alignment_heads)

    def sentences_at_once(self, spec: EngineSpec, settings: DecodingConfig, length: int) -> int:
        """As `Backend.sentences_at_once`; on a GPU as many as fit into its free memory."""
        if spec.device == "cpu":
            return super().sentences_at_once(spec, settings, length)
        from transformer_mt.decoding.memory import sentences_in_free_memory

        vocab_size = spec.subwords.target.size
        return sentences_in_free_memory(list(spec.models), vocab_size, settings, length)


# Every backend by its name. A new one is one package and one entry here.
BACKENDS: dict[str, Backend] = {
    backend.name: backend
    for backend in (Paddle("Paddle", "paddle"), paddle_inference.BACKEND, ctranslate2.BACKEND)
}


# More threads than this are refused on a computer with fewer cores: starting them can fail in C++
# code, which then ends the process.
MOST_THREADS = 256


def paddle_engine(models: list, subwords: Subwords, alignment_heads: Heads | None = None) -> Engine:
    """The engine that searches with models of this package, for their kind of model.

    Args:
        models: Transformers with the same subwords; several make an ensemble.
        alignment_heads: the heads of the first model that word alignments are read from.
    """
    from transformer_mt.decoding.paddle_engine import PaddleEngine
    from transformer_mt.mechanisms.mask_predict.engine import MaskPredictEngine
    from transformer_mt.mechanisms.mask_predict.model import NonAutoregressiveTransformer

    if any(isinstance(model, NonAutoregressiveTransformer) for model in models):
        if len(models) > 1:
            mask_predict.refuse("ensemble")
        return MaskPredictEngine(models[0], subwords)
    return PaddleEngine(models, subwords, alignment_heads)


def find(
    model_dir: str | Path,
    engine: str | None = None,
    checkpoint: str | None = None,
    ensemble: Iterable[str] = (),
    threads: int = 1,
    device: str | None = None,
) -> EngineSpec:
    """The engine that a command asks for, with the config and the subwords of its model.

    Args:
        model_dir: a model directory, or the folder of an export.
        engine: a name in BACKENDS; None chooses the backend that the folder is for.
        checkpoint: step_N, average_..., best or last; None chooses the best.
        ensemble: more models with the same subwords, each as MODEL_DIR or MODEL_DIR:CHECKPOINT.
        threads: the number of cores to use.
        device: cpu or gpu; None chooses a GPU if there is one.

    Raises:
        UsageError: there is no such folder or checkpoint, or the arguments don't fit together.
        UserError: the model is damaged, or the backend does not support it.
    """
    if engine not in (None, *BACKENDS):
        raise UsageError(f"engine: {engine!r}: expected one of {', '.join(BACKENDS)}")
    cores = len(os.sched_getaffinity(0))
    if threads > max(cores, MOST_THREADS):
        raise UsageError(f"--threads: {threads}: this computer has {cores} CPU cores")
    folder = Path(model_dir)
    held = exported(folder)
    if held is None and engine not in (None, "paddle"):
        folder, held = _own_export(folder, BACKENDS[engine]), engine
    backend = BACKENDS[held or "paddle"]
    if engine not in (None, backend.name):
        raise UsageError(f"{folder} is an export for --engine {held}")
    if held and (checkpoint or ensemble):
        raise UsageError("--checkpoint and --ensemble are for --engine paddle; an export has one")
    if backend.only_on_cpu and device not in (None, "cpu"):
        raise UsageError(f"--device: {device}: --engine {held} computes on the CPU")
    directory = ModelDirectory(folder)
    config = directory.load_config()
    subwords = directory.load_subwords()
    checkpoints: tuple[Path, ...] = ()
    models: tuple[ModelConfig, ...] = ()
    if held is None:
        checkpoints, models = (directory.checkpoint(checkpoint),), (config.model,)
    elif problems := backend.unsupported(config.model):
        raise UserError(f"{folder}: --engine {held} can't run this model: {'; '.join(problems)}")
    else:
        _warn_if_outdated(folder)
        config = _possible(config, backend, folder)
    device = "cpu" if backend.only_on_cpu else _device(device)
    spec = EngineSpec(backend, folder, config, subwords, checkpoints, models, threads, device)
    return _with_ensemble(spec, ensemble)


def with_decoding(
    spec: EngineSpec, changes: dict[str, Any], asked: Iterable[str] = ()
) -> EngineSpec:
    """The same engine with some decoding settings replaced.

    Args:
        asked: what else is asked of the model; see `require_possible`.

    Raises:
        UsageError: a setting is wrong, or the model can't do what is asked for.
    """
    decoding = config_file.with_changes(spec.config.decoding, changes)
    require_possible(spec, decoding, asked)
    return replace(spec, config=spec.config.model_copy(update={"decoding": decoding}))


def require_possible(spec: EngineSpec, decoding: DecodingConfig, asked: Iterable[str] = ()) -> None:
    """
    Args:
        asked: what a model is to do besides searching, as keys of `mask_predict.IMPOSSIBLE`.

    Raises:
        UsageError: the mechanisms or the subwords of a model, or its engine, can't do what is asked
            for.
    """
    config, backend = spec.config, spec.backend
    if decoding.segmentations > 1 and not backend.averages_segmentations:
        raise UsageError(
            f"decoding.segmentations: {decoding.segmentations}: {backend.title} can't average the "
            "probabilities of several segmentations. Give 1, or use another --engine"
        )
    for (key, *_), problem in decoding_rules(config.model_copy(update={"decoding": decoding})):
        raise UsageError(f"{key}: {getattr(decoding, key.partition('.')[2])}: {problem}")
    if config.model.non_autoregressive is not None:
        mask_predict.require_possible(decoding, asked)


def exported(folder: Path) -> str | None:
    """The name of the backend that a folder was exported for; None if it is no export."""
    return next((name for name, backend in BACKENDS.items() if backend.is_export(folder)), None)


def _own_export(folder: Path, backend: Backend) -> Path:
    """The export of a model directory for a backend."""
    export = folder / "export" / backend.name
    if not backend.is_export(export):
        ModelDirectory(folder).load_config()  # reports if the folder is no model directory at all
        raise UsageError(
            f"{export} is not there. Make it with: python -m transformer_mt export "
            f"{quoted(folder)} --format {backend.export_format}"
        )
    return export


def _with_ensemble(spec: EngineSpec, ensemble: Iterable[str]) -> EngineSpec:
    """The same engine with the models of an ensemble added, which are named as in `find`."""
    for name in ensemble:
        member, checkpoint = split_model(name)
        other = find(member, "paddle", checkpoint, device=spec.device)
        for one in (spec, other):
            require_possible(one, one.config.decoding, ["ensemble"])
        if other.subwords.content() != spec.subwords.content():
            raise UsageError(f"--ensemble {name}: its subwords are not those of {spec.folder}")
        checkpoints, models = spec.checkpoints + other.checkpoints, spec.models + other.models
        spec = replace(spec, checkpoints=checkpoints, models=models)
    return spec


def split_model(text: str) -> tuple[str, str | None]:
    """Splits MODEL_DIR:CHECKPOINT into its two parts. The text after the last colon is a checkpoint
    unless the whole text is a folder. It is None if there is none."""
    folder, _, checkpoint = text.rpartition(":")
    return (text, None) if not folder or Path(text).is_dir() else (folder, checkpoint)


def _warn_if_outdated(export: Path) -> None:
    """Warns if an export in a model directory was made of another checkpoint than the one that the
    model directory is translated with."""
    directory = ModelDirectory(export.resolve().parent.parent)
    is_in_one = export.resolve().parent.name == "export" and directory.holds_run
    if not is_in_one or not directory.saved_checkpoints():
        return
    made_of, current = made_of_checkpoint(export), directory.checkpoint()
    if made_of is None or made_of != named(current):
        name = "another checkpoint" if made_of is None else Path(made_of.split()[1]).parent.name
        warn(
            f"{export} was made of {name} as it was then; the model's own checkpoint to translate "
            f"with is {current.name} now. To export that: python -m transformer_mt export "
            f"{quoted(directory.path)} --format ..."
        )


def _possible(config: Config, backend: Backend, export: Path) -> Config:
    """Returns the config of an export without the decoding settings that its backend can't follow,
    with a warning. Nobody has asked for them in this command, and `serve` has no flags for them."""
    count = config.decoding.segmentations
    if count == 1 or backend.averages_segmentations:
        return config
    warn(
        f"{export}: decoding.segmentations: {count}: {backend.title} can't average the "
        "probabilities of several segmentations, so it translates from the best one only"
    )
    decoding = config_file.with_changes(config.decoding, {"segmentations": 1})
    return config.model_copy(update={"decoding": decoding})


def _device(name: str | None) -> str:
    """The device that Paddle is to use; for None a GPU if there is one."""
    if name is not None:
        return name
    # Paddle knows best, but takes seconds to import. The package `paddlepaddle` has no GPU support.
    names = ("paddlepaddle", "paddlepaddle-gpu")
    installed = [name for name in names if any(metadata.distributions(name=name))]
    if installed == ["paddlepaddle"]:
        return "cpu"
    from transformer_mt.runtime import device as devices

    return devices.use(None)
