"""Models of Marian, as OPUS-MT publishes them: a zip archive, or its folder.

NAME.npz                     the weights, with the options of the training in special:model.yml
decoder.yml                  how Marian translates with it
NAME.vocab.yml               the ids of the subwords; with two such files, of each side
source.spm, target.spm       SentencePiece models
LICENSE                      the license
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from transformer_mt.config.schema import ModelConfig
from transformer_mt.pretrained.marian_files import OPTIONS, read_options
from transformer_mt.pretrained.model import (
    EOS,
    PAD,
    STARTS,
    UNK,
    Pretrained,
    Problems,
    Tensors,
    read_subwords,
    untied,
    with_start,
)
from transformer_mt.pretrained.sources import Source
from transformer_mt.utils.errors import UserError

# Options that change what a model computes, with the values that ours can have. Marian writes all
# options into a model; an option that is not there has the first value.
_OPTIONS: dict[str, tuple[Any, ...]] = {
    "type": ("transformer",),
    "transformer-decoder-autoreg": ("self-attention",),
    "transformer-ffn-depth": (2,),
    "transformer-tied-layers": ([],),
    "transformer-no-projection": (False,),
    "transformer-no-bias": (False,),
    "transformer-no-affine": (False,),
    "transformer-train-position-embeddings": (False,),
    "transformer-train-positions": (False,),
    "transformer-postprocess-emb": ("d", ""),
    "transformer-decoder-dim-ffn": (0, None),
    "transformer-decoder-ffn-depth": (0, 2),
    "transformer-disable-position-embeddings": (False,),
    "transformer-alibi-decoder": (False,),
    "transformer-alibi-encoder": (False,),
    "transformer-pool": (False,),
    "transformer-rnn-projection": (False,),
    "transformer-depth-scaling": (False, True),  # it concerns the initial weights alone
    "factors-combine": ("sum",),
    "factors-dim-emb": (0,),
    "lemma-dim-emb": (0,),
    "lemma-dependency": ("",),
    "ulr": (False,),
    "input-types": ([], ["sequence"], ["sequence", "sequence"]),
}
_WHY = {
    "type": "only the Transformer can be imported",
    "transformer-decoder-autoreg": "its decoder has no self-attention, as small models for "
    "browsers (SSRU, AAN)",
    "transformer-tied-layers": "its layers share weights",
    "lemma-dim-emb": "its vocabulary has factors",
    "factors-dim-emb": "its vocabulary has factors",
}
# Where a layer normalises: the options preprocess, postprocess and postprocess-top.
_NORMS = {("", "dan", ""): "post", ("n", "da", "n"): "pre"}


def read(source: Source) -> Pretrained:
    """Reads a model of Marian.

    Raises:
        UserError: a file is missing or damaged, or the model is of another form than ours. All
            reasons are told at once.
    """
    decoder = source.yaml("decoder.yml") if "decoder.yml" in source.names else {}
    weights_file = _weights_file(source, decoder)
    tensors = source.tensors(weights_file)
    problems = Problems(source.title)
    try:
        options = read_options(tensors)
    except ValueError as error:
        raise UserError(f"{source.title}/{weights_file}: {error}") from None
    vocabularies = [source.vocabulary(name) for name in _vocabulary_files(source, decoder)]
    for number, pieces in enumerate(vocabularies):
        if any("|" in piece and re.search(r"\|[a-z]+\d*$", piece) for piece in pieces[2:12]):
            problems.add(f"vocabulary {number + 1} has factors")
        for name in (EOS, UNK):
            if name not in pieces:
                problems.add(f"vocabulary {number + 1} has no {name}")
    model = _model(options, tensors, problems)
    problems.raise_if_any()

    found = Tensors(tensors, model, problems)
    sizes = len(vocabularies[0]), len(vocabularies[-1])
    has_one = len(vocabularies) == 1 and "Wemb" in tensors
    embeddings: dict[str, tuple[list[str], int]] = {
        "target_embedding.weight": (["decoder_Wemb", "Wemb"], sizes[1])
    }
    if not (has_one and model.tie_embeddings):
        embeddings["source_embedding.weight"] = (["encoder_Wemb", "Wemb"], sizes[0])
    for ours, (names, size) in embeddings.items():
        found.take(names, ours, (size, model.d_model))
    if not model.tie_embeddings:
        shape = sizes[1], model.d_model
        if "decoder_ff_logit_out_W" in tensors:  # (d_model, vocabulary), in older models
            found.take(["decoder_ff_logit_out_W"], "generator.weight", shape, is_transposed=True)
        else:
            found.take(["decoder_ff_logit_out_Wt"], "generator.weight", shape)
    found.take_output_bias("decoder_ff_logit_out_b", sizes[1])
    found.take_layers("marian")
    if model.norm == "pre":
        for stack in ("encoder", "decoder"):
            for kind, name in (("weight", "scale"), ("bias", "bias")):
                theirs = f"{stack}_top_ln_{name}"
                found.take([theirs], f"{stack}.norm.{kind}", (model.d_model,))
    found.ignore(OPTIONS, "Wemb")
    found.require_all_taken()
    problems.raise_if_any()

    # Marian has neither padding nor a first word among its subwords.
    model, weights = untied(model, found.weights, is_joint=len(vocabularies) == 1)
    weights = with_start(weights, None)
    numbered = []
    for pieces in vocabularies:
        count = len(pieces)
        special = {"pad": count, "unk": pieces.index(UNK), "bos": count + 1}
        special["eos"] = pieces.index(EOS)
        padding = next(name for name in (PAD, "<padding>") if name not in pieces)
        start = next(name for name in STARTS if name not in pieces)
        numbered.append(([*pieces, padding, start], special))
    return Pretrained(
        model,
        weights,
        read_subwords(source, numbered),
        (None, None),
        _beam_size(decoder),
        _license(source),
    )


def _weights_file(source: Source, decoder: dict[str, Any]) -> str:
    """Returns the name of the file of the model: the one in decoder.yml, or the only one."""
    models = decoder.get("models")
    if isinstance(models, list) and len(models) > 1:
        raise UserError(
            f"{source.title}: its decoder.yml names {len(models)} models, which translate "
            "together. Import a folder with one of them"
        )
    given = models[0] if isinstance(models, list) and models else models
    name = Path(given).name if isinstance(given, str) else ""
    found = [one for one in source.names if one.endswith(".npz")]
    if name in found:
        return name
    if len(found) > 1:
        raise UserError(
            f"{source.title}: it has several models ({', '.join(found[:4])}). Import a folder with "
            "one of them"
        )
    return found[0]


def _vocabulary_files(source: Source, decoder: dict[str, Any]) -> list[str]:
    """Returns the names of the vocabularies: one for both sides, or one for each."""
    given = decoder.get("vocabs")
    names = [Path(name).name for name in given or () if isinstance(name, str)]
    if not names or not set(names) <= set(source.names):
        names = [name for name in source.names if name.endswith(("vocab.yml", ".vocab"))]
    names = list(dict.fromkeys(names))
    if not 1 <= len(names) <= 2:
        raise UserError(f"{source.title}: expected one or two vocabularies, found {len(names)}")
    return names


def _model(
    options: dict[str, Any], tensors: dict[str, np.ndarray], problems: Problems
) -> ModelConfig:
    """Returns the sizes and the form of a model, and adds what ours can't have."""
    for key, allowed in _OPTIONS.items():
        reason = _WHY.get(key, "a model of this program has no such thing")
        problems.require(options, key, *allowed, reason=reason)
    activation = options.get("transformer-ffn-activation", "swish")
    if activation not in ("relu", "swish", "gelu"):
        problems.add(f"transformer-ffn-activation: {activation}: known are relu, swish and gelu")
    places = tuple(
        options.get(f"transformer-{name}", default)
        for name, default in (
            ("preprocess", ""),
            ("postprocess", "dan"),
            ("postprocess-top", ""),
        )
    )
    norm = _NORMS.get(places)
    if norm is None:
        shown = ", ".join(
            f"{name} {place!r}"
            for name, place in zip(
                ("preprocess", "postprocess", "postprocess-top"), places, strict=True
            )
        )
        problems.add(f"transformer-{shown}: here the layer norm is behind or before each sublayer")
    sizes: dict[str, Any] = {"activation": activation, "norm": norm}
    for ours, theirs in (
        ("d_model", "dim-emb"),
        ("d_ff", "transformer-dim-ffn"),
        ("num_heads", "transformer-heads"),
        ("num_encoder_layers", "enc-depth"),
        ("num_decoder_layers", "dec-depth"),
    ):
        value = options.get(theirs)
        if type(value) is not int or not 0 < value <= 2**16:
            problems.add(f"{theirs}: {value!r}: it must be a natural number")
        else:
            sizes[ours] = value
    if not problems and (sizes["d_model"] % sizes["num_heads"] or sizes["d_model"] % 2):
        problems.add(f"dim-emb: {sizes['d_model']}: it must be even, and the heads must divide it")
    if problems:
        return ModelConfig()
    return ModelConfig(
        **sizes,
        num_layers=sizes["num_encoder_layers"],
        norm_epsilon=1e-9,
        positions="marian",
        tie_embeddings=not any(name.startswith("decoder_ff_logit_out_W") for name in tensors),
        output_bias=True,
    )


def _beam_size(decoder: dict[str, Any]) -> int:
    beams = decoder.get("beam-size")
    return beams if type(beams) is int and 0 < beams <= 100 else 6


def _license(source: Source) -> str | None:
    """Returns the first line of the license."""
    if "LICENSE" not in source.names:
        return None
    lines = source.read("LICENSE").decode("utf-8", "replace").split("\n")
    return next((line.strip()[:100] for line in lines if line.strip()), None)
