"""Reads the tensors of a PyTorch checkpoint (`pytorch_model.bin`) without PyTorch.

Such a file is a pickle, a program that builds objects and can call any function. It is not run by
Python's `pickle` here, but by an interpreter that has only those instructions that checkpoints
contain, and that never calls anything: objects other than tensors and dictionaries do not exist in
it. What a file asks for beside them is an error that names it.

There are two formats. Since version 1.6, a checkpoint is a zip archive with the pickle and one file
per storage (the numbers of one or several tensors). Before, it was a sequence of pickles and then
the storages. `torch/serialization.py` of PyTorch describes both.
"""

from __future__ import annotations

import io
import itertools
import pickletools
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any, NamedTuple

import numpy as np

from transformer_mt.pretrained.limited import LARGEST, finite_float32
from transformer_mt.utils.zips import ZipArchive, read_exactly, shown, size_of

_MAGIC_NUMBER = 0x1950A86A20F9469CFC6C
_PROTOCOL_VERSION = 1001
# The dtypes of storages, little-endian. NumPy has no bfloat16: it is the upper half of a float32.
_BFLOAT16 = "bfloat16"
_DTYPES = {
    "FloatStorage": "<f4",
    "DoubleStorage": "<f8",
    "HalfStorage": "<f2",
    "BFloat16Storage": _BFLOAT16,
    "LongStorage": "<i8",
    "IntStorage": "<i4",
    "ShortStorage": "<i2",
    "CharStorage": "<i1",
    "ByteStorage": "<u1",
    "BoolStorage": "<u1",
}
_DICT = "collections.OrderedDict"
_TENSOR = "torch._utils._rebuild_tensor_v2"
_OLD_TENSOR = "torch._utils._rebuild_tensor"
_PARAMETER = "torch._utils._rebuild_parameter"
_STORAGES = {f"torch.{name}": dtype for name, dtype in _DTYPES.items()} | {
    f"torch.cuda.{name}": dtype for name, dtype in _DTYPES.items()
}
_GLOBALS = {_DICT, _TENSOR, _OLD_TENSOR, _PARAMETER, *_STORAGES}
# A checkpoint has some thirty instructions per tensor, so this is enough for 10,000 tensors.
_MOST_INSTRUCTIONS = 300_000
_LARGEST_PICKLE = 20 << 20
_MOST_DIMENSIONS = 8
# Tied tensors share their storage, and transposed ones are copied. What is read and copied is at
# most this many times as large as the file.
_MOST_COPIES = 4


class _RefusedError(ValueError):
    """The file asks for something that checkpoints do not have."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"it {what}, which weights do not need, so it can be an attack. Nothing of it was run"
        )


class _Global(NamedTuple):
    """The name of a function or a class. Nothing is imported."""

    name: str


class _Storage(NamedTuple):
    """Numbers that tensors are views of.

    Attributes:
        length: the number of its elements.
        start: its first element's place among those of `key`, which can have several storages (in
            the old format).
    """

    key: str
    dtype: str
    length: int
    start: int


class _Tensor(NamedTuple):
    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def read_torch_tensors(file: IO[bytes]) -> dict[str, np.ndarray]:
    """Returns the tensors of a checkpoint by their names, which is a dictionary of tensors.

    Args:
        file: the checkpoint, which can be read from any position.

    Returns: C-contiguous arrays, some of which are read-only: float32 for tensors of any float type
        (float32, float64, float16, bfloat16), and the same type for integers; uint8 for booleans.
        Tensors that share their numbers in the file can share them here.

    Raises:
        ValueError: it is damaged, is not a dictionary of tensors, asks for other objects (which are
            not made), or holds NaN or infinity.
        OSError: it can't be read.
    """
    try:
        size = size_of(file)
        start = file.read(4)
        file.seek(0)
        if start == b"PK\x03\x04":
            return _read_zip(file, size)
        return _read_legacy(file, size)
    # What a damaged pickle makes of the code below, which trusts the types of what it takes.
    except (LookupError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"it is damaged ({type(error).__name__}: {shown(error)})") from None


def _read_zip(file: IO[bytes], size: int) -> dict[str, np.ndarray]:
    archive = ZipArchive(file, LARGEST)
    names = archive.names()
    pickles = [name for name in names if name.count("/") == 1 and name.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise ValueError("it is a zip archive, but not a checkpoint of PyTorch: it has no data.pkl")
    folder = pickles[0].removesuffix("data.pkl")
    if f"{folder}constants.pkl" in names:
        raise ValueError("it is a program of TorchScript, not a checkpoint with weights")
    if archive.size(pickles[0]) > _LARGEST_PICKLE:
        raise ValueError("it is damaged: its data.pkl is too large")
    order = "little"
    if f"{folder}byteorder" in names:
        order = archive.read(f"{folder}byteorder").tobytes().decode("ascii", "replace").strip()
        if order not in ("little", "big"):
            raise ValueError(f"it is damaged: its byte order is {shown(order)!r}")

    def storage(tensor: _Storage) -> np.ndarray:
        name = f"{folder}data/{tensor.key}"
        if name not in names:
            raise ValueError(f"it is damaged: the storage {shown(tensor.key)} is missing")
        expected = tensor.length * _item_size(tensor.dtype)
        if archive.size(name) != expected:
            raise ValueError(
                f"it is damaged: the storage {shown(tensor.key)} has {archive.size(name)} bytes, "
                f"not {expected}"
            )
        return archive.read(name)

    value = _Interpreter(io.BytesIO(archive.read(pickles[0]).tobytes())).run()
    return _arrays(value, storage, order, size)


def _read_legacy(file: IO[bytes], size: int) -> dict[str, np.ndarray]:
    try:
        magic_number = _Interpreter(file).run()
    except _RefusedError:
        raise
    except (ValueError, LookupError, TypeError):
        magic_number = None
    if magic_number != _MAGIC_NUMBER:
        raise ValueError("it is not a checkpoint of PyTorch, or its first bytes are damaged")
    version = _Interpreter(file).run()
    if version != _PROTOCOL_VERSION:
        raise ValueError(f"its format has the version {shown(version)}, which is not known")
    _Interpreter(file).run()  # facts about the machine; storages are little-endian on all
    value = _Interpreter(file).run()
    keys = _Interpreter(file).run()
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise ValueError("it is damaged: its list of storages is not one")
    # Where the numbers of each storage begin, and how many there are. The size of one number is
    # known only from the tensors.
    dtypes = {tensor.storage.key: tensor.storage.dtype for tensor in _tensors(value).values()}
    places: dict[str, tuple[int, int]] = {}
    for key in keys:
        count = int.from_bytes(read_exactly(file, 8).tobytes(), "little", signed=True)
        if key not in dtypes or key in places:
            raise ValueError(
                f"it is damaged: the storage {shown(key)} is there twice, or of no tensor"
            )
        length = count * _item_size(dtypes[key])
        places[key] = (file.tell(), length)
        if not 0 <= length <= size - file.tell():
            raise ValueError("it is truncated")
        file.seek(length, io.SEEK_CUR)

    def storage(tensor: _Storage) -> np.ndarray:
        if tensor.key not in places:
            raise ValueError(f"it is damaged: the storage {shown(tensor.key)} is missing")
        position, length = places[tensor.key]
        item_size = _item_size(tensor.dtype)
        if (tensor.start + tensor.length) * item_size > length:
            raise ValueError(f"it is damaged: the storage {shown(tensor.key)} is too short")
        file.seek(position + tensor.start * item_size)
        return read_exactly(file, tensor.length * item_size)

    return _arrays(value, storage, "little", size)


def _item_size(dtype: str) -> int:
    return 2 if dtype == _BFLOAT16 else np.dtype(dtype).itemsize


def _tensors(value: Any) -> dict[str, _Tensor]:
    """Returns the tensors of a dictionary, after checking that it holds nothing else."""
    if not isinstance(value, dict):
        raise ValueError(f"it holds {_kind(value)}, not a dictionary of tensors")
    others = [name for name, tensor in value.items() if not isinstance(tensor, _Tensor)]
    if others or not value:
        raise ValueError(
            "it is not a dictionary of tensors"
            + "".join(f"; {shown(name)} is {_kind(value[name])}" for name in others[:5])
        )
    if not all(isinstance(name, str) for name in value):
        raise ValueError("it is not a dictionary of tensors by their names")
    return value


def _kind(value: object) -> str:
    if isinstance(value, _Tensor):
        return "a tensor"
    if isinstance(value, dict):
        return "another dictionary"
    return f"a value of the type {type(value).__name__}"


def _arrays(
    value: Any, read_storage: Callable[[_Storage], np.ndarray], order: str, size: int
) -> dict[str, np.ndarray]:
    """Returns the arrays of a dictionary of tensors.

    Args:
        read_storage: returns the bytes of a storage as an array of uint8.
        order: the byte order of the storages, as `sys.byteorder` has it.
        size: of the file, in bytes.
    """
    arrays: dict[str, np.ndarray] = {}
    contents: dict[_Storage, np.ndarray] = {}
    left = _MOST_COPIES * size
    for name, tensor in _tensors(value).items():
        count = _require_inside(name, tensor)
        if tensor.storage not in contents:
            left -= tensor.storage.length * _item_size(tensor.storage.dtype)
            _require_memory(left)
            contents[tensor.storage] = _numbers(name, read_storage(tensor.storage), tensor, order)
        numbers = contents[tensor.storage]
        array = np.lib.stride_tricks.as_strided(
            numbers[tensor.offset :] if count else numbers[:0],
            tensor.shape,
            [stride * numbers.itemsize for stride in tensor.strides],
            writeable=False,
        )
        if not array.flags.c_contiguous:
            left -= count * _item_size(tensor.storage.dtype)
            _require_memory(left)
            array = np.ascontiguousarray(array)
        arrays[name] = array
    return arrays


def _require_memory(left: int) -> None:
    if left < 0:
        raise ValueError(f"its tensors are more than {_MOST_COPIES} times as large as the file")


def _require_inside(name: str, tensor: _Tensor) -> int:
    """Checks that a tensor lies within its storage. Returns the number of its elements."""
    shape, strides = tensor.shape, tensor.strides
    damaged = f"it is damaged: the tensor {shown(name)}"
    if len(shape) != len(strides) or len(shape) > _MOST_DIMENSIONS:
        raise ValueError(f"{damaged} has {len(shape)} dimensions and {len(strides)} strides")
    if min((tensor.offset, *shape, *strides)) < 0:
        raise ValueError(f"{damaged} has a negative size")
    count = 1
    for length in shape:
        count *= length
    last = sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))
    if count and tensor.offset + last >= tensor.storage.length:
        raise ValueError(f"{damaged} reaches beyond its storage")
    # The strides of some shapes with a zero are larger than any memory.
    if count > tensor.storage.length or max((0, *strides, *shape)) > sys.maxsize // 16:
        raise ValueError(f"{damaged} is larger than its storage")
    return count


def _numbers(name: str, content: np.ndarray, tensor: _Tensor, order: str) -> np.ndarray:
    """Returns the numbers of a storage from its bytes."""
    dtype = tensor.storage.dtype
    if dtype == _BFLOAT16:
        halves = content.view("<u2" if order == "little" else ">u2")
        return finite_float32(name, (halves.astype(np.uint32) << 16).view(np.float32))
    stored = np.dtype(dtype).newbyteorder("<" if order == "little" else ">")
    numbers = content.view(stored)
    if stored.kind == "f":
        return finite_float32(name, numbers)
    return numbers.astype(stored.newbyteorder("="), copy=False)


def _instructions(file: IO[bytes]) -> Iterator[tuple[pickletools.OpcodeInfo, Any, int | None]]:
    """Splits a pickle into its instructions, without running any."""
    try:
        yield from pickletools.genops(file)
    except (MemoryError, OverflowError):
        raise ValueError("it is damaged: it holds a text of an impossible length") from None


class _Interpreter:
    """Runs the instructions of one pickle, of which it knows those that checkpoints contain.

    Args:
        file: it is read up to the end of the pickle.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def run(self) -> Any:
        """Returns the value that the pickle describes: of numbers, texts, lists, tuples,
        dictionaries, _Global and _Tensor.

        Raises:
            ValueError: it is damaged, or asks for something else.
        """
        for number, (opcode, argument, _) in enumerate(_instructions(self._file)):
            if number >= _MOST_INSTRUCTIONS:
                raise ValueError("it has more objects than a checkpoint")
            name = opcode.name
            if name in _PUSH_ARGUMENT:
                self._stack.append(argument)
            elif name in _PUSH_CONSTANT:
                self._stack.append(_PUSH_CONSTANT[name])
            elif name in _PUSH_EMPTY:
                self._stack.append(_PUSH_EMPTY[name]())
            elif name == "STOP":
                return self._stack.pop()
            elif name in _INSTRUCTIONS:
                _INSTRUCTIONS[name](self, argument)
            else:
                raise _RefusedError(f"has the instruction {name} of Python's pickles")
        raise ValueError("it is truncated")  # genops raises it itself

    def _pop_to_mark(self) -> list[Any]:
        start = self._marks.pop()
        items = self._stack[start:]
        if len(self._stack) < start:
            raise ValueError("it is damaged: a mark is missing")
        del self._stack[start:]
        return items

    def _skip(self, argument: Any) -> None:
        """PROTO and FRAME."""

    def _mark(self, argument: Any) -> None:
        self._marks.append(len(self._stack))

    def _put(self, argument: int) -> None:
        self._memo[argument] = self._stack[-1]

    def _memoize(self, argument: Any) -> None:
        self._memo[len(self._memo)] = self._stack[-1]

    def _get(self, argument: int) -> None:
        self._stack.append(self._memo[argument])

    def _tuple(self, argument: Any) -> None:
        self._stack.append(tuple(self._pop_to_mark()))

    def _tuple_of(self, count: int) -> None:
        items = [self._stack.pop() for _ in range(count)]
        self._stack.append(tuple(reversed(items)))

    def _append(self, argument: Any) -> None:
        self._extend([self._stack.pop()])

    def _appends(self, argument: Any) -> None:
        self._extend(self._pop_to_mark())

    def _extend(self, items: list[Any]) -> None:
        if type(self._stack[-1]) is not list:
            raise ValueError("it is damaged: it adds to something that is not a list")
        self._stack[-1].extend(items)

    def _set_item(self, argument: Any) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        self._update([key, value])

    def _set_items(self, argument: Any) -> None:
        self._update(self._pop_to_mark())

    def _update(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if type(target) is not dict or len(items) % 2:
            raise ValueError("it is damaged: it adds to something that is not a dictionary")
        for key, value in itertools.zip_longest(items[::2], items[1::2]):
            # Computing the hash of a tuple of tuples can take forever.
            if type(key) not in (str, int):
                raise ValueError("it has a dictionary with keys other than names")
            if key in target:
                raise ValueError(f"it has {shown(key)} twice")
            target[key] = value

    def _global(self, argument: str) -> None:
        # genops has put a space between the module and the name.
        self._push_global(argument.replace(" ", "."))

    def _stack_global(self, argument: Any) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        self._push_global(f"{shown(module)}.{shown(name)}")

    def _push_global(self, name: str) -> None:
        if name not in _GLOBALS:
            raise _RefusedError(f"asks for {shown(name)}")
        self._stack.append(_Global(name))

    def _reduce(self, argument: Any) -> None:
        """Makes an object of a class, or the result of a function."""
        arguments, function = self._stack.pop(), self._stack.pop()
        name = function.name if type(function) is _Global else None
        if type(arguments) is not tuple:
            raise ValueError("it is damaged: the arguments of a call are not a tuple")
        value: Any
        if name == _DICT and not arguments:
            value = {}
        elif name in (_TENSOR, _OLD_TENSOR) and len(arguments) >= 4:
            value = self._tensor(*arguments[:4])
        elif name == _PARAMETER and arguments and type(arguments[0]) is _Tensor:
            value = arguments[0]
        else:
            raise _RefusedError(f"calls {shown(name or _kind(function))} in an unknown way")
        self._stack.append(value)

    def _tensor(self, storage: Any, offset: Any, shape: Any, strides: Any) -> _Tensor:
        if (
            type(storage) is not _Storage
            or type(shape) is not tuple
            or type(strides) is not tuple
            or not all(type(number) is int for number in (offset, *shape, *strides))
        ):
            raise ValueError("it is damaged: the description of a tensor is not one")
        return _Tensor(storage, offset, shape, strides)

    def _build(self, argument: Any) -> None:
        """Sets the attributes of an object. Those of a dictionary, the versions of the layers that
        its tensors come from, are not needed."""
        self._stack.pop()
        if type(self._stack[-1]) is not dict:
            raise ValueError("it sets attributes of something that is not a dictionary")

    def _persistent(self, argument: Any) -> None:
        """Makes a storage from a tuple: "storage", its type, its key, the device, the number of its
        elements; and in the old format, None or a part of it: the part's key, start and size."""
        identity = self._stack.pop()
        if type(identity) is not tuple or len(identity) not in (5, 6):
            raise ValueError("it is damaged: the description of a storage is not one")
        what, kind, key, _, count = identity[:5]
        dtype = _STORAGES.get(kind.name) if type(kind) is _Global else None
        part = identity[5] if len(identity) == 6 else None
        start, length = (0, count) if part is None else part[1:]
        if (
            what != "storage"
            or dtype is None
            or type(key) is not str
            or not all(type(number) is int and number >= 0 for number in (count, start, length))
            or start + length > count
        ):
            raise ValueError("it is damaged: the description of a storage is not one")
        self._stack.append(_Storage(key, dtype, length, start))


_PUSH_ARGUMENT = {
    *("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"),
    *("BINUNICODE", "SHORT_BINUNICODE", "SHORT_BINSTRING", "BINSTRING"),
}
_PUSH_CONSTANT = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_PUSH_EMPTY: Mapping[str, Callable[[], Any]] = {"EMPTY_DICT": dict, "EMPTY_LIST": list}
_INSTRUCTIONS: Mapping[str, Callable[[_Interpreter, Any], None]] = {
    "PROTO": _Interpreter._skip,
    "FRAME": _Interpreter._skip,
    "MARK": _Interpreter._mark,
    "BINPUT": _Interpreter._put,
    "LONG_BINPUT": _Interpreter._put,
    "MEMOIZE": _Interpreter._memoize,
    "BINGET": _Interpreter._get,
    "LONG_BINGET": _Interpreter._get,
    "TUPLE": _Interpreter._tuple,
    "TUPLE1": lambda machine, _: machine._tuple_of(1),
    "TUPLE2": lambda machine, _: machine._tuple_of(2),
    "TUPLE3": lambda machine, _: machine._tuple_of(3),
    "APPEND": _Interpreter._append,
    "APPENDS": _Interpreter._appends,
    "SETITEM": _Interpreter._set_item,
    "SETITEMS": _Interpreter._set_items,
    "GLOBAL": _Interpreter._global,
    "STACK_GLOBAL": _Interpreter._stack_global,
    "REDUCE": _Interpreter._reduce,
    "BUILD": _Interpreter._build,
    "BINPERSID": _Interpreter._persistent,
}
