"""The formulas give the numbers of the paper's Table 6 and the parameters of the models."""

import keras
import pytest

import keras_vit
from keras_vit import architectures, cost

# "B/16" is ViT-B/16, "R50+B/16" is R50+ViT-B/16.
MODELS = {name.replace("ViT-", ""): size for name, size in architectures.VISION_TRANSFORMERS.items()}
# Of each row of Table 6: epochs, forward G multiply-accumulates, the same with padding, exaFLOPs here and in the paper.
TABLE_6 = [
    ("B/32", 7, 4.4084, None, 56.1, 55),
    ("B/16", 7, 17.5631, None, 223.5, 224),
    ("L/32", 7, 15.3765, None, 195.7, 196),
    ("L/16", 7, 61.5537, None, 783.3, 783),
    ("L/16", 14, 61.5537, None, 1566.7, 1567),
    ("H/14", 14, 167.2938, None, 4258.0, 4262),
    ("R50x1", 7, 3.946, 4.087, 50.2, 50),
    ("R50x2", 7, 15.552, 16.113, 197.9, 199),
    ("R101x1", 7, 7.476, 7.799, 95.1, 96),
    ("R152x1", 7, 11.027, 11.512, 140.3, 141),
    ("R152x2", 7, 43.873, 45.810, 558.3, 563),
    ("R152x2", 14, 43.873, 45.810, 1116.7, 1126),
    ("R200x3", 14, 129.202, 134.341, 3288.5, 3306),
    ("R50+B/32", 7, 8.316, 8.457, 105.8, 106),
    ("R50+B/16", 7, 21.414, 21.535, 272.5, 274),
    ("R50+L/32", 7, 19.271, 19.412, 245.2, 246),
    ("R50+L/16", 7, 65.418, 65.538, 832.5, 859),  # the paper's 14 epochs below are twice 834
    ("R50+L/16", 14, 65.418, 65.538, 1665.0, 1668),
]
JFT = 303e6


def _forward(name, **options):
    if name in MODELS:
        return cost.multiply_accumulates(**MODELS[name], **options)
    return cost.bit_multiply_accumulates(**architectures.BIT_RESNETS[f"BiT-{name}"], **options)


def _last_digit(number):
    return 10.0 ** -len(str(number).split(".")[1])


@pytest.mark.parametrize(("name", "epochs", "forward", "padded", "ours", "paper"), TABLE_6)
def test_the_exaflops_of_table_6(name, epochs, forward, padded, ours, paper):
    assert _forward(name) / 1e9 == pytest.approx(forward, abs=_last_digit(forward))
    padded = padded or forward
    assert _forward(name, count_padding=True) / 1e9 == pytest.approx(padded, abs=_last_digit(padded))
    result = cost.exaflops(_forward(name), epochs * JFT)
    assert result == pytest.approx(ours, abs=0.05)
    assert result == pytest.approx(paper, rel={("B/32", 7): 0.021, ("R50+L/16", 7): 0.032}.get((name, epochs), 0.01))


@pytest.mark.parametrize(
    ("name", "at_224", "at_384"),
    [
        ("Ti/16", 1.2535, 4.68), ("S/32", 1.1425, 3.44), ("S/16", 4.5985, 15.49), ("B/8", 78.1476, 294.0),
        ("R+Ti/16", 0.4335, 1.33), ("R26+S/32", 3.4635, 10.26), ("R26+B/32", 6.7101, 19.8), ("B/32", 4.4084, 13.04),
        ("B/16", 17.5631, 55.48), ("L/32", 15.3765, 45.28), ("L/16", 61.5537, 191.1), ("R50+B/16", 21.535, 67.2),
        ("R50+L/32", 19.412, 57.1),
    ],
)  # fmt: skip
def test_other_models_and_384_pixels_with_padding(name, at_224, at_384):
    for pixels, expected in ((224, at_224), (384, at_384)):
        result = _forward(name, input_shape=(pixels, pixels, 3), count_padding=True) / 1e9
        assert result == pytest.approx(expected, abs=_last_digit(expected))


def test_h14_at_378_pixels():
    assert round(_forward("H/14", input_shape=(378, 378, 3)) / 1e9, 1) == 503.5


@pytest.mark.parametrize(
    ("name", "headless", "classes_1000", "with_representation"),
    [
        ("Ti/16", 5_524_416, 5_717_416, 5_754_472),
        ("B/16", 85_798_656, 86_567_656, 87_158_248),
        ("L/32", 305_510_400, 306_535_400, 307_585_000),
        ("H/14", 630_764_800, 632_045_800, 633_685_480),
        ("R+Ti/16", 6_144_704, 6_337_704, 6_374_760),
        ("R26+S/32", 36_046_912, 36_431_912, 36_579_752),
        ("R50+B/16", 97_890_112, 98_659_112, 99_249_704),
        ("R50+L/32", 327_969_856, 328_994_856, 330_044_456),
    ],
)
def test_parameters(name, headless, classes_1000, with_representation):
    model = MODELS[name]
    assert cost.parameters(**model) == headless
    assert cost.parameters(**model, classes=1000) == classes_1000
    assert cost.parameters(**model, classes=1000, representation_size=model["hidden_size"]) == with_representation


SMALL = {
    "patch_size": 8, "hidden_size": 12, "num_layers": 2, "mlp_dim": 20, "num_heads": 3, "classes": 7,
    "input_shape": (32, 48, 3), "dropout": 0.1,
}  # fmt: skip


@pytest.mark.parametrize(
    "arguments",
    [
        {"patch_size": 1, "resnet_blocks": (1, 2), "representation_size": 5},
        {"classifier": "gap"},
        {"classifier": "map"},
        {"classifier": "unpooled", "position_embedding": "sincos2d"},
        {"classifier": "token_unpooled", "class_token_position": False},
    ],
    ids=str,
)
def test_parameters_of_a_model_that_was_built(arguments):
    arguments = SMALL | arguments
    assert cost.parameters(**arguments) == keras_vit.VisionTransformer(**arguments).count_params()


def test_the_stem_of_a_config_costs_what_its_blocks_do():
    blocks = {"patch_size": 1, "resnet_blocks": (1, 2)}
    for count in (cost.parameters, cost.multiply_accumulates):
        assert count(**SMALL | blocks | {"stem": "resnet"}) == count(**SMALL | blocks)
        assert count(**SMALL | {"stem": "", "resnet_blocks": ()}) == count(**SMALL)
        assert count(**SMALL | {"stem": "resnet", "resnet_blocks": ()}) != count(**SMALL)


@pytest.mark.parametrize("channels", [1, 4, 12])
@pytest.mark.parametrize("arguments", [{}, {"patch_size": 1, "resnet_blocks": (1,)}], ids=str)
def test_channels_are_counted(arguments, channels):
    arguments = SMALL | arguments | {"input_shape": (32, 48, channels)}
    assert cost.parameters(**arguments) == keras_vit.VisionTransformer(**arguments).count_params()
    one = cost.multiply_accumulates(**{**arguments, "input_shape": (32, 48, 1)})
    two = cost.multiply_accumulates(**{**arguments, "input_shape": (32, 48, 2)})
    assert cost.multiply_accumulates(**arguments) == one + (channels - 1) * (two - one)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("channels", [3, 4])
def test_parameters_of_a_resnet_that_was_built(version, channels):
    arguments = {"depth": 26, "version": version, "input_shape": (32, 48, channels), "classes": 7}
    assert cost.bit_parameters(**arguments) == keras_vit.BiTResNet(**arguments).count_params()


def test_the_multiply_accumulates_of_one_residual_unit():
    """Root, then one unit of stride 1 with a projection, on 8x8 pixels, by hand."""
    root = 4 * 4 * 7 * 7 * 3 * 64
    unit = 2 * 2 * (64 * 64 + 9 * 64 * 64 + 64 * 256 + 64 * 256)
    assert cost.resnet_multiply_accumulates((1,), (8, 8, 3), count_padding=True) == root + unit


def test_pooling_by_attention_costs_a_block_with_one_query():
    pooled, mean = (cost.multiply_accumulates(**SMALL, classifier=name) for name in ("map", "gap"))
    tokens, d, m = 24, 12, 20
    keys_and_values, query_and_projection, scores_and_sum = 2 * tokens * d * d, 2 * d * d, 2 * tokens * d
    assert pooled - mean == keys_and_values + query_and_projection + scores_and_sum + 2 * d * m


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"classifier": "gap", "representation_size": 5},
        {"classifier": "map"},
        {"classifier": "unpooled"},
        {"patch_size": 1, "resnet_blocks": (1, 2)},
        {"classifier": "gap", "position_embedding": "relative"},
        {"classifier": "gap", "position_embedding": "learned2d", "position_embedding_at": "every_layer"},
    ],
    ids=str,
)
def test_the_flops_of_a_model_are_those_of_table_6_and_what_else_it_computes(arguments):
    arguments = SMALL | arguments
    model = keras_vit.VisionTransformer(**arguments)
    forward = cost.multiply_accumulates(**arguments)
    assert keras_vit.flops(model, table_6=True) == 2 * forward
    tokens, d, m = 25, 12, 20
    inner = arguments.get("representation_size", 0)
    head = d * inner + (inner or d) * 7 if inner else d * 7
    if arguments.get("classifier") == "unpooled":
        head *= 24
    # With the class token, the last block computes queries, projection, scores and MLP for one token instead of all.
    saved = (tokens - 1) * (2 * d * d + 2 * tokens * d + 2 * d * m) if "classifier" not in arguments else 0
    assert keras_vit.flops(model) == 2 * (forward + head - saved)


def test_the_flops_of_a_resnet_are_those_of_table_6_and_its_head():
    model = keras_vit.BiTResNet(depth=26, input_shape=(32, 48, 3), classes=7)
    forward = cost.bit_multiply_accumulates(depth=26, input_shape=(32, 48, 3))
    assert keras_vit.flops(model, table_6=True) == 2 * forward
    assert keras_vit.flops(model) == 2 * (forward + 2048 * 7)


def test_the_flops_of_a_model_of_ones_own():
    inputs = keras.Input((8, 6, 3))
    x = keras.layers.Conv2D(4, 3, strides=2, padding="same")(inputs)
    x = keras.layers.BatchNormalization()(x)
    outputs = keras.layers.Dense(5)(keras.layers.Flatten()(x))
    inner = keras.Model(inputs, outputs)
    model = keras.Model(inputs, keras.layers.Dense(2)(inner(inputs)))
    # Of the 4 x 3 outputs' 12 rows and 9 columns of products, the last row and the last column are of zeros.
    assert keras_vit.flops(model) == 2 * (11 * 8 * 3 * 4 + 4 * 3 * 4 * 5 + 5 * 2)


def test_what_is_called_twice_counts_twice():
    inputs, shared = keras.Input((8,)), keras.layers.Dense(8)
    inner = keras.Sequential([keras.Input((8,)), shared])
    assert keras_vit.flops(keras.Model(inputs, shared(shared(inputs)))) == 2 * 2 * 8 * 8
    assert keras_vit.flops(keras.Model(inputs, inner(inner(inputs)))) == 2 * 2 * 8 * 8
    assert keras_vit.flops(inner) == 2 * 8 * 8


@pytest.mark.parametrize(
    ("options", "products"),
    [
        ({"padding": "valid"}, 6 * 3 * 5 * 3),
        ({"padding": "same"}, (3 * 8 - 2) * (3 * 7 - 2)),
        ({"padding": "same", "strides": 2}, (3 * 4 - 1) * (3 * 4 - 2)),
        ({"padding": "same", "dilation_rate": 2}, (3 * 8 - 4) * (3 * 7 - 4)),
        ({"padding": "valid", "data_format": "channels_first"}, 6 * 3 * 5 * 3),
    ],
    ids=str,
)
def test_products_of_a_convolution_with_the_zeros_around_an_image_do_not_count(options, products):
    shape = (4, 8, 7) if "data_format" in options else (8, 7, 4)
    inputs = keras.Input(shape)
    model = keras.Model(inputs, keras.layers.Conv2D(6, 3, groups=2, **options)(inputs))
    assert keras_vit.flops(model) == 2 * products * 2 * 6


class _Table(keras.layers.Layer):
    def build(self, input_shape):
        self.table = self.add_weight(shape=(input_shape[-1], 3), name="table")

    def call(self, x):
        return x @ self.table


class _Subclass(keras.Model):
    def call(self, x):
        return x


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda x: keras.layers.Attention()([x, x]), "not known. Received: .*, Attention"),
        (
            lambda x: keras.layers.MultiHeadAttention(2, 3)(x, x),
            "not known. Received: .*, MultiHeadAttention",
        ),
        (lambda x: keras.ops.matmul(x, keras.ops.transpose(x, (0, 2, 1))), "not known. Received: .*, Matmul"),
        (lambda x: keras.ops.einsum("bnd,bmd->bnm", x, x), "not known. Received: .*, Einsum"),
        (_Table(), "not known. Received: .*, _Table"),
    ],
)
def test_products_that_are_not_known_are_refused(build, message):
    inputs = keras.Input((8, 6))
    with pytest.raises(ValueError, match=message):
        keras_vit.flops(keras.Model(inputs, build(inputs)))


def test_a_model_without_a_graph_or_a_shape_is_refused():
    with pytest.raises(ValueError, match="must be functional, or sequential and built. Received: .*_Subclass"):
        keras_vit.flops(_Subclass())
    with pytest.raises(ValueError, match="must be functional, or sequential and built. Received: .*Sequential"):
        keras_vit.flops(keras.Sequential([keras.layers.Dense(3)]))
    inputs = keras.Input((None, None, 3))
    with pytest.raises(ValueError, match="shape of the images must be known"):
        keras_vit.flops(keras.Model(inputs, keras.layers.Conv2D(2, 3)(inputs)))


def test_a_layer_whose_flops_are_not_known_is_named():
    inputs = keras.Input((8, 6))
    model = keras.Model(inputs, keras.layers.LSTM(3, name="recurrent")(inputs))
    with pytest.raises(ValueError, match="Received: 'recurrent', LSTM"):
        keras_vit.flops(model)
