"""The configs of the golden models, and of trainings that only begin.

Paths are relative: training runs in a folder that `corpus.write` has filled.
"""

from __future__ import annotations

from typing import Any

from tests.golden.corpus import MAX_LENGTH

Recipe = dict[str, dict[str, Any]]

BASE: Recipe = {
    "data": {
        "root": "text",
        "dev": "dev",
        "test": "test",
        "held_out": 0,
        "source_lang": "en",
        "target_lang": "de",
        "max_length": MAX_LENGTH,
        "cache": "cache",
    },
    "subword": {"vocab_size": 180},
    "model": {
        "num_layers": 1,
        "d_model": 16,
        "num_heads": 2,
        "d_ff": 32,
        "norm": "pre",
        "dropout": 0.05,
    },
    "training": {
        "max_steps": 500,
        "batch_tokens": 600,
        "device_tokens": 600,
        "schedule": "inverse_sqrt",
        "warmup_steps": 60,
        "learning_rate": 0.02,
        "clip_norm": 1.0,
        "log_every": 100,
        "validate_every": 1200,
        "save_every": 1200,
        "keep_last": 1,
        "devices": 1,
        "seed": 3,
    },
    "decoding": {"beam_size": 4, "batch_tokens": 100, "max_length_extra": 10},
    "evaluation": {"samples": 1},
}

# The plain model has another checkpoint besides the last.
EARLIER = "step_250"

# What each golden model has in place of BASE.
MODELS: dict[str, Recipe] = {
    "plain": {"training": {"save_every": 250, "keep_last": 2}},
    # As many settings of the model as possible that are not the plain model's.
    "apart": {
        "subword": {"joint": False, "source_vocab_size": 130, "target_vocab_size": 120},
        "model": {
            "num_encoder_layers": 2,
            "norm": "post",
            "bias": False,
            "tie_embeddings": False,
            "dropout": 0.05,
            "embedding_dropout": 0.0,
            "attention_dropout": 0.05,
            "feed_forward_dropout": 0.05,
        },
        "training": {
            "optimizer": "adamw",
            "weight_decay": 0.01,
            "schedule": "noam",
            "learning_rate": None,
            "clip_norm": None,
            "best_metric": "loss",
        },
        "decoding": {"length_penalty": 0.6, "length_penalty_kind": "average"},
    },
    "alignment": {
        "model": {"copying": True},
        "guided_attention": {"by": "alignment", "alignments": "links"},
    },
    "length": {
        "subword": {"type": "word"},
        "model": {"non_autoregressive": "length"},
        "training": {"max_steps": 1200},
    },
}

# Those that keep the optimizer, so that training can go on.
CONTINUED = ("plain", "apart")

# Trainings of which only the first updates are recorded.
BEGINNINGS: dict[str, Recipe] = {
    "vocabulary": {
        "data": {"root": "cut"},
        "subword": {"type": "vocabulary", "vocabulary": "cut/vocabulary"},
        "model": {"norm": "post"},
    },
    "end": {
        "subword": {"type": "word"},
        "model": {"non_autoregressive": "end"},
        "training": {"max_steps": 1200},
        "decoding": {"max_length_ratio": 1.5, "max_length_extra": 4, "iterations": 3},
    },
    "scheduled": {
        "scheduled_sampling": {
            "decay": "exponential",
            "start": 250,
            "minimum": 0.5,
            "mixing": "sampled",
            "passes": 3,
        },
    },
    "diagonal": {
        "model": {"num_decoder_layers": 2},
        "guided_attention": {"by": "diagonal", "heads": 2},
    },
    "copying": {"model": {"copying": True}},
    "top_k": {
        "scheduled_sampling": {
            "decay": "linear",
            "k": 0.5,
            "mixing": "top_k",
            "top_k": 3,
            "backpropagate": True,
        },
    },
    "argmax_copying": {
        "model": {"copying": True},
        "scheduled_sampling": {"decay": "inverse_sigmoid", "k": 2.0},
    },
    "sgd": {"training": {"optimizer": "sgd", "schedule": "constant", "clip_norm": None}},
    "fine_tuning": {"training": {"init_from": "plain"}},
    "characters": {
        "data": {"max_length": 60},
        "subword": {"type": "char"},
        "training": {"label_smoothing": 0.0},
    },
    "unigram": {
        "data": {"max_length": 60},
        "subword": {"type": "unigram", "sampling": 0.2, "vocab_size": 60},
    },
    # Gradients are added up over several batches, too.
    "sampled": {
        "subword": {"sampling": 0.1},
        "model": {"num_layers": 2},
        "training": {"recompute": True, "device_tokens": 200},
    },
}


def config(name: str) -> dict[str, Any]:
    """The whole config of a model or a beginning, as YAML has it; its model_dir is its name."""
    own = (MODELS | BEGINNINGS)[name]
    sections = {key: {**BASE.get(key, {}), **own.get(key, {})} for key in {**BASE, **own}}
    return {"model_dir": name, **sections}


def is_non_autoregressive(name: str) -> bool:
    return "non_autoregressive" in config(name)["model"]
