"""Tests of the distillation task."""

import keras
import numpy as np
import pytest
from keras import ops
from ml_collections import ConfigDict

import keras_vit
from keras_vit import data, recipes, tasks
from keras_vit.tasks.distillation import difference
from keras_vit.training.stored_models import load_any_model
from keras_vit.training.weights import load_inputs

from ..shared import SIZES


def gradient(function, x):
    if keras.backend.backend() == "jax":
        import jax

        return np.asarray(jax.grad(lambda x: ops.sum(function(x)))(x))
    import tensorflow as tf

    x = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        total = ops.sum(function(x))
    return tape.gradient(total, x).numpy()


def softmax(x):
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def expected_of(loss, teacher, student):
    """Returns the loss and its gradient, with a temperature of 2 for "kl"."""
    if loss == "squared_error":
        return np.mean((student - teacher) ** 2, -1), 2 * (student - teacher) / student.shape[-1]
    if loss == "cosine":
        cosine = np.sum(unit(teacher) * unit(student), -1, keepdims=True)
        length = np.linalg.norm(student, axis=-1, keepdims=True)
        return 1 - cosine[:, 0], (cosine * unit(student) - unit(teacher)) / length
    if loss == "hard":
        hard = np.eye(student.shape[-1])[teacher.argmax(-1)]
        return -np.sum(hard * np.log(softmax(student)), -1), softmax(student) - hard
    # "kl"
    theirs = softmax(teacher / 2)
    own = softmax(student / 2)
    return 4 * np.sum(theirs * np.log(theirs / own), -1), 2 * (own - theirs)


@pytest.mark.parametrize("loss", tasks.distillation.LOSSES)
def test_loss_and_gradient_equal_numpy(loss):
    teacher, student = 3 * np.random.default_rng(0).standard_normal((2, 5, 7))
    own, theirs = (x.astype("float32") for x in (student, teacher))
    expected, slope = expected_of(loss, teacher, student)

    def compute(x):
        return difference(loss, theirs, x, 2.0)

    np.testing.assert_allclose(ops.convert_to_numpy(compute(own)), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(gradient(compute, own), slope, rtol=1e-4, atol=1e-6)
    if loss != "hard":

        def same(x):
            return difference(loss, own, x, 2.0)

        assert np.abs(ops.convert_to_numpy(same(own))).max() < 1e-6
        assert np.abs(gradient(same, own)).max() < 1e-6


def teacher_of(size=8, classes=10, **arguments):
    keras.utils.set_random_seed(1)
    model = keras_vit.VisionTransformer(
        **{**SIZES, "input_shape": (size, size, 3), "classes": classes, "dropout": 0.5, **arguments}
    )
    if model.head is not None:
        model.head.kernel.assign(np.random.default_rng(0).normal(size=model.head.kernel.shape))
    return model


def start(tmp_path, model_to_imitate, model=(), fields=(), **changes):
    """Returns the task and its student for the digits."""
    model_to_imitate.save(tmp_path / "teacher.keras")
    config = ConfigDict(
        recipes.defaults(
            task="distillation",
            model={**SIZES, **dict(model)},
            distillation=dict(fields),
            **{
                "data": data.defaults(name="digits"),
                "teacher": str(tmp_path / "teacher.keras"),
                "total_steps": 1,
                **changes,
            },
        )
    )
    task = tasks.get(config)
    task.load_models(load_any_model, print)
    inputs = task.name_classes(load_inputs(config, print, task), print)
    return task, task.make_model(inputs), inputs


@pytest.mark.parametrize("size", [8, 12, 5])
@pytest.mark.parametrize("channels", [1, 3])
def test_teacher_sees_the_same_pixels(size, channels, tmp_path):
    expected = keras_vit.Preprocessing(
        mean=(9000.0, 30000.0, 20000.0), std=(800.0, 900.0, 1000.0), bit_depth=16
    )
    teacher = teacher_of(size, preprocessing=expected, patch_size=size)
    task, _, _ = start(tmp_path, teacher)
    student = keras_vit.VisionTransformer(**SIZES, input_shape=(8, 8, channels), classes=10)
    pixels = np.random.default_rng(0).integers(0, 256, (2, 8, 8, channels))
    images = keras_vit.preprocess_input(pixels, student)
    found = ops.convert_to_numpy(task.teacher_images(student, images))
    wide = np.broadcast_to(pixels, (2, 8, 8, 3)) * 257.0
    # Linear interpolation between pixel centers, over wider windows for a smaller image.
    centers = (np.arange(size) + 0.5) * 8 / size
    weights = np.maximum(1 - np.abs(np.arange(8) + 0.5 - centers[:, None]) / max(1, 8 / size), 0)
    weights /= weights.sum(1, keepdims=True)
    wide = np.einsum("ij,bjkc,lk->bilc", weights, wide, weights)
    np.testing.assert_allclose(found, (wide - expected.mean) / expected.std, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("precision", ["float32", "mixed_bfloat16"])
def test_teacher_computes_in_the_precision_of_the_run(precision, tmp_path):
    keras.config.set_dtype_policy(precision)
    try:
        task, _, _ = start(tmp_path, teacher_of(dtype="mixed_float16"), precision=precision)
    finally:
        keras.config.set_dtype_policy("float32")
    assert task.frozen_models[0].dtype_policy.name == precision
    assert not task.frozen_models[0].trainable_variables


def test_a_sequential_teacher_of_another_size_is_not_trained(tmp_path):
    layers = keras.layers
    teacher = keras.Sequential(
        [
            keras.Input((4, 4, 3)),
            keras_vit.layers.InputPreprocessing(keras_vit.Preprocessing()),
            layers.Flatten(),
            layers.BatchNormalization(),
            layers.Dense(10),
        ]
    )
    task, student, inputs = start(tmp_path, teacher)
    batch = [part.numpy() for part in next(iter(inputs.train_batches()))]
    losses, _ = task.losses_and_metrics(student, batch, training=True)
    assert np.isfinite(ops.convert_to_numpy(losses)).all()
    for ours, theirs in zip(task.frozen_models[0].get_weights(), teacher.get_weights()):
        np.testing.assert_array_equal(ours, theirs)


def test_images_without_labels_only_imitate(tmp_path):
    fields = {"label_weight": 0.25, "temperature": 2.0}
    task, student, _ = start(tmp_path, teacher_of(), fields=fields)
    student.head.kernel.assign(np.random.default_rng(2).normal(size=student.head.kernel.shape))
    images = np.random.default_rng(1).uniform(-1, 1, (6, 8, 8, 3)).astype("float32")
    labels = np.eye(10, dtype="float32")[[3, 1, 4, 1, 5, 9]]
    labels[::2] = 0
    losses, metrics = task.losses_and_metrics(student, (images, labels, np.ones(6)), training=True)
    own, theirs = (
        ops.convert_to_numpy(model(images)).astype("float64")
        for model in (student, task.frozen_models[0])
    )
    imitation = expected_of("kl", theirs, own)[0]
    cross_entropy = -np.sum(labels * np.log(softmax(own)), -1)
    expected = np.where(labels.any(-1), 0.75 * imitation + 0.25 * cross_entropy, imitation)
    np.testing.assert_allclose(ops.convert_to_numpy(losses), expected, rtol=1e-4)
    agreement = own.argmax(-1) == theirs.argmax(-1)
    right = np.where(labels.any(-1), own.argmax(-1) == labels.argmax(-1), agreement)
    np.testing.assert_array_equal(ops.convert_to_numpy(metrics["agreement"]), agreement)
    np.testing.assert_array_equal(ops.convert_to_numpy(metrics["accuracy"]), right)


def test_both_heads_of_a_distilled_student_learn(tmp_path):
    task, student, _ = start(
        tmp_path,
        teacher_of(distilled=True),
        model={"distilled": True},
        fields={"loss": "hard", "label_weight": 0.5},
    )
    images = np.random.default_rng(1).uniform(-1, 1, (4, 8, 8, 3)).astype("float32")
    labels = np.eye(10, dtype="float32")[:4]
    classes = ops.convert_to_numpy(task.frozen_models[0](images)).argmax(-1)
    for head, targets in ((student.head, labels), (student.head.distillation, np.eye(10)[classes])):
        for other in (student.head, student.head.distillation):
            other.bias.assign(np.zeros(10))
        head.bias.assign(np.arange(10.0))
        losses, _ = task.losses_and_metrics(student, (images, labels, np.ones(4)))
        logs = np.log(softmax(np.arange(10.0)))
        expected = (np.log(10) - targets @ logs) / 2
        np.testing.assert_allclose(ops.convert_to_numpy(losses), expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("width", "outputs"), [(8, (None, 8)), (12, (None, 12))], ids=["same", "projected"]
)
def test_student_of_features_has_the_width_of_the_teacher(width, outputs, tmp_path):
    task, student, _ = start(tmp_path, teacher_of(hidden_size=width), fields={"loss": "cosine"})
    assert student.output_shape == outputs
    assert (student.head is None) == (width == 8)
    assert task.target == "none"
    assert task.export_options() is None
    images = np.random.default_rng(1).uniform(-1, 1, (4, 8, 8, 3)).astype("float32")
    losses, _ = task.losses_and_metrics(student, (images, np.zeros(4), np.ones(4)))
    features = keras_vit.features(keras.saving.load_model(tmp_path / "teacher.keras"), images)
    expected = 1 - np.sum(unit(features) * unit(ops.convert_to_numpy(student(images))), -1)
    np.testing.assert_allclose(ops.convert_to_numpy(losses), expected, atol=1e-5)


def test_student_without_labels_has_the_classes_of_the_teacher(tmp_path):
    task, student, inputs = start(tmp_path, teacher_of(classes=3), fields={"labels": False})
    assert student.output_shape == (None, 3)
    assert inputs.test.class_names[2] == "class 2"
    assert task.metrics == ("agreement",)
    assert inputs.target == "none"


@pytest.mark.parametrize(
    ("teacher", "changes", "message"),
    [
        ({}, {"teacher": ""}, "`teacher` must be"),
        ({}, {"loss": "sigmoid"}, "`loss` must be softmax"),
        ({}, {"fields": {"loss": "mse"}}, "loss` must be one of kl"),
        ({}, {"fields": {"temperature": 0.0}}, "above 0"),
        ({}, {"fields": {"temperature": 4.0, "loss": "hard"}}, "temperature` must be 1 without kl"),
        ({}, {"fields": {"labels": False, "label_weight": 0.5}}, "0 without labels"),
        ({}, {"model": {"distilled": True}}, "above 0 for a student"),
        ({}, {"fields": {"teacher_size": 16}}, "keep their own"),
        ({"classes": 7}, {}, "Received: 10 classes, teacher=.* with 7"),
        ({"input_shape": (8, 8, 1)}, {}, "`data.channels` must be 1"),
        ({"include_top": False}, {}, "no head"),
        ({"classifier": "unpooled"}, {}, "one row for each image"),
        ({"classifier_activation": "softmax"}, {}, "softmax outputs"),
    ],
)
def test_rejects_unsuitable_teachers_and_fields(teacher, changes, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        start(tmp_path, teacher_of(**teacher), **changes)
