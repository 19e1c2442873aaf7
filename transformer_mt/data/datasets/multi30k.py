"""Multi30k task 1 (Elliott et al. 2016, arXiv 1605.00459): English-German image captions.

The raw text is downloaded from the corpus's own GitHub repository and checked against its SHA-256,
or read from a folder.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from transformer_mt.data.datasets.files import (
    DATA_HOME,
    Dataset,
    SplitFiles,
    first_existing,
    parts,
    require_data_home,
)
from transformer_mt.data.normalization import lc_norm_tok
from transformer_mt.utils.errors import UserError
from transformer_mt.utils.files import write_atomically

if TYPE_CHECKING:
    from paddlenlp.datasets import DatasetBuilder

URL = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw/"
SHA256 = {
    "train.en.gz": "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f",
    "train.de.gz": "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6",
    "val.en.gz": "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28",
    "val.de.gz": "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a",
    "test_2016_flickr.en.gz": "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9",
    "test_2016_flickr.de.gz": "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8",
}
# The names of a split's files: first the repository's, then another one in use.
NAMES = {"train": ("train",), "dev": ("val",), "test": ("test_2016_flickr", "test2016")}


class Multi30k(Dataset):
    """The files of the repository, gzipped or not."""

    languages = ("en", "de")
    splits = ("train", "dev", "test")
    origin = (
        "Multi30k, task 1, raw ([Elliott et al. 2016](https://arxiv.org/abs/1605.00459), "
        "[repository](https://github.com/multi30k/dataset))"
    )
    licence = "for researchers and educators, non-commercial"

    def find(
        self, root: str | None, name: str, value: str, languages: tuple[str, str]
    ) -> SplitFiles:
        return SplitFiles(tuple(find(value, language, root) for language in languages))


def find(split: str, lang: str, root: str | None) -> Path:
    """Returns the file of one side of a split, in `root` or downloaded into PaddleNLP's folder.

    Raises:
        UsageError: the file is not in `root`.
        UserError: it can't be downloaded, or has the wrong content.
    """
    if root is None:
        return _download(f"{NAMES[split][0]}.{lang}.gz")
    names = [f"{name}.{lang}" for name in NAMES[split]]
    hint = ", but data.dataset is multi30k. For text files of your own, give data.dataset: files"
    return first_existing(Path(root), names, "data.root", hint)


def _download(name: str) -> Path:
    path = DATA_HOME / "Multi30k" / name
    content = path.read_bytes() if path.is_file() else _fetch(URL + name)
    if hashlib.sha256(content).hexdigest() != SHA256[name]:
        path.unlink(missing_ok=True)
        raise UserError(f"{name} from {URL} is not the file it should be (SHA-256). Try again")
    if not path.is_file():
        path.parent.mkdir(exist_ok=True)
        write_atomically(path, content, as_is=True)
    return path


def _fetch(url: str) -> bytes:
    # Every command reads the registry of datasets, but only a download needs these.
    import http.client
    import urllib.request

    require_data_home(DATA_HOME)
    try:
        with urllib.request.urlopen(url, timeout=60) as response:
            return response.read()
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise UserError(
            f"{url} could not be downloaded: {reason}\nWhere there is no network, fetch the six "
            f"files ({', '.join(SHA256)}) elsewhere and give data.root=FOLDER"
        ) from None


class Multi30kLcNormTok(Multi30k):
    """Multi30k in the form in which most papers train on it and score it (see `lc_norm_tok`). The
    lines of the raw files are converted when they are read. (The corpus's own files in this form
    are `data/task1/tok/*.lc.norm.tok`; all 1,000 lines of test2016.de are equal.)"""

    origin = f"{Multi30k.origin}, lower-cased, normalised and tokenised"
    is_lc_norm_tok = True

    @staticmethod
    def read(data_files: list[str]) -> Iterator[dict[str, str]]:
        for files in parts([Path(path) for path in data_files]):
            # train.en.gz is English.
            source, target = (lc_norm_tok(path.name.split(".")[1]) for path in files)
            for pair in Multi30k.read([str(path) for path in files]):
                yield {"source": source(pair["source"]), "target": target(pair["target"])}


def paddlenlp_builder() -> "type[DatasetBuilder]":
    """Returns Multi30k for users of PaddleNLP, which is imported:
    `paddlenlp_builder()(lazy=...).read_datasets(splits=["train"])` gives examples {"source",
    "target"}, English to German."""
    from paddlenlp.datasets import DatasetBuilder, IterDataset, MapDataset

    class Multi30kBuilder(DatasetBuilder):
        SPLITS = NAMES

        def _get_data(self, mode: str, **kwargs: object) -> list[str]:
            return [str(find(mode, lang, None)) for lang in Multi30k.languages]

        def read(self, filename: list[str], split: str = "train") -> MapDataset | IterDataset:
            """As PaddleNLP's, but a lazy dataset can be iterated more than once."""
            if self.lazy:
                return IterDataset(lambda: self._read(filename))
            return super().read(filename)

        def _read(self, filename: list[str], *args: object) -> Iterator[dict[str, str]]:
            return Multi30k.read(filename)

    return Multi30kBuilder
