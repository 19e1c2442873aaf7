"""Tokens of users, and files of them."""

import os

import pytest

from tests.serving.stand_in import running, wait_for
from transformer_mt.serving.guard import Access
from transformer_mt.serving.tokens import Tokens
from transformer_mt.utils.errors import UsageError


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "tokens"
    path.write_text("# people\nanna:aaa\n\n  weblate.bot@work:b:b \r\n")
    path.chmod(0o600)
    return path


def test_a_token_belongs_to_its_user(file, capsys):
    tokens = Tokens.read(file)
    assert tokens.user_of("aaa") == "anna"
    assert tokens.user_of("b:b") == "weblate.bot@work"
    for wrong in ("", "aa", "aaaa", "anna", "anna:aaa", "\ud800", "\xe4"):
        assert tokens.user_of(wrong) is None
    assert capsys.readouterr().err == ""


def test_a_file_that_others_can_read_is_reported(file, capsys):
    for mode in (0o640, 0o604):
        file.chmod(mode)
        Tokens.read(file)
        assert "can read it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "there is no user"),
        ("# nobody\n", "there is no user"),
        ("anna\n", "line 1: expected NAME:TOKEN"),
        ("a:b\n\n:secret\n", "line 3: expected NAME:TOKEN"),
        ("two words:secret\n", "line 1: expected NAME:TOKEN"),
        ("a" * 65 + ":secret\n", "line 1: expected NAME:TOKEN"),
        ("anna:\n", "line 1: a token consists of"),
        ("anna:se cret\n", "line 1: a token consists of"),
        ("anna:secr\xe9t\n", "line 1: a token consists of"),
        ("anna:secret\nanna:other\n", "line 2: anna has a token already"),
        ("anna:secret\nbert:secret\n", "line 2: another user has this token"),
    ],
)
def test_what_is_wrong_with_a_file_is_named_by_its_line(file, text, problem):
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError) as error:
        Tokens.read(file)
    assert problem in str(error.value) and str(file) in str(error.value)
    assert "secret" not in str(error.value)


def test_a_file_that_can_not_be_read_is_reported(file, tmp_path):
    file.write_bytes(b"anna:\xff")
    for path in (file, tmp_path, tmp_path / "missing"):
        with pytest.raises(UsageError, match="can't be read"):
            Tokens.read(path)


def test_a_file_that_changes_is_read_again(file, capsys):
    tokens = Tokens.read(file)
    file.write_text("bert:ccc\n")
    assert tokens.user_of("aaa") is None and tokens.user_of("ccc") == "bert"
    # A file that takes its place, of the same size and age.
    age, other = file.stat().st_mtime_ns, file.with_name("other")
    other.write_text("cleo:ddd\n")
    os.utime(other, ns=(age, age))
    other.replace(file)
    assert tokens.user_of("ccc") is None and tokens.user_of("ddd") == "cleo"
    assert "tokens of cleo" in capsys.readouterr().err


def test_a_file_that_becomes_wrong_changes_nothing_and_is_reported_once(file, capsys):
    tokens = Tokens.read(file)
    file.write_text("nonsense")
    assert tokens.user_of("aaa") == tokens.user_of("aaa") == "anna"
    file.unlink()
    assert tokens.user_of("aaa") == tokens.user_of("aaa") == "anna"
    messages = capsys.readouterr().err
    assert messages.count("line 1: expected NAME:TOKEN") == 1
    assert messages.count("can't be read") == 1
    file.write_text("bert:ccc")
    assert tokens.user_of("aaa") is None


def test_the_log_and_the_metrics_name_the_user_and_never_the_token(file):
    with running(access=Access(tokens=Tokens.read(file))) as service:
        service.client.headers["Authorization"] = "Bearer aaa"
        assert service.translate("a\nb").status_code == 200
        del service.client.headers["Authorization"]
        form = {"q": "c", "source": "en", "target": "de", "api_key": "b:b"}
        assert service.client.post("/translate", data=form).status_code == 200
        assert service.client.post("/translate", data=form | {"api_key": "x"}).status_code == 401
        first, second, third = service.log(3)
        assert " 127.0.0.1 anna POST /translate 200 " in first
        assert " 127.0.0.1 weblate.bot@work POST /translate 200 " in second
        assert " 127.0.0.1 POST /translate 401 " in third
        assert not any(token in line for line in service.said for token in ("aaa", "b:b"))
        file.write_text("anna:other")
        assert service.client.post("/translate", data=form).status_code == 401
        wait_for(lambda: any("tokens of anna" in line for line in service.said))
        headers = {"Authorization": "Bearer other"}
        metrics = service.client.get("/metrics", headers=headers).text
    assert 'transformer_mt_user_requests_total{user="anna"} 1.0' in metrics
    assert 'transformer_mt_user_lines_total{user="anna"} 2.0' in metrics
    assert 'transformer_mt_user_lines_total{user="weblate.bot@work"} 1.0' in metrics
    assert "aaa" not in metrics and "b:b" not in metrics
