"""The encoder-decoder Transformer as Paddle layers."""

# The names are here for whoever imports the package.
# ruff: noqa: F401

from transformer_mt.model.attention import (
    MultiHeadAttention,
    ScaledDotProductAttention,
    causal_mask,
    padding_mask,
)
from transformer_mt.model.embedding import PositionalEncoding, TokenEmbedding
from transformer_mt.model.layers import (
    DecoderLayer,
    EncoderLayer,
    PositionwiseFeedForward,
    ResidualNorm,
)
from transformer_mt.model.transformer import Decoder, Encoder, Generator, Transformer
