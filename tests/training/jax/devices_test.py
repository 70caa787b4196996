"""Tests of the choice of devices and of the JAX engine's error messages."""

import json

import jax
import pytest

from keras_vit import training
from keras_vit.training.jax import choose_mesh, devices

from .engines import config_of, engine_of


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)


def test_mesh_has_all_devices_or_one():
    assert choose_mesh().shape == choose_mesh("auto").shape == {devices.AXIS: 4}
    assert choose_mesh("default").shape == {devices.AXIS: 1}


def test_default_device_is_local(monkeypatch):
    local = jax.devices()[2:]  # as on the second of two hosts
    monkeypatch.setattr(jax, "local_devices", lambda: local)
    assert list(choose_mesh("default").devices) == local[:1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("tpu",), "No TPU is visible to JAX, only 'cpu'"),
        (("mirrored",), "No GPU is visible to JAX"),
        (("auto", "node-1"), "`tpu_address` must be empty"),
    ],
)
def test_rejects_unavailable_strategies(arguments, message):
    with pytest.raises(ValueError, match=message):
        choose_mesh(*arguments)


def test_backend_startup_failure_is_a_one_line_error(monkeypatch):
    def fail():
        raise RuntimeError("Unable to initialize backend 'cuda': no driver\nand more")

    monkeypatch.setattr(jax, "devices", fail)
    with pytest.raises(ValueError, match=r"cannot use its devices \(.*no driver\)"):
        choose_mesh()


@pytest.fixture
def second_of_two(monkeypatch):
    """Makes this process the second of two that are not connected yet."""
    cluster = {"chief": ["a:1"], "worker": ["b:2"]}
    task = {"cluster": cluster, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(task))
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: False)


def test_processes_in_tf_config_connect_to_chief(second_of_two, monkeypatch):
    calls = []

    def connect(address, num_processes, process_id, **_):
        calls.append((address, num_processes, process_id))

    monkeypatch.setattr(jax.distributed, "initialize", connect)
    choose_mesh("default")
    assert not calls
    choose_mesh()
    assert calls == [("a:1", 2, 1)]


def test_failed_connection_is_a_one_line_error(second_of_two, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("timed out")

    monkeypatch.setattr(jax.distributed, "initialize", fail)
    with pytest.raises(ValueError, match=r"cannot connect \(timed out\)"):
        choose_mesh()


def test_engine_describes_its_devices():
    engine = training.choose_engine(config_of())
    assert (engine.num_devices, engine.num_hosts, engine.host_index) == (4, 1, 0)
    engine = engine_of(4)
    assert engine.description == "JAX on 4 x cpu, weights and optimizer replicated"


def test_rejects_sharding_of_small_model():
    with pytest.raises(ValueError, match="must be '' .*shard='optimizer', devices=4"):
        engine_of(4, shard="optimizer")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shard": "fsdp"}, "'optimizer', 'parameters'.*shard='fsdp'"),
        ({"batch_size": 10}, "must be divisible by 4 replicas"),
    ],
)
def test_rejects_invalid_config(changes, message, tmp_path):
    config = config_of(data={"name": "digits"}, **changes)
    with pytest.raises(ValueError, match=message):
        training.run(config, training.Workdir(tmp_path, config.to_dict()))


def test_out_of_memory_error_suggests_smaller_settings(monkeypatch):
    engine = engine_of()

    def fail(*_):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory.\nmore")

    monkeypatch.setattr(engine, "_train_steps", lambda step: fail)
    with pytest.raises(ValueError, match="accumulate_steps=8 .*_EXHAUSTED: Out of memory.$"):
        engine.train(0, 1)
