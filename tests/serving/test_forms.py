"""Forms, as httpx and requests send them."""

import httpx
import pytest
import requests
from hypothesis import example, given
from hypothesis import strategies as st
from starlette.exceptions import HTTPException

from transformer_mt.serving import forms
from transformer_mt.serving.kept import File

# A line end within a name can't be sent.
NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
MULTIPART = "multipart/form-data; boundary=x"


def prepared(**values):
    return requests.Request("POST", "http://localhost/", **values).prepare()


@given(st.dictionaries(NAMES, TEXTS | st.lists(TEXTS, min_size=2)))
def test_fields_in_the_form_of_an_address_are_read(values):
    request = prepared(data=values)
    body = (request.body or "").encode()
    assert forms.read("Application/x-www-form-urlencoded; charset=UTF-8", body) == values


@given(TEXTS, st.binary() | st.lists(st.sampled_from([b"\r", b"\n", b"--", b"x"])).map(b"".join))
@example("", b"\r\n--\r\n")
@example("\r\n", b"\r\n\r\n")
def test_a_file_and_its_fields_are_read(text, content):
    for name in ("a.txt", 'ä "日\\".txt', "a;b=c.txt"):
        values = {"data": {"q": text}, "files": {"file": (name, content, "text/plain")}}
        first = prepared(**values)
        second = httpx.Request("POST", "http://localhost/", **values)
        second.read()
        for sent, headers in ((first.body, first.headers), (second.content, second.headers)):
            found = forms.read(headers["Content-Type"], sent)
            assert found["q"] == text and found["file"].content == content
            assert found["file"].name.replace("%22", '"').endswith("txt")
    assert found["file"] == File(name, content)


def test_the_name_of_a_file_is_read_in_both_of_its_forms():
    for header in ('filename="b\xfc.txt"', "filename*=utf-8''b%C3%BC.txt"):
        head = f'--x\r\ncontent-disposition: form-data; name="file"; {header}\r\n\r\n'
        assert forms.read(MULTIPART, head.encode() + b"a\r\n--x--") == {
            "file": File("b\xfc.txt", b"a")
        }


def test_json_that_is_sent_as_a_form_is_told_apart():
    """As curl sends it without a header."""
    with pytest.raises(HTTPException, match="application/json") as error:
        forms.read(forms.URL_ENCODED, b' {"text": "a"}')
    assert error.value.status_code == 415


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (forms.URL_ENCODED, b"q=\xff"),
        (forms.URL_ENCODED, b"q=%ff"),
        (forms.URL_ENCODED, b"q=1&" * 3_000),
        (forms.MULTIPART, b""),
        (f'{forms.MULTIPART}; boundary=""', b"--\r\n\r\n----"),
        (MULTIPART, b""),
        (MULTIPART, b"--x\r\n\r\na\r\n--x--"),
        (MULTIPART, b"--x\r\nContent-Disposition: form-data; name=q\r\n\r\na"),
        (MULTIPART, b"--x\r\nContent-Disposition: form-data; name=q\r\n\r\n\xff\r\n--x--"),
        (MULTIPART, b"--x\r\nContent-Disposition: form-data; name=\xff\r\n\r\n\r\n--x--"),
        (MULTIPART, b"--x\r\nContent-Disposition: form-data; name=q\r\n\r\n" * 3_000 + b"--x--"),
    ],
)
def test_what_is_no_form_is_refused(kind, body):
    with pytest.raises(HTTPException) as error:
        forms.read(kind, body)
    assert error.value.status_code == 400 and "not a form" in error.value.detail


@given(st.binary())
@example(b"--x\r\nContent-Disposition: form-data; name*=''%ff; filename*=utf-8'\r\n\r\n\r\n--x--")
@example(b"--x\r\nContent-Disposition: form-data; name=a\r\n b\r\n\r\n\r\n--x--")
def test_any_body_is_read_or_refused(body):
    for kind in (forms.URL_ENCODED, MULTIPART):
        try:
            forms.read(kind, body)
        except HTTPException as error:
            assert error.status_code == 400
