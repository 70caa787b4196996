"""The processes that train together, as the environment variable TF_CONFIG names them."""

import json
import os


def workers():
    """`(count, index, address of the first)` of the processes that train together; None without a TF_CONFIG."""
    text = os.environ.get("TF_CONFIG", "")
    if not text:
        return None
    try:
        content = json.loads(text)
        cluster, task = content["cluster"], content["task"]
        addresses = [*cluster.get("chief", ()), *cluster.get("worker", ())]
        address = cluster[task["type"]][int(task["index"])]
        if set(cluster) <= {"chief", "worker"} and int(task["index"]) >= 0:
            return len(addresses), addresses.index(address), addresses[0]
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        pass
    raise ValueError(
        'TF_CONFIG must be like {"cluster": {"worker": ["host:port", "other:port"]}, "task": {"type": "worker", '
        f'"index": 0}}}}, with nothing but workers and perhaps a chief. Received: TF_CONFIG={text}'
    )


def is_chief() -> bool:
    """Whether this process writes the files of a run; of several workers the first one does."""
    return (workers() or (1, 0))[1] == 0
