"""Tests of the choice of a `tf.distribute.Strategy`, and of TF_CONFIG."""

import json

import pytest
import tensorflow as tf
from ml_collections import ConfigDict

from keras_vit.training import choose_engine, hosts
from keras_vit.training.tensorflow import TensorFlowEngine, choose_strategy, strategy
from keras_vit.training.tensorflow.strategy import _tpu_chips


@pytest.fixture(autouse=True)
def no_tpu(monkeypatch):
    monkeypatch.setattr(strategy, "_tpu_chips", list)
    monkeypatch.delenv("TF_CONFIG", raising=False)
    monkeypatch.setenv("TPU_NAME", "")  # like no TPU_NAME


@pytest.fixture
def calls(monkeypatch):
    """Replaces the functions that create strategies, and returns the list of their calls."""
    recorded = []

    def replace(module, name, result=None):
        def record(*args, **kwargs):
            recorded.append((name, *args, *kwargs.values()))
            return result

        monkeypatch.setattr(module, name, record)

    replace(tf.distribute.cluster_resolver, "TPUClusterResolver", "resolver")
    replace(tf.config, "experimental_connect_to_cluster")
    replace(tf.tpu.experimental, "initialize_tpu_system")
    replace(tf.distribute, "TPUStrategy", "a TPU strategy")
    replace(tf.distribute, "MirroredStrategy", "a mirrored strategy")
    replace(tf.distribute, "MultiWorkerMirroredStrategy", "a strategy of workers")
    return recorded


@pytest.mark.parametrize("name", ["auto", "default"])
def test_one_device_uses_default_strategy(name):
    assert choose_strategy(name) is tf.distribute.get_strategy()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tpu", "No TPU was found"),
        ("mirrored", "No GPU is visible"),
        ("gpu", "must be one of auto, default"),
        ("multi_worker", "TF_CONFIG must specify"),
    ],
)
def test_rejects_unavailable_strategies(name, message):
    with pytest.raises(ValueError, match=message):
        choose_engine(ConfigDict({"strategy": name, "tpu_address": ""}))


def test_tpu_is_detected_by_pci_ids(tmp_path):
    """An NPU (vendor 0x8086) and Google's network card are not TPUs."""
    ids = {"npu": ("0x8086", "0x0063"), "nic": ("0x1ae0", "0x0042"), "v5e": ("0x1ae0", "0x0063")}
    for name, (vendor, device) in ids.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "vendor").write_text(f"{vendor}\n")
        (tmp_path / name / "device").write_text(f"{device}\n")
    (tmp_path / "unreadable").mkdir()
    assert [chip.name for chip in _tpu_chips(tmp_path)] == ["v5e"]
    assert _tpu_chips(tmp_path / "none") == []


@pytest.mark.parametrize(
    ("name", "address", "environment", "used"),
    [
        ("auto", "", "my-tpu", "my-tpu"),
        ("auto", "node-1", "", "node-1"),
        ("tpu", "node-1", "my-tpu", "node-1"),
    ],
)
def test_tpu_initialization_order(name, address, environment, used, calls, monkeypatch):
    monkeypatch.setenv("TPU_NAME", environment)
    assert choose_strategy(name, address) == "a TPU strategy"
    assert calls == [
        ("TPUClusterResolver", used),
        ("experimental_connect_to_cluster", "resolver"),
        ("initialize_tpu_system", "resolver"),
        ("TPUStrategy", "resolver"),
    ]


@pytest.fixture(
    params=[
        tf.errors.InternalError(None, None, "no platform\nand more"),
        RuntimeError("no platform"),
    ]
)
def broken_tpu(request, calls, monkeypatch):
    """Makes the start of a TPU fail."""

    def fail(_):
        raise request.param

    monkeypatch.setattr(tf.tpu.experimental, "initialize_tpu_system", fail)


def test_tpu_startup_failure_is_a_one_line_error(broken_tpu):
    with pytest.raises(ValueError, match=r"\(no platform\).*tpu_address='node-1'"):
        choose_strategy("tpu", "node-1")


def test_auto_skips_unusable_tpu(broken_tpu, monkeypatch, caplog):
    monkeypatch.setattr(strategy, "_tpu_chips", lambda: ["chip"])
    assert choose_strategy("auto") is tf.distribute.get_strategy()
    assert "a TPU that is not used" in caplog.text


def test_auto_mirrors_several_gpus(calls, monkeypatch):
    gpus = ["a GPU"]
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: gpus)
    assert choose_strategy("mirrored") == "a mirrored strategy"
    assert choose_strategy("auto") is tf.distribute.get_strategy()
    gpus.append("another GPU")
    assert choose_strategy("auto") == "a mirrored strategy"


def _tf_config(kind, index, **cluster):
    return json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})


@pytest.mark.parametrize(
    ("tf_config", "expected"),
    [
        (_tf_config("worker", 1, worker=["a:1", "b:1", "c:1"]), (3, 1)),
        (_tf_config("chief", 0, chief=["a:1"], worker=["b:1"]), (2, 0)),
        (_tf_config("worker", 0, chief=["a:1"], worker=["b:1"]), (2, 1)),
    ],
)
def test_tf_config_lists_the_workers(tf_config, expected, calls, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", tf_config)
    assert hosts.workers() == (*expected, "a:1")
    assert hosts.is_chief() == (expected[1] == 0)
    assert choose_strategy("auto") == choose_strategy("multi_worker") == "a strategy of workers"


@pytest.mark.parametrize(
    "tf_config",
    [
        "{",
        "[]",
        "{}",
        '{"cluster": [], "task": {}}',
        _tf_config("worker", 2, worker=["a:1", "b:1"]),
        _tf_config("worker", -1, worker=["a:1", "b:1"]),
        _tf_config("worker", 0, worker=["a:1"], ps=["b:1"]),
        _tf_config("worker", 0, worker="a:1"),
        _tf_config("worker", 1, worker=["a:1", "a:1"]),
    ],
)
def test_rejects_malformed_tf_config(tf_config, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", tf_config)
    with pytest.raises(ValueError, match="TF_CONFIG must be like"):
        hosts.workers()


def test_default_strategy_ignores_tf_config(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", _tf_config("worker", 1, worker=["a:1", "b:1"]))
    engine = TensorFlowEngine(choose_strategy("default"))
    assert (engine.num_hosts, engine.host_index, engine.num_devices) == (1, 0, 1)
