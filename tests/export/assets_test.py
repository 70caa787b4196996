"""Tests of the files next to an exported graph: warm-up requests and README."""

import re
from pathlib import Path

import tensorflow as tf

from keras_vit import export
from keras_vit.export import messages

from .conftest import NAMES


def test_warm_up_requests_run_every_signature(exported):
    signatures = tf.saved_model.load(exported[0]).signatures
    names = []
    for record in tf.data.TFRecordDataset(f"{exported[0]}/assets.extra/tf_serving_warmup_requests"):
        request = messages.PredictionLog.FromString(record.numpy()).predict_log.request
        assert request.model_spec.name == "animals"
        inputs = {
            name: tf.constant(tf.make_ndarray(tensor)) for name, tensor in request.inputs.items()
        }
        outputs = signatures[request.model_spec.signature_name](**inputs)
        assert {tensor.shape[0] for tensor in outputs.values()} == {1}
        names.append(request.model_spec.signature_name)
    assert names == list(export.SIGNATURES)


def test_readme_python_blocks_run(exported, monkeypatch, capsys):
    text = Path(exported[0], "README.md").read_text(encoding="utf-8")
    load_code, predict_code = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    monkeypatch.chdir(exported[0])
    variables = {}
    exec(load_code, variables)
    assert variables["model"].count_params() == exported[1].count_params()
    exec(predict_code, {})
    lines = capsys.readouterr().out.splitlines()
    assert lines
    assert {line.rpartition(" ")[0] for line in lines} <= set(NAMES)
