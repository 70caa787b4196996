"""A MkDocs hook that generates the pages of the site that are not Markdown files in docs/.

README.md becomes the first page. CONTRIBUTING.md, CHANGELOG.md, the license and the notebooks get a
page each. The reference documents every public name, from its docstring. The package is parsed and
not imported, so the site builds without a Keras backend.
"""

import json
import posixpath
import re
from pathlib import Path

import griffe
from docstrings import resolve  # next to this file
from mkdocs.structure.files import File

ROOT = Path(__file__).parent.parent.parent
# The modules in the order of the reference. "" is `keras_vit` itself.
MODULES = (
    "families",
    "",
    "models",
    "text",
    "layers",
    "checkpoints",
    "preprocessing",
    "naflex",
    "data",
    "recipes",
    "tasks",
    "losses",
    "optimizers",
    "training",
    "training.plots",
    "evaluation",
    "evaluation.plots",
    "inspection",
    "inspection.plots",
    "inspection.report",
    "export",
    "cost",
    "tpu",
)


def on_config(config):
    """Generates the pages and adds the pages of the reference to the navigation."""
    extensions = griffe.load_extensions(str(ROOT / "docs/site/docstrings.py"))
    package = griffe.load("keras_vit", search_paths=[str(ROOT)], extensions=extensions)
    homes = {}  # maps the path of each object to its page
    # Visit `keras_vit` last: its table links to the pages of objects that a module also exports.
    sections = {
        module: _section(package, module, homes)
        for module in sorted(MODULES, key=lambda name: not name)
    }
    sections = [sections[module] for module in MODULES]
    pages = {path: text for section in sections for _, path, text in section}
    config.extra["pages"] = {**_project(), **_notebooks(), **pages}
    (reference,) = (entry["Reference"] for entry in config.nav if "Reference" in entry)
    reference += [
        {index[0]: [index[1], *({t: p} for t, p, _ in names)]} for index, *names in sections
    ]
    return config


def on_files(files, config):
    """Adds the generated pages to the files in docs/."""
    for path, text in config.extra.pop("pages").items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown, **_):
    """Replaces links to notebook files with links to their pages."""
    return re.sub(r"\]\((notebooks/\w+)\.ipynb\)", r"](\1.md)", markdown)


def _project():
    """Returns the pages for README.md and other files in the repository root. Links to files become
    links to pages."""

    def read(name):
        text = (ROOT / name).read_text().replace("](docs/", "](")
        for file, page in {
            "CONTRIBUTING.md": "contributing.md",
            "CHANGELOG.md": "changelog.md",
        }.items():
            text = text.replace(f"]({file})", f"]({page})")
        return text.replace("](LICENSE)", "](license.md)").replace(
            "](CITATION.cff)", "](license.md#to-cite)"
        )

    license_text = f"```text\n{read('LICENSE')}```"
    citation = f"```yaml\n{read('CITATION.cff')}```"
    return {
        "index.md": read("README.md"),
        "contributing.md": read("CONTRIBUTING.md"),
        "changelog.md": read("CHANGELOG.md"),
        "license.md": f"# License\n\n{license_text}\n\n## To cite\n\n{citation}\n",
    }


def _notebooks():
    return {
        f"notebooks/{path.stem}.md": _notebook(path)
        for path in (ROOT / "docs/notebooks").glob("*.ipynb")
    }


def _notebook(path):
    """Returns a notebook as Markdown: text, code and outputs."""
    parts = []
    for cell in json.loads(path.read_text())["cells"]:
        # Replace badges with plain links, because the site loads nothing from other servers.
        source = re.sub(r"\[!\[([^]]*)\]\(https://[^)]*\)\]", r"[\1]", "".join(cell["source"]))
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "image/png" in data:
                parts.append(
                    "![Output of the code "
                    f"above](data:image/png;base64,{data['image/png'].strip()})"
                )
            elif text := "".join(output.get("text", data.get("text/plain", []))):
                parts.append(f"```text\n{text.rstrip()}\n```")
    return "\n\n".join(parts)


def _section(package, name, homes):
    """Returns the index of a module and the pages of its public names, each as `(title, path,
    text)`."""
    module, title = (package[name], name) if name else (package, "keras_vit")
    folder = f"reference/{name.replace('.', '/') or 'keras_vit'}"
    rows = []
    pages = {}
    for public in _public_names(package, module):
        found = resolve(package, f"{module.path}.{public}")
        if found.path not in homes:
            # Names that differ only in case share a page, because some file systems ignore case.
            page = next((page for page in pages if page.lower() == public.lower()), public)
            typed = package.members.get(public)
            short = typed is not None and typed.canonical_path == found.canonical_path
            pages.setdefault(page, []).append(
                _entry(found, f"{package.path if short else module.path}.{public}")
            )
            homes[found.path] = f"{folder}/{page}.md"
        link = posixpath.relpath(homes[found.path], folder)
        rows.append(f"| [`{public}`]({link}) | {_first_paragraph(found)} |")
    text = [
        f"# {module.path}",
        module.docstring.value,
        "| name | what it is |\n|---|---|\n" + "\n".join(rows),
    ]
    index = (title, f"{folder}/index.md", "\n\n".join(text))
    return [
        index,
        *((page, f"{folder}/{page}.md", "\n\n".join(texts)) for page, texts in pages.items()),
    ]


def _entry(found, public):
    options = json.dumps(
        {
            "heading": public,
            "toc_label": public.rpartition(".")[2],
            "show_attribute_values": not found.is_attribute,
        }
    )
    return f"::: {found.path}\n    options: {options}"


def _first_paragraph(found):
    if found.docstring is None:
        raise ValueError(f"Every public name must have a docstring. Received: {found.path}")
    return (
        " ".join(found.docstring.value.split("\n\n")[0].split())
        .removesuffix(":")
        .replace("|", r"\|")
    )


def _public_names(package, module):
    """Returns the public names of a module. For the package, omits its submodules."""
    if module is package:
        targets = {
            name: target for name, target in module.imports.items() if not name.startswith("_")
        }
        return sorted(name for name, target in targets.items() if name in target.split(".")[2:])
    if module.exports is not None:
        return [str(name) for name in module.exports]
    return [name for name, member in module.members.items() if _is_public(name, member)]


def _is_public(name, member):
    return (
        not name.startswith("_") and not member.is_alias and (member.is_function or member.is_class)
    )
