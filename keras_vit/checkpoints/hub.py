"""Downloads models from the Hugging Face Hub by repository name."""

import contextlib
import json
import os
import re

from keras_vit.checkpoints.downloading import MIRROR, in_mirror
from keras_vit.terminal import first_line

URL = "https://huggingface.co/"
_CONFIGS = (
    "config.json",
    "preprocessor_config.json",
    "processor_config.json",
    "open_clip_config.json",
)
_INDEX = "model.safetensors.index.json"
WEIGHTS = ("model.safetensors", _INDEX, "open_clip_model.safetensors")


def is_repository(source):
    """Returns whether a string looks like a repository name, such as "facebook/dinov2-base"."""
    match = re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]*\w", source)
    return match is not None and not source.endswith((".npz", ".safetensors"))


def fetch(repository):
    """Returns the local folder of a repository.

    The folder is in the mirror (`huggingface.co/<repository>`) or in the Hub's cache. If the mirror
    does not have the repository, downloads the weights and configs that are not cached.
    """
    mirrored = in_mirror(URL + repository)
    if mirrored is not None and mirrored.is_dir():
        return str(mirrored)
    try:
        from huggingface_hub import errors
    except ImportError as error:
        raise ValueError(
            "No such file or folder exists. To download a model from the Hugging Face Hub, install "
            f'huggingface_hub: pip install "keras_vit[hub]". Received: {repository}'
        ) from error
    try:
        weights = _download_weights(repository)
    except errors.GatedRepoError as error:
        raise ValueError(
            f"The model is gated. Accept its license at {URL}{repository}, then set HF_TOKEN to a "
            f"token of your account or run `hf auth login`. Received: {repository}"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise ValueError(
            f"No such file or folder exists, and {URL}{repository} does not exist or is private. "
            f"For a private model, set HF_TOKEN to a token with access. Received: {repository}"
        ) from error
    except OSError as error:  # no connection, or an answer of the Hub
        place = mirrored or f"{MIRROR}/huggingface.co/{repository}"
        raise ConnectionError(
            "No such local folder exists, and the model could not be downloaded "
            f"({first_line(error)}). Without network access, copy the model's model.safetensors "
            f"and .json files to {place}, or copy them to another folder and pass the path of this "
            f"folder. Received: {repository}"
        ) from error
    if weights is None:
        raise ValueError(
            "The repository has no model.safetensors; pickled PyTorch files are not supported. "
            f"Received: {repository}"
        )
    return os.path.dirname(weights)


def _download_weights(repository):
    """Downloads the weights of a repository and their configs.

    Returns the path of the weights, or None if the repository has no supported file.
    """
    from huggingface_hub import errors

    unreachable = None
    for name in WEIGHTS:
        try:
            weights = _download(repository, name)
        except errors.LocalEntryNotFoundError as error:
            # Offline, and not in the cache, which may have one of the other names.
            unreachable = error
            continue
        if weights is not None:
            break
    else:
        if unreachable is not None:
            raise unreachable
        return None
    for name in _CONFIGS:
        # Offline, a config that is not in the cache is omitted.
        with contextlib.suppress(errors.LocalEntryNotFoundError):
            _download(repository, name)
    return weights


def fetch_file(repository, name):
    """Returns the local path of one file of a repository, or None if it has no such file."""
    mirrored = in_mirror(URL + repository)
    if mirrored is not None and mirrored.is_dir():
        path = mirrored / name
        return str(path) if path.exists() else None
    try:
        return _download(repository, name)
    except ImportError:
        return None
    except OSError as error:  # offline, gated or missing
        raise ConnectionError(
            f"The file {name} of the repository could not be downloaded ({first_line(error)}). "
            f"Received: {repository}"
        ) from error


def _download(repository, name):
    """Downloads a file and, for an index, its shards.

    Returns the local path, or None if the file does not exist.
    """
    import huggingface_hub
    from huggingface_hub import errors

    try:
        path = huggingface_hub.hf_hub_download(repository, name)
    except errors.LocalEntryNotFoundError:  # offline, and not in the cache
        raise
    except errors.EntryNotFoundError:
        return None
    if name == _INDEX:
        for shard in shards(path):
            huggingface_hub.hf_hub_download(repository, os.path.basename(shard))
    return path


def shards(index):
    """Returns the paths of the files that an index lists, all in the folder of the index."""
    try:
        with open(index, encoding="utf-8") as file:
            names = sorted(set(json.load(file)["weight_map"].values()))
        if any(os.path.basename(name) != name for name in names):
            raise ValueError("it lists files in other folders")
    except Exception as error:  # invalid JSON, or JSON of another form
        raise ValueError(
            f"The index of the weight files cannot be read ({error}). Received: {index}"
        ) from error
    return [os.path.join(os.path.dirname(index), name) for name in names]
