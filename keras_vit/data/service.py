"""Work on images by other machines, through tf.data service, with the batches and the order of a single process.

tf.data service returns the elements of several workers in no fixed order. Here every dispatcher has one worker, and the
steps are dealt out among the dispatchers, so the order is known: the first computes the first batch, the second the
second, and so on. Each batch carries its step, and one that is not the expected one ends the run.
"""

from typing import Any

import tensorflow as tf


def distribute(batches, start_step, service):
    """A dataset of batches that other machines compute.

    Args:
        batches: a function `(first, stride)` to a dataset of `(step, batch)` for the steps first, first + stride ...
        start_step: the first step of the dataset.
        service: the dispatchers, "grpc://host:5050,grpc://other:5050".

    Returns:
        A dataset of `(step, batch)`, in the order of the steps.

    Raises:
        ValueError: an address does not start with grpc://.
    """
    addresses = [address.strip() for address in service.split(",")]
    for address in addresses:
        if not address.startswith("grpc://"):
            raise ValueError(f"A dispatcher is `grpc://host:port`, several have commas between. Received: {service!r}")
    parts = [
        batches(start_step + i, len(addresses)).apply(
            tf.data.experimental.service.distribute(tf.data.experimental.service.ShardingPolicy.OFF, address)
        )
        for i, address in enumerate(addresses)
    ]
    parts_in_turn = tf.data.Dataset.range(len(parts)).repeat()
    steps = tf.data.Dataset.choose_from_datasets(parts, parts_in_turn).enumerate(start_step)

    def checked(expected, numbered_batch):
        step, batch = numbered_batch
        right = tf.debugging.Assert(
            step == expected,
            [
                "A dispatcher must have exactly one worker. The step that came, and the one that was due:",
                step,
                expected,
            ],
        )
        with tf.control_dependencies([right]):
            return tf.nest.map_structure(tf.identity, (step, batch))

    return steps.map(checked)


def serve(dispatcher_port: int, worker_port: int, host: str = "localhost") -> tuple[Any, Any]:
    """Starts a dispatcher and its one worker in this process.

    Args:
        dispatcher_port: for the training processes; 0 for any free port.
        worker_port: where batches are fetched; 0 for any free port.
        host: the name by which training processes reach this machine.

    Returns:
        `(dispatcher, worker)`; `dispatcher.target` is the address, and both stop when nothing refers to them.
    """
    service = tf.data.experimental.service
    dispatcher = service.DispatchServer(service.DispatcherConfig(port=dispatcher_port))
    # The address under which training processes look for the worker; the default is "localhost".
    worker = service.WorkerServer(
        service.WorkerConfig(
            dispatcher_address=dispatcher.target.split("://")[1],
            worker_address=f"{host}:{worker_port}" if worker_port else None,
            port=worker_port,
        )
    )
    return dispatcher, worker
