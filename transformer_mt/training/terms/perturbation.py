"""Perturbations: the model is trained on input in which some words are not the true ones.

Takase and Kiyono 2021 (arXiv 2104.01853) compare them: random words, words left out, and the
model's own predictions.
"""

import contextlib
import math
from dataclasses import replace

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import Tensor

from transformer_mt.config.schema import Config, ScheduledSamplingConfig
from transformer_mt.data.batches import Batch
from transformer_mt.data.subword import Subwords
from transformer_mt.data.vocabulary import Vocabulary
from transformer_mt.model.operations import to_tensor
from transformer_mt.model.transformer import Transformer
from transformer_mt.training.objective import Dropped, Term


class WordNoise(Term):
    """Word replacement and word dropout (Takase and Kiyono 2021, arXiv 2104.01853, sections 2.2 and
    2.4): replaces some ids of the source and of the decoder's input by random ones, and the
    embeddings of others by zeros. The labels stay as they are.

    Each subword is drawn by itself, in those sentences that get noise. A zero vector has no
    position: positions are added afterwards.
    """

    def __init__(self, config: Config, model: Transformer, subwords: Subwords) -> None:
        self.settings = config.word_noise
        self._ordinary = _ordinary_ids(subwords.source), _ordinary_ids(subwords.target)
        self._gets_noise = np.empty((0, 1), bool)  # of the batch that is being trained on

    def batch(self, batch: Batch, step: int) -> Batch:
        """As `Term.batch`."""
        settings, (source_ids, target_ids) = self.settings, self._ordinary
        self._gets_noise = np.random.random_sample((len(batch.source), 1)) < settings.sentences
        source = self._replaced(batch.source, settings.source_replacement, source_ids)
        target = self._replaced(batch.target_input, settings.target_replacement, target_ids)
        return replace(batch, source=source, target_input=target)

    def dropped(self, batch: Batch) -> Dropped:
        """As `Term.dropped`."""
        source = self._drawn(batch.source, self.settings.source_dropout)
        return source, self._drawn(batch.target_input, self.settings.target_dropout)

    def _replaced(self, ids: np.ndarray, share: float, ordinary: np.ndarray) -> np.ndarray:
        drawn = self._drawn(ids, share)
        if drawn is None:
            return ids
        # bos, eos, padding and tags are not ordinary, so they stay where they are.
        drawn &= np.isin(ids, ordinary)
        return np.where(drawn, np.random.choice(ordinary, ids.shape), ids)

    def _drawn(self, ids: np.ndarray, share: float) -> np.ndarray | None:
        """Draws a share of the positions of the sentences that get noise; None if it is 0."""
        if not share:
            return None
        return (np.random.random_sample(ids.shape) < share) & self._gets_noise


def _ordinary_ids(vocabulary: Vocabulary) -> np.ndarray:
    """Returns the ids of text: all but the special ones, and those of tags."""
    special = [vocabulary.pad, vocabulary.unk, vocabulary.bos, vocabulary.eos]
    tags = list(vocabulary.user_symbols.values())
    return np.setdiff1d(np.arange(vocabulary.size), special + tags)


def true_share(step: int, config: ScheduledSamplingConfig) -> float:
    """Returns the share of true words at update `step`, from 1 (Bengio et al. 2015, section 2.4).

    With i updates done since `start`, the share is max(minimum, k - slope i) for linear decay, k^i
    for exponential decay, and k / (k + exp(i / k)) for inverse_sigmoid decay. The latter two do not
    fall below the minimum either.
    """
    done = step - 1 - config.start
    if done < 0:
        return 1.0
    k = config.k
    if config.decay == "linear":
        share = k - config.slope * done
    elif config.decay == "exponential":
        share = k**done
    else:
        share = k / (k + math.exp(min(done / k, 700.0)))  # exp(710) is beyond a float
    return min(1.0, max(config.minimum, share))


class ScheduledSampling(Term):
    """Scheduled sampling: replaces some tokens of the decoder's input by the model's predictions.

    Bengio et al. 2015 (arXiv 1506.03099) replace more and more of them during training. Mihaylova
    and Martins 2019 (arXiv 1906.07651) do this for Transformers with two passes of the decoder,
    Duckworth et al. 2019 (arXiv 1906.04331) with more than two.

    The first pass reads true tokens and predicts replacements for some of them; the next pass reads
    the mixture (Mihaylova and Martins 2019, section 3). With more passes, each predicts again from
    the mixture before it. The positions that are replaced, and the random numbers by which a token
    is drawn from a distribution, are the same in all passes. So without dropout, and with as many
    passes as the target has tokens, the mixture is the same as if one token was predicted after
    another (Duckworth et al. 2019, section 3).

    The last pass and the embeddings that it reads are trained. Gradients flow into the earlier
    passes only with `backpropagate`.
    """

    def __init__(self, config: Config, model: Transformer, subwords: Subwords) -> None:
        self.settings = config.scheduled_sampling
        self.model = model
        self.pad_id = subwords.target.pad

    def decoder_input(
        self, target: Tensor, batch: Batch, memory: Tensor, source: Tensor, step: int
    ) -> Tensor:
        """As `Term.decoder_input`."""
        places = self._chosen_places(batch, true_share(step, self.settings))
        return self._mixture(target, memory, source, places) if len(places) else target

    def _chosen_places(self, batch: Batch, share: float) -> np.ndarray:
        """Chooses the positions of batch * target_len that are replaced: int64 (count,).

        The first token of a row, bos, is never replaced, since nothing comes before it. NumPy's
        generator draws, because their number must be known on the host.
        """
        candidates = batch.target_input != self.pad_id
        candidates[:, 0] = False
        drawn = np.random.random_sample(batch.target_input.shape) >= share
        return np.flatnonzero(candidates & drawn)

    def _mixture(self, true: Tensor, memory: Tensor, source: Tensor, places: np.ndarray) -> Tensor:
        """Returns what the last pass reads: int64 (batch, target_len), or embeddings of it."""
        before = to_tensor(places - 1)  # a token is predicted at the position before it
        index = to_tensor(places)
        draws = paddle.rand([len(places), 1])
        mixture = true
        for _ in range(self.settings.passes - 1):
            # The embeddings of the mixture are trained even without `backpropagate`.
            with contextlib.nullcontext() if self.settings.backpropagate else paddle.no_grad():
                logits: Tensor = self.model.logits(mixture, memory, source, before)
                logits = logits.astype("float32")
            if self.settings.mixing == "top_k":
                mixture = self._with_means(true, index, logits)
            else:
                ids = logits.argmax(-1) if self.settings.mixing == "argmax" else draw(logits, draws)
                mixture = paddle.scatter(true.flatten(), index, ids).reshape(true.shape)
        return mixture

    def _with_means(self, true: Tensor, index: Tensor, logits: Tensor) -> Tensor:
        """Returns the embeddings of `true` (batch, target_len, d_model), where those at `index` are
        replaced by means of the embeddings of the most probable tokens, weighted by probability."""
        embedding = self.model.target_embedding
        top_k = min(self.settings.top_k, logits.shape[-1])
        scores, ids = logits.topk(top_k, axis=-1)  # (count, top_k)
        # (count, 1, top_k) times (count, top_k, d_model)
        means = paddle.matmul(F.softmax(scores, axis=-1).unsqueeze(1), embedding(ids)).squeeze(1)
        embedded = embedding(true)  # (batch, target_len, d_model)
        flat = embedded.reshape([-1, embedded.shape[-1]])
        return paddle.scatter(flat, index, means.astype(flat.dtype)).reshape(embedded.shape)


def draw(logits: Tensor, draws: Tensor) -> Tensor:
    """Draws an id from the distribution of each row of `logits`: int64 (count,).

    Args:
        logits: (count, vocabulary).
        draws: (count, 1), uniform random numbers from 0 to 1. The id is the first one whose
            cumulative probability reaches the number.
    """
    cumulative = F.softmax(logits, axis=-1).cumsum(-1)
    # The last cumulative probability is 1 only up to rounding.
    return (cumulative < draws * cumulative[:, -1:]).astype("int64").sum(-1)
