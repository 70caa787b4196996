"""Base class of the optimizers: weight decay by parameter name, layer-wise learning rates,
conditional updates."""

import re

import keras
from keras import ops

DECAY_MASKS = ("all", "kernels")
"""Allowed values of `decay_mask`."""


class Optimizer(keras.optimizers.Optimizer):
    """Base class of optimizers with momentum and decoupled decay.

        w <- w - rate * (direction + decay * w)

    `rate` is the learning rate times the parameter's layer-wise multiplier. `AdamW` documents the
    arguments.
    """

    # Arguments that are attributes of the same names.
    argument_names: tuple[str, ...] = ("decay_mask", "no_decay", "layer_decay", "momentum_dtype")
    # Names of the float32 slot variables that each parameter has besides its momentum.
    other_slots: tuple[str, ...] = ()

    def __init__(
        self,
        learning_rate,
        weight_decay=0.0,
        decay_mask="all",
        no_decay="",
        layer_decay=1.0,
        momentum_dtype="float32",
        **kwargs,
    ):
        super().__init__(learning_rate, **kwargs)
        if not weight_decay >= 0:
            raise ValueError(
                f"`weight_decay` must be 0 or more. Received: weight_decay={weight_decay}"
            )
        if decay_mask not in DECAY_MASKS:
            raise ValueError(
                f"`decay_mask` must be one of {', '.join(DECAY_MASKS)}. Received: "
                f"decay_mask={decay_mask}"
            )
        if not 0 < layer_decay <= 1:
            raise ValueError(
                f"`layer_decay` must be in (0, 1]. Received: layer_decay={layer_decay}"
            )
        if momentum_dtype not in ("float32", "bfloat16"):
            raise ValueError(
                "`momentum_dtype` must be float32 or bfloat16. Received: "
                f"momentum_dtype={momentum_dtype}"
            )
        # Do not pass `weight_decay` to Keras, which would apply it without layer decay.
        self.decay = weight_decay
        self.decay_mask = decay_mask
        self.no_decay = no_decay
        self.layer_decay = layer_decay
        self.momentum_dtype = momentum_dtype

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        self.momentums = self._add_slots(variables, "momentum", self.momentum_dtype)
        others = [self._add_slots(variables, name, "float32") for name in self.other_slots]
        self.slots = [*zip(self.momentums, *others)]
        self.layerwise_multipliers = layerwise_multipliers(variables, self.layer_decay)
        self.starts = [0] * len(variables)
        flags = decay_flags(variables, self.decay_mask, self.no_decay)
        self.decays = [
            # Keras' method knows the variables given to `exclude_from_weight_decay`.
            self.decay * (flag and self._use_weight_decay(variable))
            for flag, variable in zip(flags, variables)
        ]

    def start_at(self, step, variables):
        """Keeps some of the variables unchanged in the first `step` updates; their bias correction
        starts after these. The caller makes their gradients zero in these updates."""
        late = {id(variable) for variable in variables}
        self.starts = [step * (id(v) in late) for v in self._trainable_variables]

    def _add_slots(self, variables, name, dtype):
        """Creates a slot variable of zeros for each variable."""
        return [self.add_variable(v.shape, dtype=dtype, name=f"{v.name}_{name}") for v in variables]

    def new_slots(self, gradient, slots):
        """Returns the new float32 slot values of one parameter, without assigning them."""
        raise NotImplementedError

    def factors(self, rate, step):
        """Returns the scalar factors for `scaled_direction`; `step` is the number of previous
        updates."""
        return rate

    def scaled_direction(self, slots, factors):
        """Returns `rate * direction`, computed from the new slot values and the output of
        `factors`."""
        raise NotImplementedError

    def split_state(self, state):
        """Returns the slot values of each parameter and the number of previous updates; `state`
        contains the values of `self.variables`."""
        values = self._values(state)
        slots = [[values[id(slot)] for slot in slots] for slots in self.slots]
        return slots, values[id(self.iterations)]

    def join_state(self, state, slots, step):
        """Returns `state` with other slot values and another number of updates; the inverse of
        `split_state`."""
        values = self._values(state)
        for variables, new_values in zip(self.slots, slots, strict=True):
            values.update(zip(map(id, variables), new_values, strict=True))
        values[id(self.iterations)] = step
        return list(values.values())

    def _values(self, state):
        """Returns a dict from the ids of `self.variables` to their values, in this order."""
        return dict(zip(map(id, self.variables), state, strict=True))

    def learning_rate_at(self, state):
        """Returns the next update's float32 learning rate; `state` contains the values of
        `self.variables`."""
        with keras.StatelessScope(state_mapping=list(zip(self.variables, state, strict=True))):
            return ops.cast(self.learning_rate, "float32")

    def update_step(self, gradient, variable, learning_rate):
        index = self._get_variable_index(variable)
        variables = [*self.slots[index], variable]
        *slots, weight = map(ops.convert_to_tensor, variables)
        scalars = self.scalars(index, learning_rate, self.iterations, {})
        weight, slots = self.update_parameter(
            gradient, weight, slots, scalars, has_decay=self.decays[index] > 0
        )
        for changed, value in zip(variables, [*slots, weight]):
            self.assign(changed, value)

    def scalars(self, index, learning_rate, step, cache):
        """Returns `(factors, rate * decay)` of one parameter.

        `cache` is a dict that the parameters of an update share: most of them have the same
        multiplier and decay, and each op adds tracing time.
        """
        start = self.starts[index]
        multiplier = self.layerwise_multipliers[index]
        decay = self.decays[index]
        key = (multiplier, decay, start)
        if key not in cache:
            rate = ops.cast(learning_rate, "float32") * multiplier
            if start:
                rate = ops.where(step < start, 0.0, rate)
                step = ops.maximum(step - start, 0)
            cache[key] = self.factors(rate, step), rate * decay
        return cache[key]

    def update_parameter(
        self, gradient, weight, slots, scalars, has_decay, select=lambda new, old: new
    ):
        """Returns `(weight, slots)` after an update of one parameter, without assigning them;
        `select(new, old)` may keep the old values."""
        factors, rate_of_decay = scalars
        values = self.new_slots(ops.cast(gradient, "float32"), slots)
        # Select before computing the weight; otherwise XLA copies the old slots and computes both
        # versions.
        values = [
            select(value, ops.cast(slot, "float32"))
            for value, slot in zip(values, slots, strict=True)
        ]
        update = self.scaled_direction(values, factors)
        if has_decay:
            update = update + rate_of_decay * ops.cast(weight, "float32")
        weight = select(weight - ops.cast(update, weight.dtype), weight)
        return weight, [ops.cast(value, slot.dtype) for value, slot in zip(values, slots)]

    def get_config(self):
        own = {name: getattr(self, name) for name in self.argument_names}
        return {**super().get_config(), "weight_decay": self.decay, **own}


def decay_flags(variables, decay_mask, no_decay):
    """Returns a bool per variable, True if it decays; `no_decay` names parameters or layers that do
    not decay."""
    names = [name.strip() for name in no_decay.split(",") if name.strip()]
    paths = [variable.path.split("/") for variable in variables]
    for name in names:
        if not any(name in path for path in paths):
            raise ValueError(
                "`no_decay` must list trained parameters or layers of the model, such as "
                f"pos_embedding or head; the model has no {name!r}. Received: no_decay={no_decay!r}"
            )
    return [
        (decay_mask == "all" or path[-1] == "kernel") and not any(name in path for name in names)
        for path in paths
    ]


def layerwise_multipliers(variables, layer_decay):
    """Returns `layer_decay ** (distance from the head)` for each variable, as in ELECTRA and
    BEiT."""
    if layer_decay == 1:
        return [1.0] * len(variables)
    blocks = [re.search(r"(?:^|/)encoderblock_(\d+)/", variable.path) for variable in variables]
    numbers = [int(block[1]) for block in blocks if block]
    if not numbers:
        raise ValueError(
            "`layer_decay` must be 1 unless the model has trainable variables in layers named "
            f"encoderblock_0, encoderblock_1 and so on. Received: layer_decay={layer_decay}"
        )
    if numbers != sorted(numbers):
        raise ValueError(
            "`layer_decay` must be 1 for a model with two trained towers, because the distance of "
            f"a layer from the head is not known. Received: layer_decay={layer_decay}"
        )
    last = numbers[-1]
    multipliers = []
    depth = 0
    # Variables are in model order: the embedding, before the first block, has depth 0, and the
    # head, after the last block, has the largest depth.
    for block in blocks:
        if block:
            depth = int(block[1]) + 1
        elif depth == last + 1:
            depth += 1
        multipliers.append(layer_decay ** (last + 2 - depth))
    return multipliers
