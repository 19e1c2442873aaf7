"""The settings of a run beside earlier ones: what a recipe inherits from the model that it
fine-tunes, and what may not change when a run is resumed."""

import contextlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from transformer_mt.config import file as config_file
from transformer_mt.config.problems import shown
from transformer_mt.config.schema import SECTIONS, Config, ModelConfig
from transformer_mt.config.section import Section
from transformer_mt.config.text import SubwordConfig
from transformer_mt.model_directory import ModelDirectory
from transformer_mt.utils.console import say
from transformer_mt.utils.errors import UsageError, UserError

# The keys of `model` whose null means the value of another key.
DEFAULT_TO = {
    "num_encoder_layers": "num_layers",
    "num_decoder_layers": "num_layers",
    "embedding_dropout": "dropout",
}

# Settings that may change when a run is resumed. Paths of the text and its alignments may change,
# because their content is compared. Another number of processes draws other dropout masks, but it
# trains on the same updates.
MAY_CHANGE = {
    *("data.root", "data.cache", "subword.vocabulary", "guided_attention.alignments"),
    *("training.max_steps", "training.max_epochs", "training.patience", "training.max_skipped"),
    *("training.log_every", "training.validate_every", "training.save_every", "training.log_to"),
    *("training.keep_last", "training.keep_best", "training.average_last"),
    "training.interpolate",
    *("training.devices", "training.device_tokens", "training.recompute", "training.sharding"),
    "training.gradient_sum_precision",
}
SECTIONS_THAT_MAY_CHANGE = ("decoding", "evaluation")
# These may not change with model.non_autoregressive: end, whose decoder is trained on this length.
# null is the value that the text decides, and the text may not change either.
LENGTHS_TRAINED_ON = {"decoding.max_length_ratio", "decoding.max_length_extra"}


def load(
    path: str | Path,
    overrides: Iterable[str] = (),
    restart: bool = False,
    text: str | None = None,
) -> Config:
    """Reads a config file, with overrides in place of its values.

    If it names a model in training.init_from, the keys of `model` that it does not give have the
    values of that model, and `subword` describes its subwords. What the recipe gives and that model
    has otherwise is listed.

    Args:
        restart: whether a run in model_dir is not continued. The values of a run that is continued
            take precedence over those of training.init_from, which may have changed since.
        text: the content of the file, if it is not written yet. Nothing is listed then.

    Raises:
        UsageError: something is wrong with the config, the model training.init_from is missing, or
            has another width than the recipe gives.
        UserError: that model is damaged.
    """
    subword_keys: set[str] = set()
    theirs: Config | None = None
    own: Config | None = None

    def inherit(values: dict[str, Any]) -> None:
        nonlocal theirs, own
        sections = [values.get(name, {}) for name in ("training", "model", "subword")]
        if not all(isinstance(section, dict) for section in sections):
            return  # The schema reports that.
        training, model, subword = sections
        other = training.get("init_from")
        if not isinstance(other, str) or not other:
            return
        subword_keys.update(subword.keys() - {"sampling", "user_symbols"})
        own = None if restart else _continued(values.get("model_dir"), other)
        if own is None:
            try:
                theirs = ModelDirectory(other).load_config()
            except UserError as error:
                raise type(error)(f"training.init_from: {error}") from None
        given = own or theirs
        inherited = {key: value for key, value in given.model if DEFAULT_TO.get(key) not in model}
        values["model"] = inherited | model

    if text is None:
        config = config_file.load(path, overrides, inherit)
    else:
        config = config_file.parse(text, str(path), overrides, inherit)
    if theirs is not None:
        _report(config, theirs, subword_keys, say if text is None else lambda message: None)
        config = config.model_copy(update={"subword": _kept_subwords(config, theirs, theirs.tags)})
    elif own is not None:
        symbols = own.subword.user_symbols
        config = config.model_copy(update={"subword": _kept_subwords(config, own, symbols)})
    return config


def _kept_subwords(config: Config, other: Config, symbols: list[str]) -> SubwordConfig:
    """The section `subword` of a recipe that keeps the subwords of another model, whose symbols are
    given, and may add symbols to them."""
    symbols = list(dict.fromkeys([*symbols, *config.subword.user_symbols]))
    changes: dict[str, Any] = {"sampling": config.subword.sampling, "user_symbols": symbols}
    return other.subword.model_copy(update=changes)


def _continued(model_dir: object, other: str) -> Config | None:
    """The config of the run in model_dir, if it started from the model `other`."""
    if isinstance(model_dir, str) and model_dir:
        directory = ModelDirectory(model_dir)
        with contextlib.suppress(UserError):  # It is reported when the run is to be continued.
            config = directory.load_config() if directory.holds_run else None
            if config is not None and config.training.init_from == other:
                return config
    return None


def _report(
    config: Config, theirs: Config, subword_keys: Iterable[str], output: Callable[[str], None]
) -> None:
    """Outputs what the recipe gives and the model training.init_from has otherwise.

    Raises:
        UsageError: the width of the model differs.
    """
    subject = f"training.init_from: {config.training.init_from}"
    ours, others = _meant(config.model), _meant(theirs.model)
    keys = [
        key
        for key, value in config.model
        if ours[key] != others[key] and (value, getattr(theirs.model, key)) != (None, None)
    ]
    different = _listed("model", keys, config.model, theirs.model)
    if ours["d_model"] != others["d_model"]:
        raise UsageError(
            f"{subject} has another model.d_model than this recipe, so its weights do not fit. "
            f"These keys differ:{different}\n"
            "Leave them out of the recipe, and the model is that of training.init_from"
        )
    if different:
        output(f"{subject}: the recipe changes this model:{different}")
    keys = [key for key, value in theirs.subword if value != getattr(config.subword, key)]
    keys = [key for key in keys if key in subword_keys]
    if kept := _listed("subword", keys, config.subword, theirs.subword):
        output(f"{subject}: its subwords are used. These keys of the recipe have no effect:{kept}")


def _meant(model: ModelConfig) -> dict[str, Any]:
    """The values of the keys, with the value of another key where null means that."""
    values = dict(model)
    meant = {key: values[other] for key, other in DEFAULT_TO.items() if values[key] is None}
    return values | meant


def _listed(section: str, keys: Iterable[str], ours: Section, theirs: Section) -> str:
    """A line for each key, with the value of the recipe and that of the other model."""
    return "".join(
        f"\n  {section}.{key}: {shown(getattr(ours, key))}, there {shown(getattr(theirs, key))}"
        for key in keys
    )


def require_resumable(directory: ModelDirectory, config: Config) -> None:
    """Checks that a config continues the run in a directory, if the run has saved a checkpoint.

    Raises:
        UsageError: a setting has changed that may not change.
    """
    if not directory.saved_checkpoints():
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
    fixed = LENGTHS_TRAINED_ON if new.model.non_autoregressive == "end" else set()
    for section in SECTIONS:
        for key, value in new_values[section].items():
            before, name = old_values[section][key], f"{section}.{key}"
            may_change = section in SECTIONS_THAT_MAY_CHANGE or name in MAY_CHANGE
            if name in fixed:
                may_change = value is None
            if value != before and not may_change:
                old_text, text = ("null" if x is None else str(x) for x in (before, value))
                lines.append(f"{name}: {old_text}, now {text}")
    return lines
