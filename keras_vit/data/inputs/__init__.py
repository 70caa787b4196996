"""Input kinds: how stored images of different sizes become arrays of one shape, which form a batch.

An input kind is a subclass of `FixedSize` in a file of this folder and a line in `KINDS`. It owns
its fields of `config.data`, which become fields of `Options`.
"""

from typing import TYPE_CHECKING, Any

from keras_vit.data.inputs.fixed_size import FixedSize
from keras_vit.data.inputs.naflex import NaFlex
from keras_vit.preprocessing import Preprocessing

if TYPE_CHECKING:
    from keras_vit.data.options import Options

KINDS = (NaFlex(), FixedSize())
"""Every input kind. The first one that the options choose is used; `FixedSize` accepts all
options."""

DEFAULTS: dict[str, Any] = {name: value for kind in KINDS for name, value in kind.defaults.items()}


def kind_chosen_by(options: "Options") -> FixedSize:
    """Returns the input kind that data options choose."""
    return next(kind for kind in KINDS if kind.is_chosen(options))


def kind_for(preprocessing: Preprocessing | None) -> FixedSize:
    """Returns the input kind that a model's preprocessing requires; `FixedSize` for None."""
    resize = (preprocessing or Preprocessing()).resize
    return next(kind for kind in KINDS if resize in kind.resizes)
