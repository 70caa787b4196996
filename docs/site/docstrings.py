"""Brings the docstrings into the form that griffe's parser of Google's style reads, and adds the examples."""

import re
from pathlib import Path

import griffe

EXAMPLES = Path(__file__).with_name("examples.py")


class Docstrings(griffe.Extension):
    """Brings the docstrings into the form that the parser reads."""

    def on_object(self, *, obj, **_):
        if obj.is_attribute and str(obj.value).startswith("_size("):  # a constructor of keras_vit.families
            obj.docstring = griffe.Docstring(_of_constructor(obj))
        if obj.docstring:
            text = escape(obj.docstring.value)
            obj.docstring.value = text if obj.is_module else rewrite(text, obj.is_class)

    def on_package(self, *, pkg, **_):
        """Puts each example after the summary of its name."""
        for name, code in examples().items():
            docstring = resolve(pkg, name).docstring
            summary, *rest = docstring.value.split("\n\n")
            docstring.value = "\n\n".join((summary, f"```python\n{code}\n```", *rest))


def examples():
    """Returns the code of each example by the public name that it is for."""
    cells = re.split(r"^# %% ", EXAMPLES.read_text(), flags=re.MULTILINE)[1:]
    return {cell.split()[0]: cell.partition("\n")[2].strip() for cell in cells}


def resolve(package, path):
    """Returns the object that a public name refers to. A function may have the name of its module, which hides it."""
    parent, _, name = path.rpartition(".")
    module = package[parent.removeprefix("keras_vit.")] if parent != "keras_vit" else package
    return resolve(package, module.imports[name]) if name in module.imports else module.members[name]


def _of_constructor(obj):
    """Returns the docstring of a constructor of `keras_vit.families`, which no code spells out."""
    size, note = re.findall(r"'([^']*)'", str(obj.value))[:2]
    base = re.search(r"Sizes\((\w+)\)", str(obj.parent["_size"].value))[1]
    return f"""{size}, {note}.

```python
# Random weights; from images (B, 224, 224, 3) to logits (B, 37)
model = keras_vit.{obj.name}(classes=37)
```

Takes the arguments of [`{base}`](../models/{base}.md). `weights=` loads published weights by the names
in [Weights](../../weights.md) and [Families](../../families.md)."""


def escape(text):
    """Escapes `<` outside of backticks, where `<file name>` would be an HTML tag."""
    parts = text.split("`")
    return "`".join(part if i % 2 else re.sub(r"<(?=[A-Za-z/])", "&lt;", part) for i, part in enumerate(parts))


def rewrite(text, is_class):
    """Joins wrapped names of parameters into one line, and keeps text before a colon in results."""
    wrapped = r"^(    (?:\**\w+, )*\**\w+,)\n +(?=\w)"
    while re.search(wrapped, text, re.MULTILINE):
        text = re.sub(wrapped, r"\1 ", text, flags=re.MULTILINE)
    if is_class:  # the result of a call, which has no annotation here
        return re.sub(
            r"^Returns:\n((?:    .*\n?)+)", lambda match: _section("Returns", match[1]), text, flags=re.MULTILINE
        )
    return re.sub(r"^Returns:\n    ", "Returns:\n    : ", text, flags=re.MULTILINE)


def _section(title, text):
    return f"**{title}:**\n\n{re.sub('^    (?! )', '', text, flags=re.MULTILINE)}"
