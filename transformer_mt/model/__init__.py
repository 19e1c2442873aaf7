"""The encoder-decoder Transformer as Paddle layers."""

from transformer_mt.model.attention import (
    KeyValueCache,
    MultiHeadAttention,
    ScaledDotProductAttention,
    causal_mask,
    padding_mask,
)
from transformer_mt.model.cpu_decoder import CpuDecoder, CpuDecoderState
from transformer_mt.model.embedding import PositionalEncoding, TokenEmbedding
from transformer_mt.model.layers import (
    DecoderLayer,
    EncoderLayer,
    LayerCache,
    PositionwiseFeedForward,
    ResidualNorm,
)
from transformer_mt.model.transformer import (
    AttentionWeights,
    Decoder,
    DecoderCache,
    Encoder,
    Generator,
    Transformer,
)

__all__ = [
    "AttentionWeights",
    "CpuDecoder",
    "CpuDecoderState",
    "Decoder",
    "DecoderCache",
    "DecoderLayer",
    "Encoder",
    "EncoderLayer",
    "Generator",
    "KeyValueCache",
    "LayerCache",
    "MultiHeadAttention",
    "PositionalEncoding",
    "PositionwiseFeedForward",
    "ResidualNorm",
    "ScaledDotProductAttention",
    "TokenEmbedding",
    "Transformer",
    "causal_mask",
    "padding_mask",
]
