"""The command `serve`: a process with a real model, and what is wrong with its arguments."""

import os
import re
import signal
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import httpx
import pytest

from tests.support import (
    TIMEOUT,
    children,
    demo_pairs,
    make_config,
    make_model_directory,
    run_command,
    start,
)
from transformer_mt import Translator
from transformer_mt.serving import server
from transformer_mt.utils.errors import UsageError, UserError

PAIRS = demo_pairs(300)
LINES = [source for source, _ in PAIRS[:5]]


@pytest.fixture(scope="module")
def export(tmp_path_factory) -> Path:
    pytest.importorskip("ctranslate2")
    folder = tmp_path_factory.mktemp("serve")
    model = folder / "model"
    make_model_directory(model, PAIRS, make_config(folder, subword={"vocab_size": 300}))
    run_command("export", model, "--format", "ctranslate2")
    return model / "export" / "ctranslate2"


@contextmanager
def serving(*arguments, **options):
    """Yields a process of `serve`, a client for it, and the line that it printed at the start."""
    process = start("serve", *arguments, "--port", 0, "--threads", 1, **options)
    try:
        line = process.stderr.readline()
        url = re.match(r"http://127\.0\.0\.1:\d+", line)
        assert url, line + process.stderr.read()
        with httpx.Client(base_url=url[0], trust_env=False, timeout=TIMEOUT) as client:
            yield process, client, line
    finally:
        process.kill()
        process.communicate()


def ask(client: httpx.Client, found: list) -> Thread:
    """Sends a request in a thread, which appends the status of the answer."""

    def post():
        try:
            found.append(client.post("/translate", json={"text": LINES}).status_code)
        except httpx.TransportError as error:
            found.append(type(error))

    thread = Thread(target=post)
    thread.start()
    return thread


def workers_of(process) -> list[int]:
    """The processes that compute. Python's own helper does not run this program."""
    found = []
    for pid in children(process.pid):
        if "resource_tracker" not in Path(f"/proc/{pid}/cmdline").read_text():
            found.append(pid)
    assert found
    return found


def test_an_export_is_served_without_paddle(export):
    with serving(export, "--max-lines", 7, is_fresh=True) as (process, client, line):
        assert "serves model-ctranslate2 (en-de)  Ctrl-C stops it" in line
        assert client.get("/health").json() == {"status": "ok"}
        answer = client.post("/translate", json={"text": "\n".join(LINES), "alignment": True})
        translations = [one["text"] for one in answer.json()["translations"]]
        assert translations == Translator.load(export).translate(LINES)
        assert all(one["source_words"] for one in answer.json()["translations"])
        answer = client.post("/translate", json={"text": ["a"] * 8})
        assert answer.status_code == 422 and "a request may have 7" in answer.json()["detail"]
        assert client.get("/models").json()["models"][0]["limits"]["lines"] == 7
        form = {"q": LINES[0], "source": "en", "target": "de", "alternatives": "1"}
        answer = client.post("/translate", data=form).json()
        assert answer["translatedText"] == translations[0] and len(answer["alternatives"]) == 1
        # What Weblate puts in place of placeholders and tags.
        form = {"q": [f"{LINES[0]} [X17X]"], "source": "en", "target": "de"}
        assert client.post("/translate", json=form).json()["translatedText"][0].count("[X17X]") == 1
        for pid in (process.pid, *workers_of(process)):
            assert "paddle" not in Path(f"/proc/{pid}/maps").read_text()
        workers = workers_of(process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT) == 0
        messages = process.stderr.read()
    assert messages.count("POST /translate") == 4
    assert LINES[0] not in messages
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)


def test_a_signal_lets_requests_finish_and_the_next_one_does_not(export):
    with serving(export) as (process, client, _):
        (worker,) = workers_of(process)
        os.kill(worker, signal.SIGSTOP)
        found: list = []
        thread = ask(client, found)
        wait_until_busy(process, client)
        process.send_signal(signal.SIGINT)
        assert "stopping after 1 more answer" in process.stderr.readline()
        os.kill(worker, signal.SIGCONT)
        thread.join(TIMEOUT)
        assert found == [200]
        assert process.wait(TIMEOUT) == 0

    with serving(export) as (process, client, _):
        (worker,) = workers_of(process)
        os.kill(worker, signal.SIGSTOP)
        found = []
        thread = ask(client, found)
        wait_until_busy(process, client)
        process.send_signal(signal.SIGTERM)
        assert "stopping" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT) == 130
        thread.join(TIMEOUT)
        assert found and found != [200]
        assert not Path(f"/proc/{worker}").exists()


def wait_until_busy(process, client: httpx.Client) -> None:
    """Waits until a request is being answered besides the one that asks, and reads the log."""
    with httpx.Client(base_url=client.base_url, trust_env=False, timeout=TIMEOUT) as other:
        while "requests_in_progress 2.0" not in other.get("/metrics").text:
            assert "GET /metrics 200" in process.stderr.readline()
        assert "GET /metrics 200" in process.stderr.readline()


# ---- Arguments ----


def refused(*arguments) -> str:
    with pytest.raises(UserError) as error:
        run_command("serve", "no model", "--port", "0", *arguments)
    return str(error.value)


def test_others_are_let_in_only_deliberately(tmp_path, monkeypatch):
    monkeypatch.delenv("TRANSFORMER_MT_TOKEN", raising=False)
    everywhere = ("--host", "0.0.0.0")
    assert "--token" in refused(*everywhere) and "--no-token" in refused(*everywhere)
    # What is refused below is the model, which does not exist: the token was accepted.
    assert "no model" in refused()
    assert "no model" in refused(*everywhere, "--no-token")
    assert "no model" in refused(*everywhere, "--token", "secret")
    (tmp_path / "token").write_text("secret\n")
    assert "no model" in refused(*everywhere, "--token", f"@{tmp_path / 'token'}")
    (tmp_path / "tokens").write_text("anna:secret\n")
    assert "no model" in refused(*everywhere, "--tokens", tmp_path / "tokens")
    monkeypatch.setenv("TRANSFORMER_MT_TOKEN", "secret")
    assert "no model" in refused(*everywhere)


@pytest.mark.parametrize("token", ["", "two words", "ümlaut", "line\nend", "\x1b"])
def test_a_token_must_fit_into_a_header(tmp_path, token, monkeypatch):
    message = refused("--token", token)
    assert "ASCII" in message and (not token or token not in message)
    monkeypatch.setenv("TRANSFORMER_MT_TOKEN", token)
    assert "TRANSFORMER_MT_TOKEN" in refused()


def test_arguments_that_cannot_be(tmp_path):
    assert "can't be read" in refused("--token", f"@{tmp_path / 'missing'}")
    assert "can't be read" in refused("--tokens", tmp_path / "missing")
    (tmp_path / "tokens").write_text("# people\nanna\n")
    assert "tokens, line 2: expected NAME:TOKEN" in refused("--tokens", tmp_path / "tokens")
    assert "--allow-origin" in refused("--allow-origin", "example.com")
    with pytest.raises(UsageError, match=r"--host nowhere\.invalid"):
        run_command("serve", "x", "--host", "nowhere.invalid")
    options = {"--port": ["70000", "x"], "--max-body": ["0", "1e300", "9" * 5000]}
    options["--timeout"] = ["1e300", "1e5", "inf", "nan", "0", "-1", "x"]
    wrong = [[name, value] for name, values in options.items() for value in values]
    wrong += [["--token", "a", "--no-token"], ["--tokens", "a", "--token", "b"]]
    for arguments in wrong:
        with pytest.raises(SystemExit):
            run_command("serve", "x", *arguments)


def test_a_taken_port_is_reported_before_models_are_loaded():
    with server.bind("127.0.0.1", 0) as listening:
        port = listening.getsockname()[1]
        with pytest.raises(UserError, match="another program uses this port"):
            run_command("serve", "no model", "--port", port)
