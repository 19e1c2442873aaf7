"""The Transformer once more in NumPy and float64, and the small one that it is compared with."""

import math
from types import SimpleNamespace

import numpy as np
import paddle

from transformer_mt.config.schema import ModelConfig

TOLERANCE = 1e-5
PAD, BOS = 0, 1
SOURCE_VOCABULARY, TARGET_VOCABULARY = 13, 11
SMALL = {
    "d_model": 8,
    "num_heads": 2,
    "d_ff": 16,
    "num_encoder_layers": 2,
    "num_decoder_layers": 2,
    "dropout": 0.0,
}


def sizes(d_model, num_heads, d_ff, **options):
    """The sizes of a model without dropout, unless the options give it."""
    return ModelConfig(
        **{"d_model": d_model, "num_heads": num_heads, "d_ff": d_ff, "dropout": 0.0, **options}
    )


def build(kind, source_vocab_size, target_vocab_size, **options):
    """A model of a class such as `Transformer`; keys of the config's section `model` are among the
    options."""
    sizes = {name: options.pop(name) for name in ModelConfig.model_fields if name in options}
    return kind(ModelConfig(**sizes), source_vocab_size, target_vocab_size, **options)


def with_weights(model, source_ids, target_ids):
    """The logits of a whole target, and the attention weights of the encoder, the decoder, and the
    decoder's attention to the source: a list of layers each."""
    memory, encoder = model.encode(source_ids, need_weights=True)
    hidden, decoder, cross = model.decode(target_ids, memory, source_ids, need_weights=True)
    logits = model.generate(hidden, cross, model.copyable(source_ids))
    return logits, SimpleNamespace(encoder=encoder, decoder=decoder, cross=cross)


def assert_close(found, expected, message=""):
    """To the rounding of some twenty float32 operations on values of the order of 1."""
    np.testing.assert_allclose(found, expected, atol=TOLERANCE, err_msg=message)


def random_mask(rng, *shape):
    mask = rng.random(shape) < 0.4
    mask[..., 0] = False  # something is allowed in every row
    return mask


def attention_pairs(ours, theirs):
    """The linear layers of an attention of ours, each with that of Paddle's."""
    names = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "out_proj"}
    return [(getattr(ours, f"{n}_projection"), getattr(theirs, p)) for n, p in names.items()]


def assert_no_influence_of_padding(model, source_ids, target_ids):
    """What the embeddings of padding are makes no difference to any real position."""
    before = model(source_ids, target_ids).numpy()
    for embedding in (model.source_embedding, model.target_embedding):
        weight = embedding.weight.numpy()
        weight[PAD] = 7.0
        embedding.weight.set_value(weight)
    after = model(source_ids, target_ids).numpy()
    real = target_ids.numpy() != PAD
    np.testing.assert_array_equal(after[real], before[real])
    assert not np.array_equal(after[~real], before[~real])


def assert_no_gradient_from_padding(model, source_ids, target_ids):
    """The loss of the real positions has no gradient in the embeddings of padding."""
    logits = model(source_ids, target_ids)
    (logits[target_ids != PAD] ** 2).mean().backward()
    for embedding in (model.source_embedding, model.target_embedding):
        gradient = embedding.weight.grad.numpy()
        assert np.all(gradient[PAD] == 0.0)
        assert np.abs(gradient[3]).max() > 0.0


def assert_all_parameters_get_a_gradient(model, least=1e-6):
    """That a backward pass has reached them."""
    for name, parameter in model.named_parameters():
        assert np.isfinite(parameter.grad.numpy()).all(), name
        # The same term added to all scores of a row is lost in the softmax.
        if not name.endswith("key_projection.bias"):
            assert float(parameter.grad.abs().max()) > least, name


def assert_recompute_changes_nothing(plain, recomputing, *ids):
    """Neither logits, nor gradients, nor what is drawn next; dropout included."""
    recomputing.set_state_dict(plain.state_dict())
    found = []
    for model in (plain, recomputing):
        paddle.seed(3)
        logits = model(*ids)
        (logits**2).mean().backward()
        gradients = {n: p.grad.numpy() for n, p in model.named_parameters() if p.grad is not None}
        found.append((logits.numpy(), paddle.rand([4]).numpy(), gradients))
    for ours, theirs in zip(found[0][:2], found[1][:2], strict=True):
        np.testing.assert_array_equal(ours, theirs)
    # Where gradients of several uses of a tensor meet, they are added in another order.
    assert found[0][2].keys() == found[1][2].keys()
    for name, gradient in found[0][2].items():
        np.testing.assert_allclose(
            found[1][2][name], gradient, rtol=1e-5, atol=TOLERANCE, err_msg=name
        )


class NumpyTransformer:
    """The paper again, sentence by sentence without padding, head by head, in float64.

    The activation, the epsilon and the positions can be those of other models.
    """

    def __init__(
        self, model, num_heads, is_pre_norm, activation="relu", epsilon=1e-5, is_marian=False
    ):
        self.activation, self.epsilon, self.is_marian = activation, epsilon, is_marian
        self.weights = {
            name: value.numpy().astype("float64") for name, value in model.state_dict().items()
        }
        self.num_heads, self.is_pre_norm = num_heads, is_pre_norm

    def linear(self, name, x):
        return x @ self.weights[f"{name}.weight"] + self.weights.get(f"{name}.bias", 0.0)

    def norm(self, name, x):
        scaled = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + self.epsilon)
        return scaled * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def embed(self, name, ids):
        weight = self.weights[f"{name}.weight"]
        width = weight.shape[1]
        x = weight[ids] * np.sqrt(width)
        for position in range(len(ids)):
            for i in range(0, width, 2):
                share = (i / 2) / (width / 2 - 1) if self.is_marian else i / width
                angle = position / 10000.0**share
                x[position, i : i + 2] += [np.sin(angle), np.cos(angle)]
        return x

    def attention(self, name, query, memory=None, causal=False):
        memory = query if memory is None else memory
        queries = self.linear(f"{name}.query_projection", query)
        keys = self.linear(f"{name}.key_projection", memory)
        values = self.linear(f"{name}.value_projection", memory)
        width = queries.shape[-1] // self.num_heads
        heads = []
        for head in range(self.num_heads):
            part = slice(head * width, (head + 1) * width)
            output = np.zeros((len(query), width))
            for row in range(len(query)):
                seen = row + 1 if causal else len(memory)
                scores = keys[:seen, part] @ queries[row, part] / np.sqrt(width)
                weights = np.exp(scores) / np.exp(scores).sum()
                output[row] = weights @ values[:seen, part]
            heads.append(output)
        return self.linear(f"{name}.output_projection", np.concatenate(heads, -1))

    def feed_forward(self, name, x):
        inner = self.linear(f"{name}.inner_projection", x)
        is_gated = self.activation.endswith("glu")
        read = self.linear(f"{name}.gate_projection", x) if is_gated else inner
        if self.activation in ("relu", "reglu"):
            activated = np.maximum(read, 0.0)
        elif self.activation in ("swish", "swiglu"):
            activated = read / (1 + np.exp(-read))
        else:
            activated = read * (1 + np.vectorize(math.erf)(read / math.sqrt(2))) / 2
        inner = activated * inner if is_gated else activated
        return self.linear(f"{name}.output_projection", inner)

    def residual(self, name, x, sublayer, *arguments, **options):
        norm = f"{name}_residual.norm"
        if self.is_pre_norm:
            return x + sublayer(name, self.norm(norm, x), *arguments, **options)
        return self.norm(norm, x + sublayer(name, x, *arguments, **options))

    def stack(self, name, x, memory=None):
        for number in range(2):
            layer = f"{name}.layers.{number}"
            causal = memory is not None
            x = self.residual(f"{layer}.self_attention", x, self.attention, causal=causal)
            if memory is not None:
                x = self.residual(f"{layer}.cross_attention", x, self.attention, memory)
            x = self.residual(f"{layer}.feed_forward", x, self.feed_forward)
        return self.norm(f"{name}.norm", x) if self.is_pre_norm else x

    def logits(self, source_ids, target_ids):
        memory = self.stack("encoder", self.embed("source_embedding", source_ids))
        hidden = self.stack("decoder", self.embed("target_embedding", target_ids), memory)
        logits = hidden @ self.weights["generator.weight"].T
        return logits + self.weights.get("generator.bias", 0.0)
