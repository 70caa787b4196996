"""Compares `keras_vit.flops` with the FLOPs that XLA counts before its optimizations, on JAX.

    KERAS_BACKEND=jax python experiments/benchmarks/flops.py

By default, the table has all named sizes except the NaFlex sizes. XLA also counts norms, softmax,
activations and the zero padding of BiT ResNets.
"""

import jax
import keras
from absl import app, flags

from keras_vit import cost, families
from keras_vit.models import BiTResNet, VisionTransformer

MODELS = [name for name in families.sizes() if "NaFlex" not in name]
_MODELS = flags.DEFINE_list("models", MODELS, "Models, such as ViT-B/16.")
_SIZE = flags.DEFINE_integer(
    "image_size", 224, "Height and width of the images, in pixels.", lower_bound=14
)
_BATCH = flags.DEFINE_integer("batch_size", 8, "Images per batch.", lower_bound=1)


def shapes_of(variables):
    return [jax.ShapeDtypeStruct(variable.shape, variable.dtype) for variable in variables]


def main(_):
    print("| model | keras_vit, GFLOPs | XLA, GFLOPs | ratio |")
    print("|---|---|---|---|")
    keras.config.set_dtype_policy("bfloat16")
    for name in _MODELS.value:
        config = families.model_config(name)
        build = BiTResNet if "depth" in config["model"] else VisionTransformer
        model = build(**config["model"], classes=1000, input_shape=(_SIZE.value, _SIZE.value, 3))
        images = jax.ShapeDtypeStruct((_BATCH.value, _SIZE.value, _SIZE.value, 3), "float32")
        program = jax.jit(model.stateless_call).lower(
            shapes_of(model.trainable_variables), shapes_of(model.non_trainable_variables), images
        )
        ours = cost.flops(model) / 1e9
        xla = program.cost_analysis()["flops"] / _BATCH.value / 1e9
        print(f"| {name} | {ours:.4g} | {xla:.4g} | {xla / ours:.3f} |", flush=True)


if __name__ == "__main__":
    app.run(main)
