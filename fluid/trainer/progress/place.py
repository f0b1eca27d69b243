"""Where a program runs: in a terminal, in a notebook, or where nobody watches."""

import sys


def interactive() -> bool:
    """Whether standard error is a terminal, or this is a notebook."""
    return in_notebook() or (sys.stderr is not None and sys.stderr.isatty())


def in_notebook() -> bool:
    """Whether this runs in a notebook, such as those of JupyterLab, VS Code and Colab."""
    if "IPython" not in sys.modules:
        return False
    shell = sys.modules["IPython"].get_ipython()
    return getattr(shell, "kernel", None) is not None
