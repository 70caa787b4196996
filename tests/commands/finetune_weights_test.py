"""Tests of fine-tuning weights of vit_jax and big_vision with the config `finetune`."""

import numpy as np
import pytest

from keras_vit import training

from ..shared import GOLDEN, get_config

TINY = {
    "architecture": "VisionTransformer",
    "model.patch_size": 8,
    "model.num_layers": 2,
    "model.hidden_size": 64,
    "model.mlp_dim": 128,
    "model.num_heads": 4,
    "data.name": "digits",
    "data.image_size": 32,
    "data.resize_size": 72,
    "data.train_split": "train",
    "data.test_split": "test[:20]",
    "batch_size": 8,
    "total_steps": 2,
    "schedule.warmup_steps": 1,
}
HYBRID = {"model.stem": "resnet", "model.patch_size": 4, "data.image_size": 64}


@pytest.mark.parametrize(
    ("file", "changes"),
    [
        ("hybrid_stem_only.ckpt.npz", HYBRID),
        ("bigvision_tok_sincos.ckpt.npz", {}),
    ],
)
def test_fine_tuning_starts_from_all_weights_of_the_file(file, changes, tmp_path):
    config = get_config("finetune", "ViT-B/16,cifar10")
    fields = {**TINY, **changes, "weights": str(GOLDEN / file)}
    config.update_from_flattened_dict(fields)
    lines = []
    result = training.run(config, training.Workdir(tmp_path, config.to_dict()), write=lines.append)
    model = result.model
    output = "\n".join(lines)
    # All weights come from the file, except the kernel and the bias of the new head.
    assert f" {len(model.weights) - 2} arrays loaded" in output
    assert "\nstep 2/2" in output
    assert np.isfinite(result.metrics["test/loss"])
    assert np.asarray(model.get_layer("head").kernel).any()
