"""Plans how a load uses every array of the model and the file."""

import dataclasses
import functools
import math
import re

import numpy as np

from keras_vit.checkpoints import architectures, comparison, names, position_embeddings
from keras_vit.checkpoints.dialects.facts import Facts
from keras_vit.checkpoints.patch_kernels import adapt_input_channels, resize_patches
from keras_vit.checkpoints.readers import LazyArray
from keras_vit.checkpoints.report import LoadReport

_ATTENTION_BIAS = re.compile(
    r"Transformer/encoderblock_\d+/MultiHeadDotProductAttention_0/([qkv])\w+/bias"
)
# float32 represents all values of these dtypes exactly.
_DTYPES = ("float32", "float16", "bfloat16")


class LoadPlan:
    """The plan of a load.

    Attributes:
        model: the model.
        source: what is loaded, for messages.
        options: the `LoadOptions`.
        variables: `{canonical name: variable}` of the model.
        shapes: `{canonical name: shape}` of the model's arrays.
        arrays: `{canonical name: LazyArray}` of the file.
        facts: the `Facts` of the file.
        family, ours: the family and the arguments of the model.
        file_family, theirs: the family and the arguments of the model in the file; None and {} if
            they are unknown.
        resizes_patches: whether the patch kernel of the file may have another size.
        report: the `LoadReport`.
        assignments: `{canonical name: (array, function)}`. A load assigns `function(array.read())`
            to each of these variables. The function `np.asarray` changes nothing.
    """

    def __init__(self, model, checkpoint, source, options):
        self.model = model
        self.source = source
        self.options = options
        self.variables = names.canonical_variables(model)
        self.shapes = names.canonical_shapes(model)
        self.arrays = checkpoint.arrays
        self.facts = checkpoint.facts
        self.unknown_kind = checkpoint.unknown_kind
        position_resampling = model.arguments.get("position_resampling", "zoom")
        self.rule = self.facts.position_resampling or position_resampling
        self.first_kernel = names.first_kernel(self.shapes)
        self.resizes_patches = self.first_kernel == names.EMBEDDING and (
            options.resize_patches or position_resampling == "bilinear_antialias"
        )
        self.assignments = {}
        self.report = LoadReport(model.name, str(source))
        facts = Facts(rotary=model.arguments.get("rotary"))
        self.family, self.ours = architectures.infer(self.shapes, facts)
        facts = dataclasses.replace(self.facts, constructor=None)
        self.file_family, self.theirs = architectures.infer(checkpoint.shapes, facts)
        comparison.check_architecture(self)
        comparison.check_head(self)
        self._assign(checkpoint.other_arrays)

    def _assign(self, other_arrays):
        """Plans the use of every array of the model and the file."""
        new = [name for name in self.shapes if self._is_new(name)]
        zeros = [name for name in self.shapes if self._is_zero(name)]
        read = [name for name in self.shapes if name not in (*new, *zeros)]
        missing = [name for name in read if name not in self.arrays]
        not_loaded = [name for name in self.arrays if name not in self.shapes or name in new]
        unused = [name for name in not_loaded if not self._may_be_dropped(name)]
        if missing or (unused and (self.options.head == "keep" or self.unknown_kind)):
            family_note = ""
            if self.unknown_kind or self.file_family is None:
                family_note = f"{architectures.unknown_family_message(self.unknown_kind)} "
            hint = f" {comparison.HEAD_ADVICE}" if {*missing} & {*names.HEAD} else ""
            if "MAPHead_0/probe" in missing:
                pooling = self.theirs.get("classifier", "token")
                hint += (
                    " The file has no attention pooling; build the model with "
                    f"classifier={pooling!r}, in a config --config.model.classifier={pooling}."
                )
            raise ValueError(
                f"{family_note}The checkpoint does not fit {self.model.name}: "
                f"{_count('missing', missing)}; {_count('unused', unused)}.{hint} Received: "
                f"{self.source}"
            )
        report = self.report
        report.new += [(name, self.shapes[name]) for name in (*new, *zeros)]
        for name in not_loaded:
            entries = report.unused if name in unused else report.dropped
            entries.append((name, self.arrays[name].shape))
        # Arrays that are not weights, such as optimizer state, are never an error.
        report.unused += [(name, array.shape) for name, array in other_arrays.items()]
        for name in zeros:
            make = functools.partial(np.zeros, self.shapes[name])
            array = LazyArray(self.shapes[name], "float32", (), make)
            self.assignments[name] = (array, np.asarray)
        for name in read:
            self._assign_array(name)

    def _assign_array(self, name):
        """Plans the use of an array of the file, which may be resampled or adapted."""
        array = self.arrays[name]
        shape = self.shapes[name]
        if array.dtype not in _DTYPES:
            raise ValueError(
                f"The dtype of {name!r} in the checkpoint must be one of {', '.join(_DTYPES)}. "
                f"Received: dtype={array.dtype} in {self.source}"
            )
        if names.POSITION_NAMES.fullmatch(name):
            self._assign_positions(name)
        elif name == self.first_kernel and self._fits_after_changes(array.shape, shape):
            self._assign_first_kernel(name)
        elif array.shape != shape:
            raise self._other_shape(name)
        else:
            tokens = (names.CLASS_TOKEN, names.DISTILLATION_TOKEN)
            function = self._token(tokens.index(name)) if name in tokens else np.asarray
            self.assignments[name] = (array, function)
            self.report.loaded.append((name, shape))

    def _is_new(self, name):
        """Returns whether a model array gets its initial value instead of a value from the file."""
        return self.options.head == "new" and (
            name.startswith("head/") or (name not in self.arrays and _is_optional(name))
        )

    def _is_zero(self, name):
        """Returns whether a model array is a bias that is zero, because the file lacks it."""
        if name == names.HEAD[1] and names.HEAD[0] in self.arrays and name not in self.arrays:
            return self.options.head == "keep"
        match = _ATTENTION_BIAS.fullmatch(name)
        return bool(match) and match[1] not in self.theirs.get("attention_bias", "qkvo")

    def _may_be_dropped(self, name):
        """Returns whether a file array may be dropped because the model does not need it."""
        if name.startswith("head/") and names.HEAD[0] not in self.shapes:
            return True
        return self.options.head == "new" and _is_optional(name)

    def _other_shape(self, name, hint=""):
        """Returns the error for an array of the file whose shape does not fit the model."""
        if name.startswith("head/"):
            hint = f" {comparison.HEAD_ADVICE}"
        return ValueError(
            f"The shape of {name!r} in the checkpoint must be {self.shapes[name]}, as in the "
            f"model.{hint} Received: shape={self.arrays[name].shape} in {self.source}"
        )

    def _fits_after_changes(self, old, new):
        """Returns whether a kernel `(height, width, in, out)` can be adapted to the shape `new`."""
        if not len(old) == len(new) == 4 or old == new or old[3] != new[3]:
            return False
        return old[:2] == new[:2] or self.resizes_patches

    def _assign_first_kernel(self, name):
        """Plans the first convolution, which may get other numbers of channels and patch sizes."""
        array = self.arrays[name]
        shape = self.shapes[name]
        old = array.shape[2]
        new = shape[2]
        rule = self.options.channels
        is_adapted = old != new
        if is_adapted and rule is None:
            raise ValueError(
                f"The checkpoint takes images with {old} channels, but {self.model.name} takes "
                f'{new}. To adapt {name!r}, load with channels="sum" or channels="tile" '
                f"(`weights_channels` in a config). Received: shape={array.shape} in {self.source}"
            )
        if is_adapted and rule == "tile" and new == 1:
            raise ValueError(
                '`channels` must be "sum" for a model with one channel; "tile" would keep only the '
                f"first channel. Received: channels={rule!r} for {self.model.name}"
            )

        def function(kernel):
            kernel = adapt_input_channels(kernel, new, rule) if is_adapted else kernel
            return resize_patches(kernel, shape[0], self.rule) if kernel.shape != shape else kernel

        self.assignments[name] = (array, function)
        if array.shape[:2] != shape[:2]:
            self.report.resampled.append((name, shape, (array.shape[:2], shape[:2])))
        if is_adapted:
            self.report.adapted.append((name, shape, (old, new, rule)))

    def _assign_positions(self, name):
        """Plans a position embedding, which may be resampled to the grid of the model."""
        array = self.arrays[name]
        shape = self.shapes[name]
        resampling = self._resampling(name, shape, array.shape)
        if resampling is None:
            raise self._other_shape(
                name, " Set `source_grid=(rows, columns)` to the grid of the file."
            )
        old_grid, new_grid, function = resampling
        self.assignments[name] = (array, function)
        if old_grid == new_grid:
            self.report.loaded.append((name, shape))
        else:
            self.report.resampled.append((name, shape, (old_grid, new_grid)))

    def _resampling(self, name, shape, old_shape):
        """Returns `(old grid, new grid, function)` for a position embedding.

        Returns None if the shapes do not match.
        """
        if len(old_shape) != 3 or old_shape[0] != 1 or old_shape[2] != shape[2]:
            return None
        # Embeddings of one axis have no class token row.
        if name.endswith(("/x_embedding", "/y_embedding")):
            function = functools.partial(position_embeddings.resample_axis, new=shape[1])
            is_x = name.endswith("/x_embedding")
            old_grid, new_grid = ((1, n) if is_x else (n, 1) for n in (old_shape[1], shape[1]))
            return old_grid, new_grid, function
        # Find both grids, and the class token rows that are dropped or new.
        new_grid = tuple(self.model.grid)
        found = self._file_grid(name)
        if found is None:
            return None
        old_grid, file_rows = found
        model_rows = shape[1] - math.prod(new_grid)
        if file_rows and model_rows not in (0, file_rows):
            return None
        row = (f"{name}, the class token's row", (1, file_rows or model_rows, shape[2]))
        if file_rows and names.CLASS_TOKEN not in self.shapes:
            self.report.dropped.append(row)
        if model_rows and not file_rows:
            self.report.new.append(row)

        def function(positions):
            positions = position_embeddings.resample(positions, old_grid, new_grid, self.rule)
            if file_rows:
                return positions[:, file_rows - model_rows :]
            if names.CLASS_TOKEN in self.arrays:
                # The file has a class token, but no position embedding for it.
                class_rows = np.zeros((1, model_rows, shape[2]), np.float32)
            else:
                # The class token is new, so its position embedding keeps the initial values.
                class_rows = np.asarray(self.variables[name])[:, :model_rows]
            return np.concatenate([class_rows, positions], axis=1)

        return old_grid, new_grid, function

    def _token(self, index):
        """Returns the function that converts the class or distillation token (index 0 or 1)."""
        has_positions = names.POSITIONS in self.arrays and names.POSITIONS in self.shapes
        _, file_rows = (self._file_grid(names.POSITIONS) if has_positions else None) or (None, 0)
        if not file_rows or self.shapes[names.POSITIONS][1] > math.prod(self.model.grid):
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
            self.model.grid,
            self.options.source_grid or self.facts.grid,
            self.facts.class_row,
        )


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
