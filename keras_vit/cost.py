"""What a model costs, by formula: parameters, and the multiply-accumulates of an image on its way forward.

A multiply-accumulate is two FLOPs, and a training step takes three times a forward pass: once forward, twice backward.
The count is the one that reproduces the paper's Table 6: the Transformer's matrix products and all convolutions, the
patch embedding among them, without the head, norms, softmax and activations. It is of the whole model; one whose head
reads the class token computes less in its last block.
"""

from keras_vit.layers.resnet_stem import stem_output_channels, stem_output_side


def parameters(
    *,
    patch_size,
    num_layers,
    hidden_size,
    mlp_dim,
    input_shape=(224, 224, 3),
    classes=0,
    classifier="token",
    representation_size=0,
    resnet_blocks=None,
    position_embedding="learned",
    class_token_position=True,
    **others,
):
    """The number of parameters of a `VisionTransformer`.

    Args:
        classes: outputs of the head; 0 for no head.
        **others: the other arguments of `VisionTransformer`, those above among them; they have no parameters.
    """
    d, m = hidden_size, mlp_dim
    patches, channels = _grid(input_shape, patch_size, resnet_blocks)
    class_token = classifier.startswith("token")
    count = 0 if resnet_blocks is None else resnet_parameters(resnet_blocks, channels=input_shape[2])
    count += patch_size**2 * channels * d + d + class_token * d
    if position_embedding == "learned":
        count += (patches + (class_token and class_token_position)) * d
    count += num_layers * (4 * d * d + 2 * d * m + 9 * d + m) + 2 * d
    if classifier == "map":
        count += 4 * d * d + 2 * d * m + 8 * d + m  # a block that asks with a vector of its own and norms once
    if representation_size:
        count += (d + 1) * representation_size
    return count + ((representation_size or d) + 1) * classes


def multiply_accumulates(
    *,
    patch_size,
    num_layers,
    hidden_size,
    mlp_dim,
    input_shape=(224, 224, 3),
    classifier="token",
    resnet_blocks=None,
    count_padding=False,
    **others,
):
    """The multiply-accumulates of one image, forward, without the head.

    Args:
        count_padding: whether a convolution's products with the zeros around its images count.
        **others: the other arguments of `VisionTransformer`, which cost nothing here.
    """
    d = hidden_size
    patches, channels = _grid(input_shape, patch_size, resnet_blocks)
    tokens = patches + classifier.startswith("token")
    count = patches * patch_size**2 * channels * d
    count += num_layers * (4 * tokens * d * d + 2 * tokens * tokens * d + 2 * tokens * d * mlp_dim)
    if classifier == "map":
        count += 2 * (tokens + 1) * d * d + 2 * tokens * d + 2 * d * mlp_dim  # one query asks all tokens
    if resnet_blocks is not None:
        count += resnet_multiply_accumulates(resnet_blocks, input_shape, count_padding=count_padding)
    return count


def exaflops(forward, images):
    """The cost of training in 1e18 FLOPs, as in the paper's Table 6.

    Args:
        forward: multiply-accumulates of one image.
        images: images of all epochs together.
    """
    return 6 * forward * images / 1e18


def resnet_parameters(blocks, width=64, channels=3):
    """The parameters of `ResNetStem(blocks, width)` on images with so many channels."""
    count = 7 * 7 * channels * width + 2 * width
    for inputs, n, strides in _units(blocks, width):
        count += inputs * n + 9 * n * n + 4 * n * n + 2 * (n + n + 4 * n)
        if inputs != 4 * n or strides != 1:
            count += inputs * 4 * n + 2 * 4 * n
    return count


def resnet_multiply_accumulates(blocks, input_shape, width=64, count_padding=False):
    """The multiply-accumulates of one image in `ResNetStem(blocks, width)`."""
    *sides, channels = input_shape

    def conv(kernel_size, strides, inputs, outputs):
        taps = [_taps(side, kernel_size, strides, count_padding) for side in sides]
        return taps[0] * taps[1] * inputs * outputs

    def strided(strides):
        return [-(-side // strides) for side in sides]

    count = conv(7, 2, channels, width)
    sides = strided(4)  # the pool too
    for inputs, n, strides in _units(blocks, width):
        count += conv(1, 1, inputs, n) + conv(3, strides, n, n)
        if inputs != 4 * n or strides != 1:
            count += conv(1, strides, inputs, 4 * n)
        sides = strided(strides)
        count += conv(1, 1, n, 4 * n)
    return count


def _units(blocks, width):
    """Of each unit: its input channels, its inner channels and its stride."""
    inputs = width
    for stage, units in enumerate(blocks):
        n = width * 2**stage
        for unit in range(units):
            yield inputs, n, 2 if stage and not unit else 1
            inputs = 4 * n


def _taps(side, kernel_size, strides, count_padding):
    """Products along one axis of a convolution with "same" padding: over all outputs, those inside the image."""
    outputs = -(-side // strides)
    if count_padding:
        return outputs * kernel_size
    before = max((outputs - 1) * strides + kernel_size - side, 0) // 2
    starts = [output * strides - before for output in range(outputs)]
    return sum(min(start + kernel_size, side) - max(start, 0) for start in starts)


def _grid(input_shape, patch_size, resnet_blocks):
    """`(patches, channels)` of what the Transformer sees."""
    height, width, channels = input_shape
    if resnet_blocks is not None:
        height, width = (stem_output_side(side, resnet_blocks) for side in (height, width))
        channels = stem_output_channels(resnet_blocks)
    return (height // patch_size) * (width // patch_size), channels
