"""Training: a loop that is independent of the task and the backend, and one engine per backend.

`run(config, workdir)` is the entry point. `loop.Loop` is the training loop, `engine` defines the
interface of both engines, and `update.update` applies one optimizer step. `training/tensorflow`
uses `tf.distribute`; `training/jax` compiles one step function over the global batch. The loss is
`sum(losses * example_weights) / global batch size`. In the model, random numbers depend on the
seed, the step, the micro-batch, and the replica (TensorFlow) or the position in the batch (JAX).
"""

from keras_vit.training.engine import Engine, TrainOutputs
from keras_vit.training.engines import choose_engine
from keras_vit.training.hosts import is_chief
from keras_vit.training.loading import RunResult, has_checkpoint, load_checkpoint
from keras_vit.training.metrics import read_metrics
from keras_vit.training.preemption import EXIT_CODE, Preempted
from keras_vit.training.run import run
from keras_vit.training.stored_models import load_stored_model
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
    "load_stored_model",
    "read_config",
    "read_metrics",
    "run",
]
