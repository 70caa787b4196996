"""Training: a loop that knows neither the task nor the framework, and engines that compute its steps.

`run(config, workdir)` is the way in. A run is a config, from which come a task (what is learned), an engine (how it is
computed), the input, and the loop. One step of training, on any engine, is one program on every device:

    batch                 this device's part of the global batch of the step
    losses, metrics       task.losses_and_metrics(model, batch), randomness keyed by (seed, step, micro-batch) and the
                          device on TensorFlow, the position in the batch on JAX
    loss                  sum(losses * example_weights) / global batch size
    gradients             of loss, summed over micro-batches and then over devices
    update                `update.update`: clips, checks, and changes weights, optimizer and averages, or nothing

`loop.train` is the loop; `engine` is the contract of both sides; `training/tensorflow` computes under `tf.distribute`,
`training/jax` by one function of the whole batch, which the compiler divides among the devices; `checkpoint_manager`,
`metrics` and `workdir` write files, and `state_files` is the format of checkpoints on both backends.
"""

from keras_vit.training.engine import Engine, TrainOutputs
from keras_vit.training.engines import choose_engine
from keras_vit.training.hosts import is_chief
from keras_vit.training.metrics import read_metrics
from keras_vit.training.preemption import EXIT_CODE, Preempted
from keras_vit.training.run import RunResult, has_checkpoint, load_checkpoint, run
from keras_vit.training.workdir import Workdir, read_config

__all__ = [
    "EXIT_CODE",
    "Engine",
    "Preempted",
    "RunResult",
    "TrainOutputs",
    "Workdir",
    "choose_engine",
    "has_checkpoint",
    "is_chief",
    "load_checkpoint",
    "read_config",
    "read_metrics",
    "run",
]
