"""The memory of a step by formula, against peaks that were measured."""

import math

import pytest
from ml_collections import ConfigDict

from keras_vit import BiTResNet, VisionTransformer, recipes
from keras_vit.training import memory
from keras_vit.training.memory import available_memory, estimate_memory, memory_line

BLOCKS = {"hidden_size": 768, "mlp_dim": 3072, "num_heads": 12, "classes": 3}
# Peaks in MB of a process that built a run and did two steps on a CPU, with TensorFlow and with JAX; AdamW where no
# optimizer is named. TensorFlow's numbers of kept arrays were fitted to the first eight, of ViT-B/16's blocks, those of
# JAX to all but the last four; the others came after.
TI, S = ({"hidden_size": d, "mlp_dim": 4 * d, "num_heads": d // 64} for d in (192, 384))
L = {"hidden_size": 1024, "mlp_dim": 4096, "num_heads": 16}
MEASURED = [
    ({"num_layers": 1}, {"batch_size": 16}, 1261, 1453),
    ({"num_layers": 3}, {"batch_size": 16}, 2332, 2604),
    ({"num_layers": 3}, {"batch_size": 32}, 3289, 3689),
    ({"num_layers": 3}, {"batch_size": 16, "precision": "mixed_bfloat16"}, 2098, 2653),
    ({"num_layers": 3}, {"batch_size": 32, "remat": True}, 2526, 3614),
    ({"num_layers": 3, "patch_size": 32}, {"batch_size": 16}, 1762, 1978),
    ({"num_layers": 3, "dropout": 0.1}, {"batch_size": 16}, 2387, 2880),
    ({"num_layers": 3}, {"batch_size": 32, "accumulate_steps": 4}, 2150, 2289),
    ({"num_layers": 12, **TI}, {"batch_size": 32, "optimizer": {"name": "sgd"}}, 3228, 3409),
    (
        {"num_layers": 4, "dropout": 0.1, **S},
        {"batch_size": 16, "precision": "mixed_bfloat16", "accumulate_steps": 2},
        1490,
        1937,
    ),
    ({"num_layers": 2, "input_shape": (384, 384, 3)}, {"batch_size": 8}, 2196, 2709),
    ({"num_layers": 4, **S}, {"batch_size": 48, "remat": True, "ema_decay": 0.999}, 2149, 3488),
    ({"num_layers": 2, **L}, {"batch_size": 8}, 1848, 2150),
    ({"num_layers": 6, "dropout": 0.1, **S}, {"batch_size": 24}, 2746, 3594),
    (
        {"num_layers": 1, **L},
        {"batch_size": 24, "precision": "mixed_bfloat16", "accumulate_steps": 2},
        1445,
        1678,
    ),
    ({"num_layers": 12, "patch_size": 32, **TI}, {"batch_size": 64}, 2271, 2338),
    ({"num_layers": 12}, {"batch_size": 4}, 3721, 4441),
]


def _config(**changes):
    return ConfigDict(recipes.defaults(**{"total_steps": 10, "optimizer": {"name": "adamw"}, **changes}))


def _model(**changes):
    return VisionTransformer(**{"patch_size": 16, **BLOCKS, **changes})


@pytest.fixture(scope="module")
def small():
    return _model(num_layers=2, hidden_size=96, mlp_dim=192, num_heads=2, input_shape=(64, 64, 3))


@pytest.mark.parametrize(("model", "config", "tensorflow", "jax"), MEASURED, ids=str)
def test_the_formula_agrees_with_measured_peaks(monkeypatch, model, config, tensorflow, jax):
    model = _model(**model)
    for backend, peak in (("tensorflow", tensorflow), ("jax", jax)):
        monkeypatch.setattr(memory.keras.backend, "backend", lambda backend=backend: backend)
        assert estimate_memory(_config(**config), model).total == pytest.approx(peak * 1e6, rel=0.15)


def test_the_state_is_counted_exactly(small):
    weights = 4 * small.count_params()
    for changes, times in (
        ({"optimizer": {"name": "sgd"}}, 2),
        ({"optimizer": {"name": "sgd", "momentum_dtype": "bfloat16"}}, 1.5),
        ({"optimizer": {"name": "adamw"}, "ema_decay": 0.9}, 4),
    ):
        assert estimate_memory(_config(**changes), small).state == times * weights


def test_replicas_share_the_memory_of_a_machine_and_have_their_own_elsewhere(small):
    one, four = (estimate_memory(_config(batch_size=32), small, n) for n in (1, 4))
    assert four.state == 4 * one.state and four.activations == one.activations
    host = estimate_memory(_config(batch_size=32), small, 4, num_hosts=2)
    assert host.state == 2 * one.state and 2 * host.activations == one.activations
    device = estimate_memory(_config(batch_size=32), small, 4, on_cpu=False)
    assert device.state == one.state and 4 * device.activations == one.activations and device.process == 0


def test_a_run_that_does_not_fit_is_told_what_would_make_it(small):
    config = _config(batch_size=4096)
    need = estimate_memory(config, small).total
    fits = memory_line(config, small, available=need)
    assert not fits.startswith("warning") and "are there" in fits
    line = memory_line(config, small, available=need - 1)
    assert line.startswith("warning: memory by formula:")
    remedies = "accumulate_steps=2 or remat=True or precision='mixed_bfloat16'"
    assert line.endswith(f"; with {remedies} it would fit")
    # What is advised fits, and what does not is not.
    tight = estimate_memory(_config(batch_size=4096, accumulate_steps=4), small).total
    line = memory_line(config, small, available=tight)
    # Of the numbers of micro-batches that would do, the smallest.
    assert "accumulate_steps=4" in line and line.count("accumulate_steps") == 1
    assert "a smaller batch or model may fit" in memory_line(config, small, available=1)


def test_on_jax_only_accumulation_is_advised(small, monkeypatch):
    """On a CPU the compiler takes rematerialization out, and computes bfloat16 in float32."""
    monkeypatch.setattr(memory.keras.backend, "backend", lambda: "jax")
    need = estimate_memory(_config(batch_size=4096), small).total
    assert memory_line(_config(batch_size=4096), small, available=need - 1).endswith(
        "; with accumulate_steps=2 it would fit"
    )


def test_what_is_not_known_is_not_said(small):
    hybrid = _model(num_layers=1, patch_size=1, resnet_blocks=(1,), input_shape=(32, 32, 3))
    assert memory_line(_config(), hybrid) == ""
    assert memory_line(_config(), BiTResNet(depth=26, input_shape=(32, 32, 3))) == ""
    assert memory_line(_config(shard="optimizer"), small) == ""
    assert "there" not in memory_line(_config(), small)


def test_this_machine_has_memory():
    assert available_memory() > 2**28


@pytest.mark.parametrize(
    ("folder", "limit", "usage", "cache"),
    [
        ("", "memory.max", "memory.current", "inactive_file"),
        ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ],
)
def test_a_container_has_what_it_is_allowed(tmp_path, folder, limit, usage, cache):
    (tmp_path / folder).mkdir(exist_ok=True)
    for name, text in ((limit, 2**24), (usage, 2**23), ("memory.stat", f"anon 5\n{cache} {2**20}")):
        (tmp_path / folder / name).write_text(f"{text}\n")
    assert memory._container_memory(tmp_path) == 2**24 - 2**23 + 2**20
    assert 0 < available_memory(tmp_path) < available_memory(tmp_path / "nothing")
    (tmp_path / folder / limit).write_text("max\n")
    assert memory._container_memory(tmp_path) == math.inf
