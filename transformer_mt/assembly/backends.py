"""Which engine translates, and where."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from transformer_mt.assembly.heads import alignment_heads
from transformer_mt.decoding.engine import Engine
from transformer_mt.mechanisms.mask_predict import search as mask_predict
from transformer_mt.model_directory import ModelDirectory, made_of_checkpoint, named
from transformer_mt.runtime.console import quoted, warn
from transformer_mt.runtime.errors import UsageError

ENGINES = ("paddle", "paddle_inference", "ctranslate2")


@dataclass(frozen=True)
class EngineSpec:
    """All that is needed to load an engine, in this process or in another.

    Attributes:
        name: one of ENGINES.
        folder: the model directory, or what `export` has written.
        checkpoints: of the model directory; several make an ensemble. Empty for an export.
        threads: how many cores one call of the engine may use.
        device: of Paddle.
    """

    name: str
    folder: Path
    checkpoints: tuple[Path, ...] = ()
    threads: int = 1
    device: str = "cpu"

    @property
    def runs_in_processes(self) -> bool:
        """Whether several cores are used best by as many processes: this engine's threads gain
        little. (CTranslate2 shares a batch among threads of its own.)"""
        return self.name != "ctranslate2" and self.device == "cpu"

    def load(self) -> Engine:
        """
        Raises:
            UserError: the model is damaged, or something that it needs is not installed.
        """
        directory = ModelDirectory(self.folder)
        subwords = directory.load_subwords()
        if self.name == "ctranslate2":
            from transformer_mt.backends.ctranslate2.engine import Ctranslate2Engine

            return Ctranslate2Engine(self.folder, subwords, self.threads)

        from transformer_mt.runtime import device as devices

        devices.use(self.device)
        if self.name == "paddle_inference":
            from transformer_mt.backends.paddle_inference.engine import InferenceEngine

            return InferenceEngine(self.folder, subwords)
        from transformer_mt.decoding.paddle_engine import PaddleEngine

        configs = [ModelDirectory.of(path).load_config() for path in self.checkpoints]
        return PaddleEngine.load(
            [(config.model, path) for config, path in zip(configs, self.checkpoints, strict=True)],
            subwords,
            alignment_heads(configs[0]),
        )


def find(
    model_dir: str | Path,
    engine: str | None = None,
    checkpoint: str | None = None,
    ensemble: tuple[str, ...] = (),
    threads: int = 1,
    device: str | None = None,
) -> EngineSpec:
    """The engine that a command asks for.

    Args:
        model_dir: a model directory, or the folder of an export.
        engine: one of ENGINES; None is what the folder is for.
        checkpoint: step_N, average_..., best or last; None is the best.
        ensemble: more models with the same subwords, MODEL_DIR or MODEL_DIR:CHECKPOINT each.

    Raises:
        UsageError: there is no such folder or checkpoint, or they don't fit together.
    """
    folder = Path(model_dir)
    held = exported(folder)
    if held is None and engine in (None, "paddle"):
        first = ModelDirectory(folder)
        config = first.load_config()
        if ensemble and config.model.non_autoregressive is not None:
            mask_predict.refuse("ensemble")
        checkpoints = [first.checkpoint(checkpoint)]
        for name in ensemble:
            checkpoints.append(_member(first, name))
        return EngineSpec("paddle", folder, tuple(checkpoints), threads, _device(device))
    if held is None:
        made = folder / "export" / engine
        if exported(made) != engine:
            ModelDirectory(folder).load_config()
            format = "paddle" if engine == "paddle_inference" else engine
            raise UsageError(
                f"{made} is not there. Make it with: python -m transformer_mt export "
                f"{quoted(folder)} --format {format}"
            )
        folder, held = made, engine
    if engine not in (None, held):
        raise UsageError(f"{folder} is an export for --engine {held}")
    if checkpoint or ensemble:
        raise UsageError("--checkpoint and --ensemble are for --engine paddle; an export has one")
    _warn_if_outdated(folder)
    if held == "ctranslate2":
        if device not in (None, "cpu"):
            raise UsageError(f"--device: {device}: --engine ctranslate2 computes on the CPU")
        return EngineSpec(held, folder, (), threads, "cpu")
    return EngineSpec(held, folder, (), threads, _device(device))


def exported(folder: Path) -> str | None:
    """The engine that a folder was exported for; None if it is no export."""
    if (folder / "model.bin").is_file():
        return "ctranslate2"
    if (folder / "decoder.json").is_file():
        return "paddle_inference"
    return None


def _warn_if_outdated(export: Path) -> None:
    """Says if an export in a model directory was made of another checkpoint than the one that the
    model would be translated with."""
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


def _device(name: str | None) -> str:
    """The device of Paddle that is to be used; None: a GPU if there is one."""
    if name is not None:
        return name
    # Paddle itself would know, but takes seconds to import; its package of this name has no GPU.
    if _is_installed("paddlepaddle") and not _is_installed("paddlepaddle-gpu"):
        return "cpu"
    from transformer_mt.runtime import device as devices

    return devices.use(None)


def _is_installed(package: str) -> bool:
    try:
        metadata.distribution(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def _member(first: ModelDirectory, name: str) -> Path:
    """The checkpoint of another model of an ensemble."""
    folder, _, checkpoint = name.rpartition(":")
    if not folder or Path(name).is_dir():
        folder, checkpoint = name, None
    other = ModelDirectory(folder)
    if other.load_config().model.non_autoregressive is not None:
        mask_predict.refuse("ensemble")
    if other.load_subwords().content() != first.load_subwords().content():
        raise UsageError(f"--ensemble {name}: its subwords are not those of {first.path}")
    return other.checkpoint(checkpoint)
