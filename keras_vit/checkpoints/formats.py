"""Opens checkpoints of any supported dialect.

The arrays get canonical names and the Keras layout.
"""

import contextlib
import dataclasses
import functools
import re

from keras_vit.checkpoints import hub, metadata, names, registry
from keras_vit.checkpoints.dialects.dialect import Dialect
from keras_vit.checkpoints.dialects.facts import Facts
from keras_vit.checkpoints.position_embeddings import source_grid
from keras_vit.checkpoints.readers import LazyArray, NpzFile, SafetensorsFile, ShardedFile

# Matches the model types of all known families.
_KINDS = r"vit|bit|deit|dino|clip|siglip|eva|jepa|mae|dpt|depth_anything"
_UNKNOWN = Dialect("unknown", (), ())


@dataclasses.dataclass
class Checkpoint:
    """An open checkpoint."""

    # Weights by canonical name, or by name in the file if that name is unknown.
    arrays: dict[str, LazyArray]
    # Arrays that are not weights of the model, such as optimizer state.
    other_arrays: dict[str, LazyArray]
    facts: Facts
    stated: Facts  # the facts that are not defaults of the dialect
    has_config: bool  # whether the config of the library is next to the file
    unknown_kind: str = ""  # the model type in the config.json, if it belongs to no known family

    @property
    def shapes(self):
        return {name: array.shape for name, array in self.arrays.items()}


@contextlib.contextmanager
def open_checkpoint(path, subtree="", num_heads=None, dialects=None):
    """Opens a checkpoint, reads its headers, and yields a `Checkpoint`.

    The checkpoint is a local .npz file, .safetensors file or index of shards.

    `num_heads` splits the arrays of attention; None for the number in the config. `dialects` are
    those to try; None for those of all families.
    """
    path = str(path)
    if path.endswith(".json"):
        opened = ShardedFile(hub.shards(path))
    else:
        opened = SafetensorsFile(path) if path.endswith(".safetensors") else NpzFile(path)
    with opened as file:
        # A config.json next to an .npz file describes a training run, not a model.
        read = functools.cache(functools.partial(metadata.read_json, path))
        config = read("config.json")
        dialect, prefix = _find_dialect(file.arrays, subtree, read, path, dialects)
        own_config = read(dialect.config)
        stated = metadata.stated_facts(dialect, own_config, file.comment, path)
        facts = stated.over(dialect.facts)
        if dialect.layout == "pytorch" and facts.preprocessing is not None:
            library = "transformers" if dialect.name == "huggingface" else "torchvision"
            fields = {"library": library, **facts.preprocessing}
            facts = dataclasses.replace(facts, preprocessing=fields)
        weights, others = _separated(file.arrays, dialect, prefix, num_heads or facts.num_heads)
        if dialect.adapt is not None:
            facts = dialect.adapt(weights, facts, own_config)
        _check_embedding(weights, dialect, facts, config, path)
        if dialect.layout == "pytorch":
            facts = _place_positions(weights, facts)
        kind = str(config.get("model_type") or config.get("architecture") or "")
        unknown_kind = "" if re.search(_KINDS, kind, re.IGNORECASE) else kind
        yield Checkpoint(weights, others, facts, stated, bool(own_config), unknown_kind)


def _separated(arrays, dialect, prefix, num_heads):
    """Returns the weights, with canonical names and layouts, and the other arrays of a file."""
    weights = {}
    others = {}
    for name, array in arrays.items():
        is_empty = 0 in array.shape  # a file may contain an empty array of register tokens
        pairs = []
        if name.startswith(prefix) and not is_empty:
            pairs = dialect.read(name.removeprefix(prefix), array, num_heads)
        weights |= pairs
        if not pairs:
            others[name] = array
    return weights, others


def _check_embedding(weights, dialect, facts, config, path):
    """Raises a `ValueError` if the patch or position embeddings do not determine the model."""
    kernel = weights.get(names.EMBEDDING)
    if kernel is None:
        return
    if len(kernel.shape) != 4:
        raise ValueError(
            "The kernel of the patch embedding must be 4-D, or a matrix with one row for each "
            f"value of a square patch. Received: shape={kernel.shape} in {path}"
        )
    has_positions = names.POSITIONS in weights or facts.rotary is not None
    if dialect.layout == "pytorch" and not has_positions and not config:
        raise ValueError(
            "Without position embeddings, the file requires its config.json, because the arrays do "
            f"not show whether the model rotates queries and keys. Received: {path}"
        )


def _find_dialect(arrays, subtree, read, path, dialects=None):
    """Returns the dialect that recognizes the most array names, and the prefix of the weights.

    `read` is a function that takes the name of a JSON file and returns its content.
    """
    best = (_UNKNOWN, "")
    best_score = (-1, False)
    known = [dialect for family in registry.FAMILIES for dialect in family.dialects]
    for dialect in known if dialects is None else dialects:
        prefixes = dialect.prefixes
        if subtree:
            prefixes = [f"{root}{subtree.rstrip('/')}/" for root in ("", "params/", "opt/target/")]
        for prefix in prefixes:
            inside = {
                name.removeprefix(prefix): array.shape
                for name, array in arrays.items()
                if name.startswith(prefix)
            }
            if not dialect.marks(inside):
                continue
            num_matches = sum(dialect.match(name) is not None for name in inside)
            score = (num_matches, dialect.fits is not None)
            with metadata.reading(dialect.config, path):
                is_better = score > best_score and (
                    dialect.fits is None or dialect.fits(inside, read(dialect.config))
                )
            if is_better:
                best = (dialect, prefix)
                best_score = score
            break
    if subtree and best[0] is _UNKNOWN:
        raise ValueError(
            f"The file must have weights in the subtree {subtree!r}. Received: {path}:{subtree}"
        )
    return best


def _place_positions(weights, facts):
    """Returns the facts with the patch grid that `image_size` implies.

    The facts do not change if the number of positions contradicts this grid.

    Some files have position embeddings for register tokens. keras_vit does not support them, so
    this function adds these embeddings to the register tokens.
    """
    sides = facts.image_size
    sides = [sides, sides] if isinstance(sides, int) else sides
    if sides and not (len(sides) == 2 and all(isinstance(side, int) for side in sides)):
        raise ValueError(
            f"`image_size` must be an integer or two. Received: image_size={facts.image_size!r} in "
            "the config of the weights"
        )
    kernel = weights.get(names.EMBEDDING)
    grid = None
    if kernel is not None and sides:
        grid = sides[0] // kernel.shape[0], sides[1] // kernel.shape[1]
    positions = weights.get(names.POSITIONS)
    tokens = names.count_class_tokens(weights)
    if positions is None or len(positions.shape) != 3:
        return dataclasses.replace(facts, grid=grid) if grid and min(grid) > 0 else facts
    count = positions.shape[1]

    def fits(rows):
        """Returns whether this number of positions fits the grid."""
        return source_grid(rows, tokens, (0, 0), grid, facts.class_row) is not None

    registers = weights.get("register_tokens")
    extra = registers.shape[1] if registers is not None and len(registers.shape) == 3 else 0
    if extra and not fits(count) and fits(count - extra):
        _add_positions_to_registers(weights, tokens)
        count -= extra
    return dataclasses.replace(facts, grid=grid) if grid and fits(count) else facts


def _add_positions_to_registers(weights, class_tokens):
    """Adds the position embeddings of register tokens to these tokens, and drops their rows.

    The rows follow those of the class tokens.
    """
    positions = weights[names.POSITIONS]
    registers = weights["register_tokens"]
    count, hidden_size = positions.shape[1:]
    end = class_tokens + registers.shape[1]
    rows = positions.map(registers.shape, lambda array: array[:, class_tokens:end])
    weights["register_tokens"] = registers.map(registers.shape, lambda array: array + rows.read())
    kept = [i for i in range(count) if not class_tokens <= i < end]
    shape = (1, len(kept), hidden_size)
    weights[names.POSITIONS] = positions.map(shape, lambda array: array[:, kept])
