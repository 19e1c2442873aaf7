"""The recorded outputs of `transformers`, CTranslate2 and Marian against NumPy in float64, and
against this project's beam search over it.

They compute in float32: log-probabilities and logits of size 10, through at most four layers, agree
to 1e-4. Sums of 40 of them, which Marian gives with five or six digits, agree to 2e-3.
"""

import json

import numpy as np
import pytest
import sentencepiece

from tests.pretrained import golden_texts, random_models
from tests.pretrained.numpy_marian import NumpyMarian, log_softmax
from tests.pretrained.random_models import EOS, GOLDEN, SPECIFICATIONS, UNK
from transformer_mt.config.decoding import DecodingConfig
from transformer_mt.decoding.search import Task, beam_search
from transformer_mt.kernels.scores import LogProbs

# The greatest length of the recorded outputs. Every program ends those that reach it in another
# way, so that they are not compared.
LONGEST = 38
HUGGINGFACE = [name for name, spec in SPECIFICATIONS.items() if "huggingface" in spec.layouts]
# What a program is called in the recorded files, and how NumPy computes as it does.
PROGRAMS = {
    "huggingface": "huggingface",
    "ctranslate2_huggingface": "ctranslate2",
    "ctranslate2_opus": "ctranslate2",
    "marian": "marian",
}


def recorded(name):
    return json.loads((GOLDEN / f"{name}.json").read_text("utf-8"))


def computed(spec, program):
    """How NumPy computes a model as a program does, or None."""
    as_it_does = PROGRAMS[program]
    # The converter of `transformers`' models knows one vocabulary only. It takes the exact gelu,
    # which `NumpyMarian` computes for the other programs, an output that differs from the
    # embeddings, and the positions of the file.
    if program == "ctranslate2_huggingface" and (
        spec.activation == "gelu" or spec.separate_maps or spec.stray_output or spec.all_names
    ):
        return None
    return NumpyMarian(spec, as_it_does)


def source_ids(spec, line):
    spm = sentencepiece.SentencePieceProcessor(model_proto=random_models.spm_bytes(spec, "source"))
    source = random_models.maps(spec)[0]
    return [*(source.get(piece, UNK) for piece in spm.encode(line, out_type=str)), EOS]


@pytest.mark.parametrize("name", HUGGINGFACE)
def test_transformers_computes_what_numpy_does(name):
    golden = np.load(GOLDEN / f"{name}.npz")
    model = NumpyMarian(SPECIFICATIONS[name], "huggingface")
    for i, mask in enumerate(golden["attention_mask"]):
        length = mask.sum()
        memory = model.encode(golden["input_ids"][i, :length].tolist())
        logits = model.logits(memory, golden["decoder_input_ids"][i, 1:].tolist())
        np.testing.assert_allclose(memory, golden["encoder_output"][i, :length], atol=1e-4)
        np.testing.assert_allclose(logits, golden["logits"][i], atol=1e-4)


@pytest.mark.parametrize("program", ["ctranslate2_huggingface", "ctranslate2_opus", "marian"])
@pytest.mark.parametrize("name", SPECIFICATIONS)
def test_forced_outputs_have_the_recorded_log_probs(name, program):
    spec, found = SPECIFICATIONS[name], recorded(name).get(program, {})
    model = computed(spec, program)
    if model is None or "scored" not in found:
        pytest.skip("not recorded of this model")
    for line, one in zip(golden_texts.ENGLISH, found["scored"], strict=False):
        log_probs = log_softmax(model.logits(model.encode(source_ids(spec, line)), one["ids"]))
        ours = log_probs[np.arange(len(log_probs)), [*one["ids"], EOS]]
        if program == "marian":
            np.testing.assert_allclose([ours.sum()], one["log_probs"], atol=2e-3)
        else:
            np.testing.assert_allclose(ours, one["log_probs"], atol=1e-4)


class Stepper:
    """The stepper of one sentence and a model in NumPy."""

    def __init__(self, model, memory):
        self.model, self.memory, self.prefixes = model, memory, None

    def step(self, ids, parents):
        if self.prefixes is None:
            self.prefixes = [[]]
        else:
            pairs = zip(parents[0], ids[0], strict=True)
            self.prefixes = [[*self.prefixes[parent], int(i)] for parent, i in pairs]
        rows = [self.model.logits(self.memory, prefix)[-1] for prefix in self.prefixes]
        logits = np.array([rows], np.float32)
        # <pad>, where there is one, has no share of the probability.
        return LogProbs(np.ascontiguousarray(logits[:, :, : self.model.size]), (EOS, UNK))

    def select(self, sentences):
        pass


@pytest.mark.parametrize("beam_size", [1, 4])
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("name", ["plain", "untied", "separate"])
def test_beam_search_finds_the_recorded_outputs(name, program, beam_size, monkeypatch):
    spec = SPECIFICATIONS[name]
    golden = recorded(name)[program]["greedy" if beam_size == 1 else "beam"]
    model = computed(spec, program)
    if model is None:
        pytest.skip("NumPy does not compute as this program does")
    if program == "marian" and beam_size > 1:
        pytest.skip("Marian's beam narrows with each hypothesis that ends")
    settings = DecodingConfig(
        beam_size=beam_size, length_penalty=1, length_penalty_kind="average", stop_loops=False
    )
    if program == "huggingface":  # it goes on until no hypothesis can be among the four best
        monkeypatch.setattr("transformer_mt.decoding.search.PATIENCE", 1000)
        settings = settings.model_copy(update={"n_best": beam_size})
    compared = 0
    for line, outputs in zip(golden_texts.TRANSLATED, golden, strict=True):
        if max(len(one["ids"]) for one in outputs) >= LONGEST:
            continue
        stepper = Stepper(model, model.encode(source_ids(spec, line)))
        limits = np.array([0]), np.array([LONGEST])
        ((best, *_),) = beam_search(stepper, Task(*limits, [[]], -1, EOS, settings))
        expected = outputs[0]
        assert best.ids == expected["ids"]
        assert best.score == pytest.approx(expected["score"], abs=1e-4)
        compared += 1
    assert compared >= 1
