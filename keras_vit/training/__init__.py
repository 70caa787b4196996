"""Training: a loop that is independent of task and framework, and engines that compute its steps.

`run(config, workdir)` is the entry point. `loop.train` is the loop, `engine` the interface between loop and engines,
`update.update` the update of one step. `training/tensorflow` runs under `tf.distribute`; `training/jax` compiles one
function of the whole batch. The loss is `sum(losses * example_weights) / global batch size`. Random numbers are keyed
by seed, step and micro-batch, and by the replica on TensorFlow or the position in the batch on JAX.
"""

from keras_vit.training.engine import Engine, TrainOutputs
from keras_vit.training.engines import choose_engine
from keras_vit.training.hosts import is_chief
from keras_vit.training.metrics import read_metrics
from keras_vit.training.preemption import EXIT_CODE, Preempted
from keras_vit.training.run import RunResult, has_checkpoint, load_checkpoint, run
from keras_vit.training.workdir import Workdir, read_config

__all__ = [
    "EXIT_CODE", "Engine", "Preempted", "RunResult", "TrainOutputs", "Workdir", "choose_engine", "has_checkpoint",
    "is_chief", "load_checkpoint", "read_config", "read_metrics", "run",
]  # fmt: skip
