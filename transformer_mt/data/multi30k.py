"""Multi30k task 1 (Elliott et al. 2016, arXiv 1605.00459) as a PaddleNLP DatasetBuilder.

English–German image captions in raw text, downloaded from the corpus's own GitHub repository and
checked against their SHA-256, or read from a folder.
"""

from __future__ import annotations

import collections
import hashlib
import http.client
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from paddlenlp.datasets import DatasetBuilder, IterDataset, MapDataset
from paddlenlp.utils.env import DATA_HOME

from transformer_mt.runtime.errors import UsageError, UserError
from transformer_mt.runtime.files import atomic, lines

URL = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw/"
SHA256 = {
    "train.en.gz": "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f",
    "train.de.gz": "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6",
    "val.en.gz": "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28",
    "val.de.gz": "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a",
    "test_2016_flickr.en.gz": "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9",
    "test_2016_flickr.de.gz": "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8",
}
# The names a split's files go by: the repository's (gzipped), then the plain ones in use.
NAMES = {
    "train": ("train",),
    "dev": ("val",),
    "test": ("test_2016_flickr", "test2016"),
}


class Multi30k(DatasetBuilder):
    """`Multi30k(lazy=...).read_datasets(splits=["train"])`: examples {"source", "target"},
    English to German."""

    META_INFO = collections.namedtuple("META_INFO", ("source_file", "target_file"))
    SPLITS = {  # noqa: RUF012 (PaddleNLP's convention)
        "train": META_INFO("train.en.gz", "train.de.gz"),
        "dev": META_INFO("val.en.gz", "val.de.gz"),
        "test": META_INFO("test_2016_flickr.en.gz", "test_2016_flickr.de.gz"),
    }

    def _get_data(self, mode: str, **kwargs) -> tuple[str, str]:
        return str(find(mode, "en", None)), str(find(mode, "de", None))

    def read(self, filename: tuple[str, str], split: str = "train") -> MapDataset | IterDataset:
        """As PaddleNLP's, but a lazy dataset can be iterated more than once."""
        if not self.lazy:
            return super().read(filename, split)

        def examples() -> Iterator[dict[str, str]]:
            return self._read(filename, split)

        return IterDataset(examples)

    def _read(self, filename: tuple[str, str], *args) -> Iterator[dict[str, str]]:
        source, target = (lines(Path(path)) for path in filename)
        for source_line, target_line in zip(source, target, strict=True):
            yield {"source": source_line, "target": target_line}


def find(split: str, lang: str, root: str | None) -> Path:
    """The file of one side of a split: in `root`, or downloaded into PaddleNLP's data folder.

    Raises:
        UsageError: `root` does not hold it.
        UserError: it can't be downloaded, or is not the file it should be.
    """
    names = [f"{name}.{lang}{ending}" for name in NAMES[split] for ending in (".gz", "")]
    if root is None:
        return _download(f"{NAMES[split][0]}.{lang}.gz")
    for name in names:
        if (Path(root) / name).is_file():
            return Path(root) / name
    raise UsageError(f"data.root: there is no file {' or '.join(names)} in {root}")


def _download(name: str) -> Path:
    path = Path(DATA_HOME) / "Multi30k" / name
    content = path.read_bytes() if path.is_file() else _fetch(URL + name)
    if hashlib.sha256(content).hexdigest() != SHA256[name]:
        path.unlink(missing_ok=True)
        raise UserError(f"{name} from {URL} is not the file it should be (SHA-256). Try again")
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic(path, "wb") as file:
            file.write(content)
    return path


def _fetch(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=60) as response:
            return response.read()
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise UserError(
            f"{url} could not be downloaded: {reason}\nWhere there is no network, fetch the six "
            f"files ({', '.join(SHA256)}) elsewhere and give data.root=FOLDER"
        ) from None
