"""A griffe extension that completes docstrings and adapts them to griffe's Google-style parser."""

import itertools
import re
from pathlib import Path

import griffe

EXAMPLES = Path(__file__).with_name("examples.py")


class Docstrings(griffe.Extension):
    def on_object(self, *, obj, **_):
        if obj.is_attribute and str(obj.value).startswith(
            "_size("
        ):  # a constructor of keras_vit.families
            obj.docstring = griffe.Docstring(_of_constructor(obj))
        if obj.docstring:
            text = escape(obj.docstring.value)
            obj.docstring.value = text if obj.is_module else rewrite(text, obj.is_class)

    def on_package(self, *, pkg, **_):
        """Exports the constructors of sizes; inserts each example after the first paragraph of a
        docstring."""
        families = pkg["families"]
        for module in families.modules.values():
            names = [
                name
                for name, value in module.attributes.items()
                if str(value.value).startswith("_size(")
            ]
            for name, parent in itertools.product(names, (families, pkg)):
                parent.imports[name] = f"{module.path}.{name}"
                parent.set_member(name, griffe.Alias(name, parent.imports[name], parent=parent))
            families.exports = [*names, *families.exports]
        for name, code in examples().items():
            docstring = resolve(pkg, name).docstring
            summary, *rest = docstring.value.split("\n\n")
            docstring.value = "\n\n".join((summary, f"```python\n{code}\n```", *rest))


def examples():
    """Returns `{public name: code of the example}`."""
    cells = re.split(r"^# %% ", EXAMPLES.read_text(), flags=re.MULTILINE)[1:]
    return {cell.split()[0]: cell.partition("\n")[2].strip() for cell in cells}


def resolve(package, path):
    """Returns the object with a public name. Imports win over submodules of the same name."""
    parent, _, name = path.rpartition(".")
    module = package[parent.removeprefix("keras_vit.")] if parent != "keras_vit" else package
    return (
        resolve(package, module.imports[name]) if name in module.imports else module.members[name]
    )


def _of_constructor(obj):
    """Builds the docstring of a constructor of `keras_vit.families`, which has no docstring in the
    source code."""
    size, note = re.findall(r"'([^']*)'", str(obj.value))[:2]
    base = re.search(r"Sizes\(([A-Z]\w*)?", str(obj.parent["_size"].value))[1]
    base = base or "VisionTransformer"
    return f"""{size}, {note}.

```python
# Random weights and 37 classes
model = keras_vit.{obj.name}(classes=37)
```

Takes the arguments of [`{base}`](../models/{base}.md). `weights=` loads weights by the names
in [Weights](../../weights.md) and [Families](../../families.md)."""


def escape(text):
    """Escapes `<` outside of backticks, because `<file name>` would become an HTML tag."""
    parts = text.split("`")
    return "`".join(
        part if i % 2 else re.sub(r"<(?=[A-Za-z/])", "&lt;", part) for i, part in enumerate(parts)
    )


def rewrite(text, is_class):
    """Joins wrapped lists of parameter names, and prevents the parser from reading a result as
    `type: text`."""
    wrapped = r"^(    (?:\**\w+, )*\**\w+,)\n +(?=\w)"
    while re.search(wrapped, text, re.MULTILINE):
        text = re.sub(wrapped, r"\1 ", text, flags=re.MULTILINE)
    if is_class:  # a class has no return annotation, so format the section as Markdown
        return re.sub(
            r"^Returns:\n((?:    .*\n?)+)",
            lambda match: _section("Returns", match[1]),
            text,
            flags=re.MULTILINE,
        )
    return re.sub(r"^Returns:\n    ", "Returns:\n    : ", text, flags=re.MULTILINE)


def _section(title, text):
    return f"**{title}:**\n\n{re.sub('^    (?! )', '', text, flags=re.MULTILINE)}"
