import keras
import numpy as np
from keras import ops

import keras_vit
from keras_vit.layers.dropout import StepSeeds, seed_scope


def _model(remat):
    keras.utils.set_random_seed(0)
    return keras_vit.VisionTransformer(
        input_shape=(4, 6, 3),
        patch_size=2,
        num_layers=3,
        hidden_size=8,
        mlp_dim=12,
        num_heads=2,
        dropout=0.5,
        include_top=False,
        remat=remat,
    )


def test_remat_preserves_outputs_and_dropout_draws():
    images = np.random.default_rng(0).normal(size=(2, 4, 6, 3)).astype("float32")
    key = ops.convert_to_tensor([1, 2], "uint32" if keras.backend.backend() == "jax" else "int32")

    def outputs(model):
        seeds = StepSeeds(key)
        with seed_scope(seeds):
            dropped = model(images, training=True)
        return [ops.convert_to_numpy(x) for x in (dropped, model(images))], seeds.count

    plain, drawn = outputs(_model(remat=False))
    again, drawn_again = outputs(_model(remat=True))
    assert drawn == drawn_again > 3
    assert not np.allclose(plain[0], plain[1])
    for ours, theirs in zip(again, plain):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_remat_changes_the_config_but_not_weight_paths():
    plain = _model(remat=False)
    model = _model(remat=True)
    assert [w.path for w in model.weights] == [w.path for w in plain.weights]
    assert keras.models.clone_model(model).get_layer("encoderblock_1").remat
    config = plain.get_layer("encoderblock_1").get_config()
    del config["remat"]  # earlier versions wrote configs without `remat`
    assert keras_vit.layers.TransformerBlock.from_config(config).remat is False
