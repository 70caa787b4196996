"""Deciding, from headers alone, what a load will do with every array of the model and of the file."""

import math

import numpy as np

from keras_vit.checkpoints import names, positions
from keras_vit.checkpoints.architecture import architecture, describe, differ
from keras_vit.checkpoints.report import LoadReport

HEAD = ("head/kernel", "head/bias")

_DTYPES = ("float32", "float16", "bfloat16")  # what float32 holds exactly


class Step:
    """How one variable gets its value: an array of the file, and what is done to it."""

    def __init__(self, stored, array=lambda array: array):
        self.stored = stored
        self.array = array


class Plan:
    """What a load will do, from headers alone: `steps` by name and the `report`. Refuses what does not fit."""

    def __init__(self, model, shapes, checkpoint, head, source, source_grid, scipy_border):
        self.model, self.shapes, self.source, self.head = model, shapes, source, head
        self.arrays = checkpoint.arrays
        self.scipy_border = scipy_border
        self.steps = {}
        self.report = LoadReport(model.name, str(source))
        self.zero_head = False
        if self.arrays:
            self._compare_architectures()
        if not self.arrays.keys() & shapes.keys():
            raise ValueError(f"The file holds no weights of a model known here. Received: {source}")
        self._known_grid = tuple(source_grid) if source_grid else checkpoint.grid
        self._settle_names(checkpoint.others)
        for name, shape in shapes.items():
            if name in self.steps:
                self._check(name, shape)

    def _compare_architectures(self):
        mine = architecture(self.shapes)
        files = architecture({name: stored.shape for name, stored in self.arrays.items()})
        if differ(mine, files):
            raise ValueError(
                f"The checkpoint is of another architecture: it is {describe(files)}, and {self.model.name} is "
                f"{describe(mine)}. Received: {self.source}"
            )

    def _settle_names(self, others):
        """Decides for every name, of the model and of the file, what becomes of it."""
        new = [name for name in self.shapes if self._starts_new(name)]
        missing = [name for name in self.shapes if name not in self.arrays and name not in new]
        unread = [name for name in self.arrays if name not in self.shapes or name in new]
        left_over = [name for name in unread if not self._may_be_dropped(name)]
        if missing or (left_over and self.head == "keep"):
            raise ValueError(
                f"The checkpoint does not fit {self.model.name}: {_count('missing', missing)}; "
                f"{_count('left over', left_over)}.{self._hint(missing, left_over)} Received: {self.source}"
            )
        report = self.report
        report.new += [(name, self.shapes[name]) for name in new]
        report.dropped += [(name, self.arrays[name].shape) for name in unread if name not in left_over]
        report.left_over += [(name, self.arrays[name].shape) for name in left_over]
        # An optimizer's state and the like: no weights, so they never stand in the way.
        report.left_over += [(name, stored.shape) for name, stored in others.items()]
        for name, shape in self.shapes.items():
            if name in new:
                continue
            if name == names.POSITIONS:
                self._plan_positions(shape)
                continue
            self.steps[name] = self._class_token_step() if name == names.CLASS_TOKEN else Step(self.arrays[name])
            report.loaded.append((name, shape))

    def _starts_new(self, name):
        if self.head == "keep":
            return False
        return name in HEAD or (name not in self.arrays and _may_be_new(name))

    def _may_be_dropped(self, name):
        has_head = "head/kernel" in self.shapes
        if name in HEAD and not has_head:
            return True
        return self.head == "new" and (name in HEAD or _may_be_new(name))

    def _hint(self, missing, left_over):
        """What to build instead, where the names tell."""
        hints = []
        for name, hint in (
            ("pre_logits/kernel", "`representation_size={size}`"),
            ("MAPHead_0/probe", '`classifier="map"`'),
            (names.CLASS_TOKEN, 'a classifier that reads a class token, such as "token"'),
        ):
            if name in left_over:
                hints.append(hint.format(size=self.arrays[name].shape[-1]))
        if names.POSITIONS in left_over:
            hints.append('`position_embedding="learned"`')
        if names.CLASS_TOKEN in missing:
            hints.append('`classifier="map"`' if "MAPHead_0/probe" in self.arrays else '`classifier="gap"`')
        if names.POSITIONS in missing:
            hints.append('`position_embedding="sincos2d"`')
        if any(name in missing for name in HEAD):
            hints.append('`include_top=False`, or load with head="new"')
        if "pre_logits/kernel" in missing:
            hints.append("`representation_size=0`")
        return f" To keep everything, build the model with {' and '.join(hints)}." if hints else ""

    # Position embedding and class token: what one side has, the other may keep elsewhere or not have at all.

    def _plan_positions(self, shape):
        stored = self.arrays[names.POSITIONS]
        new_grid = self._grid()
        found = self._file_positions()
        if found is None or stored.shape[2] != shape[2]:
            known = (
                f"those of a {self._known_grid} grid" if self._known_grid else f"those of a square grid or {shape[1]}"
            )
            raise ValueError(
                f"{names.POSITIONS!r} of the checkpoint has another shape than the model's, (1, tokens, {shape[2]}), "
                f"tokens being {known}; `source_grid=(rows, columns)` says of what grid they are. "
                f"Received: shape={stored.shape} in {self.source}"
            )
        old_grid, class_row = found
        wants_row = shape[1] > new_grid[0] * new_grid[1]

        def array(stored_positions):
            grid = stored_positions[:, class_row:]
            if old_grid != new_grid:
                grid = positions.resample(grid, old_grid, new_grid, self.scipy_border)
            if not wants_row:
                return grid
            first = stored_positions[:, :1] if class_row else self._new_class_position(shape[2])
            return np.concatenate([first, grid], axis=1)

        self.steps[names.POSITIONS] = Step(stored, array)
        if old_grid != new_grid:
            self.report.resampled.append((names.POSITIONS, shape, (old_grid, new_grid)))
        else:
            self.report.loaded.append((names.POSITIONS, shape))
        row = (f"{names.POSITIONS}, the class token's row", (1, 1, shape[2]))
        if class_row and names.CLASS_TOKEN not in self.shapes:
            self.report.dropped.append(row)
        if wants_row and not class_row:
            self.report.new.append(row)

    def _new_class_position(self, hidden_size):
        """Row 0 where the file has none: zeros beside the file's class token, else what the model started with."""
        if names.CLASS_TOKEN in self.arrays:
            return np.zeros((1, 1, hidden_size), np.float32)
        return np.asarray(self.model.get_layer("position_embedding").pos_embedding)[:, :1]

    def _class_token_step(self):
        stored = self.arrays[names.CLASS_TOKEN]
        found = self._file_positions() if names.POSITIONS in self.arrays and names.POSITIONS in self.shapes else None
        if found is None or not found[1] or self.shapes[names.POSITIONS][1] > math.prod(self._grid()):
            return Step(stored)
        # The model gives its class token no position: the file's goes into the token, which is the same sum.
        row = self.arrays[names.POSITIONS].then(stored.shape, lambda array: array[:, :1]).read()
        return Step(stored, lambda token: token + row if row.any() else token)

    def _file_positions(self):
        stored = self.arrays[names.POSITIONS]
        if len(stored.shape) != 3 or stored.shape[0] != 1:
            return None
        return positions.source_grid(
            stored.shape[1],
            names.CLASS_TOKEN in self.arrays,
            self._grid(),
            self._known_grid,
        )

    def _grid(self):
        """`(rows, columns)` of the model's patches."""
        grid = self.model.get_layer("position_embedding").grid
        if grid is None:
            raise ValueError(
                "Positions are resampled to the model's grid, which its layer `position_embedding` must have. "
                f"Received: grid=None in {self.model.name}"
            )
        return tuple(grid)

    def _check(self, name, shape):
        stored = self.steps[name].stored
        if stored.dtype not in _DTYPES:
            raise ValueError(
                f"{name!r} of the checkpoint must hold floats: {', '.join(_DTYPES)}. "
                f"Received: dtype={stored.dtype} in {self.source}"
            )
        if name == names.POSITIONS or stored.shape == shape:
            return
        hint = ""
        if name in HEAD and stored.shape:
            hint = (
                f" The checkpoint was trained for {stored.shape[-1]} classes; build the model with "
                f'classes={stored.shape[-1]}, or load it with head="new".'
            )
        raise ValueError(
            f"{name!r} of the checkpoint has another shape than the model's, {shape}.{hint} "
            f"Received: shape={stored.shape} in {self.source}"
        )

    def check_numbers(self, name, step):
        array = step.stored.read(verify=True)
        if not np.isfinite(array).all():
            raise ValueError(f"{name!r} of the checkpoint holds NaN or infinity. Received: {self.source}")
        if name == "head/kernel" and not array.any():
            self.zero_head = True


def _may_be_new(name):
    """Whether fine-tuning may do without the array: what pools the tokens and what follows."""
    return name == names.CLASS_TOKEN or name.startswith(("head/", "pre_logits/", "MAPHead_0/"))


def _count(what, items):
    if not items:
        return f"nothing {what}"
    more = f" and {len(items) - 5} more" if len(items) > 5 else ""
    return f"{len(items)} {what} ({', '.join(sorted(items)[:5])}{more})"
