"""Compiles the steps of a distillation for a TPU."""

from keras_vit import VisionTransformer, tpu

MODEL = {"patch_size": 4, "num_layers": 2, "hidden_size": 128, "mlp_dim": 256, "num_heads": 2}


def test_memory_counts_the_teacher(tiny, tpu_compiler, tmp_path):
    teacher = VisionTransformer(**MODEL, input_shape=(16, 16, 3), classes=10)
    teacher.save(tmp_path / "teacher.keras")
    path = str(tmp_path / "teacher.keras")
    changes = {"teacher": path, "distillation": {"labels": False}}
    config = tiny.config(task="distillation", best_metric="agreement", **changes)
    check = tpu.check(tiny.task(config), config, 32, "v5e:2x2")
    config = tiny.config()
    without_teacher = tpu.check(tiny.task(config), config, 32, "v5e:2x2")
    assert check.fits
    assert not check.error
    added = 4 * teacher.count_params()
    assert abs(check.state_bytes - without_teacher.state_bytes - added) < 0.1 * added
    assert check.train.argument_bytes > without_teacher.train.argument_bytes + 0.9 * added
    assert check.evaluation.argument_bytes > without_teacher.evaluation.argument_bytes + 0.9 * added
