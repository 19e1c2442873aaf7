"""The rules between the keys of a config, and what follows from several keys together."""

import typing

import pytest
import yaml

from transformer_mt.config import file as config_file
from transformer_mt.config.decoding import EvaluationConfig
from transformer_mt.config.schema import TrainingConfig
from transformer_mt.config.text import DataConfig
from transformer_mt.data.datasets import DATASETS
from transformer_mt.scoring.metrics import METRICS, TOKENIZERS
from transformer_mt.training.schedule import SCHEDULES
from transformer_mt.utils.errors import UsageError

VALID = """\
model_dir: runs/x
data: {root: text, source_lang: en, target_lang: de}
training: {max_steps: 10}
"""


# Options that do not go together, and how each problem that is told begins.
CLASHES = {
    "model: {copying: true}\nsubword: {joint: false}": ["model.copying: True: needs subword.joint"],
    "data: {root: text, source_lang: en, target_lang: de, protect: [tags]}\n"
    "subword: {type: word}\nguided_attention: {by: alignment, alignments: a}": [
        "data.protect: ['tags']: needs subword.type: bpe or unigram or char",
        "data.protect: ['tags']: needs guided_attention.by: null or diagonal",
        "guided_attention.by: 'alignment': needs subword.type",
    ],
    "data: {root: text, source_lang: en, target_lang: de, drop_unmatched: true}": [
        "data.drop_unmatched: True: needs data.protect"
    ],
    "model: {copying: true, non_autoregressive: end}": [
        "model.non_autoregressive: 'end': needs model.copying: false"
    ],
    "guided_attention: {by: diagonal}\n"
    "subword: {sampling: 0.1}\nscheduled_sampling: {decay: linear}": [
        "guided_attention.by: 'diagonal': needs scheduled_sampling.decay: null",
        "guided_attention.by: 'diagonal': needs subword.sampling: null",
    ],
    "model: {non_autoregressive: length}\nscheduled_sampling: {decay: linear}\n"
    "guided_attention: {by: diagonal}\ndecoding: {sampling: true, n_best: 2}": [
        "guided_attention.by: 'diagonal': needs scheduled_sampling.decay: null",
        "model.non_autoregressive: 'length': needs scheduled_sampling.decay: null",
        "model.non_autoregressive: 'length': needs guided_attention.by: null",
        "model.non_autoregressive: 'length': needs decoding.sampling: false",
        "model.non_autoregressive: 'length': needs decoding.n_best: 1",
    ],
    "model: {non_autoregressive: length}\n"
    "data: {root: text, source_lang: en, target_lang: de, max_length: 1025}": [
        "model.non_autoregressive: 'length': needs data.max_length of at most 1024"
    ],
    "decoding: {segmentations: 2}": ["decoding.segmentations: 2: the model was not trained with"],
    "decoding: {segmentations: 2, segmentation_rate: 0.1}\nsubword: {type: char}": [
        "decoding.segmentations: 2: needs subword.type: bpe or unigram"
    ],
    "decoding: {shortlist: true}\nmodel: {copying: true}": [
        "decoding.shortlist: True: needs model.copying: false: a subword that is copied need not"
    ],
    "decoding: {shortlist: true}\nmodel: {non_autoregressive: end}": [
        "model.non_autoregressive: 'end': needs decoding.shortlist: false"
    ],
    "decoding: {segmentations: 2}\nsubword: {sampling: 0.1}\nmodel: {non_autoregressive: end}": [
        "model.non_autoregressive: 'end': needs decoding.segmentations: 1"
    ],
    "guided_attention: {by: alignment}": ["guided_attention.alignments: null: guided_attention.by"],
    "guided_attention: {by: alignment, alignments: a, layer: 4, heads: 9}\n"
    "model: {num_layers: 6, num_decoder_layers: 3}\nsubword: {type: word}": [
        "guided_attention.layer: 4: the model has 3 decoder layers",
        "guided_attention.heads: 9: the model has 8 heads",
        "guided_attention.by: 'alignment': needs subword.type: bpe or unigram or char",
    ],
    "guided_attention: {by: diagonal, alignments: a}": ["guided_attention.alignments: 'a': needs"],
    "guided_attention: {by: alignment, alignments: a}\n"
    "subword: {type: bpe, vocab_size: 99, normalization: nmt_nfkc}": [
        "guided_attention.by: 'alignment': needs subword.normalization: identity"
    ],
    "consistency: {weight: 3}": ["consistency.weight: 3: needs consistency.method"],
    "scheduled_sampling: {decay: exponential, k: 1.0}": ["scheduled_sampling.k: 1.0: exponential"],
    "scheduled_sampling: {decay: inverse_sigmoid, k: 0.5}": ["scheduled_sampling.k: 0.5: inverse"],
    "scheduled_sampling: {decay: linear, backpropagate: true}": [
        "scheduled_sampling.backpropagate: True: needs scheduled_sampling.mixing: top_k"
    ],
    # Nothing is written for these keys: they are missing.
    "data: {source_lang: en, target_lang: de}\ntraining: {schedule: constant}": [
        "data.root: null: data.dataset: files needs the folder",
        "training.max_epochs: null: give training.max_steps",
        "training.learning_rate: null: schedule constant needs",
    ],
    # Whoever copies the recipe of a known corpus for other text makes these mistakes.
    "data: {dataset: multi30k, source_lang: fr, target_lang: de, dev: val}": [
        "data.dev: 'val': multi30k has only train, dev, test; for text files of your own",
        "data.source_lang: 'fr': multi30k has only en, de; for text files of your own",
    ],
}


@pytest.mark.parametrize(("options", "reasons"), CLASHES.items(), ids=range(len(CLASHES)))
def test_options_that_do_not_go_together_are_refused_with_the_reason(problems, options, reasons):
    given = {line.partition(":")[0] for line in options.split("\n")}
    valid = "".join(f"{line}\n" for line in VALID.splitlines() if line.split(":")[0] not in given)
    found = problems(valid + options)[1:]
    assert len(found) == len(reasons)
    for problem, reason in zip(found, reasons, strict=True):
        assert problem.startswith(reason)


@pytest.mark.parametrize(
    ("guided", "expected_guided", "expected_alignment"),
    [
        ("{}", (1, 1), (1, 4)),
        ("{by: diagonal, layer: 3, heads: 2}", (2, 2), (1, 4)),
        ("{by: alignment, alignments: a, heads: 2}", (1, 2), (1, 2)),
        ("{by: alignment, alignments: a, layer: 1}", (0, 1), (0, 1)),
    ],
)
def test_the_heads_that_tell_of_words(load, guided, expected_guided, expected_alignment):
    model = "model: {num_layers: 6, num_decoder_layers: 3, num_heads: 4}\n"
    config = load(f"{VALID}{model}guided_attention: {guided}")
    assert config.guided_attention.guided_heads(config.model.decoder_layers) == expected_guided
    assert config.alignment_heads == expected_alignment
    assert load(VALID + "model: {num_layers: 1}").alignment_heads == (0, 8)


@pytest.mark.parametrize(
    ("text", "key", "expected"),
    [
        ("guided_attention: {by: diagonal}", "weight", 1.0),
        ("guided_attention: {by: alignment, alignments: a}", "weight", 0.05),
        ("guided_attention: {by: diagonal, weight: 0.3}", "weight", 0.3),
        ("scheduled_sampling: {}", "k", None),
        ("scheduled_sampling: {decay: linear}", "k", 1.0),
        ("scheduled_sampling: {decay: exponential, k: null}", "k", 0.9999),
        ("scheduled_sampling: {decay: inverse_sigmoid}", "k", 1000.0),
        ("scheduled_sampling: {decay: inverse_sigmoid, k: 20}", "k", 20.0),
    ],
)
def test_defaults_that_depend_on_another_key_are_in_the_saved_config(load, text, key, expected):
    config = load(f"{VALID}{text}")
    section = text.partition(":")[0]
    assert getattr(getattr(config, section), key) == expected
    assert yaml.safe_load(config_file.dump(config))[section][key] == expected


def test_a_rule_is_checked_beside_a_wrong_value_of_its_section_but_never_on_one(problems):
    text = VALID + "model: {num_heads: 7, d_ff: x}\nguided_attention: {by: diagonal, heads: 9}\n"
    assert problems(text) == [
        ": 3 problems",
        "model.d_ff: 'x': expected a whole number",
        "model.num_heads: 7: must divide model.d_model (512)",
        "guided_attention.heads: 9: the model has 7 heads",
    ]
    assert problems(text.replace("num_heads: 7", "num_heads: many")) == [
        ": 2 problems",
        "model.num_heads: 'many': expected a whole number",
        "model.d_ff: 'x': expected a whole number",
    ]


def test_the_names_of_the_schema_are_those_of_the_registries():
    """They are written in two places, because the config is below what it configures."""
    assert choices(DataConfig, "dataset") == tuple(DATASETS)
    assert choices(TrainingConfig, "schedule") == tuple(SCHEDULES)
    assert choices(TrainingConfig, "best_metric") == (*METRICS, "loss", "perplexity")
    assert choices(EvaluationConfig, "tokenize") == tuple(TOKENIZERS)


def choices(section, key):
    annotation = section.model_fields[key].annotation
    (literal,) = (
        kind
        for kind in (annotation, *typing.get_args(annotation))
        if typing.get_origin(kind) is typing.Literal
    )
    return typing.get_args(literal)


@pytest.mark.parametrize("name", DATASETS)
def test_the_rules_know_what_each_dataset_has(problems, name):
    dataset = DATASETS[name]
    text = VALID.replace("root: text, source_lang: en", f"dataset: {name}, source_lang: fr")
    keys = {line.partition(":")[0] for line in problems(text, "data.dev=val")[1:]}
    expected = {
        "data.root": dataset.needs_root,
        "data.dev": not dataset.needs_root,
        "data.source_lang": not dataset.needs_root,
        "data.dataset": dataset.vocabulary_types is not None,
    }
    assert keys == {key for key, is_wrong in expected.items() if is_wrong}


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_rules_know_what_each_schedule_needs(problems, name):
    text = VALID.replace("max_steps: 10", "warmup_steps: 0")
    keys = {line.partition(":")[0] for line in problems(text, f"training.schedule={name}")[1:]}
    expected = {
        "training.max_epochs": True,
        "training.warmup_steps": name in ("noam", "inverse_sqrt"),
        "training.learning_rate": name != "noam",
        "training.decay_steps": name in ("linear", "cosine"),
    }
    assert keys == {key for key, is_wrong in expected.items() if is_wrong}


def test_what_goes_with_the_subwords_of_another_model(tmp_path):
    """An imported model keeps such a config; words of a file get symbols only in fine-tuning."""

    def load(text):
        path = tmp_path / "recipe.yaml"
        path.write_text(VALID + text)
        return config_file.load(path)

    for keys in ("user_symbols: [<x>]", "sampling: 0.1", "joint: false"):
        assert load(f"subword: {{type: marian, {keys}}}\n").subword.type == "marian"
    load("subword: {type: marian}\ndecoding: {segmentations: 2, segmentation_rate: 0.1}\n")
    words = "subword: {type: vocabulary, vocabulary: file, user_symbols: [<x>]}\n"
    with pytest.raises(UsageError, match=r"subword\.user_symbols: .*needs subword\.type"):
        load(words)
    started = VALID.replace("max_steps: 10", "max_steps: 10, init_from: other")
    (tmp_path / "recipe.yaml").write_text(started + words)
    assert config_file.load(tmp_path / "recipe.yaml").subword.user_symbols == ["<x>"]
