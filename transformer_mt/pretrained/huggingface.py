"""MarianMT models of Hugging Face: reads the folder that `transformers` writes, and writes one.

config.json                  sizes and form
model.safetensors            the weights, or pytorch_model.bin
source.spm, target.spm       SentencePiece models
vocab.json                   the ids of their subwords; with target_vocab.json, those of the source
tokenizer_config.json        the languages
generation_config.json       how `transformers` translates with it
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from transformer_mt.config.schema import Config, ModelConfig
from transformer_mt.data.marian_vocabulary import MarianVocabulary
from transformer_mt.data.subword import Subwords
from transformer_mt.data.vocabulary import SentencePieceVocabulary
from transformer_mt.pretrained.model import (
    STARTS,
    UNK,
    Pretrained,
    Problems,
    Tensors,
    read_subwords,
    untied,
    with_start,
)
from transformer_mt.pretrained.names import of_layers, to_theirs
from transformer_mt.pretrained.sources import HUGGING_FACE_WEIGHTS, Source
from transformer_mt.utils.errors import UserError
from transformer_mt.weights import WEIGHTS, write_tensors

_ACTIVATIONS = {"relu": "relu", "swish": "swish", "silu": "swish", "gelu": "gelu"}
# The epsilon of PyTorch's layer norms, which MarianMT's config can't change.
_EPSILON = 1e-5
_SOURCE_EMBEDDING = "model.encoder.embed_tokens.weight"
_TARGET_EMBEDDING = "model.decoder.embed_tokens.weight"
_SHARED_EMBEDDING = "model.shared.weight"
_OUTPUT, _OUTPUT_BIAS = "lm_head.weight", "final_logits_bias"
# Older files hold these tables, which follow from d_model.
_POSITIONS = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")


def read(source: Source) -> Pretrained:
    """Reads a model of Hugging Face.

    Raises:
        UserError: a file is missing or damaged, or the model is of another form than ours. All
            reasons are told at once.
    """
    problems = Problems(source.title)
    config = source.json("config.json")
    model = _model(config, problems)
    is_tied = model.tie_embeddings
    is_shared = config.get("share_encoder_decoder_embeddings", True) is not False
    names = "vocab.json", "target_vocab.json"
    vocabularies = [source.vocabulary(name) for name in names if name in source.names]
    special = _special(config, vocabularies, problems)
    problems.raise_if_any()

    weights_file = next(name for name in HUGGING_FACE_WEIGHTS if name in source.names)
    found = Tensors(source.tensors(weights_file), model, problems)
    embeddings = {"target_embedding.weight": [_TARGET_EMBEDDING, _SHARED_EMBEDDING]}
    if is_shared and is_tied:
        # A file may have the matrix under one of its names, or under all of them.
        embeddings["target_embedding.weight"] = [
            *(_SHARED_EMBEDDING, _TARGET_EMBEDDING, _SOURCE_EMBEDDING, _OUTPUT)
        ]
    if not (is_shared and is_tied and len(vocabularies) == 1):
        # Without tying, `transformers` reads both embeddings, also if they are said to be shared.
        embeddings["source_embedding.weight"] = [_SOURCE_EMBEDDING, _SHARED_EMBEDDING]
    if not is_tied:
        embeddings["generator.weight"] = [_OUTPUT]
    sizes = {"source": len(vocabularies[0]), "target": len(vocabularies[-1])}
    for ours, theirs in embeddings.items():
        side = "source" if ours.startswith("source") else "target"
        found.take(theirs, ours, (sizes[side], model.d_model))
    found.take_output_bias(_OUTPUT_BIAS, sizes["target"])
    found.take_layers("huggingface")
    # Tied matrices are often saved under each name, and in some files they differ. The embedding is
    # the right one: `transformers` 4, with which these files were made, ignores the other one.
    found.ignore(*_POSITIONS, _SHARED_EMBEDDING, _SOURCE_EMBEDDING, _TARGET_EMBEDDING, _OUTPUT)
    found.require_all_taken()
    problems.raise_if_any()

    model, weights = untied(model, found.weights, is_joint=len(vocabularies) == 1)
    numbered = [(pieces, special) for pieces in vocabularies]
    if special["bos"] == special["pad"]:
        weights = with_start(weights, special["pad"])
        numbered = [
            (
                [*pieces, next(name for name in STARTS if name not in pieces)],
                {**special, "bos": len(pieces)},
            )
            for pieces in vocabularies
        ]
    subwords = read_subwords(source, numbered)
    return Pretrained(
        model, weights, subwords, _languages(source), _beam_size(config), _license(source)
    )


def _model(config: dict[str, Any], problems: Problems) -> ModelConfig:
    """Returns the sizes and the form of a model, and adds what ours can't have."""
    require = problems.require
    for key in ("normalize_before", "normalize_embedding", "add_final_layer_norm"):
        require(config, key, False, None, reason="MarianMT has no such layer norm")
    require(config, "scale_embedding", True, reason="the embeddings must be scaled")
    require(config, "static_position_embeddings", True, reason="the positions must be sinusoidal")
    require(config, "add_bias_logits", False, reason="it is not known what it adds")
    reason = f"known are {', '.join(_ACTIVATIONS)}"
    require(config, "activation_function", *_ACTIVATIONS, reason=reason)
    if "scale_embedding" not in config:
        problems.add("scale_embedding is missing, and false is the default of MarianMT")
    keys = {
        "num_encoder_layers": ("encoder_layers",),
        "num_decoder_layers": ("decoder_layers",),
        "d_model": ("d_model",),
        "num_heads": ("encoder_attention_heads", "decoder_attention_heads"),
        "d_ff": ("encoder_ffn_dim", "decoder_ffn_dim"),
    }
    sizes: dict[str, Any] = {}
    for ours, theirs in keys.items():
        values = [config.get(key) for key in theirs]
        value = values[0]
        if type(value) is not int or not 0 < value <= 2**16:
            problems.add(f"{theirs[0]}: {value!r}: it must be a natural number")
        elif values != [value] * len(values):
            listed = " and ".join(theirs)
            problems.add(f"{listed} differ ({value} and {values[-1]}); here they are one number")
        else:
            sizes[ours] = value
    if not problems and sizes["d_model"] % sizes["num_heads"]:
        problems.add(f"d_model: {sizes['d_model']}: the heads do not divide it")
    if problems:
        return ModelConfig()
    sizes["activation"] = _ACTIVATIONS[config.get("activation_function", "gelu")]
    dropouts = {
        "dropout": "dropout",
        "attention_dropout": "attention_dropout",
        "feed_forward_dropout": "activation_dropout",
    }
    rates = {ours: config.get(theirs) for ours, theirs in dropouts.items()}
    sizes |= {name: rate for name, rate in rates.items() if type(rate) is float and 0 <= rate < 1}
    return ModelConfig(
        **sizes,
        num_layers=sizes["num_encoder_layers"],
        tie_embeddings=config.get("tie_word_embeddings", True) is not False,
        output_bias=True,
    )


def _special(
    config: dict[str, Any], vocabularies: list[list[str]], problems: Problems
) -> dict[str, int]:
    """Returns the ids of the special subwords. That of bos may be that of pad."""
    keys = {"pad": "pad_token_id", "eos": "eos_token_id", "bos": "decoder_start_token_id"}
    special = {}
    for name, key in keys.items():
        value = config.get(key)
        for pieces in vocabularies:
            if type(value) is not int or not 0 <= value < len(pieces):
                problems.add(f"{key}: {value!r}: it is no id of the {len(pieces):,} subwords")
        special[name] = value
    unknown = {pieces.index(UNK) if UNK in pieces else None for pieces in vocabularies}
    if len(unknown) > 1 or None in unknown:
        problems.add(f"the vocabulary has no {UNK}, or another one for each side")
    special["unk"] = unknown.pop()
    return special


def _beam_size(config: dict[str, Any]) -> int:
    beams = config.get("num_beams")
    return beams if type(beams) is int and 0 < beams <= 100 else 4


def _languages(source: Source) -> tuple[str | None, str | None]:
    """Returns the languages that tokenizer_config.json says, or the name of the model."""
    found: list[Any] = [None, None]
    if "tokenizer_config.json" in source.names:
        values = source.json("tokenizer_config.json")
        found = [values.get("source_lang"), values.get("target_lang")]
    match = re.search(r"opus-mt(?:-tc-\w+)?-([a-zA-Z_]+)-([a-zA-Z_]+)/?$", source.title)
    if None in found and match:
        found = [match[1], match[2]]
    codes = [one if isinstance(one, str) and one.strip() else None for one in found]
    return codes[0], codes[1]


def _license(source: Source) -> str | None:
    """Returns the license in the metadata of the model card."""
    if "README.md" not in source.names:
        return None
    text = source.read("README.md").decode("utf-8", "replace")
    match = re.match(r"---\n(?:.*\n)*?license:[ \t]*([\w.+-]+)[ \t]*\n(?:.*\n)*?---", text)
    return match[1] if match else None


# ---- Writing ----


def unsupported(config: Config, subwords: Subwords) -> list[str]:
    """Lists what a model has that MarianMT of `transformers` can't have."""
    model = config.model
    allowed: dict[str, tuple[Any, ...]] = {
        "norm": ("post",),
        "norm_epsilon": (_EPSILON,),
        "positions": ("sinusoidal",),
        "bias": (True,),
        "activation": tuple(_ACTIVATIONS),
        "copying": (False,),
        "non_autoregressive": (None,),
    }
    problems = [
        f"model.{key}: {getattr(model, key)}: MarianMT of transformers has only "
        + " or ".join(map(str, values))
        for key, values in allowed.items()
        if getattr(model, key) not in values
    ]
    for vocabulary in subwords.vocabularies:
        if not isinstance(vocabulary, SentencePieceVocabulary):
            return [*problems, "subword.type: vocabulary: MarianMT has SentencePiece models"]
    sizes = {vocabulary.size for vocabulary in subwords.vocabularies}
    special = {tuple(vocabulary.special) for vocabulary in subwords.vocabularies}
    if len(sizes) > 1 or len(special) > 1:
        problems.append(
            "the vocabularies of source and target have different sizes or special subwords"
        )
    return problems


def write(folder: Path, weights: dict[str, np.ndarray], config: Config, subwords: Subwords) -> None:
    """Writes a model as a folder that `MarianMTModel.from_pretrained` and
    `MarianTokenizer.from_pretrained` load.

    Args:
        folder: an existing folder.
        weights: those of a checkpoint.

    Raises:
        UserError: MarianMT can't hold something of the model; every problem is listed, and nothing
            is written.
    """
    if problems := unsupported(config, subwords):
        listed = "\n".join(f"  {problem}" for problem in problems)
        raise UserError(f"the model can't be exported to Hugging Face's MarianMT:\n{listed}")
    tensors = _tensors(weights, config.model, subwords)
    write_tensors(folder / WEIGHTS, tensors, metadata={"format": "pt"})
    is_shared = _SHARED_EMBEDDING in tensors
    for name, values in (
        ("config.json", _config(config, subwords, is_shared)),
        ("generation_config.json", _generation(config, subwords)),
        ("tokenizer_config.json", _tokenizer(config, subwords)),
        ("vocab.json", _ids(subwords.source)),
        *([] if subwords.joint else [("target_vocab.json", _ids(subwords.target))]),
    ):
        text = json.dumps(values, ensure_ascii=False, indent=2)
        (folder / name).write_text(f"{text}\n", encoding="utf-8")
    for name, side in (("source.spm", subwords.source), ("target.spm", subwords.target)):
        (folder / name).write_bytes(_spm(side))


def _tensors(
    weights: dict[str, np.ndarray], model: ModelConfig, subwords: Subwords
) -> dict[str, np.ndarray]:
    """Returns the weights by the names of `transformers`."""
    theirs = {ours: to_theirs(ours, weight, model.d_model) for ours, weight in weights.items()}
    found = {}
    for weight in of_layers(model):
        tensor = theirs[weight.ours]
        found[weight.huggingface] = tensor.T if tensor.ndim == 2 else tensor
    target = theirs["target_embedding.weight"]
    if "source_embedding.weight" in theirs:
        found[_SOURCE_EMBEDDING] = theirs["source_embedding.weight"]
        found[_TARGET_EMBEDDING] = target
    else:
        found[_SHARED_EMBEDDING] = target
    if "generator.weight" in theirs:
        found[_OUTPUT] = theirs["generator.weight"]
    size = subwords.target.size
    bias = theirs.get("generator.bias", np.zeros(size, np.float32))
    found[_OUTPUT_BIAS] = bias[np.newaxis]
    return found


def _config(config: Config, subwords: Subwords, is_shared: bool) -> dict[str, Any]:
    model, target = config.model, subwords.target
    return {
        "architectures": ["MarianMTModel"],
        "model_type": "marian",
        "d_model": model.d_model,
        "encoder_layers": model.encoder_layers,
        "decoder_layers": model.decoder_layers,
        "encoder_attention_heads": model.num_heads,
        "decoder_attention_heads": model.num_heads,
        "encoder_ffn_dim": model.d_ff,
        "decoder_ffn_dim": model.d_ff,
        "activation_function": model.activation,
        "dropout": model.dropout,
        "attention_dropout": model.attention_dropout,
        "activation_dropout": model.feed_forward_dropout,
        "encoder_layerdrop": 0.0,
        "decoder_layerdrop": 0.0,
        "init_std": 0.02,
        "is_encoder_decoder": True,
        "max_position_embeddings": 1024,
        "scale_embedding": True,
        "static_position_embeddings": True,
        "normalize_before": False,
        "normalize_embedding": False,
        "share_encoder_decoder_embeddings": is_shared,
        "tie_word_embeddings": model.tie_embeddings,
        "vocab_size": subwords.source.size,
        "decoder_vocab_size": target.size,
        "num_hidden_layers": model.encoder_layers,
        "use_cache": True,
        "dtype": "float32",
        **_token_ids(subwords),
    }


def _token_ids(subwords: Subwords) -> dict[str, Any]:
    target = subwords.target
    return {
        "bos_token_id": target.bos,
        "decoder_start_token_id": target.bos,
        "eos_token_id": target.eos,
        "forced_eos_token_id": target.eos,
        "pad_token_id": target.pad,
    }


def _generation(config: Config, subwords: Subwords) -> dict[str, Any]:
    target = subwords.target
    return {
        **_token_ids(subwords),
        "bad_words_ids": [[target.pad], [target.bos]],
        "max_length": 512,
        "num_beams": config.decoding.beam_size,
        "renormalize_logits": True,
    }


def _tokenizer(config: Config, subwords: Subwords) -> dict[str, Any]:
    target = subwords.target
    unk, eos, pad = target.pieces([target.unk, target.eos, target.pad])
    return {
        "tokenizer_class": "MarianTokenizer",
        "source_lang": config.data.source_lang,
        "target_lang": config.data.target_lang,
        "unk_token": unk,
        "eos_token": eos,
        "pad_token": pad,
        "model_max_length": 512,
        "separate_vocabs": not subwords.joint,
    }


def _ids(vocabulary: Any) -> dict[str, int]:
    return {piece: i for i, piece in enumerate(vocabulary.pieces(range(vocabulary.size)))}


def _spm(vocabulary: Any) -> bytes:
    is_marian = isinstance(vocabulary, MarianVocabulary)
    return vocabulary.model if is_marian else vocabulary.content()
