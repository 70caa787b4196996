"""The original's SGD with momentum."""

import keras
from keras import ops

from keras_vit.optimizers.parameters import layerwise_multipliers
from keras_vit.optimizers.validation import check_layer_decay, check_momentum_dtype, check_rate


@keras.saving.register_keras_serializable(package="keras_vit")
class SGD(keras.optimizers.Optimizer):
    """SGD with momentum, the rate outside of the velocity:

        m <- g + momentum * m
        w <- w - rate * m

    Keras' own SGD has the rate inside, which is another update as soon as the rate changes.

    Args:
        learning_rate: a rate, or a schedule of it.
        momentum: in [0, 1).
        momentum_dtype: "float32", or "bfloat16" to store m in half the memory, as the original does. The update uses
            m before it is rounded; `momentum * m` is then computed in bfloat16, where 0.9 is 0.8984375.
        layer_decay: see `layerwise_multipliers`.

    Raises:
        ValueError: an argument is out of range.

    Reference: the original's fine-tuning (`vit_jax/train.py`), and its golden trajectory.
    """

    def __init__(self, learning_rate, momentum=0.9, momentum_dtype="float32", layer_decay=1.0, name="sgd", **kwargs):
        super().__init__(learning_rate, name=name, **kwargs)
        check_rate("momentum", momentum)
        check_momentum_dtype(momentum_dtype)
        check_layer_decay(layer_decay)
        self.momentum = momentum
        self.momentum_dtype = momentum_dtype
        self.layer_decay = layer_decay

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        self.momentums = [
            self.add_variable(v.shape, dtype=self.momentum_dtype, name=f"{v.name}_momentum") for v in variables
        ]
        self.layerwise_multipliers = layerwise_multipliers(variables, self.layer_decay)

    def update_step(self, gradient, variable, learning_rate):
        index = self._get_variable_index(variable)
        stored = self.momentums[index]
        momentum = ops.cast(gradient, "float32") + ops.cast(self.momentum * stored, "float32")
        self.assign(stored, ops.cast(momentum, self.momentum_dtype))
        rate = ops.cast(learning_rate, "float32") * self.layerwise_multipliers[index]
        self.assign_sub(variable, ops.cast(rate * momentum, variable.dtype))

    def get_config(self):
        return {
            **super().get_config(),
            "momentum": self.momentum,
            "momentum_dtype": self.momentum_dtype,
            "layer_decay": self.layer_decay,
        }
