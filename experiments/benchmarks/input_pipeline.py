"""Compares the speeds of the input pipeline, its individual stages, an upper limit and plain
pipelines.

    python experiments/benchmarks/input_pipeline.py

The upper limit decodes, crops and resizes JPEGs in memory in a parallel map, with the same files
and crops as the whole pipeline. The limit and the stages return their results in groups of one
batch, so that Python's overhead is the same. The plain pipelines decode whole images, then crop and
flip with tf.image or Keras layers. Other load on the machine changes the CPU time per image less
than the images per second.

`--order` only compares two ways to read records: in order, as for remote files, and by index.
"""

import functools
import tempfile
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags
from workers import in_turns, peak_bytes

from keras_vit import data
from keras_vit.data import examples, images, order, transforms

flags.DEFINE_integer("rounds", 5, "Measurements of each pipeline.", lower_bound=1)
flags.DEFINE_integer("images", 640, "Images per measurement.", lower_bound=64)
flags.DEFINE_bool("order", False, "Only compare reading records in order and by index.")
FLAGS = flags.FLAGS
FILES = 128
REPEATS = 200  # of every file, so that the list has a realistic length
BATCH = 32
SIZE = (224, 224)
AUTO = tf.data.AUTOTUNE


def write_photos(folder):
    """Writes list.csv and 500x375 JPEGs of coarse colors and noise. Photographs have similar file
    sizes."""
    rng = np.random.default_rng(0)
    for i in range(FILES):
        coarse = rng.integers(0, 256, (12, 16, 3)).astype(np.float32)
        image = tf.image.resize(coarse, (375, 500), "bicubic") + rng.normal(0, 12, (375, 500, 3))
        path = folder / f"class{i % 4}" / f"{i:03}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = tf.cast(tf.clip_by_value(image, 0, 255), tf.uint8)
        path.write_bytes(tf.io.encode_jpeg(pixels, quality=90).numpy())
    names = [
        f"{path.relative_to(folder)},{path.parent.name}" for path in sorted(folder.rglob("*.jpg"))
    ]
    (folder / "list.csv").write_text("\n".join(names * REPEATS))


def make_pipelines(folder):
    """Returns `{name: (function, images per element)}`. Each function returns an endless dataset or
    iterator."""
    source = data.file_list(folder / "list.csv")

    def whole(**options):
        return lambda: data.train_batches(
            source, batch_size=BATCH, seed=0, image_size=SIZE[0], **options
        )

    pipelines = {
        **make_stages(folder, source),
        "whole": whole(),
        "whole, medium1 without its mixup": whole(randaugment_layers=2, randaugment_magnitude=15),
        "whole, medium1": whole(augreg="medium1"),
        "plain, tf.image": lambda: plain_tf(folder),
        "plain, Keras layers": lambda: plain_keras(folder),
    }
    return {name: (function, BATCH) for name, function in pipelines.items()}


def make_stages(folder, source):
    """Returns functions that make the upper limit and the stages of the whole pipeline."""
    jpegs = tf.constant([path.read_bytes() for path in sorted(folder.rglob("*.jpg"))])
    # The files and crops of the first examples in the whole pipeline.
    positions = tf.range(FLAGS.images + 128, dtype=tf.int64)
    indices = order.index_at(positions, source.num_examples, 0)[1]
    windows = tf.stack([window_of([375, 500], i) for i in indices])
    numbers = tf.data.Dataset.range(len(windows)).repeat()

    def limit(i):
        jpeg = jpegs[indices[i] % FILES]
        return tf.image.resize(tf.io.decode_and_crop_jpeg(jpeg, windows[i], channels=3), SIZE)

    def decode(i):
        return images.decode(jpegs[i % FILES], window=lambda size: window_of(size, i))

    stages = {
        "limit": limit,
        "stage: order": lambda i: order.index_at(i, source.num_examples, 0)[1],
        "stage: read": lambda i: source.read(i % source.num_examples)["image"],
        "stage: decode and crop": decode,
    }
    return {name: functools.partial(grouped, numbers, stage) for name, stage in stages.items()}


def window_of(size, i):
    """Returns the random crop of an image of this size in example `i`."""
    seed = tf.stack([tf.constant(0, tf.int64), i])
    return transforms.inception_window(size, seed + examples.CROP)


def grouped(numbers, stage):
    return numbers.map(stage, num_parallel_calls=AUTO).window(BATCH)


def plain_tf(folder):
    """Returns a dataset that decodes whole images, then crops and flips them with tf.image."""

    def example(path):
        image = tf.io.decode_jpeg(tf.io.read_file(path), channels=3)
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            tf.shape(image),
            tf.zeros([1, 0, 4]),
            area_range=(0.05, 1.0),
            min_object_covered=0.0,
            use_image_if_no_bounding_boxes=True,
        )
        crop = tf.ensure_shape(tf.slice(image, begin, size), (None, None, 3))
        return tf.image.random_flip_left_right(tf.image.resize(crop, SIZE)) / 127.5 - 1.0

    paths = tf.data.Dataset.list_files(str(folder / "*" / "*.jpg")).repeat()
    return paths.map(example, num_parallel_calls=AUTO).batch(BATCH).prefetch(AUTO)


def plain_keras(folder):
    """Returns a dataset that decodes whole images, then crops and flips them with Keras layers."""
    augment = keras.Sequential(
        [
            keras.layers.RandomCrop(*SIZE),
            keras.layers.RandomFlip("horizontal"),
            keras.layers.Rescaling(1 / 127.5, -1.0),
        ]
    )
    dataset = keras.utils.image_dataset_from_directory(
        folder, image_size=(256, 256), batch_size=BATCH, label_mode="categorical", verbose=False
    )

    def augmented(batch, labels):
        return augment(batch, training=True), labels

    return dataset.repeat().map(augmented, num_parallel_calls=AUTO).prefetch(AUTO)


def write_records(folder):
    """Writes 32 files with 1,000 images of 8x8 pixels each; returns pipelines that read them by
    index and in order."""
    rng = np.random.default_rng(0)
    for file in range(32):
        with tf.io.TFRecordWriter(f"{folder}/records-{file:02}") as writer:
            for label in range(1000):
                writer.write(record(rng.bytes(192), label))

    def batches(pattern):
        source = data.tfrecords(
            pattern,
            [str(label) for label in range(1000)],
            image_key="image",
            label_key="label",
            image_dtype="uint8",
            image_shape=(8, 8, 3),
        )
        return lambda: data.train_batches(
            source,
            batch_size=256,
            seed=0,
            image_size=8,
            train_crop="resize",
            eval_crop="resize",
            flip="off",
        )

    # A path with a scheme, such as file://, is read like a remote file.
    return {
        "records by index": (batches(f"{folder}/records-*"), 256),
        "records in order": (batches(f"file://{folder}/records-*"), 256),
    }


def record(image, label):
    """Returns a serialized `tf.train.Example`."""
    feature = {
        "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image])),
        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
    }
    return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()


def measure(make, images_per_element):
    """Returns images per second and microseconds of CPU time per image."""
    iterator = iter(make())
    for _ in range(max(1, 128 // images_per_element)):
        next(iterator)
    count = FLAGS.images // images_per_element
    start = time.perf_counter()
    processor_start = time.process_time()
    for _ in range(count):
        next(iterator)
    seconds = time.perf_counter() - start
    processor_seconds = time.process_time() - processor_start
    measured = count * images_per_element
    return measured / seconds, processor_seconds / measured * 1e6


def ratios_of(one, other):
    """Returns the speedup of `one` over `other`, by images per second and by CPU time."""
    return one[0] / other[0], other[1] / one[1]


def medians_of(pipelines):
    """Returns `{name: median of measure over the rounds}`."""
    functions = {name: functools.partial(measure, *args) for name, args in pipelines.items()}
    measured = in_turns(functions, FLAGS.rounds)
    return {name: np.median(values, axis=0) for name, values in measured.items()}


def compare_orders(folder):
    """Prints the speeds of reading records by index and in order, and their ratio."""
    medians = medians_of(write_records(folder))
    for name, (rate, work) in medians.items():
        print(f"{name:35} {rate:8.0f} images/s {work:6.0f} us")
    print("in order / by index: {:.2f} ({:.2f})".format(*ratios_of(*reversed(medians.values()))))


def compare_pipelines(pipelines):
    medians = medians_of(pipelines)

    def ratios(name, other):
        return "{:.2f} ({:.2f})".format(*ratios_of(medians[name], medians[other]))

    print("ratios of images per second (in parentheses: ratios of images per second of CPU time)")
    for name, (rate, work) in medians.items():
        speeds = f"{name:35} {rate:8.0f} images/s {work:6.0f} us"
        print(f"{speeds}  {ratios(name, 'limit')} of the limit")
    for other in ("plain, tf.image", "plain, Keras layers"):
        print(f"whole / {other}: {ratios('whole', other)}")
    for name in ("whole, medium1 without its mixup", "whole, medium1"):
        print(f"{name.removeprefix('whole, ')} / whole: {ratios(name, 'whole')}")


def main(_):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if FLAGS.order:
            compare_orders(folder)
            return
        write_photos(folder)
        compare_pipelines(make_pipelines(folder))
        print(f"peak resident memory: {peak_bytes() / 2**20:.0f} MiB")


if __name__ == "__main__":
    app.run(main)
