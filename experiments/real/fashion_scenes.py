"""Segments scenes of Fashion-MNIST's clothes on photographs with a frozen DINOv2 ViT-S/14.

    python experiments/real/fashion_scenes.py --model=dinov2_small --output=fashion_scenes
    python experiments/real/fashion_scenes.py --output=short --methods=scratch --steps=100

`extract_dinov2.py` writes the model, and Debian's package dataset-fashion-mnist has the clothes. A
scene has five items at random places and sizes, which may cover each other, on a window of a
photograph of scikit-learn or matplotlib. The class of a pixel is that of the item whose pixel it
shows; dark pixels of an item show what is behind it. Training scenes have Fashion-MNIST's training
images and the left parts of the photographs, test scenes its test images and the right parts. Every
method gets the same scenes, numbers of steps and batches; "scratch" is a small Vision Transformer
with random weights. The command adds the missing methods to scores.json in the output folder. Other
scenes, steps, batches or weights need another folder.
"""

import dinov2
import fashion_data
import numpy as np
from absl import app, flags, logging
from output_folder import open_output

from keras_vit import files, training
from keras_vit.configs import segment

FLAGS = flags.FLAGS
NAMES = (
    *("background", "t-shirt", "trouser", "pullover", "dress", "coat"),
    *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
)
SIDE = 168  # height and width of a scene in pixels, 12 patches of DINOv2
ITEMS = 5
SIZES = (36, 84)  # smallest and largest side of an item in pixels
DARK = 24  # pixels below this value do not belong to an item
DPT = {"level_channels": (48, 96, 192, 384), "features": 64}  # as in Depth Anything's small model
SCRATCH = {"patch_size": 8, "num_layers": 4, "hidden_size": 128, "mlp_dim": 256, "num_heads": 4}
METHODS = ("linear", "dpt", "scratch")
RATES = {"linear": 1e-2, "dpt": 1e-3, "scratch": 2e-3}


def load_photographs():
    """Returns three photographs, uint8 `(H, W, 3)`."""
    from matplotlib import cbook
    from PIL import Image
    from sklearn.datasets import load_sample_images

    with cbook.get_sample_data("grace_hopper.jpg") as file:
        portrait = np.asarray(Image.open(file).convert("RGB"))
    return [*load_sample_images().images, portrait]


def background(photographs, split, random):
    """Returns a window of the part of a photograph that belongs to a split."""
    photograph = photographs[random.integers(len(photographs))]
    middle = photograph.shape[1] // 2
    part = photograph[:, :middle] if split == "train" else photograph[:, middle:]
    y, x = (random.integers(length - SIDE + 1) for length in part.shape[:2])
    return part[y : y + SIDE, x : x + SIDE].copy()


def scene(photographs, images, labels, split, random):
    """Returns a scene, uint8 `(SIDE, SIDE, 3)`, and its mask, uint8 `(SIDE, SIDE)`."""
    from PIL import Image

    picture = background(photographs, split, random)
    mask = np.zeros((SIDE, SIDE), "uint8")
    for index in random.integers(len(images), size=ITEMS):
        size = random.integers(SIZES[0], SIZES[1] + 1)
        item = Image.fromarray(images[index]).resize((size, size), Image.Resampling.BILINEAR)
        item = np.asarray(item)
        y, x = random.integers(SIDE - size + 1, size=2)
        window = slice(y, y + size), slice(x, x + size)
        is_item = item >= DARK
        picture[window][is_item] = item[is_item][:, None]
        mask[window][is_item] = 1 + labels[index]
    return picture, mask


def write_scenes(folder, data, numbers):
    """Writes a folder that `--config=segment:MODEL,FOLDER` reads, unless it exists."""
    from PIL import Image

    if (folder / "classes.txt").exists():
        return
    photographs = load_photographs()
    for split, idx_split in (("train", "train"), ("test", "t10k")):
        images, labels = fashion_data.read(data, idx_split)
        random = np.random.default_rng([0, len(images)])
        for kind in ("images", "masks"):
            (folder / split / kind).mkdir(parents=True, exist_ok=True)
        for number in range(numbers[split]):
            picture, mask = scene(photographs, images, labels, split, random)
            for kind, pixels in (("images", picture), ("masks", mask)):
                Image.fromarray(pixels).save(folder / split / kind / f"{number:04}.png")
    (folder / "classes.txt").write_text("\n".join(NAMES) + "\n")


def config_of(method, folder, model, steps, batch_size):
    """Returns the config of a method, a name in `METHODS`."""
    head = "linear" if method == "scratch" else method
    name = "ViT-S/16" if method == "scratch" else "DINOv2-S/14"
    config = segment.get_config(f"{name},{folder},head={head},resolution={SIDE}")
    if method == "scratch":
        config.architecture = "VisionTransformer"
        config.model = {**SCRATCH, "head": "linear", "frozen": False}
        config.weights = ""
    else:
        config.weights = model
        config.model.update(DPT if method == "dpt" else {})
    config.data.train_crop = "resize"
    config.data.shift = 14
    config.batch_size = batch_size
    config.total_steps = steps
    config.eval_every_steps = 0
    config.schedule.base = RATES[method]
    config.schedule.warmup_steps = steps // 10
    return config


def main(_):
    logging.set_verbosity(logging.ERROR)
    if unknown := set(FLAGS.methods) - set(METHODS):
        raise ValueError(f"--methods must be among {METHODS}. Received: {sorted(unknown)}")
    if set(FLAGS.methods) - {"scratch"}:
        dinov2.check_model(FLAGS.model)
    output = open_output(FLAGS, "model", "steps", "batch_size", "train", "test")
    write_scenes(output / "scenes", FLAGS.data, {"train": FLAGS.train, "test": FLAGS.test})
    scores = files.read_json(output / "scores.json") or {}
    for method in FLAGS.methods:
        if method in scores:
            continue
        folder = (output / "scenes").resolve()
        config = config_of(method, folder, FLAGS.model, FLAGS.steps, FLAGS.batch_size)
        result = training.run(config, training.Workdir(output / method, config.to_dict()))
        scores[method] = {"steps": FLAGS.steps} | {
            name: round(value, 4)
            for name, value in result.metrics.items()
            if name.startswith(("train/seconds", "test/mean_iou", "test/pixel", "test/iou/"))
        }
        files.write_json(output / "scores.json", scores)
        print(f"{method}: {scores[method]}", flush=True)


if __name__ == "__main__":
    flags.DEFINE_string("model", "dinov2_small", "Folder that extract_dinov2.py wrote.")
    flags.DEFINE_string("data", fashion_data.FOLDER, "Folder of the four IDX files.")
    flags.DEFINE_string("output", "fashion_scenes", "Folder to write to, and to resume from.")
    flags.DEFINE_list("methods", list(METHODS), f"Methods to run, among {', '.join(METHODS)}.")
    flags.DEFINE_integer("steps", 250, "Number of training steps.", lower_bound=10)
    flags.DEFINE_integer("batch_size", 8, "Number of scenes per batch.", lower_bound=1)
    flags.DEFINE_integer("train", 1000, "Number of training scenes.", lower_bound=1)
    flags.DEFINE_integer("test", 100, "Number of test scenes.", lower_bound=1)
    app.run(main)
