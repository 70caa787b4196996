"""The FLOPs of every model forward: by `keras_vit.flops`, and as XLA counts them.

    KERAS_BACKEND=jax python experiments/benchmarks/flops.py
    KERAS_BACKEND=jax python experiments/benchmarks/flops.py --topology=v3:2x2 --models=ViT-B/16,BiT-R50x1

XLA counts in the program that JAX makes of the model, or, with --topology, in the evaluation step that the TPU's
compiler makes of it, which takes up to a minute a model. "products" are its matrix products and convolutions alone, as
the formula has them; "all" has norms, softmax and activations too.
"""

import os

os.environ |= {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1"}  # must precede JAX's import, by Keras

import jax
import keras
from absl import app, flags

from keras_vit import cost, families
from keras_vit.models import BiTResNet, VisionTransformer
from keras_vit.tpu import counts, hlo, largest_batch

MODELS = [*families.sizes()]
_MODELS = flags.DEFINE_list("models", MODELS, "Names of sizes.")
_SIZE = flags.DEFINE_integer("image_size", 224, "Pixels of a side.", lower_bound=14)
_BATCH = flags.DEFINE_integer("batch_size", 8, "Images of a program.", lower_bound=1)
_TOPOLOGY = flags.DEFINE_string("topology", "", "A slice to compile for, such as v3:2x2.")


def lowered(name):
    """`(model, FLOPs of products, all FLOPs)` of a batch, before optimization."""
    config = families.model_config(name)
    build = VisionTransformer if config["task"] == "classification" else BiTResNet
    model = build(**config["model"], classes=1000, input_shape=(_SIZE.value, _SIZE.value, 3))
    shapes = lambda variables: [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in variables]  # noqa: E731
    images = jax.ShapeDtypeStruct((_BATCH.value, _SIZE.value, _SIZE.value, 3), "float32")
    program = jax.jit(model.stateless_call).lower(
        shapes(model.trainable_variables), shapes(model.non_trainable_variables), images
    )
    return model, counts.product_flops(hlo.parse(program.as_text(dialect="hlo"))), program.cost_analysis()["flops"]


def compiled(name):
    """`lowered`, of the optimized evaluation step for a TPU."""
    programs = largest_batch.make_programs(name, _TOPOLOGY.value, _SIZE.value)
    program = programs.evaluation(_BATCH.value * programs.topology.num_devices, 1)
    return programs.model, program.product_flops, program.flops


def main(_):
    print("| model | by formula, GFLOPs | products, XLA | of formula | all, XLA | of formula |")
    print("|---|---|---|---|---|---|")
    keras.config.set_dtype_policy("bfloat16")
    for name in _MODELS.value:
        model, *flops = (compiled if _TOPOLOGY.value else lowered)(name)
        formula = cost.flops(model) / 1e9
        products, everything = (count / _BATCH.value / 1e9 for count in flops)
        columns = [f"{formula:.4g}", f"{products:.4g}", f"{products / formula:.3f}"]
        columns += [f"{everything:.4g}", f"{everything / formula:.3f}"]
        print(f"| {name} | {' | '.join(columns)} |", flush=True)
        del model


if __name__ == "__main__":
    app.run(main)
