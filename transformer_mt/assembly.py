"""From a config and its vocabularies to the model."""

from __future__ import annotations

from transformer_mt.config import ModelConfig
from transformer_mt.data.subword import Subwords
from transformer_mt.model.transformer import Transformer


def build_model(config: ModelConfig, subwords: Subwords) -> Transformer:
    """A freshly initialised Transformer of the config's size; Paddle's generator decides it."""
    return Transformer(
        source_vocab_size=subwords.source.size,
        target_vocab_size=subwords.target.size,
        d_model=config.d_model,
        num_heads=config.num_heads,
        d_ff=config.d_ff,
        num_encoder_layers=config.num_encoder_layers or config.num_layers,
        num_decoder_layers=config.num_decoder_layers or config.num_layers,
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
    )
