"""A config file: read, with overrides laid over it, checked, and written; and errors a person can
act on.

Nothing heavy is imported here, so that a mistake in a config is reported at once.
"""

from __future__ import annotations

import difflib
import json
import re
import reprlib
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from transformer_mt.config import yaml_text
from transformer_mt.config.schema import LONGEST_TARGET, NEEDED_BY, SECTIONS, Config, DecodingConfig
from transformer_mt.runtime.errors import UsageError

# Problems that an error lists, of however many there are.
LISTED = 20
# What other toolkits call it, in lower case.
OTHER_NAMES = {
    name: key
    for key, names in (
        ("training.learning_rate", "lr peak_lr max_lr rate alpha"),
        ("training.max_epochs", "epoch epochs num_epochs num_train_epochs n_epochs"),
        ("training.max_steps", "steps num_steps train_steps max_update max_updates updates"),
        ("training.batch_tokens", "batch batch_size train_batch_size max_tokens"),
        ("training.warmup_steps", "warmup warmup_updates warmup_ratio num_warmup_steps"),
        ("training.label_smoothing", "smoothing label_smooth label_smooth_eps"),
        ("training.clip_norm", "clip clip_grad grad_clip clip_grad_norm max_grad_norm"),
        ("training.schedule", "scheduler lr_scheduler lr_schedule scheduling decay_method"),
        ("training.optimizer", "optim optimiser"),
        ("training.betas", "beta beta1 beta2 adam_beta1 adam_beta2 adam_betas"),
        ("training.epsilon", "eps adam_eps adam_epsilon"),
        ("training.precision", "fp16 bf16 amp half"),
        ("training.save_every", "save_steps save_interval save_checkpoint_steps"),
        ("training.validate_every", "valid_steps validation_freq eval_steps eval_every"),
        ("training.log_every", "log_interval logging_freq logging_steps report_every"),
        ("training.patience", "early_stopping early_stopping_patience"),
        ("training.devices", "gpus n_gpu num_gpus num_processes world_size"),
        ("training.init_from", "load_model pretrained finetune_from_model init_checkpoint"),
        ("training.seed", "random_seed manual_seed"),
        ("model.num_layers", "layers n_layers n_layer num_hidden_layers"),
        ("model.num_encoder_layers", "enc_layers encoder_layers"),
        ("model.num_decoder_layers", "dec_layers decoder_layers"),
        ("model.d_model", "hidden_size hidden emb_size embedding_dim model_dim embed_dim dim"),
        ("model.num_heads", "heads n_heads n_head nhead attention_heads"),
        ("model.d_ff", "ff ffn ff_size ffn_dim ffn_size d_inner d_inner_hid dim_feedforward"),
        ("model.norm", "prenorm pre_norm normalize_before layer_norm"),
        ("model.tie_embeddings", "tied_embeddings share_embeddings weight_sharing"),
        ("model.attention_dropout", "attn_dropout"),
        ("model.feed_forward_dropout", "ff_dropout ffn_dropout activation_dropout relu_dropout"),
        ("data.source_lang", "src src_lang source source_language"),
        ("data.target_lang", "tgt tgt_lang trg target target_language"),
        ("data.train", "train_file trainpref train_data training_data"),
        ("data.dev", "valid val validation valid_file validpref dev_file"),
        ("data.test", "test_file testpref"),
        ("data.root", "path data_dir data_path"),
        ("data.max_length", "max_len max_sent_length max_seq_length max_seq_len max_source_length"),
        ("subword.vocab_size", "vocab vocabulary_size voc_limit bpe_size num_merges"),
        ("subword.joint", "joined_dictionary share_vocab shared_vocab"),
        ("decoding.beam_size", "beam beams num_beams beam_width"),
        ("decoding.length_penalty", "lenpen len_pen"),
        ("decoding.n_best", "nbest num_return_sequences"),
        ("decoding.max_length_extra", "max_len_b max_out_len max_output_length max_decode_length"),
        ("model_dir", "output_dir save_dir checkpoint_dir"),
    )
    for name in names.split()
}


def load(path: str | Path, overrides: list[str] | None = None) -> Config:
    """Reads and validates a config file with `section.key=value` overrides laid over it.

    Raises:
        UsageError: naming every problem at once.
    """
    values = _parse(_read(Path(path)), str(path))
    problems: list[str] = []
    for override in overrides or []:
        problem = _apply_override(values, override)
        if problem:
            problems.append(problem)
    more = 0
    try:
        config = Config.model_validate(values)
    except ValidationError as error:
        # Unknown keys last: there may be thousands of them, if it is no config at all.
        items = sorted(error.errors(), key=lambda item: item["type"] == "extra_forbidden")
        problems += [_describe(item) for item in items[:LISTED]]
        more = max(0, len(items) - LISTED)
    problems += _problems_between_sections(values)
    if problems:
        count = len(problems) + more
        subject = f"{path}: {'1 problem' if count == 1 else f'{count} problems'}"
        raise _refusal(subject, problems, count)
    return config


def with_changes(decoding: DecodingConfig, changes: dict[str, Any]) -> DecodingConfig:
    """The section with some keys replaced.

    Raises:
        UsageError: naming every problem at once.
    """
    try:
        return DecodingConfig.model_validate({**decoding.model_dump(), **changes})
    except ValidationError as error:
        raise UsageError("\n".join(_describe(item) for item in error.errors())) from None


def dump(config: Config) -> str:
    """The resolved config as YAML that `load` reads back to an equal Config."""
    return yaml_text.dump(config.model_dump())


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(f"{path}: there is no such config file") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{path}, line {line}: not UTF-8, as a config must be") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: can't be read as a config: {error}") from None


def _parse(text: str, name: str) -> dict[str, Any]:
    try:
        values = yaml_text.parse(text)
    except yaml.MarkedYAMLError as error:
        where, problem = "", _printable(error.problem, 200)
        if mark := error.problem_mark:
            where = f", line {mark.line + 1}, column {mark.column + 1}"
            if re.match(" *\t", text.split("\n")[mark.line]):
                where = f", line {mark.line + 1}"
                problem = "a tab is no indentation; write spaces"
        raise UsageError(f"{name}{where}: not valid YAML: {problem}") from None
    except RecursionError:
        raise UsageError(f"{name}: not valid YAML: nested too deeply") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise UsageError(
            f"{name}, line {line}: not valid YAML: there is a control character "
            f"(U+{error.character:04X}) in it"
        ) from None
    except (yaml.YAMLError, ValueError) as error:
        raise UsageError(f"{name}: not valid YAML: {_printable(str(error), 200)}") from None
    if not isinstance(values, dict):
        raise UsageError(f"{name}: expected `model_dir` and the sections {', '.join(SECTIONS)}")
    return values


def require_together(config: Config, subject: str) -> None:
    """Raises UsageError, naming every problem at once, if values of a config that was put together
    from others do not go together; `subject` says of what."""
    problems = _problems_between_sections(config.model_dump())
    if problems:
        raise _refusal(subject, problems)


def _refusal(subject: str, problems: list[str], count: int = 0) -> UsageError:
    """The first of some problems; `count` is how many there are, if not all are given."""
    lines = [subject, *problems[:LISTED]]
    if (more := max(count, len(problems)) - LISTED) > 0:
        lines.append(f"... and {more:,} more")
    return UsageError("\n  ".join(lines))


def _problems_between_sections(values: dict[str, Any]) -> list[str]:
    """Combinations of keys of two sections. The values as they are in the file are looked at, so
    that another mistake in a section does not hide these."""

    def value(section: str, key: str) -> Any:
        given = values.get(section)
        default = SECTIONS[section].model_fields[key].default
        return given.get(key, default) if isinstance(given, dict) else default

    problems = []
    dataset, subword = value("data", "dataset"), value("subword", "type")
    if dataset == "wmt14ende" and subword != "vocabulary":
        problems.append(
            f"subword.type: {_shown(subword)}: data.dataset: wmt14ende is BPE'd text, it needs "
            "type: vocabulary"
        )
    needs_a_file = dataset in ("files", "multi30k") and subword == "vocabulary"
    if needs_a_file and not value("subword", "vocabulary"):
        problems.append("subword.vocabulary: null: type: vocabulary needs the file with the types")
    if value("guided_attention", "by"):
        layers = value("model", "num_decoder_layers") or value("model", "num_layers")
        for key, most, of_model in (
            ("layer", layers, "decoder layers"),
            ("heads", value("model", "num_heads"), "heads"),
        ):
            chosen = value("guided_attention", key)
            if isinstance(chosen, int) and isinstance(most, int) and chosen > most:
                problems.append(
                    f"guided_attention.{key}: {chosen}: the model has {most} {of_model}"
                )
    if value("guided_attention", "by") == "alignment":
        if subword == "word":
            problems.append(
                "guided_attention.by: 'alignment': needs a subword.type other than word, for which "
                "several unknown words in a row are one"
            )
        if value("subword", "normalization") != "identity" and subword != "vocabulary":
            problems.append(
                "guided_attention.by: 'alignment': needs subword.normalization: identity: others "
                "may part or join words, which the alignments count"
            )
    longest = value("data", "max_length")
    predicts_length = value("model", "non_autoregressive") == "length"
    if predicts_length and isinstance(longest, int) and longest > LONGEST_TARGET:
        problems.append(
            "model.non_autoregressive: 'length': needs data.max_length of at most "
            f"{LONGEST_TARGET}: it knows no greater length"
        )
    for option, needs in NEEDED_BY.items():
        chosen = value(*option.split("."))
        if not chosen:
            continue
        for key, needed, reason in needs:
            if value(*key.split(".")) != needed:
                problems.append(
                    f"{option}: {_shown(chosen)}: needs {key}: {json.dumps(needed)}: {reason}"
                )
    return problems


def _apply_override(values: dict[str, Any], override: str) -> str | None:
    """Lays `section.key=value` over the parsed file; returns the problem, if there is one."""
    path, equals, text = override.partition("=")
    section, _, key = path.partition(".")
    if not equals or not path:
        return f"{_shown(override)}: expected section.key=value, as in training.max_steps=1000"
    if path == "model_dir":
        values["model_dir"] = text
        return None
    if section in SECTIONS and not key:
        example = next(iter(SECTIONS[section].model_fields))
        return f"{path}: a section; give one of its keys, as in {section}.{example}=..."
    if section not in SECTIONS:
        return f"{_printable(path)}: unknown key{_suggestion(path)}"
    target = values.setdefault(section, {})
    if not isinstance(target, dict):
        return None  # the file's own section is wrong, which is reported by the schema
    field = SECTIONS[section].model_fields.get(key)
    takes_text = field is not None and field.annotation in (str, str | None)
    if takes_text:
        target[key] = None if text in ("", "null") and field.annotation is not str else text
        return None
    try:
        target[key] = yaml_text.parse(text)
    except yaml_text.ERRORS:
        target[key] = text  # as text, of which the schema says what was expected instead
    return None


def _describe(item: dict[str, Any]) -> str:
    """One line for one of pydantic's errors: the path, the value, and what was expected."""
    path = ".".join(str(part) for part in item["loc"])
    if item["type"] == "extra_forbidden":
        return f"{_printable(path)}: unknown key{_suggestion(path)}"
    if item["type"] == "missing":
        return f"{path}: missing; {_expected(item['loc'])}"
    if item["type"] == "combination":
        value = item["input"]
        shown = "" if isinstance(value, dict | BaseModel) else f"{_shown(value)}: "
        return f"{path}: {shown}{item['ctx']['message']}"
    if item["type"] in ("model_type", "model_attributes_type"):
        return f"{path}: {_shown(item['input'])}: expected a section with keys of its own"
    limits = item.get("ctx", {})
    message = {
        "int_type": "expected a whole number",
        "int_from_float": "expected a whole number",
        "int_parsing_size": "expected a smaller number",
        "float_type": "expected a number",
        "finite_number": "expected a finite number",
        "string_type": "expected text",
        "string_too_short": "expected text that is not empty",
        "bool_type": "expected true or false",
        "list_type": "expected a list, as in [0.9, 0.98]",
        "greater_than_equal": f"expected at least {limits.get('ge', 0):.12g}",
        "less_than_equal": f"expected at most {limits.get('le', 0):.12g}",
        "too_short": f"expected {limits.get('min_length')} values",
        "too_long": f"expected {limits.get('max_length')} values",
    }.get(item["type"], item["msg"].replace("Input should be", "expected"))
    return f"{path}: {_shown(item['input'])}: {message}"


def _shown(value: Any) -> str:
    return "null" if value is None else _cut(_SHORT.repr(value))


def _printable(text: str, longest: int = 60) -> str:
    """Text of a file as it can be shown on a terminal, which control characters would disturb."""
    return _cut(text if text.isprintable() else repr(text)[1:-1], longest)


def _cut(text: str, longest: int = 60) -> str:
    return text if len(text) <= longest else text[: longest - 3] + "..."


# A few lines of YAML can stand for more values than memory holds.
_SHORT = reprlib.Repr()
_SHORT.maxlevel = 3
_SHORT.maxstring = _SHORT.maxother = 200  # cut afterwards


def _expected(location: tuple) -> str:
    """What the schema wants at a path that is missing."""
    if len(location) == 1:
        field = Config.model_fields[location[0]]
        if location[0] in SECTIONS:
            required = [
                name for name, f in SECTIONS[location[0]].model_fields.items() if f.is_required()
            ]
            if required:
                return f"expected a section with {' and '.join(required)}"
            first = list(SECTIONS[location[0]].model_fields)[:2]
            return f"expected a section with keys such as {' and '.join(first)}"
    else:
        field = SECTIONS[location[0]].model_fields[location[1]]
    return f"expected {field.description}"


def _suggestion(path: str) -> str:
    """The known key nearest to an unknown one: spelt alike, or the same key of another section."""
    section, _, key = path.partition(".") if "." in path else ("", "", path)
    full_names: dict[str, list[str]] = {name: [name] for name in ("model_dir", *SECTIONS)}
    for name, schema in SECTIONS.items():
        for known_key in schema.model_fields:
            full_names.setdefault(known_key, []).append(f"{name}.{known_key}")
    usual = key.lower().replace("-", "_")
    meant = [*full_names.get(key, [])]
    if usual in OTHER_NAMES:
        meant.append(OTHER_NAMES[usual])
    if meant:
        return f"; did you mean {' or '.join(meant)}?"
    # Without its section, which would make every key of the section look near.
    own = SECTIONS[section].model_fields if section in SECTIONS else ()
    if match := difflib.get_close_matches(key, own, n=1):
        return f"; did you mean {section}.{match[0]}?"
    if match := difflib.get_close_matches(key, full_names, n=1):
        return f"; did you mean {' or '.join(full_names[match[0]])}?"
    if own:
        return f"; known keys: {', '.join(own)}"
    return f"; known: model_dir, {', '.join(SECTIONS)}"
