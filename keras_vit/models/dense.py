"""The base class of Vision Transformers that predict a class or the depth of every pixel."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
from keras import ops

from keras_vit.checkpoints import names
from keras_vit.layers.validation import check_positive_int, check_positive_ints
from keras_vit.models.any_model import find_vision_transformer
from keras_vit.models.image_model import keep
from keras_vit.models.validation import check_supported
from keras_vit.models.vision_transformer import VisionTransformer

# Values of arguments that dense heads support; see `VisionTransformer`.
_SUPPORTED = {
    "include_top": (True,),
    "representation_size": (0,),
    "head_bias": (0,),
    "classifier_activation": (None, "linear"),
}


class DenseVisionTransformer(VisionTransformer):
    """A Vision Transformer whose head reads the tokens of one or several blocks.

    Args:
        levels: numbers of the blocks whose outputs the head reads, counted from 1, in order. The
            last one must be `num_layers`. None for the default of the head.
        level_norm: whether the final LayerNorm applies to every level; without effect in a model
            with `pool_norm`, whose only final LayerNorm follows the pooling.
        **kwargs: arguments of `VisionTransformer`. `classifier` only determines whether the model
            has a class token. `include_top` must be True; `representation_size`, `head_bias` and
            `classifier_activation` must have their defaults.

    Attributes:
        predicts: "segmentation" or "depth", the meaning of the outputs.
        levels: the numbers of the levels, also if the argument is None.

    Raises:
        ValueError: an argument is out of range.
    """

    predicts: str = "segmentation"
    head_arguments: Mapping[str, Any]  # a subclass sets them before it calls this constructor

    def __init__(
        self,
        *,
        num_layers: int,
        levels: Sequence[int] | None = None,
        level_norm: bool = True,
        **kwargs: Any,
    ) -> None:
        check_positive_int("num_layers", num_layers)
        levels = self.default_levels(num_layers) if levels is None else levels
        keep(self, levels=_checked_levels(levels, num_layers), level_norm=level_norm)
        super().__init__(num_layers=num_layers, **kwargs)

    @classmethod
    def on(cls, model: keras.Model, **arguments: Any) -> "DenseVisionTransformer":
        """Builds a model of this class with the structure, weights and preprocessing of another.

        Args:
            model: a `keras.Model` that is or contains a `VisionTransformer`, whose head is not
                used. The new model shares no weights with it, and its layers are trainable.
            **arguments: further arguments of the constructor, which must leave the shapes of the
                weights before the head unchanged.

        Raises:
            ValueError: the model has no `VisionTransformer` or has LoRA adapters, its patches form
                no maps, or an argument is out of range or changes a shape.
        """
        vit = find_vision_transformer(model)
        vit.check_grid()
        of_head = {*vit.own_arguments(), *_SUPPORTED, "classes"}
        kept = {name: value for name, value in vit.arguments.items() if name not in of_head}
        dense = cls(**{**kept, "preprocessing": vit.preprocessing, **arguments})
        source = names.canonical_variables(vit)
        if any("lora_kernel" in name for name in source):
            raise ValueError(
                "LoRA adapters cannot be copied. Save the model as .keras, which merges them into "
                f"the kernels, and load that file. Received: model={model.name!r}"
            )
        for name, variable in names.canonical_variables(dense).items():
            if name.startswith("head/"):
                continue
            if name not in source or source[name].shape != variable.shape:
                raise ValueError(
                    "The arguments must not change the structure or the image size; load the model "
                    f"with these arguments first. Received: {arguments}, which change {name!r}"
                )
            variable.assign(ops.copy(source[name]))
        return dense

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: Mapping[str, Any] | None = None
    ) -> "DenseVisionTransformer":
        # Earlier versions stored the values of the backbone, which had no effect.
        ignored = ("head_bias", "classifier_activation")
        config = {name: value for name, value in config.items() if name not in ignored}
        return super().from_config(config, custom_objects)

    def own_arguments(self) -> dict[str, Any]:
        return {"levels": self.levels, "level_norm": self.level_norm, **self.head_arguments}

    def default_levels(self, num_layers: int) -> tuple[int, ...]:
        """Returns the levels that the head reads if the argument `levels` is None."""
        return (num_layers,)

    def make_dense_head(self, arguments: Mapping[str, Any], policy: dict) -> keras.layers.Layer:
        """Creates the head, a layer named "head" that reads a list of tokens `(B, N, D)`."""
        raise NotImplementedError

    def _make_layers(self, arguments, preprocessing, policy):
        check_supported(
            arguments,
            _SUPPORTED,
            "A dense head requires include_top=True, and does not support `representation_size`, "
            "`head_bias` or `classifier_activation`.",
        )
        has_token = arguments["classifier"].startswith("token")
        every_token = {"classifier": "token_unpooled" if has_token else "unpooled"}
        without_top = {**arguments, **every_token, "include_top": False}
        super()._make_layers(without_top, preprocessing, policy)
        keep(self, head=self.make_dense_head(arguments, policy))

    def forward(self, images: keras.KerasTensor, training: bool | None = None) -> Any:
        tokens = self.embed(images, training)
        outputs = []
        for number in range(1, self.num_layers + 1):
            tokens = self.run_block(number, tokens, training)
            outputs.append(tokens)
        levels = [outputs[number - 1] for number in self.levels]
        if self.level_norm:
            levels = [self.norm(level) for level in levels]
        return self.head(levels, training=training)  # type: ignore[misc]


def _checked_levels(levels, num_layers):
    """Returns valid levels as a tuple; raises a `ValueError` for other values."""
    check_positive_ints("levels", levels, "block numbers from 1, in order")
    ordered = sorted(map(int, levels))
    if list(levels) != ordered or ordered[-1:] != [num_layers]:
        raise ValueError(
            f"`levels` must be in order and end with the last block, {num_layers}, because later "
            f"blocks would be unused. Received: {levels=}"
        )
    return tuple(ordered)


def batch_norm(name, **kwargs):
    """Builds a BatchNorm like PyTorch's, over the examples of all replicas.

    On JAX, a batch is one array that the compiler shards, so its moments are global without
    further work.
    """
    is_tensorflow = keras.backend.backend() == "tensorflow"
    return keras.layers.BatchNormalization(
        momentum=0.9, epsilon=1e-5, synchronized=is_tensorflow, name=name, **kwargs
    )
