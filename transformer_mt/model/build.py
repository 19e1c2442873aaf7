"""Builds the model of a config."""

from collections.abc import Callable
from functools import partial

from transformer_mt.config.decoding import LONGEST_TARGET
from transformer_mt.config.schema import ModelConfig
from transformer_mt.data.subword import Subwords
from transformer_mt.model.copying import CopyingTransformer
from transformer_mt.model.nonautoregressive import NonAutoregressiveTransformer
from transformer_mt.model.transformer import Transformer


def build_model(config: ModelConfig, subwords: Subwords, recompute: bool = False) -> Transformer:
    """Builds the Transformer of a config, with weights drawn from Paddle's random generator.

    `recompute` is as in `Transformer`. Raises ValueError if the model copies, but source and target
    have different vocabularies.
    """
    kind: Callable[..., Transformer] = CopyingTransformer if config.copying else Transformer
    if config.non_autoregressive is not None:
        longest = LONGEST_TARGET if config.non_autoregressive == "length" else None
        kind = partial(NonAutoregressiveTransformer, longest=longest)
    return kind(
        config,
        subwords.source.size,
        subwords.target.size,
        share_source_embedding=config.tie_embeddings and subwords.joint,
        pad_id=subwords.target.pad,
        source_pad_id=subwords.source.pad,
        recompute=recompute,
    )
