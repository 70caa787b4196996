"""Writes docs/reference/config.md, which lists all config fields: `python docs/site/fields.py`.

The descriptions come from the comments in `keras_vit/recipes/defaults.py` and the docstrings of
`data.load_split`, of the functions in `data.SOURCES`, of `Division`, of `data.Options` and of
`data.InputPipeline`. A test checks that the page is current.
"""

import collections
import inspect
import re
from pathlib import Path

from keras_vit import data
from keras_vit.data.sources.division import Division

DOCS = Path(__file__).parent.parent
PAGE = DOCS / "reference" / "config.md"

HEADER = """# Config fields

```sh
keras-vit train --config=digits --config.seed=1 --config.optimizer.weight_decay=0.05
```

Every field of a config file can be set on the command line. 0, "" or False turns an optional
feature off. A run prints the fields that differ from these defaults and writes every field to
`config.json`. The fields of `model` are the arguments of the architecture, such as those of
`keras_vit.VisionTransformer` ([Models](../models.md)).

`python docs/site/fields.py` generates this page from the code.
"""


def page() -> str:
    """Returns the page as Markdown."""
    groups = {"Run": [], "distillation": [], "optimizer": [], "schedule": []}
    group = "Run"
    source = (
        (DOCS.parent / "keras_vit/recipes/defaults.py")
        .read_text()
        .split("FIELDS = {")[1]
        .split("\n}\n")[0]
    )
    comment = ""  # on the lines above a field
    for line in source.splitlines():
        if line.strip().startswith("# "):
            comment = f"{comment} {line.strip()[2:]}".strip()
        elif match := re.match(r'    "(distillation|optimizer|schedule)": \{', line):
            group = match[1]
        elif match := re.match(r'\s+"(\w+)": (.*?),(?:  # (.*))?$', line):
            name, default, meaning = match.groups()
            if name not in ("model", "data"):
                prefix = "" if group == "Run" else f"{group}."
                groups[group].append((prefix + name, default, meaning or comment or None))
            comment = ""
    groups["data: finding the images"] = [
        *_of_docstring(data.load_split),
        *_of_sources(),
        *_of_docstring(Division),
    ]
    groups["data: preparing the images"] = _of_docstring(data.Options) + _of_docstring(
        data.InputPipeline
    )
    for kind in (*map(type, data.inputs.KINDS), *data.targets.TARGETS.values()):
        groups["data: preparing the images"] += _of_docstring(kind)
    parts = [HEADER]
    for title, rows in groups.items():
        parts.append(
            f"\n## {title[0].upper() + title[1:]}\n\n| field | default | meaning |\n|---|---|---|\n"
        )
        parts += [f"| `{name}` | `{default}` | {meaning} |\n" for name, default, meaning in rows]
    return "".join(parts)


def _of_docstring(documented):
    """Returns `(field, default, meaning)` for every documented argument or attribute that is a
    field of `data`."""
    fields = data.defaults()
    doc = inspect.getdoc(documented)
    section = "".join(re.findall(r"(?:Args|Attributes):\n((?:    .*\n?|\n)+?)(?=\S|\Z)", doc))
    rows = []
    for names, text in re.findall(r"^    ([\w, ]+): (.*(?:\n {5,}.*)*)", section, re.MULTILINE):
        meaning = " ".join(text.split()).replace("|", r"\|").replace("<", "&lt;")
        names = "train_split, test_split" if names == "split" else names
        rows += [
            (f"data.{name}", _shown(fields[name]), meaning)
            for name in names.split(", ")
            if name in fields
        ]
    return rows


def _of_sources():
    """Returns a row for every field of a source; its meaning names the sources unless there is only
    one."""
    sources_of = collections.defaultdict(lambda: collections.defaultdict(list))
    for name, function in data.SOURCES.items():
        if getattr(function, "__module__", "").startswith(
            "keras_vit."
        ):  # neither a user's nor a row of `DATASETS`
            for field, default, meaning in _of_docstring(function):
                sources_of[field, default][meaning].append(name)
    rows = []
    for (field, default), meanings in sources_of.items():
        parts = [
            f"for {', '.join(names)}: {meaning.rstrip('.')}" for meaning, names in meanings.items()
        ]
        rows.append((field, default, "; ".join(parts) + "."))
    return rows


def _shown(value):
    return f'"{value}"' if isinstance(value, str) else repr(value)


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(), encoding="utf-8")
