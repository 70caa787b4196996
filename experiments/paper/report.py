"""Writes the table, picture and page of a study."""

import csv
import html
import io

import plots
from estimates import exaflops_of, images_of, model_name

from keras_vit import files

_SCALES = {
    "tiny": "Each run trains for a few steps at most, which only tests that the study works.",
    "small": "Instead of the paper's models and data, this study uses small models, generated "
    "images of shapes, and handwritten digits. The list of runs shows the model and the number of "
    "images of each run.",
    "paper": "The runs use the paper's models and data.",
}


def write_page(study, scale, runs, rows, folder, write=print):
    """Writes `table.csv`, `table.md`, `index.html` and, if matplotlib is installed, `picture.png`.

    Args:
        study, scale, runs: the `Study`, the `Scale` and the study's `Run`s at this scale.
        rows: from `rows_of`.
        folder: local folder to write to.
        write: called with lines of text.
    """
    folder = files.as_path(folder)
    files.make_dirs(folder)
    with files.atomic_write(folder / "table.csv") as file:
        file.write(as_csv(rows))
    with files.atomic_write(folder / "table.md") as file:
        file.write(as_markdown(rows))
    has_picture = True
    try:
        _draw_picture(study, rows, folder)
    except ImportError as error:
        has_picture = False
        write(f"warning: picture.png was not drawn: {error}")
    with files.atomic_write(folder / "index.html") as file:
        file.write(as_html(study, scale, runs, rows, folder, has_picture))
    write(f"wrote {folder / 'index.html'}")


def _draw_picture(study, rows, folder):
    """Writes `picture.png`; raises an `ImportError` if matplotlib is not installed."""
    kind, x, y, group = study.picture
    columns = (y,) if isinstance(y, str) else y
    # Few-shot accuracy is not measured at tiny scale.
    measured = tuple(name for name in columns if any(row[name] is not None for row in rows))
    parts = {"": rows} if study.panels is None else study.panels(rows)
    with files.atomic_path(folder / "picture.png", ".png") as path:
        plots.picture(path, study.title, parts, kind, x, measured or ("accuracy",), group)


def as_csv(rows):
    """Returns the rows as CSV at full precision; missing values are left empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def as_markdown(rows):
    """Returns the rows as a Markdown table; floats have four significant digits."""
    cells = [
        list(rows[0]),
        ["---"] * len(rows[0]),
        *([_text(value) for value in row.values()] for row in rows),
    ]
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def as_html(study, scale, runs, rows, folder, has_picture):
    """Returns the HTML page, with links to the inspections that exist."""
    escape = html.escape
    head = "".join(f"<th>{escape(name)}</th>" for name in rows[0])
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(_text(v))}</td>" for v in row.values()) + "</tr>\n"
        for row in rows
    )
    notes = "".join(f"<li>{escape(note)}</li>\n" for note in study.notes)
    inspected = "".join(
        f'<li><a href="runs/{escape(run.name)}/inspection/index.html">inside '
        f"{escape(run.name)}</a></li>\n"
        for run in runs
        if files.exists(folder / "runs" / run.name / "inspection" / "index.html")
    )
    listed = "".join(f"<li>{escape(_describe(run))}</li>\n" for run in runs)
    picture = (
        '<p><img src="picture.png" alt="plot of the results of this study"></p>\n'
        if has_picture
        else ""
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f"<title>{escape(study.title)}</title>\n"
        "<style>body { font-family: sans-serif; max-width: 75em; margin: 2em auto; padding: 0 1em; } "
        "td, th { padding: 0.2em 0.8em; text-align: left; } img { max-width: 100%; }</style>\n"
        "</head>\n<body>\n"
        f"<h1>{escape(study.title)}</h1>\n<p>{escape(study.question)}</p>\n"
        f"<p>Scale: {scale.name}. {escape(_SCALES[scale.name])} Columns whose names end in “paper” "
        "contain the results that the paper reports.</p>\n"
        f"{picture}<table>\n<tr>{head}</tr>\n{body}</table>\n"
        f"<h2>Notes</h2>\n<ul>\n{notes}</ul>\n"
        + (f"<h2>Pictures of the models</h2>\n<ul>\n{inspected}</ul>\n" if inspected else "")
        + f"<h2>Runs</h2>\n<ul>\n{listed}</ul>\n</body>\n</html>\n"
    )


def _describe(run):
    if run.results:
        return f"{run.name}: read from a file"
    best = "the best of " if len(run.start) > 1 else ""
    start = f", from the weights of {best}{', '.join(run.start)}" if run.start else ""
    cost = f", {images_of(run):,} images, {exaflops_of(run):.3g} exaFLOPs" if images_of(run) else ""
    return f"{run.name}: {model_name(run)}, {run.config['recipe']}{cost}{start}"


def _text(value):
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
