"""Every key of ModelConfig means the same to all that computes with a model.

For each key and each of its values there is a small model of random weights. Its own full forward
pass is the reference. Every backend (Paddle's engine, both ways of decoding step by step, both
exports and `info`) either agrees with it or refuses the key by name; the table KEYS says which. A
backend that ignores a key fails here.
"""

import functools
import random
import types
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

import numpy as np
import paddle
import pytest

from tests.reference import with_weights
from tests.support import as_if_trained, log_softmax, make_config, run_command
from transformer_mt.config.schema import Config, ModelConfig
from transformer_mt.data.batches import encoded_rows
from transformer_mt.data.subword import Subwords
from transformer_mt.decoding.engine import Hypothesis, Sentence, length_limits
from transformer_mt.decoding.paddle_engine import target_arrays
from transformer_mt.decoding.search import search
from transformer_mt.export import registry as engines
from transformer_mt.export.ctranslate2_engine import Ctranslate2Engine
from transformer_mt.kernels.cpu_decoder import CpuDecoder, CpuDecoderState
from transformer_mt.kernels.scores import LogProbs
from transformer_mt.model.costs import VocabularySizes, parts
from transformer_mt.model.transformer import Transformer
from transformer_mt.model.variants import build_model
from transformer_mt.training import checkpoint
from transformer_mt.training.checkpoint import State
from transformer_mt.training.folder import RunDirectory
from transformer_mt.training.optimizers import make_optimizer
from transformer_mt.training.progress import Progress
from transformer_mt.utils.errors import UsageError, UserError

# Logits are between -50 and 50. Computed in two ways in float32, they and the log-probabilities of
# whole targets differ by 1.2e-5 at most.
TOLERANCE = 1e-4

# ---- The table ----

EXPORTS = frozenset({"ctranslate2", "paddle_inference"})
STEPWISE = frozenset({"decode_step", "cpu_decoder"})


@dataclass(frozen=True)
class Key:
    """What the parity test knows of a key of ModelConfig.

    values: those that are tested; neither the schema's default nor the value in BASE. Of a bool or
        a Literal they must be all others.
    only_in_training: whether the key changes nothing but training. Any other key must change the
        model's outputs, or its parameters.
    refused_by: the backends that must raise a UserError or a UsageError that names the key.
    never_asked: the backends that no command uses for such a model. They raise a TypeError or a
        ValueError; Paddle's engine decodes such a model in another way, and must agree.
    """

    values: tuple[Any, ...]
    only_in_training: bool = False
    refused_by: frozenset[str] = frozenset()
    never_asked: frozenset[str] = frozenset()


KEYS = {
    "num_layers": Key((1, 3)),
    "num_encoder_layers": Key((1, 3)),
    "num_decoder_layers": Key((1, 3)),
    "d_model": Key((24,)),
    "num_heads": Key((1, 4)),
    "d_ff": Key((20,)),
    "activation": Key(("swish", "gelu", "reglu", "swiglu", "geglu")),
    "norm": Key(("pre",)),
    "norm_epsilon": Key((1e-3,)),
    "positions": Key(("marian",)),
    "dropout": Key((0.0, 0.3), only_in_training=True),
    "embedding_dropout": Key((0.0, 0.3), only_in_training=True),
    "attention_dropout": Key((0.3,), only_in_training=True),
    "feed_forward_dropout": Key((0.3,), only_in_training=True),
    "projection_dropout": Key((0.3,), only_in_training=True),
    "output_dropout": Key((0.3,), only_in_training=True),
    "layer_dropout": Key((0.9,), only_in_training=True),
    "tie_embeddings": Key((False,)),
    "bias": Key((False,)),
    "output_bias": Key((True,)),
    "copying": Key((True,), refused_by=EXPORTS),
    "non_autoregressive": Key(("length", "end"), refused_by=EXPORTS, never_asked=STEPWISE),
}

# Everything else has the schema's default.
BASE = {"num_layers": 2, "d_model": 16, "num_heads": 2, "d_ff": 32}


@dataclass(frozen=True)
class Case:
    """A model: the keys that differ from BASE; whether both sides have one vocabulary; and whether
    it is exported to Paddle Inference, which takes a second per layer."""

    model: dict[str, Any]
    joint: bool = True
    is_slow: bool = False


CASES = {
    "base": Case({}, is_slow=True),
    **{
        f"{name}={value}": Case({name: value}) for name, key in KEYS.items() for value in key.values
    },
    "small, pre, no bias, untied, dropout": Case(
        {
            **{"num_layers": 1, "d_model": 24, "num_heads": 4, "d_ff": 20, "norm": "pre"},
            **{name: 0.3 for name in ModelConfig.model_fields if "dropout" in name},
            **{"tie_embeddings": False, "bias": False},
        },
        is_slow=True,
    ),
    "odd width, one encoder layer": Case(
        {"d_model": 15, "num_heads": 3, "num_encoder_layers": 1}, is_slow=True
    ),
    "two vocabularies, pre, one decoder layer": Case(
        {"num_decoder_layers": 1, "norm": "pre"}, joint=False, is_slow=True
    ),
    "two vocabularies, untied": Case({"tie_embeddings": False}, joint=False),
    "no bias, untied": Case({"bias": False, "tie_embeddings": False}),
    "as Marian's": Case(
        {
            **{"activation": "swish", "output_bias": True, "positions": "marian"},
            **{"norm_epsilon": 1e-9, "num_decoder_layers": 1},
        },
        is_slow=True,
    ),
    "gated, no bias, untied, output bias, two vocabularies": Case(
        {"activation": "geglu", "bias": False, "tie_embeddings": False, "output_bias": True},
        joint=False,
        is_slow=True,
    ),
    "copying, pre, no bias, untied, other stacks": Case(
        {
            **{"copying": True, "norm": "pre", "bias": False, "tie_embeddings": False},
            **{"num_encoder_layers": 1, "num_decoder_layers": 3, "num_heads": 4},
        }
    ),
    "length, pre, untied": Case(
        {"non_autoregressive": "length", "norm": "pre", "tie_embeddings": False}
    ),
    "end, pre, no bias": Case({"non_autoregressive": "end", "norm": "pre", "bias": False}),
}


def other_values(annotation: Any, default: Any) -> list[Any]:
    """All values of a Literal or a bool but the default; none for types that have too many."""
    if get_origin(annotation) in (Union, types.UnionType):
        options = [value for one in get_args(annotation) for value in other_values(one, default)]
    elif get_origin(annotation) is Literal:
        options = list(get_args(annotation))
    else:
        options = {bool: [False, True], type(None): [None]}.get(annotation, [])
    return [value for value in options if value != default]


@pytest.mark.parametrize("name", sorted({*ModelConfig.model_fields, *KEYS}))
def test_the_table_is_complete(name):
    """Whoever adds a key adds it to KEYS, with its other values and the backends that refuse them,
    and adds such a value to a case that is_slow."""
    assert name in KEYS and name in ModelConfig.model_fields
    field, values = ModelConfig.model_fields[name], KEYS[name].values
    assert not {field.default, BASE.get(name)} & {*values}
    assert {*other_values(field.annotation, field.default)} <= {*values}
    for backend in BACKENDS:
        assert any(name in CASES[case].model for case, run in RUNS if run == backend), backend


# ---- A model of each case ----

# Of the pairs, in ids of each side without bos and eos.
LENGTHS = [(1, 3), (6, 5), (3, 1), (8, 9)]
SETTINGS = {"beam_size": 3, "n_best": 2, "max_length_ratio": 1.0, "max_length_extra": 8}
# A non-autoregressive model predicts all ids in one pass, and has one output.
SETTINGS_AT_ONCE = {**SETTINGS, "n_best": 1, "iterations": 1, "length_candidates": 1}
# What the vocabularies are learnt from, character by character: together 41 ids, apart 23 and 22.
TEXTS = ("abcdefghi jklmnopqr", "stuvwxyz 0123456789")


class Built:
    """A model of a case in a model directory, and the reference: the model's own forward pass.

    Attributes:
        sources, targets: for each pair a list of ids, without bos and eos.
        source_ids: int64 (pairs, source_len), what the encoder reads.
        decoder_input, labels: int64 (pairs, target_len).
        logits: for each pair float32 (its target_len, vocabulary), without padding.
        cross_attention: for each pair what `Engine.cross_attention` is to give.
    """

    def __init__(self, case: Case, folder) -> None:
        self.case = case
        self.config, self.subwords = config_and_subwords(case, folder)
        self.model = random_model(self.config, self.subwords)
        self.directory = save_model(folder / "model", self.config, self.subwords, self.model)
        self.sources, self.targets = pairs(self.subwords)
        self.source_ids = self.encoder_input(self.sources)
        decoder_input, self.labels = target_arrays(self.targets, self.subwords.target)
        pad = self.subwords.target.pad
        # A non-autoregressive model would see the eos that `target_arrays` leaves behind a target.
        self.decoder_input = np.where(self.labels == pad, pad, decoder_input)
        self.logits, self.cross_attention = [], []
        # Each pair goes through the model alone, so that there is no padding.
        for source, target in zip(self.sources, self.targets, strict=True):
            logits, attention = self.forward(source, target)
            self.logits.append(logits)
            self.cross_attention.append(attention[: len(target), : len(source)])

    @property
    def is_autoregressive(self) -> bool:
        return self.config.model.non_autoregressive is None

    @property
    def sentences(self) -> list[Sentence]:
        return [Sentence(source, number=number) for number, source in enumerate(self.sources)]

    @property
    def log_probs(self) -> list[float]:
        """The log-probability of each target, eos included."""
        totals = []
        for target, logits in zip(self.targets, self.logits, strict=True):
            labels = np.array([*target, self.subwords.target.eos])
            totals.append(log_softmax(logits)[np.arange(len(labels)), labels].sum())
        return totals

    def forward(self, source: list[int], target: list[int]) -> tuple[np.ndarray, np.ndarray]:
        """Logits (1 + target_len, vocabulary), and the attention (1 + target_len, 1 + source_len)
        of the heads that tell which words belong together."""
        with paddle.no_grad():
            logits, weights = with_weights(
                self.model,
                paddle.to_tensor([[*source, self.subwords.source.eos]]),
                paddle.to_tensor([[self.subwords.target.bos, *target]]),
            )
        layer, heads = self.config.alignment_heads
        return logits.numpy()[0], weights.cross[layer].numpy()[0, :heads].mean(axis=0)

    def assert_log_probs(self, found: list[float]) -> None:
        np.testing.assert_allclose(found, self.log_probs, rtol=0, atol=TOLERANCE)

    def assert_logits(self, found: np.ndarray) -> None:
        """`found` are (sentences, longest, vocabulary); what is beyond a target is not compared."""
        for own, expected in zip(found, self.logits, strict=True):
            np.testing.assert_allclose(own[: len(expected)], expected, rtol=0, atol=TOLERANCE)

    def assert_search(self, found: list[list[Hypothesis]], up_to_limits: bool = True) -> None:
        """The hypotheses are those of the reference; with these weights none are nearly tied.

        Without `up_to_limits`, a sentence is not compared if one of its hypotheses has the greatest
        length that the config allows; others are required.
        """
        compared = 0
        for sentence, own, expected in zip(self.sentences, found, self.hypotheses, strict=True):
            longest = length_limits(len(sentence.source), self.config.decoding)[1]
            if not up_to_limits and any(len(one.ids) == longest for one in expected):
                continue
            compared += 1
            assert [one.ids for one in own] == [one.ids for one in expected]
            for attribute in ("log_prob", "score"):
                assert [getattr(one, attribute) for one in own] == pytest.approx(
                    [getattr(one, attribute) for one in expected], abs=TOLERANCE
                )
        assert compared > 0

    @functools.cached_property
    def hypotheses(self) -> list[list[Hypothesis]]:
        """What beam search finds with full forward passes alone."""
        return self.search(from_the_start)

    def search(self, steps_of: Callable) -> list[list[Hypothesis]]:
        """Beam search with steps of a kind; see `from_the_start`."""

        def stepper_of(sentences: list[Sentence]) -> Stepper:
            rows = self.encoder_input([sentence.source for sentence in sentences])
            steps = steps_of(self.model, paddle.to_tensor(rows))
            return Stepper(*steps, self.subwords.target.special)

        with paddle.no_grad():
            return search(stepper_of, self.sentences, self.config.decoding, self.subwords.target)

    def encoder_input(self, rows: list[list[int]]) -> np.ndarray:
        return encoded_rows(rows, self.subwords.source.pad, self.subwords.source.eos)


def config_and_subwords(case: Case, folder) -> tuple[Config, Subwords]:
    model = ModelConfig(**{**BASE, **case.model})
    config = make_config(
        folder,
        model=model,
        subword={"type": "char", "joint": case.joint},
        decoding=SETTINGS_AT_ONCE if model.non_autoregressive else SETTINGS,
    )
    return config, Subwords.train(lambda: iter([TEXTS]), config.subword)


def random_model(config: Config, subwords: Subwords) -> Transformer:
    """A model in which every parameter is random: biases do not start with 0, norms not with 1.

    The values of a parameter depend on its name and shape alone, so that two models which share
    parameters can be compared. The feed-forward layers are strong, so that outputs vary.
    """
    model = build_model(config.model, subwords)
    for name, parameter in model.named_parameters():
        random = np.random.default_rng(zlib.crc32(name.encode()))
        shape = tuple(parameter.shape)
        kinds = (("feed_forward", 1.0), ("embedding", 0.5), ("generator", 0.5))
        scale = next((scale for kind, scale in kinds if kind in name), 0.2)
        values = (scale if len(shape) > 1 else 0.2) * random.standard_normal(shape)
        if "norm" in name and name.endswith("weight"):
            values += 1
        parameter.set_value(values.astype("float32"))
    model.eval()
    return as_if_trained(model, subwords, 0.45)


def save_model(path, config, subwords, model) -> RunDirectory:
    directory = RunDirectory(path)
    directory.claim()
    directory.start(config, subwords, [])
    optimizer = make_optimizer(config.training, model)
    path = directory.checkpoints / "step_1"
    checkpoint.save(path, model, optimizer.state(), State(Progress((1, 100))))
    directory.set_best(path)
    directory.release()
    return directory


def pairs(subwords) -> tuple[list[list[int]], list[list[int]]]:
    random = np.random.default_rng(3)
    sides = []
    for side, vocabulary in enumerate((subwords.source, subwords.target)):
        special = {vocabulary.pad, vocabulary.bos, vocabulary.eos, vocabulary.unk}
        words = sorted(set(range(vocabulary.size)) - special)
        sides.append([random.choice(words, lengths[side]).tolist() for lengths in LENGTHS])
    return sides[0], sides[1]


# ---- Decoding step by step ----


class Stepper(NamedTuple):
    """What beam search asks for; `logits` is as `Transformer.decode_step` without a cache, but with
    arrays."""

    logits: Callable[[np.ndarray, np.ndarray], np.ndarray]
    select: Callable[[np.ndarray], None]
    never: list[int]

    def step(self, ids: np.ndarray, parents: np.ndarray) -> LogProbs:
        return LogProbs(self.logits(ids, parents), self.never)


def from_the_start(model: Transformer, source_ids: paddle.Tensor) -> tuple[Callable, Callable]:
    """The reference: at every step the whole model reads every hypothesis from its first id on.

    Returns `logits` and `select` of a `Stepper`, as the other kinds of steps do.
    """
    sources = source_ids.numpy()
    outputs = np.zeros((len(sources), 1, 0), np.int64)

    def step(ids: np.ndarray, parents: np.ndarray) -> np.ndarray:
        nonlocal outputs
        outputs = np.take_along_axis(outputs, parents[:, :, np.newaxis], axis=1)
        outputs = np.concatenate([outputs, ids[:, :, np.newaxis]], axis=2)
        sentences, width, length = outputs.shape
        logits = model(
            paddle.to_tensor(np.repeat(sources, width, axis=0)),
            paddle.to_tensor(outputs.reshape(-1, length)),
        )
        return logits[:, -1].numpy().reshape(sentences, width, -1)

    def select(sentences: np.ndarray) -> None:
        nonlocal outputs, sources
        outputs, sources = outputs[sentences], sources[sentences]

    return step, select


def by_decode_step(model: Transformer, source_ids: paddle.Tensor) -> tuple[Callable, Callable]:
    cache = model.start_cache(model.encode(source_ids), source_ids)

    def step(ids: np.ndarray, parents: np.ndarray) -> np.ndarray:
        return model.decode_step(
            paddle.to_tensor(np.ascontiguousarray(ids)), parents, cache
        ).numpy()

    return step, cache.select


def by_cpu_decoder(model: Transformer, source_ids: paddle.Tensor) -> tuple[Callable, Callable]:
    decoding = CpuDecoderState(CpuDecoder(model), model.encode(source_ids), source_ids)
    return decoding.step, decoding.select


def check_steps(built: Built, steps_of: Callable) -> None:
    """Steps along the targets give the logits, and a beam search with them finds the same."""
    with paddle.no_grad():
        step, _ = steps_of(built.model, paddle.to_tensor(built.source_ids))
        parents = np.zeros((len(built.decoder_input), 1), np.int64)
        logits = [step(ids[:, np.newaxis], parents) for ids in built.decoder_input.T]
    built.assert_logits(np.concatenate(logits, axis=1))
    built.assert_search(built.search(steps_of))


# ---- What each backend has to do: to agree, or to refuse with a UserError or a UsageError ----


def check_whole_targets(built: Built) -> None:
    """`Transformer.logits` of a padded batch, of all positions and of some; with and without the
    attention weights, which are computed in another way on some devices."""
    model, source = built.model, paddle.to_tensor(built.source_ids)
    target = paddle.to_tensor(built.decoder_input)
    with paddle.no_grad():
        memory = model.encode(source)
        everywhere = model.logits(target, memory, source)
        built.assert_logits(everywhere.numpy())
        built.assert_logits(with_weights(model, source, target)[0].numpy())
        some = np.flatnonzero(built.labels != built.subwords.target.pad)[::2]
        there = model.logits(target, memory, source, paddle.to_tensor(some)).numpy()
    expected = everywhere.numpy().reshape(-1, there.shape[-1])[some]
    np.testing.assert_allclose(there, expected, rtol=0, atol=TOLERANCE)


def check_engine(built: Built, engine) -> None:
    """An engine that was loaded from a folder: probabilities, attention and beam search."""
    built.assert_log_probs(engine.log_probs(built.sources, built.targets))
    for own, expected in zip(
        engine.cross_attention(built.sources, built.targets), built.cross_attention, strict=True
    ):
        np.testing.assert_allclose(own, expected, rtol=0, atol=TOLERANCE)
    # Where outputs reach their greatest length, CTranslate2 may end its search earlier.
    up_to_limits = not isinstance(engine, Ctranslate2Engine)
    built.assert_search(engine.search(built.sentences, built.config.decoding), up_to_limits)


def check_paddle_engine(built: Built) -> None:
    engine = engines.find(built.directory.path, "paddle", device="cpu").load()
    if built.is_autoregressive:
        check_engine(built, engine)
        return
    found = engine.search(built.sentences, built.config.decoding)
    for sentence, (hypothesis,) in zip(built.sentences, found, strict=True):
        ids, log_prob = at_once(built, sentence.source)
        assert hypothesis.ids == ids
        assert hypothesis.log_prob == pytest.approx(log_prob, abs=TOLERANCE)
    for impossible in (engine.log_probs, engine.cross_attention):
        with pytest.raises((UserError, UsageError), match="non-autoregressive"):
            impossible(built.sources, built.targets)


def at_once(built: Built, source: list[int]) -> tuple[list[int], float]:
    """The output of a non-autoregressive model in one pass, and its log-probability."""
    target = built.subwords.target
    length = length_limits(len(source), built.config.decoding)[1]
    never = [target.pad, target.bos, target.unk]
    if built.config.model.non_autoregressive == "length":
        never.append(target.eos)
        with paddle.no_grad():
            ids = paddle.to_tensor([[*source, built.subwords.source.eos]])
            lengths = built.model.encode_with_lengths(ids)[1].numpy()[0]
        length = 1 + int(lengths[:length].argmax())
    # A decoder of this kind reads a mask, bos, wherever it is to predict.
    logits, _ = built.forward(source, [target.bos] * (length - 1))
    log_probs = log_softmax(logits)
    log_probs[:, never] = -np.inf
    ids = log_probs.argmax(axis=1).tolist()
    ends = ids.index(target.eos) + 1 if target.eos in ids else length
    return [i for i in ids[:ends] if i != target.eos], log_probs.max(axis=1)[:ends].sum()


def check_export(built: Built, format: str, engine: str) -> None:
    run_command("export", built.directory.path, format=format)
    check_engine(built, engines.find(built.directory.path, engine, device="cpu").load())


def check_info(built: Built) -> None:
    """The parameters that are counted are those of the model."""
    subwords = built.subwords
    sizes = VocabularySizes(subwords.source.size, subwords.target.size, subwords.joint)
    counted = [
        shape
        for part in parts(built.config.model, sizes)
        for shape in part.tensors
        for _ in range(part.count)
    ]
    parameters = built.model.parameters()
    assert sorted(counted) == sorted(tuple(parameter.shape) for parameter in parameters)
    total = sum(part.parameters for part in parts(built.config.model, sizes))
    assert total == sum(int(parameter.size) for parameter in parameters)


BACKENDS = {
    "whole_target": check_whole_targets,
    "decode_step": lambda built: check_steps(built, by_decode_step),
    "cpu_decoder": lambda built: check_steps(built, by_cpu_decoder),
    "paddle_engine": check_paddle_engine,
    "ctranslate2": lambda built: check_export(built, "ctranslate2", "ctranslate2"),
    "paddle_inference": lambda built: check_export(built, "paddle", "paddle_inference"),
    "info": check_info,
}


def refusing_keys(case: Case, backend: str) -> list[str]:
    return [name for name in case.model if backend in KEYS[name].refused_by]


# All that is tested; a refusal is never slow.
RUNS = [
    (name, backend)
    for name, case in CASES.items()
    for backend in BACKENDS
    if backend != "paddle_inference" or case.is_slow or refusing_keys(case, backend)
]


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    """Builds the model of a case by its name, once."""
    return functools.cache(lambda name: Built(CASES[name], tmp_path_factory.mktemp("case")))


@pytest.mark.parametrize(("case", "backend"), RUNS)
def test_a_backend_agrees_or_refuses_by_name(case, backend, build):
    built = build(case)
    refusing = refusing_keys(built.case, backend)
    if refusing:
        with pytest.raises((UserError, UsageError)) as caught:
            BACKENDS[backend](built)
        for name in refusing:
            assert f"model.{name}" in str(caught.value)
    elif any(backend in KEYS[name].never_asked for name in built.case.model):
        with pytest.raises((TypeError, ValueError), match=r"non-autoregressive|CpuDecoder"):
            BACKENDS[backend](built)
    else:
        BACKENDS[backend](built)


# ---- No value is without an effect ----

SINGLE = [(name, value) for name, key in KEYS.items() for value in key.values]


@pytest.mark.parametrize(("name", "value"), SINGLE)
def test_a_value_changes_what_the_table_says(name, value, build, tmp_path):
    """If nothing read a key, all backends would agree."""
    base = build("base")
    model = random_model(*config_and_subwords(Case({name: value}), tmp_path))
    parameters, of_base = (
        {name: tuple(parameter.shape) for name, parameter in one.named_parameters()}
        for one in (model, base.model)
    )
    training = KEYS[name].only_in_training
    if training:
        assert parameters == of_base
        np.testing.assert_array_equal(outputs(model, base), outputs(base.model, base))
    if parameters == of_base:
        expected = outputs(base.model, base, training)
        np.testing.assert_array_equal(outputs(base.model, base, training), expected)
        changed = np.abs(outputs(model, base, training) - expected).max()
        assert changed > 10 * TOLERANCE, f"model.{name}: {value!r}: nothing reads it"


def outputs(model: Transformer, built: Built, training: bool = False) -> np.ndarray:
    """Logits of the padded batch, with the same random numbers in every call."""
    paddle.seed(1)
    random.seed(1)
    model.train() if training else model.eval()
    with paddle.no_grad():
        logits = model(paddle.to_tensor(built.source_ids), paddle.to_tensor(built.decoder_input))
    model.eval()
    return logits.numpy()
