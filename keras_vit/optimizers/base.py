"""What the optimizers share: weight decay by name, layer-wise learning rates, momentums, and updates on a condition."""

import contextlib
import re
import sys
import threading
import warnings

import keras
from keras import ops

DECAY_MASKS = ("all", "kernels")
"""Which parameters may decay: all of them, or kernels alone."""

# Options of Keras' optimizers that are another thing on several replicas: they see the gradients before their sum.
_WRONG_ON_REPLICAS = ("clipnorm", "global_clipnorm", "clipvalue", "gradient_accumulation_steps")

# `MirroredStrategy` runs every replica in a separate thread, and each has its condition.
_THREAD = threading.local()


class Optimizer(keras.optimizers.Optimizer):
    """A rule that has a momentum for each parameter, in the form

        w <- w - rate * (direction + decay * w)

    where `rate` is the learning rate times the parameter's layer-wise multiplier. A subclass gives the momentum in
    `compute_slots`, and the direction in `compute_update`.

    Args:
        learning_rate: a learning rate, or a schedule of it.
        decay: the weight decay, 0 or more.
        decay_mask: which parameters decay: "all", or "kernels".
        no_decay: names of parameters or layers that do not decay, separated by commas; see `decay_flags`.
        layer_decay: see `layerwise_multipliers`.
        momentum_dtype: "float32", or "bfloat16" to store the momentums in half the memory.
        **kwargs: of `keras.optimizers.Optimizer`.

    Raises:
        ValueError: an argument is out of range.
    """

    def __init__(
        self,
        learning_rate,
        *,
        decay=0.0,
        decay_mask="all",
        no_decay="",
        layer_decay=1.0,
        momentum_dtype="float32",
        **kwargs,
    ):
        super().__init__(learning_rate, **kwargs)
        if not decay >= 0:
            raise ValueError(f"`weight_decay` must be 0 or more. Received: weight_decay={decay}")
        if decay_mask not in DECAY_MASKS:
            raise ValueError(
                f"`decay_mask` must be one of {', '.join(DECAY_MASKS)}. Received: decay_mask={decay_mask!r}"
            )
        if not 0 < layer_decay <= 1:
            raise ValueError(
                "`layer_decay` must be in (0, 1], 1 for the same learning rate everywhere. "
                f"Received: layer_decay={layer_decay}"
            )
        if momentum_dtype not in ("float32", "bfloat16"):
            raise ValueError(
                f"`momentum_dtype` must be float32 or bfloat16. Received: momentum_dtype={momentum_dtype!r}"
            )
        # Not Keras' own `weight_decay`, which would be subtracted at a learning rate without layer decay.
        self.decay = decay
        self.decay_mask = decay_mask
        self.no_decay = no_decay
        self.layer_decay = layer_decay
        self.momentum_dtype = momentum_dtype

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        self.momentums = self.add_slots(variables, "momentum", self.momentum_dtype)
        self.layerwise_multipliers = layerwise_multipliers(variables, self.layer_decay)
        self.decays = [self.decay * flag for flag in decay_flags(variables, self.decay_mask, self.no_decay)]

    def add_slots(self, variables, name, dtype):
        """A list of new variables of zeros, one for each of `variables` and of its shape."""
        return [self.add_variable(v.shape, dtype=dtype, name=f"{v.name}_{name}") for v in variables]

    def compute_slots(self, gradient, index):
        """The new values of the slots of parameter number `index`; assigns nothing.

        Args:
            gradient: float32 tensor of the parameter's shape.
            index: into the lists of slots.

        Returns:
            A list of `(variable, new value)`, the values float32.
        """
        raise NotImplementedError

    def compute_update(self, slots, rate):
        """What to subtract from a parameter, without its weight decay; assigns nothing.

        Args:
            slots: the new values of `compute_slots`.
            rate: float32 scalar, the learning rate of this parameter.
        """
        raise NotImplementedError

    def update_step(self, gradient, variable, learning_rate):
        select = lambda new, old: new  # noqa: E731
        if isinstance(learning_rate, tuple):
            learning_rate, select = learning_rate
        index = self._get_variable_index(variable)
        rate = ops.cast(learning_rate, "float32") * self.layerwise_multipliers[index]
        values = []
        for slot, value in self.compute_slots(ops.cast(gradient, "float32"), index):
            # What is stored is what the update reads: of two uses of another value XLA would compute both, from a copy
            # of the old slot.
            values.append(select(value, ops.cast(slot, "float32")))
            self.assign(slot, ops.cast(values[-1], slot.dtype))
        update = self.compute_update(values, rate)
        if self.decays[index]:
            update = update + (rate * self.decays[index]) * ops.cast(variable, "float32")
        self.assign(variable, select(variable - ops.cast(update, variable.dtype), variable))

    @contextlib.contextmanager
    def only_if(self, condition, where=ops.where):
        """While it is open, `apply` and `stateless_apply` of this thread change something only where `condition` holds.

        Where it does, the update is the plain one to the bit. Where it does not, parameters, slots and `iterations`
        keep their values, whatever the gradients are; the decision is a value on the device, so that it can be part of
        a compiled step:

            with optimizer.only_if(ops.all(ops.isfinite(metrics))):
                optimizer.apply(gradients, variables)

        Args:
            condition: boolean tensor, a scalar; the same on every replica.
            where: `where(condition, new, old)` selects one of two tensors of the same shape; an engine may have one
                that copies less.

        Raises:
            ValueError: the optimizer has an option of Keras' that writes variables outside of `update_step`.
        """
        for option in ("use_ema", "gradient_accumulation_steps", "weight_decay"):
            if getattr(self, option):
                raise ValueError(
                    f"`only_if` cannot hold back Keras' `{option}`; build the optimizer without it. "
                    f"Received: {option}={getattr(self, option)}"
                )
        before = getattr(_THREAD, "guard", None)
        # JAX takes no Keras variable.
        select = lambda new, old: where(condition, ops.convert_to_tensor(new), ops.convert_to_tensor(old))  # noqa: E731
        _THREAD.guard = (self, select)
        try:
            yield
        finally:
            _THREAD.guard = before

    def _guard(self):
        optimizer, guard = getattr(_THREAD, "guard", None) or (None, None)
        return guard if optimizer is self else None

    def apply(self, grads, trainable_variables=None):
        guard = self._guard()
        before = ops.copy(ops.convert_to_tensor(self._iterations))
        self._warn_about_replicas()
        super().apply(grads, trainable_variables)
        if guard is not None:  # Keras has counted the step
            self._iterations.assign(guard(self._iterations, before))

    def _backend_update_step(self, grads, trainable_variables, learning_rate):
        # A strategy may run `update_step` in another thread, where each replica's gradients and learning rate are
        # passed on; the guard goes along with the latter. The name is private to Keras; the test of `only_if`
        # under a `MirroredStrategy` fails if it changes.
        guard = self._guard()
        rate = learning_rate if guard is None else (learning_rate, guard)
        super()._backend_update_step(grads, trainable_variables, rate)

    def _warn_about_replicas(self):
        options = [name for name in _WRONG_ON_REPLICAS if getattr(self, name)]
        # Not imported: where a strategy is in use, TensorFlow has been imported.
        tensorflow = sys.modules.get("tensorflow")
        if not options or keras.backend.backend() != "tensorflow":
            return
        replicas = tensorflow.distribute.get_strategy().num_replicas_in_sync
        if replicas > 1:
            warnings.warn(
                f"On {replicas} replicas Keras applies {', '.join(options)} to the gradients of each replica alone, "
                "which is another update than that of the whole batch. `keras_vit.training` has `clip_norm` and "
                "`accumulate_steps` instead.",
                stacklevel=3,
            )

    def get_config(self):
        names = ("decay_mask", "no_decay", "layer_decay", "momentum_dtype")
        return {
            **super().get_config(),
            "weight_decay": self.decay,
            **{name: getattr(self, name) for name in names},
        }


def decay_flags(variables, decay_mask, no_decay):
    """Whether each variable decays, by its name.

    Args:
        variables: `keras.Variable`s.
        decay_mask: "all", or "kernels" for those called `kernel` (no biases, norms, class token or positions).
        no_decay: further names to leave out, separated by commas: of a parameter or of a layer.

    Returns:
        A list of bools.

    Raises:
        ValueError: no variable has one of the names.
    """
    names = [name.strip() for name in no_decay.split(",") if name.strip()]
    paths = [_path(variable).split("/") for variable in variables]
    for name in names:
        if not any(name in path for path in paths):
            raise ValueError(
                "`no_decay` must name parameters or layers of the model, such as pos_embedding or head, "
                f"and none is called {name!r}. Received: no_decay={no_decay!r}"
            )
    return [(decay_mask == "all" or path[-1] == "kernel") and not any(name in path for name in names) for path in paths]


def layerwise_multipliers(variables, layer_decay):
    """The factor on each variable's learning rate: `layer_decay` to the power of its distance from the head.

    The head and the norm before it have distance 0, the last block 1, and so on to what comes before the first block.

    Args:
        variables: `keras.Variable`s.
        layer_decay: in (0, 1]; 1 for the same learning rate everywhere.

    Returns:
        A list of floats.

    Raises:
        ValueError: `layer_decay` is below 1 and the variables are not those of a Transformer.

    Reference: Clark et al., "ELECTRA"; Bao et al., "BEiT".
    """
    if layer_decay == 1:
        return [1.0] * len(variables)
    blocks = [re.search(r"(?:^|/)encoderblock_(\d+)/", _path(variable)) for variable in variables]
    numbers = [int(block[1]) for block in blocks if block]
    if not numbers:
        raise ValueError(f"`layer_decay` needs a Transformer with blocks. Received: layer_decay={layer_decay}")
    depths, depth = [], 0
    # Variables come in the order of the model: what stands before the first block is at the bottom, what comes after
    # the last at the top.
    for block in blocks:
        if block:
            depth = int(block[1]) + 1
        elif depth == max(numbers) + 1:
            depth += 1
        depths.append(depth)
    return [layer_decay ** (max(numbers) + 2 - depth) for depth in depths]


def _path(variable):
    return getattr(variable, "path", variable.name)


def check_coefficient(name, value):
    """Raises a `ValueError` unless `value`, a momentum or the beta of an average, is in [0, 1)."""
    if not 0 <= value < 1:
        raise ValueError(f"`{name}` must be in [0, 1). Received: {name}={value}")
