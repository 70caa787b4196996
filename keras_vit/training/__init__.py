"""Our own training loop under `tf.distribute`.

`run(config, workdir)` is the one way in. `strategy` chooses the devices, `step` computes, `workdir` remembers and
`progress` tells.
"""

from keras_vit.training.run import run
from keras_vit.training.strategy import choose_strategy
from keras_vit.training.workdir import Workdir

__all__ = ["Workdir", "choose_strategy", "run"]
