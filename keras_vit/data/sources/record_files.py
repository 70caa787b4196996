"""Sources of the records in TFRecord files. Local files are read by index, remote files in order.

A record consists of its length (uint64), a checksum of the length (uint32), the data, and a
checksum of the data (uint32).
"""

import contextlib
import functools
import hashlib
import json
import logging
import math
import os
import pathlib
import posixpath
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import tensorflow as tf

from keras_vit.data.sources.shards import Shards
from keras_vit.data.sources.source import Source, check_pattern, checksum_of
from keras_vit.files import is_remote

_HEADER = 12  # bytes before the data
_FRAME = 16  # bytes before and after the data
_BUFFER = 4 * 2**20  # bytes to read ahead, so that many records share the latency of one request
_FILES_AT_A_TIME = 16  # number of files read in parallel to count or find their records

log = logging.getLogger(__name__)


def record_source(pattern, parse, num_examples=0, **fields):
    """Returns the source of the records in the TFRecord files that match a pattern.

    `parse` maps a record to an example, `num_examples` is the expected number of records, and
    `fields` has further fields of `Source`.
    """
    files = sorted(tf.io.gfile.glob(str(pattern)))
    if not files:
        raise ValueError(
            f"`pattern` must match at least one file. Received: pattern={str(pattern)!r}"
        )
    fields["checksum"] = functools.partial(checksum_of, files, moves=True)
    fields["stored"] = lambda: [(file, 0, 1) for file in files]
    source = source_of_files(files, parse, **fields)
    if not source.num_examples or num_examples not in (0, source.num_examples):
        raise ValueError(
            "The files must contain `num_examples` records, or at least one record if "
            f"`num_examples` is 0. Received: num_examples={num_examples}, {source.num_examples} "
            f"records in {str(pattern)!r}"
        )
    return source


def source_of_files(files, parse, skips=None, lengths=None, **fields):
    """Returns the source of the records in TFRecord files, read by index if the files are local,
    otherwise in order.

    Of file i, the source omits the first `skips[i]` records and has the next `lengths[i]`; by
    default, it has all records.

    Raises:
        ValueError: a local file is damaged, or has fewer records.
    """
    skips = skips or [0] * len(files)
    if any(map(is_remote, files)):
        counts = _counts(files) if lengths is None else np.array(lengths, np.int64)
        shards = Shards(counts, _opener(files, skips), parse)
        namer = _namer(files, counts, skips)
        return Source(None, shards.num_examples, shards=shards, name_of=namer, **fields)
    index = RecordIndex(files, skips, lengths or [math.inf] * len(files))
    if lengths and len(index) != sum(lengths):
        raise ValueError(
            f"The files must have {sum(lengths)} records of the split. Received: {len(index)} in "
            f"{files[:10]}"
        )
    return Source(lambda i: parse(index.read(i)), len(index), name_of=index.name_of, **fields)


def first_example(source, features):
    """Returns the first example, read eagerly; None if it is damaged, if the source is only read in
    order, or in a graph.

    Raises:
        ValueError: the example lacks one of the `features`, which the message lists.
    """
    if source.read is None or not tf.executing_eagerly():
        return None
    try:
        return source.read(tf.constant(0, tf.int64))
    except tf.errors.DataLossError:  # a bad example, like any other
        return None
    except (tf.errors.OpError, AttributeError, KeyError, TypeError) as error:
        raise ValueError(
            f"Examples must have {features}. Received: {source.name_of(0)}, "
            f"{str(error).splitlines()[0]}"
        ) from None


def pattern_of(split, path):
    """Returns the pattern of the files of a split in the folder `path`."""
    pattern = posixpath.join(f"{path.rstrip('/')}/" if path else "", split)
    check_pattern(split, path, pattern)
    return pattern


def _namer(files, lengths, skips):
    """Returns `Source.name_of` for files of which the first `skips[i]` records are omitted and
    `lengths[i]` are used."""
    starts = np.cumsum(lengths) - lengths

    def name_of(index):
        file = int(np.searchsorted(starts, index, side="right")) - 1
        return f"{files[file]} record {index - starts[file] + skips[file]}"

    return name_of


def _opener(files, skips):
    """Returns `Shards.open` for TFRecord files of which the first `skips[i]` records are
    omitted."""
    names = tf.constant(files)
    skips = tf.constant(skips, tf.int64)

    def first_record(name):
        return tf.data.TFRecordDataset(name, buffer_size=0).take(1).get_single_element()

    def open_file(shard, skip):
        records = tf.data.TFRecordDataset(names[shard], buffer_size=_BUFFER).skip(
            skips[shard] + skip
        )
        # `ignore_errors` never returns for a file that cannot be opened, so test whether its first
        # record can be read.
        return (
            tf.data.Dataset.from_tensors(names[shard])
            .map(first_record)
            .ignore_errors()
            .flat_map(lambda _: records)
        )

    return open_file


def _count_records(file):
    """Counts the records of a TFRecord file by reading all of it."""
    try:
        return sum(
            len(records) for records in tf.data.TFRecordDataset(file, buffer_size=_BUFFER).batch(64)
        )
    except tf.errors.DataLossError:
        raise ValueError(
            f"A TFRecord file must be complete and uncompressed. Received: {file!r}"
        ) from None


def _counts(files):
    """Returns the number of records in each remote file, int64 `(files,)`; caches it by the names
    and sizes of the files."""
    with ThreadPoolExecutor(_FILES_AT_A_TIME) as pool:
        sizes = list(pool.map(lambda file: tf.io.gfile.stat(file).length, files))
        digest = hashlib.sha256(json.dumps([files, sizes]).encode()).hexdigest()[:32]
        # Keras' cache folder, for which Keras has no public function.
        home = os.environ.get("KERAS_HOME") or "~/.keras"
        cache = pathlib.Path(home).expanduser() / "keras_vit" / "tfrecords" / f"{digest}.json"
        try:
            return np.array(json.loads(cache.read_text()), np.int64).reshape(len(files))
        except (OSError, TypeError, ValueError):
            log.warning("counting the records of %d files, which downloads them once", len(files))
        counts = list(pool.map(_count_records, files))
    with contextlib.suppress(OSError):  # without a cache, the next run counts again
        cache.parent.mkdir(parents=True, exist_ok=True)
        cache.write_text(json.dumps(counts))
    return np.array(counts, np.int64)


class RecordIndex:
    """An index of the records in local TFRecord files.

    Of file i, the index omits the first `skips[i]` records and has the next `lengths[i]`, or all
    further records if `lengths[i]` is infinite.
    """

    def __init__(self, files, skips, lengths):
        with ThreadPoolExecutor(min(_FILES_AT_A_TIME, len(files))) as pool:
            offsets = list(pool.map(_offsets, files, skips, lengths))
        counts = [*map(len, offsets)]
        self.name_of = _namer(files, counts, skips)
        self._offsets = tf.constant(np.concatenate(offsets))
        self._file_of = tf.constant(np.repeat(np.arange(len(files), dtype=np.int32), counts))
        self._files = tf.constant(files)

    def __len__(self):
        return int(self._offsets.shape[0])

    def read(self, index):
        """Returns the bytes of a record, a scalar string; raises `tf.errors.DataLossError` if a
        checksum is wrong."""
        location = {
            "filenames": self._files[self._file_of[index]][None],
            "byte_offsets": self._offsets[index][None],
        }
        dataset = tf.raw_ops.TFRecordDatasetV2(
            **location, compression_type="", buffer_size=64 * 1024
        )
        spec = {"output_types": [tf.string], "output_shapes": [[]]}
        dataset = tf.raw_ops.TakeDataset(input_dataset=dataset, count=1, **spec)
        return tf.raw_ops.DatasetToSingleElement(dataset=dataset, **spec)[0]


def _offsets(path, skip, take):
    """Returns the byte offsets of up to `take` records after the first `skip`, int64; reads only
    record lengths."""
    offsets = []
    offset = 0
    try:
        with open(path, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            while offset < size and len(offsets) < skip + take:
                header = os.pread(file.fileno(), _HEADER, offset)
                length = int.from_bytes(header[:8], "little") if len(header) == _HEADER else 0
                if not length or offset + _FRAME + length > size:
                    raise ValueError(
                        "A TFRecord file must contain complete records and must not be compressed "
                        f"(use gunzip). Received: {path!r}, broken at or before byte {offset}"
                    )
                offsets.append(offset)
                offset += _FRAME + length
    except OSError as error:
        raise ValueError(
            f"The TFRecord file cannot be opened ({error}). Received: {path!r}"
        ) from None
    return np.array(offsets, np.int64)[skip:]
