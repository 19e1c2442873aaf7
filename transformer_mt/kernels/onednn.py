"""Operations by oneDNN, a library that comes inside Paddle's package for x86.

Paddle computes a product on a CPU with an old MKL, and never calls oneDNN outside of graphs. On
processors with AVX-512, oneDNN's float32 product is more than twice as fast, and its bfloat16
product four times. With AVX2, its softmax and its layer norm still are faster. Small products are
left to MKL.

All arrays are float32 NumPy arrays, unless said otherwise. Their memory is read and written in
place, so they may be views of tensors. TRANSFORMER_MT_ONEDNN=0 in the environment switches the
library off, which tells whether a problem comes from it.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable, Iterable, Sequence
from ctypes import byref, c_char, c_float, c_int, c_int64, c_size_t, c_void_p
from pathlib import Path
from typing import Any

import numpy as np
import paddle

from transformer_mt.kernels import mkl
from transformer_mt.kernels.mkl import Call, Mkl, pointer, row_length
from transformer_mt.utils.console import say
from transformer_mt.utils.device import processor_flags

SWITCH, OFF = "TRANSFORMER_MT_ONEDNN", "0"
FILE = "libdnnl.so.3"
# The numbers below are those of this major version.
MAJOR = 3
# Flags of /proc/cpuinfo that tell that the processor multiplies in bfloat16.
BFLOAT16_FLAGS = {"avx512_bf16", "amx_bf16"}

# From oneDNN's dnnl_types.h: kinds of data, of computations, of algorithms, and of arguments.
_FLOAT32, _BFLOAT16 = 3, 2
_CPU, _IN_ORDER = 1, 1
_TRAINING, _INFERENCE, _BACKWARD = 64, 96, 128
_SOFTMAX = 0x30000
# The activations of `layers.ACTIVATIONS`, as oneDNN numbers them.
_ELEMENTWISE = {"relu": 0x20, "swish": 0x2C, "gelu": 0x31}
_SCALE_AND_SHIFT = 6
_SOURCE, _RESULT, _WEIGHTS, _BIAS = 1, 17, 33, 41
_MEAN, _VARIANCE, _SCALE, _SHIFT = 49, 50, 51, 52
_SOURCE_GRADIENT, _RESULT_GRADIENT, _SCALE_GRADIENT, _SHIFT_GRADIENT = 129, 145, 255, 256
_OUT_OF_MEMORY = 1

FLOAT32_BYTES = 4
# The number of shapes for which an operation is kept ready. A batch has some thirty.
KEPT = 1024

# The shape, the strides in bytes, and the bytes of an element, of an array.
Layout = tuple[tuple[int, ...], tuple[int, ...], int]
# The arrays of an operation with the numbers of the arguments that they are.
Arrays = list[tuple[int, np.ndarray]]
Descriptions = dict[int, c_void_p]


class Unavailable(Exception):
    """The library cannot be used; the message says why."""


def library() -> Library | None:
    """Returns the library; None if it cannot be used. A message tells that once, unless the library
    is switched off."""
    return _found()[0]


def problem() -> str:
    """Returns why the library cannot be used; "" if it can."""
    return _found()[1]


@functools.cache
def _found() -> tuple[Library | None, str]:
    try:
        return Library(), ""
    except Unavailable as error:
        if os.environ.get(SWITCH) != OFF:
            say(f"oneDNN is not used, so that a CPU computes more slowly: {error}")
        return None, str(error)


def _check(status: int, *_: object) -> int:
    # Raises what a status of the library means, if it is an error.
    if status == _OUT_OF_MEMORY:
        raise MemoryError
    if status:
        raise RuntimeError(f"oneDNN failed with status {status}")
    return status


class _Element(ctypes.Structure):
    # dnnl_exec_arg_t
    _fields_ = (("number", c_int), ("memory", c_void_p))


# Making a type of arrays takes longer than making an array.
_elements_type = functools.cache(lambda count: _Element * count)


class _Version(ctypes.Structure):
    # The first members of dnnl_version_t
    _fields_ = (("major", c_int), ("minor", c_int), ("patch", c_int))


class Library:
    """The library, which has been found to compute correctly.

    Attributes:
        mkl: for what oneDNN does more slowly. Without it, the library is not used either.
        version: such as "3.6.2".
        has_bfloat16: whether the processor multiplies in bfloat16.

    Raises:
        Unavailable: it is switched off, it is not there, it is another version, or it computes
            wrong results.
    """

    def __init__(self) -> None:
        if os.environ.get(SWITCH) == OFF:
            raise Unavailable(f"{SWITCH} is {OFF}")
        # Paddle has loaded the OpenMP library that this one then uses, too.
        folder = Path(paddle.__file__).parent / "libs"
        try:
            self.mkl = Mkl(folder)
            self.c = ctypes.CDLL(str(folder / FILE))
            self.c.dnnl_version.restype = ctypes.POINTER(_Version)
            found = self.c.dnnl_version().contents
            self._sgemm, self.execute = self.c.dnnl_sgemm, self.c.dnnl_primitive_execute
        except (OSError, AttributeError):
            names = f"{FILE} or no usable {mkl.FILE}"
            raise Unavailable(f"this package of Paddle has no usable {names}") from None
        self.version = f"{found.major}.{found.minor}.{found.patch}"
        if found.major != MAJOR:
            raise Unavailable(f"its version is {self.version}, not {MAJOR}")
        size = c_int64
        # It is not in the documentation of the library.
        self._bfloat16_gemm = getattr(self.c, "dnnl_gemm_bf16bf16f32", None)
        for gemm in filter(None, (self._sgemm, self._bfloat16_gemm)):
            gemm.argtypes = [
                *(c_char, c_char, size, size, size),
                *(c_float, c_void_p, size, c_void_p, size, c_float, c_void_p, size),
            ]
        self.execute.argtypes = [c_void_p, c_void_p, c_int, c_void_p]
        self.c.dnnl_memory_set_data_handle.argtypes = [c_void_p, c_void_p]
        for function in filter(None, (self._sgemm, self._bfloat16_gemm, self.execute)):
            function.errcheck = _check
        self.has_bfloat16 = bool(self._bfloat16_gemm) and bool(BFLOAT16_FLAGS & processor_flags())
        self.engine = self.made("dnnl_engine_create", _CPU, c_size_t(0))
        try:
            self._test()
        except (RuntimeError, AttributeError, AssertionError) as error:
            raise Unavailable(f"its test failed ({error})") from None

    def made(self, function: str, *arguments: Any) -> c_void_p:
        """Calls one of the functions that write what they make to their first argument."""
        result = c_void_p()
        _check(getattr(self.c, function)(byref(result), *arguments))
        return result

    def call(self, function: str, *arguments: Any) -> None:
        """Calls a function that returns a status."""
        _check(getattr(self.c, function)(*arguments))

    def descriptor(self, kind: str, *arguments: Any) -> c_void_p:
        """Makes a descriptor of a kind of primitives."""
        return self.made(f"dnnl_{kind}_primitive_desc_create", self.engine, *arguments)

    def description(self, layout: Layout) -> c_void_p:
        """Makes a description of arrays with this layout."""
        shape, strides, size = layout
        dims = c_int64 * len(shape)
        steps = (stride // size for stride in strides)
        kind = _FLOAT32 if size == FLOAT32_BYTES else _BFLOAT16
        return self.made(
            "dnnl_memory_desc_create_with_strides", len(shape), dims(*shape), kind, dims(*steps)
        )

    def product_call(
        self, a: np.ndarray, b: np.ndarray, out: np.ndarray, add: bool = False
    ) -> Call:
        """Returns the call that computes out = a @ b, or with `add`: out += a @ b.

        Args: `a` (m, k), `b` (k, n) and `out` (m, n). The rows of `out` must be contiguous, and
            the rows or the columns of `a` and `b`. If all are uint16, they are bits of bfloat16;
            `out` is float32 then, too.
        """
        gemm = self._sgemm if a.dtype == np.float32 else self._bfloat16_gemm
        (m, k), n = a.shape, b.shape[1]
        transposed_a, rows_a = row_length(a)
        transposed_b, rows_b = row_length(b)
        _, rows_out = row_length(out)
        return gemm, (
            *(transposed_a, transposed_b, m, n, k, 1.0, pointer(a), rows_a, pointer(b), rows_b),
            *(float(add), pointer(out), rows_out),
        )

    def product(self, a: np.ndarray, b: np.ndarray, out: np.ndarray, add: bool = False) -> None:
        """Computes what `product_call` describes."""
        function, arguments = self.product_call(a, b, out, add)
        function(*arguments)

    def _test(self) -> None:
        # Compares each operation with NumPy's float64. Rounding makes a difference below 1e-6.
        random = np.random.default_rng(1)

        def draw(*shape: int) -> np.ndarray:
            return random.standard_normal(shape).astype(np.float32)

        def require_close(name: str, found: np.ndarray, expected: np.ndarray) -> None:
            difference = np.abs(found - expected).max()
            assert difference < 1e-4, f"{name} differs by {difference:.1g}"

        a, b, out = draw(7, 12), draw(12, 9), np.ones((7, 9), np.float32)
        self.product(a, b, out, add=True)
        require_close("a product", out, 1 + a.astype(float) @ b)
        operations = Operations(self)
        a, b, weights = draw(2, 3, 5, 4), draw(2, 3, 6, 4), np.empty((2, 3, 5, 6), np.float32)
        operations.products(a, b.swapaxes(2, 3), weights)
        scores = a.astype(float) @ b.swapaxes(2, 3)
        require_close("several products", weights, scores)
        exponentials = np.empty_like(weights)
        self.mkl.exp(weights, exponentials)
        require_close("the exponential", exponentials / np.exp(scores), np.ones(weights.shape))
        operations.softmax(weights, weights)
        expected = np.exp(scores - scores.max(axis=-1, keepdims=True))
        expected /= expected.sum(axis=-1, keepdims=True)
        require_close("the softmax", weights, expected)
        if self.has_bfloat16:
            a, b, out = draw(7, 12), draw(9, 12), np.empty((7, 9), np.float32)
            bits_a, bits_b = operations.round(a), operations.round(b)
            self.product(bits_a, bits_b.T, out)
            a, b = ((bits.astype(np.uint32) << 16).view(np.float32) for bits in (bits_a, bits_b))
            require_close("a product of bfloat16", out, a.astype(float) @ b.T)
        x, out, scale, shift = draw(5, 8), draw(5, 8), draw(8), draw(8)
        operations.layer_norm(x, scale, shift, 1e-5, out)
        centred = x - x.mean(axis=1, keepdims=True, dtype=float)
        expected = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-5)
        require_close("the layer norm", out, expected * scale + shift)


class Operations:
    """The operations for arrays of any shape.

    What the library prepares for a shape is kept, because preparing takes longer than many of the
    operations. Only the thread that made an object of this class may use it, because the library
    keeps working memory for each thread.
    """

    def __init__(self, library: Library) -> None:
        self.library = library
        self._stream = library.made("dnnl_stream_create", library.engine, _IN_ORDER)
        self._prepared = functools.lru_cache(KEPT)(self._prepare)

    def __del__(self) -> None:
        self.library.c.dnnl_stream_destroy(self._stream)

    def products(self, a: np.ndarray, b: np.ndarray, out: np.ndarray) -> None:
        """Computes what `Mkl.products_call` describes."""
        (function, arguments), _kept = self.library.mkl.products_call(a, b, out)
        function(*arguments)

    def softmax(self, x: np.ndarray, out: np.ndarray) -> None:
        """Computes the softmax of `x` (..., n) over the last dimension; `out` may be `x`."""
        self._do(_prepare_softmax, [(_SOURCE, x), (_RESULT, out)], x.ndim - 1)

    def layer_norm(
        self,
        x: np.ndarray,
        scale: np.ndarray,
        shift: np.ndarray,
        epsilon: float,
        out: np.ndarray,
        statistics: np.ndarray | None = None,
    ) -> None:
        """Computes the layer norm of `x` (rows, n); `out` has its shape and may be `x`.

        `scale` and `shift` are (n,). The mean and the variance of each row are written to
        `statistics` (2, rows).
        """
        if statistics is None:
            statistics = np.empty((2, len(x)), np.float32)
        arrays = [(_SOURCE, x), (_RESULT, out), (_MEAN, statistics[0]), (_VARIANCE, statistics[1])]
        self._do(_prepare_layer_norm, [*arrays, (_SCALE, scale), (_SHIFT, shift)], epsilon)

    def layer_norm_gradient(
        self,
        x: np.ndarray,
        scale: np.ndarray,
        shift: np.ndarray,
        epsilon: float,
        statistics: np.ndarray,
        gradient: np.ndarray,
        gradients: Sequence[np.ndarray],
    ) -> None:
        """Computes the gradients of `x`, `scale` and `shift` from the `gradient` of the result of
        `layer_norm`, which has the shape of `x`."""
        of_x, of_scale, of_shift = gradients
        arrays = [
            *((_SOURCE, x), (_RESULT_GRADIENT, gradient), (_SOURCE_GRADIENT, of_x)),
            *((_MEAN, statistics[0]), (_VARIANCE, statistics[1]), (_SCALE, scale), (_SHIFT, shift)),
            *((_SCALE_GRADIENT, of_scale), (_SHIFT_GRADIENT, of_shift)),
        ]
        self._do(_prepare_layer_norm_gradient, arrays, epsilon)

    def round(self, x: np.ndarray) -> np.ndarray:
        """Returns the bits of `x` in bfloat16, rounded to nearest: uint16, same shape. `x` must be
        contiguous."""
        out = np.empty(x.shape, np.uint16)
        self._do(_prepare_rounding, [(_SOURCE, x.reshape(-1)), (_RESULT, out.reshape(-1))])
        return out

    def _do(self, prepare: Callable, arrays: Arrays, *settings: Any) -> None:
        layouts = tuple((number, x.shape, x.strides, x.itemsize) for number, x in arrays)
        self._run(self._prepared(prepare, layouts, *settings), [x for _, x in arrays])

    def _prepare(self, prepare: Callable, layouts: tuple, *settings: Any) -> _Primitive:
        library = self.library
        descriptions = {number: library.description(layout) for number, *layout in layouts}
        descriptor = prepare(library, descriptions, *settings)
        primitive = library.made("dnnl_primitive_create", descriptor)
        library.call("dnnl_primitive_desc_destroy", descriptor)
        return _Primitive(library, self._stream, primitive, descriptions)

    def _run(self, primitive: _Primitive, arrays: list[np.ndarray]) -> None:
        primitive.run(arrays)


class Recorder(Operations):
    """Operations that compute nothing, but become calls for the same arrays, time and again.

    Args:
        has_fixed_rows: whether the calls always compute all rows. They are faster then.
    """

    def __init__(self, library: Library, has_fixed_rows: bool) -> None:
        super().__init__(library)
        self._has_fixed_rows = has_fixed_rows
        self._calls: list[Call] = []
        self._affine: list[int] = []  # the places of products among the calls
        self._batches: list[tuple[np.ndarray, int, int]] = []  # numbers of MKL; matrices and rows
        self._growing: list[tuple[np.ndarray, int]] = []  # numbers of MKL, and a place among them
        self._rows = 0
        self._kept: list[object] = []

    def record(self, function: Callable, *arguments: object) -> None:
        """Records another call."""
        self._calls.append((function, arguments))

    def products(
        self, a: np.ndarray, b: np.ndarray, out: np.ndarray, growing: int | None = None
    ) -> None:
        """As `Operations.products`, for the first matrices only (see `calls_of`).

        Args:
            a: (sentences, ..., m, k), of which each sentence has m rows.
            growing: COLUMNS or INNER, whose number is that of the keys in `calls_of`.
        """
        call, (numbers, matrices) = self.library.mkl.products_call(a, b, out)
        self._calls.append(call)
        if not self._has_fixed_rows:
            self._batches.append((numbers, int(numbers[mkl.COUNT]), len(a) * a.shape[-2]))
        if growing is not None:
            self._growing.append((numbers, growing))
        self._kept.append((numbers, matrices, a, b, out))

    def affine(
        self,
        x: np.ndarray,
        weight: np.ndarray,
        bias: np.ndarray,
        out: np.ndarray,
        add: bool = False,
        activation: str | None = None,
    ) -> None:
        """Computes out = x @ weight + bias for the first rows only (see `calls_of`).

        Args:
            x: (rows, in), `weight` (in, out), `bias` (out,) and `out` (rows, out).
            add: whether the result is added to `out`.
            activation: one of `layers.ACTIVATIONS`, which is applied to the result.
        """
        if self._has_fixed_rows:
            arrays = [(_SOURCE, x), (_WEIGHTS, weight), (_BIAS, bias[np.newaxis]), (_RESULT, out)]
            self._do(_prepare_affine, arrays, add, activation)
            return
        self.record(np.add, out, bias, out) if add else self.record(np.copyto, out, bias)
        self._affine.append(len(self._calls))
        self._calls.append(self.library.product_call(x, weight, out, add=True))
        self._kept.append((x, weight, out))
        if activation == "relu":
            self.record(np.maximum, out, np.float32(0), out)
        elif activation is not None:
            self._do(_prepare_activation, [(_SOURCE, out), (_RESULT, out)], activation)

    def calls_of(self, rows: int, keys: int = 0) -> list[Call]:
        """Returns the calls in their order, where products compute only this number of rows, and
        growing ones only this number of keys. Other operations compute all of theirs, because they
        would have to be prepared again."""
        for numbers, place in self._growing:
            numbers[place] = keys
        if rows != self._rows:
            self._rows = rows
            for numbers, matrices, all_rows in self._batches:
                numbers[mkl.COUNT] = matrices * rows // all_rows
            for place in self._affine:
                function, arguments = self._calls[place]
                # What precedes the number of rows tells which matrices are transposed.
                self._calls[place] = function, (*arguments[:2], rows, *arguments[3:])
        return self._calls

    def _run(self, primitive: _Primitive, arrays: list[np.ndarray]) -> None:
        call, arguments = primitive.call(arrays)
        self._calls.append(call)
        self._kept.append((arguments, arrays))


class _Primitive:
    """What the library has prepared for arrays with certain layouts."""

    def __init__(
        self, library: Library, stream: c_void_p, primitive: c_void_p, descriptions: Descriptions
    ) -> None:
        self._library = library
        self._stream = stream
        self._primitive = primitive
        self._descriptions = descriptions
        self._arguments = _Arguments(library, descriptions, [0] * len(descriptions))

    def run(self, arrays: list[np.ndarray]) -> None:
        """Computes with these arrays."""
        self._arguments.set(arrays)
        function, arguments = self._with(self._arguments)
        function(*arguments)

    def call(self, arrays: list[np.ndarray]) -> tuple[Call, object]:
        """Returns a call for these arrays, and an object that must live as long as the call."""
        arguments = _Arguments(self._library, self._descriptions, map(pointer, arrays))
        return self._with(arguments), (self, arguments)

    def _with(self, arguments: _Arguments) -> Call:
        count, elements = len(arguments.memories), ctypes.addressof(arguments.elements)
        return self._library.execute, (self._primitive, self._stream, count, elements)

    def __del__(self) -> None:
        for description in self._descriptions.values():
            self._library.c.dnnl_memory_desc_destroy(description)
        self._library.c.dnnl_primitive_destroy(self._primitive)


class _Arguments:
    """The arguments of a primitive: its arrays, by their addresses."""

    def __init__(
        self, library: Library, descriptions: Descriptions, pointers: Iterable[int]
    ) -> None:
        self._c = library.c
        self.memories = [
            library.made("dnnl_memory_create", description, library.engine, c_void_p(address))
            for description, address in zip(descriptions.values(), pointers, strict=True)
        ]
        elements = (_Element(*pair) for pair in zip(descriptions, self.memories, strict=True))
        self.elements = _elements_type(len(self.memories))(*elements)

    def set(self, arrays: list[np.ndarray]) -> None:
        """Replaces the arrays."""
        for memory, array in zip(self.memories, arrays, strict=True):
            self._c.dnnl_memory_set_data_handle(memory, pointer(array))

    def __del__(self) -> None:
        for memory in self.memories:
            self._c.dnnl_memory_destroy(memory)


# ------------------------------------------------------- what the library is asked to prepare
# Each function returns a primitive descriptor for arrays with these descriptions.


def _prepare_affine(
    library: Library, of: Descriptions, add: bool, activation: str | None
) -> c_void_p:
    attributes = library.made("dnnl_primitive_attr_create")
    after = library.made("dnnl_post_ops_create")
    if add:
        library.call("dnnl_post_ops_append_sum", after, c_float(1.0), 0, 0)
    if activation is not None:
        arguments = _ELEMENTWISE[activation], c_float(_alpha(activation)), c_float(0.0)
        library.call("dnnl_post_ops_append_eltwise", after, *arguments)
    library.call("dnnl_primitive_attr_set_post_ops", attributes, after)
    matrices = of[_SOURCE], of[_WEIGHTS], of[_BIAS], of[_RESULT]
    result = library.descriptor("matmul", *matrices, attributes)
    library.call("dnnl_post_ops_destroy", after)
    library.call("dnnl_primitive_attr_destroy", attributes)
    return result


def _prepare_activation(library: Library, of: Descriptions, activation: str) -> c_void_p:
    numbers = c_float(_alpha(activation)), c_float(0.0)
    arguments = _INFERENCE, _ELEMENTWISE[activation], of[_SOURCE], of[_RESULT], *numbers, None
    return library.descriptor("eltwise_forward", *arguments)


def _alpha(activation: str) -> float:
    # The slope of a ReLU below 0, and the factor in the sigmoid of swish.
    return 1.0 if activation == "swish" else 0.0


def _prepare_softmax(library: Library, of: Descriptions, axis: int) -> c_void_p:
    arguments = _INFERENCE, _SOFTMAX, of[_SOURCE], of[_RESULT], axis, None
    return library.descriptor("softmax_forward", *arguments)


def _prepare_layer_norm(library: Library, of: Descriptions, epsilon: float) -> c_void_p:
    x, y, statistics = of[_SOURCE], of[_RESULT], of[_MEAN]
    arguments = _TRAINING, x, y, statistics, c_float(epsilon), _SCALE_AND_SHIFT, None
    return library.descriptor("layer_normalization_forward", *arguments)


def _prepare_layer_norm_gradient(library: Library, of: Descriptions, epsilon: float) -> c_void_p:
    x, statistics, rest = of[_SOURCE], of[_MEAN], (c_float(epsilon), _SCALE_AND_SHIFT)
    kind = "layer_normalization"
    hint = library.descriptor(f"{kind}_forward", _TRAINING, x, x, statistics, *rest, None)
    of_x, of_result = of[_SOURCE_GRADIENT], of[_RESULT_GRADIENT]
    arguments = _BACKWARD, of_x, of_result, x, statistics, *rest, hint, None
    result = library.descriptor(f"{kind}_backward", *arguments)
    library.call("dnnl_primitive_desc_destroy", hint)
    return result


def _prepare_rounding(library: Library, of: Descriptions) -> c_void_p:
    arguments = of[_SOURCE], library.engine, of[_RESULT], library.engine, None
    return library.made("dnnl_reorder_primitive_desc_create", *arguments)
