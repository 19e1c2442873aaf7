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
        [[pad, *texts.target_ids(texts.target_pieces(line))[:6]] for line in golden_texts.GERMAN[:3]]
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
    for name, renormalize in (("huggingface", True), ("huggingface_with_pad", False)):
        found[name] = {
            title: [
                generated(model, tokenizer, line, beam, renormalize)
                for line in golden_texts.TRANSLATED
            ]
            for title, beam in (("greedy", 1), ("beam", BEAM))
        }
    return found


def generated(
    model: Any, tokenizer: Any, line: str, beam: int, renormalize: bool
) -> list[dict[str, Any]]:
    """Outputs, best first; `score` is log_prob / length, where the length counts eos."""
    inputs = tokenizer(line, return_tensors="pt")
    beams = {"early_stopping": "never", "length_penalty": 1.0} if beam > 1 else {}
    out = model.generate(
        **inputs,
        **beams,
        num_beams=beam,
        num_return_sequences=beam,
        do_sample=False,
        max_length=MAX_LENGTH,
        bad_words_ids=[[model.config.pad_token_id]],
        renormalize_logits=renormalize,
        return_dict_in_generate=True,
        output_scores=True,
        output_logits=True,
    )
    found = []
    for i, sequence in enumerate(out.sequences.tolist()):
        ids = sequence[1:]
        ids = ids[: ids.index(0)] if 0 in ids else ids
        one = {"ids": ids, "text": tokenizer.decode(ids, skip_special_tokens=True)}
        if beam > 1:
            one["score"] = out.sequences_scores[i].item()
        else:
            steps = zip(out.scores, [*ids, 0], strict=False)
            one["log_prob"] = sum(scores[0, number].item() for scores, number in steps)
        found.append(one)
    return found


def with_ctranslate2(folder: Path, texts: Texts) -> dict[str, Any]:
    translator = ctranslate2.Translator(str(folder), compute_type="float32")
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
            max_decoding_length=MAX_LENGTH - 2,
            return_scores=True,
        )
        found[title] = [
            [
                {"ids": texts.target_ids(pieces), "score": score}
                for pieces, score in zip(result.hypotheses, result.scores, strict=True)
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
    """Marian's own outputs. It ends a hypothesis at eos and narrows the beam by it, so that a
    search whose beam stays wide finds others. `default_beam` is without <unk>."""
    decoder = ["--config", str(folder / "decoder.yml"), "--cpu-threads", "1", "--quiet"]
    decoder += ["--n-best", "--word-scores"]
    lines = [" ".join(texts.source_pieces(line)) for line in golden_texts.TRANSLATED]
    found: dict[str, Any] = {}
    for title, beam, more in (
        ("greedy", 1, ["--allow-unk"]),
        ("beam", BEAM, ["--allow-unk"]),
        ("default_beam", BEAM, []),
    ):
        out = marian("decode", [*decoder, "--beam-size", str(beam), *more], lines)
        found[title] = [[] for _ in lines]
        for line in out.splitlines():
            number, pieces, words, _, score = (one.strip() for one in line.split("|||"))
            found[title][int(number)].append(
                {
                    "ids": texts.target_ids(pieces.split()),
                    "score": float(score),
                    "log_probs": [float(one) for one in words.split()[1:]],
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
        arguments += ["--word-scores", "-t", f"{other}/source", f"{other}/target"]
        arguments += ["--workspace", "200"]
        out = marian("score", arguments, [])
    found["scored"] = [
        {
            "ids": texts.target_ids(texts.target_pieces(target)),
            "log_probs": [float(one) for one in line.split("|||")[0].split()]
            if "|||" in line
            else line,
        }
        for (_, target), line in zip(PAIRS, out.splitlines(), strict=True)
    ]
    return found


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
