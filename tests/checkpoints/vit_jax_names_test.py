import numpy as np

import keras_vit
from keras_vit.checkpoints.vit_jax_names import to_linen, vit_jax_variables


def test_joint_numbering_becomes_numbering_by_kind():
    block = "Transformer/encoderblock_10"
    linen = to_linen(
        [
            f"{block}/LayerNorm_0/scale",
            f"{block}/MultiHeadDotProductAttention_1/query/kernel",
            f"{block}/LayerNorm_2/scale",
            f"{block}/MlpBlock_3/Dense_0/kernel",
            f"{block}/MlpBlock_3/Dense_1/kernel",
            "head/kernel",
        ]
        + [f"Transformer/encoderblock_{i}/LayerNorm_0/scale" for i in range(10)]
    )
    assert linen[f"{block}/LayerNorm_1/scale"] == f"{block}/LayerNorm_2/scale"
    assert linen[f"{block}/MultiHeadDotProductAttention_0/query/kernel"].endswith("Attention_1/query/kernel")
    assert linen[f"{block}/MlpBlock_0/Dense_1/kernel"] == f"{block}/MlpBlock_3/Dense_1/kernel"
    # Ten comes after nine, not after one.
    assert linen["Transformer/encoderblock_9/LayerNorm_0/scale"] == "Transformer/encoderblock_9/LayerNorm_0/scale"
    assert linen["head/kernel"] == "head/kernel"


def test_names_in_linens_numbering_stay(golden):
    current = list(to_linen(golden("vit_token.ckpt")))
    assert to_linen(current) == dict(zip(current, current))


def test_a_model_has_the_names_of_the_references_files(golden):
    tiny = {"patch_size": 8, "num_layers": 2, "hidden_size": 64, "mlp_dim": 128, "num_heads": 4, "classes": 10}
    for case, arguments in {
        "vit_token_prelogits": {"representation_size": 48, "input_shape": (32, 32, 3)},
        "hybrid_2stage": {"resnet_blocks": (1, 2), "patch_size": 1, "input_shape": (64, 64, 3)},
    }.items():
        file = golden(f"{case}.ckpt")
        names = vit_jax_variables(keras_vit.VisionTransformer(**{**tiny, **arguments}))
        assert names.keys() == to_linen(file).keys()
        for name, old in to_linen(file).items():
            assert np.prod(names[name].shape) == file[old].size
