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
_DTYPES = (
    "float32",
    "float16",
    "bfloat16",
)
CHANNEL_RULES = ("sum", "tile")
_HEAD_ADVICE = 'Build the model with include_top=False, or load the file with head="new".'


class LoadPlan:
    """The plan of a load: `report` is the `LoadReport`, and `assignments` is `{canonical name:
    (array, function)}`.

    A load assigns `function(array.read())` to each of these variables. The function `np.asarray`
    changes nothing.
    """

    def __init__(
        self, model, variables, shapes, checkpoint, *, source, head, source_grid, channels, patches
    ):
        self.model = model
        self.variables = variables
        self.shapes = shapes
        self.source = source
        self.head = head
        self.arrays = checkpoint.arrays
        self.facts = checkpoint.facts
        self.channels = channels
        self.resizes_patches = patches and names.first_kernel(shapes) == names.EMBEDDING
        self.unknown_kind = checkpoint.unknown_kind
        self.known_grid = tuple(source_grid) if source_grid else checkpoint.facts.grid
        arguments = getattr(model, "arguments", {})
        self.rule = checkpoint.facts.position_resampling or arguments.get(
            "position_resampling", "zoom"
        )
        self.assignments = {}
        self.report = LoadReport(model.name, str(source))
        # Infer the architectures of the model and the file.
        self.of_model = registry.infer(shapes, Facts(rotary=arguments.get("rotary")))
        if "classifier" in arguments and "classifier" in self.of_model[1]:
            self.of_model[1]["classifier"] = arguments["classifier"]
        self.of_file = registry.infer(
            checkpoint.shapes, dataclasses.replace(checkpoint.facts, constructor=None)
        )
        if "classifier" in self.facts.arguments and "classifier" in self.of_file[1]:
            self.of_file[1]["classifier"] = self.facts.arguments["classifier"]
        self._compare_architectures()
        self._assign(checkpoint.other_arrays)

    def _compare_architectures(self):
        (family, ours) = self.of_model
        (file_family, theirs) = self.of_file
        if not self.arrays.keys() & self.shapes.keys() and file_family is None:
            raise ValueError(f"{registry.no_family(self.unknown_kind)} Received: {self.source}")
        # Compare the structure and the optional parts of blocks.
        pairs = {name: (ours.get(name), theirs.get(name)) for name in registry.STRUCTURE}
        if self.resizes_patches and not pairs["resnet_blocks"][1]:
            del pairs["patch_size"]
        different = [
            n
            for n, pair in pairs.items()
            if pair[0] != pair[1] and (n == "resnet_blocks" or None not in pair)
        ]
        different += [name for name in registry.PARTS if ours.get(name) != theirs.get(name)]
        different += sorted(
            set(theirs.get("attention_bias", "qkvo")) - set(ours.get("attention_bias", "qkvo"))
        )
        if file_family is not None and (not family.shares_weights(file_family) or different):
            raise ValueError(
                "The checkpoint must have the model's architecture: "
                f"it is {registry.describe(file_family, theirs)}, and {self.model.name} is "
                f"{registry.describe(family, ours)}. Received: {self.source}"
            )

        # Compare the pooling that the head was trained with.
        pools = ours.get("classifier"), theirs.get("classifier")
        has_head = (
            self.head == "keep" and names.HEAD[0] in self.shapes and names.HEAD[0] in self.arrays
        )
        if has_head and self.facts.head_reads is not None:
            raise ValueError(
                f"The file's head reads {self.facts.head_reads}, which is not supported. "
                f"{_HEAD_ADVICE} Received: {self.source}"
            )
        has_pool = {
            "pool",
            "head_pool",
        } & self.facts.stated().keys() or "classifier" in self.facts.arguments
        if has_head and has_pool and pools[0] != pools[1]:
            raise ValueError(
                f"The file's head requires `classifier={pools[1]!r}`; build the model with it, or "
                "load the file with "
                f'head="new". Received: classifier={pools[0]!r} in {self.model.name}, for '
                f"{self.source}"
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
            no_family = f"{registry.no_family(self.unknown_kind)} " if self.unknown_kind else ""
            is_head = any(name in missing for name in names.HEAD)
            hint = f" {_HEAD_ADVICE}" if is_head else ""
            raise ValueError(
                f"{no_family}The checkpoint does not fit {self.model.name}: "
                f"{_count('missing', missing)}; "
                f"{_count('unused', unused)}.{hint} Received: {self.source}"
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
        """Returns whether a model array is a bias that the file lacks, and is therefore set to
        zeros."""
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
        array = self.arrays[name]
        if name.startswith("head/"):
            hint = f" {_HEAD_ADVICE}"
        return ValueError(
            f"The shape of {name!r} in the checkpoint must be {shape}, as in the model.{hint} "
            f"Received: shape={array.shape} in {self.source}"
        )

    def _fits_after_changes(self, old, new):
        """Returns whether a kernel `(height, width, in, out)` of another shape can be adapted to
        the model's shape."""
        if not len(old) == len(new) == 4 or 0 in old or old == new or old[3] != new[3]:
            return False
        return old[:2] == new[:2] or self.resizes_patches

    def _assign_first_kernel(self, name, shape):
        """Plans the first convolution, which may be adapted to another number of channels and patch
        size."""
        array = self.arrays[name]
        old = array.shape[2]
        new = shape[2]
        if old != new and self.channels is None:
            raise ValueError(
                f"The checkpoint takes images with {old} channels, but {self.model.name} takes "
                f"{new}. To adapt "
                f'{name!r}, load with channels="sum" or channels="tile" (`weights_channels` in a '
                "config). "
                f"Received: shape={array.shape} in {self.source}"
            )
        if old != new and self.channels == "tile" and new == 1:
            raise ValueError(
                '`channels` must be "sum" for a model with one channel; "tile" would keep only '
                "the first channel. "
                f"Received: channels={self.channels!r} for {self.model.name}"
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
        array = self.arrays[name]
        found = (
            self._resampling(name, shape, array.shape) if array.shape[-1:] == shape[-1:] else None
        )
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
        """Returns `(old grid, new grid, function)` for a position embedding, or None if the shapes
        do not match."""
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
            # If the file has a class token but no position embedding for it, use zeros. If the
            # class token is new, use the model's initial values.
            initial = np.zeros((1, model_rows, shape[2]), np.float32)
            if names.CLASS_TOKEN not in self.arrays:
                initial = np.asarray(self.variables[names.POSITIONS])[:, :model_rows]
            return np.concatenate(
                [positions[:, :model_rows] if file_rows else initial, patches], axis=1
            )

        return old_grid, new_grid, function

    def _token(self, index):
        """Returns the function that converts the class token, or the distillation token if `index`
        is 1."""
        has_positions = names.POSITIONS in self.arrays and names.POSITIONS in self.shapes
        _, file_rows = (self._file_grid(names.POSITIONS) if has_positions else None) or (None, 0)
        if not file_rows or self.shapes[names.POSITIONS][1] > math.prod(self._grid()):
            return np.asarray
        # The model's tokens have no position embedding, so add the file's embedding to the token
        # itself.
        row = self.arrays[names.POSITIONS].read()[:, index : index + 1]
        return lambda token: token + row if row.any() else token

    def _file_grid(self, name):
        """Returns `((rows, columns), number of class token rows)` for the file's positions, or
        None."""
        rows = self.arrays[name].shape[1] if len(self.arrays[name].shape) == 3 else 0
        class_tokens = names.count_class_tokens(self.arrays)
        class_row = self.facts.class_row
        return position_embeddings.source_grid(
            rows, class_tokens, self._grid(), self.known_grid, class_row
        )

    def _grid(self):
        grid = getattr(self.model, "grid", None)
        if grid is None:
            raise ValueError(
                "Position embeddings can only be loaded into a keras_vit model, which has a "
                f"`grid`. Received: model={self.model.name!r}, {type(self.model).__name__}"
            )
        return tuple(grid)


def _is_optional(name):
    """Returns whether an array belongs to the class token, pooling or head, which fine-tuning may
    drop or reset."""
    return name == names.CLASS_TOKEN or name.startswith(
        ("head/", "pre_logits/", "MAPHead_0/", "fc_norm/")
    )


def _count(what, items):
    if not items:
        return f"nothing {what}"
    more = f" and {len(items) - 5} more" if len(items) > 5 else ""
    return f"{len(items)} {what} ({', '.join(sorted(items)[:5])}{more})"
