"""The processes that train together."""

import json
import os


def workers():
    """`(count, index)` of the processes that train together, from the environment variable TF_CONFIG.

    Index 0 is the chief; None without a TF_CONFIG, a `ValueError` if it is not what TensorFlow asks for.
    """
    text = os.environ.get("TF_CONFIG", "")
    if not text:
        return None
    try:
        content = json.loads(text)
        cluster, task = content["cluster"], content["task"]
        counts = {kind: len(cluster.get(kind, ())) for kind in ("chief", "worker")}
        kind, index = task["type"], int(task["index"])
        valid = set(cluster) <= set(counts) and 0 <= index < counts[kind]
    except (KeyError, TypeError, ValueError, AttributeError):
        valid = False
    if not valid:
        raise ValueError(
            'TF_CONFIG must be like {"cluster": {"worker": ["host:port", "other:port"]}, "task": {"type": "worker", '
            f'"index": 0}}}}, with nothing but workers and perhaps a chief. Received: TF_CONFIG={text}'
        )
    return sum(counts.values()), index + (counts["chief"] if kind == "worker" else 0)


def coordinator_address():
    """The address "host:port" of the first process of TF_CONFIG, the chief's."""
    cluster = json.loads(os.environ["TF_CONFIG"])["cluster"]
    return [*cluster.get("chief", ()), *cluster.get("worker", ())][0]


def hosts_and_index():
    """`(count, index)` of the processes that train together; `(1, 0)` without a TF_CONFIG."""
    return workers() or (1, 0)


def is_chief() -> bool:
    """Whether this process writes the files of a run; of several workers the first one does."""
    return hosts_and_index()[1] == 0
