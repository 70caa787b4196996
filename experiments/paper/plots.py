"""Plots of studies."""

import statistics

from keras_vit.plots import figure_class


def picture(path, title, parts, kind, x, y, group):
    """Draws the results of a study.

    Each panel is followed by a panel with the paper's numbers, if the rows have any.

    Args:
        path: the file to write; its ending decides the format.
        title: title of the picture.
        parts: dict from the title of some panels to their rows, a list from `study.rows_of`.
        kind: "bars" draws a bar for each row with a value of y. "lines" draws y against a
            logarithmic x, with one line per value of `group`. A point is the mean over the seeds,
            and its error bar spans all seeds. If a seed has several rows at one x, only the row
            with the highest y counts. "slopes" draws the same lines with a logarithmic y axis.
        x, group: names of columns, for "lines" and "slopes".
        y: names of columns; each column with values has its own panel.

    Raises:
        ImportError: matplotlib is not installed (`pip install "keras_vit[plots]"`).
    """
    names = [column for name in y for column in (name, f"{name}, paper")]
    panels = [
        (part, name, [row for row in rows if row.get(name) is not None])
        for part, rows in parts.items()
        for name in names
    ]
    panels = [panel for panel in panels if panel[2]]
    num_columns = min(len(panels), 2) or 1
    num_rows = -(-len(panels) // 2) or 1
    figure = figure_class()(figsize=(6 * num_columns, 4.5 * num_rows), layout="constrained")
    figure.suptitle(title)
    for number, (part, name, shown) in enumerate(panels, start=1):
        axes = figure.add_subplot(num_rows, num_columns, number)
        axes.set_title(part)
        if kind == "bars":
            _draw_bars(axes, shown, name)
        else:
            _draw_lines(axes, shown, x, name, group)
            axes.set_yscale("log" if kind == "slopes" else "linear")
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=100)


def _draw_bars(axes, rows, y):
    axes.barh([row["run"] for row in rows], [row[y] for row in rows], color="tab:blue")
    axes.invert_yaxis()
    axes.set_xlabel(y)


def _draw_lines(axes, rows, x, y, group):
    for label, points in lines_of(rows, x, y, group).items():
        xs, values = zip(*points)
        means = [statistics.fmean(seeds) for seeds in values]
        below = [mean - min(seeds) for mean, seeds in zip(means, values)]
        above = [max(seeds) - mean for mean, seeds in zip(means, values)]
        axes.errorbar(xs, means, (below, above), fmt="o-", capsize=3, label=label)
    axes.set_xscale("log")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.legend()


def lines_of(rows, x, y, group):
    """Returns `{value of group: [(x, [highest y of each seed]), ...]}`, with points sorted by x."""
    lines = {}
    for row in rows:
        seeds = lines.setdefault(str(row[group]), {}).setdefault(row[x], {})
        seed = row.get("seed", 0)
        seeds[seed] = max(row[y], seeds.get(seed, row[y]))
    return {
        label: sorted((place, list(seeds.values())) for place, seeds in points.items())
        for label, points in lines.items()
    }
