"""Tests of CLIP, SigLIP, DeiT and EVA-02 against the outputs of transformers, timm, open_clip and
big_vision."""

import keras
import pytest

import keras_vit
from keras_vit import checkpoints

from ..shared import FAMILY_FILES, assert_close
from .golden_cases import read_case, read_outputs, write_case

# Map the names of reference outputs to the names in `model_outputs`.
CLIP_OUTPUTS = {
    "last_hidden_state": "last_block",
    "pooler_output": "pre_logits",
    "image_embeds": "output",
    "hidden_1": "block_1",
}
SIGLIP_OUTPUTS = {"last_hidden_state": "encoded", "pooler_output": "output", "hidden_1": "block_1"}
TIMM_OUTPUTS = {"tokens": "encoded", "output": "output"}
DISTILLED_OUTPUTS = {
    "logits": "output",
    "cls_logits": "class_logits",
    "distillation_logits": "distillation_logits",
}
# Maps each case to the arguments of `from_pretrained` and the outputs to compare.
CASES = {
    "clip": ({}, CLIP_OUTPUTS),
    "clip_gelu": ({}, CLIP_OUTPUTS),
    "timm_clip": ({"num_heads": 3, "mlp": "quick_gelu"}, TIMM_OUTPUTS),
    "clipa": ({}, {"output": "output"}),
    "siglip": ({}, SIGLIP_OUTPUTS),
    "siglip_bigvision": ({}, SIGLIP_OUTPUTS),
    "siglip_bigvision_scanned": ({}, SIGLIP_OUTPUTS),
    "timm_siglip": ({"num_heads": 3}, TIMM_OUTPUTS),
    "deit_distilled": ({}, DISTILLED_OUTPUTS),
    "timm_deit_distilled": ({"num_heads": 3}, TIMM_OUTPUTS),
    "timm_deit3": ({"num_heads": 3}, TIMM_OUTPUTS),
    "timm_eva02": ({"num_heads": 3}, TIMM_OUTPUTS),
    "timm_eva02_separate": ({"num_heads": 3}, TIMM_OUTPUTS),
    "timm_eva02_clip": ({"num_heads": 3}, TIMM_OUTPUTS),
}


def model_outputs(model, images):
    """Returns the outputs of a model and of its parts."""
    parts = model.intermediates(images)
    outputs = {
        "block_1": parts["tokens"][1],
        "last_block": parts["tokens"][-1],
        "encoded": parts["encoded"],
        "pre_logits": parts["pre_logits"],
        "output": model(images),
    }
    if model.num_class_tokens == 2:
        class_token = parts["encoded"][:, 0]
        distillation_token = parts["encoded"][:, 1]
        head = model.head
        outputs["class_logits"] = keras.ops.matmul(class_token, head.kernel) + head.bias
        outputs["distillation_logits"] = head.distillation(distillation_token)
    return outputs


@pytest.mark.parametrize("case", CASES)
def test_outputs_match_the_reference(case, tmp_path):
    arguments, compared = CASES[case]
    if "bigvision" in case:
        source = FAMILY_FILES / f"{case}.npz"
        reference = read_outputs("siglip")
    else:
        source = write_case(case, tmp_path)
        reference = read_outputs(case)
    images = reference["images"]
    model = keras_vit.from_pretrained(source, **arguments)
    outputs = model_outputs(model, images)
    for reference_name, name in compared.items():
        print(reference_name)
        assert_close(outputs[name], reference[reference_name])


@pytest.mark.parametrize("case", ["timm_eva02_separate", "timm_eva02_clip"])
def test_other_image_size_matches_the_reference(case, tmp_path):
    reference = read_outputs(case)
    images = reference["images_resized"]
    model = keras_vit.from_pretrained(
        write_case(case, tmp_path), num_heads=3, input_shape=images.shape[1:]
    )
    assert_close(model.intermediates(images)["encoded"], reference["tokens_resized"])
    assert_close(model(images), reference["output_resized"])


def test_given_activation_matches_the_reference(tmp_path):
    reference = read_outputs("timm_siglip")
    folder = write_case("timm_siglip", tmp_path)
    model = keras_vit.from_pretrained(folder, num_heads=3, mlp="quick_gelu")
    assert_close(model(reference["images"]), reference["output_quick_gelu"])


@pytest.mark.one_backend
def test_deit3_with_folded_layer_scale_matches_logits(tmp_path):
    arrays = read_case("timm_deit3")
    for i in range(3):
        for layer_scale, module in (("ls1", "attn.proj"), ("ls2", "mlp.fc2")):
            scale = arrays.pop(f"blocks.{i}.{layer_scale}.gamma")
            arrays[f"blocks.{i}.{module}.weight"] *= scale[:, None]
            arrays[f"blocks.{i}.{module}.bias"] *= scale
    model = keras_vit.from_pretrained(write_case("timm_deit3", tmp_path, arrays), num_heads=3)
    checkpoints.save(model, tmp_path / "model.npz")
    restored = keras_vit.from_pretrained(tmp_path / "model.npz")
    reference = read_outputs("timm_deit3")
    assert_close(restored(reference["images"]), reference["output"])
