"""Checks of decoding: search, sampling and scores against the model in float64 on the CPU."""

from __future__ import annotations

import itertools

import numpy as np

from transformer_mt.data.batches import encoded_rows
from transformer_mt.decoding.engine import Hypothesis, Sentence, length_penalty
from transformer_mt.decoding.paddle_engine import engine_of
from transformer_mt.device_check import examples
from transformer_mt.device_check.machine import Machine, relative_error
from transformer_mt.device_check.reference import ReferenceModel
from transformer_mt.device_check.report import Figure, Finding
from transformer_mt.training.terms import make_objective
from transformer_mt.training.update import Updater

# Log-probabilities are sums over some ids; their errors are in nats.
LOG_PROB_LIMITS = {"float32": 1e-3, "TF32": 0.05}
# The largest share of outputs that may differ from those of the reference. Two ids can be equally
# probable up to rounding.
DIFFERENT = {"float32": 0.02, "TF32": 0.1}
# The longest outputs have three ids more than their source.
LENGTHS = {"max_length_ratio": 1.0, "max_length_extra": 3}
# A model whose outputs vary.
MODEL = {"norm": "pre", "tie_embeddings": False}
# Ids that no output contains.
SPECIAL = [examples.PAD, examples.UNK, examples.BOS]
# The words of the exhaustive search, and the length of its outputs.
FEW_WORDS, SHORT = 3, 3


class _Subject:
    """A model on the device, its engine, and the same model in float64 on the CPU."""

    def __init__(self, machine: Machine, **decoding: object) -> None:
        self.machine = machine
        self.config = examples.make_config(MODEL, decoding={**LENGTHS, **decoding})
        self.updater = examples.updater(self.config)
        weights = _varied(self.updater)
        self.reference = ReferenceModel(machine, self.config, weights)
        self.engine = engine_of([self.updater.model], examples.subwords())

    def search(self, sentences: list[list[int]]) -> list[list[Hypothesis]]:
        numbered = [Sentence(ids, number=number) for number, ids in enumerate(sentences)]
        return self.engine.search(numbered, self.config.decoding)

    def log_prob(self, source: list[int], output: list[int]) -> float:
        """The log-probability of an output with its end, in float64."""
        batch = encoded_rows([source], examples.PAD, examples.EOS)
        ids = np.array([[examples.BOS, *output]])
        rows = self.reference.log_probs(batch, ids)[0]
        labels = [*output, examples.EOS]
        return float(sum(rows[place, label] for place, label in enumerate(labels)))

    def next_log_probs(self, source: list[int], output: list[int]) -> np.ndarray:
        """The log-probabilities of what follows an output, without the ids that never do."""
        batch = encoded_rows([source], examples.PAD, examples.EOS)
        rows = self.reference.log_probs(batch, np.array([[examples.BOS, *output]]))
        return np.delete(rows[0, -1], SPECIAL)


def _varied(updater: Updater) -> dict[str, np.ndarray]:
    """Sets the output layer of a model to larger random weights, so that its outputs vary as those
    of a trained model do; returns all weights."""
    weights = examples.weights_of(updater.model)
    random = np.random.default_rng(3)
    shape = weights["generator.weight"].shape
    weights["generator.weight"] = (0.3 * random.standard_normal(shape)).astype("float32")
    examples.set_weights(updater.model, weights)
    return weights


def _limits(machine: Machine) -> tuple[float, float]:
    return LOG_PROB_LIMITS[machine.float32], DIFFERENT[machine.float32]


def greedy(machine: Machine) -> Finding:
    """Greedy search takes the most probable id at every step. The model in float64 reads the whole
    output again for each step."""
    subject = _Subject(machine, beam_size=1)
    sentences = examples.sentences(8, 12)
    different = 0
    for source, (best,) in zip(sentences, subject.search(sentences), strict=True):
        output: list[int] = []
        while len(output) < len(source) + 3:
            chosen = int(subject.next_log_probs(source, output).argmax()) + len(SPECIAL)
            if chosen == examples.EOS:
                break
            output.append(chosen)
        different += output != best.ids
    _, share = _limits(machine)
    text = f"{len(sentences) - different} of {len(sentences)} outputs are the same"
    return Finding.of([Figure("share that differs", different / len(sentences), share)], text)


def beam(machine: Machine) -> Finding:
    """A beam that is large enough finds the best of all outputs. Here all outputs of up to three
    words are scored, by a model that has few words."""
    words = range(examples.EOS + 1, examples.EOS + 1 + FEW_WORDS)
    outputs = [
        list(output)
        for length in range(SHORT + 1)
        for output in itertools.product(words, repeat=length)
    ]
    subject = _Subject(
        machine, beam_size=FEW_WORDS**SHORT, n_best=5, max_length_ratio=0.01,
        max_length_extra=SHORT,
    )  # fmt: skip
    # The other ids are made so improbable that no output among the best contains them.
    _forbid(
        subject, [id for id in range(examples.EOS + 1, examples.VOCABULARY_SIZE) if id not in words]
    )
    log_limit, share = _limits(machine)
    figures, different = [], 0
    sentences = examples.sentences(9, 6)
    for source, found in zip(sentences, subject.search(sentences), strict=True):
        rows = encoded_rows([source] * len(outputs), examples.PAD, examples.EOS)
        ids = np.array(
            [[examples.BOS, *output, *[0] * (SHORT - len(output))] for output in outputs]
        )
        log_probs = subject.reference.log_probs(rows, ids)
        scores = []
        for row, output in zip(log_probs, outputs, strict=True):
            total = sum(row[place, id] for place, id in enumerate([*output, examples.EOS]))
            scores.append(total / length_penalty(len(output) + 1, subject.config.decoding))
        order = np.argsort(scores)[::-1][: len(found)]
        different += sum(
            outputs[place] != hypothesis.ids for place, hypothesis in zip(order, found, strict=True)
        )
        for place, hypothesis in zip(order, found, strict=True):
            error = abs(hypothesis.score - scores[place])
            figures.append(Figure("score, nats:", error, log_limit, f"{hypothesis.ids}"))
    total = 5 * len(sentences)
    figures.append(Figure("share that differs", different / total, share))
    return Finding.of(figures, f"{total - different} of {total} outputs are the same")


def _forbid(subject: _Subject, ids: list[int]) -> None:
    """Makes ids improbable: the first number of all hidden states is large, and theirs is far below
    0."""
    weights = examples.weights_of(subject.updater.model)
    weights["decoder.norm.weight"][0], weights["decoder.norm.bias"][0] = 0.0, 8.0
    weights["generator.weight"][:, 0] = 0.0
    weights["generator.weight"][ids + SPECIAL, 0] = -8.0
    examples.set_weights(subject.updater.model, weights)
    with subject.machine.on_cpu():
        examples.set_weights(subject.reference.model, weights)
    subject.engine = engine_of([subject.updater.model], examples.subwords())


def scores(machine: Machine) -> Finding:
    """The log-probability of given outputs, and of the outputs that beam search finds."""
    subject = _Subject(machine, beam_size=4, n_best=4)
    log_limit, _ = _limits(machine)
    figures = []
    sentences = examples.sentences(10, 6)
    targets = [source[::-1] for source in sentences]
    for source, target, found in zip(
        sentences, targets, subject.engine.log_probs(sentences, targets), strict=True
    ):
        error = abs(found - subject.log_prob(source, target))
        figures.append(Figure("given outputs, nats:", error, log_limit))
    for source, hypotheses in zip(sentences, subject.search(sentences), strict=True):
        for hypothesis in hypotheses:
            error = abs(hypothesis.log_prob - subject.log_prob(source, hypothesis.ids))
            figures.append(Figure("outputs found, nats:", error, log_limit, f"{hypothesis.ids}"))
    return Finding.of(figures)


def sampling(machine: Machine) -> Finding:
    """Sampling draws each first id as often as its probability says, by a chi-squared test; its
    outputs depend on the seed alone."""
    subject = _Subject(machine, sampling=True, n_best=40, max_length_ratio=0.01, max_length_extra=1)
    source = examples.sentences(11, 2)[1]
    count = 50
    found = subject.search([source] * count)
    firsts = [h.ids[0] if h.ids else examples.EOS for own in found for h in own]
    expected = np.exp(subject.next_log_probs(source, []))
    expected *= len(firsts) / expected.sum()
    counts = np.bincount(firsts, minlength=examples.VOCABULARY_SIZE)
    special = int(counts[SPECIAL].sum())
    observed = np.delete(counts, SPECIAL)
    # Ids that are expected less than five times are counted together.
    rare = expected < 5
    pooled = np.append(expected[~rare], expected[rare].sum())
    drawn = np.append(observed[~rare], observed[rare].sum())
    squares = ((drawn - pooled) ** 2 / np.maximum(pooled, 1.0)).sum()
    freedom = max(1, len(pooled) - 1)
    deviations = (squares - freedom) / np.sqrt(2 * freedom)
    largest = np.max(np.abs(drawn - pooled) / np.sqrt(np.maximum(pooled, 1.0)))
    again = subject.search([source] * count)
    same = sum([h.ids for h in a] == [h.ids for h in b] for a, b in zip(found, again, strict=True))
    figures = [
        Figure("deviations:", float(deviations), 5.0, f"chi-squared {squares:.1f} of {freedom}"),
        Figure("deviations:", float(largest), 6.0, "of one id"),
        Figure("special ids:", special, 0),
        Figure("share that differs", 1 - same / count, 0.0, "with the same seed"),
    ]
    return Finding.of(figures, f"{len(firsts):,} draws")


def beside_cpu(machine: Machine) -> Finding:
    """Greedy search, a beam, sampling, copying and mask-predict give the outputs of the CPU."""
    machine.require_gpu("the CPU is what a GPU is compared with here")
    cases = {
        "greedy search": ({}, {"beam_size": 1}),
        "a beam of 5": ({}, {"beam_size": 5, "n_best": 5}),
        "sampling": ({}, {"sampling": True, "n_best": 3}),
        "copying": ({"copying": True}, {"beam_size": 4}),
        "mask-predict, length": ({"non_autoregressive": "length"}, {}),
        "mask-predict, end": ({"non_autoregressive": "end"}, {}),
    }
    figures = []
    share = _limits(machine)[1]
    sentences = [Sentence(ids, number=i) for i, ids in enumerate(examples.sentences(12, 40))]
    for title, (model, decoding) in cases.items():
        config = examples.make_config({**MODEL, **model}, decoding={**LENGTHS, **decoding})
        updater = examples.updater(config)
        weights = _varied(updater)
        found = _outputs(updater, sentences)
        with machine.on_cpu():
            on_cpu = examples.updater(config)
            examples.set_weights(on_cpu.model, weights)
            expected = _outputs(on_cpu, sentences)
        different = sum(a != b for a, b in zip(found, expected, strict=True))
        figures.append(Figure(f"{title}:", different / len(sentences), share, "share that differs"))
    return Finding.of(figures)


def _outputs(updater: Updater, sentences: list[Sentence]) -> list[list[list[int]]]:
    objective = make_objective(updater.config, updater.model, examples.subwords())
    engine = engine_of([objective.model], examples.subwords())
    found = engine.search(sentences, updater.config.decoding)
    return [[hypothesis.ids for hypothesis in own] for own in found]


def step_by_step(machine: Machine) -> Finding:
    """Incremental decoding with its cache gives the log-probabilities that the whole model gives at
    once, for every prefix of an output."""
    subject = _Subject(machine, beam_size=3, n_best=3)
    log_limit, _ = _limits(machine)
    sentences = examples.sentences(13, 4, shortest=5)
    found = subject.search(sentences)
    with_prefix = [
        Sentence(source, prefix=own[0].ids[:2])
        for source, own in zip(sentences, found, strict=True)
    ]
    forced = subject.engine.search(with_prefix, subject.config.decoding)
    figures = []
    wrong = 0
    for sentence, own in zip(with_prefix, forced, strict=True):
        for hypothesis in own:
            wrong += hypothesis.ids[: len(sentence.prefix)] != sentence.prefix
            expected = subject.log_prob(sentence.source, hypothesis.ids)
            error = relative_error(hypothesis.log_prob, expected) * abs(expected)
            figures.append(Figure("nats:", error, log_limit, f"{hypothesis.ids}"))
    figures.append(Figure("prefixes lost:", wrong, 0))
    return Finding.of(figures)
