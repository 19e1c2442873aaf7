"""The verb `translate`."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

from transformer_mt import device as devices
from transformer_mt.console import progress
from transformer_mt.decoding.translator import Translator, decoded, input_lines
from transformer_mt.errors import UsageError
from transformer_mt.files import atomic, count_lines, without_end


def translate(
    model_dir: str,
    source: Path | None,
    output: Path | None,
    *,
    checkpoint: str | None = None,
    device: str | None = None,
    decoding: dict[str, Any],
) -> None:
    """Translates a file (None: stdin) into a file (None: stdout).

    Args:
        decoding: settings that replace those of the model's config.

    Raises:
        UserError: anything wrong with the model directory or the files.
    """
    if (source is None and sys.stdin is None) or (output is None and sys.stdout is None):
        raise UsageError("stdin or stdout is closed: give --input FILE and --output FILE")
    devices.use(device)
    translator = Translator.load(
        model_dir, checkpoint, lambda config: config.model_copy(update=decoding)
    )
    if source is None:
        lines = decoded(map(without_end, sys.stdin.buffer), "stdin")
        total = None
    else:
        lines = input_lines(source)
        total = count_lines(source) if source.is_file() else None
    with contextlib.ExitStack() as stack:
        if output is None:
            sys.stdout.reconfigure(encoding="utf-8", newline="\n")
            file = sys.stdout
        else:
            file = stack.enter_context(atomic(output))
        bar = stack.enter_context(progress(total=total, title="translating", unit="lines"))
        # Somebody who types wants an answer to each line.
        window_size = 1 if source is None and sys.stdin.isatty() else None
        for text in translator.translate(lines, bar.update, window_size):
            file.write(f"{text}\n")
            if window_size:
                file.flush()
