"""Configuration of the site: `make docs` builds it, with warnings as errors."""

import inspect
import pathlib
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import generated  # noqa: E402  (this folder is no package)

import fluid  # noqa: E402

project = "fluid"
author = "the authors of fluid"
release = fluid.__version__
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["_build", "start/what.md"]
html_theme = "sphinx_book_theme"
html_title = f"fluid {release}"
html_show_sourcelink = False
html_static_path = ["_static"]
html_search_scorer = str(pathlib.Path(__file__).parent / "_static" / "scorer.js")
html_css_files = ["site.css", "fluid.css"]
html_theme_options = {"home_page_in_toc": True, "show_navbar_depth": 1, "show_toc_level": 2}
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
nb_execution_mode = "cache"  # runs the tutorials, which are notebooks; the tests run the blocks of all other pages
nb_execution_in_temp = True  # tutorials write files
nb_execution_raise_on_error = True
nb_execution_timeout = 300
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
toc_object_entries = False  # each name has a heading
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the arguments say types, shapes and units
napoleon_google_docstring = True
napoleon_use_ivar = True
napoleon_use_rtype = False
napoleon_preprocess_types = False
nitpicky = False


def setup(app):
    """Write the generated pages before Sphinx reads the sources, and read docstrings as the docs/ pages are read."""
    here = pathlib.Path(__file__).parent
    generated.write(here)
    shutil.copyfile(here.parent / "benchmarks" / "ratios.svg", here / "inside" / "ratios.svg")
    app.connect("autodoc-process-docstring", _plain)
    app.connect("autodoc-process-signature", _signature)
    app.connect("source-read", _linked)


def _plain(app, what, name, value, options, lines):
    lines[:] = generated.plain(lines)


def _signature(app, what, name, value, options, signature, returned):
    # The metaclass of a class says "(*args, **kwargs)". The site hides the arguments that `help()` hides.
    if signature == "(*args, **kwargs)" or hasattr(value, "no_effect"):
        found = inspect.signature(value)
        arguments = [a for a in getattr(found, "shown", found).parameters.values() if a.name != "self"]
        signature = str(inspect.Signature([a.replace(annotation=inspect.Parameter.empty) for a in arguments]))
    return signature, returned


def _linked(app, name, source):
    path = pathlib.Path(app.srcdir, f"{name}.md")
    if path.parent == pathlib.Path(app.srcdir):
        source[0] = generated.linked(source[0], path)
    if path.parent.name == "coming-from":
        source[0] = generated.paired(source[0])
