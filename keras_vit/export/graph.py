"""TensorFlow's own part of a SavedModel: the graph and the variables."""

import tensorflow as tf


def write_graph(folder, model, endpoints):
    """Writes the graph of some functions of a model, each a signature.

    Keras' `ExportArchive` writes the same with every variable twice, as Keras' and as TensorFlow's.

    Args:
        folder: where to.
        model: the model whose variables the functions read.
        endpoints: `{name: (function from a tensor to {name: tensor}, the tensor's spec)}`.
    """
    module = tf.Module()
    module.tracked = [variable.value for variable in model.variables]
    signatures = {
        name: tf.function(function, autograph=False).get_concrete_function(spec)
        for name, (function, spec) in endpoints.items()
    }
    tf.saved_model.save(module, folder, signatures)
