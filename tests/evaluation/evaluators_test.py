"""Tests of the evaluators."""

import dataclasses
import json
import logging

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit import data, evaluation, files
from keras_vit.data.sources.shards import Shards
from keras_vit.evaluation import accuracy, calibration, collecting, frozen, report
from keras_vit.evaluation.collecting import collect, outputs_of, read_test_examples, sample_indices
from keras_vit.evaluation.frozen import representation_model
from keras_vit.models.any_model import gives_probabilities, set_logits_activation

from ..shared import SIZES, random_images

CLASSES = 3


def inputs_of(train=60, test=11, classes=CLASSES, seed=0):
    """Returns an input pipeline with one color per class, for up to three classes.

    The colors are so different that even a model with random weights separates them.
    """
    random = np.random.default_rng(seed)
    colors = np.array([[200, 30, 30], [30, 200, 30], [30, 30, 200]])
    names = [f"class {i}" for i in range(classes)]

    def source(count):
        labels = random.permutation(np.arange(count) % classes)
        images = colors[labels % 3][:, None, None] + random.integers(-25, 25, (count, 8, 8, 3))
        return data.arrays(images.astype("uint8"), labels, names)

    return data.InputPipeline(
        source(train), source(test), {}, batch_size=4, seed=0, max_bad_share=0.0
    )


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(3)
    return keras_vit.VisionTransformer(**SIZES, input_shape=(8, 8, 3), classes=CLASSES)


def mean_color():
    """Returns a model whose three logits are 10 times the channel means of an image."""
    images = keras.Input((8, 8, 3))
    x = keras.layers.GlobalAveragePooling2D()(images)
    return keras.Model(
        images, keras.layers.Dense(3, kernel_initializer="identity", name="head")(10 * x)
    )


@pytest.mark.parametrize("mistakes", [0, 2])
def test_report_lists_only_mistakes(mistakes, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    inputs = inputs_of(test=11)
    labels = inputs.test.labels.copy()
    labels[:mistakes] = (labels[:mistakes] + 1) % 3
    images = np.stack([inputs.test.read(tf.constant(i, tf.int64))["image"] for i in range(11)])
    inputs = dataclasses.replace(inputs, test=data.arrays(images, labels, inputs.test.class_names))
    shown = []
    monkeypatch.setattr(
        report.plots, "predictions", lambda path, pictures, labels, *rest: shown.extend(labels)
    )
    monkeypatch.setattr(
        report.Page,
        "draw",
        lambda page, name, title, text, function, *rest, **_: function("", *rest),
    )
    monkeypatch.setattr(report.plots, "reliability", lambda *_: None)
    monkeypatch.setattr(report.plots, "confusion", lambda *_: None)
    page = report.write_report(mean_color(), inputs, tmp_path)
    assert sorted(shown) == sorted(labels[:mistakes])
    assert files.read_text(page).count(", predicted class") == mistakes


def test_top1_counts_every_example_once():
    inputs = inputs_of(test=11)
    metrics = evaluation.evaluate(mean_color(), ["top1"], inputs)
    assert metrics == {"top1/accuracy": 1.0, "top1/top5_accuracy": 1.0}
    wrong = keras.Sequential([mean_color(), keras.layers.Dense(3, kernel_initializer=_moved)])
    wrong.build((None, 8, 8, 3))
    labels = inputs.test.labels
    assert evaluation.evaluate(wrong, ["top1"], inputs)["top1/accuracy"] == pytest.approx(
        (labels == 2).mean()
    )


def test_balanced_counts_classes_equally(monkeypatch):
    """Labels 0 0 0 1 and predictions 0 0 1 1: recalls 2/3 and 1, F1 scores 4/5 and 2/3."""
    logits = np.array([[2.0, 0, -9], [1, 0, -9], [0, 1, -9], [0, 3, -9]])
    found = (logits, logits, np.array([0, 0, 0, 1]), np.arange(4), "softmax")
    monkeypatch.setattr(evaluation.balance, "predictions", lambda model, inputs: found)
    metrics = evaluation.balance.balanced(None, None)
    assert metrics["balanced_accuracy"] == pytest.approx(5 / 6)
    assert metrics["macro_f1"] == pytest.approx(11 / 15)
    assert metrics["roc_auc"] == pytest.approx((5 / 6 + 1) / 2)  # half a point for the tie


def test_mean_average_precision_matches_its_definition():
    random = np.random.default_rng(0)
    scores = random.normal(size=(50, 4))
    right = random.random((50, 4)) < 0.2
    right[:, 3] = False  # a class without examples is excluded from the mean
    expected = []
    for number in range(3):
        hits = right[np.argsort(-scores[:, number]), number]
        precisions = np.cumsum(hits) / np.arange(1, 51)
        expected.append(precisions[hits].mean())
    assert accuracy.mean_average_precision(scores, right) == pytest.approx(np.mean(expected))
    metrics = evaluation.evaluate(mean_color(), ["average_precision"], inputs_of(test=11))
    assert metrics == {"average_precision/mean_average_precision": 1.0}


def _moved(shape, dtype=None):
    """Initializes a kernel that swaps classes 0 and 1."""
    return keras.ops.convert_to_tensor([[0.0, 1, 0], [1, 0, 0], [0, 0, 1]])


def test_frozen_features_distinguish_colors(model, caplog):
    inputs = inputs_of(train=60)
    with caplog.at_level(logging.WARNING, "keras_vit"):
        metrics = evaluation.evaluate(model, ["fewshot", "knn", "linear_probe"], inputs)
    assert (
        metrics["fewshot/25shot"]
        == metrics["knn/accuracy"]
        == metrics["linear_probe/accuracy"]
        == 1
    )
    assert 1 / 3 <= metrics["fewshot/1shot"] <= 1
    # Each class has 20 examples, so 25 shots use all of them.
    assert "3 of 3 classes have fewer than 25 training images" in caplog.text


@pytest.mark.full
def test_evaluators_share_features_until_the_weights_change(model, monkeypatch):
    splits = []
    collect_again = frozen.collect
    monkeypatch.setattr(frozen, "collect", lambda *a: splits.append(a[3]) or collect_again(*a))
    inputs = inputs_of()
    names = ["knn", "linear_probe", "fewshot"]
    alone = {
        metric: value
        for name in names
        for metric, value in evaluation.evaluate(model, [name], inputs).items()
    }
    assert splits == 3 * ["train", "test"]
    splits.clear()
    with collecting.reuse_compiled():
        assert evaluation.evaluate(model, names, inputs) == alone and splits == ["train", "test"]
        before = model.get_weights()
        model.set_weights([weight + 1 for weight in before])
        shifted = frozen.representations(model, inputs)[0]
        model.set_weights(before)
    assert splits == ["train", "test", "test"]
    assert np.abs(shifted - frozen.representations(model, inputs)[0]).max() > 0.1
    splits.clear()
    evaluation.evaluate(model, ["knn:digits", "linear_probe:digits"])
    assert splits == ["train", "test"]


def test_fewshot_computes_features_once(model, monkeypatch):
    sizes = []
    real = frozen.representations

    def counted(model, inputs, split="test", indices=None):
        if split == "train":
            sizes.append(len(indices))
        return real(model, inputs, split, indices)

    monkeypatch.setattr(frozen, "representations", counted)
    monkeypatch.setattr(frozen, "SHOTS", (1, 2))
    few = frozen.fewshot(model, inputs_of(train=300))
    assert len(sizes) == 1 and 6 <= sizes[0] <= 18
    assert set(few) == {"1shot", "2shot"}


def test_neighbor_votes_are_weighted_by_similarity():
    x = np.array([[1.0, 0], [0.9, 0.1], [0, 1], [0.1, 0.9], [0.2, 0.8]])
    y = np.array([0, 0, 1, 1, 1])
    test = np.array([[2.0, 0.1]])
    # More neighbors have class 1, but their similarity is low.
    assert frozen.nearest_classes(x, y, test, 2).tolist() == [0]
    assert frozen.nearest_classes(x, y, test, 2, temperature=99).tolist() == [1]
    # If more than 20 training examples are equally similar, the first 20 vote.
    x = np.repeat([[1.0, 0.0], [0.0, 1.0]], [1000, 1], axis=0)
    order = np.random.default_rng(0).permutation(1000)
    y = np.append((np.arange(1000) >= 11)[order], 0).astype(int)
    for test in ([1.0, 0.0], [1.0, 0.5]):
        assert frozen.nearest_classes(x, y, np.array([test]), 2).tolist() == [
            int(y[:20].mean() > 0.5)
        ]


def test_probability_outputs_are_detected():
    model = mean_color()
    inputs = inputs_of()
    softmax = keras.layers.Softmax()
    logits = model.output
    expected = evaluation.evaluate(model, ["calibration"], inputs)
    for outputs in (
        keras.ops.softmax(logits),
        keras.layers.Average()([softmax(logits), softmax(logits)]),
    ):
        metrics = evaluation.evaluate(keras.Model(model.input, outputs), ["calibration"], inputs)
        # A second softmax would change the metrics.
        assert metrics == pytest.approx(expected, abs=1e-6)
    for outputs, is_given in (
        (keras.ops.sigmoid(logits), True),
        (keras.ops.tanh(logits), False),
        (logits, False),
    ):
        outer = keras.Sequential([keras.Input((8, 8, 3)), keras.Model(model.input, outputs)])
        assert gives_probabilities(outer) == is_given


@pytest.mark.full
def test_evaluators_share_compiled_functions(model, monkeypatch):
    made = []
    inputs = inputs_of()
    build = collecting._Outputs.__init__
    monkeypatch.setattr(
        collecting._Outputs,
        "__init__",
        lambda self, *args: (made.append(args), build(self, *args))[1],
    )
    names = ["top1", "calibration", "fewshot", "knn"]
    together = evaluation.evaluate(model, names, inputs)
    assert len(made) == 3  # one for accuracy, one for outputs and one for features
    apart = [evaluation.evaluate(model, [name], inputs) for name in names]
    assert together == pytest.approx(
        {name: value for metrics in apart for name, value in metrics.items()}
    )
    with collecting.reuse_compiled():
        before = collect(model, outputs_of, inputs)["outputs"]
        bias = keras.ops.convert_to_numpy(model.head.bias)
        model.head.bias.assign(bias + 1)
        np.testing.assert_allclose(
            collect(model, outputs_of, inputs)["outputs"], before + 1, atol=1e-6
        )
        model.head.bias.assign(bias)


def test_log_loss_of_logits_is_unbounded():
    model = mean_color()
    inputs = inputs_of()
    far = keras.Model(model.input, -1000.0 * model.output)
    arrays = collect(far, outputs_of, inputs)
    logits = arrays["outputs"].astype("float64")
    labels = arrays["labels"].argmax(1)
    # The log-sum-exp of such large logits is their maximum.
    expected = (logits.max(1) - logits[np.arange(len(labels)), labels]).mean()
    assert expected > 100
    metrics = evaluation.evaluate(far, ["calibration"], inputs)
    assert metrics["calibration/log_loss"] == pytest.approx(expected, rel=1e-5)


def test_calibration_uses_the_sigmoid_activation():
    """The metrics use the activation that `set_logits_activation` stores in the model."""
    images = keras.Input((8, 8, 3))
    x = keras_vit.layers.InputPreprocessing()(images)
    x = keras.layers.Dense(3, kernel_initializer="identity")(
        keras.layers.GlobalAveragePooling2D()(x)
    )
    model = keras.Model(images, x)
    inputs = inputs_of()
    set_logits_activation(model, "sigmoid")
    arrays = collect(model, outputs_of, inputs)
    logits = arrays["outputs"].astype("float64")
    labels = arrays["labels"]
    probabilities = 1 / (1 + np.exp(-logits))
    metrics = evaluation.evaluate(
        keras.Sequential([keras.Input((8, 8, 3)), model]), ["calibration"], inputs
    )
    likelihoods = np.where(labels > 0, probabilities, 1 - probabilities)
    assert metrics["calibration/log_loss"] == pytest.approx(-np.log(likelihoods).sum(1).mean())
    assert metrics["calibration/brier_loss"] == pytest.approx(
        ((probabilities - labels) ** 2).sum(1).mean()
    )
    error = calibration.expected_calibration_error(probabilities, labels.argmax(1))
    assert metrics["calibration/expected_calibration_error"] == pytest.approx(error)
    # The metrics are the same if the model itself applies the sigmoid.
    model = keras.Model(images, keras.layers.Activation("sigmoid")(x / 2))
    logits = keras.Model(images, x / 2)
    set_logits_activation(logits, "sigmoid")
    expected, actual = (
        evaluation.evaluate(each, ["calibration"], inputs) for each in (logits, model)
    )
    assert actual == pytest.approx(expected, rel=1e-4)


def test_calibration_error_matches_its_definition():
    probabilities = np.array([[0.95, 0.05], [0.95, 0.05], [0.3, 0.7], [0.45, 0.55]])
    labels = np.array([0, 1, 1, 0])
    expected = (2 * abs(0.95 - 0.5) + abs(0.7 - 1) + abs(0.55 - 0)) / 4
    assert calibration.expected_calibration_error(probabilities, labels) == pytest.approx(expected)
    assert calibration.confusion_matrix(probabilities, labels).tolist() == [[1, 1], [1, 1]]
    metrics = evaluation.evaluate(mean_color(), ["calibration"], inputs_of())
    softmax = keras.Sequential([mean_color(), keras.layers.Softmax()])
    softmax.build((None, 8, 8, 3))
    assert evaluation.evaluate(softmax, ["calibration"], inputs_of()) == pytest.approx(
        metrics, abs=1e-6
    )
    assert 0 < metrics["calibration/log_loss"] < 0.1


def test_samples_spread_over_sorted_classes():
    labels = np.repeat(np.arange(3), 15)
    pixels = np.full((45, 8, 8, 3), 9, np.uint8) * labels[:, None, None, None].astype("uint8")
    source = data.arrays(pixels, labels, "abc")
    inputs = data.InputPipeline(source, source, {}, batch_size=32, seed=0, max_bad_share=0.0)
    _, shown, _ = read_test_examples(inputs, sample_indices(inputs, 6))
    assert shown.sum(0).tolist() == [2, 2, 2]
    images, shown, _ = read_test_examples(inputs, sample_indices(inputs, 64))
    assert len(images) == 45 and (shown.sum(1) == 1).all()


@pytest.mark.parametrize("kind", ["by index", "in order"])
def test_selected_examples_keep_their_order(kind):
    inputs = unreadable(inputs_of(test=20), "test", [3], kind)
    expected = inputs_of(test=20).test.labels[[7, 15, 0]].tolist()
    images, labels, _ = read_test_examples(inputs, [7, 3, 15, 0])  # example 3 cannot be read
    assert labels.argmax(1).tolist() == images.mean((1, 2)).argmax(1).tolist() == expected
    assert sorted(sample_indices(inputs, 4)) == (
        [0, 6, 12, 19] if kind == "by index" else [0, 1, 2, 3]
    )


def test_real_accepts_any_label_and_skips_unlabeled_images(tmp_path):
    inputs = inputs_of(test=4)
    answers = inputs.test.labels.tolist()
    order = [3, 0, 2, 1]  # the file number of each example, minus 1
    labels = [None] * 4
    for index, number in enumerate(order):
        labels[number] = [
            [answers[index], (answers[index] + 2) % 3],
            [],
            [(answers[index] + 1) % 3],
            [answers[index]],
        ][index]
    (tmp_path / "real.json").write_text(json.dumps(labels))
    names = lambda index: f"folder/ILSVRC2012_val_{order[index] + 1:08}.JPEG"  # noqa: E731
    source = data.arrays(np.zeros((4, 8, 8, 3), "uint8"), np.zeros(4, int), inputs.test.class_names)
    test = type(source)(**{**vars(inputs.test), "name_of": names})
    inputs = data.InputPipeline(inputs.train, test, {}, 4, 0, 0.0)
    path = str(tmp_path / "real.json")
    assert accuracy.real_from_file(mean_color(), inputs, path=path) == {
        "accuracy": pytest.approx(2 / 3)
    }
    (tmp_path / "real.json").write_text(json.dumps(labels[:2]))
    with pytest.raises(ValueError, match="to 00000002, in the order"):
        accuracy.real_from_file(mean_color(), inputs, path=path)


def test_unlabeled_examples_are_skipped_and_counted(caplog):
    inputs = inputs_of(test=5)
    read = inputs.test.read
    none = read(0)["label"][None][:0]
    test = type(inputs.test)(
        **{**vars(inputs.test), "read": lambda i: {**read(i), "label": none}, "labels": None}
    )
    inputs = data.InputPipeline(inputs.train, test, {}, 4, 0, 0.0)
    with (
        caplog.at_level(logging.WARNING, "keras_vit"),
        pytest.raises(ValueError, match="Received: 5 examples"),
    ):
        evaluation.evaluate(mean_color(), ["top1"], inputs)
    assert "skipped 5 of 5 examples: 0 cannot be read, 5 have no label" in caplog.text


def test_images_without_a_class_count_only_in_average_precision(caplog):
    inputs = inputs_of(test=12)
    read = inputs.test.read
    right = np.eye(3)[inputs.test.labels] * (np.arange(12) % 2)[:, None]
    some = {"read": lambda i: {**read(i), "label": read(i)["label"][None][: i % 2]}, "labels": None}
    test = dataclasses.replace(inputs.test, **some, empty_is_negative=True)
    inputs = dataclasses.replace(inputs, test=test)
    metrics = evaluation.evaluate(
        mean_color(), ["top1", "knn", "calibration", "average_precision"], inputs
    )
    assert metrics["top1/accuracy"] == metrics["top1/top5_accuracy"] == metrics["knn/accuracy"] == 1
    assert metrics["calibration/log_loss"] < 0.1
    scores = collect(mean_color(), outputs_of, inputs)["outputs"]
    expected = accuracy.mean_average_precision(scores, right > 0)
    assert metrics["average_precision/mean_average_precision"] == expected < 1
    assert "skipped 6 of 12 examples, which have no correct class" in caplog.text


def unreadable(inputs, split, broken, kind="known"):
    """Returns `inputs` with encoded images. The images of `split` at the indices `broken` cannot be
    decoded.

    `kind` selects the source of `split`: "known" has an array of labels and access by index, "by
        index" has no array of
    labels, and "in order" has neither.
    """
    sources = {
        name: encoded(getattr(inputs, name), broken if name == split else [])
        for name in ("train", "test")
    }
    if kind != "known":
        sources[split] = dataclasses.replace(sources[split], labels=None)
    if kind == "in order":
        sources[split] = in_order(sources[split])
    options = {"image_size": 8, "train_crop": "resize", "eval_crop": "resize"}
    return dataclasses.replace(inputs, **sources, options=options, max_bad_share=0.1)


def encoded(source, broken):
    def read(index):
        example = source.read(index)
        bad = tf.reduce_any(tf.constant(broken, tf.int64) == index)
        return {**example, "image": tf.where(bad, b"no image", tf.io.encode_png(example["image"]))}

    return dataclasses.replace(source, read=read)


def in_order(source, missing=0):
    """Divides a source into two shards without access by index. The second shard lacks its last
    `missing` records."""
    first = source.num_examples // 3
    n = source.num_examples

    def open_shard(shard, skip):
        start = tf.gather([0, first], shard)
        end = tf.gather([first, n], shard)
        return tf.data.Dataset.range(tf.cast(start, tf.int64) + skip, tf.cast(end, tf.int64)).map(
            tf.as_string
        )

    shards = Shards(
        np.array([first, n - first + missing]),
        open_shard,
        lambda record: source.read(tf.strings.to_number(record, tf.int64)),
    )
    return dataclasses.replace(source, read=None, shards=shards, num_examples=n + missing)


@pytest.mark.full
def test_unreadable_image_changes_no_other_draw(model, monkeypatch):
    drawn = []

    def note(x, y, x_test, num_classes):
        drawn.append(x)
        return np.zeros((len(x_test), num_classes))

    monkeypatch.setattr(frozen, "ridge_scores", note)
    frozen.fewshot(model, unreadable(inputs_of(train=90), "train", []))
    whole = drawn.copy()
    first = frozen.draw_shots(inputs_of(train=90).train.labels, 1, 3, 0)[0]
    drawn.clear()
    frozen.fewshot(model, unreadable(inputs_of(train=90), "train", [int(first)]))
    assert len(drawn[0]) == len(whole[0]) - 1  # the first draw lacks only the unreadable image
    np.testing.assert_array_equal(drawn[0], whole[0][1:])
    for before, after in zip(whole, drawn):
        assert {*map(bytes, after)} <= {*map(bytes, before)} and len(before) - len(after) in (0, 1)


@pytest.mark.full
def test_fewshot_skips_unreadable_and_missing_examples(model, caplog):
    inputs = unreadable(inputs_of(train=90), "train", [5], "by index")
    inputs = dataclasses.replace(inputs, train=in_order(inputs.train, missing=2))
    with caplog.at_level(logging.WARNING, "keras_vit"):
        frozen.fewshot(model, inputs)
    assert "train: skipped 3 of 92 examples" in caplog.text


@pytest.mark.full
def test_bad_images_are_logged_and_bounded(caplog):
    broken = unreadable(inputs_of(test=20), "test", [3, 7])
    with caplog.at_level(logging.WARNING, "keras_vit"):
        assert evaluation.evaluate(mean_color(), ["top1"], broken)["top1/accuracy"] == 1
    assert "test: bad example 1, which gets weight 0: example 3" in caplog.text
    assert "skipped 2 of 20 examples: 2 cannot be read" in caplog.text
    with pytest.raises(ValueError, match="More than 5 % of 20 examples are bad"):
        evaluation.evaluate(mean_color(), ["top1"], dataclasses.replace(broken, max_bad_share=0.05))
    assert evaluation.get(["knn:digits"], 0.3)["knn:digits"].max_bad_share == 0.3


def test_calibration_rejects_multiple_labels():
    inputs = inputs_of(test=8)
    read = inputs.test.read
    several = dataclasses.replace(
        inputs.test, read=lambda i: {**read(i), "label": tf.constant([0, 1], tf.int64)}, labels=None
    )
    inputs = dataclasses.replace(inputs, test=several)
    evaluator = evaluation.get(["calibration"])["calibration"]
    for function in (evaluator.check, evaluator.evaluate):
        with pytest.raises(ValueError, match="one label.*Received: .*'test' with several labels"):
            function(mean_color(), inputs)


@pytest.mark.full
def test_real_reads_a_flat_folder_of_images(tmp_path):
    tmp_path /= "a+b"  # a plus separates datasets but may also be part of a path
    folder = tmp_path / "images" / "val"
    folder.mkdir(parents=True)
    for number, color in enumerate(([200, 30, 30], [30, 200, 30]), start=1):
        image = np.broadcast_to(np.array(color, "uint8"), (8, 8, 3))
        (folder / f"ILSVRC2012_val_{number:08}.png").write_bytes(tf.io.encode_png(image).numpy())
    (tmp_path / "real.json").write_text("[[0], [2]]")
    name = f"real:{tmp_path}/real.json@{tmp_path}/images"
    assert evaluation.evaluate(mean_color(), [name]) == {f"{name}/accuracy": 0.5}
    (tmp_path / "real.json").write_text("[[0], [3]]")
    with pytest.raises(ValueError, match=r"integers in \[0, 3\)"):
        evaluation.evaluate(mean_color(), [name])
    nan = mean_color()
    nan.get_layer("head").bias.assign(np.full(3, np.nan))
    (tmp_path / "real.json").write_text("[[0], [2]]")
    with pytest.raises(ValueError, match="must be finite"):
        evaluation.evaluate(nan, [name])
    (tmp_path / "real.json").unlink()
    with pytest.raises(ValueError, match="The file must exist.*Received: path='.*a.b/real.json'"):
        evaluation.evaluate(mean_color(), [name])


def test_load_inputs_uses_the_preprocessing_of_the_model():
    model = keras_vit.VisionTransformer(
        **{**SIZES, "patch_size": 8},
        input_shape=(16, 16, 3),
        classes=10,
        preprocessing={
            "mean": [0, 0, 0],
            "std": [255, 255, 255],
            "resize": "stretch",
            "crop_fraction": 1.0,
        },
    )
    inputs = evaluation.load_inputs(model, "digits", splits=("test",))
    images = np.asarray(next(iter(inputs.eval_batches()))[0])
    assert images.shape == (64, 16, 16, 3) and images.min() == 0 and images.max() == 1
    (evaluator,) = evaluation.get(["top1:digits"]).values()
    assert evaluator.METRICS == ("accuracy", "top5_accuracy")
    assert 0 <= evaluator.evaluate(model)["accuracy"] < 0.5


def test_crop_fraction_matches_a_crop_of_a_larger_image():
    sizes = {**SIZES, "classes": 10}
    cropped = keras_vit.Preprocessing(crop_fraction=0.5)
    for side in (8, 12):  # digits are 8x8 pixels
        model = keras_vit.VisionTransformer(
            **sizes, input_shape=(side, side, 3), preprocessing=cropped
        )
        inputs = evaluation.load_inputs(model, "digits", splits=("test",))
        assert inputs.model_preprocessing().crop_fraction == 0.5
        whole = evaluation.load_inputs(
            keras_vit.VisionTransformer(**sizes, input_shape=(2 * side, 2 * side, 3)),
            "digits",
            splits=("test",),
        )
        middle = np.asarray(next(iter(whole.eval_batches()))[0])[
            :, side // 2 : -side // 2, side // 2 : -side // 2
        ]
        np.testing.assert_allclose(
            np.asarray(next(iter(inputs.eval_batches()))[0]), middle, atol=1e-6
        )


def test_accepts_sequential_models_and_rejects_subclasses():
    vit = keras_vit.VisionTransformer(**SIZES, input_shape=(8, 8, 3), classes=10)
    for model in (keras.Sequential([keras.Input((8, 8, 3)), vit]), keras.Sequential([vit])):
        assert evaluation.load_inputs(model, "digits", splits=("test",)).image_shape == (8, 8, 3)

    class Mine(keras.Model):
        def __init__(self):
            super().__init__()
            self.vit = vit

        def call(self, images):
            return self.vit(images)

    with pytest.raises(ValueError, match="must have a static image size: make it functional"):
        evaluation.evaluate(Mine(), ["top1:digits"])
    with pytest.raises(ValueError, match="must have a known output shape: make it functional"):
        evaluation.evaluate(Mine(), ["top1"], inputs_of())


def test_representation_excludes_a_custom_head():
    """If the pooling is unknown, the representation is the input of the last dense layer."""
    vit = keras_vit.VisionTransformer(
        **SIZES, input_shape=(8, 8, 3), classes=5, classifier="unpooled"
    )
    pooled = keras.layers.GlobalAveragePooling1D()(vit.output)
    model = keras.Model(vit.input, keras.layers.Dense(3)(pooled))
    images = random_images((2, 8, 8, 3))
    expected = keras.Model(vit.input, pooled)(images)
    np.testing.assert_array_equal(representation_model(model)(images), expected)


@pytest.mark.parametrize("kind", ["vit", "bit", "axial"])
def test_representation_of_a_backbone_is_its_output(kind):
    common = {"include_top": False, "input_shape": (32, 32, 3)}
    if kind == "bit":
        backbone = keras_vit.BiTResNet(depth=8, width=32, **common)
    elif kind == "axial":
        backbone = keras_vit.AxialVisionTransformer(**SIZES, **common)
    else:
        backbone = keras_vit.VisionTransformer(**SIZES, **common, representation_size=5)
    images = random_images((2, 32, 32, 3))
    expected = backbone(images)
    wrapped = keras.Sequential([keras.Input((32, 32, 3)), backbone])
    headed = keras.Sequential([keras.Input((32, 32, 3)), backbone, keras.layers.Dense(3)])
    for model in (backbone, wrapped, headed):
        np.testing.assert_allclose(representation_model(model)(images), expected, atol=1e-5)


def test_representation_is_what_an_outer_head_reads():
    vit = keras_vit.VisionTransformer(
        **{**SIZES, "num_layers": 2}, input_shape=(8, 8, 3), classes=5
    )
    first = keras_vit.FeatureModel(vit, 1, tokens="class")
    model = keras.Sequential([keras.Input((8, 8, 3)), first, keras.layers.Dense(3)])
    images = random_images((2, 8, 8, 3))
    np.testing.assert_allclose(representation_model(model)(images), first(images), atol=1e-6)
    expected = keras_vit.FeatureModel(vit, tokens="pooled")(images)
    np.testing.assert_allclose(representation_model(vit)(images), expected, atol=1e-6)


def _folder(path, **counts):
    """Writes PNG files of 8x8 pixels: `counts` of each "split_class", with the class's color."""
    colors = {"cat": (200, 30, 30), "dog": (30, 200, 30), "owl": (30, 30, 200)}
    for name, count in counts.items():
        split, label = name.split("_")
        (path / split / label).mkdir(parents=True)
        for i in range(count):
            pixels = np.full((8, 8, 3), colors[label], "uint8") + np.uint8(i)
            (path / split / label / f"{i}.png").write_bytes(tf.io.encode_png(pixels).numpy())
    return path


def test_folder_splits_share_classes(model, tmp_path):
    photos = _folder(tmp_path, train_cat=3, train_dog=3, train_owl=3, test_cat=2, test_owl=2)
    inputs = evaluation.load_inputs(model, "folder", str(photos))
    assert inputs.test.class_names == ("cat", "dog", "owl") and inputs.test.labels.tolist() == [
        0,
        0,
        2,
        2,
    ]
    assert evaluation.evaluate(model, [f"knn:folder@{photos}"]) == {
        f"knn:folder@{photos}/accuracy": 1.0
    }


def test_folder_classes_get_the_order_of_the_model(tmp_path):
    photos = _folder(tmp_path, test_cat=2, test_owl=2)
    names = ("dog", "owl", "cat")
    inputs = evaluation.load_inputs(
        mean_color(), "folder", str(photos), ("test",), class_names=names
    )
    assert inputs.test.class_names == names and inputs.test.labels.tolist() == [1, 1, 2, 2]
    inputs = evaluation.load_inputs(
        mean_color(), "folder", str(photos), ("test",), class_names=("cat", "dog")
    )
    # Not all of the folder's classes are the model's.
    assert inputs.test.class_names == (
        "cat",
        "owl",
    )


def test_folder_evaluator_uses_the_classes_and_the_split_of_the_model(tmp_path):
    """The model's classes are in the order owl, cat, dog, and a bright image is a training
    image."""
    colors = {"owl": (200, 30, 30), "cat": (30, 200, 30), "dog": (30, 30, 200)}
    for name, color in colors.items():
        (tmp_path / name).mkdir()
        for i in range(12):
            pixels = np.full((8, 8, 3), color, "uint8") + np.uint8(i)
            (tmp_path / name / f"{i}.png").write_bytes(tf.io.encode_png(pixels).numpy())
    evaluator = f"top1:folder@{tmp_path}"
    names = tuple(colors)
    split = {"test_share": 0.25, "split_seed": 7}
    run = {"name": "folder", "path": f"{tmp_path}/", **split}
    accuracy = lambda **options: evaluation.evaluate(mean_color(), [evaluator], **options)[  # noqa: E731
        f"{evaluator}/accuracy"
    ]
    assert accuracy(class_names=names) == 1 and accuracy() == 0
    whole, source = (
        evaluation.get([evaluator], class_names=names, run=fields)[evaluator]
        ._inputs(mean_color(), None)
        .test
        for fields in ({**run, "path": "/elsewhere"}, run)
    )
    expected = data.load_split("folder", "test", path=str(tmp_path), **split)
    assert {*map(source.name_of, range(9))} == {*map(expected.name_of, range(9))}
    assert (source.num_examples, whole.num_examples) == (9, 36)
    with pytest.raises(ValueError, match="in the order of the model's outputs.*'digits'"):
        evaluation.evaluate(mean_color(), ["top1:digits"], class_names=[*"9876543210"])
    assert evaluation.get(["knn:digits"], class_names=[*"9876543210"])["knn:digits"]._inputs(
        mean_color(), None
    )


def test_rejects_a_dataset_with_another_class_order(model):
    with pytest.raises(ValueError, match="order of the model's outputs.*'9', '8'"):
        evaluation.load_inputs(model, "digits", class_names=[*"9876543210"])
    assert (
        evaluation.load_inputs(model, "digits", class_names=[*"0123456789"]).test.num_examples
        == 360
    )


def test_load_inputs_applies_mean_and_std():
    model = keras_vit.VisionTransformer(
        **SIZES,
        input_shape=(8, 8, 3),
        classes=10,
        preprocessing={
            "mean": [51] * 3,
            "std": [51] * 3,
            "resize": "stretch",
            "crop_fraction": 1.0,
        },
    )
    inputs = evaluation.load_inputs(model, "digits", splits=("test",))
    images = np.asarray(next(iter(inputs.eval_batches()))[0])
    # (0 - 51) / 51 and (255 - 51) / 51
    np.testing.assert_allclose([images.min(), images.max()], [-1, 4], atol=1e-6)


def test_representation_requires_a_vit_or_a_dense_head():
    model = mean_color()
    assert representation_model(model).output_shape == (None, 3)
    with pytest.raises(ValueError, match="no Vision Transformer"):
        representation_model(keras.Sequential([keras.Input((8, 8, 3)), keras.layers.Flatten()]))


def test_rejects_bad_requests(model):
    four = inputs_of(classes=4)
    for match, call in (
        (
            "evaluator must be one of top1, .*Received: 'top2:digits'",
            lambda: evaluation.get(["top2:digits"]),
        ),
        (r"Did you mean top1\? Received: 'top2'", lambda: evaluation.get(["top2"])),
        (r"write --config.evals=.*Received: 'top1,knn'", lambda: evaluation.get(["top1,knn"])),
        ("needs a dataset, as in top1:digits", lambda: evaluation.evaluate(model, ["top1"])),
        (
            r"each of 4 classes. Received: output_shape=\(None, 3\)",
            lambda: evaluation.evaluate(model, ["top1"], four),
        ),
        ("each of 10 classes", lambda: evaluation.evaluate(model, ["calibration:digits"])),
        (
            "a local copy as knn:nothing@FOLDER.*Received: name='nothing'",
            lambda: evaluation.evaluate(model, ["knn:nothing@/data"]),
        ),
        (
            "load its dataset; .*real:imagenet2012_real@FOLDER",
            lambda: evaluation.evaluate(model, ["real"]),
        ),
        (
            "`path` must be an existing folder",
            lambda: evaluation.evaluate(model, ["real:real.json@nowhere"]),
        ),
        (
            "^`model` changes images in 'scale'",
            lambda: evaluation.evaluate(
                keras.Sequential(
                    [keras.Input((8, 8, 3)), keras.layers.Rescaling(2.0, name="scale"), model]
                ),
                ["top1:digits"],
            ),
        ),
    ):
        with pytest.raises(ValueError, match=match):
            call()


def test_linear_probe_requires_two_examples_per_class(model):
    evaluator = evaluation.get(["linear_probe"])["linear_probe"]
    inputs = inputs_of(train=5)
    evaluator.check(model, inputs_of(train=6))
    with pytest.raises(ValueError, match="Received: 3 classes, the smallest with 1 examples"):
        evaluator.check(model, inputs)
    x = np.zeros((3, 2), "float32")
    for y in ([0, 0, 0], [0, 0, 1]):
        with pytest.raises(
            ValueError, match="at least two classes and at least two training examples"
        ):
            frozen.fit_and_score(x, np.array(y), x, np.array(y))


@pytest.mark.parametrize("name", ["knn", "fewshot", "linear_probe"])
def test_frozen_evaluators_reject_multiple_labels(model, name):
    inputs = inputs_of(train=60)
    several = dataclasses.replace(
        inputs.test,
        labels=None,
        read=lambda index: inputs.test.read(index) | {"label": tf.range(2)},
    )
    with pytest.raises(ValueError, match="with several labels"):
        evaluation.evaluate(model, [name], dataclasses.replace(inputs, test=several))


@pytest.mark.parametrize("name", ["top1", "knn", "calibration", "average_precision"])
def test_rejects_nan_outputs(name):
    broken = keras.models.clone_model(mean_color())
    broken.get_layer("head").set_weights([np.full((3, 3), np.nan), np.zeros(3)])
    # `knn` uses the input of the last layer.
    deeper = keras.Model(broken.input, keras.layers.Dense(3)(broken.output))
    with pytest.raises(ValueError, match="must be finite"):
        evaluation.evaluate(deeper, [name], inputs_of())


def test_feature_evaluators_of_a_masked_model_read_labels():
    model = keras_vit.MaskedPatchVisionTransformer(
        **SIZES, input_shape=(8, 8, 3), classes=4, classifier="token_unpooled"
    )
    images = np.random.default_rng(0).integers(0, 256, (20, 8, 8, 3), dtype=np.uint8)
    source = data.arrays(images, np.arange(20) % 2, ["a", "b"])
    inputs = data.InputPipeline(source, source, {}, 8, 0, 0.01, target="none")
    metrics = evaluation.evaluate(model, ["knn"], inputs)
    assert 0 <= metrics["knn/accuracy"] <= 1
