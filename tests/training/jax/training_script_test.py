"""On JAX, the training script trains, exports a SavedModel and predicts."""

import json

from ...shared import ROOT, SHORT_RUN


def test_script_trains_evaluates_exports_and_predicts(scripts, tmp_path):
    arguments = (f"--workdir={tmp_path}/run", *SHORT_RUN, "--config.total_steps=40")
    done = scripts.run("experiments/run_tpu.py", *arguments, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    for text in (
        "JAX on 4 x cpu, weights and optimizer replicated: 4 x 16 images per step",
        "step 40/40  loss ",
        f"exported to {tmp_path}/run/export/1",
        "image of ",
    ):
        assert text in done.stdout
    assert (tmp_path / "run" / "export" / "1" / "saved_model.pb").exists()
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert 0 < results["test/accuracy"] < 1
    assert "jax" in json.loads((tmp_path / "run" / "command.json").read_text())["versions"]
