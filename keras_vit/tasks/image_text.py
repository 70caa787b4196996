"""Image-text training: an image and its text get similar embeddings, as in CLIP and SigLIP."""

import functools
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
from keras_vit.tasks.task import Batch, LossesAndMetrics, Task, check_model_fields
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
      0 means none, as in CLIP. A published pair has its own. Both are trained, without weight decay
      if `optimizer.no_decay` lists their layer, `similarity`.
    - `locked`: whether the image tower is not trained, as in LiT (locked-image tuning).

    With `text`, `config.weights` determines and initializes the image tower. Arguments of the image
    tower replace those of the weights if they differ from the defaults of `config.architecture`.

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
        if unknown:
            raise ValueError(
                f"`config.model.text` must have fields among {', '.join(sorted(_TEXT_FIELDS))}. "
                f"Received: {', '.join(unknown)}"
            )
        if not (config.weights or "text" in config.model):
            raise ValueError(
                "`config.model.text` must be set unless `config.weights` is a published pair. "
                "Received: no text, weights=''"
            )

    def build_model(self, inputs: "InputPipeline") -> keras.Model:
        stored = self.facts_of_weights.get("model")
        if stored is None:
            model = self._towers(inputs)
        else:  # a resumed run, which does not need the file of the weights
            model = keras.saving.deserialize_keras_object(stored)
        self._check_towers(model)
        model.image.trainable = not self.config.model.get("locked", False)
        self.facts_of_weights["model"] = keras.saving.serialize_keras_object(model)
        return model

    def _towers(self, inputs):
        """Builds both towers, with the weights of `config.weights` if there are any."""
        fields = self.config.model
        arguments = self._image_arguments(inputs)
        if "text" not in fields:
            if "scale" in fields or "bias" in fields:
                raise ValueError(
                    "`model.scale` and `model.bias` must not be set for a published pair, which "
                    f"has its own. Received: {fields.to_dict()}"
                )
            if self.config.data.tokenizer:
                arguments["tokenizer"] = self.config.data.tokenizer
            model = families.from_pretrained(self.config.weights, tower="both", **arguments)
            tokenizer_of(model)  # raises an error for the tokenizer of another model
            return model
        build = families.find_family(self.config.architecture).constructor
        if self.config.weights:
            build = functools.partial(families.from_pretrained, self.config.weights)
        image = build(include_top=False, **arguments)
        text = self._text_tower(image.output_shape[-1])
        bias = fields.get("bias") or None
        return TwoTowers(image, text, scale=fields.get("scale", 10.0), bias=bias)

    def _check_towers(self, model):
        """Raises a `ValueError` if the loss or the data do not fit the towers."""
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

    def _image_arguments(self, inputs):
        """Returns the arguments of the image tower, or those that replace those of the weights."""
        check_model_fields(self.config, _OWN_FIELDS)
        if not self.config.weights:
            return self._model_arguments(inputs, _OWN_FIELDS)
        fields = self.config.model.to_dict().items()
        defaults = families.model_fields(self.config.architecture)
        unchanged = [name for name, value in fields if value == defaults.get(name)]
        arguments = self._model_arguments(inputs, omit=(*_OWN_FIELDS, *unchanged))
        return {**arguments, "channels": self.config.weights_channels or None}

    def _text_tower(self, embedding_size):
        """Builds the text tower, with initial weights."""
        arguments = dict(self.config.model.text)
        arguments["remat"] = arguments.get("remat", False) or self.config.remat
        tokenizer = self.config.data.tokenizer
        tokenizer_size = Tokenizer(tokenizer).vocabulary_size if tokenizer else 0
        arguments["vocabulary_size"] = arguments.get("vocabulary_size") or tokenizer_size
        if arguments["vocabulary_size"] < tokenizer_size:
            raise ValueError(
                f"`model.text.vocabulary_size` must be 0 or at least {tokenizer_size}, the number "
                "of ids of the tokenizer. Received: "
                f"vocabulary_size={arguments['vocabulary_size']}"
            )
        return TextTransformer(
            **arguments,
            length=self.config.data.text_length,
            embedding_size=embedding_size,
            tokenizer=tokenizer,
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
