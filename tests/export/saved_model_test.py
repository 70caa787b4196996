import subprocess
import sys

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import export

TINY = {
    "input_shape": (8, 8, 3),
    "patch_size": 4,
    "num_layers": 1,
    "hidden_size": 8,
    "mlp_dim": 8,
    "num_heads": 2,
    "classes": 4,
}

ASK = """
import sys
import numpy as np, tensorflow as tf
loaded = tf.saved_model.load(sys.argv[1])
tensor = loaded.signatures["tensor"]
spec = tensor.structured_input_signature[1]["images"]
assert spec.shape.as_list() == [None, 8, 8, 3] and spec.dtype == tf.float32, spec
for name in ("one", "three"):
    images = np.load(f"{sys.argv[2]}/{name}.npy", allow_pickle=False)
    (output,) = tensor(images=tf.constant(images)).items()
    assert output[0] == "probabilities" and output[1].dtype == tf.float32
    np.save(f"{sys.argv[2]}/{name}.answer.npy", output[1].numpy())
for bad in (tf.zeros((1, 2)), tf.zeros((1, 9, 8, 3)), tf.zeros((1, 8, 8, 3, 1)), tf.zeros((1, 8, 8, 1))):
    try:
        tensor(images=bad)
        sys.exit(f"{bad.shape} was accepted")
    except tf.errors.InvalidArgumentError:
        pass
assert "keras_vit" not in sys.modules
"""


# In bfloat16 a compiled graph keeps more digits between operations than the eager model does.
@pytest.mark.parametrize(("policy", "tolerance"), [("float32", 1e-5), ("mixed_bfloat16", 5e-3)])
def test_an_export_answers_as_the_model_in_a_process_with_tensorflow_only(policy, tolerance, tmp_path):
    keras.config.set_dtype_policy(policy)
    model = keras_vit.VisionTransformer(**TINY)
    random = np.random.default_rng(0)
    for weight in model.weights:
        weight.assign(random.normal(size=weight.shape))
    path = export.saved_model(model, tmp_path / "model")
    assert path == tmp_path / "model" / "1"
    for name, batch in (("one", 1), ("three", 3)):
        np.save(tmp_path / f"{name}.npy", random.uniform(-1, 1, (batch, 8, 8, 3)).astype("float32"))
    done = subprocess.run(
        [sys.executable, "-c", ASK, str(path), str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for name in ("one", "three"):
        expected = keras.ops.softmax(model(np.load(tmp_path / f"{name}.npy")))
        np.testing.assert_allclose(np.load(tmp_path / f"{name}.answer.npy"), expected, atol=tolerance)


def test_a_version_is_never_overwritten_and_nothing_else_is_left(tmp_path):
    model = keras_vit.VisionTransformer(**TINY)
    export.saved_model(model, tmp_path, version=3)
    before = (tmp_path / "3" / "saved_model.pb").read_bytes()
    with pytest.raises(ValueError, match="never overwritten. Received: .*/3, which exists"):
        export.saved_model(model, tmp_path, version=3)
    assert (tmp_path / "3" / "saved_model.pb").read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["3"]


def test_an_export_that_fails_leaves_nothing(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError("the disk is full")

    monkeypatch.setattr("os.rename", fail)  # the last thing an export does
    with pytest.raises(OSError, match="full"):
        export.saved_model(keras_vit.VisionTransformer(**TINY), tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("version", [0, -1, "1", True])
def test_a_version_is_a_positive_integer(version, tmp_path):
    with pytest.raises(ValueError, match="`version` must be an integer of 1 or more. Received: version="):
        export.saved_model(keras_vit.VisionTransformer(**TINY), tmp_path, version=version)
