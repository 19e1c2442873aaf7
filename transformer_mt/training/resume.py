"""Resuming a run: which checkpoint to resume from, and which settings may have changed."""

from pathlib import Path

from transformer_mt.config.schema import SECTIONS, Config
from transformer_mt.data.prepare import PreparedData
from transformer_mt.model_directory import ModelDirectory
from transformer_mt.training.checkpoint import newest_whole
from transformer_mt.training.state import State
from transformer_mt.utils.console import quoted
from transformer_mt.utils.errors import UsageError, UserError

# Settings that may change when a run is resumed. Paths of the text and its alignments may change,
# because their content is compared. Another number of processes draws other dropout masks, but it
# trains on the same updates.
MAY_CHANGE = {
    *("data.root", "data.cache", "subword.vocabulary", "guided_attention.alignments"),
    *(
        f"training.{key}"
        for key in (
            *("max_steps", "max_epochs", "log_every", "validate_every", "save_every"),
            *("keep_last", "keep_best", "patience", "average_last", "max_skipped"),
            *("devices", "device_tokens", "recompute", "log_to", "gradient_sum_precision"),
            "sharding",
        )
    ),
}
SECTIONS_THAT_MAY_CHANGE = ("decoding", "evaluation")
# These may not change with model.non_autoregressive: end, whose decoder is trained on this length.
# null is the value that the text decides, and the text may not change either.
LENGTHS_TRAINED_ON = {"decoding.max_length_ratio", "decoding.max_length_extra"}


def checkpoint_to_resume(directory: ModelDirectory, config: Config) -> Path | None:
    """Returns the newest undamaged checkpoint of a directory; None if it has no checkpoints.

    Raises:
        UserError: all of its checkpoints are damaged.
        UsageError: a setting has changed that may not change.
    """
    require_resumable(directory, config)
    return newest_whole(directory) if _has_checkpoints(directory) else None


def _has_checkpoints(directory: ModelDirectory) -> bool:
    return directory.holds_run and bool(directory.saved_checkpoints())


def require_resumable(directory: ModelDirectory, config: Config) -> None:
    """Checks that a config continues the run in a directory, if the run has saved a checkpoint.

    Raises:
        UsageError: a setting has changed that may not change.
    """
    if not _has_checkpoints(directory):
        return
    if different := differences(directory.load_config(), config):
        raise UsageError(
            f"{directory.path} holds a run with other settings:\n"
            + "\n".join(f"  {line}" for line in different)
            + "\nTo continue it, restore its settings. To rename it and train from the "
            "beginning, add --restart. To train into another folder, add model_dir=FOLDER"
        )


def differences(old: Config, new: Config) -> list[str]:
    """Returns the settings that differ but may not change, as `section.key: old, now new`."""
    lines = []
    old_values, new_values = old.model_dump(), new.model_dump()
    may_not_change = set()
    if new.model.non_autoregressive == "end":
        may_not_change |= LENGTHS_TRAINED_ON
    for section in SECTIONS:
        for key, value in new_values[section].items():
            before, name = old_values[section][key], f"{section}.{key}"
            may_change = section in SECTIONS_THAT_MAY_CHANGE or name in MAY_CHANGE
            if name in may_not_change:
                may_change = value is None
            if value != before and not may_change:
                lines.append(f"{name}: {_shown(before)}, now {_shown(value)}")
    return lines


def checked_state(checkpoint: Path, data: PreparedData, directory: ModelDirectory) -> State:
    """Returns the state of training in a checkpoint.

    Raises:
        UserError: the training text, or its alignments, have changed since.
    """
    state = State.restore(checkpoint)
    if state.corpus != data.key:
        aligned = data.alignments is not None
        raise UserError(
            f"{checkpoint} was trained on another text{' or other alignments' if aligned else ''} "
            "than the training files hold now. Put back what was there, train again from the "
            "beginning with --restart, or fine-tune on the new text with "
            f"training.init_from={quoted(directory.path)} model_dir=FOLDER"
        )
    return state


def _shown(value: object) -> str:
    return "null" if value is None else str(value)
