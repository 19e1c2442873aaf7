"""The rules between the keys of the config. The site of the documents lists their docstrings.

A rule looks at a config and yields its problems. A problem is the keys that it is about, of which
the first is the one to report it under, and a message.
"""

import json
from collections.abc import Iterator
from operator import attrgetter
from typing import Any

from transformer_mt.config.decoding import LONGEST_TARGET, NEEDS_PRECEDING_WORDS, DecodingConfig
from transformer_mt.config.schema import Config

Problems = Iterator[tuple[tuple[str, ...], str]]

# The splits and the languages of each dataset but files.
SPLITS, LANGUAGES = ("train", "dev", "test"), ("en", "de")
# The types of subwords that can have symbols of the user's own, if they are trained for a recipe.
WITH_SYMBOLS = ("bpe", "unigram", "char")


def needs(config: Any, option: str, key: str, *allowed: Any, reason: str = "") -> Problems:
    """The rule that `key` must have one of the values `allowed` if `option` is turned on."""
    if attrgetter(option)(config) and attrgetter(key)(config) not in allowed:
        values = [value if isinstance(value, str) else json.dumps(value) for value in allowed]
        problem = f"needs {key}: {' or '.join(values)}"
        yield (option, key), f"{problem}: {reason}" if reason else problem


def data_rules(config: Config) -> Problems:
    """
    - `data.dataset: files` needs `data.root`.
    - With another dataset, `data.train`, `data.dev` and `data.test` must be splits of it (train,
      dev or test), as must `data.general_dev` and `data.general_test`, and the languages must be
      its languages (en and de).
    - `data.source_lang` and `data.target_lang` must differ.
    - `data.dataset: wmt14ende` needs `subword.type: vocabulary`.
    - `data.general_dev`, `data.general_test` and general texts in `data.train` need
      `training.init_from`.
    """
    data, name = config.data, config.data.dataset
    if data.target_lang == data.source_lang:
        yield ("data.target_lang", "data.source_lang"), "must differ from data.source_lang"
    general = {key: getattr(data, key) for key in ("general_dev", "general_test")}
    general["train"] = any(text.general for text in data.texts)
    for key, value in general.items():
        if value and config.training.init_from is None:
            what = "general text" if key == "train" else "it"
            message = f"{what} needs training.init_from, the model that was made for such text"
            yield (f"data.{key}", "training.init_from"), message
    if name == "files":
        if data.root is None:
            message = "data.dataset: files needs the folder that holds the files"
            yield ("data.root", "data.dataset"), message
        return
    if name == "wmt14ende":
        reason = "its text has BPE applied"
        yield from needs(config, "data.dataset", "subword.type", "vocabulary", reason=reason)
    texts = {key: [getattr(data, key)] for key in ("dev", "test", "general_dev", "general_test")}
    texts["train"] = [text.text for text in data.texts]
    languages = {key: [getattr(data, key)] for key in ("source_lang", "target_lang")}
    for values, known in ((texts, (*SPLITS, None)), (languages, LANGUAGES)):
        for key, given in values.items():
            if not {*given} <= {*known}:
                own = "for text files of your own, give data.dataset: files"
                message = f"{name} has only {', '.join(filter(None, known))}; {own}"
                yield (f"data.{key}", "data.dataset"), message


def subword_rules(config: Config) -> Problems:
    """
    - `subword.sampling` needs `subword.type: bpe`, `unigram` or `marian`.
    - `subword.type: vocabulary` needs `subword.joint: true`, and `subword.vocabulary` unless
      `data.dataset` has a vocabulary of its own.
    - `subword.vocabulary` needs `subword.type: vocabulary`.
    - `subword.source_vocab_size` and `subword.target_vocab_size` need `subword.joint: false`.
    - `subword.user_symbols` and `data.protect` need `subword.type: bpe`, `unigram`, `char` or
      `marian`. With `training.init_from`, `subword.user_symbols` can also be added to
      `subword.type: vocabulary`.
    - `data.annotate_terms` needs `subword.type: bpe`, `unigram` or `char`, and
      `subword.joint: true`.
    - `data.drop_unmatched` needs `data.protect`.
    - `data.protect` and `data.annotate_terms` cannot be combined with
      `guided_attention.by: alignment`.
    - With these types, each tag of `data.train` must be one of `subword.user_symbols`. With
      `training.init_from`, it is added to the subwords of that model.
    """
    subword = config.subword
    yield from needs(config, "subword.sampling", "subword.type", "bpe", "unigram", "marian")
    can_add = ("marian", "vocabulary") if config.training.init_from else ("marian",)
    yield from needs(config, "subword.user_symbols", "subword.type", *WITH_SYMBOLS, *can_add)
    yield from needs(config, "data.protect", "subword.type", *WITH_SYMBOLS, "marian")
    # Each side of an imported model splits only its own language.
    yield from needs(config, "data.annotate_terms", "subword.type", *WITH_SYMBOLS)
    reason = "the words of its file are not those of text with symbols"
    for key in ("data.protect", "data.annotate_terms"):
        yield from needs(config, key, "guided_attention.by", None, "diagonal", reason=reason)
    yield from needs(config, "data.annotate_terms", "subword.joint", True)
    if config.data.drop_unmatched and not config.data.protect:
        yield ("data.drop_unmatched", "data.protect"), "needs data.protect"
    yield from needs(config, "subword.vocabulary", "subword.type", "vocabulary")
    yield from needs(config, "subword.source_vocab_size", "subword.joint", False)
    yield from needs(config, "subword.target_vocab_size", "subword.joint", False)
    tags = dict.fromkeys(text.tag for text in config.data.texts if text.tag is not None)
    missing = [tag for tag in tags if tag not in subword.user_symbols]
    if missing and subword.type in WITH_SYMBOLS and config.training.init_from is None:
        others = "subword.type", "data.train", "training.init_from"
        message = f"must have the tags of data.train; missing: {', '.join(missing)}"
        yield ("subword.user_symbols", *others), message
    if subword.type == "vocabulary":
        yield from needs(config, "subword.type", "subword.joint", True)
        if config.data.dataset != "wmt14ende" and not subword.vocabulary:
            keys = "subword.vocabulary", "subword.type", "data.dataset"
            yield keys, "subword.type: vocabulary needs the file with the subwords"


def model_rules(config: Config) -> Problems:
    """
    - `model.num_heads` must divide `model.d_model`.
    - `model.positions: marian` needs an even `model.d_model` of at least 4.
    """
    model = config.model
    if model.positions == "marian" and (model.d_model % 2 or model.d_model < 4):
        message = f"needs an even model.d_model of at least 4, not {model.d_model}"
        yield ("model.positions", "model.d_model"), message
    if model.d_model % model.num_heads:
        message = f"must divide model.d_model ({model.d_model})"
        yield ("model.num_heads", "model.d_model"), message


def training_rules(config: Config) -> Problems:
    """
    - At least one of `training.max_steps` and `training.max_epochs` must be given.
    - `training.schedule: noam` and `inverse_sqrt` need `training.warmup_steps` of at least 1.
    - `training.schedule: inverse_sqrt`, `linear`, `cosine` and `constant` need
      `training.learning_rate`.
    - `training.schedule: linear` and `cosine` need `training.decay_steps`, which must be more than
      `training.warmup_steps`; the others do not use it.
    - `training.average_last` must be at most `training.keep_last`.
    - `training.interpolate` needs `training.init_from`.
    - `training.weight_decay` needs `training.optimizer: adamw` or `muon`.
    - `training.optimizer: muon` can't be used with `training.sharding`.
    """
    training, schedule = config.training, config.training.schedule
    if training.max_epochs is None and training.max_steps is None:
        keys = "training.max_epochs", "training.max_steps"
        yield keys, "give training.max_steps or training.max_epochs"
    if schedule in ("noam", "inverse_sqrt") and not training.warmup_steps:
        yield (
            ("training.warmup_steps", "training.schedule"),
            f"schedule {schedule} needs at least 1",
        )
    if schedule != "noam" and training.learning_rate is None:
        yield ("training.learning_rate", "training.schedule"), f"schedule {schedule} needs a rate"
    if schedule in ("linear", "cosine") and training.decay_steps is None:
        message = f"schedule {schedule} needs the step at which the rate is 0"
        yield ("training.decay_steps", "training.schedule"), message
    yield from needs(config, "training.decay_steps", "training.schedule", "linear", "cosine")
    if training.decay_steps is not None and training.decay_steps <= training.warmup_steps:
        message = f"must be more than training.warmup_steps ({training.warmup_steps})"
        yield ("training.decay_steps", "training.warmup_steps"), message
    if (training.average_last or 0) > training.keep_last:
        message = f"is more than training.keep_last ({training.keep_last})"
        yield ("training.average_last", "training.keep_last"), message
    if training.interpolate and training.init_from is None:
        message = "needs training.init_from: it mixes the weights of the model before and after"
        yield ("training.interpolate", "training.init_from"), message
    yield from needs(config, "training.weight_decay", "training.optimizer", "adamw", "muon")
    yield from needs(config, "training.sharding", "training.optimizer", "adam", "adamw", "sgd")


def adapter_rules(config: Config) -> Problems:
    """
    - `adapter.rank` needs `training.init_from`, and `training.optimizer: adam`, `adamw` or `sgd`.
    - `adapter.rank` cannot be combined with `training.freeze` or `training.sharding`.
    - `adapter.alpha` needs `adapter.rank`.
    """
    training, option = config.training, "adapter.rank"
    if config.adapter.alpha is not None and config.adapter.rank is None:
        yield ("adapter.alpha", option), "needs adapter.rank"
    if not config.adapter.is_on:
        return
    if training.init_from is None:
        yield (option, "training.init_from"), "needs training.init_from: the model to adapt"
    if training.freeze:
        message = "all weights but those of the adapters are frozen; leave out training.freeze"
        yield (option, "training.freeze"), message
    reason = "Muon is made for whole matrices"
    yield from needs(config, option, "training.optimizer", "adam", "adamw", "sgd", reason=reason)
    reason = "the optimiser's state of adapters is small"
    yield from needs(config, option, "training.sharding", False, reason=reason)


def decoding_rules(config: Config) -> Problems:
    """
    - `decoding.n_best` must be at most `decoding.beam_size`, unless `decoding.sampling` is true.
    - `decoding.segmentations` above 1 needs `subword.type: bpe`, `unigram` or `marian`, and
      `subword.sampling` or `decoding.segmentation_rate`.
    - `decoding.shortlist` cannot be combined with `model.copying`.
    """
    decoding = config.decoding
    if decoding.n_best > decoding.beam_size and not decoding.sampling:
        keys = "decoding.n_best", "decoding.beam_size", "decoding.sampling"
        yield keys, f"is more than decoding.beam_size ({decoding.beam_size})"
    if decoding.segmentations > 1:
        kinds = "bpe", "unigram", "marian"
        yield from needs(config, "decoding.segmentations", "subword.type", *kinds)
        has_rate = config.subword.sampling or decoding.segmentation_rate is not None
        if config.subword.type in kinds and not has_rate:
            keys = "decoding.segmentations", "decoding.segmentation_rate", "subword.sampling"
            reason = "the model was not trained with subword.sampling"
            yield keys, f"{reason}; give decoding.segmentation_rate"
    reason = "a subword that is copied need not be in the shortlist"
    yield from needs(config, "decoding.shortlist", "model.copying", False, reason=reason)


def scheduled_sampling_rules(config: Config) -> Problems:
    """
    - `scheduled_sampling.k` must be below 1 with `scheduled_sampling.decay: exponential`, and at
      least 1 with `inverse_sigmoid`.
    - `scheduled_sampling.backpropagate` needs `scheduled_sampling.mixing: top_k`.
    """
    sampling, k = config.scheduled_sampling, config.scheduled_sampling.k
    about_k = "scheduled_sampling.k", "scheduled_sampling.decay"
    if k is not None and sampling.decay == "exponential" and k >= 1:
        yield about_k, "exponential decay needs k below 1"
    if k is not None and sampling.decay == "inverse_sigmoid" and k < 1:
        yield about_k, "inverse_sigmoid decay needs k of at least 1"
    option = "scheduled_sampling.backpropagate"
    reason = "a choice has no gradient"
    yield from needs(config, option, "scheduled_sampling.mixing", "top_k", reason=reason)


def guided_attention_rules(config: Config) -> Problems:
    """
    - `guided_attention.by: alignment` and `guided_attention.alignments` need each other.
    - `guided_attention.layer` must be at most the number of decoder layers
      (`model.num_decoder_layers`, or `model.num_layers`), and `guided_attention.heads` at most
      `model.num_heads`.
    - `guided_attention.by: alignment` cannot be combined with `subword.type: word`, and needs
      `subword.normalization: identity` or nfc (unless `subword.type` is vocabulary).
    - `guided_attention.by` cannot be combined with `scheduled_sampling.decay` or
      `subword.sampling`.
    - `guided_attention.alignments` cannot be combined with texts of `data.train` that have a tag or
      are reversed.
    """
    guided, subword, model = config.guided_attention, config.subword, config.model
    option = "guided_attention.by"
    if guided.by and (guided.layer or 0) > model.decoder_layers:
        layers = "model.num_decoder_layers", "model.num_layers"
        message = f"the model has {model.decoder_layers} decoder layers"
        yield ("guided_attention.layer", option, *layers), message
    if guided.by and guided.heads > model.num_heads:
        message = f"the model has {model.num_heads} heads"
        yield ("guided_attention.heads", option, "model.num_heads"), message
    yield from needs(config, "guided_attention.alignments", option, "alignment")
    if guided.by == "alignment":
        if guided.alignments is None:
            message = "guided_attention.by: alignment needs the file with the alignments"
            yield ("guided_attention.alignments", option), message
        types = *WITH_SYMBOLS, "vocabulary"
        reason = "several unknown words in a row are one word there"
        yield from needs(config, option, "subword.type", *types, reason=reason)
        if subword.type != "vocabulary":  # NFC leaves every space as it is.
            reason = "others may split or join words, which the alignments count"
            forms = "identity", "nfc"
            yield from needs(config, option, "subword.normalization", *forms, reason=reason)
    if guided.alignments and not all(text.is_plain for text in config.data.texts):
        message = "its links count the words of text without tags, which is not reversed"
        yield ("guided_attention.alignments", "data.train"), message
    for key, reason in (
        ("scheduled_sampling.decay", "it guides from true words, and others replace them"),
        ("subword.sampling", "it guides from the subwords that the corpus is encoded in"),
    ):
        yield from needs(config, option, key, None, reason=reason)


# The values that other keys must have with model.non_autoregressive, and why.
NON_AUTOREGRESSIVE_NEEDS = (
    ("model.copying", False, "it copies by the preceding words"),
    ("scheduled_sampling.decay", None, "there are no preceding words that could be replaced"),
    ("guided_attention.by", None, "its decoder reads masks, but words are what would be guided"),
    *(
        (f"decoding.{key}", DecodingConfig.model_fields[key].default, reason)
        for key, reason in NEEDS_PRECEDING_WORDS.items()
    ),
)


def kind_of_model_rules(config: Config) -> Problems:
    """
    - `model.copying` needs `subword.joint: true`.
    - `model.non_autoregressive` cannot be combined with `model.copying`,
      `scheduled_sampling.decay`, `guided_attention.by` or `decoding.sampling`, and needs
      `decoding.n_best: 1`, `decoding.segmentations: 1` and `decoding.shortlist: false`.
    - `model.non_autoregressive: length` needs `data.max_length` of at most 1024.
    """
    reason = "a subword is copied by its number, the same on both sides"
    yield from needs(config, "model.copying", "subword.joint", True, reason=reason)
    option = "model.non_autoregressive"
    if config.model.non_autoregressive == "length" and config.data.max_length > LONGEST_TARGET:
        message = f"needs data.max_length of at most {LONGEST_TARGET}: it knows no greater length"
        yield (option, "data.max_length"), message
    for key, needed, reason in NON_AUTOREGRESSIVE_NEEDS:
        yield from needs(config, option, key, needed, reason=reason)


def noise_rules(config: Config) -> Problems:
    """
    - `consistency.method` cannot be combined with `model.non_autoregressive`.
    - `consistency.weight` needs `consistency.method`.
    - `word_noise` cannot be combined with `model.non_autoregressive`.
    """
    other = "model.non_autoregressive"
    reason = "its masks would differ between the two passes"
    yield from needs(config, "consistency.method", other, None, reason=reason)
    methods = "r_drop", "sim_cut", "cutoff"
    yield from needs(config, "consistency.weight", "consistency.method", *methods)
    for key in ("source_dropout", "target_dropout", "source_replacement", "target_replacement"):
        yield from needs(config, f"word_noise.{key}", other, None, reason="its decoder reads masks")


RULES = [
    *(data_rules, subword_rules, model_rules, training_rules, adapter_rules, decoding_rules),
    *(scheduled_sampling_rules, guided_attention_rules, kind_of_model_rules, noise_rules),
]
