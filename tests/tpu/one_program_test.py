"""A step on TPUs is one replicated program.

The tests trace a step under a `TPUStrategy` with fake devices and inspect the graph, but do not run
it. The variables are on logical CPU devices.
"""

import collections
import itertools
import re
import types

import keras
import pytest

if keras.backend.backend() != "tensorflow":
    pytest.skip("requires the TensorFlow backend", allow_module_level=True)

import numpy as np
import tensorflow as tf

from keras_vit.training.engine import make_optimizer
from keras_vit.training.tensorflow.state import State
from keras_vit.training.tensorflow.step import make_train_steps

REPLICAS = 2
BATCH = 8
# Prefixes of collective operations. A sum is `CrossReplicaSum`, and a broadcast is `AllToAll`.
COLLECTIVES = (
    "AllToAll",
    "CollectivePermute",
    "CrossReplicaSum",
    "TPUCollective",
    "XlaAllReduce",
    "XlaReduceScatter",
)


class _FakeResolver:
    """Simulates one host with two TPU devices."""

    task_type = task_id = None

    def get_tpu_system_metadata(self):
        names = [f"/job:localhost/replica:0/task:0/device:TPU:{i}" for i in range(REPLICAS)]
        devices = [types.SimpleNamespace(name=name, device_type="TPU") for name in names]
        return types.SimpleNamespace(
            devices=devices, num_hosts=1, num_cores=REPLICAS, num_of_cores_per_host=REPLICAS
        )

    def cluster_spec(self):
        return tf.train.ClusterSpec({})

    def master(self):
        return ""


@pytest.fixture(scope="module")
def strategy():
    strategy = tf.distribute.TPUStrategy(_FakeResolver())
    devices = [f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(REPLICAS)]
    strategy.extended._tpu_devices = np.array([[device] for device in devices], dtype=object)
    return strategy


Traced = collections.namedtuple("Traced", ["state", "loop_body", "outside"])


@pytest.fixture(scope="module")
def trace(strategy, tiny):
    """Returns a function that traces a call of several steps and returns the `State`, the nodes of
    the loop body and all other nodes."""

    def trace_steps(break_step=None, **changes):
        config = tiny.config(batch_size=BATCH, **changes)
        task = tiny.task(config)
        inputs = tiny.inputs(3)
        with strategy.scope():
            model = task.build_model(inputs)
            optimizer = make_optimizer(config, 20)
            optimizer.build(model.trainable_variables)
            scaled = config.precision == "mixed_float16"
            state = State(model, optimizer, averaged=True, scaled=scaled)
        if break_step:
            break_step(state)
        train_steps = make_train_steps(strategy, state, task, config)

        # Trace the Python function with a fake iterator. AutoGraph converts its loop to a graph
        # loop.
        @tf.function(
            input_signature=[tf.TensorSpec((), t) for t in (tf.int32, tf.int32, "float32")]
        )
        def call(first, steps, stop):
            batches = itertools.repeat(_batch(strategy, inputs.image_shape, 3))
            return train_steps.python_function(batches, first, steps, stop)

        return Traced(state, *_nodes(call.get_concrete_function().graph.as_graph_def()))

    return trace_steps


def _batch(strategy, image_shape, classes):
    """Returns zeros on every replica."""

    def part(*shape):
        zeros = tf.zeros((BATCH // REPLICAS, *shape))
        return strategy.experimental_distribute_values_from_function(lambda _: zeros)

    return part(*image_shape), part(classes), part()


def _nodes(graph):
    """Returns the nodes of the body of the only loop, and all other nodes."""
    functions = {function.signature.name: function.node_def for function in graph.library.function}
    (loop,) = [node for node in graph.node if node.op in ("While", "StatelessWhile")]
    body = functions.pop(loop.attr["body"].func.name)
    return list(body), [*graph.node, *itertools.chain(*functions.values())]


@pytest.fixture(scope="module")
def traced(trace):
    return trace()


def _inside(nodes):
    """Returns the nodes that are part of a replicated program."""
    return [node for node in nodes if "_tpu_replicate" in node.attr]


def _collectives(nodes):
    return collections.Counter(node.op for node in nodes if node.op.startswith(COLLECTIVES))


def test_step_is_one_replicated_program(traced):
    (metadata,) = [node for node in traced.loop_body if node.op == "TPUReplicateMetadata"]
    assert metadata.attr["num_replicas"].i == REPLICAS
    assert not _inside(traced.outside)
    assert not [node for node in traced.outside if node.op.startswith("TPU")]
    assert len({node.attr["_tpu_replicate"].s for node in _inside(traced.loop_body)}) == 1
    # All operations of these types are inside the program.
    for op in ("MatMul", "AssignVariableOp", "Softmax"):
        nodes = [node for node in [*traced.loop_body, *traced.outside] if node.op == op]
        assert nodes, op
        assert nodes == _inside(nodes), op


def _consumers(nodes, outputs):
    """Returns the nodes that use an output, directly or through other nodes."""
    used = {node.name for node in outputs}
    consumers = []
    number_before = -1
    while len(consumers) > number_before:
        number_before = len(consumers)
        for node in nodes:
            inputs = {name.split(":")[0].lstrip("^") for name in node.input}
            if node.name not in used and inputs & used:
                used.add(node.name)
                consumers.append(node)
    return consumers


def test_host_only_collects_step_outputs(traced):
    outputs = [node for node in traced.loop_body if node.op == "TPUReplicatedOutput"]
    assert len(outputs) == 3  # metrics, running, stop_requested
    # The host only stores these outputs. No other operation uses them.
    operations = {node.op for node in _consumers(traced.loop_body, outputs)}
    assert operations <= {"Identity", "ConcatV2", "TensorListSetItem", "NoOp"}


def test_program_has_no_host_operations(traced):
    program = _inside(traced.loop_body)
    assert len(program) > 500
    host_operation = re.compile("Host|PyFunc|Print|Infeed|Outfeed|Send|Recv|If|Case|Timestamp")
    assert not [node.op for node in program if host_operation.search(node.op)]
    assert not [node.name for node in program if "_xla_outside_compilation" in node.attr]


@pytest.mark.parametrize(
    "changes", [{}, {"accumulate_steps": 2}, {"precision": "mixed_float16"}], ids=str
)
def test_replicas_sum_only_gradients_and_metrics(trace, changes):
    traced = trace(**changes)
    assert _collectives(traced.loop_body) == {
        "CrossReplicaSum": len(traced.state.model.trainable_variables) + 1
    }
    assert not _collectives(traced.outside)
    assert len([node for node in traced.loop_body if node.op == "TPUReplicateMetadata"]) == 1


def test_detects_variable_broadcast(strategy, trace):
    def break_step(state):
        with strategy.scope():
            first = tf.VariableAggregation.ONLY_FIRST_REPLICA
            state.running = tf.Variable(True, trainable=False, aggregation=first)

    assert _collectives(trace(break_step).loop_body)["AllToAll"] == 1
