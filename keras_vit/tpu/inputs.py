"""Determines the shapes of a model's inputs, if possible without reading the dataset."""

import dataclasses
import types

from keras_vit import data, recipes
from keras_vit.data.loading import fields_of
from keras_vit.preprocessing import LAYOUTS, Preprocessing


@dataclasses.dataclass(frozen=True)
class InputShapes:
    """Replaces `data.InputPipeline` when a task builds its model; `num_examples` is 0 if
    unknown."""

    image_shape: tuple
    num_classes: int
    num_examples: int = 0
    resize: str = "stretch"  # of the model's `Preprocessing`

    @property
    def train(self):
        """The class names and the number of examples, as of a `data.Source`."""
        names = tuple(f"class {i}" for i in range(self.num_classes))
        return types.SimpleNamespace(class_names=names, num_examples=self.num_examples)

    def model_preprocessing(self):
        """Returns a `Preprocessing` with those fields that change the size of the model."""
        return Preprocessing(resize=self.resize).for_channels(self.image_shape[-1])


def input_shapes(config, target="classes"):
    """Returns the `InputShapes` of a config, for a task that learns from a kind of target.

    Reads the dataset only if it is available on every machine or if the config does not determine
    the shapes.
    """
    group = config.data
    # The shape of an image, if the config determines it.
    size = group.image_size
    image_shape = (size, size, group.channels) if size else tuple(group.image_shape)
    image_shape = tuple(config.model.get("input_shape") or image_shape)
    options = data.Options(**data.option_fields(group))
    resize = options.kind.resize(options)
    if not LAYOUTS[resize].has_one_size:
        image_shape = options.kind.shape(options)

    # The numbers of classes and examples, if they are known.
    known = data.DATASETS.get(group.name)
    num_classes = group.classes if known is None else known.classes
    num_examples = group.num_examples
    if not num_examples and group.train_split == "train":
        num_examples = recipes.NUM_EXAMPLES.get(group.name, 0)

    generated = "path" not in fields_of(group.name)  # available on every machine
    if image_shape and num_classes and not generated:
        return InputShapes(image_shape, num_classes, num_examples, resize)
    try:
        inputs = data.from_config(
            group, batch_size=config.batch_size, seed=config.seed, target=target
        )
    except (ValueError, OSError) as error:
        if generated:
            raise
        raise ValueError(
            "`data.image_size` and `data.classes` must be set for a dataset that is not on this "
            f"machine, for example --config.data.classes=1000. Received: data.name={group.name!r}, "
            f"data.image_size={size}, data.classes={group.classes} ({error})"
        ) from error
    num_classes = len(inputs.train.class_names)
    shape = image_shape or inputs.image_shape
    return InputShapes(shape, num_classes, inputs.train.num_examples, resize)
