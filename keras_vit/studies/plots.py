"""The pictures of studies. Only this file of the room imports matplotlib, and only when a picture is asked for."""

import statistics


def picture(path, title, rows, kind, x, y, group):
    """Draws the rows of a study; beside it the paper's numbers, where the rows have some.

    Args:
        path: the file to write; its ending decides the format.
        title: of the picture.
        rows: dicts, of `rows_of`.
        kind: "bars", y of every row; or "lines", y over x, one for each value of `group`: the best where several rows
            have the same x, and their mean where they differ in the seed.
        x, y, group: names in the rows; of "bars" only y is used.

    Raises:
        ImportError: matplotlib is not installed (`pip install "keras_vit[plots]"`).
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError('matplotlib is not installed; pip install "keras_vit[plots]" adds it.') from error
    columns = [name for name in (y, f"{y}, paper") if any(row.get(name) is not None for row in rows)]
    figure = Figure(figsize=(7 * max(len(columns), 1), 5), layout="constrained")
    figure.suptitle(title)
    panels = figure.subplots(1, max(len(columns), 1), squeeze=False)[0]
    for axes, name in zip(panels, columns):
        shown = [row for row in rows if row.get(name) is not None]
        if kind == "bars":
            axes.barh([row["run"] for row in shown], [row[name] for row in shown], color="tab:blue")
            axes.invert_yaxis()
            axes.set_xlabel(name)
        else:
            for label, points in lines_of(shown, x, name, group).items():
                axes.plot(*zip(*points), "o-", label=label)
            axes.set_xscale("log")
            axes.set_xlabel(x)
            axes.set_ylabel(name)
            axes.legend()
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=100)


def lines_of(rows, x, y, group):
    """For each value of `group` its points `(x, y)`, sorted: of the same seed the best, and of seeds the mean."""
    lines = {}
    for row in rows:
        seeds = lines.setdefault(str(row[group]), {}).setdefault(row[x], {})
        seed = row.get("seed", 0)
        seeds[seed] = max(row[y], seeds.get(seed, row[y]))
    return {
        label: sorted((place, statistics.fmean(seeds.values())) for place, seeds in points.items())
        for label, points in lines.items()
    }
