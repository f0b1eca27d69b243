"""Names that Fluid and other libraries have, and what takes their place here."""

import sys
from typing import Any

from fluid import errors, lazy

_INSTEAD = {
    "DataLoader": "fluid.reader.arrays((x, y), batch_size=32), or a DataLoader of torch as it is",
    "Executor": "fluid.static.Executor; or fluid.Session(program), whose run takes feed= and fetch=, and which has "
    "the parameters at once",
    "Model": "fluid.Trainer(program, optimizer), where program is a function that calls layers",
    "Module": "a function that calls layers: fluid.Trainer(program, optimizer)",
    "ParallelExecutor": "fluid.Session(program) or fluid.Trainer(program, optimizer)",
    "Sequential": "a function that calls one layer after another: fluid.Trainer(program, optimizer)",
    "callbacks": "fluid.handlers",
    "contrib": "fluid.Trainer and fluid.Inferencer",
    "datasets": "fluid.reader.arrays, with arrays of your own",
    "default_main_program": "the program function itself: fluid.Session(program); or fluid.static",
    "default_startup_program": "nothing: a Session or Trainer has the initial parameters from the start",
    "dygraph": "a program function; values are there when fluid.Session(program).run(...) returns",
    "global_scope": "session.scope of a fluid.Session, or trainer.session.scope",
    "nn": "fluid.layers",
    "optim": "fluid.optimizer",
    "optimizers": "fluid.optimizer",
    "program_guard": "a function for each program: fluid.Session(first, second); or fluid.static",
}


def of_fluid(name: str) -> Any:
    """A room of `fluid` that is loaded on use, or what takes the place of a name that is not there."""
    if name in lazy.ROOMS:
        return lazy.room(name)
    known = vars(sys.modules["fluid"]).get("__all__", ())  # not there yet while it is imported
    raise errors.missing_name("module 'fluid'", name, known, _INSTEAD)
