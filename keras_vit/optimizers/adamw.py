"""Adam with decoupled weight decay (AdamW), the paper's optimizer for pre-training."""

from typing import Any

import keras
from keras import KerasTensor, ops

from keras_vit.optimizers.base import Optimizer


@keras.saving.register_keras_serializable(package="keras_vit")
class AdamW(Optimizer):
    """Adam with decoupled weight decay. The decay is scaled by the learning rate only.

        m <- beta_1 * m + (1 - beta_1) * g
        v <- beta_2 * v + (1 - beta_2) * g^2
        w <- w - rate * (m' / (sqrt(v') + epsilon) + weight_decay * w)

    Here, m' and v' are the bias-corrected moments. `keras.optimizers.AdamW` adds epsilon to sqrt(v)
    instead.

    Args:
        learning_rate: a constant learning rate or a schedule.
        weight_decay: weight decay factor, 0 or more; see Table 3 of the paper.
        beta_1, beta_2: decay rates of the first and second moment, in [0, 1).
        epsilon: added to the denominator for numerical stability, above 0.
        decay_mask: "all" to decay every parameter, "kernels" to decay only kernels.
        no_decay: comma-separated names of parameters or layers that do not decay.
        layer_decay: ratio of each block's learning rate to that of the next block, in (0, 1].
            Blocks are the layers named `encoderblock_0`, `encoderblock_1` and so on.
        momentum_dtype: dtype of m: "float32", or "bfloat16" to halve its memory, as in big_vision.

    Raises:
        ValueError: an argument is out of range.

    Reference: paper section 4.1 and Table 3; Loshchilov and Hutter, "Decoupled Weight Decay
        Regularization". The updates match a recorded trajectory of optax's AdamW.
    """

    argument_names = (*Optimizer.argument_names, "beta_1", "beta_2", "epsilon")
    other_slots = ("velocity",)

    def __init__(
        self,
        learning_rate: float | keras.optimizers.schedules.LearningRateSchedule,
        weight_decay: float = 0.0,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-8,
        decay_mask: str = "all",
        no_decay: str = "",
        layer_decay: float = 1.0,
        momentum_dtype: str = "float32",
        name: str = "adamw",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            learning_rate,
            weight_decay,
            decay_mask,
            no_decay,
            layer_decay,
            momentum_dtype,
            name=name,
            **kwargs,
        )
        if not (0 <= beta_1 < 1 and 0 <= beta_2 < 1 and epsilon > 0):
            raise ValueError(
                "`beta_1` and `beta_2` must be in [0, 1), and `epsilon` must be above 0. "
                f"Received: beta_1={beta_1}, beta_2={beta_2}, epsilon={epsilon}"
            )
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon

    def new_slots(self, gradient: KerasTensor, slots: list[KerasTensor]) -> list[KerasTensor]:
        momentum, velocity = slots
        momentum = (1 - self.beta_1) * gradient + ops.cast(self.beta_1 * momentum, "float32")
        velocity = (1 - self.beta_2) * ops.square(gradient) + self.beta_2 * velocity
        return [momentum, velocity]

    def factors(self, rate: KerasTensor, step: KerasTensor) -> tuple[KerasTensor, KerasTensor]:
        # Fold the bias corrections into scalars to save passes over the weights.
        step = ops.cast(step + 1, "float32")
        return rate / (1 - ops.power(self.beta_1, step)), ops.sqrt(1 - ops.power(self.beta_2, step))

    def scaled_direction(
        self, slots: list[KerasTensor], factors: tuple[KerasTensor, KerasTensor]
    ) -> KerasTensor:
        momentum, velocity = slots
        rate_of_momentum, root_of_correction = factors
        return (
            rate_of_momentum * momentum / (ops.sqrt(velocity) / root_of_correction + self.epsilon)
        )
