"""Deciding, from headers alone, what a load will do with every array of the model and of the file."""

import dataclasses
import math
from collections.abc import Callable

import numpy as np

from keras_vit.checkpoints import position_embeddings, registry
from keras_vit.checkpoints.input_channels import adapt_input_channels
from keras_vit.checkpoints.lazy_array import LazyArray
from keras_vit.checkpoints.names import CLASS_TOKEN, HEAD, OTHER_POSITIONS, POSITIONS, first_kernel
from keras_vit.checkpoints.report import LoadReport

# Arguments of a model that a load with head="keep" needs to agree, beyond its architecture.
_PARTS = (
    *("classifier", "representation_size", "position_embedding", "position_embedding_at", "class_token_position"),
)
_DTYPES = ("float32", "float16", "bfloat16")  # what float32 holds exactly


@dataclasses.dataclass(frozen=True)
class Assignment:
    """Where the value of a variable comes from: an array of the file, and a function of it."""

    array: LazyArray
    function: Callable = lambda value: value


class LoadPlan:
    """What a load will do, decided from headers alone.

    Args:
        model, source, head, source_grid, scipy_border, channels: as of `load`.
        variables: of the model, `{canonical name: variable}`.
        shapes: of the model, `{canonical name: shape}`.
        checkpoint: the open `Checkpoint`.

    Attributes:
        assignments: `{canonical name: Assignment}` for every variable that gets a value from the file.
        report: the `LoadReport` of the load.

    Raises:
        ValueError: the checkpoint does not fit the model.
    """

    def __init__(self, model, variables, shapes, checkpoint, *, source, head, source_grid, scipy_border, channels):
        self.model, self.variables, self.shapes, self.source, self.head = model, variables, shapes, source, head
        self.arrays = checkpoint.arrays
        self.scipy_border, self.channels = scipy_border, channels
        self.assignments = {}
        self.report = LoadReport(model.name, str(source))
        # What the model and the file are, by one and the same rule.
        self._of_model = registry.infer(shapes, {})
        self._of_file = registry.infer(checkpoint.shapes, checkpoint.facts)
        if self._of_file[0] is not None:
            self._compare_architectures()
        if not self.arrays.keys() & shapes.keys():
            raise ValueError(f"The file holds no weights of a known model. Received: {source}")
        self._known_grid = tuple(source_grid) if source_grid else checkpoint.facts.get("grid")
        self._assign(checkpoint.other_arrays)
        for name, shape in shapes.items():
            if name in self.assignments:
                self._check(name, shape)

    def _compare_architectures(self):
        (family, ours), (file_family, theirs) = self._of_model, self._of_file
        different = [
            name
            for name in registry.STRUCTURE
            if ours.get(name) != theirs.get(name)
            and (name == "resnet_blocks" or None not in (ours.get(name), theirs.get(name)))
        ]
        if family is not file_family or different:
            raise ValueError(
                f"The checkpoint is of another architecture: it is {registry.describe(file_family, theirs)}, and "
                f"{self.model.name} is {registry.describe(family, ours)}. Received: {self.source}"
            )

    def _fitting_arguments(self, missing):
        """A sentence with the arguments of a model that the file would fit, " " before it; "" if none is known."""
        (_, ours), (_, theirs) = self._of_model, self._of_file
        names = [name for name in _PARTS if name in theirs and ours.get(name) != theirs[name]]
        hints = [f"`{name}={_quoted(theirs[name])}`" for name in names]
        if any(name in missing for name in HEAD):
            hints.append('`include_top=False`, or load with head="new"')
        return f" To keep everything, build the model with {' and '.join(hints)}." if hints else ""

    def _assign(self, other_arrays):
        """Decides for every name, of the model and of the file, what is done with it."""
        new = [name for name in self.shapes if self._is_new(name)]
        missing = [name for name in self.shapes if name not in self.arrays and name not in new]
        not_loaded = [name for name in self.arrays if name not in self.shapes or name in new]
        unused = [name for name in not_loaded if not self._may_be_dropped(name)]
        if missing or (unused and self.head == "keep"):
            hint = self._fitting_arguments(missing)
            raise ValueError(
                f"The checkpoint does not fit {self.model.name}: {_count('missing', missing)}; "
                f"{_count('unused', unused)}.{hint} Received: {self.source}"
            )
        report = self.report
        report.new += [(name, self.shapes[name]) for name in new]
        report.dropped += [(name, self.arrays[name].shape) for name in not_loaded if name not in unused]
        report.unused += [(name, self.arrays[name].shape) for name in unused]
        # An optimizer's state and the like are not weights, so they are never an error.
        report.unused += [(name, array.shape) for name, array in other_arrays.items()]
        first = first_kernel(self.shapes)
        for name, shape in self.shapes.items():
            if name in new:
                continue
            if name == POSITIONS:
                self._assign_positions(name, shape)
            elif OTHER_POSITIONS.search(name):
                self._assign_other_positions(name, shape)
            elif name == first and _differ_in_channels_only(self.arrays[name].shape, shape):
                self._assign_first_kernel(name, shape)
            else:
                is_token = name == CLASS_TOKEN
                self.assignments[name] = self._class_token() if is_token else Assignment(self.arrays[name])
                report.loaded.append((name, shape))

    def _is_new(self, name):
        """Whether an array of the model keeps or gets an initial value."""
        if self.head == "keep":
            return False
        return name in HEAD or (name not in self.arrays and _is_optional(name))

    def _may_be_dropped(self, name):
        """Whether an array of the file may be left out by rule."""
        if name in HEAD and "head/kernel" not in self.shapes:
            return True
        return self.head == "new" and (name in HEAD or _is_optional(name))

    # The first convolution, whose kernel follows the number of channels of the images.

    def _assign_first_kernel(self, name, shape):
        array = self.arrays[name]
        old, new = array.shape[2], shape[2]
        if self.channels is None:
            raise ValueError(
                f"The checkpoint is for images of {old} channels, and {self.model.name} takes {new}. To adapt "
                f'{name!r}, load with channels="sum" or channels="tile" (`weights_channels` in a config). '
                f"Received: shape={array.shape} in {self.source}"
            )
        if self.channels == "tile" and new == 1:
            raise ValueError(
                f'`channels="tile"` needs a model of 2 or more channels, since one would get the red kernel alone; '
                f'channels="sum" is for one. Received: channels={self.channels!r} for {self.model.name}'
            )
        self.assignments[name] = Assignment(array, lambda kernel: adapt_input_channels(kernel, new, self.channels))
        self.report.adapted.append((name, shape, (old, new, self.channels)))

    # Position embedding and class token, which the model and the file may store differently, or only one may have.

    def _assign_positions(self, name, shape):
        array = self.arrays[name]
        new_grid = self._grid()
        file_grid = self._file_grid(name)
        if file_grid is None or array.shape[2] != shape[2]:
            known = (
                f"those of a {self._known_grid} grid" if self._known_grid else f"those of a square grid or {shape[1]}"
            )
            raise ValueError(
                f"{name!r} of the checkpoint has another shape than the model's, (1, tokens, {shape[2]}), "
                f"tokens being {known}; `source_grid=(rows, columns)` gives the grid of the file. "
                f"Received: shape={array.shape} in {self.source}"
            )
        old_grid, file_has_row = file_grid
        model_has_row = shape[1] > new_grid[0] * new_grid[1]

        def value(positions):
            patches = positions[:, file_has_row:]
            if old_grid != new_grid:
                patches = position_embeddings.resample(patches, old_grid, new_grid, self.scipy_border)
            if not model_has_row:
                return patches
            row = positions[:, :1] if file_has_row else self._new_class_position(shape[2])
            return np.concatenate([row, patches], axis=1)

        self.assignments[name] = Assignment(array, value)
        if old_grid != new_grid:
            self.report.resampled.append((name, shape, (old_grid, new_grid)))
        else:
            self.report.loaded.append((name, shape))
        row = (f"{name}, the class token's row", (1, 1, shape[2]))
        if file_has_row and CLASS_TOKEN not in self.shapes:
            self.report.dropped.append(row)
        if model_has_row and not file_has_row:
            self.report.new.append(row)

    def _assign_other_positions(self, name, shape):
        """Positions of a layer, of an axis or of distances; a class token's are those of the file."""
        if name.endswith("/pos_embedding"):
            self._assign_positions(name, shape)
            return
        array = self.arrays[name]
        if name.endswith("/axis_embedding"):  # the offsets of an axis are resampled like places
            new_grid = ((shape[0] + 1) // 2, 1)
            fits = len(array.shape) == 2 and array.shape[0] % 2
            old_grid = ((array.shape[0] + 1) // 2, 1) if fits else None
            value = lambda vectors: position_embeddings.resample_axis(vectors[None], shape[0])[0]  # noqa: E731
        elif name.endswith("/relative_embedding"):
            new_grid = self._grid()
            has_row = (shape[0] + 1) // 2 > math.prod(new_grid)
            length = (array.shape[0] + 1) // 2 if len(array.shape) == 2 else 0
            old_grid, file_has_row = position_embeddings.source_grid(length, has_row, new_grid, self._known_grid) or (
                None,
                has_row,
            )
            fits = len(array.shape) == 2 and array.shape[0] % 2 and old_grid is not None and file_has_row == has_row
            value = lambda vectors: position_embeddings.resample_distances(vectors, old_grid, new_grid)  # noqa: E731
        else:
            new_grid = self._grid()
            fits = len(array.shape) == 3 and array.shape[0] == 1 and array.shape[1] > 0
            value = lambda positions: position_embeddings.resample_axis(positions, shape[1])  # noqa: E731
            is_row = name.endswith("/x_embedding")
            old_grid, new_grid = ((1, n) if is_row else (n, 1) for n in (array.shape[1] if fits else 0, shape[1]))
        if not fits or array.shape[-1] != shape[-1]:
            raise ValueError(
                f"{name!r} of the checkpoint has another shape than the model's, {shape}, and none that could be "
                f"resampled to it; `source_grid=(rows, columns)` gives the grid of the file. "
                f"Received: shape={array.shape} in {self.source}"
            )
        if array.shape == shape and old_grid == new_grid:
            self.assignments[name] = Assignment(array)
            self.report.loaded.append((name, shape))
        else:
            self.assignments[name] = Assignment(array, value)
            self.report.resampled.append((name, shape, (old_grid, new_grid)))

    def _new_class_position(self, hidden_size):
        """Row 0 where the file has none: zeros next to the file's class token, else the model's initial values."""
        if CLASS_TOKEN in self.arrays:
            return np.zeros((1, 1, hidden_size), np.float32)
        return np.asarray(self.variables[POSITIONS])[:, :1]

    def _class_token(self):
        array = self.arrays[CLASS_TOKEN]
        has_positions = POSITIONS in self.arrays and POSITIONS in self.shapes
        _, file_has_row = (self._file_grid() if has_positions else None) or (None, False)
        if not file_has_row or self.shapes[POSITIONS][1] > math.prod(self._grid()):
            return Assignment(array)
        # The model gives its class token no position. The file's is added to the token, which is the same sum.
        row = self.arrays[POSITIONS].map(array.shape, lambda positions: positions[:, :1]).read()
        return Assignment(array, lambda token: token + row if row.any() else token)

    def _file_grid(self, name=POSITIONS):
        """`((rows, columns), whether row 0 is the class token's)` of the file's positions, or None where none fits."""
        shape = self.arrays[name].shape
        if len(shape) != 3 or shape[0] != 1:
            return None
        return position_embeddings.source_grid(shape[1], CLASS_TOKEN in self.arrays, self._grid(), self._known_grid)

    def _grid(self):
        """`(rows, columns)` of the model's patches."""
        grid = getattr(self.model, "grid", None)
        if grid is None:
            raise ValueError(
                "Positions are resampled to the grid of the model, which must be a model of keras_vit. "
                f"Received: model={self.model.name!r}, {type(self.model).__name__}"
            )
        return tuple(grid)

    def _check(self, name, shape):
        """Compares dtype and shape of an array of the file with those of the variable that it is for."""
        array = self.assignments[name].array
        if array.dtype not in _DTYPES:
            raise ValueError(
                f"{name!r} of the checkpoint must hold floats: {', '.join(_DTYPES)}. "
                f"Received: dtype={array.dtype} in {self.source}"
            )
        adapted = [entry[0] for entry in self.report.adapted]
        if name == POSITIONS or OTHER_POSITIONS.search(name) or name in adapted or array.shape == shape:
            return
        hint = ""
        if name in HEAD and array.shape:
            hint = (
                f" The checkpoint was trained for {array.shape[-1]} classes; build the model with "
                f'classes={array.shape[-1]}, or load it with head="new".'
            )
        raise ValueError(
            f"{name!r} of the checkpoint has another shape than the model's, {shape}.{hint} "
            f"Received: shape={array.shape} in {self.source}"
        )


def _is_optional(name):
    """Whether fine-tuning works without the array: those that pool the tokens, and those after the pooling."""
    return name == CLASS_TOKEN or name.startswith(("head/", "pre_logits/", "MAPHead_0/"))


def _differ_in_channels_only(one, other):
    """Whether two shapes `(height, width, in, out)`, none of them empty, differ in their input channels alone."""
    alike = len(one) == len(other) == 4 and (*one[:2], one[3]) == (*other[:2], other[3])
    return alike and 0 < one[2] != other[2]


def _quoted(value):
    return f'"{value}"' if isinstance(value, str) else value


def _count(what, items):
    if not items:
        return f"nothing {what}"
    more = f" and {len(items) - 5} more" if len(items) > 5 else ""
    return f"{len(items)} {what} ({', '.join(sorted(items)[:5])}{more})"
