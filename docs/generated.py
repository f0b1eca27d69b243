"""Write the generated pages of the site: the reference, and pages of files outside of `docs/`.

The reference has a page for each family of names, from their docstrings, and an index of layers, which also has their
names in other libraries. Links in other files are changed to links between pages; a link to a file that is no page
becomes the path of the file.
"""

import importlib
import inspect
import pathlib
import re
import types

import fluid
from fluid.compat.name_hints.table import HINTS

FAMILIES = {
    "data": ("Data and parameters", ["data", "fc", "embedding", "custom", "learning_rate_scheduler", "adapters"]),
    "tensor": ("Arrays", ["tensor"]),
    "activation": ("Activations", ["activation"]),
    "image": ("Images", ["image"]),
    "norm": ("Normalisation and dropout", ["norm"]),
    "loss": ("Losses and metrics", ["loss"]),
    "sequence": ("Sequences", ["sequence"]),
    "recurrent": ("Recurrent layers", ["recurrent"]),
    "attention": ("Attention", ["attention"]),
    "control": ("Branches, loops and stacks", ["control"]),
    "structured": ("Decoding and structured prediction", ["structured"]),
    "detection": ("Object detection", ["detection"]),
}
MODULES = {
    "fluid": ("Programs, training and inference", fluid),
    "optimizer": ("Optimizers", fluid.optimizer),
    "initializer": ("Initializers", fluid.initializer),
    "regularizer": ("Weight decay", fluid.regularizer),
    "clip": ("Gradient clips", fluid.clip),
    "reader": ("Readers", fluid.reader),
    "handlers": ("Handlers", fluid.handlers),
    "metrics": ("Metrics over a data set", fluid.metrics),
    "nets": ("Compositions of layers", fluid.nets),
    "io": ("Files", fluid.io),
    "distributed": ("Several processes", fluid.distributed),
    "errors": ("Errors", fluid.errors),
}

# Pages of files outside of `docs/`: the file, and the texts between which its part lies.
ADOPTED = {
    "what": ("README.md", "Write a model", "## Install"),
    "start": ("README.md", "## Install", "## Where to read on"),
    "inside/architecture": ("ARCHITECTURE.md", "", ""),
    "inside/benchmarks": ("benchmarks/README.md", "", ""),
    "inside/figures": ("benchmarks/FIGURES.md", "", ""),
    "inside/kernels": ("benchmarks/KERNELS.md", "", ""),
    "inside/contributing": ("CONTRIBUTING.md", "", ""),
    "inside/security": ("SECURITY.md", "", ""),
    "inside/changelog": ("CHANGELOG.md", "", ""),
}
PAGES_OF = {path: f"{page}.md" for page, (path, start, _) in ADOPTED.items() if not start}
PAGES_OF["benchmarks/ratios.svg"] = "inside/ratios.svg"


def write(docs: pathlib.Path) -> None:
    """Write all pages into the folder `docs`; an unchanged page is not written, so that builds stay incremental."""
    pages = _reference() | {name: _adopted(docs.parent, *source) for name, source in ADOPTED.items()}
    for name, text in pages.items():
        path = docs / f"{name}.md"
        path.parent.mkdir(exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def plain(lines: list[str]) -> list[str]:
    """Return the lines of a docstring as reStructuredText: single backquotes are code, and asterisks are asterisks."""
    parts = re.split(r"(`[^`]+`)", "\n".join(lines))
    return "".join(f"`{part}`" if i % 2 else _escaped(part) for i, part in enumerate(parts)).split("\n")


def _escaped(text: str) -> str:
    lines = text.split("\n")
    examples = [line.lstrip().startswith((">>>", "...")) for line in lines]
    return "\n".join(
        s if is_code else re.sub(r"([*|])", r"\\\1", s) for s, is_code in zip(lines, examples, strict=True)
    )


def linked(text: str, path: pathlib.Path) -> str:
    """Return the Markdown text of a file with links between pages; a link to another file becomes its path.

    Args:
      text: the text.
      path: where the text comes from.
    """
    docs = pathlib.Path(__file__).parent

    def link(found: re.Match[str]) -> str:
        before, shown, target = found.groups()
        file, _, part = target.partition("#")
        there = (path.parent / file).resolve()
        if target.startswith(("http", "#", "/")) or docs in there.parents and path.parent == docs:
            return found.group(0)
        name = there.relative_to(docs.parent).as_posix()
        page = PAGES_OF.get(name) or (name.removeprefix("docs/") if name.startswith("docs/") else None)
        if page is None:
            return f"`{name}`" if shown.strip("`") == target else f"{shown} (`{name}`)"
        return f"{before}[{shown}](/{page}{'#' if part else ''}{part})"

    return re.sub(r"(!?)\[((?:[^\[\]]|\n)+)\]\(([^)\s]+)\)", link, text).replace("```mermaid", "```text")


def _adopted(root: pathlib.Path, path: str, start: str, end: str) -> str:
    """Return a page of a part of a file outside of `docs/`."""
    text = (root / path).read_text(encoding="utf-8")
    part = text[text.index(start) if start else 0 : text.index(end) if end else None]
    # A page begins with a heading of the first level.
    return linked(re.sub(r"(?m)^##", "#", part) if start.startswith("##") else part, root / path)


def _reference() -> dict[str, str]:
    pages = {"reference/layers": _index_of_layers()}
    for family, (title, modules) in FAMILIES.items():
        pages[f"reference/layers-{family}"] = _page(f"Layers: {title.lower()}", "fluid.layers", _layers_of(modules))
    shown: set[int] = set()
    for name, (title, module) in MODULES.items():
        found = {n: getattr(module, n) for n in _public(module)}
        names = [n for n, value in found.items() if _has_page(value) and id(value) not in shown]
        shown.update(id(found[n]) for n in names)
        pages[f"reference/{name}"] = _page(title, module.__name__, names)
    return pages


def _public(module: types.ModuleType) -> list[str]:
    return sorted(getattr(module, "__all__", None) or (n for n in vars(module) if not n.startswith("_")))


def _has_page(value: object) -> bool:
    """Return whether a value is a function or class of fluid with a docstring."""
    home = getattr(value, "__module__", "")
    return callable(value) and home.startswith("fluid") and bool(inspect.getdoc(value))


def _layers_of(modules: list[str]) -> list[str]:
    return [n for n in fluid.layers.__all__ if _family_of(n) in modules]


def _family_of(name: str) -> str:
    return getattr(fluid.layers, name).__module__.removeprefix("fluid.layers.").split(".")[0]


def _page(title: str, owner: str, names: list[str]) -> str:
    """Return a page of docstrings, in Markdown."""
    blocks = []
    for name in names:
        value = getattr(importlib.import_module(owner), name)
        kind = "autoclass" if inspect.isclass(value) else "autofunction"
        members = "\n   :members:" if inspect.isclass(value) else ""
        blocks.append(f"## {name}\n\n```{{eval-rst}}\n.. {kind}:: {owner}.{name}{members}\n```\n")
    return f"# {title}\n\n" + "\n".join(blocks)


def _index_of_layers() -> str:
    """Return the index of layers: one line each, with the names that other libraries use."""
    others: dict[str, list[str]] = {}
    for hints in HINTS.values():
        for other, advice in hints.items():
            if found := re.match(r"layers\.(\w+)", advice):
                others.setdefault(found.group(1), []).append(other)
    lines = ["# Layers", "", "Search for a layer by its name here or in Keras, PyTorch and Flax.", ""]
    lines += [":::{table}", ":widths: 25 55 20", "", "| layer | computes | elsewhere |", "|---|---|---|"]
    for name in sorted(fluid.layers.__all__, key=str.lower):
        first = (inspect.getdoc(getattr(fluid.layers, name)) or "").split("\n")[0].replace("|", "\\|")
        page = next((f for f, (_, modules) in FAMILIES.items() if _family_of(name) in modules), None)
        link = f"[`{name}`](layers-{page}.md#{name.lower()})" if page else f"`{name}`"
        lines.append(f"| {link} | {first} | {', '.join(sorted(set(others.get(name, []))))} |")
    return "\n".join([*lines, ":::"]) + "\n"
