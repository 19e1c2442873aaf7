"""A Transformer that can also copy subwords of the source: a pointer-generator.

See et al. 2017, arXiv 1704.04368, section 2.2; to point by attention is from Vinyals et al. 2015,
arXiv 1506.03134, section 2.3. Their one attention is here the last decoder layer's to the source,
the mean of its heads. With a gate g, linear in the decoder's output,

    p_gen = sigmoid(g)
    p(v)  = p_gen * softmax(logits)[v] + (1 - p_gen) * copied[v],

where copied[v] is the attention to all places of the source at which v stands. A name never seen
before is copied subword by subword; the vocabulary, common to both sides, stays as it is.

What the model gives are logits whose softmax is this p. So all that reads logits (loss, search,
sampling, ensembles, scores) goes on as ever. p(v) * sum(exp(logits)) / p_gen is

    exp(logits[v]) + exp(log_total - g) * copied[v],   log_total = log(sum(exp(logits))),

so the logits that differ from the generator's are those of the few ids in the source.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import paddle
from paddle import Tensor
from paddle.autograd import PyLayer

from transformer_mt.config.schema import ModelConfig
from transformer_mt.model import cpu_decoder, operations
from transformer_mt.model.attention import Linear
from transformer_mt.model.operations import array, tensor
from transformer_mt.model.transformer import DecoderCache, Transformer, at_positions

# Before training, but for what the gate's random weights add.
FIRST_P_GEN = 0.9
# float32 ends at exp(88). Where anything is copied, no slope is larger: on a CPU, no attention
# weight but 0 is below exp(-64).
LARGEST_EXPONENT = 80.0


@dataclass
class CopyableSource:
    """What a batch of source sentences has to copy.

    `ids`, int64 (batch, source_len), holds each id of a sentence once; where one stands again it
    holds the padding's. `places`, float32 (batch, source_len, source_len), is 1 where the source
    has at the first index what `ids` has at the second.
    """

    ids: Tensor
    places: Tensor

    @classmethod
    def of(cls, source_ids: Tensor, pad_id: int) -> CopyableSource:
        """Of `source_ids`, int64 (batch, source_len)."""
        same = source_ids.unsqueeze(2) == source_ids.unsqueeze(1)
        stands_before = same.astype("int32").triu(1).astype("bool").any(axis=1)
        ids = paddle.masked_fill(source_ids, stands_before, pad_id)
        places = source_ids.unsqueeze(2) == ids.unsqueeze(1)
        return cls(ids, places.astype("float32"))

    def select(self, sentences: Tensor) -> CopyableSource:
        """Of the sentences with these indices, int64 (kept,)."""
        return CopyableSource(self.ids.gather(sentences), self.places.gather(sentences))

    def pointed_at(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """How much attention goes to each of the ids, at all its places together.

        Args:
            weights: floating (batch, heads, target_len, source_len), 0 at padding.

        Returns: (copied, ids), float32 and int64, both (batch, target_len, source_len).
        """
        target_len = weights.shape[2]
        copied = paddle.matmul(weights.astype("float32").mean(axis=1), self.places)
        return copied, self.ids.unsqueeze(1).expand([-1, target_len, -1])


@dataclass(kw_only=True)
class CopyingCache(DecoderCache):
    """As `DecoderCache`, with the source."""

    source: CopyableSource

    def select(self, sentences: np.ndarray) -> None:
        """As `DecoderCache.select`."""
        super().select(sentences)
        self.source = self.source.select(paddle.to_tensor(sentences))


class CopyingTransformer(Transformer):
    """A `Transformer` that generates or copies, with the same arguments, and a gate.

    Raises: ValueError as `Transformer` does, and if source and target have no common vocabulary.
    """

    def __init__(
        self, config: ModelConfig, source_vocab_size: int, target_vocab_size: int, **options
    ) -> None:
        super().__init__(config, source_vocab_size, target_vocab_size, **options)
        self.require_one_vocabulary("copying", source_vocab_size)
        self.gate = Linear(self.generator.weight.shape[1], 1)
        self.gate.bias.set_value(np.float32([math.log(FIRST_P_GEN / (1 - FIRST_P_GEN))]))

    @property
    def generates_from(self) -> tuple[int]:
        """The last layer."""
        return (len(self.decoder.layers) - 1,)

    def generate(
        self,
        hidden: Tensor,
        cross_weights: list[Tensor | None],
        source_ids: Tensor,
        positions: Tensor | None = None,
    ) -> Tensor:
        """As `Transformer.generate`."""
        return self._mixed(hidden, cross_weights, self.copyable(source_ids), positions)

    def start_cache(self, memory: Tensor, source_ids: Tensor) -> CopyingCache:
        """As `Transformer.start_cache`."""
        cache = super().start_cache(memory, source_ids)
        return CopyingCache(cache.layers, cache.memory_mask, source=self.copyable(source_ids))

    def decode_step(self, ids: Tensor, parents: np.ndarray, cache: CopyingCache) -> Tensor:
        """As `Transformer.decode_step`."""
        hidden, cross_weights = self._step(ids, parents, cache)
        return self._mixed(hidden, cross_weights, cache.source)

    def copyable(self, source_ids: Tensor) -> CopyableSource:
        """What `source_ids`, int64 (batch, source_len), have to copy."""
        return CopyableSource.of(source_ids, self.pad_id)

    def _mixed(
        self,
        hidden: Tensor,
        cross_weights: list[Tensor | None],
        source: CopyableSource,
        positions: Tensor | None = None,
    ) -> Tensor:
        # (batch, target_len, vocabulary), or (count, vocabulary) at `positions`
        with paddle.amp.auto_cast(enable=False):
            copied, ids = source.pointed_at(cross_weights[-1])
        if positions is None:
            places = hidden.shape[:-1]
            hidden, copied, ids = (x.reshape([-1, x.shape[-1]]) for x in (hidden, copied, ids))
        else:
            places = positions.shape
            hidden, copied, ids = (at_positions(x, positions) for x in (hidden, copied, ids))
        mixed = mixture(self.generator(hidden), self.gate(hidden), copied, ids)
        return mixed.reshape([*places, mixed.shape[-1]])


def mixture(logits: Tensor, gate: Tensor, copied: Tensor, ids: Tensor) -> Tensor:
    """Logits whose softmax is sigmoid(gate) * softmax(logits) + (1 - sigmoid(gate)) * copied.

    They are finite, and so is their gradient, for any finite logits and gate.

    Args:
        logits: floating (rows, vocabulary); float32 ones are written over.
        gate: floating (rows, 1).
        copied: floating (rows, source_len), probabilities of `ids`; may be 0.
        ids: int64 (rows, source_len), each id once, but for those whose probability is 0.

    Returns: float32 (rows, vocabulary).
    """
    with paddle.amp.auto_cast(enable=False):  # in float32, whatever the model computes in
        return _Mixture.apply(*(x.astype("float32") for x in (logits, gate, copied)), ids)


class _Mixture(PyLayer):
    """The mixture in the memory of the logits, with its gradient written by hand.

    Of mixed = log(exp(l) + exp(log_total - g) * c), the slope by log_total and by -g is the share
    of what is copied, s = exp(log_total - g) * c / exp(mixed); by l it is 1 - s, by c it is s / c.
    That of log_total by all logits is softmax(logits).
    """

    @staticmethod
    def forward(ctx, logits: Tensor, gate: Tensor, copied: Tensor, ids: Tensor) -> Tensor:
        log_total = operations.log_sum_exp(logits)  # (rows, 1)
        generated = _at(logits, ids)  # (rows, source_len)
        log_odds = log_total - gate
        mixed = paddle.logaddexp(generated, log_odds + copied.log())  # log(0) is -inf
        logits.put_along_axis_(ids, mixed, axis=1)
        ctx.save_for_backward(logits, log_total, log_odds, copied, ids, generated, mixed)
        return logits

    @staticmethod
    def backward(ctx, slopes: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        logits, log_total, log_odds, copied, ids, generated, mixed = ctx.saved_tensor()
        own = _at(slopes, ids)  # (rows, source_len)
        share = paddle.exp(log_odds + copied.log() - mixed)
        to_total = (own * share).sum(axis=1, keepdim=True)  # (rows, 1)
        # Wrong at the ids of the source, where other logits stand now, however large.
        with np.errstate(over="ignore", invalid="ignore"):
            to_logits = operations.plus_softmax(slopes, logits, log_total, to_total)
        kept = own * paddle.exp(generated - mixed)
        to_logits.put_along_axis_(ids, kept + to_total * paddle.exp(generated - log_total), axis=1)
        to_copied = own * paddle.exp((log_odds - mixed).clip(max=LARGEST_EXPONENT))
        return to_logits, -to_total, to_copied, None


def _at(x: Tensor, ids: Tensor) -> Tensor:
    # Of `x` (rows, vocabulary) what stands at `ids` (rows, count): paddle.take_along_axis takes
    # 40 ms for 2,560 rows of 8,000, this 1 ms.
    rows, vocabulary = x.shape
    places = ids + paddle.arange(rows).unsqueeze(1) * vocabulary
    return x.flatten().gather(places.flatten()).reshape(ids.shape)


class CpuCopying:
    """What a `CopyingTransformer` makes of the logits, in NumPy: a part of `CpuDecoderState`.

    `source_ids` are int64 (sentences, source_len), on the CPU.
    """

    def __init__(self, model: CopyingTransformer, source_ids: Tensor) -> None:
        self._weight, self._bias = array(model.gate.weight), array(model.gate.bias)
        source = model.copyable(source_ids)
        self._ids, self._places = array(source.ids), array(source.places)

    def logits(self, logits: np.ndarray, hidden: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """As the function `mixture`, float32 (sentences, width, vocabulary), of the decoder's
        output (sentences, width, d_model) and attention (sentences, heads, width, source_len)."""
        copied = np.matmul(weights.mean(axis=1), self._places)  # (sentences, width, source_len)
        ids = np.broadcast_to(self._ids[:, np.newaxis], copied.shape)
        gate = hidden @ self._weight + self._bias  # (sentences, width, 1)
        logits = logits.copy()  # what is a tensor's can't be written to
        log_total = array(operations.log_sum_exp(tensor(logits.reshape(-1, logits.shape[-1]))))
        with np.errstate(divide="ignore"):  # log(0) is -inf, as it should be
            pointed = log_total.reshape(gate.shape) - gate + np.log(copied)
        mixed = np.logaddexp(np.take_along_axis(logits, ids, axis=2), pointed)
        np.put_along_axis(logits, ids, mixed, axis=2)
        return logits

    def select(self, sentences: np.ndarray) -> None:
        """As `CpuDecoderState.select`."""
        self._ids, self._places = self._ids[sentences], self._places[sentences]


cpu_decoder.register(CopyingTransformer, {"gate": Linear}, CpuCopying)
