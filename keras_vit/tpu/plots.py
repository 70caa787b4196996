"""The picture of a table."""

import itertools
import math

from keras_vit.plots import figure_class


def batch_by_image_size(path, rows):
    """Draws the largest inference batch of a device over the size of images, a plot for each slice and a line for each
    model: the right half of the paper's Figure 12.

    Args:
        path: the file to write; its ending decides the format.
        rows: of `table.fill`; those of training, and those of which nothing fits, are left out.

    Raises:
        ImportError: matplotlib is not installed (`pip install "keras_vit[plots]"`).
        ValueError: no row is one of inference.
    """
    rows = [row for row in rows if row.mode == "inference" and row.batch_per_device]
    if not rows:
        raise ValueError("The table has no row of inference to draw. Received: rows=[]")
    topologies = list(dict.fromkeys(row.topology for row in rows))
    models = list(dict.fromkeys(row.model for row in rows))
    figure = figure_class()(figsize=(1 + 5 * len(topologies), 4.5), layout="constrained")
    for axes, topology in zip(figure.subplots(1, len(topologies), squeeze=False, sharey=True).flat, topologies):
        for number, model in enumerate(models):
            points = sorted(
                (r.image_size, r.batch_per_device) for r in rows if (r.topology, r.model) == (topology, model)
            )
            if points:
                style = {"color": f"C{number % 10}", "linestyle": ("-", "--", ":")[number // 10 % 3], "marker": "o"}
                axes.plot(*zip(*points), markersize=3, label=model, **style)
        axes.set(title=topology, xlabel="pixels of a side", xscale="log", yscale="log")
        sizes = sorted({row.image_size for row in rows if row.topology == topology})
        # Sizes that patches of 14 and of 16 fill stand too close for two labels: the larger one has it.
        ticks = [size for size, larger in itertools.pairwise([*sizes, math.inf]) if larger > 1.1 * size]
        axes.set_xticks(ticks, labels=map(str, ticks))
        axes.minorticks_off()
    figure.axes[0].set_ylabel("largest inference batch of a device")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside right upper", fontsize=8)
    figure.savefig(path, dpi=100)
