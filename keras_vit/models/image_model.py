"""Base class of the models, which stores their arguments, preprocessing and head."""

import types
from collections.abc import Mapping
from typing import Any

import keras
from keras import KerasTensor
from keras.dtype_policies import QuantizedDTypePolicy

from keras_vit.arguments import check_names, parameters_of
from keras_vit.checkpoints.loading import load_into
from keras_vit.checkpoints.names import path_inside
from keras_vit.layers import InputPreprocessing
from keras_vit.layers.base import arguments_among
from keras_vit.layers.tokens import DistilledHead
from keras_vit.models.replaced_forward import replacement_of
from keras_vit.preprocessing import Layout, Preprocessing

# Subclasses by the argument that selected them in `.keras` files of version 0.2.
VARIANTS: dict[str, type[keras.Model]] = {}


class ImageModel(keras.Model):
    """A functional model from images to logits or features, which its config can rebuild.

    A subclass builds a graph of layers. It passes the graph's inputs and outputs and its own
    `arguments` to this constructor, which loads `weights`.

    Attributes:
        arguments: the constructor's arguments, including defaults, as a read-only mapping; without
            `weights`, `stem`, `preprocessing`, `name` and `dtype`.
        image_shape: `(height, width, channels)` of the images.
        input_preprocessing: the `InputPreprocessing` layer, which receives the images.
        head: the layer named "head", or None in a model without a head.
    """

    # Arguments that the data determine.
    set_by_data: tuple[str, ...] = ("input_shape",)

    arguments: Mapping[str, Any]
    image_shape: tuple[int, int, int]
    input_preprocessing: InputPreprocessing
    head: keras.layers.Layer | None

    def __new__(cls, *args, **kwargs):
        check_names(cls.__name__, [*parameters_of(cls), "trainable"], kwargs)
        return super().__new__(cls, *args, **kwargs)

    def __init__(
        self,
        inputs,
        outputs,
        *,
        arguments,
        weights=None,
        preprocessing=None,
        dtype=None,
        name=None,
        **kwargs,
    ):
        super().__init__(inputs=inputs, outputs=outputs, name=name, **kwargs)
        self.dtype_policy = keras.dtype_policies.get(dtype)
        self.arguments = types.MappingProxyType(arguments)
        self.image_shape = tuple(inputs.shape[1:])
        self.head = next((layer for layer in reversed(self.layers) if layer.name == "head"), None)
        self.input_preprocessing = next(
            layer for layer in self.layers if isinstance(layer, InputPreprocessing)
        )
        if weights is not None:
            load_into(self, weights, given=() if preprocessing is None else ("preprocessing",))

    @classmethod
    def arguments_for(
        cls, batch_shape: tuple[int, ...], arguments: Mapping[str, Any], layout: Layout
    ) -> dict[str, Any]:
        """Returns the arguments of a model for images of a batch's shape.

        Raises:
            ValueError: the model cannot use batches of this layout.
        """
        if not layout.has_one_size:
            raise ValueError(
                f"{cls.__name__} takes images of one size, as with --config.data.image_size=224. "
                f"Received: images of shape {batch_shape}"
            )
        return {"input_shape": tuple(arguments.get("input_shape") or batch_shape)}

    @classmethod
    def data_fields(cls, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Returns fields of `config.data` for a model with these arguments."""
        return {"image_size": 224}

    def own_arguments(self) -> dict[str, Any]:
        """Returns the arguments that a subclass adds to `VisionTransformer`'s."""
        return {}

    def check_input(self, images: Any) -> None:
        """Raises a `ValueError` for images that a model cannot use; subclasses override this."""

    def check_grid(self) -> None:
        """Raises a `ValueError` if the patch tokens do not form maps of the model's grid."""
        if replacement_of(self).embed is not None:
            raise ValueError(
                "Maps of patches require the model's own patch size; call this outside of "
                f"`at_patch_size`. Received: model={self.name!r}"
            )

    def call(self, inputs: KerasTensor, training: bool | None = None, mask: Any = None) -> Any:
        replaced = replacement_of(self).function
        if replaced is not None:
            return replaced(keras.tree.flatten(inputs)[0], training)
        return super().call(inputs, training=training, mask=mask)

    @property
    def preprocessing(self) -> Preprocessing:
        """Expected preprocessing of the images, which can also be set to a dict of its fields."""
        return self.input_preprocessing.preprocessing

    @preprocessing.setter
    def preprocessing(self, value: Preprocessing | Mapping[str, Any]) -> None:
        self.input_preprocessing.preprocessing = value

    def get_config(self) -> dict[str, Any]:
        for layer in self._flatten_layers():
            if isinstance(layer.dtype_policy, QuantizedDTypePolicy):
                self.input_preprocessing.refuse_quantization()
        activation = self.arguments["classifier_activation"]
        if callable(activation):
            activation = keras.activations.serialize(activation)
        return {
            **self.arguments,
            "classifier_activation": activation,
            "preprocessing": self.preprocessing.to_config(),
            "name": self.name,
            "dtype": keras.dtype_policies.serialize(self.dtype_policy),
            "logits_activation": self.input_preprocessing.logits_activation,
            "frozen": frozen_parts(self.layers),
        }

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: Mapping[str, Any] | None = None
    ) -> "ImageModel":
        config = dict(config)
        for name, variant in VARIANTS.items():
            if not config.get(name):
                config.pop(name, None)
            elif not issubclass(cls, variant):
                return variant.from_config(config, custom_objects)
        if "classifier_activation" in config:  # the config of a subclass may lack it
            config["classifier_activation"] = keras.saving.deserialize_keras_object(
                config["classifier_activation"], custom_objects=custom_objects
            )
        activation = config.pop("logits_activation", "softmax")
        model = build_with_frozen_parts(cls, config)
        model.input_preprocessing.logits_activation = activation
        return model


def frozen_parts(layers):
    """Returns the names of the frozen layers, and the paths of other frozen variables."""
    frozen = []
    for layer in layers:
        # Saving merges adapters into the kernels, so a layer that trains only its adapters is
        # loaded frozen.
        kept = [variable for variable in layer.weights if "lora_kernel" not in variable.path]
        paths = [path_inside(layer, variable) for variable in kept if not variable.trainable]
        is_frozen = not layer.trainable or (paths and len(paths) == len(kept))
        frozen += [layer.name] if is_frozen else paths
    return frozen


def build_with_frozen_parts(
    cls: type[keras.Model], config: dict[str, Any], custom_objects: Mapping[str, Any] | None = None
) -> keras.Model:
    """Builds a model from its config, whose entry "frozen" is from `frozen_parts`."""
    config = dict(config)
    frozen = set(config.pop("frozen", ()))
    model = cls(**config)
    for layer in model.layers:
        if layer.name in frozen:
            layer.trainable = False
        for variable in layer.weights:
            if path_inside(layer, variable) in frozen:
                variable.trainable = False
    return model


def keep(model, **parts):
    """Sets attributes of a model before its graph is built.

    This avoids Keras' tracking, which would reorder the weights.
    """
    for name, part in parts.items():
        object.__setattr__(model, name, part)


def kept_arguments(variables):
    """Returns `ImageModel.arguments`, given the `locals()` of a subclass's constructor."""
    omit = ("weights", "stem", "preprocessing", "name", "dtype")
    arguments = arguments_among(variables, omit)
    shape = arguments["input_shape"]
    return {**arguments, "input_shape": tuple(shape) if isinstance(shape, list) else shape}


def make_pre_logits(arguments, dtype=None):
    """Creates the tanh layer `pre_logits` of `representation_size` units, or returns None."""
    units = arguments.get("representation_size")
    if not units:
        return None
    return keras.layers.Dense(
        units, "tanh", kernel_initializer="lecun_normal", dtype=dtype, name="pre_logits"
    )


def make_head(arguments):
    """Creates the float32 head, or returns None if `include_top` is False."""
    if not arguments["include_top"]:
        return None
    dense = DistilledHead if arguments.get("distilled") else keras.layers.Dense
    return dense(
        arguments["classes"],
        activation=arguments["classifier_activation"],
        kernel_initializer="zeros",  # so that the initial logits equal the bias
        bias_initializer=keras.initializers.Constant(arguments["head_bias"]),
        dtype="float32",
        name="head",
    )


def add_head(x, arguments, dtype=None):
    """Applies `pre_logits` and the head, if the model has them, to features `(..., F)`."""
    for layer in (make_pre_logits(arguments, dtype), make_head(arguments)):
        x = x if layer is None else layer(x)
    return x
