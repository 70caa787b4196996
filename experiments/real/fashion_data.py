"""Reads and writes the files of Fashion-MNIST, and enlarges its images for a DINOv2 ViT-S/14."""

import gzip
import hashlib
from pathlib import Path

import numpy as np

FOLDER = "/usr/share/datasets/fashion-mnist"
CLASSES = 10
SIZE = 112  # height and width of the images for DINOv2 in pixels: four times the dataset's 28
SHA256 = {
    "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}


def read(folder, split):
    """Reads and verifies the split "train" or "t10k"; returns uint8 images `(N, 28, 28)` and int64
    classes `(N,)`."""
    images = _read_bytes(folder, f"{split}-images-idx3-ubyte")[16:]  # after the header
    labels = _read_bytes(folder, f"{split}-labels-idx1-ubyte")[8:]
    images = np.frombuffer(images, np.uint8).reshape(-1, 28, 28)
    return images, np.frombuffer(labels, np.uint8).astype("int64")


def _read_bytes(folder, name):
    candidates = (Path(folder, name), Path(folder, f"{name}.gz"))
    path = next((candidate for candidate in candidates if candidate.is_file()), None)
    if path is None:
        raise ValueError(
            "Install Debian's package dataset-fashion-mnist, or pass the folder of the four IDX "
            f"files as --data. Received: --data={folder}, which has no {name}"
        )
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    if digest != SHA256[name]:
        raise ValueError(
            f"{name} must have the SHA-256 {SHA256[name]}. Received: {digest} in {path}"
        )
    return content


def write(folder, split, images, labels):
    """Writes the two IDX files of a split; the arguments are as in `read`."""
    folder.mkdir(parents=True, exist_ok=True)
    for kind, values in (("images", images), ("labels", labels.astype("uint8"))):
        # Two zero bytes, 8 for uint8, the number of axes, and the shape as big-endian int32.
        header = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">i4").tobytes()
        (folder / f"{split}-{kind}-idx{values.ndim}-ubyte").write_bytes(header + values.tobytes())


def enlarged(images):
    """Resizes images `(N, 28, 28)` to uint8 `(N, 112, 112, 3)` with three equal channels."""
    from PIL import Image

    size = SIZE, SIZE
    pictures = [Image.fromarray(image).resize(size, Image.Resampling.BILINEAR) for image in images]
    return np.repeat(np.stack([np.asarray(picture) for picture in pictures])[..., None], 3, axis=-1)
