"""The calls of layers that a functional model consists of, read through names that are private to Keras; the test of
what a head reads fails if they change."""

import keras


def calls_of(model):
    """The calls of layers and operations that lead to a model's outputs, or None where the model is not functional.

    Returns:
        A list of nodes as Keras has them: each with `operation`, `arguments`, `input_tensors` and `output_tensors`.
    """
    try:
        tensors, calls = keras.tree.flatten(model.outputs), {}
        while tensors:
            operation, index, _ = tensors.pop()._keras_history
            call = operation._inbound_nodes[index]
            if id(call) not in calls:
                calls[id(call)] = call
                tensors += call.input_tensors
    except (AttributeError, ValueError):
        return None
    return list(calls.values())


def call_of(calls, layer):
    """The one call of a layer."""
    return next(call for call in calls if call.operation is layer)


def source_of(calls, call):
    """The call that gives what a call reads, of several tensors the first."""
    return next(other for other in calls if any(tensor is call.input_tensors[0] for tensor in other.output_tensors))


def readers_of(calls, layer):
    """The calls that read what the one call of a layer gives."""
    outputs = {id(tensor) for call in calls if call.operation is layer for tensor in call.output_tensors}
    return [call for call in calls if outputs & {id(tensor) for tensor in call.input_tensors}]
