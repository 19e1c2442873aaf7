"""Python in processes that are forked from one that has imported everything.

A process that imports Paddle and PaddleNLP spends five seconds of a core before its work begins,
and the tests start hundreds of processes. A forked process has its own pid, signals, streams,
working directory, environment and exit code. It differs from a fresh process before the first line
of the program, which it finds imported, and after the last one, where nothing is freed. With
`--attack`, and in tests marked `fresh`, the tests start fresh processes only.

The file holds both sides: the tests use `ForkedProcess`, and `python -m tests.forked DESCRIPTOR` is
the process that forks.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import inspect
import io
import json
import logging
import os
import pkgutil
import resource
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent
# From Linux' prctl.h.
PR_SET_CHILD_SUBREAPER = 36
# What the program imports inside of functions.
LAZY = ("paddlenlp.datasets", "paddle.inference", "ctranslate2", "sacrebleu")


class ForkedProcess(subprocess.Popen):
    """A forked Python, which is a child of this process like any other.

    It takes a command `[python, ...]` with `-m MODULE`, `-c CODE` or a file, and the options of
    subprocess.Popen, of which only the streams, their encoding, `cwd`, `env` and
    `start_new_session` have an effect; and `file_size`, the number of bytes beyond which no file
    may grow.
    """

    _server: socket.socket | None = None

    def __init__(self, arguments, file_size: int | None = None, **options) -> None:
        self._request = {
            "arguments": [str(argument) for argument in arguments[1:]],
            "cwd": os.path.realpath(options.get("cwd") or os.getcwd()),
            "env": dict(options.get("env") or os.environ),
            "new_session": options.get("start_new_session", False),
            "file_size": file_size,
        }
        super().__init__(arguments, **options)

    def _execute_child(self, *values) -> None:
        """Is called by Popen once the pipes are made, and sets `pid`."""
        names = list(inspect.signature(subprocess.Popen._execute_child).parameters)[1:]
        given = dict(zip(names, values, strict=True))
        streams = [given[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        # -1 stands for the stream of this process.
        streams = [number if stream == -1 else stream for number, stream in enumerate(streams)]
        server = self._connected()
        content = json.dumps(self._request).encode()
        # The new process loses its parent at once and becomes a child of this process. At all other
        # times, this process does not take processes without a parent.
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        try:
            socket.send_fds(server, [len(content).to_bytes(4, "big")], streams)
            server.sendall(content)
            answer = server.recv(4)
        finally:
            prctl(PR_SET_CHILD_SUBREAPER, 0)
        if len(answer) < 4:
            raise RuntimeError("the process that forks has ended")
        self.pid = int.from_bytes(answer, "big")
        self._child_created = True
        pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(given[name] for name in pipes))

    @classmethod
    def _connected(cls) -> socket.socket:
        if cls._server is None:
            cls._server, its = socket.socketpair()
            server = subprocess.Popen(
                [sys.executable, "-m", "tests.forked", str(its.fileno())],
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": str(ROOT), "LC_ALL": "C.UTF-8"},
                pass_fds=[its.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
            its.close()
            atexit.register(server.wait)
            atexit.register(cls._server.close)
        return cls._server


def prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


# ---- The process that forks ----


def import_all() -> None:
    """Imports all modules of the program and what they use. What the imports change besides is
    undone here, as transformer_mt.utils.signals does it in a fresh process."""
    import transformer_mt  # sets flags that Paddle reads when it is imported

    level = logging.getLogger().level
    for module in pkgutil.walk_packages(transformer_mt.__path__, "transformer_mt."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for name in LAZY:
        importlib.import_module(name)
    logging.getLogger().setLevel(level)
    sys.modules["paddle"].disable_signal_handler()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    tempfile.tempdir = None
    gc.freeze()  # A collection in a forked process would copy all of the memory.


def serve(requests: socket.socket) -> dict | None:
    """Forks a process per request. Returns the request in that process, and None in this one when
    there are no more requests."""
    while True:
        size, streams, _, _ = socket.recv_fds(requests, 4, 3)
        if not size:
            return None
        content = b""
        while len(content) < int.from_bytes(size, "big"):
            content += requests.recv(1 << 16)
        reader, writer = os.pipe()
        middle = os.fork()
        if middle == 0:
            middle = os.getpid()
            child = os.fork()
            if child:
                os.write(writer, child.to_bytes(4, "big"))
                os._exit(0)
            while os.getppid() == middle:
                time.sleep(0.0005)
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
            for number in (reader, writer, *streams):
                os.close(number)
            # The text stream of the server remembers whether its own stdout could be sought.
            through = sys.stdout.write_through  # PYTHONUNBUFFERED is set
            binary = open(1, "wb", 0 if through else -1, closefd=False)  # noqa: SIM115
            sys.stdout = io.TextIOWrapper(binary, "utf-8", write_through=through)
            return json.loads(content)
        os.waitpid(middle, 0)
        requests.sendall(os.read(reader, 4))
        for number in (reader, writer, *streams):
            os.close(number)


def run(request: dict) -> int:
    """Does what Python does with its arguments; returns the exit code."""
    if request["new_session"]:
        os.setsid()
    if request["file_size"] is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["file_size"],) * 2)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    kind, *rest = request["arguments"]
    try:
        if kind == "-m":
            sys.path[0], sys.argv = request["cwd"], rest
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        elif kind == "-c":
            sys.path[0], sys.argv = "", ["-c", *rest[1:]]
            execute(rest[0], "<string>")
        else:
            sys.path[0], sys.argv = os.path.dirname(kind), [kind, *rest]
            execute(Path(kind).read_text("utf-8"), kind, __file__=kind)
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            return stop.code or 0
        print(stop.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def execute(code: str, name: str, **globals: str) -> None:
    # What processes of multiprocessing send back names the main module "__mp_main__".
    main = sys.modules["__main__"] = sys.modules["__mp_main__"] = ModuleType("__main__")
    vars(main).update(globals)
    exec(compile(code, name, "exec"), vars(main))


def main() -> None:
    with socket.socket(fileno=int(sys.argv[1])) as requests:
        import_all()
        request = serve(requests)
    if request is not None:
        code = run(request)
        # Ends as Python does, but frees nothing, which would take a second.
        threading._shutdown()
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
