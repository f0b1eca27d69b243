"""Imports between modules of fluid: each import points to a lower tier. The list `TIERS` is a map of the library."""

import ast
import graphlib
import itertools
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent / "fluid"

# The lowest tier is first. Packages in the same tier do not import each other; a package is a folder or a module of
# `fluid/`. A part that is lower or higher than the rest of its package has a separate tier: see `serving.protocol`.
TIERS = [
    ["debug", "errors"],
    ["_util"],
    ["core"],
    ["compat.lod_tensor", "place", "distributed", "initializer", "regularizer", "clip", "lr"],
    ["param_attr"],
    ["layers", "optimizer", "reader", "checkpoint", "metrics"],
    ["nets", "compat.input", "unique_name", "parallel"],
    ["runtime"],
    ["export", "compat.paddle_files", "serving.protocol"],
    ["artifact", "trainer", "inspection", "serving.client"],
    ["handlers"],
    ["inferencer", "io", "sweeps", "parallel.planner"],
    ["serving", "contrib", "compat"],
    ["online"],
    ["__init__"],
    ["static"],
    ["cli"],
    ["__main__"],
]
# The order of the modules in fluid.layers: a module imports only modules of earlier lines. The first lines
# are helpers, the other lines are families of layers.
LAYERS = [
    ["external_modules", "functional", "kernels", "no_effect", "reparametrized"],
    ["base"],
    ["checks"],
    ["custom", "data", "embedding", "fc", "learning_rate_scheduler", "overview"],
    ["tensor", "activation"],
    ["sequence"],
    ["image"],
    ["norm"],
    ["loss", "control", "recurrent", "attention"],
    ["structured", "detection"],
    ["__init__"],
]
# By `TIERS`, a package imports only lower tiers. These packages import even less: only the packages in the set.
ONLY = {
    "core": {"errors", "_util"},
    "reader": {"errors", "_util", "core"},
    "parallel": {"errors", "_util", "core", "place", "param_attr"},
}
# Packages of fluid, and the packages that each of them must not import, although the tiers (the order of packages)
# would allow these imports.
NEVER = {room: {"layers", "nets"} for room in ("runtime", "trainer", "handlers", "inferencer", "inspection")}
# Each third-party library, and the only packages that may import it, even inside a function.
ENGINES = {"optax": {"_util"}, "orbax": {"checkpoint", "runtime", "trainer"}}
# Every installation has these libraries. An import of any other library must be inside the function that uses it.
EVERYWHERE = {*sys.stdlib_module_names, "jax", "jaxlib", "lazy_loader", "numpy", "optax", "fluid"}

TIER = {room: number for number, rooms in enumerate(TIERS) for room in rooms}
LAYER_TIER = {family: number for number, families in enumerate(LAYERS) for family in families}
MODULES = {
    ".".join(("fluid", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(ROOT.rglob("*.py"))
}


def package_of(module):
    """Return the name of a module in the import order: `layers` for `fluid.layers.fc`, for example."""
    parts = module.split(".")
    part = ".".join(parts[1:3])
    return part if part in TIER else parts[1] if len(parts) > 1 else "__init__"


def family_of(module):
    """Return the family of a layer module, such as `image` for `fluid.layers.image.conv`."""
    parts = module.split(".")
    return parts[2] if len(parts) > 2 else "__init__"


def imports_of(module):
    """Yield `(imported module, line, at module level)` for every import in a module of fluid and in its stub."""
    path = MODULES[module]
    stub = path.with_suffix(".pyi")
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in (path, stub) if file.exists()]
    top = {id(node) for tree in trees for node in tree.body}
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in itertools.chain.from_iterable(map(ast.walk, trees)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            # `from fluid import core` imports a module, but `from fluid.errors import ShapeError` imports a class.
            names = [f"{source}.{a.name}" if f"{source}.{a.name}" in MODULES else source for a in node.names]
        else:
            continue
        for name in names:
            yield name, node.lineno, id(node) in top


def fluid_imports(module):
    """List `(imported module of fluid, line)` for every import of fluid in a module."""
    return [(name, line) for name, line, _ in imports_of(module) if name == "fluid" or name.startswith("fluid.")]


def complaint(module, name):
    """Return the reason why `module` may not import `name`, or None if it may."""
    here, there = package_of(module), package_of(name)
    if here == there == "layers" and family_of(module) != family_of(name):
        here, there = family_of(module), family_of(name)
        if LAYER_TIER[there] >= LAYER_TIER[here]:
            return f"the family {here} may not import {there}, see LAYERS: imports point down"
    if here == there or here not in TIER or there not in TIER:
        return None
    if TIER[there] >= TIER[here]:
        return f"{here} (tier {TIER[here]}) may not import {there} (tier {TIER[there]}): imports point down"
    if there not in ONLY.get(here, TIER):
        return f"{here} imports only {', '.join(sorted(ONLY[here]))}, not {there}"
    if there in NEVER.get(here, ()):
        return f"{here} never imports {there}"
    return None


def test_every_module_has_a_tier():
    unknown = {package_of(module) for module in MODULES} - set(TIER)
    unknown |= {family_of(module) for module in MODULES if package_of(module) == "layers"} - set(LAYER_TIER)
    assert not unknown, f"add to TIERS or LAYERS in {__file__}: {', '.join(sorted(unknown))}"


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_down(module):
    found = [(line, complaint(module, name)) for name, line in fluid_imports(module)]
    wrong = [f"{MODULES[module]}:{line}: {why}" for line, why in found if why]
    assert not wrong, "\n".join(wrong)


def test_no_cycles():
    edges = {module: {n for n, _ in fluid_imports(module) if n != module} for module in MODULES}
    try:
        graphlib.TopologicalSorter(edges).prepare()
    except graphlib.CycleError as error:
        pytest.fail("import cycle: " + " -> ".join(error.args[1]))


@pytest.mark.parametrize("module", MODULES)
def test_third_party_imports(module):
    wrong = []
    for name, line, at_top in imports_of(module):
        library = name.partition(".")[0]
        if library in ENGINES and package_of(module) not in ENGINES[library]:
            wrong.append(f"{MODULES[module]}:{line}: {library} belongs to {', '.join(sorted(ENGINES[library]))}")
        if at_top and library not in EVERYWHERE:
            wrong.append(f"{MODULES[module]}:{line}: import {library} inside the function that needs it")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("fluid.core.frame", "fluid.layers"),
        ("fluid.layers.fc", "fluid.optimizer"),
        ("fluid.optimizer.base", "fluid.layers.fc"),
        ("fluid.layers.fc", "fluid"),
        ("fluid.layers.fc", "fluid.trainer"),
        ("fluid.layers.image.conv", "fluid.layers.structured.crf"),
        ("fluid.layers.base", "fluid.layers.tensor.create"),
        ("fluid.layers.loss.metrics", "fluid.layers.control.while_loop"),
        ("fluid.reader.feeder", "fluid.param_attr"),
        ("fluid.trainer.loop", "fluid.layers"),
    ],
)
def test_the_test_would_complain(module, name):
    assert complaint(module, name)


@pytest.mark.parametrize("module", [m for m, path in MODULES.items() if path.name == "__init__.py"])
def test_facades_only_import(module):
    """Check that `__init__` holds only a docstring, imports, `__all__` or its lazy loader, and the version of fluid."""
    docstring, *body = ast.parse(MODULES[module].read_text(encoding="utf-8")).body
    assert isinstance(docstring, ast.Expr)
    for node in body:
        names = {ast.unparse(target) for target in node.targets} if isinstance(node, ast.Assign) else set()
        lists = bool(names) and names <= ({"__all__", "__version__"} if module == "fluid" else {"__all__"})
        lists |= names in ({"__getattr__"}, {"(__getattr__, __dir__, __all__)"})
        assert lists or isinstance(node, ast.Import | ast.ImportFrom), f"{MODULES[module]}:{node.lineno}"
