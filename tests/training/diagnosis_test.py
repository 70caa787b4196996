import numpy as np

from keras_vit.training.diagnosis import first_nonfinite_layer

from ..shared import random_images


def test_finds_first_nonfinite_layer(tiny):
    model = tiny.new_state(tiny.strategy_of(1), num_layers=2).model
    images = random_images((8, 4, 6, 3))
    assert "is finite in every layer" in first_nonfinite_layer(model, images, 3)
    head = model.get_layer("head")
    kernel = head.kernel.numpy()
    head.kernel.assign(kernel * np.inf)
    assert "weights of layer 'head'" in first_nonfinite_layer(model, images, 3)
    head.kernel.assign(kernel)
    block = model.get_layer("encoderblock_1")
    block.mlp_1.bias.assign(block.mlp_1.bias.numpy() + 1e38)
    block.mlp_2.kernel.assign(block.mlp_2.kernel.numpy() * 1e10)
    for num_batches in (3, 100):
        assert "output is not finite is 'encoderblock_1'" in first_nonfinite_layer(
            model, images, num_batches
        )
    images[0, 0, 0, 0] = np.nan
    assert "'images'" in first_nonfinite_layer(model, images, 3)
