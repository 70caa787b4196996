"""The Vision Transformer inside a model, wherever it is: its blocks, and the way from images to their tokens."""

import numbers

import keras

from keras_vit import layers
from keras_vit.models.graph import call_of, calls_of, readers_of, source_of
from keras_vit.models.replaced_method import replaced_method
from keras_vit.models.shapes import image_shape_of


class Encoder:
    """The encoder of a Vision Transformer inside a model; it has no variables of its own.

    Layers are counted as in the paper: layer 1 is the first block (`encoderblock_0`), and layer 0 are the tokens
    before it.

    Args:
        model: a `keras.Model` with one Vision Transformer in it, at any depth.

    Attributes:
        model: the argument.
        vit: the innermost `keras.Model` that has the blocks.
        blocks: the `TransformerBlock`s, in order.
        norm: the LayerNorm that reads the last block, or None.
        pool_layer, pre_logits: the layers of these purposes after it, or None.
        reads_class_token: whether the class token is what comes after the norm, of all tokens.
        grid: `(rows, columns)` of the patches.
        patch_size: `(height, width)` in pixels of the image from one patch to the next, floats. Of a hybrid whose
            image its stride does not divide, the last patches reach beyond the image.
        num_prefix_tokens: how many tokens come before those of the patches: 1 with a class token, else 0.
        hidden_size: size of a token.
        positions: for each block the layer that adds positions to its input, or None; that before the first block
            belongs to the tokens of layer 0.

    Raises:
        ValueError: there is no Vision Transformer in the model or more than one, its blocks do not follow one another,
            or one is called twice; or there are more tokens than those of the patches and a class token of this
            library.
    """

    def __init__(self, model):
        owners = {id(owner): owner for owner in _owners(model)} if isinstance(model, keras.Model) else {}
        if len(owners) != 1:
            count = "more than one Vision Transformer" if owners else "no Vision Transformer"
            raise ValueError(
                "The model must be, or have inside, one Vision Transformer of keras_vit (with layers of the type "
                f"TransformerBlock); this one has {count}. Received: model={getattr(model, 'name', model)!r}"
            )
        (self.vit,) = owners.values()
        self.model = model
        self.blocks = _of_type(self.vit, layers.TransformerBlock)
        self.num_prefix_tokens = len(_of_type(self.vit, layers.ClassToken))
        calls = calls_of(self.vit)
        self._check_called_once(calls)
        self.positions = [None, *(_position_before(calls, *pair) for pair in zip(self.blocks, self.blocks[1:]))]
        self._find_head(calls)
        self.grid = self._find_grid()
        self.patch_size = self._find_patch_size()
        self.hidden_size = int(self.blocks[0].norm_1.gamma.shape[-1])
        self._check_tokens(calls)

    def _check_called_once(self, calls):
        for block in self.blocks:
            if sum(call.operation is block for call in calls or ()) > 1:
                raise ValueError(f"Every block must be called once. Received: two calls of {block.name!r}")

    def _find_head(self, calls):
        """What comes after the last block, by the calls of layers; where they are not known, by the layers' order."""
        last, norm, pools = self.blocks[-1], keras.layers.LayerNormalization, _POOLS
        after = self.vit.layers[self.vit.layers.index(last) + 1 :]
        self.pre_logits = next((layer for layer in after if layer.name == "pre_logits"), None)
        if calls is None:
            self.norm = next((layer for layer in after if isinstance(layer, norm)), None)
            self.pool_layer = next((layer for layer in after if isinstance(layer, pools)), None)
            self.reads_class_token = self.pool_layer is None and self.num_prefix_tokens > 0
            return
        readers = [call.operation for call in readers_of(calls, last)]
        self.norm = next((layer for layer in readers if isinstance(layer, norm)), None)
        calls = readers_of(calls, self.norm or last)
        self.pool_layer = next((call.operation for call in calls if isinstance(call.operation, pools)), None)
        self.reads_class_token = self.num_prefix_tokens > 0 and any(_takes_first(call) for call in calls)

    def _check_tokens(self, calls):
        """Raises a `ValueError` where a model has tokens of its own, of which nobody knows where they stand."""
        if calls is None:
            return
        tokens = call_of(calls, self.blocks[0]).input_tensors[0].shape[1]
        expected = self.grid[0] * self.grid[1] + self.num_prefix_tokens
        if tokens not in (None, expected):
            raise ValueError(
                f"The tokens of the blocks must be those of {self.grid[0]} x {self.grid[1]} patches, after a "
                f"`ClassToken` if there is one: {expected}. Received: {tokens} tokens in model={self.vit.name!r}"
            )

    def _find_grid(self):
        for layer in self.vit.layers:
            if getattr(layer, "grid", None) is not None:
                return tuple(layer.grid)
        raise ValueError(
            "The position embedding must know its grid: pass `grid` to `PositionEmbedding`. "
            f"Received: model={self.vit.name!r}"
        )

    def _find_patch_size(self):
        stems, patches = _of_type(self.vit, layers.ResNetStem), _of_type(self.vit, layers.Patches)
        if len(stems) == 1 and len(patches) == 1:
            side = float(stems[0].stride * patches[0].patch_size)
            return side, side
        height, width = self.vit.input_shape[1:3]
        return height / self.grid[0], width / self.grid[1]

    @property
    def image_shape(self):
        """`(H, W, C)` of the model's images; a subclass of `keras.Model` around the Vision Transformer does not say."""
        return image_shape_of(self.model)

    def layers_before(self, layer):
        """The layers that compute what `layer`, one of the Vision Transformer, reads, and that layer."""
        model, used = self.model, []
        while model is not self.vit:
            inner = next(other for other in model.layers if _is_inside(self.vit, other))
            used += model.layers[: model.layers.index(inner)]
            model = inner
        return used + self.vit.layers[: self.vit.layers.index(layer) + 1]

    def layer_number(self, layer, least=0):
        """A layer as a number from `least` to the number of blocks; negative ones count from the end, -1 is the last.

        Raises:
            ValueError: there is no such layer.
        """
        last = len(self.blocks)
        is_integer = isinstance(layer, numbers.Integral) and not isinstance(layer, bool)
        number = int(layer) + (last + 1 if layer < 0 else 0) if is_integer else None
        if not is_integer or not least <= number <= last:
            raise ValueError(
                f"The layers of {self.vit.name!r} are {least} to {last}, counted from 1 for the first block, or "
                f"{least - last - 1} to -1 from the end. Received: layer={layer!r}"
            )
        return number

    def check_images(self, images):
        """Raises a `ValueError` unless images `(B, H, W, C)` are of the model's size and in its range of numbers."""
        shape, dtype = tuple(images.shape), keras.backend.standardize_dtype(images.dtype)
        expected = self.image_shape
        fits = len(shape) == 4 and all(want in (None, have) for want, have in zip(expected, shape[1:]))
        if not fits:
            raise ValueError(
                f"The model's images are (B, {', '.join(map(str, expected))}); resize them, or build the model for "
                f"another `input_shape`. Received: images of shape {shape}"
            )
        if self.model is self.vit and not dtype.startswith(("float", "bfloat")):
            raise ValueError(
                "Images must be floats in the range that the model was trained on, [-1, 1] for most: "
                f"`keras_vit.preprocess_input(images, model)`. Received: dtype={dtype}"
            )

    def embed(self, images, training=False):
        """Images `(B, H, W, C)` to the tokens before the first block, `(B, N, D)`: layer 0.

        What stands before the Vision Transformer in the model is computed too, and nothing after those tokens.
        """

        def stop(tokens, *args, **kwargs):
            raise _Reached(tokens)

        if not self.model.built:
            self.model(images)
        with replaced_method(self.blocks[0], "call", stop):
            try:
                self.model(_as_inputs(self.model, images), training=training)
            except _Reached as reached:
                return reached.tokens
        raise ValueError(f"The model must call its first block. Received: model={self.model.name!r}")

    def block(self, number, tokens, training=False, all_tokens=True):
        """The tokens of layer `number`, from 1, from those of the layer before: `(B, N, D)` to `(B, N, D)`.

        Without `all_tokens` the last block of a model with the class token classifier gives that one alone.
        """
        block = self.blocks[number - 1]
        tokens = self.with_positions(number, tokens)
        if block.first_token_only and all_tokens:
            return block.encode(tokens, training=training)
        return block(tokens, training=training)

    def with_positions(self, number, tokens):
        """What block `number`, from 1, reads of the tokens of the layer before: where a model adds positions to every
        layer, with those of this one."""
        positions = self.positions[number - 1]
        return tokens if positions is None else positions(tokens)

    def check_pools(self):
        """Raises a `ValueError` where the head reads every token, or something else that is not known here."""
        if self.pool_layer is None and not self.reads_class_token:
            raise ValueError(
                "The model does not pool its tokens by a layer that is known here; `tokens` must be 'patch' or 'all'. "
                f"Received: tokens='pooled', model={self.vit.name!r}"
            )

    def pool(self, tokens, is_last):
        """What the model's head reads, from tokens after the norm: `(B, N, D)` to `(B, F)`.

        `pre_logits`, where the model has it, is applied to the last layer alone.

        Raises:
            ValueError: as `check_pools`.
        """
        self.check_pools()
        x = tokens[:, 0] if self.pool_layer is None else self.pool_layer(tokens)
        return self.pre_logits(x) if is_last and self.pre_logits is not None else x


def _position_before(calls, before, after):
    """The position embedding between two blocks, or None; anything else there is an error."""
    if calls is None:
        return None
    source = source_of(calls, call_of(calls, after))
    if source.operation is before:
        return None
    is_position = isinstance(source.operation, layers.PositionEmbedding | layers.PositionEmbedding2D)
    if is_position and source_of(calls, source).operation is before:
        return source.operation
    raise ValueError(
        "Every block must read the output of the one before it, or that with positions added. "
        f"Received: something else between {before.name!r} and {after.name!r}"
    )


_POOLS = layers.AttentionPooling | keras.layers.GlobalAveragePooling1D


def _takes_first(call):
    """Whether a call takes the first token alone: `tokens[:, 0]`, or the only one."""
    if isinstance(call.operation, keras.layers.Flatten):
        return call.input_tensors[0].shape[1] == 1
    arguments = call.arguments.args
    is_index = type(call.operation).__name__ == "GetItem" and len(arguments) == 2
    return is_index and isinstance(arguments[1], tuple) and arguments[1][:2] == (slice(None), 0)


class _Reached(BaseException):
    """Ends a call of a model at its first block. Not an `Exception`, which Keras would wrap in one of its own."""

    def __init__(self, tokens):
        super().__init__()
        self.tokens = tokens


def _as_inputs(model, images):
    """The images as the model has its inputs, alone or as a list of one."""
    try:
        return [images] if isinstance(model.input, list) else images
    except (AttributeError, ValueError):
        return images


def _is_inside(vit, model):
    return model is vit or (isinstance(model, keras.Model) and any(_is_inside(vit, other) for other in model.layers))


def _owners(model):
    if _of_type(model, layers.TransformerBlock):
        yield model
    for layer in model.layers:
        if isinstance(layer, keras.Model):
            yield from _owners(layer)


def _of_type(model, kind):
    return [layer for layer in model.layers if isinstance(layer, kind)]
