"""The processes of a multi-host run, as specified by the environment variable TF_CONFIG."""

import json
import os


def workers():
    """Returns `(number of processes, index of this process, address of process 0)`; None without
    TF_CONFIG."""
    text = os.environ.get("TF_CONFIG", "")
    if not text:
        return None
    try:
        content = json.loads(text)
        cluster = content["cluster"]
        task = content["task"]
        addresses = [*cluster.get("chief", ()), *cluster.get("worker", ())]
        address = cluster[task["type"]][int(task["index"])]
        are_lists = all(isinstance(part, list) for part in cluster.values())
        are_different = len(set(addresses)) == len(addresses)
        is_known = set(cluster) <= {"chief", "worker"} and int(task["index"]) >= 0
        if is_known and are_lists and are_different:
            return len(addresses), addresses.index(address), addresses[0]
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        pass
    raise ValueError(
        'TF_CONFIG must be like {"cluster": {"worker": ["host:port", "other:port"]}, "task": '
        '{"type": "worker", "index": 0}}, with workers and optionally a chief. '
        f"Received: TF_CONFIG={text}"
    )


def is_chief() -> bool:
    """Returns whether this is process 0, which writes the results of a run; True without
    TF_CONFIG."""
    return (workers() or (1, 0))[1] == 0
