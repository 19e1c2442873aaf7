"""Checkpoints that PyTorch wrote are read exactly; hostile and damaged ones are refused, unrun."""

import io
import pickle
import struct
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import examples
from transformer_mt.pretrained.torch_file import read_torch_tensors

FILES = Path(__file__).parent / "torch_files"  # made by PyTorch; see make.py there
REAL = sorted(FILES.glob("*.bin"))
REDUCE, BUILD, STOP = b"R", b"b", b"."


def read(content: bytes) -> dict[str, np.ndarray]:
    return read_torch_tensors(io.BytesIO(content))


def expected(path: Path) -> dict[str, np.ndarray]:
    return dict(np.load(path.with_name(path.name.split(".")[0] + ".npz")))


@pytest.mark.parametrize("path", REAL, ids=lambda path: path.name)
def test_what_pytorch_wrote_is_read_exactly(path):
    """Both formats, with tied, transposed and sliced tensors. `float()` of PyTorch is exact for
    float16 and bfloat16, and NumPy rounds float64 as it does."""
    arrays = read(path.read_bytes())
    wanted = expected(path)
    assert list(arrays) == list(wanted)
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, wanted[name])
        assert array.shape == wanted[name].shape and array.flags.c_contiguous
        assert array.dtype == (np.uint8 if wanted[name].dtype == bool else wanted[name].dtype)


def test_tied_tensors_take_memory_once():
    arrays = read((FILES / "tied.zip.bin").read_bytes())
    assert np.shares_memory(arrays["shared"], arrays["embed"])


# ---- Checkpoints put together by hand ----


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def number(value: int) -> bytes:
    size = (value.bit_length() + 8) // 8
    return b"\x8a" + bytes([size]) + value.to_bytes(size, "little", signed=True)


def numbers(*values: int) -> bytes:
    return b"(" + b"".join(map(number, values)) + b"t"


def name_of(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


def storage(kind: str = "FloatStorage", key: str = "0", count: int = 6) -> bytes:
    described = text("storage") + name_of("torch", kind) + text(key) + text("cpu") + number(count)
    return b"(" + described + b"tQ"


def tensor(of: bytes | None = None, offset=0, shape=(2, 3), strides=(3, 1)) -> bytes:
    view = (of or storage()) + number(offset) + numbers(*shape) + numbers(*strides)
    hooks = name_of("collections", "OrderedDict") + b")R"
    return name_of("torch._utils", "_rebuild_tensor_v2") + b"(" + view + b"\x89" + hooks + b"tR"


def state(*items: bytes) -> bytes:
    return b"\x80\x02}(" + b"".join(items) + b"u" + STOP


SIX = np.arange(6, dtype=np.float32)


def archive(pickled: bytes, storages=None, other=(), compression=zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as members:
        members.writestr("archive/data.pkl", pickled)
        for name, content in other:
            members.writestr(name, content)
        for key, content in ({"0": SIX.tobytes()} if storages is None else storages).items():
            members.writestr(f"archive/data/{key}", content)
    return file.getvalue()


def legacy(pickled: bytes, keys=("0",), storages: bytes | None = None) -> bytes:
    heads = [0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}]
    start = b"".join(pickle.dumps(head, 2) for head in heads)
    data = struct.pack("<q", 6) + SIX.tobytes() if storages is None else storages
    return start + pickled + pickle.dumps(list(keys), 2) + data


def test_the_hand_made_checkpoint_is_a_right_one():
    for content in (
        archive(state(text("w"), tensor())),
        legacy(state(text("w"), tensor())),
        archive(state(text("w"), tensor()), compression=zipfile.ZIP_DEFLATED),
    ):
        np.testing.assert_array_equal(read(content)["w"], SIX.reshape(2, 3))


def test_big_endian_storages():
    other = [("archive/byteorder", b"big")]
    content = archive(state(text("w"), tensor()), {"0": SIX.astype(">f4").tobytes()}, other)
    np.testing.assert_array_equal(read(content)["w"], SIX.reshape(2, 3))
    other = [("archive/byteorder", b"middle")]
    with pytest.raises(ValueError, match="byte order is 'middle'"):
        read(archive(state(text("w"), tensor()), None, other))


def test_parts_of_a_storage_in_the_old_format():
    described = text("storage") + name_of("torch", "FloatStorage") + text("0") + text("cpu")
    part = b"(" + described + number(6) + b"(" + text("part") + number(2) + number(3) + b"ttQ"
    view = tensor(part, shape=(3,), strides=(1,))
    np.testing.assert_array_equal(read(legacy(state(text("w"), view)))["w"], SIX[2:5])


class Attack:
    """What `pickle` would run."""

    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


def attacks(marker: Path) -> dict[str, bytes]:
    """Pickles that each would write a file, or replace something in this process."""
    import builtins
    import os

    command = f"touch {marker}"
    evaluated = f"open({str(marker)!r}, 'w')"
    dictionary = name_of("collections", "OrderedDict")
    function = name_of("torch._utils", "_rebuild_tensor_v2")
    attributes = text("__code__") + b"N"
    return {
        "os.system": pickle.dumps({"w": Attack(os.system, command)}, 2),
        "protocol 0": pickle.dumps({"w": Attack(os.system, command)}, 0),
        "protocol 4": pickle.dumps({"w": Attack(os.system, command)}, 4),
        "builtins.eval": pickle.dumps(Attack(builtins.eval, evaluated), 2),
        "builtins.getattr": pickle.dumps(Attack(getattr, {}, "clear"), 2),
        "instance": b"(S'" + command.encode() + b"'\nios\nsystem\n.",
        "object": b"(cos\nsystem\nX" + struct.pack("<I", len(command)) + command.encode() + b"o.",
        "new object": dictionary + b")\x81.",
        "new object with keywords": dictionary + b")}\x92.",
        "nested name": text("torch._utils") + text("os.system") + b"\x93.",
        "module within": name_of("torch", "serialization.os.system") + b".",
        "extension": b"\x82\x01.",
        "attributes of a function": function + b"N}(" + attributes + b"u\x86b.",
        "attributes of a class": dictionary + b"}(" + attributes + b"ub.",
        "a dictionary of a call": dictionary + b"(" + name_of("os", "system") + b"tR.",
        "a storage of a call": name_of("torch", "FloatStorage") + b"(" + number(1 << 50) + b"tR.",
        "a tensor of a name": function + b"(" + function * 4 + b"tR.",
        "a name with a newline": b"\x80\x02" + text("os\nx") + text("system") + b"\x93.",
        "another function of PyTorch": name_of("torch", "load") + b"(" + text("x") + b"tR.",
        "persistent text": b"Pos.system\n.",
    }


@pytest.mark.parametrize("name", sorted(attacks(Path("x"))))
@pytest.mark.parametrize("form", [archive, legacy, bytes])
def test_attacks_are_refused_and_nothing_is_run(tmp_path, name, form):
    marker = tmp_path / "marker"
    with pytest.raises(ValueError) as error:
        read(form(attacks(marker)[name]))
    assert not marker.exists()
    assert "\n" not in str(error.value) and len(str(error.value)) < 300


def test_the_message_names_what_a_file_asks_for():
    hostile = attacks(Path("x"))
    for form in (archive, legacy, bytes):
        with pytest.raises(
            ValueError, match=r"it asks for posix\.system, .* Nothing of it was run"
        ):
            read(form(hostile["os.system"]))
    with pytest.raises(ValueError, match="it has the instruction STRING of Python's pickles"):
        read(archive(hostile["instance"]))


def test_a_module_as_fairseq_saves_it_is_refused_by_name():
    arguments = name_of("argparse", "Namespace") + b")R"
    with pytest.raises(ValueError, match=r"it asks for argparse\.Namespace"):
        read(archive(state(text("args"), arguments, text("w"), tensor())))


VIEWS = {
    "beyond its storage": {"shape": (3, 3)},
    "beyond its storage by an offset": {"offset": 1},
    "beyond its storage by strides": {"shape": (2, 2), "strides": (1 << 40, 1)},
    "negative offset": {"offset": -1},
    "negative shape": {"shape": (-2, -3)},
    "negative stride": {"offset": 5, "strides": (-3, 1)},
    "10 TB of one element": {"shape": (1 << 40, 10), "strides": (0, 0)},
    "an overflow": {"shape": (1 << 33, 1 << 33), "strides": (0, 0)},
    "an overflow of a stride": {"shape": (1, 1), "strides": (1 << 62, 1 << 200)},
    "nothing of a huge shape": {"shape": (0, 1 << 62, 1 << 62), "strides": (1, 1, 1)},
    "strides missing": {"strides": (1,)},
    "many dimensions": {"shape": (1,) * 100, "strides": (1,) * 100},
}


@pytest.mark.parametrize("view", VIEWS, ids=str)
@pytest.mark.parametrize("form", [archive, legacy])
def test_tensors_that_do_not_fit_their_storage(form, view):
    with pytest.raises(ValueError, match="damaged"):
        read(form(state(text("w"), tensor(**VIEWS[view]))))


def test_sizes_that_are_not_numbers():
    for of in (storage(count=-1), storage(count=1 << 100), text("x"), storage("QUInt8Storage")):
        with pytest.raises(ValueError):
            read(archive(state(text("w"), tensor(of))))
    for count in (-1, 1 << 60, 7):
        with pytest.raises(ValueError, match="truncated"):
            data = struct.pack("<q", count) + SIX.tobytes()
            read(legacy(state(text("w"), tensor()), storages=data))


def test_storages_that_are_missing_or_of_another_size():
    one = state(text("w"), tensor())
    with pytest.raises(ValueError, match="the storage 0 is missing"):
        read(archive(one, {}))
    with pytest.raises(ValueError, match="the storage 0 has 20 bytes, not 24"):
        read(archive(one, {"0": bytes(20)}))
    with pytest.raises(ValueError, match="the storage 0 is missing"):
        read(legacy(one, (), b""))
    with pytest.raises(ValueError, match="the storage 0 is there twice"):
        read(legacy(one, ("0", "0"), 2 * (struct.pack("<q", 6) + SIX.tobytes())))
    with pytest.raises(ValueError, match="too short"):
        read(legacy(one, storages=struct.pack("<q", 5) + bytes(20)))
    with pytest.raises(ValueError, match="is named like a file outside it"):
        read(archive(state(text("w"), tensor(storage(key="../data.pkl"))), {"../data.pkl": b"x"}))


def test_the_same_numbers_are_not_copied_without_end():
    """A thousand transposed views of one storage would take a thousand times its memory."""
    views = [
        text(f"w{i}") + tensor(shape=(1000, 1000), strides=(1, 1000), of=storage(count=1_000_000))
        for i in range(1000)
    ]
    with pytest.raises(ValueError, match="more than 4 times as large as the file"):
        read(archive(state(*views), {"0": bytes(4_000_000)}))
    parts = []
    for i in range(1000):
        described = text("storage") + name_of("torch", "FloatStorage") + text("0") + text("cpu")
        size = number(100_000 - i)
        of = b"(" + described + number(100_000) + b"(" + text("p") + number(i) + size + b"ttQ"
        parts.append(text(f"w{i}") + tensor(of, shape=(10,), strides=(1,)))
    with pytest.raises(ValueError, match="more than 4 times as large as the file"):
        data = struct.pack("<q", 100_000) + bytes(400_000)
        read(legacy(state(*parts), storages=data))


def test_pickles_that_would_take_time_or_memory_without_end():
    laughs = b"\x80\x02)" + b"q\x00h\x00h\x00\x86" * 100  # a tuple of two tuples of two tuples ...
    start = time.perf_counter()
    hostile = [
        b"\x80\x02}" + laughs[2:] + b"Ns.",  # its hash as a key of a dictionary
        b"\x80\x02Nr\xff\xff\xff\x7f.",  # a place in the memo that pickle would make room up to
        b"\x80\x02X\xff\xff\xff\xff.",  # a text of 4 GB
        b"\x80\x04\x8d" + b"\xff" * 7 + b"\x7f.",  # a text of 2 ** 63 bytes
        b"\x80\x05\x96" + b"\xff" * 6 + b"\0\0.",  # a bytearray of 2 ** 48
        b"\x80\x02"
        + b"(" * 140_000
        + b"t" * 140_000
        + b".",  # nested so deeply that recursion ends
        b"\x80\x02N" + b"N" * 300_000 + b".",
        b"\x80\x02" + b"]q\0" + b"h\0a" * 1000 + b".",  # a list of itself
        b"\x80\x02" + b"\x8b" + struct.pack("<i", 1 << 20) + b"\x7f" * (1 << 20) + b".",
    ]
    for pickled in hostile:
        for form in (archive, legacy):
            with pytest.raises(ValueError):
                read(form(pickled))
    assert time.perf_counter() - start < 120  # not forever


def test_zip_archives_with_something_wrong():
    one = state(text("w"), tensor())
    bomb = archive(one, {"0": bytes(50 << 20)}, compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(ValueError, match="100 times as large"):
        read(bomb)
    with pytest.raises(ValueError, match=r"it has no data\.pkl"):
        read(archive(one).replace(b"archive/data.pkl", b"archive/data.pkx"))
    with pytest.raises(ValueError, match="TorchScript"):
        read(archive(one, None, [("archive/constants.pkl", b"")]))
    with (
        pytest.raises(ValueError, match="archive/data/0 is there twice"),
        pytest.warns(UserWarning, match="Duplicate name"),
    ):
        read(archive(one, None, [("archive/data/0", b"")]))
    changed = archive(one).replace(SIX.tobytes(), (SIX + 1).tobytes())
    with pytest.raises(ValueError, match="archive/data/0 is damaged: Bad CRC-32"):
        read(changed)


def test_what_is_no_dictionary_of_tensors():
    for pickled, message in [
        (state(), "it is not a dictionary of tensors"),
        (b"\x80\x02" + tensor() + STOP, "it holds a tensor, not a dictionary of tensors"),
        (state(text("w"), tensor(), text("step"), number(3)), "step is a value of the type int"),
        (state(text("model"), b"}"), "model is another dictionary"),
        (state(number(1), tensor()), "not a dictionary of tensors by their names"),
        (state(text("w"), tensor(), text("w"), tensor()), "it has w twice"),
        (b"\x80\x02(u.", "damaged"),
        (b"\x80\x02.", "damaged"),
        (b"\x80\x02tt.", "damaged"),
        (b"", "damaged|exhausted|truncated"),
    ]:
        with pytest.raises(ValueError, match=message):
            read(archive(pickled))
    for content in (b"", b"\0" * 100, b"not a model", b"PK\x03\x04", pickle.dumps(7)):
        with pytest.raises(ValueError):
            read(content)


def test_not_a_number():
    bad = SIX.copy()
    bad[3] = np.nan
    with pytest.raises(ValueError, match="w holds NaN or infinity"):
        read(archive(state(text("w"), tensor()), {"0": bad.tobytes()}))
    large = np.full(6, 1e300)
    with pytest.raises(ValueError, match="w holds NaN or infinity"):
        view = tensor(storage("DoubleStorage"))
        read(archive(state(text("w"), view), {"0": large.tobytes()}))


@given(st.data())
def test_damage_gives_the_right_arrays_or_a_value_error(data):
    """A zip archive has checksums. The old format has none, so there numbers can differ."""
    for _ in range(examples(1, 20)):
        path = data.draw(st.sampled_from(REAL))
        content = bytearray(path.read_bytes())
        if data.draw(st.booleans()):
            del content[data.draw(st.integers(0, len(content))) :]
        for _ in range(data.draw(st.integers(0, 3))):
            if content:
                place = data.draw(st.integers(0, len(content) - 1))
                content[place] = data.draw(st.integers(0, 255))
        try:
            arrays = read(bytes(content))
        except ValueError as error:
            assert "\n" not in str(error)
            continue
        for name, array in arrays.items():
            if "zip" in path.name and name in (wanted := expected(path)):
                assert array.tobytes() == wanted[name].tobytes()
