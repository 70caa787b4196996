"""Tests of the target kind "texts" and of the sources with captions."""

import json

import numpy as np
import pytest
import tensorflow as tf

from keras_vit import data
from keras_vit.data.targets import texts

from .helpers import flip_bit, jpeg, names_of, read_all, store_tfds, write_examples

CAPTIONS = ("a red bee", "two ants, one hill", "a cat")
FIELDS = {"image_size": 8, "tokenizer": "toy", "text_length": 4}


class Lengths:
    """A toy tokenizer. The id of a word is its number of letters."""

    checksum = 0

    def __init__(self, place, length):
        self.length = length

    def __call__(self, captions):
        ids = np.zeros((len(captions), self.length), "int32")
        for i, caption in enumerate(captions):
            lengths = [len(word) for word in caption.split()][: self.length]
            ids[i, : len(lengths)] = lengths
        return ids


@pytest.fixture(autouse=True)
def toy_tokenizer(monkeypatch):
    monkeypatch.setattr(texts, "tokenizer_of", Lengths)


@pytest.fixture
def lists(tmp_path):
    """Returns a folder with images and with lists of their captions in all formats.

    The list test.csv has an image of its own.
    """
    for i in range(4):
        (tmp_path / f"{i}.jpg").write_bytes(jpeg(i))
    pairs = [(f"{i}.jpg", caption) for i, caption in enumerate(CAPTIONS)]
    quoted = [f'{name},"{caption}"' for name, caption in pairs]
    contents = {
        "plain.csv": quoted,
        "named.csv": ["id,text,file_name", *(f'7,"{text}",{name}' for name, text in pairs)],
        "lines.jsonl": [json.dumps({"file_name": name, "text": text}) for name, text in pairs],
        "blank.csv": ["", "file,caption", *quoted],
        "test.csv": ["file,caption", "3.jpg,a test"],
    }
    for name, lines in contents.items():
        (tmp_path / name).write_text("\n".join(lines))
    return tmp_path


def stored_caption(example):
    """Returns the only or first caption of an example."""
    return np.ravel(example["caption"])[0].decode()


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


@pytest.mark.parametrize("name", ["plain.csv", "named.csv", "blank.csv", "lines.jsonl"])
def test_lists_of_all_formats_give_the_same_examples(name, lists):
    source = data.load_split("captions", str(lists / name))
    assert [stored_caption(example) for example in read_all(source)] == [*CAPTIONS]
    assert names_of(source) == [str(lists / f"{i}.jpg") for i in range(3)]


def test_verify_reads_captions(lists):
    (lists / "1.jpg").write_bytes(b"damaged")
    report = data.verify(data.load_split("captions", str(lists / "plain.csv")), **FIELDS)
    assert (report["examples"], report["bad"]) == (3, [str(lists / "1.jpg")])


def test_changed_captions_change_the_checksum(inputs, lists):
    fingerprint = inputs.fingerprint()
    (lists / "test.csv").write_text("3.jpg,another test")
    changed = data.load_split("captions", str(lists / "test.csv"))
    assert changed.checksum() != inputs.train.checksum()
    # The loaded inputs keep their captions.
    assert inputs.fingerprint() == fingerprint


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "file,caption\n0.jpg,", "a file and a caption.*line 2"),
        ("a.csv", "", "list is empty"),
        ("a.csv", "file,label\n0.jpg,x", "a file and a caption.*line 2"),
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
        data.load_split("captions", str(lists / name))


@pytest.mark.parametrize("line_break", ["\n", "\u2028", "\x85"])
def test_captions_may_contain_line_breaks(line_break, lists):
    caption = f"a cat{line_break}and a dog"
    (lists / "a.csv").write_text(f'file,title,caption\n0.jpg,cats,"{caption}"\n', "utf-8")
    line = json.dumps({"title": "cats", "file": "0.jpg", "caption": caption}, ensure_ascii=False)
    (lists / "a.jsonl").write_text(f"{line}\n", "utf-8")
    for name in ("a.csv", "a.jsonl"):
        (example,) = read_all(data.load_split("captions", str(lists / name)))
        assert stored_caption(example) == caption


def test_first_caption_counts_and_missing_captions_have_weight_0():
    captions = tf.ragged.constant([["a red bee", "second"], [], [" "]])
    image = jpeg(0)

    def read(index):
        return {"image": tf.constant(image), "caption": captions[index]}

    source = data.Source(read, 3, ())
    options = data.Options(**FIELDS).resolve(source)
    target = texts.Texts(source, options)
    batches = data.eval_batches(source, batch_size=3, options=options, target=target)
    _, ids, weights = next(iter(batches))
    assert ids.numpy().tolist() == [[1, 3, 3, 0], [0] * 4, [0] * 4]
    assert weights.numpy().tolist() == [1, 0, 0]


def test_captions_are_read_from_tfrecords(tmp_path):
    examples = [
        {"image/encoded": jpeg(i), "caption": caption.encode()}
        for i, caption in enumerate(CAPTIONS)
    ]
    write_examples(tmp_path / "train.tfrecord", examples)
    source = data.load_split("caption_tfrecords", "train*", path=str(tmp_path))
    assert [stored_caption(example) for example in read_all(source)] == [*CAPTIONS]
    with pytest.raises(ValueError, match="caption_key must name a text"):
        data.load_split("caption_tfrecords", "train*", path=str(tmp_path), caption_key="nothing")
    flip_bit(tmp_path / "train.tfrecord", jpeg(0))
    source = data.load_split("caption_tfrecords", "train*", path=str(tmp_path))
    assert len(data.verify(source, **FIELDS)["bad"]) == 1


@pytest.mark.filterwarnings("ignore")  # TFDS emits unrelated warnings
def test_captions_are_read_from_tfds(tmp_path):
    tfds = pytest.importorskip("tensorflow_datasets")
    captions = tfds.features.Sequence({"text": tfds.features.Text()})
    image = tfds.features.Image(shape=(6, 5, 3))
    examples = {
        "image": np.zeros((2, 6, 5, 3), "uint8"),
        "captions": {"text": np.array([["a red bee", "b"], ["a cat", "c"]])},
    }
    train = tf.data.Dataset.from_tensor_slices(examples)
    store_tfds(tmp_path, "pairs", {"image": image, "captions": captions}, {"train": train})
    fields = {"path": str(tmp_path), "caption_key": "captions/text"}
    source = data.load_split("caption_tfds:pairs", "train", **fields)
    assert [stored_caption(example) for example in read_all(source)] == ["a red bee", "a cat"]
    with pytest.raises(ValueError, match="must name a text"):
        data.load_split("caption_tfds:pairs", "train", path=str(tmp_path), caption_key="captions")


def test_a_tokenizer_is_needed(monkeypatch):
    monkeypatch.undo()  # restores the real `tokenizer_of`
    with pytest.raises(ValueError, match="needs a tokenizer"):
        texts.tokenizer_of("", 4)
    with pytest.raises(ValueError, match="text_length. must be 1 or more"):
        data.Options(text_length=0)


def test_a_source_with_captions_is_needed():
    with pytest.raises(ValueError, match="a caption for each image, .* with image and label"):
        data.from_config({"name": "digits"}, batch_size=2, seed=0, target="texts")
