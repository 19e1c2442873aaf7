"""The training objectives: what a model is trained to do with a batch.

`Objective` is teacher forcing in one forward pass. A `Term` changes this pass or adds to its loss;
several terms can be combined. `MaskPrediction` is the objective of non-autoregressive models.
"""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import Tensor, nn

from transformer_mt.config.decoding import DecodingConfig
from transformer_mt.config.schema import Config
from transformer_mt.data.batches import Batch, rounded
from transformer_mt.data.subword import Subwords
from transformer_mt.decoding.engine import length_limits
from transformer_mt.model import operations
from transformer_mt.model.operations import to_tensor
from transformer_mt.model.transformer import Transformer
from transformer_mt.model.variants import NonAutoregressiveTransformer


class LabelSmoothedCrossEntropy(nn.Layer):
    """Cross-entropy against (1 - epsilon) * one-hot + epsilon / vocabulary.

    This is the label smoothing of the Transformer paper (section 5.4; Szegedy et al. 2016, arXiv
    1512.00567, section 7) over the whole vocabulary. Padding adds nothing to the loss.
    """

    def __init__(self, epsilon: float, pad_id: int) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.pad_id = pad_id

    def forward(self, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """
        Args:
            logits: (..., vocabulary), floating.
            targets: (...), int64; pad_id at padding.

        Returns:
            The smoothed loss to train on, and the plain negative log-likelihood to report, which
            has no gradient. Both are summed over the targets that are not padding, in nats, as
            float32 scalars.
        """
        flat = logits.astype("float32").reshape([-1, logits.shape[-1]])
        with paddle.amp.auto_cast(enable=False):  # in float32, whatever the model computes in
            loss, nll = operations.current.smoothed_cross_entropy(
                flat, targets.flatten(), self.epsilon, self.pad_id
            )
        return loss, nll.detach()


# Which source ids and which ids of the decoder's input are read as zero vectors: bool arrays
# (batch, source_len) and (batch, target_len); None: no id.
Dropped = tuple[np.ndarray | None, np.ndarray | None]


class Term:
    """An addition to teacher forcing. Subclasses override some of its hooks.

    Terms take part in training only: no hook runs when the loss of the dev set is measured. `step`
    is the number of the update, from 1.
    """

    # The decoder layers, from 0, whose attention to the source `loss` reads.
    cross_attention_layers: Collection[int] = ()
    # Takes the place of the objective's criterion, with the same interface. One term may have one.
    criterion: nn.Layer | None = None

    def batch(self, batch: Batch, step: int) -> Batch:
        """Returns the batch to train on in place of `batch`. If it has another number of target
        tokens, the loss is scaled so that the batch keeps its weight in the update."""
        return batch

    def dropped(self, batch: Batch) -> Dropped:
        """Returns which embeddings of the batch are replaced by zeros."""
        return None, None

    def decoder_input(
        self, target: Tensor, batch: Batch, memory: Tensor, source: Tensor, step: int
    ) -> Tensor:
        """Returns what the decoder reads in place of `target`.

        Args:
            target: int64 (batch, target_len), or its embeddings (batch, target_len, d_model).
            memory: the encoder's output (batch, source_len, d_model).
            source: int64 (batch, source_len).
        """
        return target

    def loss(self, batch: Batch, cross_weights: list[Tensor | None]) -> Tensor | float:
        """Returns a float32 scalar to add to the loss, which is a sum over the target tokens.

        Args:
            cross_weights: the attention of each decoder layer to the source, floating
                (batch, heads, target_len, source_len); None for a layer that no term reads.
        """
        return 0.0


@dataclass
class Objective:
    """Teacher forcing: each target token is predicted from the true tokens before it.

    Attributes:
        criterion: maps logits and labels to the loss and the negative log-likelihood, both summed.
        terms: additions to teacher forcing, whose hooks are called in this order.
    """

    model: Transformer
    criterion: nn.Layer
    terms: Collection[Term] = ()

    def losses(self, batch: Batch, step: int | None = None) -> tuple[Tensor, Tensor]:
        """Computes the loss to train on, and the plain negative log-likelihood to report.

        Both are summed over the target tokens of `batch` that are not padding, in nats, as float32
        scalars.

        Args:
            step: the number of the update, from 1; None if the dev set is being measured.
        """
        terms = () if step is None else self.terms
        target_tokens = batch.target_tokens
        for term in terms:
            batch = term.batch(batch, step)

        # The encoder runs, and the terms may replace the input of the decoder.
        source = to_tensor(batch.source)  # (batch, source_len)
        target = to_tensor(batch.target_input)  # (batch, target_len)
        source_dropped, target_dropped = _all_dropped(terms, batch)
        embedded = None
        if source_dropped is not None:
            embedded = _without(self.model.source_embedding(source), source_dropped)
        memory = self.model.encode(source, embedded=embedded)  # (batch, source_len, d_model)
        for term in terms:
            target = term.decoder_input(target, batch, memory, source, step)
        if target_dropped is not None:
            if target.ndim == 2:
                target = self.model.target_embedding(target)
            target = _without(target, target_dropped)

        # Logits, the costliest part, are computed only at positions that are not padding.
        labels = batch.target_output.reshape(-1)
        positions = np.flatnonzero(labels != self.criterion.pad_id)
        labels, positions = to_tensor(labels[positions]), to_tensor(positions)
        layers = {layer for term in terms for layer in term.cross_attention_layers}
        found = self.model.logits(target, memory, source, positions, need_weights=layers)
        logits, cross_weights = found if layers else (found, [])

        criteria = [term.criterion for term in terms if term.criterion is not None]
        (criterion,) = criteria or [self.criterion]
        loss, nll = criterion(logits, labels)
        with paddle.amp.auto_cast(enable=False):  # in float32, like the criterion
            for term in terms:
                loss = loss + term.loss(batch, cross_weights)
        if batch.target_tokens != target_tokens:
            share = target_tokens / batch.target_tokens
            loss, nll = loss * share, nll * share
        return loss, nll


def _all_dropped(terms: Collection[Term], batch: Batch) -> Dropped:
    """Returns what at least one of the terms drops."""
    sides: list[np.ndarray | None] = [None, None]
    for term in terms:
        for side, mask in enumerate(term.dropped(batch)):
            if mask is not None:
                sides[side] = mask if sides[side] is None else sides[side] | mask
    return sides[0], sides[1]


def _without(embedded: Tensor, dropped: np.ndarray) -> Tensor:
    """Replaces embeddings (batch, len, d_model) by zeros where `dropped` (batch, len) is True."""
    return paddle.masked_fill(embedded, to_tensor(dropped).unsqueeze(-1), 0.0)


class MaskPrediction:
    """Predicts masked target tokens from the source and from the target tokens without a mask
    (Ghazvininejad et al. 2019, "Mask-Predict", arXiv 1904.09324, sections 2.2 and 2.3).

    Between one and all of the tokens of a sentence are masked. Every number of masks is equally
    probable, and so is every set of that many tokens. Only masked tokens are predicted.

    With model.non_autoregressive: length, the target has no eos, and its length is predicted as
    well. With end, the target is filled up with eos to the length with which decoding begins
    (decoding.max_length_ratio * source + max_length_extra); at least one eos is appended.
    """

    def __init__(
        self,
        config: Config,
        model: NonAutoregressiveTransformer,
        subwords: Subwords,
        criterion: nn.Layer,
    ) -> None:
        self.model = model
        self.decoding = config.decoding
        self.source, self.target = subwords.source, subwords.target
        self.criterion = criterion

    def losses(self, batch: Batch, step: int | None = None) -> tuple[Tensor, Tensor]:
        """As `Objective.losses`; if the length is predicted, both losses include its loss.

        In training, (N + 1) / 2 of N tokens are masked on average. Their loss is doubled, so that
        it stands for N + 1 tokens, as many as the target has with eos. The loss of the length is
        doubled too, so that both have the same weight as in the paper. NumPy's generator draws the
        masks.

        On the dev set, all tokens are masked, as at the beginning of decoding, and nothing is
        doubled.
        """
        labels = self.labels(batch)  # (batch, target_len)
        is_real = labels != self.target.pad
        masked = is_real if step is None else random_masks(is_real)
        source = to_tensor(batch.source)
        # A non-autoregressive decoder never reads bos, so bos can stand for a mask.
        target = to_tensor(np.where(masked, self.target.bos, labels))
        memory, length_logits = self.model.encode_with_lengths(source)
        length_loss = 0.0
        if length_logits is not None:
            length_loss = self.length_loss(length_logits, is_real.sum(axis=1))
        scale = 1.0 if step is None else 2.0
        positions = np.flatnonzero(masked)
        if not len(positions):  # all targets are empty
            return length_loss * scale, length_loss * scale
        logits = self.model.logits(target, memory, source, to_tensor(positions))
        loss, nll = self.criterion(logits, to_tensor(labels.reshape(-1)[positions]))
        return (loss + length_loss) * scale, (nll + length_loss) * scale

    def labels(self, batch: Batch) -> np.ndarray:
        """Returns the correct token of every target position, padded: int64 (batch, target_len)."""
        lengths_with_eos = (batch.target_output != self.target.pad).sum(axis=1)
        if self.model.predicts_length:
            length = rounded(max(1, lengths_with_eos.max() - 1), batch.multiple)
            tokens = batch.target_output[:, :length]
            is_token = np.arange(length) < lengths_with_eos[:, np.newaxis] - 1
            return np.where(is_token, tokens, self.target.pad)
        source_lengths = (batch.source != self.source.pad).sum(axis=1) - 1  # without eos
        lengths = _filled_lengths(self.decoding, source_lengths, lengths_with_eos - 1)
        length = rounded(lengths.max(), batch.multiple)
        labels = np.full((len(lengths), length), self.target.eos, np.int64)
        own = batch.target_output[:, :length]
        np.copyto(labels[:, : own.shape[1]], own, where=own != self.target.pad)
        labels[np.arange(labels.shape[1]) >= lengths[:, np.newaxis]] = self.target.pad
        return labels

    @staticmethod
    def length_loss(logits: Tensor, lengths: np.ndarray) -> Tensor:
        """Returns the cross-entropy of the lengths (batch,), summed over the batch.

        Args:
            logits: (batch, longest), of the lengths from 1.
        """
        labels = to_tensor(np.clip(lengths, 1, logits.shape[1]) - 1)
        with paddle.amp.auto_cast(enable=False):
            return F.cross_entropy(logits.astype("float32"), labels, reduction="sum")


def decoded_lengths(
    config: Config, source_lengths: np.ndarray, target_lengths: np.ndarray
) -> np.ndarray:
    """Returns how many tokens the decoder reads per sentence, by which batches are made.

    All lengths are integer arrays (sentences,), in subwords without eos.
    """
    if config.model.non_autoregressive != "end":
        return target_lengths
    return _filled_lengths(config.decoding, source_lengths, target_lengths) - 1


def _filled_lengths(
    decoding: DecodingConfig, source_lengths: np.ndarray, target_lengths: np.ndarray
) -> np.ndarray:
    """Returns the lengths to which targets are filled up with eos, int64 (sentences,).

    The given lengths are without eos.
    """
    longest = int(source_lengths.max(initial=0))
    limits = np.array([length_limits(length, decoding)[1] for length in range(longest + 1)])
    return np.maximum(limits[source_lengths], target_lengths.astype(np.int64) + 1)


def random_masks(is_real: np.ndarray) -> np.ndarray:
    """Chooses some of the True values of each row, at least one if the row has any.

    Every number of them is equally probable, and so is every set of that many.

    Args:
        is_real: bool (batch, target_len).

    Returns: bool (batch, target_len), True where chosen.
    """
    lengths = is_real.sum(axis=1)
    counts = 1 + (np.random.random_sample(len(lengths)) * lengths).astype(np.int64)
    order = np.where(is_real, np.random.random_sample(is_real.shape), np.inf)
    ranks = order.argsort(axis=1).argsort(axis=1)
    return is_real & (ranks < counts[:, np.newaxis])
