import keras
import numpy as np
from keras import ops

import keras_vit
from keras_vit.layers.dropout import StepSeeds, seed_scope
from keras_vit.models.rematerialisation import rematerialise


def test_a_model_gives_what_it_gave_in_training_and_without():
    keras.utils.set_random_seed(0)
    model = keras_vit.VisionTransformer(
        input_shape=(4, 6, 3), patch_size=2, num_layers=3, hidden_size=8, mlp_dim=12, num_heads=2, dropout=0.5,
        include_top=False,
    )  # fmt: skip
    images = np.random.default_rng(0).normal(size=(2, 4, 6, 3)).astype("float32")
    key = ops.convert_to_tensor([1, 2], "uint32" if keras.backend.backend() == "jax" else "int32")

    def outputs():
        draws = StepSeeds(key)
        with seed_scope(draws):
            dropped = model(images, training=True)
        return [ops.convert_to_numpy(x) for x in (dropped, model(images))], draws.count

    before, drawn = outputs()
    assert rematerialise(model) == 3
    after, drawn_again = outputs()
    assert drawn == drawn_again > 3
    assert not np.allclose(before[0], before[1])
    for ours, theirs in zip(after, before):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)
    assert model.count_params() == keras.models.clone_model(model).count_params()
