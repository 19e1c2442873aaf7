"""The rules between the keys of the config. docs/config.md lists their docstrings."""

from transformer_mt.config.schema import Config
from transformer_mt.config.section import Problems, needs
from transformer_mt.data.datasets import DATASETS
from transformer_mt.mechanisms.consistency import config as consistency
from transformer_mt.mechanisms.copying import config as copying
from transformer_mt.mechanisms.guided_attention import config as guided_attention
from transformer_mt.mechanisms.mask_predict import config as mask_predict
from transformer_mt.mechanisms.scheduled_sampling import config as scheduled_sampling
from transformer_mt.mechanisms.word_noise import config as word_noise
from transformer_mt.training.schedule import SCHEDULES


def data_rules(config: Config) -> Problems:
    """
    - `data.dataset: files` needs `data.root`.
    - With another dataset, `data.train`, `data.dev` and `data.test` must be splits of it (train,
      dev or test), and the languages must be its languages (en and de).
    - `data.source_lang` and `data.target_lang` must differ.
    - `data.dataset: wmt14ende` needs `subword.type: vocabulary`.
    """
    data, subword = config.data, config.subword
    dataset, name = DATASETS[data.dataset], data.dataset
    own_text = "For text files of your own, give data.dataset: files, as in configs/template.yaml"
    if dataset.needs_root and data.root is None:
        message = f"data.dataset: {name} needs the folder that holds the files"
        yield ("data.root", "data.dataset"), message
    names = {"train": [text.text for text in data.texts], "dev": [data.dev], "test": [data.test]}
    for key, given in names.items():
        if dataset.splits and not {*given} <= {*dataset.splits, None}:
            message = f"{name} has the splits {', '.join(dataset.splits)}. {own_text}"
            yield (f"data.{key}", "data.dataset"), message
    if data.target_lang == data.source_lang:
        yield ("data.target_lang", "data.source_lang"), "must differ from data.source_lang"
    for key in ("source_lang", "target_lang"):
        if dataset.languages and getattr(data, key) not in dataset.languages:
            message = f"{name} has the languages {' and '.join(dataset.languages)}. {own_text}"
            yield (f"data.{key}", "data.dataset"), message
    if dataset.is_bpe and subword.type != "vocabulary":
        message = f"data.dataset: {name} is BPE'd text, it needs type: vocabulary"
        yield ("subword.type", "data.dataset"), message


def subword_rules(config: Config) -> Problems:
    """
    - `subword.sampling` needs `subword.type: bpe` or `unigram`.
    - `subword.type: vocabulary` needs `subword.joint: true`, and `subword.vocabulary` unless
      `data.dataset` has a vocabulary of its own.
    - `subword.vocabulary` needs `subword.type: vocabulary`.
    - `subword.source_vocab_size` and `subword.target_vocab_size` need `subword.joint: false`.
    - `subword.user_symbols` needs `subword.type: bpe`, `unigram` or `char`.
    - With these types, each tag of `data.train` must be one of `subword.user_symbols`, unless the
      subwords are those of `training.init_from`.
    """
    subword = config.subword
    has_symbols = subword.type in ("bpe", "unigram", "char")
    if subword.user_symbols and not has_symbols:
        yield ("subword.user_symbols", "subword.type"), "needs subword.type: bpe, unigram or char"
    tags = {text.tag: None for text in config.data.texts if text.tag is not None}
    missing = [tag for tag in tags if tag not in subword.user_symbols]
    if missing and has_symbols and config.training.init_from is None:
        keys = "subword.user_symbols", "subword.type", "data.train", "training.init_from"
        yield keys, f"must have the tags of data.train; missing: {', '.join(missing)}"
    if subword.sampling is not None and subword.type not in ("bpe", "unigram"):
        yield ("subword.sampling", "subword.type"), "needs subword.type: bpe or unigram"
    if not subword.joint and subword.type == "vocabulary":
        message = "subword.type: vocabulary is one vocabulary for both sides"
        yield ("subword.joint", "subword.type"), message
    for key in ("subword.source_vocab_size", "subword.target_vocab_size"):
        yield from needs(config, key, "subword.joint", False)
    yield from needs(config, "subword.vocabulary", "subword.type", "vocabulary")
    needs_file = subword.type == "vocabulary" and not DATASETS[config.data.dataset].is_bpe
    if needs_file and not subword.vocabulary:
        keys = "subword.vocabulary", "subword.type", "data.dataset"
        yield keys, "type: vocabulary needs the file with the types"


def model_rules(config: Config) -> Problems:
    """
    - `model.num_heads` must divide `model.d_model`.
    """
    model = config.model
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
    - `training.weight_decay` needs `training.optimizer: adamw` or `muon`.
    - `training.optimizer: muon` can't be used with `training.sharding`.
    """
    training, schedule = config.training, SCHEDULES[config.training.schedule]
    if training.max_epochs is None and training.max_steps is None:
        keys = "training.max_epochs", "training.max_steps"
        yield keys, "give training.max_steps or training.max_epochs"
    if schedule.needs_warmup and not training.warmup_steps:
        message = f"schedule {training.schedule} needs at least 1"
        yield ("training.warmup_steps", "training.schedule"), message
    if schedule.default_peak is None and training.learning_rate is None:
        message = f"schedule {training.schedule} needs a rate"
        yield ("training.learning_rate", "training.schedule"), message
    about_decay = "training.decay_steps", "training.schedule"
    if schedule.ends and training.decay_steps is None:
        yield about_decay, f"schedule {training.schedule} needs the step at which the rate is 0"
    if not schedule.ends and training.decay_steps is not None:
        yield about_decay, "needs training.schedule: linear or cosine"
    if training.decay_steps is not None and training.decay_steps <= training.warmup_steps:
        message = f"must be more than training.warmup_steps ({training.warmup_steps})"
        yield ("training.decay_steps", "training.warmup_steps"), message
    if (training.average_last or 0) > training.keep_last:
        message = f"is more than training.keep_last ({training.keep_last})"
        yield ("training.average_last", "training.keep_last"), message
    if training.weight_decay and training.optimizer not in ("adamw", "muon"):
        about_weights = "training.weight_decay", "training.optimizer"
        yield about_weights, "needs training.optimizer: adamw or muon"
    if training.optimizer == "muon" and training.sharding:
        message = "needs training.optimizer: adam, adamw or sgd. Muon updates whole matrices"
        yield ("training.sharding", "training.optimizer"), message


def decoding_rules(config: Config) -> Problems:
    """
    - `decoding.n_best` must be at most `decoding.beam_size`, unless `decoding.sampling` is true.
    - `decoding.segmentations` above 1 needs `subword.type: bpe` or `unigram`, and
      `subword.sampling` or `decoding.segmentation_rate`.
    """
    decoding, subword = config.decoding, config.subword
    if decoding.n_best > decoding.beam_size and not decoding.sampling:
        keys = "decoding.n_best", "decoding.beam_size", "decoding.sampling"
        yield keys, f"is more than decoding.beam_size ({decoding.beam_size})"
    if decoding.segmentations > 1:
        if subword.type not in ("bpe", "unigram"):
            keys = "decoding.segmentations", "subword.type"
            yield keys, f"needs subword.type: bpe or unigram, but it is {subword.type}"
        elif subword.sampling is None and decoding.segmentation_rate is None:
            keys = "decoding.segmentations", "decoding.segmentation_rate", "subword.sampling"
            message = (
                "the model was not trained with subword.sampling. Train one with it, or give "
                "decoding.segmentation_rate"
            )
            yield keys, message


RULES = [
    *(data_rules, subword_rules, model_rules, training_rules, decoding_rules),
    *(module.rules for module in (scheduled_sampling, guided_attention, copying, mask_predict)),
    *(module.rules for module in (consistency, word_noise)),
]
