"""What an error message says about a wrong value or an unknown key of a config."""

import difflib
import reprlib
from collections.abc import Iterable, Mapping
from typing import Any

from transformer_mt.config.schema import SECTIONS
from transformer_mt.config.text import TrainingText

# Names that other toolkits use for a key, in lower case.
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
        ("training.freeze", "frozen frozen_layers freeze_layers no_train params_to_freeze"),
        ("adapter.rank", "lora lora_rank lora_r"),
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
        ("model.layer_dropout", "layerdrop encoder_layerdrop decoder_layerdrop drop_path"),
        ("consistency.method", "rdrop r_drop simcut"),
        ("training.ema", "ema_decay exponential_smoothing moving_average"),
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


# Words of pydantic's messages, and plainer ones.
PLAINER = {
    "Input should be": "expected",
    "String should have at least 1": "expected at least 1",
    "a valid integer": "a whole number",
    "a valid string": "text",
    "a valid boolean": "true or false",
    "a valid ": "a ",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
}


def describe(item: Mapping[str, Any]) -> str:
    """One line about one of pydantic's errors: the key, the value, and what was expected."""
    path = ".".join(str(part) for part in item["loc"])
    if item["type"] == "extra_forbidden":
        return f"{printable(path)}: unknown key{_suggestion(path)}"
    if item["type"] == "missing":
        return f"{path}: missing; it must be given (see docs/config.md)"
    if item["type"] in ("model_type", "model_attributes_type"):
        return f"{path}: {shown(item['input'])}: expected a section with keys of its own"
    message = item["msg"]
    for theirs, ours in PLAINER.items():
        message = message.replace(theirs, ours)
    return f"{path}: {shown(item['input'])}: {message}"


def unknown_key(path: str) -> str:
    """One line about a key that does not exist."""
    return describe({"type": "extra_forbidden", "loc": [path]})


def known_keys(name: str) -> list[str]:
    """The full names of the keys that a name without a section stands for, here or in another
    toolkit."""
    return _full_names().get(name, []) + OTHER_NAMES.get(name.lower().replace("-", "_"), "").split()


def _full_names() -> dict[str, list[str]]:
    """The full names of keys and sections by their names without the section."""
    full_names: dict[str, list[str]] = {name: [name] for name in ("model_dir", *SECTIONS)}
    for name, schema in SECTIONS.items():
        for known_key in schema.model_fields:
            full_names.setdefault(known_key, []).append(f"{name}.{known_key}")
    return full_names


def nearest(section: str, name: str, others: Iterable[str] = ()) -> str | None:
    """The key of a section, or the one of the other names, that an unknown name probably means."""
    place = f"{section}."
    own = [key.removeprefix(place) for key in known_keys(name) if key.startswith(place)]
    known = [*SECTIONS[section].model_fields, *others]
    return next(iter(own + difflib.get_close_matches(name, known, n=1)), None)


def shown(value: Any) -> str:
    """A value as an error message shows it."""
    return "null" if value is None else _cut(_SHORT.repr(value))


def printable(text: str, longest: int = 60) -> str:
    """Text of a file, with control characters escaped so that they do not disturb a terminal."""
    return _cut(text if text.isprintable() else repr(text)[1:-1], longest)


def _cut(text: str, longest: int = 60) -> str:
    return text if len(text) <= longest else text[: longest - 3] + "..."


# A few lines of YAML can stand for more values than fit in memory.
_SHORT = reprlib.Repr()
_SHORT.maxlevel = 3
_SHORT.maxstring = _SHORT.maxother = 200  # cut afterwards


def _suggestion(path: str) -> str:
    """The known key that is closest to an unknown one: a similar spelling, or the same key of
    another section."""
    if path.startswith("data.train."):
        return f"; known keys: {', '.join(TrainingText.model_fields)}"
    section, _, key = path.partition(".") if "." in path else ("", "", path)
    meant = known_keys(key)
    # Keys are compared without their section, which would make all of its keys look similar.
    own = SECTIONS[section].model_fields if section in SECTIONS else ()
    if key in own:  # the form for the command line, in a file
        return f"; in a file, write {key} below {section}:"
    if not meant and (match := difflib.get_close_matches(key, own, n=1)):
        meant = [f"{section}.{match[0]}"]
    elif not meant and (match := difflib.get_close_matches(key, _full_names(), n=1)):
        meant = _full_names()[match[0]]
    if meant:
        return f"; did you mean {' or '.join(meant)}?"
    return (
        f"; known keys: {', '.join(own)}" if own else f"; known: model_dir, {', '.join(SECTIONS)}"
    )
