"""Every page of experiments/configs builds and runs two steps."""

import importlib.util
from pathlib import Path

import pytest
from absl import flags
from ml_collections import config_flags

from keras_vit import training

CONFIGS = Path(__file__).parent.parent.parent / "experiments" / "configs"


@pytest.mark.parametrize("page", sorted(CONFIGS.glob("*.py")), ids=lambda page: page.stem)
def test_a_page_opens_with_its_command_and_runs_two_steps(page, tmp_path):
    spec = importlib.util.spec_from_file_location(page.stem, page)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert f"python experiments/run_tpu.py --config=experiments/configs/{page.name}" in module.__doc__
    config = module.get_config()
    config.total_epochs, config.total_steps, config.schedule.warmup_steps = 0.0, 2, 1
    lines = []
    workdir = training.Workdir(tmp_path, config.to_dict())
    _, results = training.run(config, workdir, write=lines.append)
    assert any(line.startswith("step 2/2") for line in lines)
    assert results["train/seconds"] > 0


@pytest.mark.parametrize("page", sorted(CONFIGS.glob("*.py")), ids=lambda page: page.stem)
def test_every_field_of_a_page_can_be_overridden_with_its_own_value(page):
    values = flags.FlagValues()
    config_flags.DEFINE_config_file("config", str(page), flag_values=values)
    values(["test"])
    fields = [(name, value) for name, value in _leaves(values.config.to_dict())]
    overrides = [
        f"--config.{name}={','.join(map(str, value)) if isinstance(value, tuple) else value}" for name, value in fields
    ]
    assert "None" not in str(overrides)
    again = flags.FlagValues()
    config_flags.DEFINE_config_file("config", str(page), flag_values=again, sys_argv=["test", *overrides])
    again(["test", *overrides])
    assert again.config.to_dict() == values.config.to_dict()


def _leaves(config, prefix=""):
    for name, value in config.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value
