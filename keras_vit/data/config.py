"""A config's `data` group to sources, batches and the count of bad examples, in one call."""

import dataclasses
import functools
import inspect

from keras_vit.data import datasets, pipeline
from keras_vit.data.bad_examples import BadExamples
from keras_vit.data.options import Options
from keras_vit.data.sources import Source

_OPTIONS = {field.name: field.default for field in dataclasses.fields(Options)}
_LOADING = {
    name: parameter.default
    for name, parameter in inspect.signature(datasets.load_split).parameters.items()
    if parameter.default is not inspect.Parameter.empty
}


def defaults(**changes):
    """Every field of a config's `data` group with its default, as a dict.

    `name`, `train_split`, `test_split` and what else finds a dataset are described at `load_split`, what happens to
    its images at `Options`; `max_bad_share` is the share of either source that may be unreadable.

    Args:
        **changes: other values for some of the fields.

    Raises:
        ValueError: there is no such field.
    """
    fields = {
        "name": "digits", "train_split": "train", "test_split": "test", **_LOADING, **_OPTIONS, "max_bad_share": 0.01,
    }  # fmt: skip
    unknown = sorted(set(changes) - set(fields))
    if unknown:
        raise ValueError(f"The fields of `data` are {', '.join(fields)}. Received: {unknown}")
    return fields | changes


@dataclasses.dataclass(frozen=True)
class InputPipeline:
    """The input of a run.

    Attributes:
        train, test: the sources.
        options: the fields of `Options`, a dict.
        batch_size, seed: of the run.
        max_bad_share: the share of either source that may be unreadable.
    """

    train: Source
    test: Source
    options: dict
    batch_size: int
    seed: int
    max_bad_share: float

    def train_batches(self, start_step=0, num_hosts=1, host_index=0):
        """See `data.train_batches`."""
        where = {"start_step": start_step, "num_hosts": num_hosts, "host_index": host_index}
        return pipeline.train_batches(self.train, batch_size=self.batch_size, seed=self.seed, **where, **self.options)

    def eval_batches(self, num_hosts=1, host_index=0):
        """See `data.eval_batches`."""
        where = {"num_hosts": num_hosts, "host_index": host_index}
        return pipeline.eval_batches(self.test, batch_size=self.batch_size, **where, **self.options)

    @functools.cached_property
    def image_shape(self):
        """`(H, W, C)` of the images in a batch, which a model for this input has."""
        _, height, width, channels = self.train_batches().element_spec[0].shape
        return height, width, channels

    def model_preprocessing(self):
        """What test images go through, in the words of a model's `preprocessing` (see `layers.InputPreprocessing`)."""
        options = Options(**self.options).resolve(self.test)
        cropped = options.eval_crop.endswith("_crop")
        middle = [self.test.max_value / 2] * 3
        return {
            "mean": middle,
            "std": middle,
            "resize": "shorter_side" if options.eval_crop == "resize_small_crop" else "stretch",
            "crop_fraction": options.image_size / options.resize_size if cropped else 1.0,
        }

    def bad_examples(self, split, num_hosts=1, host_index=0, **kwargs):
        """A new `BadExamples` for the batches of a split, "train" or "test"."""
        source, seed = (self.train, self.seed) if split == "train" else (self.test, -1)
        where = {"num_hosts": num_hosts, "host_index": host_index, "max_share": self.max_bad_share}
        return BadExamples(source, batch_size=self.batch_size, seed=seed, **where, **kwargs, **self.options)


def from_config(config, *, batch_size, seed):
    """Loads both splits of a dataset and says how batches are made of them.

    Args:
        config: a mapping with some or all of the fields of `defaults()`; the others take their defaults.
        batch_size: examples in a batch, over all hosts and replicas.
        seed: a non-negative int32.

    Returns:
        An `InputPipeline`.

    Raises:
        ValueError: a field is unknown or out of range, or the dataset cannot be loaded.
    """
    fields = defaults(**dict(config))
    options = {name: fields[name] for name in _OPTIONS}
    Options(**options)
    train, test = datasets.load(
        fields["name"],
        train_split=fields["train_split"],
        test_split=fields["test_split"],
        **{name: fields[name] for name in _LOADING},
    )
    for source in (train, test):
        Options(**options).resolve(source)
    return InputPipeline(train, test, options, batch_size, seed, fields["max_bad_share"])
