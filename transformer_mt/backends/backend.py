"""What every backend declares: which models it supports, and how they are exported and loaded."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from transformer_mt.config.decoding import DecodingConfig
from transformer_mt.config.schema import Config, ModelConfig
from transformer_mt.decoding.engine import default_at_once
from transformer_mt.runtime.checksums import CHECKSUMS, verify
from transformer_mt.runtime.errors import UsageError, UserError

if TYPE_CHECKING:
    from transformer_mt.data.subword import Subwords
    from transformer_mt.decoding.engine import Engine

# The keys of ModelConfig that describe the Transformer of Vaswani et al. 2017, or that matter only
# in training.
TRANSFORMER_KEYS = frozenset(
    {
        "num_layers",
        "num_encoder_layers",
        "num_decoder_layers",
        "d_model",
        "num_heads",
        "d_ff",
        "norm",
        "dropout",
        "embedding_dropout",
        "attention_dropout",
        "feed_forward_dropout",
        "projection_dropout",
        "output_dropout",
        "layer_dropout",
        "tie_embeddings",
        "bias",
    }
)


@dataclass(frozen=True)
class Backend:
    """A library that runs the model.

    Each backend is a package that is light to import and holds this declaration, which is listed in
    `assembly.backends.BACKENDS`. The package's module `engine` has a function `load(spec)`, which
    returns an `Engine`, and its module `export` has a function `write_model`.

    Attributes:
        title: what messages call the library.
        name: the value of `--engine`, the name of the package, and of the folder in
            MODEL_DIR/export.
        export_format: the value of `export --format`; None if the backend has no export.
        export_file: a file that every export for this backend has, and no other folder.
        quantizations: the values of `export --quantization`.
        only_on_cpu: whether it computes on the CPU even where there is a GPU.
        runs_in_processes: whether several cores of a CPU are best used by as many processes.
        averages_segmentations: whether it can translate from several segmentations of a source.
        supported_keys: the keys of ModelConfig that the export and the engine implement. A model in
            which another key has a value other than its default is rejected by `unsupported`.
        reasons: why some of the other keys are not supported.
    """

    title: str
    name: str
    export_format: str | None = None
    export_file: str = ""
    quantizations: tuple[str, ...] = ()
    only_on_cpu: bool = False
    runs_in_processes: bool = True
    averages_segmentations: bool = True
    supported_keys: frozenset[str] = TRANSFORMER_KEYS
    reasons: dict[str, str] = field(default_factory=dict)

    def load(self, spec: EngineSpec) -> Engine:
        """Loads the engine; see `EngineSpec.load`."""
        return self._module("engine").load(spec)

    def sentences_at_once(self, spec: EngineSpec, settings: DecodingConfig, length: int) -> int:
        """The number of sentences of a length in subwords, with eos, that the engine decodes at
        once if `settings.batch_tokens` is null."""
        return default_at_once(settings, length)

    def write_model(self, folder: Path, *arguments: Any) -> None:
        """Writes a model into an existing folder.

        Args:
            arguments: the model, a `Transformer`; its config, its subwords, and the quantization,
                or None.

        Raises:
            UsageError: the library is not installed.
            UserError: the format can't hold the model; every problem is listed.
        """
        self._module("export").write_model(folder, *arguments)

    def _module(self, name: str) -> ModuleType:
        return import_module(f"transformer_mt.backends.{self.name}.{name}")

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
            f"model.{key}: {value}: {self.reasons.get(key, f'{self.name} does not support it')}"
            for key, value in model
            if key not in self.supported_keys and value != ModelConfig.model_fields[key].default
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
    def processes(self) -> int:
        """The number of processes that translate together; 1 means this process alone."""
        in_processes = self.backend.runs_in_processes and self.device == "cpu"
        return self.threads if in_processes else 1

    def checksums(self) -> list[bytes]:
        """The lists of checksums beside the weights, which tell whether others lie there now."""
        folders = self.checkpoints or (self.folder,)
        lists = [folder / CHECKSUMS for folder in folders]
        return [path.read_bytes() if path.is_file() else b"" for path in lists]

    def load(self) -> Engine:
        """
        Raises:
            UserError: the model is damaged or not supported, or a library is not installed.
        """
        return self.backend.load(self)
