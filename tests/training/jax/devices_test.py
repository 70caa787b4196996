"""Tests of the choice of devices and of the JAX engine's error messages."""

import json

import jax
import pytest

from keras_vit import training
from keras_vit.training import validation
from keras_vit.training.jax import choose_mesh, devices


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)


def test_mesh_has_all_devices_or_one():
    assert choose_mesh().shape == choose_mesh("auto").shape == {"data": 4}
    assert choose_mesh("default").shape == {"data": 1}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("tpu",), "No TPU is visible to JAX, only 'cpu'; .*Received: strategy='tpu'"),
        (("mirrored",), "No GPU is visible to JAX, only 'cpu'; .*Received: strategy='mirrored'"),
        (("auto", "node-1"), "`tpu_address` must be empty .*Received: tpu_address='node-1'"),
    ],
)
def test_rejects_unavailable_strategies(arguments, message):
    with pytest.raises(ValueError, match=message):
        choose_mesh(*arguments)


def test_backend_startup_failure_is_a_one_line_error(monkeypatch):
    def fail():
        raise RuntimeError("Unable to initialize backend 'cuda': no driver\nand more")

    monkeypatch.setattr(jax, "devices", fail)
    with pytest.raises(
        ValueError,
        match=r"cannot use its devices \(.*no driver\)",
    ):
        choose_mesh()


def test_processes_in_tf_config_connect_to_chief(monkeypatch):
    calls = []
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: False)
    monkeypatch.setattr(
        jax.distributed, "initialize", lambda *args, **kwargs: calls.append((args, kwargs))
    )
    task = {
        "cluster": {"chief": ["a:1"], "worker": ["b:2"]},
        "task": {"type": "worker", "index": 0},
    }
    monkeypatch.setenv("TF_CONFIG", json.dumps(task))
    choose_mesh("default")
    assert not calls
    choose_mesh()
    ((address, arguments),) = calls
    assert address == ("a:1",)
    assert (arguments["num_processes"], arguments["process_id"]) == (2, 1)
    monkeypatch.setattr(
        jax.distributed,
        "initialize",
        lambda *_, **__: (_ for _ in ()).throw(RuntimeError("timed out")),
    )
    with pytest.raises(ValueError, match=r"cannot connect \(timed out\). Received: address=a:1"):
        choose_mesh()


def test_engine_describes_its_devices(jax_engines, tiny):
    engine = training.choose_engine(jax_engines.config_of())
    assert (engine.num_devices, engine.num_hosts, engine.host_index) == (4, 1, 0)
    engine = jax_engines.engine_of(4, tiny.input_of())
    assert engine.description == "JAX on 4 x cpu, weights and optimizer replicated"


def test_rejects_sharding_of_small_model(jax_engines, tiny):
    with pytest.raises(
        ValueError,
        match="must be '' .*shard='optimizer', devices=4",
    ):
        jax_engines.engine_of(4, tiny.input_of(), shard="optimizer")


def test_rejects_unknown_sharding(jax_engines):
    with pytest.raises(ValueError, match="'optimizer', 'parameters'.*shard='fsdp'"):
        validation.validate_config(jax_engines.config_of(shard="fsdp"), 1)


def test_rejects_batch_not_divisible_by_devices(jax_engines, tmp_path):
    config = jax_engines.config_of(batch_size=10, data={"name": "digits"})
    with pytest.raises(
        ValueError, match="must be divisible by 4 replicas.*Received: batch_size=10"
    ):
        training.run(config, training.Workdir(tmp_path, config.to_dict()))


def test_out_of_memory_error_suggests_smaller_settings(jax_engines, tiny, monkeypatch):
    engine = jax_engines.engine_of(1, tiny.input_of())

    def fail(*_):
        raise jax.errors.JaxRuntimeError(
            "RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes.\nmore"
        )

    monkeypatch.setattr(engine, "_train_steps", lambda step: fail)
    with pytest.raises(ValueError, match="accumulate_steps=8 .*remat=True .*_EXHAUSTED"):
        engine.train(0, 1)


def test_mesh_has_the_data_axis():
    assert choose_mesh().axis_names == (devices.AXIS,)
