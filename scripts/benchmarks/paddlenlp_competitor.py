"""PaddleNLP's Transformer as a competitor: its training, and its two beam searches.

The classes are created in processes of their own, which import Paddle and PaddleNLP but nothing of
transformer_mt, whose settings would reach them.
"""

from __future__ import annotations

import itertools
import time
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.harness import padded

# The defaults of PaddleNLP's example, which are those of this project's config as well.
BATCH_TOKENS = 4096
DROPOUT = 0.1
LABEL_SMOOTHING = 0.1
# Outputs may have this many subwords more than their source: PaddleNLP's default.
EXTRA_LENGTH = 20


def model_arguments(config: Any, subwords: Any, max_length: int) -> dict[str, Any]:
    """The arguments of PaddleNLP's model that has the shape of this project's.

    Args:
        config: the `model` section of this project's config.
        subwords: this project's subwords of both sides.
        max_length: the number of positions.

    Raises:
        ValueError: the two sides have different special tokens.
    """
    source, target = subwords.source, subwords.target
    if (source.bos, source.eos, source.pad) != (target.bos, target.eos, target.pad):
        raise ValueError("PaddleNLP's model needs the same bos, eos and pad on both sides")
    return {
        "src_vocab_size": source.size,
        "trg_vocab_size": target.size,
        "max_length": max_length,
        "num_encoder_layers": config.encoder_layers,
        "num_decoder_layers": config.decoder_layers,
        "n_head": config.num_heads,
        "d_model": config.d_model,
        "d_inner_hid": config.d_ff,
        "weight_sharing": config.tie_embeddings and subwords.joint,
        "bos_id": target.bos,
        "eos_id": target.eos,
        "pad_id": target.pad,
        "normalize_before": config.norm == "pre",
    }


# ------------------------------------------------------------------------------------- training


@dataclass(frozen=True)
class Text:
    """One side of an encoded corpus: sentence i is ids[offsets[i]:offsets[i + 1]]."""

    ids: np.ndarray
    offsets: np.ndarray

    def __getitem__(self, index: int) -> list[int]:
        return self.ids[self.offsets[index] : self.offsets[index + 1]].tolist()

    @property
    def lengths(self) -> np.ndarray:
        """The number of tokens of each sentence, with end-of-sentence: (sentences,)."""
        return np.diff(self.offsets) + 1


def example_batches(
    source_lengths: np.ndarray, target_lengths: np.ndarray, random: np.random.Generator
) -> list[np.ndarray]:
    """The batches of an epoch as PaddleNLP's machine_translation/transformer example makes them.

    These are the defaults of its transformer.base.yaml (sort_type global, batch_size 4096 tokens,
    bsz_multi 8, pad_seq 1, shuffle_batch). All sentences are sorted by source length, then target
    length. A batch ends where its rows times the longest sentence of either side would exceed the
    tokens. It is cut to a multiple of 8 rows, and the remaining rows begin the next batch. The
    batches are shuffled.

    Args:
        source_lengths, target_lengths: tokens with end-of-sentence, (sentences,).

    Returns:
        The indices of the sentences of each batch.
    """
    order = np.lexsort((target_lengths, source_lengths))
    longer_side = np.maximum(source_lengths, target_lengths)
    batches = []
    rows: list[int] = []
    longest = 0
    for sentence in order.tolist():
        length = int(longer_side[sentence])
        if max(longest, length) * (len(rows) + 1) > BATCH_TOKENS:
            kept = max(len(rows) // 8 * 8, len(rows) % 8)
            batches.append(np.array(rows[:kept]))
            rows = rows[kept:]
            longest = max((int(longer_side[row]) for row in rows), default=0)
        rows.append(sentence)
        longest = max(longest, length)
    batches.append(np.array(rows))
    return [batches[i] for i in random.permutation(len(batches))]


class PaddleNLPTraining:
    """PaddleNLP's model, trained as its example does."""

    def __init__(
        self, arguments: dict[str, Any], source: Text, target: Text, given: list[np.ndarray]
    ) -> None:
        """
        Args:
            arguments: of the model, see `model_arguments`.
            source, target: the corpus.
            given: the batches for `steps`, as indices of sentences.
        """
        import paddle
        from paddlenlp.transformers import CrossEntropyCriterion, TransformerModel

        paddle.set_device("cpu")
        paddle.seed(1)
        self.source, self.target, self.given = source, target, given
        self.bos, self.eos, self.pad = (arguments[f"{name}_id"] for name in ("bos", "eos", "pad"))
        self.model = TransformerModel(**arguments, dropout=DROPOUT)
        self.criterion = CrossEntropyCriterion(LABEL_SMOOTHING, self.pad)
        d_model = arguments["d_model"]
        self.rate = paddle.optimizer.lr.NoamDecay(d_model, 4000, 2.0, last_epoch=0)
        self.optimizer = paddle.optimizer.Adam(
            learning_rate=self.rate,
            beta1=0.9,
            beta2=0.997,
            epsilon=1e-9,
            parameters=self.model.parameters(),
            use_multi_tensor=True,
        )
        random = np.random.default_rng(1)
        lengths = source.lengths, target.lengths
        epochs = (example_batches(*lengths, random) for _ in itertools.count())
        self.batches = itertools.chain.from_iterable(epochs)

    def steps(self, first: int, end: int) -> float:
        """Trains on the given batches from `first` to before `end`; returns seconds."""
        started = time.perf_counter()
        for batch in self.given[first:end]:
            self._step(batch)
        return time.perf_counter() - started

    def train(self, seconds: float) -> tuple[int, float]:
        """Continues training on the example's batches; returns real target tokens, and seconds."""
        tokens = 0
        started = time.perf_counter()
        for batch in self.batches:
            tokens += self._step(batch)
            if time.perf_counter() - started > seconds:
                break
        return tokens, time.perf_counter() - started

    def _step(self, batch: np.ndarray) -> int:
        """Trains on a batch; returns its real target tokens."""
        import paddle

        sources = [self.source[i] + [self.eos] for i in batch]  # (batch, source_len)
        targets = [self.target[i] for i in batch]
        inputs = [[self.bos, *ids] for ids in targets]  # (batch, target_len)
        outputs = [[*ids, self.eos] for ids in targets]
        source, target, labels = (padded(rows, self.pad) for rows in (sources, inputs, outputs))
        logits = self.model(src_word=paddle.to_tensor(source), trg_word=paddle.to_tensor(target))
        _, loss, _ = self.criterion(logits, paddle.to_tensor(labels[:, :, np.newaxis]))
        loss.backward()
        self.optimizer.step()
        self.optimizer.clear_grad()
        self.rate.step()
        return sum(map(len, outputs))


# -------------------------------------------------------------------------------------- decoding


class PaddleNLPTranslation:
    """PaddleNLP's model with this project's weights, one for each search and beam size.

    Args:
        arguments: of the model, see `model_arguments`.
        arrays: this project's parameters by name and "positions", the positional encoding; and, to
            compare the logits, "source", "target" and "logits" of this project's model.
    """

    def __init__(self, arguments: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        import paddle

        paddle.set_device("cpu")
        self.arguments = arguments
        self.arrays = arrays
        self.models: dict[tuple[str, int], Any] = {}

    def difference(self, search: str, beam: int) -> float:
        """The greatest difference of its logits from this project's, padding aside."""
        import paddle
        from paddlenlp.transformers import TransformerModel

        source, target = self.arrays["source"], self.arrays["target"]
        with paddle.no_grad():
            logits = TransformerModel.forward(
                self._model(search, beam), paddle.to_tensor(source), paddle.to_tensor(target)
            ).numpy()
        real = target != self.arguments["pad_id"]
        return float(np.abs(logits - self.arrays["logits"])[real].max())

    def translate(
        self, search: str, beam: int, rows: int, sources: list[list[int]]
    ) -> tuple[float, list[list[int]], None]:
        """Seconds, and the ids of the best output of each source, in batches of `rows`. None takes
        the place of the outputs' text."""
        import paddle

        model = self._model(search, beam)
        eos, pad = self.arguments["eos_id"], self.arguments["pad_id"]
        outputs: list[list[int]] = [[] for _ in sources]
        started = time.perf_counter()
        order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
        for start in range(0, len(order), rows):
            batch = order[start : start + rows]
            source = padded([sources[i] + [eos] for i in batch], pad)
            # Both searches count the end; v1 takes one step more than its limit.
            model.max_out_len = source.shape[1] + EXTRA_LENGTH - (search == "v1")
            with paddle.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # v2 warns at every step
                found = model(paddle.to_tensor(source)).numpy()[:, :, 0]  # (batch, len): the best
            for i, ids in zip(batch, found.tolist(), strict=True):
                ids = ids[1:] if search == "v2" else ids  # v2's outputs begin with bos
                outputs[i] = ids[: ids.index(eos)] if eos in ids else ids
        return time.perf_counter() - started, outputs, None

    def _model(self, search: str, beam: int) -> Any:
        if (search, beam) not in self.models:
            from paddlenlp.transformers import InferTransformerModel

            model = InferTransformerModel(
                **self.arguments,
                dropout=0.0,
                beam_size=beam,
                beam_search_version=search,
                alpha=1.0,  # the exponent of ((5 + length) / 6); only v2 reads it
            )
            copy_weights(self.arrays, model)
            fit_to_paddle_3(model.decode)
            model.eval()
            self.models[search, beam] = model
        return self.models[search, beam]


# Replacements that turn this project's parameter names into those of Paddle's own Transformer,
# which PaddleNLP uses. They are applied in this order.
RENAMED = {
    "self_attention_residual.norm": "norm1",
    "cross_attention_residual.norm": "norm2",
    "self_attention": "self_attn",
    "cross_attention": "cross_attn",
    "feed_forward.inner_projection": "linear1",
    "feed_forward.output_projection": "linear2",
    "query_projection": "q_proj",
    "key_projection": "k_proj",
    "value_projection": "v_proj",
    "output_projection": "out_proj",
}


def copy_weights(arrays: dict[str, np.ndarray], model: Any) -> None:
    """Fills all parameters of PaddleNLP's `model` from this project's weights and positions.

    Raises:
        LookupError: a parameter of either model has no counterpart.
    """
    parameters = dict(model.named_parameters())
    target = arrays["target_embedding.weight"]
    values = {
        "trg_word_embedding.word_embedding.weight": target,
        "src_word_embedding.word_embedding.weight": arrays.get("source_embedding.weight", target),
        "linear.weight": arrays.get("generator.weight", target).T,
        "src_pos_embedding.pos_encoder.weight": arrays["positions"],
        "trg_pos_embedding.pos_encoder.weight": arrays["positions"],
    }
    for name, value in arrays.items():
        if name.startswith(("encoder.", "decoder.")):
            for own, counterpart in RENAMED.items():
                name = name.replace(own, counterpart)
            last_norm = "norm2" if name.startswith("encoder.") else "norm3"
            name = "transformer." + name.replace("feed_forward_residual.norm", last_norm)
            if name not in parameters:
                raise LookupError(f"PaddleNLP's model has no {name}")
            values[name] = value
    for name, parameter in parameters.items():
        # A model without biases is one whose biases are zero.
        if name not in values and not name.endswith(".bias"):
            raise LookupError(f"PaddleNLP's {name} would not be filled")
        parameter.set_value(values.get(name, np.zeros(parameter.shape, np.float32)))


def fit_to_paddle_3(decoder: Any) -> None:
    """Makes search v1 run on Paddle 3.

    PaddleNLP reshapes the cache with a 0 that stands for "as before". For an empty tensor, which
    the cache is before the first step, Paddle 3 takes this 0 as a size.
    """
    import paddle

    merge = decoder._merge_batch_beams_with_var_dim

    def merge_empty_too(cache: Any) -> Any:
        batch, beams, heads, length, width = cache.shape
        if length:
            return merge(cache)
        return paddle.zeros([batch * beams, heads, 0, width], cache.dtype)

    decoder._merge_batch_beams_with_var_dim = merge_empty_too
