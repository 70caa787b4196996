"""Models on the Hugging Face hub, by repository name."""

import contextlib
import json
import os
import pathlib
import re

from keras_vit.checkpoints.downloading import MIRROR
from keras_vit.terminal import first_line

URL = "https://huggingface.co/"
_CONFIGS = ("config.json", "preprocessor_config.json")
_SECONDS = 5  # timeout of a request to the hub
_INDEX = "model.safetensors.index.json"
_WEIGHTS = ("model.safetensors", _INDEX, "open_clip_model.safetensors")


def is_repository(source):
    """Returns whether a string has the form of a repository name, such as "facebook/dinov2-base"."""
    return re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]*\w", source) is not None and not source.endswith(".npz")


def fetch(repository):
    """Returns the local folder of a repository, in the mirror (`huggingface.co/<repository>`) or in the hub's cache."""
    folder = os.environ.get(MIRROR)
    mirrored = pathlib.Path(folder).expanduser() / "huggingface.co" / repository if folder else None
    if mirrored is not None and mirrored.is_dir():
        return str(mirrored)
    try:
        from huggingface_hub import errors
    except ImportError as error:
        raise ValueError(
            "There is no such file or folder. Models on the Hugging Face hub need huggingface_hub: "
            f'pip install "keras_vit[hub]". Received: {repository}'
        ) from error
    try:
        weights = next((path for name in _WEIGHTS if (path := _download(repository, name))), None)
        for name in _CONFIGS if weights else ():
            with contextlib.suppress(errors.LocalEntryNotFoundError):  # no network, and not in the cache
                _download(repository, name)
    except errors.GatedRepoError as error:
        raise ValueError(
            f"The model is gated: accept its license at {URL}{repository} and set HF_TOKEN to a token of that account, "
            f"or log in with `hf auth login`. Received: {repository}"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise ValueError(
            f"There is no such file or folder, and no such model at {URL}{repository}, or it is private and HF_TOKEN "
            f"gives no access to it. Received: {repository}"
        ) from error
    except (errors.HfHubHTTPError, errors.LocalEntryNotFoundError, OSError) as error:
        place = mirrored or f"{MIRROR}/huggingface.co/{repository}"
        raise ConnectionError(
            f"There is no such local folder, and it could not be downloaded ({first_line(error)}). Without a network, "
            f"put its model.safetensors and config.json into {place}, or pass their folder. Received: {repository}"
        ) from error
    if weights is None:
        raise ValueError(
            f"The repository has no model.safetensors, and PyTorch's pickled files are not read. Received: {repository}"
        )
    return os.path.dirname(weights)


def _download(repository, name):
    """Returns the local path of a file in a repository, or None if there is no such file; also downloads its shards."""
    import huggingface_hub
    from huggingface_hub import errors

    offline = None
    try:
        try:  # without a network, a download would retry for half a minute and log warnings
            huggingface_hub.get_hf_file_metadata(huggingface_hub.hf_hub_url(repository, name), timeout=_SECONDS)
        except (errors.EntryNotFoundError, errors.RepositoryNotFoundError):
            raise
        except Exception as error:  # the exceptions of several HTTP libraries
            offline = error
        path = huggingface_hub.hf_hub_download(repository, name, local_files_only=offline is not None)
    except errors.LocalEntryNotFoundError as error:  # no network, and not in the cache
        raise errors.LocalEntryNotFoundError(first_line(offline or error)) from error
    except errors.EntryNotFoundError:
        return None
    if name == _INDEX:
        for shard in shards(path):
            huggingface_hub.hf_hub_download(repository, os.path.basename(shard))
    return path


def shards(index):
    """Returns the paths of the .safetensors files in an index; they are in its folder."""
    try:
        with open(index, encoding="utf-8") as file:
            names = sorted(set(json.load(file)["weight_map"].values()))
        if any(os.path.basename(name) != name for name in names):
            raise ValueError("it lists files in other folders")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"The index of the weights cannot be read ({error}). Received: {index}") from error
    return [os.path.join(os.path.dirname(index), name) for name in names]
