"""The encoder-decoder Transformer as Paddle layers."""
