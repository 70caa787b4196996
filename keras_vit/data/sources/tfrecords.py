"""TFRecords of `tf.train.Example`, read by index: one pass over the lengths finds where each record begins."""

import functools
import hashlib
import json
import logging
import os
import pathlib
import struct
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import tensorflow as tf

from keras_vit import files as file_system
from keras_vit.data.sources.shards import Shards, count_records, open_tfrecords
from keras_vit.data.sources.source import Source, check_names, checksum_of, white_of

# A record is its length (uint64), a checksum of it (uint32), the data, and a checksum of the data (uint32).
_HEADER, _FRAME = 12, 16
_FILES_AT_A_TIME = 16  # that are counted

log = logging.getLogger(__name__)


def tfrecords(
    pattern: str,
    class_names: Sequence[str],
    image_key: str = "image/encoded",
    label_key: str = "image/class/label",
    label_offset: int = 0,
    num_examples: int = 0,
    image_dtype: str = "",
    image_shape: Sequence[int] = (),
    max_value: float = 0,
) -> Source:
    """A source of TFRecords of `tf.train.Example`, uncompressed.

    Local files are indexed by one pass over the lengths of the records, so that any example can be read at once.
    Remote files are read in order, because that pass would fetch them whole: it happens once, to count their records,
    and the counts are kept in Keras' cache. What follows a broken record in a remote file cannot be found, and counts
    as bad too where `num_examples` tells that it is there.

    Args:
        pattern: the files, `train-*-of-01024`; local or `gs://`.
        class_names: a name for each class.
        image_key: the feature with the image, bytes; or several, "B02,B03,B08", whose channels follow one another.
        label_key: the feature with the integer label.
        label_offset: the label of the first class; ImageNet's files count from 1.
        num_examples: how many examples the files must have; 0 for as many as there are.
        image_dtype: "" for image files; or the dtype of values, "uint16", which are the tensors of
            `tf.io.serialize_tensor`, or with `image_shape` bare bytes in its order, little-endian.
        image_shape: `(H, W, C)` of bare values, or `(H, W)`; of each feature, if there are several.
        max_value: the value of white of values that are not files; 0 for 255 of uint8 and 65,535 of uint16.

    Raises:
        ValueError: no file matches, a file is not TFRecords, an example has no such features, or a label of the first
            or the last record of a file is out of range. (The labels in between are found when they are read.)
    """
    files = sorted(tf.io.gfile.glob(str(pattern)))
    if not files:
        raise ValueError(f"No file matches. Received: pattern={str(pattern)!r}")
    others = [file for file in files if "://" not in file and not os.path.isfile(file)]
    if others:
        raise ValueError(
            f"What matches must be files, and {others[0]!r} is not one. Received: pattern={str(pattern)!r}"
        )
    class_names = check_names(class_names)
    image_keys = [key.strip() for key in image_key.split(",")]
    image = _image_reader(image_keys, image_dtype, tuple(image_shape))
    rest = {"class_names": class_names, "max_value": white_of(image_dtype or "uint8", max_value)}
    rest["checksum"] = functools.partial(checksum_of, files)
    features = {key: tf.io.FixedLenFeature([], tf.string) for key in image_keys}
    features[label_key] = tf.io.FixedLenFeature([], tf.int64)

    def parse(record):
        example = tf.io.parse_single_example(record, features)
        return {"image": image(example), "label": example[label_key] - label_offset}

    if "://" in files[0]:
        shards = Shards(_counts(files, num_examples), open_tfrecords(files), parse)
        return Source(None, shards.num_examples, shards=shards, name_of=shards.namer(files), **rest)
    index = RecordIndex(files)
    for first, last in index.ends:
        for number in (first, last):
            try:
                label = parse(index.read(tf.constant(number)))["label"]
            except tf.errors.DataLossError:
                continue  # a bad example, which is counted when it is read
            except tf.errors.OpError as error:
                raise ValueError(
                    f"Examples must have the features {image_key!r} (bytes) and {label_key!r} (integer). "
                    f"Received: {index.name_of(number)}, {error.message}"
                ) from None
            if not 0 <= label < len(class_names):
                raise ValueError(
                    f"Labels less `label_offset` must be in 0 to {len(class_names) - 1}. "
                    f"Received: {label + label_offset} in {index.name_of(number)}, label_offset={label_offset}"
                )
    if num_examples not in (0, len(index)):
        raise ValueError(
            f"`num_examples` must be 0 or what the files hold, {len(index)}. Received: num_examples={num_examples}"
        )
    return Source(lambda i: parse(index.read(i)), len(index), name_of=index.name_of, **rest)


def _counts(files, num_examples):
    """How many records each of some remote files has, int64 `(files,)`; counted once for files of these sizes."""
    with ThreadPoolExecutor(_FILES_AT_A_TIME) as pool:
        sizes = list(pool.map(lambda file: tf.io.gfile.stat(file).length, files))
        digest = hashlib.sha256(json.dumps([files, sizes]).encode()).hexdigest()[:32]
        home = os.environ.get("KERAS_HOME") or "~/.keras"  # Keras' own rule, which it has no public function for
        cache = pathlib.Path(home).expanduser() / "keras_vit" / "tfrecords" / f"{digest}.json"
        counted = _cached(cache)
        if counted is None:
            log.warning("counting the records of %d files, which reads them once", len(files))
            counted = list(pool.map(count_records, files))
            _keep(cache, counted)
    counts = np.array([count for count, _ in counted], np.int64)
    broken = [place for place, (_, is_whole) in enumerate(counted) if not is_whole]
    for place in broken:
        log.warning("%s is broken after %d records; what follows cannot be found", files[place], counts[place])
    missing = num_examples - counts.sum() if num_examples else 0
    if missing < 0 or (missing and not broken):
        raise ValueError(
            f"`num_examples` must be 0 or what the files hold, {counts.sum()}. Received: num_examples={num_examples}"
        )
    if missing:
        counts[broken[0]] += missing  # they are bad examples, wherever they are missing
    if not counts.sum():
        raise ValueError(f"The files hold no records. Received: {files[:10]}")
    return counts


def _cached(path):
    """What `_keep` wrote, or None."""
    try:
        content = file_system.read_json(path)
        return None if content is None else [(int(count), bool(is_whole)) for count, is_whole in content]
    except (OSError, TypeError, ValueError):
        return None


def _keep(path, counted):
    try:
        file_system.make_dirs(path.parent)
        file_system.write_json(path, counted)
    except OSError as error:
        log.warning("the counts of records cannot be kept (%s), and the next run counts again", error)


def _image_reader(keys, dtype, shape):
    """From the features of an example to its image, as a `Source` reads it."""
    if not dtype:
        if shape:
            raise ValueError(f"`image_shape` is of values and needs `image_dtype`. Received: image_shape={shape}")
        return lambda example: example[keys[0]] if len(keys) == 1 else tf.stack([example[key] for key in keys])
    try:
        dtype = tf.as_dtype(dtype)
    except TypeError:
        dtype = tf.string
    if not (dtype.is_integer or dtype.is_floating) or (shape and (len(shape) not in (2, 3) or min(shape) < 1)):
        raise ValueError(
            "`image_dtype` must be '' or a dtype of numbers, `image_shape` () or (H, W, C). "
            f"Received: image_dtype={dtype.name!r}, image_shape={shape}"
        )

    def values(encoded):
        if shape:
            return tf.reshape(tf.io.decode_raw(encoded, dtype), shape if len(shape) == 3 else (*shape, 1))
        tensor = tf.io.parse_tensor(encoded, dtype)
        # A band of its own may be a matrix.
        sides = tf.concat([tf.shape(tensor), [1]], 0)[:3]
        return tf.ensure_shape(tf.reshape(tensor, sides), (None, None, None))

    return lambda example: tf.concat([values(example[key]) for key in keys], -1)


class RecordIndex:
    """Where each record of some local TFRecord files begins: 12 bytes of memory for each.

    Args:
        files: the names of the files.
        spans: for each file, the records `(skip, take)` that count, or `None` for all of them.
    """

    def __init__(self, files, spans=None):
        spans = spans or [(0, -1)] * len(files)
        with ThreadPoolExecutor(min(16, len(files))) as pool:
            offsets = list(pool.map(lambda item: _offsets(item[0], *item[1]), zip(files, spans)))
        counts = [len(of_file) for of_file in offsets]
        self.files = files
        self.ends = [(e - c, e - 1) for e, c in zip(np.cumsum(counts).tolist(), counts) if c]
        self._skips = [skip for skip, _ in spans]
        self._starts = np.cumsum([0, *counts[:-1]])
        self._offsets = tf.constant(np.concatenate(offsets))
        self._file_of = tf.constant(np.repeat(np.arange(len(files), dtype=np.int32), counts))
        self._files = tf.constant(files)
        if not len(self):
            raise ValueError(f"The files hold no records. Received: {files[:10]}")

    def __len__(self):
        return int(self._offsets.shape[0])

    def read(self, index):
        """The bytes of a record, a scalar string; a wrong checksum is a `tf.errors.DataLossError`."""
        dataset = tf.raw_ops.TFRecordDatasetV2(
            filenames=self._files[self._file_of[index]][None],
            compression_type="",
            buffer_size=64 * 1024,
            byte_offsets=self._offsets[index][None],
        )
        kind = {"output_types": [tf.string], "output_shapes": [[]]}
        dataset = tf.raw_ops.TakeDataset(input_dataset=dataset, count=1, **kind)
        return tf.raw_ops.DatasetToSingleElement(dataset=dataset, **kind)[0]

    def name_of(self, index):
        """The file and the number of the record in it, from 0."""
        file = int(self._file_of[index])
        return f"{self.files[file]} record {index - self._starts[file] + self._skips[file]}"


def _offsets(path, skip, take):
    """Where the records of one file begin, int64, reading nothing but their lengths."""
    offsets, headers, place, number = [], [], 0, 0
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise ValueError(f"A TFRecord file cannot be opened ({error}). Received: {path!r}") from None
    try:
        size = os.fstat(descriptor).st_size
        while place < size and (take < 0 or number < skip + take):
            header = os.pread(descriptor, _HEADER, place)
            headers.append(header.ljust(_HEADER, b"\0"))
            offsets.append(place)
            place += _FRAME + struct.unpack("<Q", headers[-1][:8])[0]
            number += 1
            if place > size:
                break
    finally:
        os.close(descriptor)
    offsets = np.array(offsets, np.int64)
    broken = np.flatnonzero(~_right_headers(headers))
    if len(broken) and broken[0] == 0 and headers[0][:2] in (b"\x1f\x8b", b"\x78\x9c"):
        raise ValueError(f"TFRecords must not be compressed; uncompress them, as with gunzip. Received: {path!r}")
    if len(broken) or (place > size and number):
        raise ValueError(
            "A TFRecord file must hold whole records to its end, or nobody knows where the next one begins. "
            f"Received: {path!r}, broken at byte {offsets[broken[0] if len(broken) else -1]}"
        )
    return offsets[skip:]


def _right_headers(headers):
    """Which headers of records, bytes of 12, have the checksum of their length: bool `(N,)`."""
    headers = np.frombuffer(b"".join(headers), np.uint8).reshape(-1, _HEADER)
    checksum = np.full(len(headers), 0xFFFFFFFF, np.uint32)
    for byte in headers[:, :8].T:
        checksum = _crc32c_table()[(checksum ^ byte) & 0xFF] ^ (checksum >> 8)
    checksum = ~checksum
    # As TFRecords mask it, so that data which holds checksums has others.
    masked = ((checksum >> 15) | (checksum << 17)) + np.uint32(0xA282EAD8)
    return masked == headers[:, 8:].copy().view("<u4")[:, 0]


@functools.cache
def _crc32c_table():
    """The remainders of all bytes, uint32 `(256,)`, by the polynomial of Castagnoli."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(0x82F63B78), table >> 1)
    return table
