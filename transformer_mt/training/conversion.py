"""Conversion of model directories: from the previous format, and into Paddle's own files.

In the previous format (format_version 1), weights and optimiser state were pickles, and only
checkpoints and exports had checksums.
"""

import io
import shutil
from pathlib import Path

from transformer_mt.model_directory import (
    CONFIG,
    FORMAT_VERSION,
    PICKLE_FORMAT_VERSION,
    SUBWORDS,
    VERSION,
    ModelDirectory,
    require_safe_outputs,
)
from transformer_mt.training.folder import RunDirectory
from transformer_mt.utils import pickles, tensors
from transformer_mt.utils.console import say, warn
from transformer_mt.utils.errors import UsageError, UserError
from transformer_mt.utils.files import write_atomically
from transformer_mt.utils.folders import (
    CHECKSUMS,
    is_sealed,
    published,
    sealed,
    verify,
    write_checksums,
)
from transformer_mt.weights import OPTIMIZER, WEIGHTS, read_weights

# The pickles in a checkpoint of the previous format, and the files that replace them.
PICKLES = {"model.pdparams": WEIGHTS, "optimizer.pdopt": OPTIMIZER}


def convert(model_dir: str) -> None:
    """Converts a model directory, or an export, from the previous format to the current one.

    Weights, optimiser state and training state stay the same to the last bit. Each checkpoint is
    replaced at one moment, and the version is written last. If a conversion is interrupted, running
    it again completes it.

    Raises:
        UsageError: it is not a model directory, or has another version.
        UserError: a file is damaged, holds something other than arrays, or can't be written.
    """
    directory = RunDirectory(model_dir)
    if not directory.holds_run:
        raise UsageError(f"{directory.path} is not a model directory, nor an export")
    if directory.version == str(FORMAT_VERSION):
        say(f"{directory.path} has format version {FORMAT_VERSION} already")
        return
    if directory.version != str(PICKLE_FORMAT_VERSION):
        raise UsageError(
            f"{directory.path}: only format version {PICKLE_FORMAT_VERSION} can be converted"
        )
    if not directory.checkpoints.exists():
        if problem := verify(directory.path):
            raise UserError(f"{directory.path} is damaged ({problem}). Export the model again")
        _convert_folder(directory.path)
    else:
        directory.lock()
        try:
            _convert_run(directory)
        finally:
            directory.release()
    say(f"{directory.path} has format version {FORMAT_VERSION} now")


def write_pdparams(model_dir: str, checkpoint: str | None, output: Path | None) -> Path:
    """Writes the weights of a checkpoint into a file of Paddle's own format, for other tools.

    Args:
        checkpoint: as in `ModelDirectory.checkpoint`.
        output: the file; None: MODEL_DIR/export/CHECKPOINT.pdparams.

    Returns: the file.

    Raises:
        UserError: the checkpoint is damaged, or the file can't be written.
        UsageError: the file belongs to a model.
    """
    import paddle

    directory = ModelDirectory(model_dir)
    directory.load_config()
    chosen = directory.checkpoint(checkpoint)
    weights = {name: paddle.to_tensor(array) for name, array in read_weights(chosen).items()}
    for name, weight in weights.items():
        weight.name = name  # Paddle saves it; by default it is a running number of the process
    require_safe_outputs({"--output": output}, {})
    if output is None:
        directory.own("export").mkdir(exist_ok=True)
        output = directory.own(f"export/{chosen.name}.pdparams")
    content = io.BytesIO()
    paddle.save(weights, content)
    write_atomically(output, content.getvalue())
    return output


def _convert_run(directory: RunDirectory) -> None:
    folder = directory.path
    directory.require_inside()
    best = (folder / "best").read_bytes().strip() if (folder / "best").is_file() else None
    for path in directory.named_checkpoints():
        _convert_checkpoint(path)
        if best == path.name.encode():
            directory.set_best(path)
    for path in sorted((folder / "export").glob("[!.]*")):
        if ModelDirectory(path).version != str(PICKLE_FORMAT_VERSION):
            continue
        if problem := verify(path):
            warn(f"{path} is damaged ({problem}), and stays as it is. Export the model again")
        else:
            _convert_folder(path)
    if directory.held_out.is_dir():
        write_checksums(directory.held_out)
    write_checksums(folder, SUBWORDS)
    content = (folder / CONFIG).read_bytes()
    if not is_sealed(content):
        write_atomically(folder / CONFIG, sealed(content.decode("utf-8")))
    write_atomically(folder / VERSION, f"{FORMAT_VERSION}\n")


def _convert_checkpoint(path: Path) -> None:
    if not (path / "model.pdparams").is_file() and (path / WEIGHTS).is_file():
        return  # an earlier conversion, which was interrupted, got this far
    if problem := verify(path):
        aside = path.with_name(f"{path.name}.damaged")
        shutil.rmtree(aside, ignore_errors=True)
        path.rename(aside)
        warn(f"{path} is damaged ({problem}); it was not converted, but renamed to {aside.name}")
        return
    _convert_folder(path)


def _convert_folder(path: Path) -> None:
    """Replaces a checkpoint or an export by its converted form, at one moment."""
    try:
        with published(path) as folder:
            for file in path.iterdir():
                new = folder / file.name
                if file.name in PICKLES:
                    tensors.write(folder / PICKLES[file.name], pickles.read(file))
                elif file.name == CONFIG:
                    new.write_text(sealed(file.read_text(encoding="utf-8")), encoding="utf-8")
                elif file.name == VERSION:
                    new.write_text(f"{FORMAT_VERSION}\n")
                elif file.name != CHECKSUMS:
                    shutil.copyfile(file, new)
    except OSError as error:
        raise UserError(
            f"{path}: can't be converted: {error.strerror or error}. Nothing in it was changed"
        ) from None
    say(f"{path}: converted")
