"""SGD with momentum, as in the JAX reference implementation."""

from typing import Any

import keras
from keras import KerasTensor, ops

from keras_vit.optimizers.base import Optimizer


@keras.saving.register_keras_serializable(package="keras_vit")
class SGD(Optimizer):
    """SGD with momentum: `m <- g + momentum * m`, then `w <- w - rate * m`.

    Keras' SGD includes the learning rate in the momentum, so its updates differ once the learning
    rate changes.

    Args:
        learning_rate: a constant learning rate or a schedule.
        momentum: momentum coefficient, in [0, 1).
        momentum_dtype: dtype of m: "float32", or "bfloat16" to halve its memory, as in the
            reference. `momentum * m` is then computed in bfloat16, which rounds 0.9 to 0.8984375.
        **kwargs: `weight_decay` (the paper uses none), `decay_mask`, `no_decay` and `layer_decay`;
            see `AdamW`.

    Reference: fine-tuning in
        [`vit_jax/train.py`](https://github.com/google-research/vision_transformer). The updates
        match a trajectory recorded with that code.
    """

    argument_names = (*Optimizer.argument_names, "momentum")

    def __init__(
        self,
        learning_rate: float | keras.optimizers.schedules.LearningRateSchedule,
        momentum: float = 0.9,
        momentum_dtype: str = "float32",
        name: str = "sgd",
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate, momentum_dtype=momentum_dtype, name=name, **kwargs)
        if not 0 <= momentum < 1:
            raise ValueError(f"`momentum` must be in [0, 1). Received: momentum={momentum}")
        self.momentum = momentum

    def new_slots(self, gradient: KerasTensor, slots: list[KerasTensor]) -> list[KerasTensor]:
        return [gradient + ops.cast(self.momentum * slots[0], "float32")]

    def scaled_direction(self, slots: list[KerasTensor], factors: KerasTensor) -> KerasTensor:
        return factors * slots[0]
