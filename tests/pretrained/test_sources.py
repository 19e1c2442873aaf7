"""Folders, zip archives and repositories of the hub as sources of models."""

import io
import json
import os
import subprocess
import sys
import threading
import warnings
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

from tests.support import ROOT, TIMEOUT
from transformer_mt.pretrained.sources import open_source
from transformer_mt.utils.errors import UsageError, UserError

WEIGHTS = {"model.shared.weight": np.arange(6, dtype=np.float32).reshape(2, 3)}
HUGGING_FACE = {
    "config.json": json.dumps({"model_type": "marian", "d_model": 3}).encode(),
    "generation_config.json": b"{}",
    "model.safetensors": save(WEIGHTS),
    "source.spm": b"spm",
    "target.spm": b"other spm",
    "vocab.json": b'{"</s>": 0, "<unk>": 1, "<pad>": 2}',
    "README.md": b"# A model",
}
NPZ = io.BytesIO()
np.savez(NPZ, Wemb=WEIGHTS["model.shared.weight"])
OPUS_MT = {
    "opus.spm32k-spm32k.transformer-align.model1.npz.best-perplexity.npz": NPZ.getvalue(),
    "opus.spm32k-spm32k.vocab.yml": b'"</s>": 0\n"<unk>": 1\n',
    "decoder.yml": b"models:\n  - a.npz\nbeam-size: 6\n",
    "source.spm": b"spm",
    "target.spm": b"spm",
    "LICENSE": b"CC-BY 4.0",
}


def folder(path: Path, files: dict[str, bytes]) -> str:
    path.mkdir(exist_ok=True)
    for name, content in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    return str(path)


def zipped(path: Path, files: dict[str, bytes], compression=zipfile.ZIP_DEFLATED) -> str:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return str(path)


def refusal(text, error=UserError) -> str:
    with pytest.raises(error) as caught, open_source(str(text)):
        pass
    assert type(caught.value) is error and "\n" not in str(caught.value)
    return str(caught.value)


# ---- What is taken ----


@pytest.mark.parametrize("form", ["folder", "zip", "zip of a folder", "stored zip"])
@pytest.mark.parametrize("kind", ["huggingface", "marian"])
def test_a_model_is_the_same_in_any_form(tmp_path, form, kind):
    files = HUGGING_FACE if kind == "huggingface" else OPUS_MT
    if form == "folder":
        text = folder(tmp_path / "model", files | {"more/config.json": b"not looked at"})
    elif form == "zip of a folder":
        other = {"__MACOSX/._model": b"x", "model/more/config.json": b"not looked at"}
        text = zipped(tmp_path / "a.zip", {f"model/{name}": files[name] for name in files} | other)
    else:
        stored = zipfile.ZIP_STORED if form == "stored zip" else zipfile.ZIP_DEFLATED
        text = zipped(tmp_path / "a.zip", files, stored)
    before = sorted(tmp_path.rglob("*"))
    with open_source(text) as source:
        assert (source.title, source.kind) == (text, kind)
        assert source.names == sorted(files)
        assert all(source.read(name) == content for name, content in files.items())
        if kind == "huggingface":
            assert source.json("config.json")["d_model"] == 3
            assert source.vocabulary("vocab.json") == ["</s>", "<unk>", "<pad>"]
            tensors = source.tensors("model.safetensors")
        else:
            assert source.yaml("decoder.yml") == {"models": ["a.npz"], "beam-size": 6}
            assert source.vocabulary("opus.spm32k-spm32k.vocab.yml") == ["</s>", "<unk>"]
            tensors = source.tensors(next(name for name in source.names if ".npz" in name))
        np.testing.assert_array_equal(next(iter(tensors.values())), [[0, 1, 2], [3, 4, 5]])
    assert sorted(tmp_path.rglob("*")) == before  # nothing is extracted


def test_a_checkpoint_of_pytorch_instead_of_safetensors(tmp_path):
    checkpoint = Path(__file__).parent / "torch_files" / "float32.legacy.bin"
    files = {name: HUGGING_FACE[name] for name in HUGGING_FACE if name != "model.safetensors"}
    text = folder(tmp_path / "model", files | {"pytorch_model.bin": checkpoint.read_bytes()})
    with open_source(text) as source:
        assert source.kind == "huggingface"
        assert set(source.tensors("pytorch_model.bin")) == {"weight", "bias", "scalar"}


# ---- What is refused ----


def without(*names: str) -> dict[str, bytes]:
    return {name: content for name, content in HUGGING_FACE.items() if name not in names}


def typed(model_type: str) -> dict[str, bytes]:
    return HUGGING_FACE | {"config.json": json.dumps({"model_type": model_type}).encode()}


OTHERS = [
    ({}, "it has no files"),
    ({f"{i}.txt": b"" for i in range(20)}, r"it has 0\.txt, 1\.txt, .*, \.\.\.\. What can be"),
    (without("source.spm", "vocab.json"), r"it lacks source\.spm, vocab\.json\."),
    (without("model.safetensors"), r"it lacks model\.safetensors or pytorch_model\.bin"),
    (
        without("model.safetensors") | {"pytorch_model.bin.index.json": b"{}"},
        r"split into several files .*; it lacks model\.safetensors or pytorch_model\.bin",
    ),
    (without("model.safetensors") | {"tf_model.h5": b""}, "it has weights for TensorFlow"),
    (typed("m2m_100"), r"the model_type in its config\.json is m2m_100 \(M2M-100 or NLLB\)"),
    (typed("gpt2"), r"is gpt2 \(another kind of model\), not marian"),
    ({"checkpoint_best.pt": b"", "dict.en.txt": b""}, "it is a model of fairseq"),
    (
        {"config.json": b"{}", "model.bin": b"", "shared_vocabulary.json": b""},
        "it is an export for CTranslate2",
    ),
    (
        {
            "model.ende.intgemm.alphas.bin": b"",
            "vocab.deen.spm": b"",
            "lex.50.50.ende.s2t.bin": b"",
        },
        r"a student model of Bergamot or Firefox, .*SSRU",
    ),
    ({"model.gguf": b""}, "llama.cpp"),
    ({"format_version": b"2\n", "config.yaml": b""}, "a model directory of this program"),
    (
        {"a.npz": b"", "decoder.yml": b"", "source.bpe": b"", "target.bpe": b""},
        r"subword-nmt .*; it lacks source\.spm, target\.spm, \*vocab\.yml or \*\.vocab",
    ),
    (HUGGING_FACE | {"config.json": b"{"}, r"/config\.json: it is not JSON"),
    (HUGGING_FACE | {"config.json": b"[]"}, r"/config\.json: it is not an object of JSON"),
]


@pytest.mark.parametrize(("files", "message"), OTHERS, ids=[message for _, message in OTHERS])
def test_other_models_are_refused_by_name(tmp_path, files, message):
    import re

    for text in (folder(tmp_path / "m", files), zipped(tmp_path / "m.zip", files)):
        found = refusal(text)
        assert re.search(message, found) and found.startswith(text)


def test_what_is_no_folder_and_no_archive(tmp_path):
    assert "there is no such folder or file" in refusal(tmp_path / "none", UsageError)
    assert "is hf:Helsinki-NLP/opus-mt-en-de" in refusal("Helsinki-NLP/opus-mt-en-de", UsageError)
    page = "https://huggingface.co/Helsinki-NLP/opus-mt-en-de/tree/main"
    assert "Give hf:Helsinki-NLP/opus-mt-en-de instead" in refusal(page, UsageError)
    assert "Download it" in refusal("https://example.org/a.zip", UsageError)
    assert "is not a repository" in refusal("hf:opus-mt-en-de", UsageError)
    assert "is not a repository" in refusal("hf:../../x", UsageError)
    for name, content in [("a.tar.gz", b"\x1f\x8b"), ("a.zip", b""), ("model.npz", b"PK")]:
        (tmp_path / name).write_bytes(content)
        assert "give the folder" in refusal(tmp_path / name, UsageError).lower()


def test_files_that_are_missing_or_damaged_are_named(tmp_path):
    text = folder(tmp_path / "m", HUGGING_FACE | {"model.safetensors": b"x" * 100})
    with open_source(text) as source:
        for read, message in [
            (lambda: source.tensors("model.safetensors"), "m/model.safetensors: it is not in the"),
            (lambda: source.json("tokenizer_config.json"), "m/tokenizer_config.json: there is no"),
            (lambda: source.json("README.md"), "m/README.md: it is not JSON"),
            (lambda: source.yaml("source.spm"), "m/source.spm: it is not a mapping in YAML"),
            (lambda: source.vocabulary("config.json"), "m/config.json: the id of 'model_type' is"),
        ]:
            with pytest.raises(UserError) as error:
                read()
            assert message in str(error.value) and "\n" not in str(error.value)
        os.truncate(tmp_path / "m" / "vocab.json", 200 << 20)
        with pytest.raises(UserError, match="it has 200 MB, at most 20 are read"):
            source.vocabulary("vocab.json")


def test_archives_that_reach_outside_or_hold_too_much(tmp_path):
    path = tmp_path / "a.zip"
    for name in ("../evil", "/etc/evil", "model/../../evil", "C:\\evil", "..\\evil"):
        message = refusal(zipped(path, HUGGING_FACE | {name: b"x"}))
        assert "is named like a file outside it" in message
    link = zipfile.ZipInfo("target.spm")
    link.external_attr = 0o120777 << 16
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(link, "/etc/passwd")
    assert "its file target.spm is a link" in refusal(path)
    zeros = HUGGING_FACE | {"model.safetensors": bytes(30 << 20)}
    assert "100 times as large as it is compressed" in refusal(zipped(path, zeros))
    with warnings.catch_warnings(action="ignore"), zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a", b"x")
        archive.writestr("a", b"y")
    assert "its file a is there twice" in refusal(path)
    assert "a way other than deflate" in refusal(
        zipped(path, HUGGING_FACE, compression=zipfile.ZIP_LZMA)
    )


def test_encrypted_truncated_and_changed_archives(tmp_path):
    path = tmp_path / "a.zip"
    content = bytearray(Path(zipped(path, OPUS_MT, zipfile.ZIP_STORED)).read_bytes())
    encrypted = bytearray(content)
    encrypted[encrypted.rindex(b"PK\x01\x02") + 8] |= 1  # the flag of the last file
    path.write_bytes(encrypted)
    assert "its file LICENSE is encrypted" in refusal(path)
    for length in (100, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:length])
        assert "it is truncated" in refusal(path)
    content[content.index(b"CC-BY 4.0")] = 0
    path.write_bytes(content)
    with open_source(str(path)) as source, pytest.raises(UserError) as error:
        source.read("LICENSE")
    assert "its file LICENSE is damaged: Bad CRC-32" in str(error.value)


def test_a_size_that_is_not_that_of_the_content(tmp_path):
    """The list of files says 1 GB for one that has 9 bytes."""
    path = tmp_path / "a.zip"
    content = bytearray(Path(zipped(path, OPUS_MT, zipfile.ZIP_STORED)).read_bytes())
    place = content.rindex(b"PK\x01\x02") + 24
    content[place : place + 4] = (1 << 30).to_bytes(4, "little")
    path.write_bytes(content)
    assert "100 times as large" in refusal(path)
    content[place : place + 4] = (1 << 20).to_bytes(4, "little")
    path.write_bytes(content)
    with open_source(str(path)) as source, pytest.raises(UserError, match="LICENSE is damaged"):
        source.read("LICENSE")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_damaged_archive_gives_the_right_files_or_one_message(tmp_path, data):
    path = tmp_path / "a.zip"
    content = bytearray(Path(zipped(path, OPUS_MT)).read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(4, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    try:
        with open_source(str(path)) as source:
            for name in source.names:
                assert source.read(name) in (OPUS_MT.get(name), *OPUS_MT.values())
    except UserError as error:
        assert "\n" not in str(error)


# ---- The hub ----

COMMIT = "a" * 40


class Hub(BaseHTTPRequestHandler):
    """As much of the hub as `huggingface_hub` asks for, and what it was asked."""

    files: dict[str, bytes]
    asked: list[str]

    def do_GET(self):
        self.asked.append(f"{self.command} {self.path}")
        if "/broken/" in self.path:
            self.answer(503)
        elif "/gated/" in self.path:
            self.answer(403, **{"X-Error-Code": "GatedRepo"})
        elif "/private/" in self.path:
            self.answer(401)
        elif self.path.endswith("/revision/v2"):
            self.answer(404, **{"X-Error-Code": "RevisionNotFound"})
        elif self.path.startswith("/api/models/good/model"):
            files = [{"rfilename": name} for name in self.files]
            content = {"id": "good/model", "sha": COMMIT, "siblings": files}
            self.answer(200, json.dumps(content).encode(), **{"Content-Type": "application/json"})
        elif self.path.startswith(f"/good/model/resolve/{COMMIT}/"):
            content = self.files[self.path.rpartition("/")[2]]
            self.answer(200, content, ETag=f'"{hash(content)}"', **{"X-Repo-Commit": COMMIT})
        else:
            self.answer(404, **{"X-Error-Code": "RepoNotFound"})

    do_HEAD = do_GET

    def answer(self, status: int, content: bytes = b"{}", **headers: str) -> None:
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(content))}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def hub():
    handler = type("Handler", (Hub,), {"files": dict(HUGGING_FACE), "asked": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


OPEN = """
import sys
from transformer_mt.pretrained.sources import open_source
from transformer_mt.utils.errors import UserError
for text in sys.argv[1:]:
    try:
        with open_source(text) as source:
            print(source.kind, *source.names, *source.tensors("model.safetensors"))
    except UserError as error:
        print(type(error).__name__, error)
"""


def opened(cache: Path, port: int, *texts: str, **environment: str) -> list[str]:
    """What a process that opens sources prints. `huggingface_hub` reads its settings once."""
    clean = {key: value for key, value in os.environ.items() if "proxy" not in key.lower()}
    settings = {"HF_ENDPOINT": f"http://127.0.0.1:{port}", "HF_HOME": str(cache)}
    result = subprocess.run(
        [sys.executable, "-c", OPEN, *texts],
        env=clean | settings | {"PYTHONPATH": str(ROOT), "HF_HUB_DISABLE_XET": "1"} | environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip().split("\n")


def test_only_what_is_needed_is_downloaded_and_only_once(hub, tmp_path):
    handler = hub.RequestHandlerClass
    unneeded = ("pytorch_model.bin", "tf_model.h5", "rust_model.ot", "runs/a.json", "train.py")
    handler.files |= dict.fromkeys(unneeded, b"x")
    lines = opened(tmp_path, hub.server_port, "hf:good/model", "hf:good/model@main")
    assert lines == [f"huggingface {' '.join(sorted(HUGGING_FACE))} model.shared.weight"] * 2
    fetched = [line for line in handler.asked if line.startswith("GET /good")]
    assert len(fetched) == len(HUGGING_FACE)
    assert not any(name in line for line in fetched for name in unneeded)


def test_another_kind_of_model_is_refused_before_its_weights_are_downloaded(hub, tmp_path):
    handler = hub.RequestHandlerClass
    handler.files["config.json"] = b'{"model_type": "m2m_100"}'
    (line,) = opened(tmp_path, hub.server_port, "hf:good/model")
    assert line.startswith("UserError hf:good/model can't be imported: the model_type")
    assert not any("safetensors" in line for line in handler.asked)


def test_repositories_that_are_missing_private_or_gated(hub, tmp_path):
    texts = ["none/x", "private/x", "gated/x", "good/model@v2", "broken/x"]
    lines = opened(tmp_path, hub.server_port, *(f"hf:{text}" for text in texts))
    missing, private, gated, revision, broken = lines
    for line in (missing, private):
        assert line.startswith("UsageError") and "no such repository, or it is private" in line
        assert "HF_TOKEN" in line
    assert gated.startswith("UserError") and "accept its conditions" in gated
    assert revision.startswith("UsageError") and "has no revision v2" in revision
    assert broken.startswith("UserError") and "answered 503" in broken


def test_no_network(hub, tmp_path):
    hub.shutdown()
    hub.server_close()
    (line,) = opened(tmp_path, hub.server_port, "hf:good/model")
    assert line.startswith("UserError hf:good/model can't be downloaded") and "HF_ENDPOINT" in line
    assert f"http://127.0.0.1:{hub.server_port}/good/model/tree/main" in line
    (line,) = opened(tmp_path, hub.server_port, "hf:good/model", HF_HUB_OFFLINE="1")
    assert "can't be reached" in line
