"""Tests of the distillation task."""

import re

import keras
import numpy as np
import pytest
from keras import ops
from ml_collections import ConfigDict

import keras_vit
from keras_vit import data, recipes, tasks
from keras_vit.tasks.distillation import difference
from keras_vit.tasks.teachers import compare_classes, images_for
from keras_vit.training.stored_models import load_any_model
from keras_vit.training.weights import load_inputs

from ..shared import (
    SIZES,
    assert_close,
    assert_same_weights,
    random_images,
    randomize_head,
    to_numpy,
    value_and_gradients,
)


def softmax(x):
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def imitation_loss(loss, teacher, student):
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
    expected, expected_gradient = imitation_loss(loss, teacher, student)

    def total(student):
        return ops.sum(difference(loss, teacher.astype("float32"), student, 2.0))

    losses = difference(loss, *(x.astype("float32") for x in (teacher, student)), 2.0)
    assert_close(losses, expected)
    _, (gradient,) = value_and_gradients(total, [student.astype("float32")])
    assert_close(gradient, expected_gradient)


def teacher_of(size=8, **arguments):
    keras.utils.set_random_seed(1)
    defaults = {**SIZES, "input_shape": (size, size, 3), "classes": 10, "dropout": 0.5}
    model = keras_vit.VisionTransformer(**{**defaults, **arguments})
    return model if model.head is None else randomize_head(model)


def start(tmp_path, teacher_model, model=(), **changes):
    """Returns a task that imitates a teacher, its student, and the digits as inputs."""
    path = str(tmp_path / "teacher.keras")
    teacher_model.save(path)
    fields = {"data": data.defaults(name="digits"), "teacher": path, **changes}
    config = recipes.defaults(task="distillation", model={**SIZES, **dict(model)}, **fields)
    config = ConfigDict(config)
    task = tasks.get(config)
    task.load_models(load_any_model, print)
    inputs = task.name_classes(load_inputs(config, print, task), print)
    return task, task.make_model(inputs), inputs


@pytest.mark.parametrize("size, channels", [(8, 1), (12, 3), (5, 3)])
def test_teacher_sees_the_same_pixels(size, channels, tmp_path):
    expected = keras_vit.Preprocessing(
        mean=(9000.0, 30000.0, 20000.0), std=(800.0, 900.0, 1000.0), bit_depth=16
    )
    task, _, _ = start(tmp_path, teacher_of(size, preprocessing=expected, patch_size=size))
    student = keras_vit.VisionTransformer(**SIZES, input_shape=(8, 8, channels), classes=10)
    pixels = np.random.default_rng(0).integers(0, 256, (2, 8, 8, channels))
    images = keras_vit.preprocess_input(pixels, student)
    # Linear interpolation between pixel centers, over wider windows for a smaller image.
    centers = (np.arange(size) + 0.5) * 8 / size
    weights = np.maximum(1 - np.abs(np.arange(8) + 0.5 - centers[:, None]) / max(1, 8 / size), 0)
    weights /= weights.sum(1, keepdims=True)
    resized = np.einsum("ij,bjkc,lk->bilc", weights, pixels, weights)
    normalized = (257 * resized - expected.mean) / expected.std  # 257 * 255 is the white of 16 bits
    (frozen,) = task.frozen_models
    assert_close(images_for(frozen, images, student.preprocessing), normalized)


def test_teacher_computes_in_the_precision_of_the_run(tmp_path):
    teacher = teacher_of(dtype="mixed_float16")
    task, _, _ = start(tmp_path, teacher, precision="mixed_bfloat16")
    (frozen,) = task.frozen_models
    assert frozen.dtype_policy.name == "mixed_bfloat16"
    assert not frozen.trainable_variables


def test_a_sequential_teacher_of_another_size_is_not_trained(tmp_path):
    layers = [
        keras.Input((4, 4, 3)),
        keras_vit.layers.InputPreprocessing(keras_vit.Preprocessing()),
        keras.layers.Flatten(),
        keras.layers.BatchNormalization(),
        keras.layers.Dense(10),
    ]
    teacher = keras.Sequential(layers)
    task, student, inputs = start(tmp_path, teacher)
    batch = [part.numpy() for part in next(iter(inputs.train_batches()))]
    losses, _ = task.losses_and_metrics(student, batch, training=True)
    assert np.isfinite(to_numpy(losses)).all()
    assert_same_weights(task.frozen_models[0], teacher)


def test_images_without_labels_only_imitate(tmp_path):
    fields = {"label_weight": 0.25, "temperature": 2.0}
    task, student, _ = start(tmp_path, teacher_of(), distillation=fields)
    randomize_head(student, seed=2)
    images = random_images((6, 8, 8, 3))
    labels = np.eye(10, dtype="float32")[[3, 1, 4, 1, 5, 9]]
    labels[::2] = 0
    losses, metrics = task.losses_and_metrics(student, (images, labels, None), training=True)
    own, theirs = (
        to_numpy(model(images)).astype("float64") for model in (student, *task.frozen_models)
    )
    imitation, _ = imitation_loss("kl", theirs, own)
    cross_entropy = -np.sum(labels * np.log(softmax(own)), -1)
    has_label = labels.any(-1)
    expected = np.where(has_label, 0.75 * imitation + 0.25 * cross_entropy, imitation)
    assert_close(losses, expected)
    agreement = own.argmax(-1) == theirs.argmax(-1)
    right = np.where(has_label, own.argmax(-1) == labels.argmax(-1), agreement)
    np.testing.assert_array_equal(to_numpy(metrics["agreement"]), agreement)
    np.testing.assert_array_equal(to_numpy(metrics["accuracy"]), right)


def test_both_heads_of_a_distilled_student_learn(tmp_path):
    fields = {"loss": "hard", "label_weight": 0.5}
    teacher = teacher_of(distilled=True)
    task, student, _ = start(tmp_path, teacher, {"distilled": True}, distillation=fields)
    images = random_images((4, 8, 8, 3))
    labels = np.eye(10, dtype="float32")[:4]
    teacher_labels = np.eye(10)[to_numpy(task.frozen_models[0](images)).argmax(-1)]
    biases = random_images((2, 10))  # the only logits of a new student
    student.head.bias.assign(biases[0])
    student.head.distillation.bias.assign(biases[1])
    losses, _ = task.losses_and_metrics(student, (images, labels, None))
    log_shares = np.log(softmax(biases))
    expected = -(labels @ log_shares[0] + teacher_labels @ log_shares[1]) / 2
    assert_close(losses, expected)


@pytest.mark.parametrize(
    "width, distilled, kernels",
    # A student of 8 features has a head for a teacher of 12, with a kernel for each class token.
    # With two tokens, it returns 16 features.
    [(8, False, 0), (12, False, 1), (16, True, 0), (12, True, 2)],
)
def test_student_of_features_has_the_width_of_the_teacher(width, distilled, kernels, tmp_path):
    teacher = teacher_of(hidden_size=width)
    model = {"distilled": distilled}
    task, student, _ = start(tmp_path, teacher, model, distillation={"loss": "cosine"})
    assert student.output_shape == (None, width)
    weights = [] if student.head is None else student.head.weights
    random_kernels = [weight for weight in weights if weight.name == "kernel" and np.any(weight)]
    assert len(random_kernels) == kernels
    assert task.target == "none" and task.export_options() is None
    images = random_images((4, 8, 8, 3))
    losses, _ = task.losses_and_metrics(student, (images, None, None))
    features = keras_vit.features(teacher, images)
    expected, _ = imitation_loss("cosine", features, to_numpy(student(images)))
    assert_close(losses, expected)


def test_student_without_labels_has_the_classes_of_the_teacher(tmp_path):
    fields = {"labels": False}
    task, student, inputs = start(tmp_path, teacher_of(classes=3), distillation=fields)
    assert student.output_shape == (None, 3)
    assert inputs.test.class_names == ("class 0", "class 1", "class 2")
    assert (inputs.target, task.metrics) == ("none", ("agreement",))


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"teacher": ""}, "teacher` must be the model"),
        ({"loss": "sigmoid"}, "loss` must be softmax"),
        ({"distillation": {"loss": "mse"}}, "loss` must be one of kl"),
        ({"distillation": {"temperature": -1.0}}, "must be finite and above 0"),
        ({"distillation": {"temperature": 4.0, "loss": "hard"}}, "must be 1 without kl"),
        ({"distillation": {"labels": False, "label_weight": 0.5}}, "0 without labels"),
        ({"model": {"distilled": True}}, "above 0 for a student"),
        ({"distillation": {"teacher_size": 16}}, "keep their own"),
    ],
)
def test_rejects_unsuitable_fields(changes, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        start(tmp_path, teacher_of(), **changes)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"classes": 7}, "Received: 10 classes, teacher=.* with 7"),
        ({"input_shape": (8, 8, 1)}, "`data.channels` must be 1"),
        ({"include_top": False}, "no head"),
        ({"classifier": "unpooled"}, "one row for each image"),
        ({"classifier_activation": "softmax"}, "softmax outputs"),
    ],
)
def test_rejects_unsuitable_teachers(arguments, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        start(tmp_path, teacher_of(**arguments))


@pytest.mark.parametrize(
    ("known", "message"),
    [
        (("cat", "Dog"), ""),
        (("cat", "puppy"), "warning: .*by position: dog with puppy"),
        ((), "warning: .*by position: the names of its outputs are unknown"),
    ],
)
def test_other_names_of_classes_cause_a_warning(known, message):
    written = []
    compare_classes(("cat", "dog"), known, "teacher.keras", written.append)
    assert re.fullmatch(message, "".join(written))


def test_classes_at_other_positions_are_refused():
    with pytest.raises(ValueError, match="classes cat instead of wolf"):
        compare_classes(("dog", "cat"), ("Cat", "wolf"), "teacher.keras", print)
