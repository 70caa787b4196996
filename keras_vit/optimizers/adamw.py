"""The paper's Adam: with weight decay beside the gradient (AdamW)."""

import keras
from keras import ops

from keras_vit.optimizers.parameters import DECAY_MASKS, decaying, layerwise_multipliers
from keras_vit.optimizers.validation import check_layer_decay, check_momentum_dtype, check_rate


@keras.saving.register_keras_serializable(package="keras_vit")
class AdamW(keras.optimizers.Optimizer):
    """Adam whose weight decay is multiplied by the rate and by nothing else:

        m <- beta_1 * m + (1 - beta_1) * g
        v <- beta_2 * v + (1 - beta_2) * g^2
        w <- w - rate * (m' / (sqrt(v') + epsilon) + weight_decay * w)

    m' and v' are corrected for their start at 0. Keras' own AdamW adds epsilon to the root of v instead of v'.

    Args:
        learning_rate: a rate, or a schedule of it.
        weight_decay: 0 or more, before the multiplication by the rate; the numbers of the paper's Table 3.
        beta_1, beta_2: in [0, 1).
        epsilon: above 0.
        decay_mask: which parameters decay: "all", or "kernels".
        no_decay: names of parameters or layers that do not, separated by commas; see `decaying`.
        layer_decay: see `layerwise_multipliers`; the decay of a parameter follows its rate.
        momentum_dtype: "float32", or "bfloat16" to store m in half the memory, as big_vision does. The update uses m
            before it is rounded.

    Raises:
        ValueError: an argument is out of range.

    Reference: paper section 4.1 and Table 3; Loshchilov and Hutter, "Decoupled Weight Decay Regularization"; equal to
    optax's AdamW on the golden trajectory.
    """

    def __init__(
        self,
        learning_rate,
        weight_decay=0.0,
        beta_1=0.9,
        beta_2=0.999,
        epsilon=1e-8,
        decay_mask="all",
        no_decay="",
        layer_decay=1.0,
        momentum_dtype="float32",
        name="adamw",
        **kwargs,
    ):
        super().__init__(learning_rate, name=name, **kwargs)
        check_rate("beta_1", beta_1)
        check_rate("beta_2", beta_2)
        check_layer_decay(layer_decay)
        check_momentum_dtype(momentum_dtype)
        if not weight_decay >= 0 or not epsilon > 0:
            raise ValueError(
                "`weight_decay` must be 0 or more, `epsilon` above 0. "
                f"Received: weight_decay={weight_decay}, epsilon={epsilon}"
            )
        if decay_mask not in DECAY_MASKS:
            raise ValueError(
                f"`decay_mask` must be one of {', '.join(DECAY_MASKS)}. Received: decay_mask={decay_mask!r}"
            )
        # Not Keras' own `weight_decay`, which would be subtracted at a rate without layer decay.
        self.decay = weight_decay
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon
        self.decay_mask = decay_mask
        self.no_decay = no_decay
        self.layer_decay = layer_decay
        self.momentum_dtype = momentum_dtype

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        self.momentums = [
            self.add_variable(v.shape, dtype=self.momentum_dtype, name=f"{v.name}_momentum") for v in variables
        ]
        self.velocities = [self.add_variable(v.shape, dtype="float32", name=f"{v.name}_velocity") for v in variables]
        self.layerwise_multipliers = layerwise_multipliers(variables, self.layer_decay)
        self.decays = [self.decay * on for on in decaying(variables, self.decay_mask, self.no_decay)]

    def update_step(self, gradient, variable, learning_rate):
        index = self._get_variable_index(variable)
        gradient = ops.cast(gradient, "float32")
        momentum = (1 - self.beta_1) * gradient + ops.cast(self.beta_1 * self.momentums[index], "float32")
        velocity = (1 - self.beta_2) * ops.square(gradient) + self.beta_2 * self.velocities[index]
        self.assign(self.momentums[index], ops.cast(momentum, self.momentum_dtype))
        self.assign(self.velocities[index], velocity)
        # The corrections, the rate and the decay meet as scalars first: each pass over the weights costs time.
        step = ops.cast(self.iterations + 1, "float32")
        rate = ops.cast(learning_rate, "float32") * self.layerwise_multipliers[index]
        rate_of_momentum = rate / (1 - ops.power(self.beta_1, step))
        root_of_correction = ops.sqrt(1 - ops.power(self.beta_2, step))
        update = rate_of_momentum * momentum / (ops.sqrt(velocity) / root_of_correction + self.epsilon)
        if self.decays[index]:
            update = update + (rate * self.decays[index]) * ops.cast(variable, "float32")
        self.assign_sub(variable, ops.cast(update, variable.dtype))

    def get_config(self):
        names = (
            "beta_1", "beta_2", "epsilon", "decay_mask", "no_decay", "layer_decay", "momentum_dtype",
        )  # fmt: skip
        return {
            **super().get_config(),
            "weight_decay": self.decay,
            **{name: getattr(self, name) for name in names},
        }
