"""Tests of fine-tuning weights from other libraries."""

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
        ("hf_token.safetensors", {}),
        ("bigvision_tok_sincos.ckpt.npz", {}),
    ],
)
def test_fine_tunes_weights_from_other_libraries(file, changes, tmp_path):
    config = get_config("finetune", "ViT-B/16,cifar10")
    fields = {**TINY, **changes, "weights": str(GOLDEN / file)}
    config.update_from_flattened_dict(fields)
    lines = []
    result = training.run(config, training.Workdir(tmp_path, config.to_dict()), write=lines.append)
    model = result.model
    # All weights come from the file, except the kernel and the bias of the new head.
    report = next(line for line in lines if "arrays loaded" in line)
    assert f"{len(model.weights) - 2} arrays loaded" in report
    assert any(line.startswith("step 2/2") for line in lines)
    assert np.isfinite(result.metrics["test/loss"])
    assert np.asarray(model.get_layer("head").kernel).any()
    block = model.get_layer("encoderblock_0")
    assert block.exact_gelu == file.endswith(".safetensors")
    assert block.epsilon == (1e-12 if file.startswith("hf") else 1e-6)
