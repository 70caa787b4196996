"""What turns gradients into new weights. Pure Keras: it runs on every backend.

`get` gives an optimizer by its name. What a training step does around it stands beside: `clip_by_global_norm` before
the update, `ema_update` after it.
"""

from keras_vit.optimizers.adamw import AdamW
from keras_vit.optimizers.averaging import ema_update
from keras_vit.optimizers.clipping import clip_by_global_norm, global_norm
from keras_vit.optimizers.factory import OPTIMIZERS, get
from keras_vit.optimizers.parameters import DECAY_MASKS
from keras_vit.optimizers.schedules import DECAYS, Schedule
from keras_vit.optimizers.sgd import SGD

__all__ = [
    "DECAYS",
    "DECAY_MASKS",
    "OPTIMIZERS",
    "SGD",
    "AdamW",
    "Schedule",
    "clip_by_global_norm",
    "ema_update",
    "get",
    "global_norm",
]
