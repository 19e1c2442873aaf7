"""Where a model to import comes from: a folder, a zip archive, or a repository of the Hugging Face
hub. All give their files by name, and nothing in them can run code.

A zip archive is read in memory and never extracted. From the hub, only those files are downloaded
that are needed, into the cache of `huggingface_hub`.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO, Any, Literal, Protocol, TypeVar

import numpy as np

from transformer_mt.pretrained.limited import LARGEST, read_json
from transformer_mt.pretrained.marian_files import read_npz, read_vocabulary, read_yaml
from transformer_mt.pretrained.safetensors_file import read_safetensors
from transformer_mt.pretrained.torch_file import read_torch_tensors
from transformer_mt.utils.console import visible
from transformer_mt.utils.errors import UsageError, UserError
from transformer_mt.utils.zips import MB, ZipArchive, shown, size_of

Kind = Literal["huggingface", "marian"]
_T = TypeVar("_T")

_CONFIG = "config.json"
# In the order of preference: the second is slower to read.
HUGGING_FACE_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
_SENTENCEPIECE = ("source.spm", "target.spm")
_VOCABULARIES = ("*vocab.yml", "*.vocab")
# A vocabulary has some 2 MB, and a SentencePiece model 1 MB.
_LARGEST_SMALL_FILE = 20 * MB
_READERS: Mapping[str, Callable[[IO[bytes]], dict[str, np.ndarray]]] = {
    ".bin": read_torch_tensors,
    ".npz": read_npz,
    ".safetensors": read_safetensors,
}
_OTHER_FILES = (".ckpt", ".gguf", ".h5", ".onnx", ".pt", ".pth", ".spm", ".yml")
_EXPECTED = (
    "What can be imported is a MarianMT model of Hugging Face (config.json, model.safetensors or "
    "pytorch_model.bin, source.spm, target.spm, vocab.json) or a model of OPUS-MT (*.npz, "
    "decoder.yml, *.vocab.yml, source.spm, target.spm), as a folder, a .zip or hf:OWNER/NAME"
)
# What is found instead: a file of each group is there.
_OTHERS: Sequence[tuple[tuple[tuple[str, ...], ...], str]] = (
    ((("format_version",),), "it is a model directory of this program, which needs no import"),
    (
        (("model.bin",), ("*vocabulary.*",)),
        "it is an export for CTranslate2, from which no model can be made again. Import the model "
        "that it was made from",
    ),
    (
        (("*.intgemm*.bin", "*.alphas.bin"),),
        "it is a student model of Bergamot or Firefox, with 8-bit weights and another decoder "
        "(SSRU). Import a model of OPUS-MT for these languages",
    ),
    ((("*.pt",), ("dict.*.txt",)), "it is a model of fairseq"),
    ((("*.gguf",),), "it is a model for llama.cpp (.gguf)"),
    ((("*.onnx",),), "it is a model in ONNX, which has lost the names of its weights"),
    ((("*.bpe", "*.bpe.model"),), "its subwords are of subword-nmt (.bpe), not of SentencePiece"),
    (
        (("*.index.json",),),
        "its weights are split into several files (*.index.json), as those of large models of "
        "other kinds are",
    ),
    (
        (("tf_model.h5", "flax_model.msgpack", "rust_model.ot"),),
        "it has weights for TensorFlow, Flax or Rust (these are not read)",
    ),
)
# What `model_type` in config.json says of models that people may take for one that can be imported.
_OTHER_TYPES = {
    "m2m_100": "M2M-100 or NLLB",
    "nllb-moe": "NLLB with experts",
    "mbart": "mBART",
    "bart": "BART",
    "fsmt": "a model of FAIR for WMT19",
    "t5": "T5 or MADLAD-400",
    "mt5": "mT5",
    "seamless_m4t": "SeamlessM4T",
    "seamless_m4t_v2": "SeamlessM4T",
    "encoder-decoder": "a pair of encoder and decoder",
}
_REPOSITORY = re.compile(r"([A-Za-z0-9][\w.-]*/[\w.-]+)(?:@([\w./-]+))?", re.ASCII)
_HUB_PAGE = re.compile(r"https?://(?:www\.)?(?:huggingface\.co|hf-mirror\.com)/([\w.-]+/[\w.-]+)")


class _Files(Protocol):
    """The files of a source."""

    def names(self) -> list[str]: ...

    def open(self, name: str) -> IO[bytes]:
        """Opens a file, which can be read from any position."""
        ...


class _Folder:
    def __init__(self, path: Path) -> None:
        self._path = path

    def names(self) -> list[str]:
        return [path.name for path in self._path.iterdir() if path.is_file()]

    def open(self, name: str) -> IO[bytes]:
        return open(self._path / name, "rb")


class _Zip:
    """A zip archive. If all its files are in one folder, that is left out of their names."""

    def __init__(self, file: IO[bytes]) -> None:
        self._archive = ZipArchive(file, LARGEST)
        paths = [name for name in self._archive.names() if not name.startswith("__MACOSX/")]
        folders = {path.rpartition("/")[0] for path in paths}
        self._folder = min(folders, key=len, default="")
        if self._folder:
            self._folder += "/"
        self._names = {path.removeprefix(self._folder) for path in paths}

    def names(self) -> list[str]:
        return [name for name in self._names if "/" not in name]

    def open(self, name: str) -> IO[bytes]:
        return io.BytesIO(self._archive.read(f"{self._folder}{name}").tobytes())


class Source:
    """The files of a model to import. Each method raises a UserError if a file is missing, can't be
    read, or is damaged.

    Attributes:
        title: what the user calls it.
        names: of its files, sorted. Files in folders within it do not count.
        kind: "huggingface" for a MarianMT model of Hugging Face, with the files config.json,
            source.spm, target.spm, vocab.json and one of HUGGING_FACE_WEIGHTS; "marian" for a model
            of Marian as OPUS-MT publishes it, with source.spm, target.spm, one or more *.npz, and
            a vocabulary.

    Raises:
        UserError: it is neither. The message has all reasons.
    """

    def __init__(self, title: str, files: _Files) -> None:
        self.title = title
        self._files = files
        with self._errors(None):
            self.names = sorted(files.names())
        config = self.json(_CONFIG) if _CONFIG in self.names else None
        self.kind: Kind = _kind(title, self.names, config)

    def read(self, name: str) -> bytes:
        """Returns the content of a small file."""
        return self._load(name, lambda file: file.read(), _LARGEST_SMALL_FILE)

    def json(self, name: str) -> dict[str, Any]:
        """Returns the object that a JSON file holds."""
        return self._load(name, lambda file: read_json(file.read()), _LARGEST_SMALL_FILE)

    def yaml(self, name: str) -> dict[str, Any]:
        """Returns the mapping that a YAML file of up to 100 kB holds."""
        return self._load(name, lambda file: read_yaml(file.read()), _LARGEST_SMALL_FILE)

    def vocabulary(self, name: str) -> list[str]:
        """Returns the pieces of a vocabulary in the order of their ids; see `read_vocabulary`."""
        return self._load(
            name, lambda file: read_vocabulary(name, file.read()), _LARGEST_SMALL_FILE
        )

    def tensors(self, name: str) -> dict[str, np.ndarray]:
        """Returns the tensors of a .safetensors, .npz or .bin file (of PyTorch) by their names. All
        float types become float32, and all numbers are finite. Some arrays may be read-only."""
        return self._load(name, _READERS[Path(name).suffix], None)

    def _load(self, name: str, read: Callable[[IO[bytes]], _T], largest: int | None) -> _T:
        with self._errors(name):
            if name not in self.names:
                raise ValueError("there is no such file")
            with self._files.open(name) as file:
                size = size_of(file)
                if largest is not None and size > largest:
                    raise ValueError(f"it has {size // MB} MB, at most {largest // MB} are read")
                return read(file)

    @contextmanager
    def _errors(self, name: str | None) -> Iterator[None]:
        what = self.title if name is None else f"{self.title}/{shown(name)}"
        try:
            yield
        except OSError as error:
            raise UserError(f"{what} can't be read: {error.strerror or error}") from None
        except ValueError as error:
            raise UserError(f"{what}: {error}") from None


@contextmanager
def open_source(text: str) -> Iterator[Source]:
    """Opens the SOURCE of `import`: a folder, a zip archive, or `hf:OWNER/NAME[@REVISION]`.

    Raises:
        UsageError: there is no such file, folder or repository.
        UserError: it can't be read or downloaded, or is no model that can be imported.
    """
    if text.startswith("hf:"):
        yield Source(visible(text), _Folder(_downloaded(text)))
        return
    path = Path(text)
    if path.is_dir():
        yield Source(visible(text), _Folder(path))
        return
    if not path.is_file():
        raise UsageError(_missing(text))
    if path.suffix in (*_READERS, *_OTHER_FILES):
        raise UsageError(f"{text} is one file of a model. Give the folder that has all of them")
    try:
        file = open(path, "rb")  # noqa: SIM115 (the block below closes it)
    except OSError as error:
        raise UsageError(f"{text} can't be read: {error.strerror}") from None
    with file:
        if file.read(2) != b"PK":
            raise UsageError(f"{text} is no zip archive. Unpack it, and give the folder")
        try:
            files = _Zip(file)
        except ValueError as error:
            raise UserError(f"{text}: {error}") from None
        yield Source(visible(text), files)


def _missing(text: str) -> str:
    if page := _HUB_PAGE.match(text):
        return f"{text} is a web page. Give hf:{page[1]} instead"
    if text.startswith(("http://", "https://")):
        return f"{visible(text)} is not downloaded. Download it, and give the file"
    if _REPOSITORY.fullmatch(text):
        return f"{text}: there is no such folder. A repository on the hub is hf:{text}"
    return f"{visible(text)}: there is no such folder or file"


def _kind(title: str, names: Sequence[str], config: Mapping[str, Any] | None) -> Kind:
    """Returns the kind of a model from the names of its files and its config.json.

    Raises:
        UserError: it can't be imported.
    """

    def has(*patterns: str) -> bool:
        return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)

    reasons = []
    kind: Kind = "huggingface"
    needed: tuple[tuple[str, ...], ...] = (*((name,) for name in _SENTENCEPIECE),)
    if config is not None:
        needed = (HUGGING_FACE_WEIGHTS, *needed, ("vocab.json",))
        if config.get("model_type") != "marian":
            model_type = shown(config.get("model_type", "none"))
            other = _OTHER_TYPES.get(model_type, "another kind of model")
            reasons.append(
                f"the model_type in its config.json is {model_type} ({other}), not marian"
            )
            needed = ()
    elif has("*.npz"):
        kind = "marian"
        needed = (*needed, _VOCABULARIES)
    missing = [" or ".join(group) for group in needed if not has(*group)]
    if missing or not needed:
        reasons += [what for groups, what in _OTHERS if all(has(*group) for group in groups)]
    if needed and missing and (config is not None or kind == "marian"):
        reasons.append(f"it lacks {', '.join(missing)}")
    if config is None and kind != "marian" and not reasons:
        few = ", ".join(shown(name) for name in names[:8]) + (", ..." if len(names) > 8 else "")
        reasons.append(f"it has {few or 'no files'}")
    if reasons:
        raise UserError(f"{title} can't be imported: {'; '.join(reasons)}. {_EXPECTED}")
    return kind


def _downloaded(text: str) -> Path:
    """Downloads the files of a repository that are needed, unless they are in the cache. Returns
    the folder that they are in."""
    import requests
    from huggingface_hub import HfApi, constants, errors, hf_hub_download

    match = _REPOSITORY.fullmatch(text.removeprefix("hf:"))
    if match is None:
        raise UsageError(
            f"{visible(text)} is not a repository: give hf:OWNER/NAME or hf:OWNER/NAME@REVISION"
        )
    repository, revision = match[1], match[2]
    page = f"{constants.ENDPOINT}/{repository}"
    by_hand = (
        f"You can also download its files yourself, from {page}/tree/{revision or 'main'}, and "
        "give their folder"
    )
    try:
        found = HfApi().model_info(repository, revision=revision)
        names = sorted(file.rfilename for file in found.siblings or ())

        def fetch(name: str) -> Path:
            return Path(hf_hub_download(repository, name, revision=found.sha))

        config = read_json(fetch(_CONFIG).read_bytes()) if _CONFIG in names else None
        kind = _kind(text, names, config)  # before hundreds of megabytes are downloaded
        paths = [fetch(name) for name in _needed(names, kind)]
    except errors.GatedRepoError:
        raise UserError(
            f"{text} is open only to those who accept its conditions. Accept them at {page}, and "
            "set HF_TOKEN to a token of your account"
        ) from None
    except errors.RevisionNotFoundError:
        raise UsageError(f"{text}: the repository has no revision {revision} ({page})") from None
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled):
        raise UserError(_unreachable(text, constants.ENDPOINT, by_hand)) from None
    except requests.HTTPError as error:
        status = error.response.status_code if error.response is not None else "an error"
        if status in (401, 403, 404):
            raise UsageError(
                f"{text}: the hub has no such repository, or it is private ({page}). For a private "
                "one, set HF_TOKEN to a valid token of an account that may read it"
            ) from None
        raise UserError(
            f"{text} can't be downloaded: {constants.ENDPOINT} answered {status}. {by_hand}"
        ) from None
    except requests.RequestException:
        raise UserError(_unreachable(text, constants.ENDPOINT, by_hand)) from None
    except OSError as error:
        if error.errno is not None:  # of this machine: the disk is full, for example
            raise
        raise UserError(
            f"{text} was not downloaded completely ({shown(error)}). Run the command again; it "
            "continues where it stopped"
        ) from None
    except ValueError as error:  # also of names that the hub does not have
        raise UserError(f"{text}: {shown(error)}") from None
    return paths[0].parent


def _unreachable(text: str, endpoint: str, by_hand: str) -> str:
    return (
        f"{text} can't be downloaded, because {endpoint} can't be reached. If your network has a "
        f"mirror of the hub, set HF_ENDPOINT to its address. {by_hand}"
    )


def _needed(names: Sequence[str], kind: Kind) -> list[str]:
    """Returns which files of a repository are needed."""
    patterns = ["README.md", "LICENSE*", "*.spm", "*.npz", "*.yml", "*.vocab"]
    if kind == "huggingface":
        weights = next(name for name in HUGGING_FACE_WEIGHTS if name in names)
        patterns = ["README.md", "LICENSE*", "*.spm", "*vocab.json", weights]
        patterns += [_CONFIG, "generation_config.json", "tokenizer_config.json"]
    return [
        name
        for name in names
        if "/" not in name and any(fnmatchcase(name, pattern) for pattern in patterns)
    ]
