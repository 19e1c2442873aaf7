"""The backends, which are libraries that run the model, and the choice of one by a command."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module, metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_mt.config import file as config_file
from transformer_mt.config.decoding import DecodingConfig
from transformer_mt.config.rules import decoding_rules
from transformer_mt.config.schema import Config, ModelConfig
from transformer_mt.decoding.engine import (
    NON_AUTOREGRESSIVE_LIMITS,
    Limits,
    default_at_once,
    require_able,
    way_of_terms,
)
from transformer_mt.model_directory import SHORTLIST, ModelDirectory, made_of_checkpoint, named
from transformer_mt.utils.console import quoted, warn
from transformer_mt.utils.errors import UsageError, UserError
from transformer_mt.utils.folders import CHECKSUMS, verify

if TYPE_CHECKING:
    from transformer_mt.data.subword import Subwords
    from transformer_mt.decoding.engine import Engine

# The keys of ModelConfig that describe the Transformer of Vaswani et al. 2017 and its usual forms,
# or that matter only in training.
TRANSFORMER_KEYS = frozenset(
    {"num_layers", "num_encoder_layers", "num_decoder_layers", "d_model", "num_heads", "d_ff"}
    | {"norm", "norm_epsilon", "positions", "tie_embeddings"}
    | {"activation", "bias", "output_bias"}
    | {key for key in ModelConfig.model_fields if key.endswith("dropout")}
)
# Why exports do not support some of the others.
REASONS = {
    "copying": "an export generates subwords, and can't copy them",
    "non_autoregressive": "an export predicts one subword after another",
}


@dataclass(frozen=True)
class Backend:
    """A library that runs the model: Paddle from the checkpoints of model directories, the others
    from an export.

    The engine of an export is made by the function `load(spec)` of the module `engine`, and the
    export by the function `write_model` of the module `name`. They are imported when they are
    needed. They support the keys of ModelConfig in TRANSFORMER_KEYS.

    Attributes:
        title: what messages call the library.
        name: the value of `--engine`, the name of the folder in MODEL_DIR/export, and that of a
            module in this package.
        engine: the name of the other module.
        export_format: the value of `export --format`; None if the backend has no export.
        export_file: a file that every export for this backend has, and no other folder.
        shortlist_file: the file that holds the shortlist, in a model directory or in an export.
        quantizations: the values of `export --quantization`.
        only_on_cpu: whether it computes on the CPU even where there is a GPU.
        runs_in_processes: whether several cores of a CPU are best used by as many processes.
        limits: what its engine can't do, as in `decoding.engine.Limits`.
    """

    title: str
    name: str
    engine: str = ""
    export_format: str | None = None
    export_file: str = ""
    shortlist_file: str = ""
    quantizations: tuple[str, ...] = ()
    only_on_cpu: bool = False
    runs_in_processes: bool = True
    limits: Limits = field(default_factory=dict)

    def write_model(self, folder: Path, *arguments: Any) -> None:
        """Writes a model into an existing folder.

        Args:
            arguments: the model, a `Transformer`; its config, its subwords, and the quantization,
                or None.

        Raises:
            UsageError: the library is not installed.
            UserError: the format can't hold the model; every problem is listed.
        """
        import_module(f"transformer_mt.export.{self.name}").write_model(folder, *arguments)

    def is_export(self, folder: Path) -> bool:
        """Whether the folder is an export for this backend."""
        return bool(self.export_file) and (folder / self.export_file).is_file()

    def require_whole(self, folder: Path) -> None:
        """
        Raises:
            UsageError: the folder is not an export for this backend.
            UserError: the export is damaged.
        """
        if not self.is_export(folder):
            raise UsageError(
                f"{folder} is not an export for --engine {self.name} (it has no "
                f"{self.export_file}). Make one with: python -m transformer_mt export MODEL_DIR "
                f"--format {self.export_format}"
            )
        if problem := verify(folder):
            raise UserError(f"{folder}: damaged ({problem}). Export the model again")
        self.require_utf8(folder)

    def require_utf8(self, folder: Path) -> None:
        """
        Raises:
            UsageError: the library can't open the folder, because its name is not UTF-8.
        """
        if str(folder) != str(folder).encode("utf-8", "replace").decode():
            raise UsageError(
                f"{folder}: {self.title} needs a folder with a name in UTF-8. Rename it"
            )

    def require_exportable(self, problems: list[str]) -> None:
        """
        Raises:
            UserError: there are problems, which are listed.
        """
        if problems:
            listed = "\n".join(f"  {problem}" for problem in problems)
            raise UserError(f"the model can't be exported to {self.title}:\n{listed}")

    def unsupported(self, model: ModelConfig) -> list[str]:
        """The settings of a model that this backend does not support, each with the reason."""
        return [
            f"model.{key}: {value}: {REASONS.get(key, 'an export does not support it')}"
            for key, value in model
            if key not in TRANSFORMER_KEYS and value != ModelConfig.model_fields[key].default
        ]


@dataclass(frozen=True)
class EngineSpec:
    """Everything that is needed to load an engine, in this process or in another one.

    Attributes:
        folder: the model directory, or the export.
        config: the config of the folder. Its decoding section holds the settings to decode with.
        checkpoints: those of a model directory; several make an ensemble. Empty for an export.
        models: the model section of each checkpoint's config; the sizes may differ.
        threads: the number of cores that the engine may use.
        device: Paddle's device.
    """

    backend: Backend
    folder: Path
    config: Config
    subwords: Subwords
    checkpoints: tuple[Path, ...] = ()
    models: tuple[ModelConfig, ...] = ()
    threads: int = 1
    device: str = "cpu"

    @property
    def limits(self) -> Limits:
        """What the engine can't do with this model."""
        of_device = {} if self.device == "cpu" else ONLY_ON_CPU
        of_model = NON_AUTOREGRESSIVE_LIMITS if self.config.model.non_autoregressive else {}
        return {**self.backend.limits, **of_device, **of_model}

    @property
    def processes(self) -> int:
        """The number of processes that translate together; 1 means this process alone."""
        in_processes = self.backend.runs_in_processes and self.device == "cpu"
        return self.threads if in_processes else 1

    def checksums(self) -> list[bytes]:
        """The lists of checksums beside the weights, which tell whether others lie there now. With
        `decoding.shortlist`, also the shortlist of a model directory."""
        folders = self.checkpoints or (self.folder,)
        lists = [folder / CHECKSUMS for folder in folders]
        if self.checkpoints and self.config.decoding.shortlist:
            lists.append(self.folder / SHORTLIST)
        return [path.read_bytes() if path.is_file() else b"" for path in lists]

    def at_once(self, settings: DecodingConfig, length: int) -> int:
        """As `decoding.engine.AtOnce`: for Paddle on a GPU as many as fit into its free memory."""
        if self.device == "cpu" or not self.checkpoints:
            return default_at_once(settings, length)
        from transformer_mt.decoding.paddle_engine import sentences_in_free_memory

        vocab_size = self.subwords.target.size
        return sentences_in_free_memory(list(self.models), vocab_size, settings, length)

    def load(self) -> Engine:
        """
        Raises:
            UserError: the model is damaged or not supported, or a library is not installed.
        """
        if not self.checkpoints:
            return import_module(f"transformer_mt.export.{self.backend.engine}").load(self)
        from transformer_mt import kernels
        from transformer_mt.decoding.paddle_engine import engine_of
        from transformer_mt.model.variants import build_model
        from transformer_mt.utils import device as devices
        from transformer_mt.weights import load_weights

        devices.use(self.device)
        kernels.choose()
        models = []
        for config, checkpoint in zip(self.models, self.checkpoints, strict=True):
            models.append(build_model(config, self.subwords))
            load_weights(checkpoint, models[-1], is_shared=True)
            models[-1].eval()
        shortlist = partial(ModelDirectory(self.folder).load_shortlist, self.subwords)
        return engine_of(models, self.subwords, self.config.alignment_heads, shortlist)


ONLY_ON_CPU: Limits = {"shortlist": "a shortlist makes only a CPU faster, not a GPU"}
ONE_MODEL = {
    "ensemble": "--checkpoint and --ensemble are for --engine paddle; an export has one",
}
PADDLE_INFERENCE = Backend(
    title="Paddle Inference",
    name="paddle_inference",
    engine="paddle_inference",
    export_format="paddle",
    export_file="decoder.json",
    limits={
        **ONE_MODEL,
        "shortlist": "the programs of Paddle Inference compute the whole output layer",
    },
)
# It searches on a CPU much faster than Paddle, and does not need it.
CTRANSLATE2 = Backend(
    title="CTranslate2",
    name="ctranslate2",
    engine="ctranslate2_engine",
    export_format="ctranslate2",
    export_file="model.bin",
    shortlist_file="vmap.txt",
    quantizations=("int8", "int8_float32", "int16", "float16", "bfloat16"),
    only_on_cpu=True,
    runs_in_processes=False,  # it distributes each batch over threads of its own
    limits={
        **ONE_MODEL,
        "segmentations": "CTranslate2 can't average the probabilities of several segmentations",
        "constraints": "CTranslate2's search can't be made to write given terms",
    },
)
# Every backend by its name. A new one is an entry here and its modules.
BACKENDS: dict[str, Backend] = {
    backend.name: backend
    for backend in (
        Backend("Paddle", "paddle", shortlist_file=SHORTLIST),
        *(PADDLE_INFERENCE, CTRANSLATE2),
    )
}


# More threads than this are refused on a computer with fewer cores: starting them can fail in C++
# code, which then ends the process.
MOST_THREADS = 256


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
        raise UsageError(backend.limits["ensemble"])
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
    device = "cpu" if backend.only_on_cpu else _device(device)
    spec = EngineSpec(backend, folder, config, subwords, checkpoints, models, threads, device)
    return _with_ensemble(_possible(spec), ensemble)


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
        asked: what the engine is to do besides searching, as in `decoding.engine.Limits`, and
            "terms" if it is to follow terms.

    Raises:
        UsageError: the engine or its subwords can't do what is asked for, or there is no shortlist.
    """
    require_able(spec.limits, decoding, asked)
    if decoding.tag is not None:
        from transformer_mt.decoding.line_reader import require_tag  # it imports SentencePiece

        require_tag(decoding.tag, spec.subwords, spec.config)
    if "terms" in asked:
        way_of_terms(decoding, spec.limits, spec.config.data.annotate_terms > 0)
    if decoding.shortlist and not (spec.folder / spec.backend.shortlist_file).is_file():
        model, again = "MODEL_DIR", ", and export the model again"
        if spec.checkpoints:
            model, again = quoted(spec.folder), ""
        raise UsageError(
            f"decoding.shortlist: true: {spec.folder} has no shortlist. Make one with: "
            f"python -m transformer_mt shortlist {model}{again}"
        )
    for (key, *_), problem in decoding_rules(spec.config.model_copy(update={"decoding": decoding})):
        raise UsageError(f"{key}: {getattr(decoding, key.partition('.')[2])}: {problem}")


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
        for member_spec in (spec, other):
            require_able(member_spec.limits, member_spec.config.decoding, ["ensemble"])
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


def model_name(folder: Path, checkpoint: str | None = None) -> str:
    """What a model is called: its folder, or for an export in a model directory that directory
    too."""
    folder = folder.resolve()
    # A name that is not UTF-8 could be neither asked for nor told.
    name = folder.name.encode("utf-8", "backslashreplace").decode()
    if folder.parent.name == "export":
        name = f"{model_name(folder.parent.parent)}-{name}"
    return f"{name}:{checkpoint}" if checkpoint else name


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


# What a translation does instead of following these decoding settings.
_INSTEAD = {
    "segmentations": "it translates from the best one only",
    "shortlist": "it computes the whole output layer",
}


def _possible(spec: EngineSpec) -> EngineSpec:
    """Returns the engine without those decoding settings of its config that it can't follow and
    that only cost time or save it, with a warning. Nobody has asked for them in this command, and
    `serve` has no flags for them."""
    changes = {}
    for key, value in spec.config.decoding:
        default = DecodingConfig.model_fields[key].default
        if key in _INSTEAD and key in spec.limits and value != default:
            reason = f"{str(value).lower()}: {spec.limits[key]}"
            warn(f"{spec.folder}: decoding.{key}: {reason}, so {_INSTEAD[key]}")
            changes[key] = default
    decoding = config_file.with_changes(spec.config.decoding, changes)
    return replace(spec, config=spec.config.model_copy(update={"decoding": decoding}))


def _device(name: str | None) -> str:
    """The device that Paddle is to use; for None a GPU if there is one."""
    if name is not None:
        return name
    # Paddle knows best, but takes seconds to import. The package `paddlepaddle` has no GPU support.
    names = ("paddlepaddle", "paddlepaddle-gpu")
    installed = [name for name in names if any(metadata.distributions(name=name))]
    if installed == ["paddlepaddle"]:
        return "cpu"
    from transformer_mt.utils import device as devices

    return devices.use(None)
