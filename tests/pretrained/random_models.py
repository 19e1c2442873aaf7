"""Small random models as OPUS-MT and Hugging Face publish theirs, for the tests of `import`.

    write_huggingface(SPECIFICATIONS["plain"], folder)   # config.json, model.safetensors, ...
    write_opus(SPECIFICATIONS["plain"], folder)          # NAME.npz, decoder.yml, ...

All weights follow from the seed of a specification through NumPy's generator, so that the same
model can be made here and where `transformers` and Marian are, which `make_marian.py` asks for what
is in `golden/`. Biases, norms and the bias of the output are random too: in a fresh model they are
zeros and ones, and a test with those would not notice if they were left out.

The SentencePiece models are files, because two versions of SentencePiece train different ones.
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import sentencepiece
from safetensors.numpy import save_file

GOLDEN = Path(__file__).resolve().parent / "golden"

# The standard deviation of what a matrix makes of inputs of 1. With these, what follows depends on
# the source and on the words before, so that greedy search does not repeat one word.
GAIN = {"q": 3.0, "k": 3.0, "v": 1.0, "o": 1.0, "1": 3.0, "2": 4.0}
# The ids that are the same in all models of Marian.
EOS, UNK = 0, 1
# Pieces of the SentencePiece models that no map has, as happens if a piece never occurs in the
# training text. The models produce them all the same.
MISSING = ("z", "▁no", "q")
# In a map they need quotes, or Marian's writer quotes them, or PyYAML reads other values than
# strings. Those that are no pieces of the SentencePiece models are never produced by one.
AWKWARD = ("null", "~", "true", "1", "-", ":", '"', "'", '"a', "a'b", "#", "\\", "?", "\u0085")


@dataclass(frozen=True)
class Specification:
    """One model.

    Attributes:
        layouts: how it can be written; the two layouts of one model compute the same, except for
            the positions and the epsilon of layer norms.
        activation: relu, swish or gelu: the exact one in `transformers` and in Marian 1.12, and
            x * sigmoid(1.702 x) in what CTranslate2 converts from Marian's layout.
        tied_output: whether the output layer has the matrix of the target's embeddings.
        shared_embeddings: whether source and target have the same embeddings.
        separate_maps: whether source and target have a map of ids each.
        output_bias: whether there is a bias on the logits.
        languages: the codes that a source begins with, such as >>deu<<; they are in the map.
        normalization: what the SentencePiece models do to a text first.
        dtype: of the weights in model.safetensors; the values are rounded to it in both layouts.
        scaled: whether embeddings are multiplied by sqrt(d_model), as in all published models.
        random_start: whether the row of <pad>, which the decoder starts with, is random and not
            zero. Only `transformers` reads it.
        pre_norm: Marian's `transformer-preprocess: n`; `transformers` knows no such models.
        stray_output: whether lm_head.weight is in the file and differs from the embeddings,
            although the output is tied, as in some folders on the hub.
        all_names: whether the file also has the tied matrices under all their names, and the
            positions, as in most files pytorch_model.bin.
        old_output_name: whether the untied output is in Marian's older `..._W`, (d_model,
            vocabulary), instead of `..._Wt`, and vocab.yml as old versions write it.
        end: what is added to the bias of </s>, so that outputs have lengths of all kinds.
        padded_config: whether many NULs follow `special:model.yml`, as in Marian since 1.12,
            instead of one.
    """

    name: str
    seed: int
    d_model: int = 32
    heads: int = 4
    d_ff: int = 48
    encoder_layers: int = 2
    decoder_layers: int = 2
    activation: Literal["relu", "swish", "gelu"] = "swish"
    tied_output: bool = True
    shared_embeddings: bool = True
    separate_maps: bool = False
    output_bias: bool = True
    languages: tuple[str, ...] = ()
    normalization: Literal["identity", "nmt_nfkc"] = "identity"
    dtype: Literal["float32", "float16"] = "float32"
    scaled: bool = True
    random_start: bool = False
    pre_norm: bool = False
    stray_output: bool = False
    all_names: bool = False
    old_output_name: bool = False
    padded_config: bool = False
    end: float = 1.5
    layouts: tuple[str, ...] = ("huggingface", "opus")


SPECIFICATIONS = {
    one.name: one
    for one in (
        Specification("plain", 102, end=2.4),
        Specification(
            *("deep", 201, 24, 3, 40, 3, 1), activation="relu", normalization="nmt_nfkc", end=1.2
        ),
        Specification("gelu", 304, 16, 2, 64, 1, 2, activation="gelu", padded_config=True, end=2.1),
        Specification(
            "untied", 403, encoder_layers=1, tied_output=False, activation="relu", end=1.7
        ),
        Specification("separate", 502, 24, 2, shared_embeddings=False, separate_maps=True, end=1.7),
        Specification(
            *("separate_untied", 603, 16, 4, 32, 2, 1),
            tied_output=False,
            shared_embeddings=False,
            separate_maps=True,
            old_output_name=True,
            end=1.7,
        ),
        Specification("unshared", 703, 16, 2, 24, shared_embeddings=False, end=1.7),
        Specification("half", 801, dtype="float16", all_names=True, end=2.1),
        Specification(
            "languages", 90230, 24, 4, languages=(">>deu<<", ">>fra<<", ">>zho_Hant<<"), end=2.5
        ),
        Specification("no_bias", 1003, 16, 2, 32, 1, 1, output_bias=False),
        Specification(
            "random_start", 1102, 16, 4, 32, random_start=True, layouts=("huggingface",), end=1.7
        ),
        Specification("unscaled", 1201, 16, 2, 32, scaled=False, layouts=("huggingface",), end=2.1),
        Specification(
            "stray_output", 1302, 16, 2, 32, stray_output=True, layouts=("huggingface",), end=1.2
        ),
        Specification("pre_norm", 1402, 24, 2, 40, pre_norm=True, layouts=("opus",), end=2.1),
    )
}


def spm_bytes(spec: Specification, side: Literal["source", "target"]) -> bytes:
    """The SentencePiece model of a side, without the codes of languages."""
    data = (GOLDEN / f"{side}.spm").read_bytes()
    if spec.normalization == "identity":
        return data
    # A later field of a message of protocol buffers replaces an earlier one, so that the rules of
    # normalisation, 240 kB, need not be kept here.
    return data + _normalizer(spec.normalization)


def maps(spec: Specification) -> tuple[dict[str, int], dict[str, int]]:
    """The maps from pieces to ids of source and target, without <pad>; the same one twice unless
    they are separate. Both have the same length, which `transformers` needs."""
    source, target = (
        [piece for piece in _pieces(spec, side) if piece not in MISSING]
        for side in ("source", "target")
    )
    source = list(dict.fromkeys([*spec.languages, *source, *AWKWARD]))
    target = list(dict.fromkeys([*target, *AWKWARD]))
    if not spec.separate_maps:
        both = _map(list(dict.fromkeys([*source, *target])), spec.seed)
        return both, both
    for shorter, longer in ((source, target), (target, source)):
        shorter += [f"▁fill{number}" for number in range(len(longer) - len(shorter))]
    return _map(source, spec.seed), _map(target, spec.seed + 1)


def _map(pieces: list[str], seed: int) -> dict[str, int]:
    order = np.random.default_rng(seed).permutation(len(pieces))
    tokens = ["</s>", "<unk>", *(pieces[i] for i in order)]
    return {token: number for number, token in enumerate(tokens)}


def _pieces(spec: Specification, side: Literal["source", "target"]) -> list[str]:
    spm = sentencepiece.SentencePieceProcessor(model_proto=spm_bytes(spec, side))
    return [spm.id_to_piece(i) for i in range(3, spm.get_piece_size())]


def weights(spec: Specification) -> dict[str, np.ndarray]:
    """All weights by Marian's names, float32; matrices are (in, out), embeddings (vocabulary,
    d_model), vectors (1, n). There is no row for <pad>."""
    random = np.random.default_rng(spec.seed)
    size, d, d_ff = len(maps(spec)[0]), spec.d_model, spec.d_ff
    found: dict[str, np.ndarray] = {}

    def add(name: str, shape: tuple[int, int], scale: float, mean: float = 0.0) -> None:
        values = random.normal(mean, scale, shape)
        found[name] = values.astype(spec.dtype).astype(np.float32)

    def norm(prefix: str, suffix: str = "_pre" if spec.pre_norm else "") -> None:
        add(f"{prefix}_ln_scale{suffix}", (1, d), 0.2, 1.0)
        add(f"{prefix}_ln_bias{suffix}", (1, d), 0.1)

    def linear(prefix: str, letter: str, width: int, gain: float) -> None:
        rows = d_ff if letter == "2" else d
        add(f"{prefix}_W{letter}", (rows, width), gain * rows**-0.5)
        add(f"{prefix}_b{letter}", (1, width), 0.1)

    def attention(prefix: str) -> None:
        for letter in "qkvo":
            linear(prefix, letter, d, GAIN[letter])
        norm(f"{prefix}_Wo")

    names = ["Wemb"] if spec.shared_embeddings else ["encoder_Wemb", "decoder_Wemb"]
    for name in names:
        add(name, (size, d), d**-0.5 if spec.scaled else 1.0)
    for stack, depth in (("encoder", spec.encoder_layers), ("decoder", spec.decoder_layers)):
        for number in range(1, depth + 1):
            layer = f"{stack}_l{number}"
            attention(f"{layer}_self")
            if stack == "decoder":
                attention(f"{layer}_context")
            linear(f"{layer}_ffn", "1", d_ff, GAIN["1"])
            linear(f"{layer}_ffn", "2", d, GAIN["2"])
            norm(f"{layer}_ffn_ffn")
        if spec.pre_norm:
            norm(f"{stack}_top", "")
    if not spec.tied_output:
        add("decoder_ff_logit_out_Wt", (size, d), d**-0.5)
    if spec.output_bias:
        add("decoder_ff_logit_out_b", (1, size), 0.3)
        # Rounding the sum again keeps the value one of the dtype's.
        bias = found["decoder_ff_logit_out_b"]
        bias[0, [EOS, UNK]] += np.array([spec.end, -4.0], np.float32)
        found["decoder_ff_logit_out_b"] = bias.astype(spec.dtype).astype(np.float32)
    return found


def write_huggingface(spec: Specification, folder: Path) -> None:
    """Writes a folder as `MarianMTModel.save_pretrained` and `MarianTokenizer.save_pretrained`
    do. <pad> is added as the last id."""
    folder.mkdir(parents=True, exist_ok=True)
    source, target = ({**one, "<pad>": len(one)} for one in maps(spec))
    _write_json(folder / "vocab.json", source)
    if spec.separate_maps:
        _write_json(folder / "target_vocab.json", target)
    for side in ("source", "target"):
        (folder / f"{side}.spm").write_bytes(spm_bytes(spec, side))
    _write_json(folder / "config.json", _huggingface_config(spec))
    pad = len(target) - 1
    generation = {
        "bad_words_ids": [[pad]],
        "bos_token_id": EOS,
        "decoder_start_token_id": pad,
        "eos_token_id": EOS,
        "forced_eos_token_id": EOS,
        "max_length": 512,
        "num_beams": 4,
        "pad_token_id": pad,
        "renormalize_logits": True,
    }
    _write_json(folder / "generation_config.json", generation)
    tokenizer = {
        "source_lang": "eng",
        "target_lang": "deu" if not spec.languages else "mul",
        "separate_vocabs": spec.separate_maps,
        "tokenizer_class": "MarianTokenizer",
        "model_max_length": 512,
    }
    _write_json(folder / "tokenizer_config.json", tokenizer)
    save_file(huggingface_weights(spec), folder / "model.safetensors", {"format": "pt"})


def huggingface_weights(spec: Specification) -> dict[str, np.ndarray]:
    """The same weights by the names of `transformers`, matrices (out, in), with a row for <pad>."""
    marian = weights(spec)
    random = np.random.default_rng(1000 + spec.seed)
    found: dict[str, np.ndarray] = {}

    def with_pad(rows: np.ndarray) -> np.ndarray:
        pad = random.normal(0, spec.d_model**-0.5, rows.shape[1:]) * spec.random_start
        return np.concatenate([rows, pad[np.newaxis]]).astype(np.float32)

    for name, value in marian.items():
        if name.startswith(("encoder_l", "decoder_l")):
            stack, layer, kind = name.split("_", 2)
            new = f"model.{stack}.layers.{int(layer[1:]) - 1}.{_HUGGINGFACE_NAMES[kind]}"
            found[new] = value[0] if len(value) == 1 else value.T
        elif name.endswith("Wemb"):
            new = "shared" if spec.shared_embeddings else f"{name.split('_')[0]}.embed_tokens"
            found[f"model.{new}.weight"] = with_pad(value)
        elif name == "decoder_ff_logit_out_Wt":
            found["lm_head.weight"] = with_pad(value)
    bias = marian.get("decoder_ff_logit_out_b", np.zeros((1, len(maps(spec)[1])), np.float32))
    found["final_logits_bias"] = np.pad(bias, ((0, 0), (0, 1)))
    embeddings = found.get("model.shared.weight", found.get("model.decoder.embed_tokens.weight"))
    if spec.stray_output:
        found["lm_head.weight"] = embeddings + random.normal(0, 0.3, embeddings.shape)
    if spec.shared_embeddings and not spec.tied_output:
        # `transformers` 5 shares the embeddings only if the output is tied too, and otherwise
        # reads, and saves, all of them.
        found["model.encoder.embed_tokens.weight"] = embeddings
        found["model.decoder.embed_tokens.weight"] = embeddings
    if spec.all_names:
        for name in ("model.encoder.embed_tokens", "model.decoder.embed_tokens", "lm_head"):
            found.setdefault(f"{name}.weight", embeddings)
        for stack in ("encoder", "decoder"):
            positions = huggingface_positions(512, spec.d_model)
            found[f"model.{stack}.embed_positions.weight"] = positions
    return {name: np.ascontiguousarray(value, spec.dtype) for name, value in found.items()}


def huggingface_positions(count: int, d_model: int) -> np.ndarray:
    """What `transformers` adds to the embeddings, float64 (count, d_model)."""
    angles = np.arange(count)[:, np.newaxis] / 10000 ** (2 * np.arange(d_model // 2) / d_model)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)


def marian_positions(count: int, d_model: int) -> np.ndarray:
    """What Marian adds to the embeddings, float64 (count, d_model)."""
    half = d_model // 2
    angles = np.arange(count)[:, np.newaxis] * 10000.0 ** (-np.arange(half) / (half - 1))
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)


_HUGGINGFACE_NAMES = {
    **{
        f"{ours}_{kind}{letter}": f"{theirs}.{'out' if letter == 'o' else letter}_proj.{part}"
        for ours, theirs in (("self", "self_attn"), ("context", "encoder_attn"))
        for kind, part in (("W", "weight"), ("b", "bias"))
        for letter in "qkvo"
    },
    **{
        f"{ours}_ln_{kind}": f"{theirs}.{part}"
        for ours, theirs in (
            ("self_Wo", "self_attn_layer_norm"),
            ("context_Wo", "encoder_attn_layer_norm"),
            ("ffn_ffn", "final_layer_norm"),
        )
        for kind, part in (("scale", "weight"), ("bias", "bias"))
    },
    **{
        f"ffn_{kind}{number}": f"fc{number}.{part}"
        for kind, part in (("W", "weight"), ("b", "bias"))
        for number in (1, 2)
    },
}


def _huggingface_config(spec: Specification) -> dict[str, Any]:
    """All keys that the config.json of Helsinki-NLP/opus-mt-en-de has, and `dtype`."""
    size = len(maps(spec)[0]) + 1
    return {
        "activation_dropout": 0.0,
        "activation_function": spec.activation,
        "add_bias_logits": False,
        "add_final_layer_norm": False,
        "architectures": ["MarianMTModel"],
        "attention_dropout": 0.0,
        "bad_words_ids": [[size - 1]],
        "bos_token_id": EOS,
        "classif_dropout": 0.0,
        "classifier_dropout": 0.0,
        "d_model": spec.d_model,
        "decoder_attention_heads": spec.heads,
        "decoder_ffn_dim": spec.d_ff,
        "decoder_layerdrop": 0.0,
        "decoder_layers": spec.decoder_layers,
        "decoder_start_token_id": size - 1,
        "decoder_vocab_size": size,
        "dropout": 0.1,
        "dtype": spec.dtype,
        "encoder_attention_heads": spec.heads,
        "encoder_ffn_dim": spec.d_ff,
        "encoder_layerdrop": 0.0,
        "encoder_layers": spec.encoder_layers,
        "eos_token_id": EOS,
        "forced_eos_token_id": EOS,
        "init_std": 0.02,
        "is_encoder_decoder": True,
        "max_length": 512,
        "max_position_embeddings": 512,
        "model_type": "marian",
        "normalize_before": False,
        "normalize_embedding": False,
        "num_beams": 4,
        "num_hidden_layers": spec.encoder_layers,
        "pad_token_id": size - 1,
        "scale_embedding": spec.scaled,
        "share_encoder_decoder_embeddings": spec.shared_embeddings,
        "static_position_embeddings": True,
        "tie_word_embeddings": spec.tied_output,
        "use_cache": True,
        "vocab_size": size,
    }


def opus_npz_name(spec: Specification) -> str:
    return "opus.spm32k-spm32k.transformer-align.model1.npz.best-perplexity.npz"


def write_opus(spec: Specification, folder: Path) -> None:
    """Writes a folder as a zip file of OPUS-MT holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    found = weights(spec)
    if spec.old_output_name:
        found["decoder_ff_logit_out_W"] = found.pop("decoder_ff_logit_out_Wt").T.copy()
    config = marian_config(spec).encode() + b"\0"
    if spec.padded_config:
        config += b"\0" * (-len(config) % 256)
    found["special:model.yml"] = np.frombuffer(config, np.int8)
    np.savez(folder / opus_npz_name(spec), **found)
    stem = "opus.spm32k-spm32k"
    if spec.separate_maps:
        names = [f"{stem}.src.vocab.yml", f"{stem}.trg.vocab.yml"]
    else:
        names = [f"{stem}.vocab.yml"] * 2
    for name, one in zip(names, maps(spec), strict=True):
        lines = (
            f"{quoted(token, spec.old_output_name)}: {number}\n" for token, number in one.items()
        )
        (folder / name).write_text("".join(lines), encoding="utf-8", newline="\n")
    decoder = (
        "relative-paths: true\n"
        f"models:\n  - {opus_npz_name(spec)}\n"
        f"vocabs:\n  - {names[0]}\n  - {names[1]}\n"
        "beam-size: 6\nnormalize: 1\nword-penalty: 0\n"
        "mini-batch: 1\nmaxi-batch: 1\nmaxi-batch-sort: src\n"
    )
    (folder / "decoder.yml").write_text(decoder, encoding="utf-8")
    for side in ("source", "target"):
        (folder / f"{side}.spm").write_bytes(spm_bytes(spec, side))
    (folder / "preprocess.sh").write_text("#!/bin/bash\nspm_encode --model $2\n", encoding="utf-8")
    label = "\n* valid language labels: " + " ".join(spec.languages) if spec.languages else ""
    readme = (
        "# opus-2020-02-26.zip\n\n* dataset: opus\n* model: transformer-align\n"
        "* source language(s): eng\n* target language(s): deu\n"
        f"* pre-processing: normalization + SentencePiece (spm32k,spm32k){label}\n"
    )
    (folder / "README.md").write_text(readme, encoding="utf-8")
    (folder / "LICENSE").write_text("Attribution 4.0 International\n", encoding="utf-8")


def quoted(token: str, is_old: bool = False) -> str:
    """A key of vocab.yml as Marian writes it: only in quotes if it must be. Older versions write
    control characters as `\\x85`, newer ones as they are."""
    if token == "\u0085" and is_old:
        return '"\\x85"'
    in_quotes = token[0] in "!\"'#%&*,>@[]`{}|~" or token in ("-", ":", "?", "null")
    in_quotes |= token.endswith(":")
    if not in_quotes:
        return token
    return '"' + token.replace("\\", "\\\\").replace('"', '\\"') + '"'


def marian_config(spec: Specification) -> str:
    """`special:model.yml`, with the keys that Marian 1.9 to 1.12 write."""
    size = len(maps(spec)[0])
    config: dict[str, Any] = {
        "bert-train-type-embeddings": True,
        "bert-type-vocab-size": 2,
        "dec-cell": "gru",
        "dec-cell-base-depth": 2,
        "dec-cell-high-depth": 1,
        "dec-depth": spec.decoder_layers,
        "dim-emb": spec.d_model,
        "dim-rnn": 1024,
        "dim-vocabs": [size, size],
        "enc-cell": "gru",
        "enc-cell-depth": 1,
        "enc-depth": spec.encoder_layers,
        "enc-type": "bidirectional",
        "input-types": [],
        "layer-normalization": False,
        "lemma-dim-emb": 0,
        "output-omit-bias": not spec.output_bias,
        "right-left": False,
        "skip": False,
        "tied-embeddings": spec.tied_output and not spec.shared_embeddings,
        "tied-embeddings-all": spec.tied_output and spec.shared_embeddings,
        "tied-embeddings-src": spec.shared_embeddings and not spec.tied_output,
        "transformer-aan-activation": "swish",
        "transformer-aan-depth": 2,
        "transformer-aan-nogate": False,
        "transformer-decoder-autoreg": "self-attention",
        "transformer-dim-aan": 2048,
        "transformer-dim-ffn": spec.d_ff,
        "transformer-ffn-activation": spec.activation,
        "transformer-ffn-depth": 2,
        "transformer-guided-alignment-layer": "last",
        "transformer-heads": spec.heads,
        "transformer-no-projection": False,
        "transformer-postprocess": "da" if spec.pre_norm else "dan",
        "transformer-postprocess-emb": "d",
        "transformer-postprocess-top": "n" if spec.pre_norm else "",
        "transformer-preprocess": "n" if spec.pre_norm else "",
        "transformer-tied-layers": [],
        "transformer-train-position-embeddings": False,
        "type": "transformer",
        "ulr": False,
        "ulr-dim-emb": 0,
        "ulr-trainable-transformation": False,
        "version": "v1.9.0 ba94c5b9 2020-05-17 10:42:17 +0100",
    }
    return "".join(f"{key}: {_yaml(value)}\n" for key, value in config.items())


def _yaml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "".join(f"\n  - {one}" for one in value) or "\n  []"
    return str(value) if value != "" else '""'


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=2), encoding="utf-8")


def _normalizer(rule: str) -> bytes:
    """The part of a SentencePiece model that describes the normalisation: its third field."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a b c a b", "c b a"] * 4),
        model_writer=model,
        vocab_size=8,
        hard_vocab_limit=False,
        normalization_rule_name=rule,
        minloglevel=2,
    )
    data, place = model.getvalue(), 0
    while place < len(data):
        start = place
        length, shift, place = 0, 0, place + 1
        while True:
            byte = data[place]
            length |= (byte & 127) << shift
            shift, place = shift + 7, place + 1
            if byte < 128:
                break
        place += length
        if data[start] == 3 << 3 | 2:
            return data[start:place]
    raise ValueError("the trained model has no rules of normalisation")
