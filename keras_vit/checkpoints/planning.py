"""Plans how a load uses every array of the model and the file."""

import dataclasses
import functools
import math
import re

import numpy as np

from keras_vit.checkpoints import names, position_embeddings, registry
from keras_vit.checkpoints.dialects.dialect import Facts
from keras_vit.checkpoints.patch_kernels import adapt_input_channels, resize_patches
from keras_vit.checkpoints.readers import LazyArray
from keras_vit.checkpoints.report import LoadReport

_ATTENTION_BIAS = re.compile(
    r"Transformer/encoderblock_\d+/MultiHeadDotProductAttention_0/([qkv])\w+/bias"
)
# float32 represents all values of these dtypes exactly.
_DTYPES = ("float32", "float16", "bfloat16")
CHANNEL_RULES = ("sum", "tile")
_HEAD_ADVICE = 'Build the model with include_top=False, or load the file with head="new".'


class LoadPlan:
    """The plan of a load.

    Attributes:
        report: the `LoadReport`.
        assignments: `{canonical name: (array, function)}`. A load assigns `function(array.read())`
            to each of these variables. The function `np.asarray` changes nothing.
    """

    def __init__(
        self,
        model,
        variables,
        shapes,
        checkpoint,
        *,
        source,
        head,
        source_grid,
        channels,
        resizes_patches,
    ):
        self.model = model
        self.variables = variables
        self.shapes = shapes
        self.source = source
        self.head = head
        self.arrays = checkpoint.arrays
        self.facts = checkpoint.facts
        self.channels = channels
        self.resizes_patches = resizes_patches and names.first_kernel(shapes) == names.EMBEDDING
        self.unknown_kind = checkpoint.unknown_kind
        self.known_grid = tuple(source_grid) if source_grid else checkpoint.facts.grid
        arguments = getattr(model, "arguments", {})
        self.rule = checkpoint.facts.position_resampling or arguments.get(
            "position_resampling", "zoom"
        )
        self.assignments = {}
        self.report = LoadReport(model.name, str(source))
        # `(family, arguments)` of the model, and of the file.
        self.of_model = registry.infer(shapes, Facts(rotary=arguments.get("rotary")))
        if "classifier" in arguments and "classifier" in self.of_model[1]:
            self.of_model[1]["classifier"] = arguments["classifier"]
        self.of_file = registry.infer(
            checkpoint.shapes, dataclasses.replace(checkpoint.facts, constructor=None)
        )
        if "classifier" in self.facts.arguments and "classifier" in self.of_file[1]:
            self.of_file[1]["classifier"] = self.facts.arguments["classifier"]
        self._compare_architectures()
        self._compare_pooling()
        self._assign(checkpoint.other_arrays)

    def _compare_architectures(self):
        """Raises a `ValueError` if the model and the file differ in family, structure or parts."""
        (family, ours) = self.of_model
        (file_family, theirs) = self.of_file
        if not self.arrays.keys() & self.shapes.keys() and file_family is None:
            message = registry.unknown_family_message(self.unknown_kind)
            raise ValueError(f"{message} Received: {self.source}")
        if file_family is None:
            return
        if not family.shares_weights(file_family) or self._has_other_parts(ours, theirs):
            raise ValueError(
                "The checkpoint must have the model's architecture: it is "
                f"{registry.describe(file_family, theirs)}, and {self.model.name} is "
                f"{registry.describe(family, ours)}. Received: {self.source}"
            )

    def _has_other_parts(self, ours, theirs):
        """Returns whether the structure or the optional parts differ.

        `ours` and `theirs` are the arguments of the model and of the file.
        """
        pairs = {name: (ours.get(name), theirs.get(name)) for name in registry.STRUCTURE}
        if self.resizes_patches and not pairs["resnet_blocks"][1]:
            del pairs["patch_size"]
        has_other_structure = any(
            pair[0] != pair[1] and (name == "resnet_blocks" or None not in pair)
            for name, pair in pairs.items()
        )
        has_other_parts = any(ours.get(name) != theirs.get(name) for name in registry.PARTS)
        our_biases, their_biases = (
            set(arguments.get("attention_bias", "qkvo")) for arguments in (ours, theirs)
        )
        return has_other_structure or has_other_parts or bool(their_biases - our_biases)

    def _compare_pooling(self):
        """Raises a `ValueError` if the file's head was trained with another pooling."""
        ours, theirs = (
            arguments.get("classifier") for _, arguments in (self.of_model, self.of_file)
        )
        has_head = (
            self.head == "keep" and names.HEAD[0] in self.shapes and names.HEAD[0] in self.arrays
        )
        if has_head and self.facts.head_reads is not None:
            raise ValueError(
                f"The file's head reads {self.facts.head_reads}, which is not supported. "
                f"{_HEAD_ADVICE} Received: {self.source}"
            )
        states_pool = {"pool", "head_pool"} & self.facts.stated().keys()
        if has_head and (states_pool or "classifier" in self.facts.arguments) and ours != theirs:
            raise ValueError(
                f"The file's head requires `classifier={theirs!r}`; build the model with it, or "
                f'load the file with head="new". Received: classifier={ours!r} in '
                f"{self.model.name}, for {self.source}"
            )

    def _assign(self, other_arrays):
        """Plans the use of every array of the model and the file."""
        new = [name for name in self.shapes if self._is_new(name)]
        zeros = [name for name in self.shapes if self._is_zero(name)]
        missing = [
            name for name in self.shapes if name not in self.arrays and name not in (*new, *zeros)
        ]
        not_loaded = [name for name in self.arrays if name not in self.shapes or name in new]
        unused = [name for name in not_loaded if not self._may_be_dropped(name)]
        if missing or (unused and (self.head == "keep" or self.unknown_kind)):
            unknown_family = ""
            if self.unknown_kind:
                unknown_family = f"{registry.unknown_family_message(self.unknown_kind)} "
            is_head = any(name in missing for name in names.HEAD)
            hint = f" {_HEAD_ADVICE}" if is_head else ""
            raise ValueError(
                f"{unknown_family}The checkpoint does not fit {self.model.name}: "
                f"{_count('missing', missing)}; {_count('unused', unused)}.{hint} Received: "
                f"{self.source}"
            )
        report = self.report
        report.new += [(name, self.shapes[name]) for name in (*new, *zeros)]
        report.dropped += [
            (name, self.arrays[name].shape) for name in not_loaded if name not in unused
        ]
        report.unused += [(name, self.arrays[name].shape) for name in unused]
        # Arrays that are not weights, such as optimizer state, are never an error.
        report.unused += [(name, array.shape) for name, array in other_arrays.items()]
        for name in zeros:
            make = functools.partial(np.zeros, self.shapes[name])
            array = LazyArray(self.shapes[name], "float32", (), make)
            self.assignments[name] = (array, np.asarray)
        first = names.first_kernel(self.shapes)
        for name in self.shapes:
            if name not in (*new, *zeros):
                self._assign_array(name, is_first=name == first)

    def _assign_array(self, name, is_first):
        """Plans the use of an array of the file, which may be resampled or adapted."""
        array = self.arrays[name]
        shape = self.shapes[name]
        if array.dtype not in _DTYPES:
            raise ValueError(
                f"The dtype of {name!r} in the checkpoint must be one of {', '.join(_DTYPES)}. "
                f"Received: dtype={array.dtype} in {self.source}"
            )
        if names.POSITION_NAMES.fullmatch(name):
            self._assign_positions(name, shape)
        elif is_first and self._fits_after_changes(array.shape, shape):
            self._assign_first_kernel(name, shape)
        elif array.shape != shape:
            raise self._other_shape(name, shape)
        else:
            tokens = (names.CLASS_TOKEN, names.DISTILLATION_TOKEN)
            function = self._token(tokens.index(name)) if name in tokens else np.asarray
            self.assignments[name] = (array, function)
            self.report.loaded.append((name, shape))

    def _is_new(self, name):
        """Returns whether a model array gets its initial value instead of a value from the file."""
        return self.head == "new" and (
            name.startswith("head/") or (name not in self.arrays and _is_optional(name))
        )

    def _is_zero(self, name):
        """Returns whether a model array is a bias that is zero, because the file lacks it."""
        if name == names.HEAD[1] and names.HEAD[0] in self.arrays and name not in self.arrays:
            return self.head == "keep"
        match = _ATTENTION_BIAS.fullmatch(name)
        return bool(match) and match[1] not in self.of_file[1].get("attention_bias", "qkvo")

    def _may_be_dropped(self, name):
        """Returns whether a file array may be dropped because the model does not need it."""
        if name.startswith("head/") and names.HEAD[0] not in self.shapes:
            return True
        return self.head == "new" and _is_optional(name)

    def _other_shape(self, name, shape, hint=""):
        """Returns the error for an array of the file whose shape does not fit the model."""
        array = self.arrays[name]
        if name.startswith("head/"):
            hint = f" {_HEAD_ADVICE}"
        return ValueError(
            f"The shape of {name!r} in the checkpoint must be {shape}, as in the model.{hint} "
            f"Received: shape={array.shape} in {self.source}"
        )

    def _fits_after_changes(self, old, new):
        """Returns whether a kernel `(height, width, in, out)` can be adapted to the shape `new`."""
        if not len(old) == len(new) == 4 or 0 in old or old == new or old[3] != new[3]:
            return False
        return old[:2] == new[:2] or self.resizes_patches

    def _assign_first_kernel(self, name, shape):
        """Plans the first convolution, which may get other numbers of channels and patch sizes."""
        array = self.arrays[name]
        old = array.shape[2]
        new = shape[2]
        if old != new and self.channels is None:
            raise ValueError(
                f"The checkpoint takes images with {old} channels, but {self.model.name} takes "
                f'{new}. To adapt {name!r}, load with channels="sum" or channels="tile" '
                f"(`weights_channels` in a config). Received: shape={array.shape} in {self.source}"
            )
        if old != new and self.channels == "tile" and new == 1:
            raise ValueError(
                '`channels` must be "sum" for a model with one channel; "tile" would keep only the '
                f"first channel. Received: channels={self.channels!r} for {self.model.name}"
            )

        def function(kernel):
            kernel = adapt_input_channels(kernel, new, self.channels) if old != new else kernel
            return resize_patches(kernel, shape[0], self.rule) if kernel.shape != shape else kernel

        self.assignments[name] = array, function
        if array.shape[:2] != shape[:2]:
            self.report.resampled.append((name, shape, (array.shape[:2], shape[:2])))
        if old != new:
            self.report.adapted.append((name, shape, (old, new, self.channels)))

    def _assign_positions(self, name, shape):
        """Plans a position embedding, which may be resampled to the grid of the model."""
        array = self.arrays[name]
        found = None
        if array.shape[-1:] == shape[-1:]:
            found = self._resampling(name, shape, array.shape)
        if found is None:
            raise self._other_shape(
                name, shape, " Set `source_grid=(rows, columns)` to the grid of the file."
            )
        old_grid, new_grid, function = found
        is_same = array.shape == shape and old_grid == new_grid
        self.assignments[name] = array, np.asarray if is_same else function
        if old_grid == new_grid:
            self.report.loaded.append((name, shape))
        else:
            self.report.resampled.append((name, shape, (old_grid, new_grid)))

    def _resampling(self, name, shape, old_shape):
        """Returns `(old grid, new grid, function)` for a position embedding.

        Returns None if the shapes do not match.
        """
        if len(old_shape) != 3 or 0 in old_shape:
            return None
        # Embeddings of one axis have no class token row.
        if name.endswith(("/x_embedding", "/y_embedding")):
            old = old_shape[1]
            new = shape[1]
            grids = ((1, old), (1, new)) if name.endswith("/x_embedding") else ((old, 1), (new, 1))
            return *grids, lambda positions: position_embeddings.resample_axis(positions, new)
        # Find both grids, and the class token rows that are dropped or new.
        new_grid = self._grid()
        found = self._file_grid(name)
        if found is None or old_shape[0] != 1:
            return None
        (old_grid, file_rows) = found
        model_rows = shape[1] - math.prod(new_grid)
        if file_rows and model_rows not in (0, file_rows):
            return None
        row = (f"{name}, the class token's row", (1, file_rows or model_rows, shape[2]))
        if file_rows and names.CLASS_TOKEN not in self.shapes:
            self.report.dropped.append(row)
        if model_rows and not file_rows:
            self.report.new.append(row)

        def function(positions):
            patches = positions[:, file_rows:]
            if old_grid != new_grid:
                patches = position_embeddings.resample(patches, old_grid, new_grid, self.rule)
            if not model_rows:
                return patches
            if file_rows:
                first = positions[:, :model_rows]
            elif names.CLASS_TOKEN in self.arrays:
                # The file has a class token, but no position embedding for it.
                first = np.zeros((1, model_rows, shape[2]), np.float32)
            else:
                # The class token is new, so its position embedding keeps the initial values.
                first = np.asarray(self.variables[name])[:, :model_rows]
            return np.concatenate([first, patches], axis=1)

        return old_grid, new_grid, function

    def _token(self, index):
        """Returns the function that converts the class or distillation token (index 0 or 1)."""
        has_positions = names.POSITIONS in self.arrays and names.POSITIONS in self.shapes
        _, file_rows = (self._file_grid(names.POSITIONS) if has_positions else None) or (None, 0)
        if not file_rows or self.shapes[names.POSITIONS][1] > math.prod(self._grid()):
            return np.asarray
        # The model's tokens have no position embedding, so add the file's embedding to the token
        # itself.
        row = self.arrays[names.POSITIONS].read()[:, index : index + 1]
        return lambda token: token + row if row.any() else token

    def _file_grid(self, name):
        """Returns the result of `source_grid` for the positions of the file."""
        shape = self.arrays[name].shape
        return position_embeddings.source_grid(
            shape[1] if len(shape) == 3 else 0,
            names.count_class_tokens(self.arrays),
            self._grid(),
            self.known_grid,
            self.facts.class_row,
        )

    def _grid(self):
        """Returns the patch grid of the model, `(rows, columns)`."""
        grid = getattr(self.model, "grid", None)
        if grid is None:
            raise ValueError(
                "Position embeddings can only be loaded into a keras_vit model, which has a "
                f"`grid`. Received: model={self.model.name!r}, {type(self.model).__name__}"
            )
        return tuple(grid)


def _is_optional(name):
    """Returns whether fine-tuning may drop or reset an array.

    These arrays belong to the class token, the pooling or the head.
    """
    return name == names.CLASS_TOKEN or name.startswith(
        ("head/", "pre_logits/", "MAPHead_0/", "fc_norm/")
    )


def _count(what, items):
    """Returns the number of items and the names of the first five, for an error message."""
    if not items:
        return f"nothing {what}"
    more = f" and {len(items) - 5} more" if len(items) > 5 else ""
    return f"{len(items)} {what} ({', '.join(sorted(items)[:5])}{more})"
