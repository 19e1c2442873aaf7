"""Marian's weights, options and vocabularies, against NumPy, PyYAML and CTranslate2."""

import io
import json
import pickle
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from transformer_mt.pretrained.marian_files import (
    OPTIONS,
    read_npz,
    read_options,
    read_vocabulary,
    read_yaml,
)

FILES = Path(__file__).parent / "marian_files"  # made by Marian; see make.py there
OPTIONS_TEXT = "type: transformer\ndim-vocabs:\n  - 10\n  - 20\nversion: v1.9.0 2020-01-01\n"


def npz(arrays, save=np.savez) -> bytes:
    file = io.BytesIO()
    save(file, **arrays)
    return file.getvalue()


def read(content: bytes) -> dict[str, np.ndarray]:
    return read_npz(io.BytesIO(content))


def zipped(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def npy(header: str, numbers: bytes) -> bytes:
    text = header.encode("latin1")
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + numbers


# ---- What Marian itself wrote ----


def test_a_vocabulary_that_marian_wrote():
    """It sorts words by how often they are there, and these are each there once, by their bytes.
    They include what YAML takes for something else, and what has to be escaped."""
    words = set((FILES / "words.txt").read_text(encoding="utf-8").replace("\n", " ").split(" "))
    expected = ["</s>", "<unk>", *sorted(words - {""}, key=str.encode)]
    name = "words.vocab.yml"
    assert read_vocabulary(name, (FILES / name).read_bytes()) == expected


def test_a_model_that_marian_wrote():
    arrays = read((FILES / "model.npz").read_bytes())
    options = read_options(arrays)
    assert options["type"] == "transformer" and options["dim-vocabs"] == [57, 57]
    assert arrays["Wemb"].shape == (57, 8) and arrays["Wemb"].dtype == np.float32
    with np.load(FILES / "model.npz") as reference:
        assert list(reference) == list(arrays)
        for name in arrays:
            np.testing.assert_array_equal(arrays[name], reference[name])


# ---- Weights ----


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_are_those_that_numpy_reads(save):
    generator = np.random.default_rng(1)
    arrays = {
        "Wemb": generator.normal(size=(5, 4)).astype(np.float32),
        "encoder_l1_ffn_W1": np.asfortranarray(generator.normal(size=(4, 3))),
        "half": generator.normal(size=(1, 4)).astype(np.float16),
        "empty": np.zeros((0, 3), np.float32),
        "scalar": np.float32(3.5),
        OPTIONS: np.frombuffer(OPTIONS_TEXT.encode() + b"\0", np.int8),
    }
    found = read(npz(arrays, save))
    assert list(found) == list(arrays)
    for name, array in found.items():
        is_float = arrays[name].dtype.kind == "f"
        np.testing.assert_array_equal(
            array, arrays[name].astype(np.float32) if is_float else arrays[name]
        )
        assert array.dtype == (np.float32 if is_float else np.int8)
        assert array.shape == np.shape(arrays[name]) and array.flags.c_contiguous
        assert array.flags.aligned
    assert read_options(found) == yaml.safe_load(OPTIONS_TEXT)


def test_arrays_of_objects_are_refused(tmp_path):
    class Attack:
        def __reduce__(self):
            return open, (str(tmp_path / "marker"), "w")

    content = npz({"Wemb": np.array([Attack()], dtype=object)})
    with pytest.raises(ValueError, match="its array Wemb has the type object, not of numbers"):
        read(content)
    with pytest.raises(ValueError, match="its array Wemb has no header"):
        read(zipped({"Wemb.npy": pickle.dumps(Attack())}))
    assert not list(tmp_path.iterdir())


HEADER = "{{'descr': '{}', 'fortran_order': False, 'shape': {}, }}\n"


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (HEADER.format("<f4", "(1099511627776, 10)"), "its array w has another size"),
        (HEADER.format("<f4", "(2,)"), "its array w has another size"),
        (HEADER.format("<f4", "(-1,)"), "its array w has the type"),
        (HEADER.format("<c8", "(1,)"), "has the type complex64, not of numbers"),
        (HEADER.format(">f4", "(1,)"), "has the type >f4, not of numbers"),
        (HEADER.format("<f4", "(" * 5000), "has no header"),
        (HEADER.format("<f4", "__import__('os').system('x')"), "has no header"),
        (HEADER.format("|V8", "(1,)"), "has the type"),
        ("x" * 60_000, "has no header"),
        ("{", "has no header"),
    ],
)
def test_headers_of_arrays_that_lie(header, message):
    with pytest.raises(ValueError, match=message):
        read(zipped({"w.npy": npy(header, bytes(4))}))


def test_damaged_weights():
    content = npz({"w": np.arange(100, dtype=np.float32)})
    with pytest.raises(ValueError, match=r"its file w\.npy is damaged: Bad CRC-32"):
        read(content.replace(np.float32(50).tobytes(), np.float32(51).tobytes()))
    for length in (0, 10, 300, len(content) - 1):
        with pytest.raises(ValueError):
            read(content[:length])
    with pytest.raises(ValueError, match="w holds NaN or infinity"):
        read(npz({"w": np.array([1, np.inf], np.float32)}))
    with pytest.raises(ValueError, match="100 times as large"):
        read(npz({"w": np.zeros(3 << 20, np.float64)}, np.savez_compressed))
    with pytest.raises(ValueError, match="it has w twice"):
        read(zipped({"w": npy(HEADER.format("<f4", "(1,)"), bytes(4)), "w.npy": b""}))


def test_options_that_are_missing_or_no_yaml():
    with pytest.raises(ValueError, match="it has no options"):
        read_options({"Wemb": np.zeros(3, np.float32)})
    array = np.frombuffer(b"a: [\0", np.int8)
    with pytest.raises(ValueError, match="it is not YAML"):
        read_options({OPTIONS: array})


# ---- YAML ----


def test_yaml_runs_nothing_and_cannot_fill_the_memory(tmp_path):
    laughs = "a: &a [x, x]\n" + "".join(
        f"{this}: &{this} [*{last}, *{last}]\n"
        for last, this in zip("abcdefghijklm", "bcdefghijklmn", strict=True)
    )
    with pytest.raises(ValueError, match="it has an alias"):
        read_yaml(laughs.encode())
    with pytest.raises(ValueError, match="could not determine a constructor"):
        read_yaml(f"a: !!python/object/apply:os.mkdir [{tmp_path}/x]\n".encode())
    assert not list(tmp_path.iterdir())
    for content in (b"[" * 100_000, b"\xff", b"- a", b"", b"a: !!int x", b"x" * (2 << 20)):
        with pytest.raises(ValueError) as error:
            read_yaml(content)
        assert "\n" not in str(error.value)


# ---- Vocabularies ----


def as_marian(piece: str) -> str:
    """A scalar as yaml-cpp, with which Marian writes, has it in double quotes."""
    short = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r", "\b": "\\b"}
    quoted = ""
    for character in piece:
        code = ord(character)
        if character in short:
            quoted += short[character]
        elif code < 0x20 or 0x80 <= code <= 0xA0 or code == 0xFEFF:
            quoted += f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
        else:
            quoted += character
    return f'"{quoted}"'


def as_opus_mt(piece: str) -> str:
    """As the sed script of OPUS-MT-train has it, which knows no other escapes."""
    return '"' + piece.replace("\\", "\\\\").replace('"', '\\"') + '"'


PIECES = ["</s>", "<unk>", ",", "▁the", "no", "1_000", "0x10", "<<", "~", "null", "'", '"', '\\"']
PIECES += ["\\", "\\x41", "#", "▁#", ":", "a:", "? ", "\u2028", "\x85", "\xa0", "\ufeff", ">>deu<<"]
PIECES += ["{", "}", "- a", "=", "1:30", "2001-01-01", "😀", "a" * 2000, "é", "e\u0301", "\u3000"]


@pytest.mark.parametrize("write", [as_marian, as_opus_mt])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_pieces_that_readers_of_yaml_take_for_something_else(write, end):
    lines = [f"{write(piece)}: {i}" for i, piece in enumerate(PIECES)]
    content = (end.join(lines) + end).encode()
    assert read_vocabulary("a.vocab.yml", content) == PIECES


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1, unique=True))
def test_any_pieces_as_marian_writes_them(pieces):
    """PyYAML, told to take all scalars for texts, reads the same."""
    order = sorted(range(len(pieces)), key=lambda i: (i * 7) % (len(pieces) + 1))
    content = "".join(f"{as_marian(pieces[i])}: {i}\n" for i in order)
    assert read_vocabulary("a.vocab.yml", content.encode()) == pieces
    try:
        reference = yaml.load(content, yaml.BaseLoader)
    except yaml.YAMLError:  # characters that YAML 1.1 does not have
        return
    if not set("\u2028\u2029") & set(content):  # these end a line in YAML 1.1
        assert reference == {piece: str(i) for i, piece in enumerate(pieces)}


def test_plain_and_single_quoted_and_long_keys(tmp_path):
    long = "a" * 1100
    content = (
        f"# made by hand\n---\n</s>: 0\n'it''s': 1\nb: c: 2\n? {long}\n: 3\n? \"x\\\"y\"\n: 4\n"
    )
    pieces = ["</s>", "it's", "b: c", long, 'x"y']
    assert read_vocabulary("a.yml", content.encode()) == pieces
    # CTranslate2's reader, which was written for the same files, knows neither comments nor `---`.
    from ctranslate2.converters.marian import load_vocab

    path = tmp_path / "a.yml"
    path.write_text(content.split("---\n")[1], encoding="utf-8")
    assert load_vocab(path) == pieces


def test_json_and_lists_of_pieces():
    content = json.dumps({piece: i for i, piece in enumerate(PIECES)}, indent=1).encode()
    assert read_vocabulary("vocab.json", content) == PIECES
    assert read_vocabulary("a.vocab.yml", content) == PIECES
    pieces = ["</s>", "<unk>", "▁a: 1", '"', "\u2028"]
    assert read_vocabulary("a.src.vocab", ("\n".join(pieces) + "\n").encode()) == pieces


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('"a": 0\n"a": 1\n', "it has the piece 'a' twice"),
        ('"a": 0\n"b": 0\n', "'a' and 'b' both have the id 0"),
        ('"a": 0\n"b": 2\n', "the id of 'b' is 2, but those of 2 pieces are 0 to 1"),
        ('"a": 1\n', "the id of 'a' is 1"),
        ('"a": -1\n', "line 1 is not a piece and its id"),
        ('"a": 0\n"b"\n', "line 2 is not a piece and its id: '\"b\"'"),
        ('"a": 0\n"b: 1\n', "line 2 is not"),
        ('"a": 0\n"\\q": 1\n', "line 2 has an escape that YAML does not have"),
        ('"\\ud800": 0\n', "line 1 has an escape"),
        ('"\\UFFFFFFFF": 0\n', "line 1 has an escape"),
        ("? a\n", "it is truncated"),
        ("a: 99999999999999999999\n", "line 1 is not"),
        ("a: ٣\n", "line 1 is not"),
        ("x" * 20_000, "line 1 is longer than 10000 characters"),
        ("", "it has 0 pieces"),
        ('{"a": 0, "a": 0}', "it has 'a' twice"),
        ('{"a": 0, "b": 1.0}', "the id of 'b' is 1.0"),
        ('{"a": 0, "b": true}', "the id of 'b' is True"),
        ('{"a": 0,}', "it is not JSON"),
        ('{"a": ' * 100_000 + "}", "it is nested too deeply|not JSON"),
        ("\udcff", "line 1 is not UTF-8"),
    ],
)
def test_vocabularies_with_something_wrong(content, message):
    with pytest.raises(ValueError, match=message) as error:
        read_vocabulary("vocab.yml", content.encode("utf-8", "surrogateescape"))
    assert "\n" not in str(error.value)


def test_an_empty_line_in_a_list_of_pieces():
    with pytest.raises(ValueError, match="line 2 is empty"):
        read_vocabulary("a.vocab", b"a\n\nb\n")


def test_a_vocabulary_of_the_usual_size_and_lines_made_to_take_long():
    content = "".join(f'"▁piece{i}": {i}\n' for i in range(58_100)).encode()
    start = time.perf_counter()
    assert len(read_vocabulary("a.vocab.yml", content)) == 58_100
    for line in ("a" + " " * 9_990, '"' + '\\"' * 4_990, "? " + "a " * 4_990, "'" * 9_999):
        with pytest.raises(ValueError):
            read_vocabulary("a.vocab.yml", f"{line}\n".encode())
    assert time.perf_counter() - start < 60  # not forever
