"""The same batches from another process, through tf.data service on this machine."""

import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from keras_vit import data

SERVER = """
from keras_vit import data
services = [data.serve(0, 0) for _ in range(2)]
print(*(dispatcher.target for dispatcher, _ in services), flush=True)
input()
"""


@pytest.fixture
def services():
    """Two dispatchers in another process, each with its worker, and their addresses."""
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    yield process.stdout.readline().split()
    process.kill()
    process.communicate()


def test_one_and_two_services_give_the_batches_of_one_process_in_order(services, photos):
    source = data.folder(photos)
    some = {"batch_size": 4, "seed": 3, "image_size": 8, "start_step": 2, "mixup_alpha": 0.3}
    expected = list(data.train_batches(source, **some).take(9))
    for addresses in (services[0], ",".join(services)):
        actual = list(data.train_batches(source, service=addresses, **some).take(9))
        for batch, other in zip(expected, actual, strict=True):
            for part, other_part in zip(batch, other):
                np.testing.assert_array_equal(part, other_part)


def test_a_dispatcher_with_two_workers_ends_the_run_instead_of_repeating_batches(photos):
    dispatcher, worker = data.serve(0, 0)
    service = tf.data.experimental.service
    second = service.WorkerServer(service.WorkerConfig(dispatcher_address=dispatcher.target.split("://")[1]))
    batches = data.train_batches(data.folder(photos), batch_size=4, seed=3, image_size=8, service=dispatcher.target)
    with pytest.raises(tf.errors.InvalidArgumentError, match="exactly one worker"):
        for _ in batches.take(100_000):  # until the second worker is known to the dispatcher, soon
            pass
    del worker, second
