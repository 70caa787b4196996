"""Our own training loop under `tf.distribute`.

`run(config, workdir)` is the one way in. `strategy` chooses the devices, `gradients` and `step` compute, `loop` goes
from step to step, `state` and `checkpoints` remember, `journal` tells.
"""

from keras_vit.training.interruption import EXIT_CODE, Interrupted
from keras_vit.training.metrics_log import read_metrics
from keras_vit.training.run import run
from keras_vit.training.strategy import choose_strategy, is_chief
from keras_vit.training.workdir import Workdir

__all__ = ["EXIT_CODE", "Interrupted", "Workdir", "choose_strategy", "is_chief", "read_metrics", "run"]
