"""Records what other programs make of the random models, into `golden/`.

It runs by hand in an environment of its own, with Python 3.11, since these programs are not among
the requirements of the project:

    python3.11 -m venv HFENV
    HFENV/bin/pip install "transformers==5.24.0" torch sentencepiece safetensors pyyaml numpy \
        "ctranslate2==4.8.5" "pymarian==1.12.42"
    HFENV/bin/python -m tests.pretrained.make_marian --train    # the SentencePiece models; seldom
    HFENV/bin/python -m tests.pretrained.make_marian --record [NAME ...]
    HFENV/bin/python -m tests.pretrained.make_marian --bins     # files of torch.save

Record anew only if a specification or a text changes; all models change with the SentencePiece
models. What is recorded is described in `golden/README.md`.
"""

from __future__ import annotations

import argparse
import collections
import io
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
import sentencepiece
import torch
import transformers
from ctranslate2.converters import OpusMTConverter, TransformersConverter

from tests.pretrained import golden_texts, random_models
from tests.pretrained.random_models import GOLDEN, SPECIFICATIONS, Specification

MAX_LENGTH = 40  # of an output, with its start and eos
BEAM = 4
torch.set_num_threads(1)
# Pairs whose log-probabilities are recorded.
PAIRS = list(zip(golden_texts.ENGLISH[:3], golden_texts.GERMAN[:3], strict=True))


def train() -> None:
    """Trains source.spm and target.spm."""
    for side, lines in (("source", golden_texts.ENGLISH), ("target", golden_texts.GERMAN)):
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=model,
            vocab_size=75,
            hard_vocab_limit=False,
            normalization_rule_name="identity",
            character_coverage=1.0,
            minloglevel=2,
        )
        (GOLDEN / f"{side}.spm").write_bytes(model.getvalue())
        print(side, len(model.getvalue()), "bytes")


class Texts:
    """Texts to and from ids, through one SentencePiece model and one map each, without
    `transformers`."""

    def __init__(self, spec: Specification) -> None:
        self.source_map, self.target_map = random_models.maps(spec)
        self.source_spm, self.target_spm = (
            sentencepiece.SentencePieceProcessor(model_proto=random_models.spm_bytes(spec, side))
            for side in ("source", "target")
        )
        self.tokens = list(self.target_map)

    def source_pieces(self, line: str) -> list[str]:
        return self.source_spm.encode(line, out_type=str)

    def target_pieces(self, line: str) -> list[str]:
        return self.target_spm.encode(line, out_type=str)

    def target_ids(self, pieces: list[str]) -> list[int]:
        return [self.target_map.get(piece, random_models.UNK) for piece in pieces]


def record(spec: Specification, folder: Path) -> None:
    """Writes golden/NAME.json and, of the layout of Hugging Face, golden/NAME.npz."""
    texts, found = Texts(spec), {}
    if "huggingface" in spec.layouts:
        random_models.write_huggingface(spec, folder / "hf")
        found |= huggingface(spec, folder / "hf", texts)
        converter = TransformersConverter(str(folder / "hf"))
        converter.convert(str(folder / "ct2_hf"))
        found["ctranslate2_huggingface"] = with_ctranslate2(folder / "ct2_hf", texts)
    if "opus" in spec.layouts:
        random_models.write_opus(spec, folder / "opus")
        try:
            OpusMTConverter(str(folder / "opus")).convert(str(folder / "ct2_opus"))
        except Exception as error:  # it is recorded which models this converter can't read
            found["ctranslate2_opus"] = {"error": f"{type(error).__name__}: {error}"[:200]}
        else:
            found["ctranslate2_opus"] = with_ctranslate2(folder / "ct2_opus", texts)
        found["marian"] = with_marian(folder / "opus", texts)
    lines = [f"{json.dumps(key)}: {as_json(value)}" for key, value in found.items()]
    (GOLDEN / f"{spec.name}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")


def huggingface(spec: Specification, folder: Path, texts: Texts) -> dict[str, Any]:
    tokenizer = transformers.MarianTokenizer.from_pretrained(folder)
    model = transformers.MarianMTModel.from_pretrained(folder, dtype=torch.float32).eval()
    pad = model.config.pad_token_id
    batch = tokenizer(golden_texts.BATCH, return_tensors="pt", padding=True)
    decoder_ids = torch.tensor(
        [
            [pad, *texts.target_ids(texts.target_pieces(line))[:6]]
            for line in golden_texts.GERMAN[:3]
        ]
    )
    with torch.no_grad():
        out = model(**batch, decoder_input_ids=decoder_ids)
    np.savez_compressed(
        GOLDEN / f"{spec.name}.npz",
        input_ids=batch["input_ids"].numpy().astype(np.int16),
        attention_mask=batch["attention_mask"].numpy().astype(np.int8),
        decoder_input_ids=decoder_ids.numpy().astype(np.int16),
        encoder_output=out.encoder_last_hidden_state.numpy(),
        logits=out.logits.numpy(),
    )
    random = np.random.default_rng(spec.seed)
    drawn = [random.integers(2, pad, 8).tolist() for _ in range(4)]
    drawn += [[5, 1, 6, 0, pad], [pad, 7, 8, 0, 9]]
    found: dict[str, Any] = {
        "tokenized": [tokenizer(line)["input_ids"] for line in golden_texts.TOKENIZED],
        "decoded": [
            {
                "ids": ids,
                "text": tokenizer.decode(ids, skip_special_tokens=True),
                "target_text": tokenizer.decode(
                    ids, skip_special_tokens=True, use_source_tokenizer=False
                ),
                "with_special": tokenizer.decode(ids),
            }
            for ids in drawn
        ],
    }
    default = {"bad_words_ids": [[pad]], "renormalize_logits": True}
    found["huggingface_default"] = translated(model, tokenizer, 1, **default)
    bad = {"bad_words_ids": [[pad], [random_models.UNK]], "renormalize_logits": False}
    found["huggingface_with_pad"] = translated(model, tokenizer, 2, **bad)
    model.final_logits_bias[:, pad] = -1e9
    found["huggingface"] = translated(model, tokenizer, 2, **bad)
    return found


def translated(model: Any, tokenizer: Any, count: int, **settings: Any) -> dict[str, Any]:
    """Outputs of greedy and beam search, the `count` best first; `score` is log_prob / length,
    where the length counts eos."""
    found: dict[str, Any] = {"greedy": [], "beam": []}
    for title, beam, more in (
        ("greedy", 1, {}),
        ("beam", BEAM, {"early_stopping": "never", "length_penalty": 1.0}),
    ):
        count = min(beam, count)
        out = model.generate(
            **tokenizer(golden_texts.TRANSLATED, return_tensors="pt", padding=True),
            num_beams=beam,
            num_return_sequences=count,
            do_sample=False,
            max_length=MAX_LENGTH,
            return_dict_in_generate=True,
            output_scores=True,
            output_logits=True,
            **more,
            **settings,
        )
        for number, sequence in enumerate(out.sequences.tolist()):
            ids = sequence[1:]
            ids = ids[: ids.index(0)] if 0 in ids else ids
            if beam > 1:
                score = out.sequences_scores[number].item()
            else:  # `scores` are log-probabilities only if they are renormalised
                each = out.scores if settings["renormalize_logits"] else out.logits
                steps = zip(each, [*ids, 0], strict=False)
                score = sum(one[number].log_softmax(0)[i].item() for one, i in steps) / (
                    len(ids) + 1
                )
            if number % count == 0:
                found[title].append([])
            text = tokenizer.decode(ids, skip_special_tokens=True)
            found[title][-1].append({"ids": ids, "score": score, "text": text})
    return found


def with_ctranslate2(folder: Path, texts: Texts) -> dict[str, Any]:
    translator = ctranslate2.Translator(str(folder), compute_type="float32", intra_threads=1)
    pad_first = json.loads((folder / "config.json").read_text())
    # The converter of `transformers`' models leaves eos to the tokenizer.
    eos = [] if pad_first.get("add_source_eos") else ["</s>"]
    sources = [[*texts.source_pieces(line), *eos] for line in golden_texts.TRANSLATED]
    found: dict[str, Any] = {}
    for title, beam in (("greedy", 1), ("beam", BEAM)):
        results = translator.translate_batch(
            sources,
            beam_size=beam,
            num_hypotheses=beam,
            patience=2,
            length_penalty=1,
            min_decoding_length=0,
            max_decoding_length=MAX_LENGTH - 2,
            return_scores=True,
        )
        found[title] = [
            [
                {"ids": texts.target_ids(pieces), "score": score}
                for pieces, score in zip(result.hypotheses[:2], result.scores, strict=False)
            ]
            for result in results
        ]
    scored = translator.score_batch(
        [[*texts.source_pieces(source), *eos] for source, _ in PAIRS],
        [texts.target_pieces(target) for _, target in PAIRS],
    )
    found["scored"] = [
        {"ids": texts.target_ids(texts.target_pieces(target)), "log_probs": list(one.log_probs)}
        for (_, target), one in zip(PAIRS, scored, strict=True)
    ]
    return found


def with_marian(folder: Path, texts: Texts) -> dict[str, Any]:
    """Marian's own outputs, without <unk>, as it is by default. It narrows the beam by each
    hypothesis that ends, so that a search whose beam stays wide may find better ones."""
    decoder = ["--config", str(folder / "decoder.yml"), "--cpu-threads", "1", "--quiet"]
    decoder += ["--n-best", "--workspace", "200", "--max-length-factor", "5"]
    lines = [" ".join(texts.source_pieces(line)) for line in golden_texts.TRANSLATED]
    found: dict[str, Any] = {}
    for title, beam in (("greedy", 1), ("beam", BEAM)):
        out = marian("decode", [*decoder, "--beam-size", str(beam)], lines)
        found[title] = [[] for _ in lines]
        for line in out.removesuffix("\n").split("\n"):  # a piece may be U+0085
            number, pieces, _, score = (one.strip(" ") for one in line.split("|||"))
            own = found[title][int(number)]
            if len(own) < 2:
                own.append(
                    {
                        "ids": texts.target_ids([one for one in pieces.split(" ") if one]),
                        "score": float(score),
                    }
                )
    vocabs = [str(path) for path in vocab_paths(folder)]
    model = next(folder.glob("*.npz"))
    with tempfile.TemporaryDirectory() as other:
        for name, column in (("source", 0), ("target", 1)):
            pieces_of = texts.target_pieces if column else texts.source_pieces
            text = "".join(" ".join(pieces_of(pair[column])) + "\n" for pair in PAIRS)
            Path(other, name).write_text(text, "utf-8")
        arguments = ["-m", str(model), "-v", *vocabs, "--cpu-threads", "1", "--quiet"]
        arguments += ["-t", f"{other}/source", f"{other}/target"]
        arguments += ["--workspace", "200"]
        out = marian("score", arguments, [])
    found["scored"] = [
        {"ids": texts.target_ids(texts.target_pieces(target)), "log_probs": [float(line)]}
        for (_, target), line in zip(PAIRS, out.splitlines(), strict=True)
    ]
    return found


def bins() -> None:
    """Writes golden/bins/: files of torch.save and, as NAME.npz, what they hold. bfloat16 is
    widened to float32, as NumPy has no such type."""
    folder = GOLDEN / "bins"
    folder.mkdir(exist_ok=True)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        tensors = sample_tensors(dtype)
        arrays = {
            name: (one.float() if dtype is torch.bfloat16 else one) for name, one in tensors.items()
        }
        name = str(dtype).removeprefix("torch.")
        np.savez_compressed(
            folder / f"{name}.npz", **{key: one.numpy() for key, one in arrays.items()}
        )
        torch.save(tensors, folder / f"{name}.zip.bin")
        torch.save(tensors, folder / f"{name}.legacy.bin", _use_new_zipfile_serialization=False)
    # An nn.Module's state_dict carries its versions as an attribute, and Parameters are pickled
    # through a function of their own.
    module = torch.nn.Linear(3, 2)
    with torch.no_grad():
        for number, one in enumerate(module.parameters()):
            one.copy_(torch.arange(one.numel()).reshape(one.shape) + 10.0 * number)
    torch.save(module.state_dict(), folder / "state_dict.zip.bin")
    torch.save(dict(module.named_parameters()), folder / "parameters.zip.bin")
    torch.save(
        dict(module.named_parameters()),
        folder / "parameters.legacy.bin",
        _use_new_zipfile_serialization=False,
    )
    np.savez_compressed(
        folder / "linear.npz", **{key: one.numpy() for key, one in module.state_dict().items()}
    )
    # What must be refused: a whole module.
    torch.save(module, folder / "module.zip.bin")


def sample_tensors(dtype: torch.dtype) -> collections.OrderedDict[str, torch.Tensor]:
    random = np.random.default_rng(5)
    base = torch.tensor(random.normal(size=(6, 4)), dtype=torch.float32).to(dtype)
    return collections.OrderedDict(
        {
            "model.shared.weight": base,
            "lm_head.weight": base,  # tied: the same storage
            "rows": base[2:5],  # of the same storage, from an offset
            "transposed": base.T,
            "strided": base[::2, 1::2],
            "expanded": base[:1, :1].expand(3, 2),  # strides of zero
            "final_logits_bias": torch.tensor(random.normal(size=(1, 6)), dtype=torch.float32).to(
                dtype
            ),
            "scalar": torch.tensor(2.5, dtype=dtype),
            "empty": torch.zeros((0, 4), dtype=dtype),
            "ids": torch.arange(5, dtype=torch.int64),
            "mask": torch.tensor([True, False, True]),
        }
    )


def vocab_paths(folder: Path) -> list[Path]:
    names = [f"opus.spm32k-spm32k.{side}vocab.yml" for side in ("src.", "trg.")]
    if not (folder / names[0]).exists():
        names = ["opus.spm32k-spm32k.vocab.yml"] * 2
    return [folder / name for name in names]


def marian(command: str, arguments: list[str], lines: list[str]) -> str:
    program = [str(Path(sys.executable).parent / "pymarian"), command, *arguments]
    text = "".join(f"{line}\n" for line in lines)
    done = subprocess.run(program, input=text.encode(), capture_output=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.decode()[-2000:])
    return done.stdout.decode()


def as_json(value: Any) -> str:
    return json.dumps(rounded(value), ensure_ascii=False, separators=(",", ":"))


def rounded(value: Any) -> Any:
    """With floats of 6 decimals."""
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    return [rounded(one) for one in value] if isinstance(value, list) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", metavar="NAME", nargs="*", help="which models (all)")
    parser.add_argument("--train", action="store_true", help="train the SentencePiece models")
    parser.add_argument("--record", action="store_true", help="record what is made of the models")
    parser.add_argument("--bins", action="store_true", help="write files of torch.save")
    options = parser.parse_args()
    if options.train:
        train()
    if options.bins:
        bins()
    if options.record:
        for name in options.names or SPECIFICATIONS:
            with tempfile.TemporaryDirectory() as folder:
                record(SPECIFICATIONS[name], Path(folder))
            print("recorded", name, flush=True)


if __name__ == "__main__":
    main()
