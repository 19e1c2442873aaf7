"""Multi30k: read from a folder, or downloaded, checked, and kept. No test leaves this machine."""

import gzip
import hashlib
import shutil
import urllib.request
from http.client import IncompleteRead
from pathlib import Path
from urllib.error import URLError

import paddlenlp.datasets.dataset
import pytest

from transformer_mt.config.text import DataConfig
from transformer_mt.data import datasets
from transformer_mt.data.corpus import open_corpus
from transformer_mt.data.datasets import MULTI30K_SHA256, multi30k_builder, multi30k_file
from transformer_mt.utils.errors import UsageError, UserError

SIZES = {"train": 29_000, "dev": 1_014, "test": 1_000}
TEXT = {
    "train": [("A dog.", "Ein Hund."), ("Two dogs.", "Zwei Hunde."), ("A\u2028B", "C\rD")],
    "dev": [("A cat.", "Eine Katze.")],
    "test": [("A cow.", "Eine Kuh.")],
}


def config(**keys) -> DataConfig:
    values = {"dataset": "multi30k", "source_lang": "en", "target_lang": "de", "dev": "dev"}
    return DataConfig(**{**values, "test": "test", **keys})


# ------------------------------------------------------------------------------- from a folder


def test_plain_files_of_the_real_corpus(shared_data):
    root = shared_data / "multi30k"
    corpus = open_corpus(config(root=str(root)))
    for split, name in zip(corpus[:3], ("train", "val", "test2016"), strict=True):
        sides = [
            (root / f"{name}.{lang}").read_bytes().decode().split("\n") for lang in ("en", "de")
        ]
        pairs = list(zip(*(side[: SIZES[split.name]] for side in sides), strict=True))
        assert list(split) == pairs and len(pairs) == SIZES[split.name]
        assert split.text[1] == [target for _, target in pairs]


def test_a_folder_without_the_file(tmp_path):
    with pytest.raises(UsageError, match=r"data\.root: there is no file train\.en .*: files"):
        open_corpus(config(root=str(tmp_path)))
    with pytest.raises(UsageError, match=r"test_2016_flickr\.de or test2016\.de "):
        multi30k_file("test", "de", str(tmp_path))


# ------------------------------------------------------------------------------------ download


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    """An empty folder for downloads, in place of the user's."""
    monkeypatch.setattr(datasets, "DATA_HOME", tmp_path)
    monkeypatch.setattr(paddlenlp.datasets.dataset, "DATA_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def server(tmp_path_factory, home, monkeypatch) -> Path:
    """A folder of files of a few lines, from which they are downloaded, taken for the real ones."""
    folder = tmp_path_factory.mktemp("server")
    monkeypatch.setattr(datasets, "MULTI30K_URL", f"{folder.as_uri()}/")
    for name in MULTI30K_SHA256:
        stem, lang, _ = name.split(".")
        split = {"train": "train", "val": "dev", "test_2016_flickr": "test"}[stem]
        lines = [pair[("en", "de").index(lang)] for pair in TEXT[split]]
        content = gzip.compress("".join(f"{line}\n" for line in lines).encode())
        (folder / name).write_bytes(content)
        monkeypatch.setitem(MULTI30K_SHA256, name, hashlib.sha256(content).hexdigest())
    return folder


def files(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def test_a_download_is_checked_and_kept(server, home):
    for _ in range(2):
        corpus = open_corpus(config())
        assert {split.name: list(split) for split in corpus[:3]} == TEXT
        assert files(home) == sorted(f"Multi30k/{name}" for name in MULTI30K_SHA256)
        shutil.rmtree(server, ignore_errors=True)


@pytest.mark.parametrize("lazy", [True, False])
def test_it_is_a_builder_for_users_of_paddlenlp(server, lazy):
    train, dev = multi30k_builder()(lazy=lazy).read_datasets(splits=["train", "dev"])
    for dataset, split in ((train, "train"), (dev, "dev")):
        for _ in range(2):
            pairs = [(example["source"], example["target"]) for example in dataset]
            assert pairs == TEXT[split]


@pytest.mark.parametrize("error", [URLError("Connection refused"), IncompleteRead(b"x", 9)])
def test_without_a_network(home, monkeypatch, error):
    def fail(*arguments, **options):
        raise error

    monkeypatch.setattr(urllib.request, "urlopen", fail)
    with pytest.raises(UserError, match=r"train\.en\.gz could not be downloaded: (?s:.*)=FOLDER"):
        open_corpus(config())
    assert files(home) == []


def test_another_file_than_it_should_be(server, home):
    (server / "train.en.gz").write_bytes(gzip.compress(b"a login page\n"))
    with pytest.raises(UserError, match=r"train\.en\.gz .*is not the file it should be \(SHA-256"):
        open_corpus(config())
    assert files(home) == []


def test_only_what_is_named_is_downloaded(server, home):
    open_corpus(config(dev=None, test=None))
    assert files(home) == ["Multi30k/train.de.gz", "Multi30k/train.en.gz"]
