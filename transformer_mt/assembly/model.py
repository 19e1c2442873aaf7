"""From a config and its vocabularies to the model."""

from __future__ import annotations

from functools import partial

from transformer_mt.config.schema import LONGEST_TARGET, ModelConfig
from transformer_mt.data.subword import Subwords
from transformer_mt.mechanisms.copying.model import CopyingTransformer
from transformer_mt.mechanisms.mask_predict.model import NonAutoregressiveTransformer
from transformer_mt.model.transformer import Transformer


def build_model(config: ModelConfig, subwords: Subwords, recompute: bool = False) -> Transformer:
    """A freshly initialised Transformer of the config's kind and size; Paddle's generator decides
    it.

    Raises ValueError if it is to copy, and source and target have vocabularies of their own.
    """
    if config.copying and not subwords.joint:
        raise ValueError("model.copying needs one vocabulary of source and target")
    kind = CopyingTransformer if config.copying else Transformer
    if config.non_autoregressive is not None:
        longest = LONGEST_TARGET if config.non_autoregressive == "length" else None
        kind = partial(NonAutoregressiveTransformer, longest=longest)
    return kind(
        source_vocab_size=subwords.source.size,
        target_vocab_size=subwords.target.size,
        d_model=config.d_model,
        num_heads=config.num_heads,
        d_ff=config.d_ff,
        num_encoder_layers=config.encoder_layers,
        num_decoder_layers=config.decoder_layers,
        dropout=config.dropout,
        embedding_dropout=config.embedding_dropout,
        attention_dropout=config.attention_dropout,
        feed_forward_dropout=config.feed_forward_dropout,
        norm=config.norm,
        tie_embeddings=config.tie_embeddings,
        share_source_embedding=config.tie_embeddings and subwords.joint,
        bias=config.bias,
        pad_id=subwords.target.pad,
        source_pad_id=subwords.source.pad,
        recompute=recompute,
    )
