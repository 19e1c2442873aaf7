"""The training objective: what a model is trained to do with a batch.

`Objective` is teacher forcing in one forward pass. A `Term` changes this pass or adds to its loss;
several terms can be combined.
"""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import paddle
from paddle import Tensor, nn

from transformer_mt.config.schema import Config
from transformer_mt.data.batches import Batch
from transformer_mt.model import operations
from transformer_mt.model.operations import to_tensor
from transformer_mt.model.transformer import Transformer


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


@dataclass(frozen=True)
class Forward:
    """A forward pass of the model.

    Attributes:
        batch: the input of the model, padded.
        logits: floating (count, vocabulary), at the target positions that are not padding.
        positions: int64 (count,), the indices of these positions in batch * target_len.
        labels: int64 (count,), the correct tokens there.
        cross_weights: the attention of each decoder layer to the source, floating
            (batch, heads, target_len, source_len); None for a layer that no term needs.
    """

    batch: Batch
    logits: Tensor
    positions: Tensor
    labels: Tensor
    cross_weights: list[Tensor | None]


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

    def loss(self, forward: Forward) -> Tensor | float:
        """Returns a float32 scalar to add to the loss, which is a sum over the target tokens."""
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

    @staticmethod
    def decoded_lengths(
        config: Config, source_lengths: np.ndarray, target_lengths: np.ndarray
    ) -> np.ndarray:
        """Returns how many tokens the decoder reads per sentence, by which batches are made.

        All lengths are integer arrays (sentences,), in subwords without eos.
        """
        return target_lengths

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
        forward = Forward(batch, logits, positions, labels, cross_weights)
        with paddle.amp.auto_cast(enable=False):  # in float32, like the criterion
            for term in terms:
                loss = loss + term.loss(forward)
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
