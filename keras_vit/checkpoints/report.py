"""What a load did, in numbers and names."""

import dataclasses


@dataclasses.dataclass
class LoadReport:
    """What happened to every array, of the model and of the file, at a load.

    Entries are `(name, shape)` in the original's words; of `resampled` they are `(name, shape, (old_grid, new_grid))`,
    each grid `(rows, columns)`.

    Attributes:
        model: name of the model.
        source: what was loaded.
        loaded: arrays of the model that are the file's.
        resampled: position embeddings taken to another grid.
        new: arrays of the model that start afresh.
        dropped: arrays of the file that the load leaves out by rule: an old head, a class token nobody reads.
        left_over: arrays of the file that nothing asked for, such as an optimizer's state.
    """

    model: str
    source: str
    loaded: list = dataclasses.field(default_factory=list)
    resampled: list = dataclasses.field(default_factory=list)
    new: list = dataclasses.field(default_factory=list)
    dropped: list = dataclasses.field(default_factory=list)
    left_over: list = dataclasses.field(default_factory=list)

    def __str__(self):
        lines = [f"{self.source} -> {self.model}: {len(self.loaded)} arrays loaded"]
        lines += [
            f"  resampled {name} from a {old[0]}x{old[1]} to a {new[0]}x{new[1]} grid, {shape}"
            for name, shape, (old, new) in self.resampled
        ]
        for word, entries in (
            ("dropped", self.dropped),
            ("newly initialised", self.new),
            ("left over in the file", self.left_over),
        ):
            lines += [f"  {word}: {name} {shape}" for name, shape in entries[:_MOST]]
            if len(entries) > _MOST:
                lines.append(f"  {word}: {len(entries) - _MOST} more")
        return "\n".join(lines)

    def full(self):
        """The same text with every loaded array named as well."""
        return "\n".join([str(self), *(f"  loaded: {name} {shape}" for name, shape in self.loaded)])


_MOST = 20  # a file with an optimizer's state has hundreds of arrays that nobody asked for
