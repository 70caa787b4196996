"""Tests of the target kind "texts" and of the sources with captions."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_vit import data
from keras_vit.data.targets import texts

from .helpers import flip_bit, jpeg, names_of, read_all, store_tfds, write_examples, write_jpegs

CAPTIONS = ("a red bee", "two ants, one hill", "a cat")
FIELDS = {"image_size": 8, "tokenizer": "toy", "text_length": 4}


class Lengths:
    """A toy tokenizer. The id of a word is its number of letters."""

    checksum = 0

    def __init__(self, place, length):
        self.length = length

    def __call__(self, captions):
        lengths = [[len(word) for word in caption.split()] for caption in captions]
        return keras.utils.pad_sequences(lengths, self.length, padding="post", truncating="post")


@pytest.fixture(autouse=True)
def toy_tokenizer(monkeypatch):
    monkeypatch.setattr(texts, "tokenizer_of", Lengths)


@pytest.fixture
def lists(tmp_path):
    """Returns a folder with images, with a list of their captions, and with test.csv, which has an
    image of its own."""
    write_jpegs(tmp_path / "lists", 4)
    rows = [f'{number}.jpg,"{caption}"' for number, caption in enumerate(CAPTIONS)]
    (tmp_path / "lists" / "plain.csv").write_text("\n".join(rows))
    (tmp_path / "lists" / "test.csv").write_text("file,caption\n3.jpg,a test")
    return tmp_path / "lists"


def load(path):
    return data.load_split("captions", str(path))


def captions_of(source):
    """Returns the only or first caption of each example."""
    return [np.ravel(example["caption"])[0].decode() for example in read_all(source)]


@pytest.fixture
def inputs(lists):
    """Returns a pipeline that trains with test.csv and evaluates plain.csv."""
    splits = {"train_split": str(lists / "test.csv"), "test_split": str(lists / "plain.csv")}
    fields = {"name": "captions", **splits, **FIELDS}
    return data.from_config(fields, batch_size=3, seed=0, target="texts")


def test_captions_give_token_ids(inputs):
    for batches, expected in (
        (inputs.eval_batches(), [[1, 3, 3, 0], [3, 5, 3, 4], [1, 3, 0, 0]]),
        (inputs.train_batches(), [[1, 4, 0, 0]] * 3),
    ):
        _, ids, weights = next(iter(batches))
        assert ids.dtype == tf.int32 and ids.numpy().tolist() == expected
        assert weights.numpy().tolist() == [1] * 3


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("a.csv", '{file},"{caption}"'),
        ("named.csv", '7,"{caption}",{file}'),
        ("a.jsonl", '{{"file_name": "{file}", "text": "{caption}"}}'),
    ],
)
def test_lists_of_all_formats_give_the_same_examples(name, line, lists):
    lines = [line.format(file=f"{i}.jpg", caption=CAPTIONS[i]) for i in range(3)]
    header = ["", "id,text,file_name"] if name == "named.csv" else []
    (lists / name).write_text("\n".join([*header, *lines]))
    source = load(lists / name)
    assert captions_of(source) == [*CAPTIONS]
    assert names_of(source) == [str(lists / f"{i}.jpg") for i in range(3)]


def test_verify_reads_captions(lists):
    (lists / "1.jpg").write_bytes(b"damaged")
    report = data.verify(load(lists / "plain.csv"), **FIELDS)
    assert (report["examples"], report["bad"]) == (3, [str(lists / "1.jpg")])


def test_changed_captions_change_the_checksum(inputs, lists):
    fingerprint = inputs.fingerprint()
    (lists / "test.csv").write_text("3.jpg,another test")
    assert load(lists / "test.csv").checksum() != inputs.train.checksum()
    # The loaded inputs keep their captions.
    assert inputs.fingerprint() == fingerprint


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "file,caption\n0.jpg,", "a file and a caption.*line 2"),
        ("a.csv", "", "list is empty"),
        ("a.csv", "file,text,text\n0.jpg,x,y", "different names.*text"),
        ("a.csv", "9.jpg,nine", "1 files are missing.*9.jpg"),
        ("a.csv", "0.jpg,a cat, asleep", "more than 2 columns.*line 1"),
        ("a.jsonl", '{"file": "0.jpg", "caption": 3}', "line 1"),
        ("a.jsonl", '{"file": "0.jpg", "caption": "x"}\n[1]', "line 2"),
        ("a.txt", "0.jpg a caption", ".csv or .jsonl"),
    ],
)
def test_bad_lists_are_refused(name, content, message, lists):
    (lists / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        load(lists / name)


@pytest.mark.parametrize("line_break", ["\n", "\u2028", "\x85"])
def test_captions_may_contain_line_breaks(line_break, lists):
    caption = f"a cat{line_break}and a dog"
    (lists / "a.csv").write_text(f'file,title,caption\n0.jpg,cats,"{caption}"\n', "utf-8")
    line = json.dumps({"title": "cats", "file": "0.jpg", "caption": caption}, ensure_ascii=False)
    (lists / "a.jsonl").write_text(f"{line}\n", "utf-8")
    for name in ("a.csv", "a.jsonl"):
        assert captions_of(load(lists / name)) == [caption]


def test_first_caption_counts_and_missing_captions_have_weight_0():
    target = texts.Texts(None, data.Options(**FIELDS))
    spec = {"caption": tf.TensorSpec([None], tf.string)}
    decode = tf.function(target.decode, input_signature=[spec])  # as in a pipeline
    captions = [["a red bee", "second"], [], [" "]]
    decoded = [decode({"caption": tf.constant(each, tf.string)}) for each in captions]
    ids, weights, _ = zip(*decoded)
    np.testing.assert_array_equal(ids, [[1, 3, 3, 0], [0] * 4, [0] * 4])
    np.testing.assert_array_equal(weights, [1, 0, 0])


@pytest.fixture
def records(tmp_path):
    """Returns the fields that load TFRecords with captions."""
    examples = [
        {"image/encoded": jpeg(i), "caption": caption.encode()}
        for i, caption in enumerate(CAPTIONS)
    ]
    write_examples(tmp_path / "train.tfrecord", examples)
    return {"name": "caption_tfrecords", "split": "train*", "path": str(tmp_path)}


def test_captions_are_read_from_tfrecords(records):
    assert captions_of(data.load_split(**records)) == [*CAPTIONS]


def test_invalid_utf_8_is_an_error_that_names_the_record(records, tmp_path):
    captions = [b"a red bee", b"caf\xe9"]
    examples = [{"image/encoded": jpeg(0), "caption": caption} for caption in captions]
    write_examples(tmp_path / "train.tfrecord", examples)
    source = data.load_split(**records)
    ((name, reason),) = data.verify(source, **FIELDS)["reasons"].items()
    assert name.endswith("record 1") and "a text in UTF-8, but is: b'caf" in reason
    inputs = data.InputPipeline(source, source, FIELDS, 2, 0, 1.0, target="texts")
    next(iter(inputs.eval_batches()))
    with pytest.raises(ValueError, match="UTF-8.*record 1"):
        inputs.bad_examples("test").update(0)


def test_tfrecords_need_a_caption(records):
    with pytest.raises(ValueError, match="must have a text, .*caption_key=nothing"):
        data.load_split(**records, caption_key="nothing")


def test_damaged_first_record_is_a_bad_example(records, tmp_path):
    flip_bit(tmp_path / "train.tfrecord", jpeg(0))
    assert len(data.verify(data.load_split(**records), **FIELDS)["bad"]) == 1


@pytest.mark.filterwarnings("ignore")  # TFDS emits unrelated warnings
def test_captions_are_read_from_tfds(tmp_path):
    features = pytest.importorskip("tensorflow_datasets").features
    captions = features.Sequence({"text": features.Text()})
    examples = {
        "image": np.zeros((2, 6, 5, 3), "uint8"),
        "captions": {"text": [["a red bee", "b"], ["a cat", "c"]]},
    }
    train = tf.data.Dataset.from_tensor_slices(examples)
    image = features.Image(shape=(6, 5, 3))
    store_tfds(tmp_path, "pairs", {"image": image, "captions": captions}, {"train": train})
    fields = {"name": "caption_tfds:pairs", "split": "train", "path": str(tmp_path)}
    source = data.load_split(**fields, caption_key="captions/text")
    assert captions_of(source) == ["a red bee", "a cat"]
    with pytest.raises(ValueError, match="must have a text"):
        data.load_split(**fields, caption_key="captions")


def test_a_tokenizer_is_needed(monkeypatch):
    monkeypatch.undo()  # restores the real `tokenizer_of`
    with pytest.raises(ValueError, match="needs a tokenizer"):
        texts.tokenizer_of("", 4)


def test_the_length_of_a_text_must_be_positive():
    with pytest.raises(ValueError, match="text_length. must be 1 or more"):
        data.Options(text_length=0)


def test_a_source_with_captions_is_needed():
    with pytest.raises(ValueError, match="a caption for each image, .* with image and label"):
        data.from_config({"name": "digits"}, batch_size=2, seed=0, target="texts")
