"""What a load did with every array."""

import dataclasses

_MAX_LINES = 20  # of a kind; a file with an optimizer's state has hundreds of unused arrays


@dataclasses.dataclass
class LoadReport:
    """What a load did with every array of the model and of the file.

    Entries are `(name, shape)` in the names and shapes of `vit_jax`, unless said otherwise.

    Attributes:
        model: name of the model.
        source: the source that was loaded, as a string.
        loaded: arrays of the model that have the file's values.
        resampled: `(name, shape, (old_grid, new_grid))`, position embeddings that were resampled to another grid;
            a grid is `(rows, columns)`.
        adapted: `(name, shape, (old_channels, new_channels, rule))`, the first convolution where images have another
            number of channels than the file's, and the rule, "sum" or "tile".
        new: arrays of the model that keep or get initial values.
        dropped: arrays of the file that are left out by rule, such as an old head or a class token.
        unused: further arrays of the file, such as an optimizer's state.
    """

    model: str
    source: str
    loaded: list = dataclasses.field(default_factory=list)
    resampled: list = dataclasses.field(default_factory=list)
    adapted: list = dataclasses.field(default_factory=list)
    new: list = dataclasses.field(default_factory=list)
    dropped: list = dataclasses.field(default_factory=list)
    unused: list = dataclasses.field(default_factory=list)

    def __str__(self):
        lines = [f"{self.source} -> {self.model}: {len(self.loaded)} arrays loaded"]
        lines += [
            f"  resampled {name} from a {old[0]}x{old[1]} to a {new[0]}x{new[1]} grid, {shape}"
            for name, shape, (old, new) in self.resampled
        ]
        lines += [
            f'  adapted {name} from {old} to {new} channels by "{rule}", {shape}'
            for name, shape, (old, new, rule) in self.adapted
        ]
        for kind, entries in (
            ("dropped", self.dropped),
            ("newly initialized", self.new),
            ("unused in the file", self.unused),
        ):
            lines += [f"  {kind}: {name} {shape}" for name, shape in entries[:_MAX_LINES]]
            if len(entries) > _MAX_LINES:
                lines.append(f"  {kind}: {len(entries) - _MAX_LINES} more")
        return "\n".join(lines)

    def full(self) -> str:
        """The text of `str(report)`, with a line for every loaded array as well."""
        return "\n".join([str(self), *(f"  loaded: {name} {shape}" for name, shape in self.loaded)])
