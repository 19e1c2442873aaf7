"""From a config and its vocabularies to the model, and from a checkpoint to its weights."""

from __future__ import annotations

from pathlib import Path

import paddle
from paddle import nn

from transformer_mt.config import ModelConfig
from transformer_mt.data.subword import Subwords
from transformer_mt.errors import UserError
from transformer_mt.model.transformer import Transformer

# The file of a checkpoint that holds the model.
WEIGHTS = "model.pdparams"


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


def load_weights(checkpoint: Path, model: nn.Layer) -> None:
    """Fills the model's parameters from a checkpoint.

    Raises:
        UserError: the file is missing or damaged, or does not fit the model; all that does not
            fit is listed, and the model is left as it was.
    """
    path = checkpoint / WEIGHTS
    if not path.is_file():
        raise UserError(f"{path}: there is no such file. Use another checkpoint")
    try:
        weights = paddle.load(str(path))
        shapes = {name: list(weight.shape) for name, weight in weights.items()}
    except Exception as error:  # unpickling a damaged file can raise nearly anything
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise UserError(f"{path}: damaged ({reason}). Use another checkpoint") from None
    parameters = dict(model.named_parameters())
    problems = []
    for name, parameter in parameters.items():
        if name not in shapes:
            problems.append(f"{name} is missing")
        elif shapes[name] != list(parameter.shape):
            problems.append(f"{name} is {shapes[name]}, the model's is {list(parameter.shape)}")
    problems += [f"{name} is not in the model" for name in shapes if name not in parameters]
    if problems:
        raise UserError(f"{path} does not fit the config: " + "; ".join(problems))
    for name, parameter in parameters.items():
        parameter.set_value(weights[name])
