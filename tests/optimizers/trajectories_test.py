"""Twenty steps of the original's own training, on each backend."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import checkpoints, losses, optimizers


def _gradients(model):
    """A function of a batch to the mean loss and the gradients, compiled."""

    def mean_loss(labels, logits):
        return keras.ops.mean(losses.softmax(labels, logits))

    if keras.backend.backend() == "jax":
        import jax

        def loss(trained, others, images, labels):
            logits, _ = model.stateless_call(trained, others, images, training=True)
            return mean_loss(labels, logits)

        step = jax.jit(jax.value_and_grad(loss))
        return lambda *batch: step(
            [v.value for v in model.trainable_variables], [v.value for v in model.non_trainable_variables], *batch
        )
    import tensorflow as tf

    @tf.function
    def step(images, labels):
        with tf.GradientTape() as tape:
            loss = mean_loss(labels, model(images, training=True))
        return loss, tape.gradient(loss, model.trainable_variables)

    return step


def _apply(model, optimizer, gradients):
    """An update, on JAX through the functional form that its training needs."""
    if keras.backend.backend() != "jax":
        optimizer.apply(gradients, model.trainable_variables)
        return
    trained, state = optimizer.stateless_apply(
        [v.value for v in optimizer.variables], gradients, [v.value for v in model.trainable_variables]
    )
    for variable, value in zip([*model.trainable_variables, *optimizer.variables], [*trained, *state]):
        variable.assign(value)


@pytest.mark.parametrize(
    ("case", "name", "schedule", "options"),
    [
        ("train_sgd_cosine_clip1", "sgd", {"decay": "cosine", "base": 0.1}, {}),
        ("train_adamw_linear_clip1", "adamw", {"decay": "linear", "base": 3e-3}, {"weight_decay": 0.1}),
    ],
)
def test_the_original_s_trajectory(case, name, schedule, options, golden, tmp_path):
    arrays = golden(case)
    np.savez(tmp_path / "init.npz", **{k.removeprefix("init/"): arrays[k] for k in arrays if k.startswith("init/")})
    model = keras_vit.VisionTransformer(
        patch_size=8, hidden_size=64, num_layers=2, num_heads=4, mlp_dim=128, classes=10, input_shape=(32, 32, 3)
    )
    checkpoints.load(model, str(tmp_path / "init.npz"), head="new")  # it starts with zeros, as the file's
    optimizer = optimizers.make(name, optimizers.Schedule(total_steps=20, warmup_steps=5, **schedule), **options)
    optimizer.build(model.trainable_variables)
    step, found = _gradients(model), []
    for images, labels in zip(arrays["images"], arrays["labels"]):
        loss, gradients = step(images, np.eye(10, dtype="float32")[labels])
        clipped, norm = optimizers.clip_by_global_norm(gradients, 1.0)
        _apply(model, optimizer, clipped)
        found.append((float(loss), float(norm)))
    np.testing.assert_allclose(found, np.stack([arrays["losses"], arrays["grad_norms"]], -1), rtol=1e-5)
    checkpoints.save(model, str(tmp_path / "final.npz"))
    final = np.load(tmp_path / "final.npz")
    wanted = {k.removeprefix("final/"): arrays[k] for k in arrays if k.startswith("final/")}
    assert len(wanted) == 40
    for key, value in wanted.items():
        # The true gradient of the key biases is zero, and Adam divides its rounding by itself.
        tolerance = 1e-3 if name == "adamw" and key.endswith("key/bias") else 1e-5
        np.testing.assert_allclose(final[key], value, atol=tolerance, rtol=0, err_msg=key)
