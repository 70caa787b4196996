"""What griffe reads of the docstrings, which say a little more than its parser of Google's style knows."""

import re

import griffe


class Docstrings(griffe.Extension):
    """Brings the docstrings into the form that the parser reads."""

    def on_object(self, *, obj, **_):
        if obj.is_attribute and str(obj.value).startswith("_size("):  # a constructor of keras_vit.families
            size, note = re.findall(r"'([^']*)'", str(obj.value))[:2]
            obj.docstring = griffe.Docstring(f"{size}, {note}. Arguments: see its family's constructor.")
        if obj.docstring:
            text = escape(obj.docstring.value)
            obj.docstring.value = text if obj.is_module else rewrite(text, obj.is_class)


def escape(text):
    """`"augreg:<file name>"` would be a tag of HTML; within backticks it is not."""
    parts = text.split("`")
    return "`".join(part if i % 2 else re.sub(r"<(?=[A-Za-z/])", "&lt;", part) for i, part in enumerate(parts))


def rewrite(text, is_class):
    """Joins wrapped names of parameters in one line, and keeps the text before a colon in results."""
    wrapped = r"^(    (?:\**\w+, )*\**\w+,)\n +(?=\w)"
    while re.search(wrapped, text, re.MULTILINE):
        text = re.sub(wrapped, r"\1 ", text, flags=re.MULTILINE)
    if is_class:  # of a call, for which there is no annotation here
        return re.sub(
            r"^Returns:\n((?:    .*\n?)+)", lambda match: _section("Returns", match[1]), text, flags=re.MULTILINE
        )
    return re.sub(r"^Returns:\n    ", "Returns:\n    : ", text, flags=re.MULTILINE)


def _section(title, text):
    return f"**{title}:**\n\n{re.sub('^    (?! )', '', text, flags=re.MULTILINE)}"
