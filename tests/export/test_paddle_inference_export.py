"""The exported programs, run by Paddle Inference alone, against the model that they came from."""

import dataclasses
import resource

import numpy as np
import paddle
import pytest
from paddle import inference

from tests.reference import with_weights
from tests.support import demo_pairs, make_config, train_subwords, wide_model
from transformer_mt.export import paddle_inference
from transformer_mt.model.transformer import Transformer
from transformer_mt.utils.errors import UserError

TOLERANCE = 1e-4


@dataclasses.dataclass
class Exported:
    model: Transformer
    encoder: inference.Predictor
    decoder: inference.Predictor


def load(folder, name):
    config = inference.Config(str(folder / f"{name}.json"), str(folder / f"{name}.pdiparams"))
    config.disable_glog_info()
    config.disable_mkldnn()
    return inference.create_predictor(config)


def run(predictor, arrays):
    """As a program in any language would do it: inputs by name, outputs in their order."""
    for name, array in arrays.items():
        handle = predictor.get_input_handle(name)
        handle.reshape(array.shape)
        handle.copy_from_cpu(np.ascontiguousarray(array))
    assert set(arrays) == set(predictor.get_input_names())
    predictor.run()
    names = predictor.get_output_names()
    return [predictor.get_output_handle(name).copy_to_cpu() for name in names]


def decode(exported, encoded, past, ids, positions, forbidden):
    """One run of the decoder: (logits, attention, what is past then)."""
    padding, *source = encoded
    kinds = ("key", "value")
    names = [(n, kind) for n in range(len(source) // 2) for kind in kinds]
    arrays = {"ids": ids, "positions": positions, "forbidden": forbidden, "source_padding": padding}
    arrays |= {f"source_{kind}_{n}": x for (n, kind), x in zip(names, source, strict=True)}
    arrays |= {f"past_{kind}_{n}": x for (n, kind), x in zip(names, past, strict=True)}
    logits, attention, *past = run(exported.decoder, arrays)
    return logits, attention, past


def nothing_past(encoded):
    return [x[:, :, :0] for x in encoded[1:]]


def causal(length):
    return np.triu(np.ones((1, 1, length, length), bool), 1)


# tests/test_parity.py exports models of all other kinds.
VARIANTS = {
    "no-bias": ({"bias": False, "num_encoder_layers": 2, "num_decoder_layers": 3}, {}),
    "untied-apart": ({"tie_embeddings": False, "norm": "post"}, {"joint": False}),
    "odd-width": ({"d_model": 15, "num_heads": 3}, {}),
}


def wide(folder, model_settings, subword_settings):
    config = make_config(folder)
    changed = config.model.model_copy(update=model_settings)
    subwords = train_subwords(demo_pairs(200), **subword_settings)
    model = wide_model(config.model_copy(update={"model": changed}), subwords)
    for number, (name, parameter) in enumerate(model.named_parameters()):
        if name.endswith("bias") or "norm" in name:  # so that they matter
            noise = np.random.default_rng(number).normal(0, 0.3, parameter.shape)
            parameter.set_value(parameter.numpy() + noise.astype("float32"))
    return model


def write(folder, model, **settings):
    layers = model.decoder.layers
    sizes = {"num_decoder_layers": len(layers), "num_heads": layers[0].self_attention.num_heads}
    config = make_config(folder, model={**sizes, **settings})
    paddle_inference.write_model(folder, model, config, None)


@pytest.fixture(scope="module", params=VARIANTS)
def exported(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("programs")
    model = wide(folder, *VARIANTS[request.param])
    write(folder, model)
    return Exported(model, load(folder, "encoder"), load(folder, "decoder"))


@pytest.fixture
def source_ids():
    """Rows of 1 to 6 ids and eos, padded."""
    random = np.random.default_rng(5)
    ids = random.integers(4, 190, (3, 7))
    for row, length in enumerate((6, 3, 1)):
        ids[row, length] = 3
        ids[row, length + 1 :] = 0
    return ids


def padded_as(model, source_ids):
    return np.where(source_ids == 0, model.source_pad_id, source_ids)


def test_a_whole_target_at_once(exported, source_ids):
    source_ids = padded_as(exported.model, source_ids)
    target_ids = np.random.default_rng(6).integers(4, 190, (3, 5))
    ids = paddle.to_tensor(source_ids), paddle.to_tensor(target_ids)
    expected, weights = with_weights(exported.model, *ids)
    encoded = run(exported.encoder, {"source_ids": source_ids})
    logits, attention, past = decode(
        exported, encoded, nothing_past(encoded), target_ids, np.arange(5), causal(5)
    )
    np.testing.assert_allclose(logits, expected.numpy(), atol=TOLERANCE)
    layer = max(len(weights.cross) - 2, 0)
    np.testing.assert_allclose(attention, weights.cross[layer].numpy().mean(axis=1), atol=1e-5)
    assert {x.shape[2] for x in past} == {5}
    np.testing.assert_array_equal(encoded[0][:, 0, 0], source_ids == exported.model.source_pad_id)


def test_hypotheses_side_by_side(exported, source_ids):
    """Two of each sentence, of which the second goes on from the first at the third step, where the
    second sentence leaves."""
    source_ids = padded_as(exported.model, source_ids)
    one, two = np.random.default_rng(8).integers(4, 190, (2, 3, 3))
    encoded = run(exported.encoder, {"source_ids": source_ids})
    past = nothing_past(encoded)
    forks = [[0, 1], [0, 1], [0, 0]]
    seen = np.zeros((2, 0), bool)
    rows = np.arange(3)
    for position, parents in enumerate(forks):
        if position == 2:
            rows = np.array([0, 2])
            encoded, past = [x[rows] for x in encoded], [x[rows] for x in past]
        ids = np.stack([one[rows, position], two[rows, position]], axis=1)
        seen = np.concatenate([seen[parents], np.eye(2, dtype=bool)], axis=1)
        forbidden = np.broadcast_to(~seen, (len(rows), 1, *seen.shape))
        logits, _, past = decode(exported, encoded, past, ids, np.array([position]), forbidden)
    for place, target_ids in enumerate((one, np.concatenate([one[:, :2], two[:, 2:]], axis=1))):
        expected = exported.model(paddle.to_tensor(source_ids), paddle.to_tensor(target_ids))
        np.testing.assert_allclose(logits[:, place], expected.numpy()[rows, -1], atol=TOLERANCE)


def test_there_is_no_last_position(exported):
    """The model's own table of positions begins with 1,024."""
    model = exported.model
    random = np.random.default_rng(9)
    source_ids, target_ids = random.integers(4, 190, (1, 1100)), random.integers(4, 190, (1, 1050))
    encoded = run(exported.encoder, {"source_ids": source_ids})
    logits, _, _ = decode(
        exported, encoded, nothing_past(encoded), target_ids, np.arange(1050), causal(1050)
    )
    expected = model(paddle.to_tensor(source_ids), paddle.to_tensor(target_ids))
    np.testing.assert_allclose(logits, expected.numpy(), atol=10 * TOLERANCE)


def test_the_model_is_as_it_was(exported, source_ids):
    model = exported.model
    table = model.positional_encoding.table
    assert table.shape[0] >= 1024
    assert not model.training
    (model(*[paddle.to_tensor(source_ids)] * 2).sum()).backward()  # and can be trained
    assert all(parameter.grad is not None for parameter in model.parameters())
    model.clear_gradients()


def test_all_that_can_not_be_exported_is_listed(tmp_path):
    model = wide(tmp_path, {}, {})
    model.extra = paddle.nn.Linear(2, 2)
    model.generator.copies = paddle.nn.Linear(2, 2, bias_attr=False)
    norm = model.encoder.norm
    norm.bias.set_value(np.full(norm.bias.shape, np.nan, "float32"))
    folder = tmp_path / "programs"
    folder.mkdir()
    positions = model.positional_encoding
    with pytest.raises(UserError) as caught:
        write(folder, model)
    listed = [line.strip().partition(":")[0] for line in str(caught.value).split("\n")[1:]]
    expected = ["encoder.norm.bias", "extra.bias", "extra.weight", "generator.copies.weight"]
    assert sorted(listed) == expected
    assert list(folder.iterdir()) == []
    assert model.positional_encoding is positions


def test_a_file_that_is_not_written_whole(tmp_path):
    """Paddle itself goes on in silence when a file can't grow any more."""
    model = wide(tmp_path, {"d_model": 128}, {})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, before[1]))
    try:
        with pytest.raises(UserError, match=r"^encoder\.pdiparams could not be written whole"):
            write(tmp_path, model)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
