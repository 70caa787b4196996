"""Image-text training: an image and its text get similar embeddings, as in CLIP and SigLIP."""

import inspect
from typing import TYPE_CHECKING

import keras
from keras import ops
from ml_collections import ConfigDict

from keras_vit import families
from keras_vit.models import TextTransformer, TwoTowers
from keras_vit.models.zero_shot_words import tokenizer_of
from keras_vit.tasks import contrastive
from keras_vit.tasks.gathering import current_batch
from keras_vit.tasks.task import Batch, LossesAndMetrics, Task
from keras_vit.text import Tokenizer

if TYPE_CHECKING:
    from keras_vit.data import InputPipeline

# Arguments of `TextTransformer` that are not fields of `config.model.text`.
_NOT_TEXT_FIELDS = {"length", "embedding_size", "tokenizer", "name", "dtype", "kwargs"}
_TEXT_FIELDS = set(inspect.signature(TextTransformer).parameters) - _NOT_TEXT_FIELDS
_OWN_FIELDS = ("text", "scale", "bias", "locked")


class ImageText(Task):
    """Contrastive training of two towers on images and their captions.

    The loss compares each image with the texts of the whole batch, on any number of devices.
    `config.loss` is "softmax" (CLIP) or "sigmoid" (SigLIP). The metric "accuracy" is the fraction
    of images whose own text is the most similar one of the batch, so it depends on the batch size.

    `config.model` contains the arguments of the image tower, an architecture without a head, and:

    - `text`: a dict with the arguments of `TextTransformer`. Its length is `data.text_length`; a
      `vocabulary_size` of 0 is that of the tokenizer. Without this field, `config.weights` is a
      published pair, which determines both towers.
    - `scale`, `bias`: initial values of the two numbers that turn cosines into logits; a `bias` of
      0 means none, as in CLIP. Both are trained, without weight decay if `optimizer.no_decay` lists
      their layer, `similarity`.
    - `locked`: whether the image tower is not trained, as in LiT (locked-image tuning).

    With `text`, `config.weights` initializes the image tower only.

    Raises:
        ValueError: a field has a value that this task does not support.

    Reference: CLIP (Radford et al., 2021), LiT (Zhai et al., 2022), SigLIP (Zhai et al., 2023).
    """

    target = "texts"
    metrics = ("accuracy",)
    loads_weights = True

    def __init__(self, config: ConfigDict) -> None:
        super().__init__(config)
        self.loss = contrastive.get(config.loss)
        if config.accumulate_steps > 1:
            raise ValueError(
                "`accumulate_steps` must be 1 for image_text, because micro-batches would compare "
                "each image with fewer texts, which is another loss; use remat=True to save "
                f"memory. Received: accumulate_steps={config.accumulate_steps}"
            )
        if config.xla:
            raise ValueError(
                "`xla` must be False for image_text, because XLA on TensorFlow cannot exchange "
                "embeddings between devices within the step. Received: xla=True"
            )
        if config.model.get("locked") and not config.weights:
            raise ValueError(
                "`weights` must be set for a locked image tower, which is not trained. Received: "
                "model.locked=True, weights=''"
            )
        unknown = sorted(set(config.model.get("text", {})) - _TEXT_FIELDS)
        if unknown or not (config.weights or "text" in config.model):
            raise ValueError(
                f"`config.model.text` must have fields among {', '.join(sorted(_TEXT_FIELDS))}, "
                "unless `config.weights` is a published pair. Received: "
                f"{', '.join(unknown) or 'no text, no weights'}"
            )

    def build_model(self, inputs: "InputPipeline") -> keras.Model:
        fields = self.config.model
        stored = self.facts_of_weights.get("model")
        if stored is not None:  # a run that resumes without the file of the weights
            model = keras.saving.deserialize_keras_object(stored)
        elif "text" not in fields:
            arguments = self._image_arguments(inputs)
            if self.config.data.tokenizer:
                arguments["tokenizer"] = self.config.data.tokenizer
            model = families.from_pretrained(self.config.weights, tower="both", **arguments)
            tokenizer_of(model)  # raises an error for the tokenizer of another model
        else:
            image = self._image_tower(inputs)
            text = self._text_tower(image.output_shape[-1])
            bias = fields.get("bias") or None
            model = TwoTowers(image, text, scale=fields.get("scale", 10.0), bias=bias)
        if self.config.loss == "sigmoid" and model.logit_bias is None:
            raise ValueError(
                "`loss` must be softmax for towers without a bias, such as CLIP's; with "
                "`model.text`, `model.bias` adds one. Received: loss='sigmoid'"
            )
        length = model.text.input_shape[-1]
        if length != self.config.data.text_length:
            raise ValueError(
                f"`data.text_length` must be {length}, as in the weights. Received: "
                f"text_length={self.config.data.text_length}"
            )
        model.image.trainable = not fields.get("locked", False)
        self.facts_of_weights["model"] = keras.saving.serialize_keras_object(model)
        return model

    def _image_arguments(self, inputs):
        """Returns the arguments of the image tower that the data and `config.remat` determine."""
        preprocessing = inputs.model_preprocessing()
        arguments = {"input_shape": tuple(inputs.image_shape), "preprocessing": preprocessing}
        return arguments | ({"remat": True} if self.config.remat else {})

    def _image_tower(self, inputs):
        """Builds the image tower, with the weights of `config.weights` if there are any."""
        arguments = {**self._image_arguments(inputs), "include_top": False}
        if self.config.weights:
            return families.from_pretrained(self.config.weights, **arguments)
        family = families.find_family(self.config.architecture)
        own = {name: v for name, v in self.config.model.items() if name not in _OWN_FIELDS}
        return family.constructor(**families.constructor_arguments(family, own) | arguments)

    def _text_tower(self, embedding_size):
        """Builds the text tower, with initial weights."""
        arguments = dict(self.config.model.text)
        place = self.config.data.tokenizer
        size = Tokenizer(place).vocabulary_size if place else 0
        arguments["vocabulary_size"] = arguments.get("vocabulary_size") or size
        if arguments["vocabulary_size"] < size:
            raise ValueError(
                f"`model.text.vocabulary_size` must be 0 or at least {size}, the number of ids of "
                f"the tokenizer. Received: vocabulary_size={arguments['vocabulary_size']}"
            )
        return TextTransformer(
            **arguments,
            length=self.config.data.text_length,
            embedding_size=embedding_size,
            tokenizer=place,
        )

    def losses_and_metrics(
        self, model: keras.Model, batch: Batch, training: bool = False
    ) -> LossesAndMetrics:
        pixels, ids, weights = batch
        images = model.encode_image(pixels, training=training and model.image.trainable)
        texts = model.encode_text(ids, training=training)
        # Compare the pairs of this device with those of all devices.
        whole = current_batch()
        pairs = contrastive.Pairs(
            images,
            texts,
            all_images=whole.gather(images),
            all_texts=whole.gather(texts),
            first=whole.device * images.shape[0],
            weights=whole.gather(weights),
        )
        scale = ops.exp(ops.convert_to_tensor(model.logit_scale))
        bias = 0.0 if model.logit_bias is None else ops.convert_to_tensor(model.logit_bias)
        return self.loss(pairs, scale, bias), {"accuracy": contrastive.right_texts(pairs)}
