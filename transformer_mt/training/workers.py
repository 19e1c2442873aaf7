"""Training with several processes: the parent process, which starts and watches the workers.

The parent prepares the data and starts Paddle's launcher, which starts the workers; each of them
runs worker.py. The first worker writes to the same terminal or files as the parent.
"""

import contextlib
import hashlib
import os
import pickle
import re
import shutil
import signal
import stat
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

import transformer_mt
from transformer_mt.config.schema import Config
from transformer_mt.data.prepare import PreparedData
from transformer_mt.model_directory import ModelDirectory
from transformer_mt.training.paddle_launcher import ERROR, OUTPUT, PARENT
from transformer_mt.training.trainer import Trainer
from transformer_mt.utils import signals
from transformer_mt.utils.errors import Interrupted, UserError, is_lost_connection

# The folder in the model directory through which parent and workers communicate.
WORKERS = ".workers"


def run_workers(
    make_trainer: Callable[..., Trainer],
    config: Config,
    data: PreparedData,
    directory: ModelDirectory,
    device: str,
    processes: int,
    resumed: Path | None,
) -> None:
    """Trains with several processes on this machine, and waits for them.

    Args:
        make_trainer: a function of a module, which each worker calls with the config, the data and
            its place among the processes.
        resumed: the checkpoint to resume from.

    Raises:
        UserError: a worker failed, and why.
        Interrupted: this process was asked to stop, and the workers have saved and stopped.
    """
    with _work_folder(directory) as folder:
        job = folder / "job.pickle"
        if data.dev_split is not None:
            _ = data.dev_split.text  # read once and pickled, not read by each worker
        content = pickle.dumps((make_trainer, config, data, directory.path, device, resumed))
        job.write_bytes(content)
        command = [
            *(sys.executable, "-m", "transformer_mt.training.paddle_launcher"),
            *("--nproc_per_node", str(processes)),
            *("--log_dir", f"{folder}/log"),
            *(str(Path(__file__).with_name("worker.py")), str(job)),
            hashlib.sha256(content).hexdigest(),
        ]
        # CUDA finds no GPU named "all". Paddle's launcher parses other values as lists of GPUs.
        no_gpus = {"CUDA_VISIBLE_DEVICES": "all"} if device == "cpu" else {}
        own = {
            OUTPUT: f"/proc/{os.getpid()}/fd/",
            PARENT: str(os.getpid()),
            # The workers import the same package, where another one is installed or none is.
            "PYTHONPATH": _import_path(),
        }
        launcher = None
        try:
            with signals.blocked(), open(folder / "launcher.log", "wb") as log:
                launcher = subprocess.Popen(
                    command,
                    # Paddle's launcher's own messages are shown only if it fails.
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=os.environ | no_gpus | own,
                    # Ctrl-C must not reach it directly, because this process passes it on.
                    start_new_session=True,
                )
            code = launcher.wait()
        except Interrupted as stop:
            if launcher is not None:
                launcher.send_signal(signal.SIGTERM)
                with signals.held_back():
                    launcher.wait()
            if (folder / ERROR).exists():  # saving has failed
                raise UserError(_failure(folder)) from None
            raise stop from None
        finally:
            _write_after_the_workers()
        if code != 0:
            raise UserError(_failure(folder))


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
def _work_folder(directory: ModelDirectory) -> Iterator[Path]:
    """Makes a folder for this user alone, which is deleted when the block ends."""
    folder = directory.path.resolve() / WORKERS
    clear_work_folder(directory)
    try:
        folder.mkdir(mode=0o700)
    except OSError as error:
        raise UserError(f"{folder}: can't be made: {error.strerror}") from None
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def clear_work_folder(directory: ModelDirectory) -> None:
    """Deletes the folder of the workers, if a killed run or another program has left one.

    Raises:
        UserError: it can't be deleted.
    """
    folder = directory.path / WORKERS
    try:
        if folder.is_dir() and not folder.is_symlink():
            shutil.rmtree(folder)
        else:
            folder.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"{folder}: can't be deleted: {error.strerror}. Delete it") from None


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
