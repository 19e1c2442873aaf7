"""Training with several processes.

On one machine, the parent process prepares the data and starts Paddle's launcher, which starts the
workers. Launcher and workers run this file. The launcher ends with the parent, and the workers end
with the launcher. The first worker writes to the same terminal or files as the parent. On several
machines, the user has started Paddle's launcher on each of them.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import re
import runpy
import shutil
import signal
import stat
import subprocess
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import transformer_mt
from transformer_mt.utils import signals
from transformer_mt.utils.console import say_counts
from transformer_mt.utils.errors import Interrupted, UserError, describe, is_lost_connection

if TYPE_CHECKING:  # The launcher needs none of these.
    from transformer_mt.config.schema import Config
    from transformer_mt.data.prepare import PreparedData
    from transformer_mt.training.folder import RunDirectory
    from transformer_mt.training.loop import Trainer

# Environment variables: the number of the process that starts Paddle's launcher, the number of the
# launcher, and the folder of that process's open files in /proc, to which the first worker writes.
PARENT = "TRANSFORMER_MT_PARENT"
LAUNCHER = "TRANSFORMER_MT_LAUNCHER"
OUTPUT = "TRANSFORMER_MT_OUTPUT"
# The file beside the job in which a worker writes why it failed.
ERROR = "error.txt"


def run_workers(
    config: Config,
    data: PreparedData,
    directory: RunDirectory,
    device: str,
    processes: int,
    resumed: Path | None,
) -> None:
    """Trains with several processes on this machine, and waits for them.

    Args:
        resumed: the checkpoint to resume from.

    Raises:
        UserError: a worker failed, and why.
        Interrupted: this process was asked to stop, and the workers have saved and stopped.
    """
    with _work_folder(directory) as folder:
        job = folder / "job.pickle"
        for dev in data.dev_sets.values():
            _ = dev.split.text  # read once and pickled, not read by each worker
        content = pickle.dumps((config, data, directory.path, device, resumed))
        job.write_bytes(content)
        command = [
            *(sys.executable, "-m", "transformer_mt.training.launch", "launcher"),
            *("--nproc_per_node", str(processes)),
            *("--log_dir", f"{folder}/log"),
            *(__file__, "worker", str(job), hashlib.sha256(content).hexdigest()),
        ]
        # CUDA finds no GPU named "all". Paddle's launcher parses other values as lists of GPUs.
        no_gpus = {"CUDA_VISIBLE_DEVICES": "all"} if device == "cpu" else {}
        own = {
            OUTPUT: f"/proc/{os.getpid()}/fd/",
            PARENT: str(os.getpid()),
            # The workers import the same package, where another one is installed or none is.
            "PYTHONPATH": _import_path(),
        }
        process = None
        try:
            with signals.blocked(), open(folder / "launcher.log", "wb") as log:
                process = subprocess.Popen(
                    command,
                    # Paddle's launcher's own messages are shown only if it fails.
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=os.environ | no_gpus | own,
                    # Ctrl-C must not reach it directly, because this process passes it on.
                    start_new_session=True,
                )
            code = process.wait()
        except Interrupted as stop:
            if process is not None:
                process.send_signal(signal.SIGTERM)
                with signals.held_back():
                    process.wait()
            if (folder / ERROR).exists():  # saving has failed
                raise UserError(_failure(folder)) from None
            raise stop from None
        finally:
            _write_after_the_workers()
        if code != 0:
            raise UserError(_failure(folder))


def run_on_several_machines(trainer: Trainer, directory: RunDirectory) -> None:
    """Runs the trainer of one of the processes that Paddle's launcher has started on several
    machines. The first process has started its trainer and made the directory ready.

    Raises:
        UserError: the machines do not have the same text, or do not see the same directory.
    """
    processes = trainer.processes
    if len(set(processes.gather(trainer.data.key))) > 1:
        raise UserError(
            "the machines don't have the same training text (data.root), or its alignments "
            "(guided_attention.alignments)"
        )
    saved = directory.saved_checkpoints()
    if len(set(processes.gather(saved[-1].name if saved else None))) > 1:
        raise UserError(
            f"model_dir: {directory.path}: the machines don't see the same checkpoints in it. It "
            "must be on a file system that they share"
        )
    if not processes.is_first:
        trainer.start(saved[-1] if saved else None)
    trainer.run(directory)


def _import_path() -> str:
    """Returns PYTHONPATH with the folder of this package first.

    The folder of installed packages is left out. In PYTHONPATH it would come before the standard
    library, whose modules some old packages replace.
    """
    folder = str(Path(transformer_mt.__file__).absolute().parent.parent)
    installed = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    folders = ["" if folder in installed else folder, os.environ.get("PYTHONPATH", "")]
    return os.pathsep.join(filter(None, folders))


@contextlib.contextmanager
def _work_folder(directory: RunDirectory) -> Iterator[Path]:
    """Makes a folder for this user alone, which is deleted when the block ends."""
    folder = directory.path.resolve() / directory.WORKERS
    try:
        folder.mkdir(mode=0o700)
    except OSError as error:
        raise UserError(f"{folder}: can't be made: {error.strerror}") from None
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write_after_the_workers() -> None:
    """Moves to the end of stdout and stderr, if these are files.

    The first worker has opened the same files itself, so this process would overwrite its output.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, AttributeError):  # not a file; closed
            if stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                os.lseek(stream.fileno(), 0, os.SEEK_END)


def _failure(folder: Path) -> str:
    """Returns the message of the first worker that failed, or of the launcher.

    A worker that was killed has left no message, so the ends of the logs are returned.
    """
    if (folder / ERROR).exists():
        return (folder / ERROR).read_text("utf-8")
    logs = sorted(folder.glob("log/workerlog.*"))
    if not logs:
        text = (folder / "launcher.log").read_text("utf-8", "replace").strip()
        return f"Paddle's launcher could not start the training processes:\n{text[-1000:]}"
    ends = [_end_of_log(log.read_text("utf-8", "replace")) for log in logs]
    message = (
        "a training process was killed or stopped. If nobody did that, memory ran out: lower "
        "training.device_tokens"
    )
    return "\n".join([message, *filter(None, ends)])


def _end_of_log(text: str) -> str:
    """Returns the end of a worker's output; empty if it only reports that another worker is gone.

    Messages of Paddle's C++ code about flags and sockets are left out.
    """
    if is_lost_connection(RuntimeError(text)):
        return ""
    noise = re.compile(r"[IWEF]\d{4} |FLAGS\(|=====")
    return "\n".join(line for line in text.split("\n") if line and not noise.match(line))[-500:]


def worker(job: Path, digest: str) -> int:
    """Does `work` until the launcher ends; returns the exit code."""
    signals.end_with_parent(int(os.environ[LAUNCHER]))
    try:
        with signals.raised():
            work(job, digest)
        return 0
    except Interrupted as stop:
        return stop.exit_code
    except Exception as error:
        if os.environ.get("TRANSFORMER_MT_DEBUG"):
            traceback.print_exc()
        # The parent shows the message of the worker that failed first. Workers that fail because
        # another one has ended do not write theirs.
        message = job.with_name(ERROR)
        if not is_lost_connection(error) and not message.exists():
            message.write_text(describe(error), "utf-8", "backslashreplace")
        return 1


def work(job: Path, digest: str) -> None:
    """Reads the job that `run_workers` has written, joins the other workers and trains.

    Args:
        digest: the SHA-256 of the job, so that only a file written by this run is unpickled.
    """
    from transformer_mt.training.folder import RunDirectory
    from transformer_mt.training.loop import Trainer
    from transformer_mt.training.parallel import Processes, own_device
    from transformer_mt.utils import device as devices

    content = job.read_bytes()
    if hashlib.sha256(content).hexdigest() != digest:
        raise UserError(f"{job}: this file was changed after the run wrote it. Start the run again")
    config, data, model_dir, device, resumed = pickle.loads(content)
    devices.use(own_device(device))
    processes = Processes.join()
    directory = RunDirectory(model_dir)
    if processes.is_first:
        _write_to_parent()
        directory.keep_terminal_log()
    trainer = Trainer(config, data, processes)
    trainer.start(resumed)
    trainer.run(directory)


def _write_to_parent() -> None:
    """Redirects stdout and stderr of this process to those of the parent."""
    for descriptor in (1, 2):
        try:
            output = os.open(f"{os.environ[OUTPUT]}{descriptor}", os.O_WRONLY | os.O_APPEND)
        except OSError:
            continue  # a socket can't be opened again; the output stays in the launcher's log
        os.dup2(output, descriptor)


def launcher(arguments: list[str]) -> None:
    """Runs Paddle's launcher in this process, until the parent ends."""
    signals.serve(int(os.environ[PARENT]))
    os.environ[LAUNCHER] = str(os.getpid())
    sys.argv[1:] = arguments
    runpy.run_module("paddle.distributed.launch", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    if sys.argv[1] == "worker":
        code = worker(Path(sys.argv[2]), sys.argv[3])
        # Everything is written. Python and Paddle would take longer to clean up than the other
        # processes wait (see `Processes.leave`).
        say_counts()
        os._exit(code)
    launcher(sys.argv[2:])
