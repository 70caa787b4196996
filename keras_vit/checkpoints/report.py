"""The report of a load."""

from dataclasses import dataclass, field

_MAX_LINES = 20  # per kind of array; a file with optimizer state has hundreds of unused arrays


@dataclass
class LoadReport:
    """A report on how a load used every array of the model and the file.

    Weights have canonical names, as in `vit_jax`. Other arrays have their names in the file. Each
    entry is `(name, shape)` unless noted otherwise.

    Attributes:
        model: name of the model.
        source: the source that was loaded, as a string.
        loaded: model arrays with values from the file, except those in `resampled` and `adapted`.
        resampled: `(name, shape, (old_grid, new_grid))` for each resampled position embedding and
            for a resized patch kernel. A grid is `(rows, columns)` of patches, or of pixels for a
            kernel.
        adapted: `(name, shape, (old_channels, new_channels, rule))` for a first convolution that
            was adapted to another number of channels by the rule "sum" or "tile".
        new: model arrays with initial values or zeros instead of values from the file.
        dropped: file arrays that the model does not need, such as an old head or a class token.
        unused: all other file arrays, such as optimizer state.
    """

    model: str
    source: str
    loaded: list = field(default_factory=list)
    resampled: list = field(default_factory=list)
    adapted: list = field(default_factory=list)
    new: list = field(default_factory=list)
    dropped: list = field(default_factory=list)
    unused: list = field(default_factory=list)

    def __str__(self):
        lines = [f"{self.source} -> {self.model}: {len(self.loaded)} arrays loaded"]
        for name, shape, (old, new) in self.resampled:
            lines.append(
                f"  resampled {name} from grid {old[0]}x{old[1]} to grid {new[0]}x{new[1]}, {shape}"
            )
        for name, shape, (old, new, rule) in self.adapted:
            lines.append(f'  adapted {name} from {old} to {new} channels by "{rule}", {shape}')
        kinds = {
            "dropped": self.dropped,
            "newly initialized": self.new,
            "unused in the file": self.unused,
        }
        for kind, entries in kinds.items():
            lines += [f"  {kind}: {name} {shape}" for name, shape in entries[:_MAX_LINES]]
            if len(entries) > _MAX_LINES:
                lines.append(f"  {kind}: {len(entries) - _MAX_LINES} more")
        return "\n".join(lines)

    def full(self) -> str:
        """Returns `str(report)` plus one line for every loaded array."""
        return "\n".join([str(self), *(f"  loaded: {name} {shape}" for name, shape in self.loaded)])
