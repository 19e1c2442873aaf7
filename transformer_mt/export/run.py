"""The verb `export`."""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from transformer_mt import config_file
from transformer_mt.assembly import build_model, load_weights
from transformer_mt.config import Config
from transformer_mt.console import quoted, say
from transformer_mt.data.subword import Subwords
from transformer_mt.errors import UsageError, UserError
from transformer_mt.files import flush_to_disk, write_checksums
from transformer_mt.model.transformer import Transformer
from transformer_mt.model_directory import FORMAT_VERSION, ModelDirectory

# The folder of each format under MODEL_DIR/export.
FOLDERS = {"ctranslate2": "ctranslate2", "paddle": "paddle_inference"}
# Of Linux' fcntl.h and fs.h.
AT_FDCWD = -100
RENAME_EXCHANGE = 2


def export(
    model_dir: str,
    format: str,
    output: Path | None = None,
    checkpoint: str | None = None,
    quantization: str | None = None,
) -> None:
    """Writes a model in another format, into a folder that can be moved anywhere.

    Beside the model it holds config, subword model, format version and checksums, as a model
    directory does.

    Args:
        format: of FOLDERS.
        output: the folder; None is one of MODEL_DIR/export. An earlier export there is replaced,
            when the new one is whole.
        checkpoint: as in `ModelDirectory.checkpoint`.
        quantization: as in `ctranslate2.write_model`; of no other format.

    Raises:
        UsageError: the folder holds something else than an export, or the arguments don't fit.
        UserError: the model is damaged, the format has no place for it, or it can't be written.
    """
    if quantization and format != "ctranslate2":
        raise UsageError(f"--quantization {quantization}: only --format ctranslate2 has it")
    directory = ModelDirectory(model_dir)
    config = directory.load_config()
    if config.model.non_autoregressive is not None:
        raise UserError(
            f"{directory.path} is non-autoregressive (model.non_autoregressive), and can't be "
            "exported: what is exported predicts one word after another, and it all at once"
        )
    chosen = directory.checkpoint(checkpoint)
    subwords = directory.load_subwords()
    if output is None:
        name = FOLDERS[format] + (f"_{quantization}" if quantization else "")
        output = directory.path / "export" / name
    _check_replaceable(output)
    model = build_model(config.model, subwords)
    load_weights(chosen, model)
    with _replacing(output) as folder:
        _write_model(folder, format, model, config, subwords, quantization)
        subwords.save(folder)
        (folder / "config.yaml").write_text(config_file.dump(config), encoding="utf-8")
        (folder / "format_version").write_text(f"{FORMAT_VERSION}\n")
        write_checksums(folder)
    print(output)
    say(f"{chosen.name}, to translate with: python -m transformer_mt translate {quoted(output)}")


def _write_model(
    folder: Path,
    format: str,
    model: Transformer,
    config: Config,
    subwords: Subwords,
    quantization: str | None,
) -> None:
    """Each format's own part: checks all of the model, then writes it."""
    if format == "ctranslate2":
        from transformer_mt.export import ctranslate2

        ctranslate2.write_model(folder, model, config, subwords, quantization)
    else:
        from transformer_mt.export import paddle_inference

        paddle_inference.write_model(folder, model, config.alignment_heads)


def _check_replaceable(folder: Path) -> None:
    if not os.path.lexists(folder) or (folder.is_dir() and not any(folder.iterdir())):
        return
    held = ModelDirectory(folder)
    # What training has written has checkpoints; what was exported has none.
    if not held.holds_run or held.checkpoints.exists():
        raise UsageError(
            f"{folder} is there, and is not an export: it is left as it is. Give another --output"
        )


@contextmanager
def _replacing(folder: Path) -> Iterator[Path]:
    """A new folder, which takes the place of `folder` when the block ends, and goes if it fails.

    Raises:
        UserError: it can't be written; what was there before is untouched.
    """
    final = Path(os.path.realpath(folder))
    new = final.with_name(f".{final.name}.{os.getpid()}.tmp")
    parent_is_new = not final.parent.exists()
    try:
        new.mkdir(parents=True)
        yield new
        for path in (*new.iterdir(), new):
            flush_to_disk(path)
        if final.exists():
            _exchange(new, final)
        else:
            new.rename(final)
        flush_to_disk(final.parent)
    except OSError as error:
        raise UserError(f"{folder}: can't be written: {error.strerror or error}") from None
    finally:
        # What was not whole, or what was replaced.
        shutil.rmtree(new, ignore_errors=True)
        if parent_is_new:
            with suppress(OSError):  # the export is in it
                final.parent.rmdir()


def _exchange(new: Path, old: Path) -> None:
    """Each takes the other's name, at one moment where Linux and the file system can do that."""
    renameat2 = getattr(ctypes.CDLL(None), "renameat2", None)
    paths = os.fsencode(new), os.fsencode(old)
    if renameat2 and not renameat2(AT_FDCWD, paths[0], AT_FDCWD, paths[1], RENAME_EXCHANGE):
        return
    aside = new.with_name(f"{new.name}.old")
    old.rename(aside)
    try:
        new.rename(old)
    except OSError:
        aside.rename(old)
        raise
    aside.rename(new)
