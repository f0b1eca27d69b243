"""Write the generated pages of the site: the reference, and pages of files outside of `docs/`.

The reference has a page for each family of names, from their docstrings, and two indexes with names of other
libraries: of layers, and of classes and functions. A page of more than 120 lines becomes several. Links in other
files are changed to links between pages; a link to a file that is no page becomes the path of the file.
"""

import csv
import functools
import importlib
import inspect
import io
import pathlib
import re
import types
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import fluid
from fluid._util.known_names import names

# Families of layers: a title, and the modules below `fluid.layers` whose functions a page has.
FAMILIES = {
    "data": ("Data and parameters", ["data", "fc", "embedding", "custom", "overview"]),
    "tensor-create": ("Create arrays", ["tensor.create", "tensor.random"]),
    "tensor-math": ("Arithmetic", ["tensor.arithmetic"]),
    "tensor-matrix": ("Matrices", ["tensor.matrix"]),
    "tensor-reduce": ("Reduce and search", ["tensor.reduce", "tensor.search"]),
    "tensor-compare": ("Compare", ["tensor.compare"]),
    "tensor-shape": ("Reshape, join and pad", ["tensor.reshape", "tensor.concat"]),
    "tensor-index": ("Index, gather and scatter", ["tensor.index"]),
    "activation": ("Activations", ["activation"]),
    "image": ("Convolution and pooling", ["image.conv", "image.pool"]),
    "image-shape": ("Resize and rearrange images", ["image"]),
    "norm": ("Normalisation and dropout", ["norm"]),
    "loss": ("Losses of classes", ["loss.cross_entropy", "loss.classification", "loss.sampled"]),
    "loss-numbers": ("Losses of numbers, and metrics", ["loss"]),
    "sequence": ("Sequences", ["sequence"]),
    "recurrent": ("Recurrent layers", ["recurrent"]),
    "attention": ("Attention", ["attention"]),
    "control": ("Branches, loops and stacks", ["control"]),
    "structured": ("Decoding and structured prediction", ["structured"]),
    "detection": ("Detection: boxes", [f"detection.{n}" for n in ("prior", "matching", "box", "roi")]),
    "detection-heads": ("Detection: heads and losses", ["detection"]),
    "schedule": ("Learning-rate schedules", ["lr"]),
}
# Classes with a page each, by the name of the page. The page also has the methods of their bases, which have no page.
CLASSES = {
    "trainer": "Trainer",
    "history": "History",
    "inferencer": "Inferencer",
    "session": "Session",
    "loop": "Loop",
    "population": "Population",
    "online-trainer": "OnlineTrainer",
}
# Names of `fluid` for programs that were written for PaddlePaddle Fluid.
NAMES_OF_2018 = [
    "CPUPlace",
    "CUDAPlace",
    "DataFeeder",
    "LoDTensor",
    "create_lod_tensor",
    "create_random_int_lodtensor",
    "data",
    "embedding",
    "one_hot",
]
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
    "debug": ("Debugging", fluid.debug),
    "errors": ("Errors", fluid.errors),
}

# Pages of files outside of `docs/`: the file, the headings between which its part lies, and the title.
ADOPTED = {
    "start/what": ("README.md", "Write a model", "## Install", ""),
    "start/install": ("README.md", "## Install", "## Five minutes", "Install fluid, on a CPU or a GPU"),
    "start/five-minutes": ("README.md", "## Five minutes", "## Your own loop", "A first model in five minutes"),
    "start/tour": ("README.md", "## Your own loop", "## Where to read on", "A tour: custom loops, rows of any length"),
    "inside/architecture": ("ARCHITECTURE.md", "", "", ""),
    "inside/benchmarks": ("benchmarks/README.md", "", "", ""),
    "inside/figures": ("benchmarks/FIGURES.md", "", "", ""),
    "inside/kernels": ("benchmarks/KERNELS.md", "", "", ""),
    "inside/contributing": ("CONTRIBUTING.md", "", "", ""),
    "inside/security": ("SECURITY.md", "", "", ""),
    "inside/changelog": ("CHANGELOG.md", "", "", ""),
}
PAGES_OF = {path: f"{page}.md" for page, (path, start, *_) in ADOPTED.items() if not start}
PAGES_OF["benchmarks/ratios.svg"] = "inside/ratios.svg"
LONGEST = 120  # lines of a page


def write(docs: pathlib.Path) -> None:
    """Write all pages into the folder `docs`; an unchanged page is not written, so that builds stay incremental."""
    texts = _reference()
    for name, (path, *part) in ADOPTED.items():
        texts |= _divided(name, _adopted(docs.parent, path, *part))
    pages = {f"{name}.md": text for name, text in texts.items()} | {"reference/layers.csv": _table_of_layers()}
    pages["reference/names.csv"] = table_of_names(names()["other_libraries"], OWNERS)
    pages["reference/names-2018.csv"] = table_of_names(names()["fluid_2018"], list(names()["fluid_2018"]))
    for folder in ("start", "inside", "reference"):
        for old in (docs / folder).glob("*.md"):
            if f"{folder}/{old.name}" not in pages:
                old.unlink()
    for name, text in pages.items():
        path = docs / name
        if path.suffix == ".md" and len(text.splitlines()) > LONGEST:
            raise ValueError(f"{name}: found {len(text.splitlines())} lines, expected at most {LONGEST}")
        path.parent.mkdir(exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def _divided(name: str, text: str) -> dict[str, str]:
    """Return the pages of a text by name, divided at its headings into pages of at most `LONGEST` lines."""
    title = text.splitlines()[0].lstrip("# ")
    pages = [""]
    for section in re.split(r"(?m)^(?=###? )", text):
        # Two lines for the title that a later page gets.
        if pages[-1].count("\n") + section.count("\n") > LONGEST - 2:
            heading, _, body = section.partition("\n")
            pages.append(f"# {title}: {heading.lstrip('# ')}\n{body}")
        else:
            # A page that begins within a section has no heading of the second level.
            pages[-1] += section if re.search(r"(?m)^## ", pages[-1] + section) else re.sub("^###", "##", section)
    return {name if i == 0 else f"{name}-{i + 1}": page for i, page in enumerate(pages)}


def plain(lines: list[str]) -> list[str]:
    """Return the lines of a docstring as reStructuredText.

    Single backquotes are code, asterisks are asterisks, and `docs/NAME.md` is a link to the page.
    """
    parts = re.split(r"(`[^`]+`)", "\n".join(lines))
    return "".join(_code(part) if i % 2 else _escaped(part) for i, part in enumerate(parts)).split("\n")


def _code(part: str) -> str:
    page = re.fullmatch(r"`docs/([\w-]+)\.md`", part)
    return f":doc:`/{page[1]}`" if page else f"`{part}`"


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


def paired(text: str) -> str:
    """Return a page of `coming-from/` where each block `py` and the block `python` after it are two tabs.

    The page has no list of contents beside it, so that lines of code have room.

    Args:
      text: the page; its title ends with the name of the other library, which is the label of the first tab.
    """
    peer = text.split("\n")[0].removeprefix("# Coming from ")
    tabs = "".join(
        f":::{{tab-item}} {label}\n:sync: {key}\n```python\n\\{group}```\n:::\n"
        for label, key, group in ((peer, "peer", 1), ("fluid", "fluid", 2))
    )
    pairs = re.sub(r"(?ms)^```py\n(.*?)^```\n+```python\n(.*?)^```\n", f"\n::::{{tab-set}}\n{tabs}::::\n", text)
    return f"---\nhtml_theme.sidebar_secondary.remove: true\n---\n{pairs}"


def _adopted(root: pathlib.Path, path: str, start: str, end: str, title: str) -> str:
    """Return the text between two headings of a file outside of `docs/`; a title replaces the first heading."""
    text = (root / path).read_text(encoding="utf-8")
    part = text[text.index(start) if start else 0 : text.index(end) if end else None]
    if title:
        part = f"# {title}\n" + part.partition("\n")[2]
    return linked(part, root / path)


class Group(NamedTuple):
    """A group of names with one page of docstrings, or several: the name of the page, its title, and their module."""

    page: str
    title: str
    owner: str
    names: list[str]


def groups() -> list[Group]:
    """Return all names of the reference in groups; a name with several modules is in one group."""
    found = [
        Group(f"layers-{family}", f"Layers: {title[0].lower()}{title[1:]}", "fluid.layers", _layers_of(family))
        for family, (title, _) in FAMILIES.items()
    ]
    found += [Group(page, name, "fluid", [name]) for page, name in CLASSES.items()]
    of_2018 = Group("fluid-2018", "Names for PaddlePaddle Fluid programs of 2018", "fluid", NAMES_OF_2018)
    shown = {id(getattr(fluid, name)) for name in (*CLASSES.values(), *NAMES_OF_2018)}
    for page, (title, module) in MODULES.items():
        values = {n: getattr(module, n) for n in _public(module)}
        names = [n for n, value in values.items() if _has_page(n, value) and id(value) not in shown]
        shown.update(id(values[n]) for n in names)
        found.append(Group(page, title, module.__name__, names))
    return [*found, of_2018]


def _reference() -> dict[str, str]:
    """Return the text of each page of the reference, by the name of the page."""
    pages = {"reference/layers": INDEX}
    for page, *rest in groups():
        pages |= _pages(f"reference/{page}", *rest)
    title, _, names = pages["reference/fluid-2018"].partition("\n\n")
    pages["reference/fluid-2018"] = f"{title}\n\n{ABOUT_2018}\n{names}{TABLE_OF_2018}"
    modules = "\n".join(name.removeprefix("reference/") for name in pages if "/layers" not in name)
    return pages | {"reference/names": NAMES.format(modules=modules)}


NAMES = """# Classes and functions

The Trainer and its events, optimizers, initializers, readers, handlers (callbacks), metrics, files and errors.

```{{toctree}}
:maxdepth: 2
{modules}
```

## Names of other libraries

Search for a name of Keras, PyTorch, Lightning or optax, such as `DataLoader`, `callbacks`,
`ModelCheckpoint`, `Adam`. Names with a dot are methods and attributes of a model or a trainer.
Layers have [an index of their own](layers.md).

```{{csv-table}}
:file: names.csv
:header: elsewhere, in fluid
:widths: 30 70
```
"""
ABOUT_2018 = """Programs for PaddlePaddle Fluid use these names; new programs do not need them.
[Run a PaddlePaddle Fluid program](/from-fluid.md) shows how to run an old program.
"""
TABLE_OF_2018 = """## Names that fluid does not have

`fluid.static` has many of the names in this table.

```{csv-table}
:file: names-2018.csv
:header: in PaddlePaddle Fluid, in fluid
:widths: 30 70
```
"""
# Owners in the table of hints whose names are in the index. Of a name with two owners, the index has the first.
OWNERS = ["fluid.handlers", "fluid.reader", "fluid.optimizer", "fluid", "Trainer"]


def table_of_names(hints: Mapping[str, Mapping[str, str]], owners: Sequence[str]) -> str:
    """Return the names of other libraries and their equivalents in fluid, as CSV with two columns of Markdown.

    Args:
      hints: dicts of names and advice, by owner.
      owners: the owners in the table.
    """
    found: dict[str, str] = {}
    for owner in owners:
        for name, advice in hints[owner].items():
            found.setdefault(f".{name}" if owner == "Trainer" else name, advice)
    anchors = {id(getattr(importlib.import_module(g.owner), n)): f"{g.owner}.{n}" for g in groups() for n in g.names}
    text = io.StringIO()
    writer = csv.writer(text)
    for name in sorted(found, key=lambda name: name.lstrip(".").lower()):
        writer.writerow([f"`{name}`", _as_markdown(found[name], anchors)])
    return text.getvalue()


# Heads of code in advice, such as `fluid.batch` and `num_epochs=`.
CODE = re.compile(r"(?<![\w.])(?:(?:fluid|layers|trainer|session|event|optax|jax)\.\w|\w+=(?!=))")


def _as_markdown(advice: str, anchors: Mapping[int, str]) -> str:
    """Return the advice of a hint as Markdown: code in backquotes, with a link for names of the reference.

    Args:
      advice: the text of the hint.
      anchors: the name in the reference of each function and class, by its id.
    """
    text, at = "", 0
    while found := CODE.search(advice, at):
        end = _end_of_code(advice, found.start())
        code = advice[found.start() : end]
        anchor = _anchor(re.match(r"[\w.]*", code)[0], anchors)
        text += _without_markup(advice[at : found.start()]) + (f"[`{code}`]({anchor})" if anchor else f"`{code}`")
        at = end
    return text + _without_markup(advice[at:])


def _end_of_code(advice: str, start: int) -> int:
    """Return the index after the code that begins at `start`: spaces and commas belong to the code within brackets."""
    depth = 0
    for i, char in enumerate(advice[start:], start):
        depth += (char in "([{") - (char in ")]}")
        if depth < 0 or depth == 0 and char in " ,;:":
            return i
    return len(advice)


def _without_markup(text: str) -> str:
    """Return prose with escapes for characters of Markdown; code in backquotes stays as it is."""
    return "".join(
        f"`{part}`" if i % 2 else re.sub(r"([*_<\[\]])", r"\\\1", part) for i, part in enumerate(text.split("`"))
    )


def _anchor(path: str, anchors: Mapping[int, str]) -> str:
    """Return the target of a link to a name such as `fluid.batch` or `trainer.train`; "" if the name has no page."""
    owner, _, rest = path.partition(".")
    kinds = {"trainer": "Trainer", "session": "Session"}
    if owner in kinds:
        method = rest.partition(".")[0]
        return f"#fluid.{kinds[owner]}.{method}" if hasattr(getattr(fluid, kinds[owner]), method) else ""
    if owner not in ("fluid", "layers") or not rest:
        return ""
    value = functools.reduce(getattr, path.removeprefix("fluid.").split("."), fluid)
    pages = {id(module): page for page, (_, module) in MODULES.items()} | {id(fluid.layers): "layers"}
    return f"{pages[id(value)]}.md" if id(value) in pages else f"#{anchors[id(value)]}" if id(value) in anchors else ""


def _public(module: types.ModuleType) -> list[str]:
    """Return the names that a module lists in `__all__`, or defines if it has no list."""
    defined = (n for n, value in vars(module).items() if getattr(value, "__module__", "").startswith(module.__name__))
    return sorted(getattr(module, "__all__", None) or (n for n in defined if not n.startswith("_")))


def _has_page(name: str, value: object) -> bool:
    """Return whether a value is a function or class of fluid with a docstring; a second name of a class has no page."""
    home = getattr(value, "__module__", "")
    if inspect.ismodule(value) or inspect.isclass(value) and value.__name__ != name:
        return False
    return callable(value) and home.startswith("fluid") and bool(inspect.getdoc(value))


def _layers_of(family: str) -> list[str]:
    return [name for name in fluid.layers.__all__ if _family_of(name) == family]


def _family_of(name: str) -> str:
    """Return the family of a layer: the first that names its module, before the first that names its package."""
    module = getattr(fluid.layers, name).__module__.removeprefix("fluid.").removeprefix("layers.")
    found = [family for family, (_, modules) in FAMILIES.items() if module in modules]
    package = module.split(".")[0]
    return next(family for family in [*found, *(f for f, (_, names) in FAMILIES.items() if package in names)])


def _pages(name: str, title: str, owner: str, names: list[str]) -> dict[str, str]:
    """Return pages of docstrings by name; each has few enough names for `LONGEST` lines."""
    most = (LONGEST - 2) // 5
    count = -(-len(names) // most)
    size = -(-len(names) // count)
    groups = [names[i : i + size] for i in range(0, len(names), size)]
    return {
        name if i == 0 else f"{name}-{i + 1}": _page(
            title if count == 1 else f"{title}: {group[0]} to {group[-1]}", owner, group
        )
        for i, group in enumerate(groups)
    }


def _page(title: str, owner: str, names: list[str]) -> str:
    """Return a page of docstrings, in Markdown; each name takes five lines."""
    blocks = []
    if names == [title]:  # a class with a page
        block = f".. autoclass:: {owner}.{title}\n   :members:\n   :inherited-members:"
        return f"# {title}\n\n```{{eval-rst}}\n{block}\n```\n"
    for name in names:
        value = getattr(importlib.import_module(owner), name)
        kind = "autoclass" if inspect.isclass(value) else "autofunction"
        members = "\n   :members:" if inspect.isclass(value) else ""
        blocks.append(f"## {name}\n```{{eval-rst}}\n.. {kind}:: {owner}.{name}{members}\n```\n")
    return f"# {title}\n\n" + "".join(blocks)


INDEX = """# All layers

Search for a layer by its name here or in Keras, PyTorch and Flax, such as `Dense`,
`Linear`, `LayerNorm`, `BatchNorm2d`, `MultiheadAttention`.

```{toctree}
:hidden:
:glob:
layers-*
```

```{csv-table}
:file: layers.csv
:header: layer, computes, elsewhere
:widths: 25 55 20
```
"""


def _table_of_layers() -> str:
    """Return the index of layers: one line each, with the names that other libraries use."""
    text = io.StringIO()
    writer = csv.writer(text)
    for row in sorted(fluid.layers.overview(), key=lambda row: row.layer.lower()):
        writer.writerow([f"[`{row.layer}`](#fluid.layers.{row.layer})", row.computes, ", ".join(row.elsewhere)])
    return text.getvalue()
