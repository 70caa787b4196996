import pytest
import tensorflow as tf

from keras_vit.training import choose_strategy, strategy


@pytest.fixture
def no_tpu(monkeypatch):
    monkeypatch.setattr(strategy, "_has_tpu", lambda: False)


def test_one_device_is_the_default_strategy(no_tpu):
    for name in ("auto", "default"):
        assert choose_strategy(name) is tf.distribute.get_strategy()


def test_what_is_not_there_is_refused(no_tpu):
    with pytest.raises(ValueError, match="No TPU is here: .*Received: strategy='tpu'"):
        choose_strategy("tpu")
    with pytest.raises(ValueError, match="No GPU is visible"):
        choose_strategy("mirrored")
    with pytest.raises(ValueError, match="must be one of auto, default, mirrored, tpu. Received: strategy='gpu'"):
        choose_strategy("gpu")


@pytest.mark.parametrize("name", ["auto", "tpu"])
def test_a_tpu_is_resolved_connected_initialised_and_used_in_this_order(name, monkeypatch):
    calls = []

    def record(step, result=None):
        return lambda *args, **kwargs: calls.append((step, args, kwargs)) or result

    monkeypatch.setenv("TPU_NAME", "my-tpu")
    monkeypatch.setattr(tf.distribute.cluster_resolver, "TPUClusterResolver", record("resolve", "resolver"))
    monkeypatch.setattr(tf.config, "experimental_connect_to_cluster", record("connect"))
    monkeypatch.setattr(tf.tpu.experimental, "initialize_tpu_system", record("initialise"))
    monkeypatch.setattr(tf.distribute, "TPUStrategy", record("strategy", "a strategy"))
    assert choose_strategy(name) == "a strategy"
    assert calls == [
        ("resolve", (), {"tpu": "my-tpu"}),
        ("connect", ("resolver",), {}),
        ("initialise", ("resolver",), {}),
        ("strategy", ("resolver",), {}),
    ]
