"""A step is one replicated program: the graph that `strategy.run` makes under a TPUStrategy whose devices stand in.

The stand-in's variables lie on logical CPU devices. The graph is traced and read, and never run.
"""

import collections
import types

import keras
import pytest

if keras.backend.backend() != "tensorflow":
    pytest.skip("of the TensorFlow backend", allow_module_level=True)

import numpy as np
import tensorflow as tf

from keras_vit.training.engine import make_optimizer
from keras_vit.training.tensorflow.state import State
from keras_vit.training.tensorflow.step import make_train_steps

REPLICAS = 2
BATCH = 8
# The operations by which replicas exchange values. A sum is `CrossReplicaSum`; a broadcast is an `AllToAll` of copies.
EXCHANGES = ("AllToAll", "CollectivePermute", "CrossReplicaSum", "TPUCollective", "XlaAllReduce", "XlaReduceScatter")


class _Resolver:
    """A cluster of one host with a TPU of two devices."""

    task_type = task_id = None

    def get_tpu_system_metadata(self):
        names = [f"/job:localhost/replica:0/task:0/device:TPU:{i}" for i in range(REPLICAS)]
        devices = [types.SimpleNamespace(name=name, device_type="TPU") for name in names]
        return types.SimpleNamespace(devices=devices, num_hosts=1, num_cores=REPLICAS, num_of_cores_per_host=REPLICAS)

    def cluster_spec(self):
        return tf.train.ClusterSpec({})

    def master(self):
        return ""


class _Iterator:
    """Batches of zeros on every replica."""

    def __init__(self, strategy, image_shape, classes):
        self._strategy, self._shapes = strategy, (image_shape, (classes,), ())

    def __next__(self):
        def part(shape):
            zeros = tf.zeros((BATCH // REPLICAS, *shape))
            return self._strategy.experimental_distribute_values_from_function(lambda _: zeros)

        return tuple(part(shape) for shape in self._shapes)


@pytest.fixture(scope="module")
def strategy():
    strategy = tf.distribute.TPUStrategy(_Resolver())
    devices = [f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(REPLICAS)]
    strategy.extended._tpu_devices = np.array([[device] for device in devices], dtype=object)
    return strategy


Traced = collections.namedtuple("Traced", ["state", "loop_body", "outside"])


def _trace(strategy, tiny, break_step=None, **changes):
    """A traced call of several steps: the `State`, and the nodes of the loop's body and of all else."""
    config = tiny.config(batch_size=BATCH, **changes)
    task, inputs = tiny.task(config), tiny.inputs(classes=3)
    with strategy.scope():
        model = task.build_model(inputs)
        optimizer = make_optimizer(config, 20)
        optimizer.build(model.trainable_variables)
        state = State(model, optimizer, averaged=True, scaled=config.precision == "mixed_float16")
    if break_step:
        break_step(state)
    names = ("seed", "accumulate_steps", "clip_norm", "ema_decay", "skip_nonfinite")
    options = {name: config[name] for name in names}
    train_steps = make_train_steps(strategy, state, task, batch_size=BATCH, **options)
    iterator = _Iterator(strategy, inputs.image_shape, 3)
    # Converted once more, since a loop that nothing of `tf.data` is in has to become one of the graph.
    call = tf.function(lambda first, steps, stop: train_steps.python_function(iterator, first, steps, stop))
    specs = [tf.TensorSpec((), dtype) for dtype in (tf.int32, tf.int32, tf.float32)]
    graph = call.get_concrete_function(*specs).graph.as_graph_def()
    functions = {function.signature.name: list(function.node_def) for function in graph.library.function}
    (loop,) = [node for node in graph.node if node.op in ("While", "StatelessWhile")]
    body = functions.pop(loop.attr["body"].func.name)
    return Traced(state, body, [*graph.node, *(node for nodes in functions.values() for node in nodes)])


@pytest.fixture(scope="module")
def traced(strategy, tiny):
    return _trace(strategy, tiny)


def _inside(nodes):
    return [node for node in nodes if "_tpu_replicate" in node.attr]


def _exchanges(nodes):
    return collections.Counter(node.op for node in nodes if node.op.startswith(EXCHANGES))


def test_a_step_is_one_replicated_program(traced):
    (metadata,) = [node for node in traced.loop_body if node.op == "TPUReplicateMetadata"]
    assert metadata.attr["num_replicas"].i == REPLICAS
    assert not [node for node in traced.outside if node.op.startswith("TPU") or "_tpu_replicate" in node.attr]
    assert len({node.attr["_tpu_replicate"].s for node in _inside(traced.loop_body)}) == 1
    # Every product of the model, and every assignment, is in it.
    for op in ("MatMul", "AssignVariableOp", "Softmax"):
        nodes = [node for node in [*traced.loop_body, *traced.outside] if node.op == op]
        assert nodes and all("_tpu_replicate" in node.attr for node in nodes)


def test_the_host_only_collects_the_outputs_of_a_step(traced):
    outputs = {node.name for node in traced.loop_body if node.op == "TPUReplicatedOutput"}
    assert len(outputs) == 3  # metrics, running, stop_requested
    reached, todo = set(), set(outputs)
    while todo:
        reached |= todo
        todo = {
            node.name
            for node in traced.loop_body
            if node.name not in reached and any(name.split(":")[0].lstrip("^") in todo for name in node.input)
        }
    consumers = collections.Counter(node.op for node in traced.loop_body if node.name in reached - outputs)
    # The metrics of the call are stored; no program uses them.
    assert set(consumers) <= {"Identity", "ConcatV2", "TensorListSetItem", "NoOp"}


def test_nothing_in_the_program_needs_the_host(traced):
    program = _inside(traced.loop_body)
    assert len(program) > 500
    of_host = ("Host", "PyFunc", "EagerPyFunc", "Print", "Infeed", "Outfeed", "Send", "Recv", "If", "Case", "Timestamp")
    assert not [node.op for node in program if any(word in node.op for word in of_host)]
    assert not [node.name for node in program if "_xla_outside_compilation" in node.attr]


def test_replicas_exchange_the_gradients_and_one_row_of_sums(traced):
    assert _exchanges(traced.loop_body) == {"CrossReplicaSum": len(traced.state.model.trainable_variables) + 1}
    assert not _exchanges(traced.outside)


@pytest.mark.parametrize("changes", [{"accumulate_steps": 2}, {"precision": "mixed_float16"}], ids=str)
def test_accumulation_and_loss_scaling_exchange_nothing_more(strategy, tiny, changes):
    traced = _trace(strategy, tiny, **changes)
    assert _exchanges(traced.loop_body) == {"CrossReplicaSum": len(traced.state.model.trainable_variables) + 1}
    assert len([node for node in traced.loop_body if node.op == "TPUReplicateMetadata"]) == 1


def test_a_variable_that_is_broadcast_would_be_seen(strategy, tiny):
    def break_step(state):
        with strategy.scope():
            first = tf.VariableAggregation.ONLY_FIRST_REPLICA
            state.running = tf.Variable(True, trainable=False, aggregation=first)

    assert _exchanges(_trace(strategy, tiny, break_step).loop_body)["AllToAll"] == 1
