"""Multi30k: read from a folder, or downloaded, checked, and kept. No test leaves this machine."""

import gzip
import hashlib
import http.server
import socket
import threading
from pathlib import Path

import paddlenlp.datasets.dataset
import pytest

from transformer_mt.config.text import DataConfig
from transformer_mt.data.corpus import open_corpus
from transformer_mt.data.datasets import multi30k
from transformer_mt.data.datasets.multi30k import SHA256, find, paddlenlp_builder
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
    for split, name in zip(corpus, ("train", "val", "test2016"), strict=True):
        sides = [
            (root / f"{name}.{lang}").read_bytes().decode().split("\n") for lang in ("en", "de")
        ]
        pairs = list(zip(*(side[: SIZES[split.name]] for side in sides), strict=True))
        assert list(split) == pairs and len(pairs) == SIZES[split.name]
        assert split.text[1] == [target for _, target in pairs]


def test_gzipped_files_under_their_own_names(tmp_path):
    names = {"train": "train", "dev": "val", "test": "test_2016_flickr"}
    for split, name in names.items():
        for side, lang in enumerate(("en", "de")):
            text = "".join(f"{pair[side]}\n" for pair in TEXT[split])
            (tmp_path / f"{name}.{lang}.gz").write_bytes(gzip.compress(text.encode()))
    corpus = open_corpus(config(root=str(tmp_path)))
    assert {split.name: list(split) for split in corpus} == TEXT
    other_way = open_corpus(config(root=str(tmp_path), source_lang="de", target_lang="en"))
    assert list(other_way.train) == [(target, source) for source, target in TEXT["train"]]


def test_a_folder_without_the_file(tmp_path):
    with pytest.raises(UsageError) as caught:
        open_corpus(config(root=str(tmp_path)))
    assert str(caught.value) == (
        f"data.root: there is no file train.en (or .gz, .bz2, .xz) in {tmp_path}, but data.dataset "
        "is multi30k. For text files of your own, give data.dataset: files"
    )
    with pytest.raises(UsageError, match=r"test_2016_flickr\.de or test2016\.de "):
        find("test", "de", str(tmp_path))


# ------------------------------------------------------------------------------------ download


class Server:
    """Serves files on the loopback; `requests` holds the paths that were asked for."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.cut = 0  # bytes that are promised but not sent
        self.requests: list[str] = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.requests.append(self.path)
                content = outer.files.get(self.path)
                if content is None:
                    self.send_error(404)
                    return
                self.send_response(200)
                self.send_header("Content-Length", str(len(content) + outer.cut))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *args) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/raw/"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def add(self, name: str, content: bytes) -> None:
        self.files[f"/raw/{name}"] = content

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    """An empty folder for downloads, in place of the user's."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(multi30k, "DATA_HOME", tmp_path)
    monkeypatch.setattr(paddlenlp.datasets.dataset, "DATA_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def server(home, monkeypatch):
    server = Server()
    monkeypatch.setattr(multi30k, "URL", server.url)
    yield server
    server.close()


@pytest.fixture
def tiny_corpus(server, monkeypatch) -> Server:
    """A server with files of a few lines, taken for the real ones."""
    for name in SHA256:
        stem, lang, _ = name.split(".")
        split = {"train": "train", "val": "dev", "test_2016_flickr": "test"}[stem]
        lines = [pair[("en", "de").index(lang)] for pair in TEXT[split]]
        content = gzip.compress("".join(f"{line}\n" for line in lines).encode())
        server.add(name, content)
        monkeypatch.setitem(SHA256, name, hashlib.sha256(content).hexdigest())
    return server


def files(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def test_a_download_is_checked_and_kept(tiny_corpus, home):
    corpus = open_corpus(config())
    assert {split.name: list(split) for split in corpus} == TEXT
    assert sorted(tiny_corpus.requests) == sorted(f"/raw/{name}" for name in SHA256)
    assert files(home) == sorted(f"Multi30k/{name}" for name in SHA256)

    tiny_corpus.close()
    again = open_corpus(config())
    assert {split.name: list(split) for split in again} == TEXT
    assert len(tiny_corpus.requests) == 6


@pytest.mark.parametrize("lazy", [True, False])
def test_it_is_a_builder_for_users_of_paddlenlp(tiny_corpus, lazy):
    train, dev = paddlenlp_builder()(lazy=lazy).read_datasets(splits=["train", "dev"])
    for dataset, split in ((train, "train"), (dev, "dev")):
        for _ in range(2):
            pairs = [(example["source"], example["target"]) for example in dataset]
            assert pairs == TEXT[split]


def test_only_what_is_named_is_downloaded(tiny_corpus, home):
    open_corpus(config(dev=None, test=None))
    assert files(home) == ["Multi30k/train.de.gz", "Multi30k/train.en.gz"]


def assert_helpful(error: UserError, url: str) -> None:
    message = str(error)
    assert message.startswith(f"{url}train.en.gz could not be downloaded: ")
    assert "data.root=FOLDER" in message and error.exit_code == 1
    for name in SHA256:
        assert name in message


def test_without_a_network(home, monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/raw/"
        monkeypatch.setattr(multi30k, "URL", url)
        with pytest.raises(UserError) as caught:
            open_corpus(config())
    assert_helpful(caught.value, url)
    assert "Connection refused" in str(caught.value)
    assert files(home) == []


def test_where_the_file_is_not(server, home):
    with pytest.raises(UserError) as caught:
        open_corpus(config())
    assert_helpful(caught.value, server.url)
    assert "Not Found" in str(caught.value) and files(home) == []


def test_a_connection_that_breaks_off(tiny_corpus, home):
    tiny_corpus.cut = 10
    with pytest.raises(UserError) as caught:
        open_corpus(config())
    assert_helpful(caught.value, tiny_corpus.url)
    assert files(home) == []


def test_another_file_than_it_should_be(server, home):
    server.add("train.en.gz", gzip.compress(b"a login page\n"))
    with pytest.raises(UserError) as caught:
        open_corpus(config())
    message = str(caught.value)
    assert message.startswith(
        f"train.en.gz from {server.url} is not the file it should be (SHA-256)"
    )
    assert files(home) == []


def test_a_kept_file_that_was_damaged_is_removed(tiny_corpus, home):
    find("train", "en", None)
    (home / "Multi30k" / "train.en.gz").write_bytes(b"damaged")
    with pytest.raises(UserError, match=r"train\.en\.gz .*is not the file it should be"):
        find("train", "en", None)
    assert files(home) == []
    assert find("train", "en", None).is_file()


def test_the_real_checksums_are_checksums():
    assert len(set(SHA256.values())) == 6
    assert all(len(bytes.fromhex(digest)) == 32 for digest in SHA256.values())
