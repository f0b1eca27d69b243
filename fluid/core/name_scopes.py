"""Name scopes: prefixes of layer names in a program, and access to the values and parameters under a prefix."""

import contextlib
import re
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

from fluid import errors
from fluid.core.frame import Frame, Opening, current_frame, present_frame, user_sites
from fluid.core.variables import doubt, named_array


@contextlib.contextmanager
def name_scope(prefix: str) -> Iterator["NameScope"]:
    """Add a prefix to the names of all layers in a `with` block. Layer numbers start at 0 for each new prefix.

    Names from `ParamAttr(name=...)` and names of feeds get no prefix, so that parameters can be shared across scopes.
    Opening a scope again continues the layer numbers, and creates new parameters; to share parameters, use
    `fluid.shared`. In `with fluid.name_scope("d") as scope`, the scope gives access to values and parameters:
    `scope.fc_0`, `scope.parameters`.

    Args:
      prefix: one name, without "/".

    Returns:
      A context manager, whose `as` variable is the NameScope.

    Raises:
      OutsideProgramError: no program function is running.
      ArgumentError: `prefix` is empty, contains "/", or is not a string.

    Example:
      >>> import fluid
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[4])
      ...     with fluid.name_scope("d") as d:
      ...         loss = fluid.layers.mean(fluid.layers.fc(fluid.layers.fc(x, size=3), size=1))
      ...     fluid.optimizer.SGD(0.1).minimize(loss, parameter_list=d.parameters)
      ...     return {"loss": loss, "hidden": d.fc_0}
      >>> program = fluid.Program(program)
      >>> program.minimizes[0].parameters, str(program.outputs[1])
      (('d/fc_0.w_0', 'd/fc_0.b_0', 'd/fc_1.w_0', 'd/fc_1.b_0'), 'float32[batch, 3]')
    """
    frame = current_frame("name_scope")
    if not isinstance(prefix, str) or not prefix or "/" in prefix:
        raise errors.ArgumentError(
            f"name_scope needs one name without '/', found {prefix!r}; nest scopes instead: "
            'with fluid.name_scope("a"), fluid.name_scope("b"): ...'
        )
    outer = frame.naming.scopes
    site = user_sites()
    known = set(frame.declared.arrays)
    frame.naming.scopes = (*outer, prefix)
    whole = "/".join(frame.naming.scopes)
    try:
        yield NameScope(whole, frame)
        _note_opening(frame, whole, site, known)
    finally:
        frame.naming.scopes = outer


def _note_opening(frame: Frame, scope: str, site: str, known: set[str]) -> None:
    """Record the parameters that a name scope created; warn if an earlier `with` block created similar parameters."""
    new = [(n, s) for n, s in frame.declared.arrays.items() if n not in known and n.startswith(f"{scope}/")]
    if not frame.discovering or not new:
        return
    opening = Opening(site, new[0][0], tuple((re.sub(r"_\d+", "", name), spec.shape) for name, spec in new))
    others = frame.declared.openings.setdefault(scope, [])
    first = next((other for other in others if other.created == opening.created), None)
    others.append(opening)
    if first is not None and first.array != opening.array:
        doubt(
            f"the name scope {scope!r} was opened at {first.site} and is opened again at {site}, which makes a second "
            f"set of parameters: {opening.array!r} is another array than {first.array!r}. For one set, share the "
            f"function that is called in both: fluid.shared(function); for two sets, give the second scope another "
            f'name: fluid.name_scope("{scope.rpartition("/")[2]}_2")'
        )


class NameScope:
    """The values, parameters and states that a program function has created under a prefix so far.

    `name_scope` creates a NameScope. `scope.fc_0` and `scope["fc_0"]` return the final result of the layer `fc_0`.
    `scope["fc_0.tmp_0"]` returns a named value, `scope["fc_0.w_0"]` a parameter or state, and `scope.inner` the nested
    scope "inner". All of them exist only while the program function runs.
    """

    def __init__(self, prefix: str, frame: Frame):
        self._prefix = prefix
        # The frame (the state of one trace) holds all tracers of the trace. The reference to the frame is weak:
        # otherwise a name scope that the user keeps after the trace would keep the tracers alive.
        self._frame = weakref.ref(frame)

    def __repr__(self) -> str:
        return f"NameScope({self._prefix!r})"

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The parameters that layers have created in this scope so far, by their full names.

        Parameters whose names come from `ParamAttr(name=...)`, and so have no prefix, are included too. The mapping is
        a valid `parameter_list` of `minimize`; frozen parameters stay unchanged.
        """
        return Parameters(self)

    def __getitem__(self, name: str) -> Any:
        frame = self._running()
        whole = f"{self._prefix}/{name}"
        values = frame.made.values
        if whole in values:
            return values[whole]
        if whole in frame.declared.arrays:
            return named_array(whole)
        results = [value for known, value in values.items() if known.rpartition(".tmp_")[0] == whole]
        if results:
            return results[-1]
        if any(known.startswith(f"{whole}/") for known in (*values, *frame.declared.arrays)):
            return NameScope(whole, frame)
        raise errors.UnknownNameError(
            f"the name scope {self._prefix!r} has no value, parameter or scope {name!r} so far. "
            f"{errors.nearest(name, self._names(frame))}"
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return self[name]
        except errors.UnknownNameError as error:
            raise AttributeError(str(error)) from None

    def __dir__(self) -> list[str]:
        return ["parameters", *(name for name in self._names(self._running()) if name.isidentifier())]

    def _names(self, frame: Frame) -> list[str]:
        """Return the names of all layers, nested scopes, values, parameters and states in this scope."""
        start = len(self._prefix) + 1
        inside = [known[start:] for known in (*frame.made.values, *frame.declared.arrays) if self._holds(known)]
        layers = [name.rpartition(".tmp_")[0] for name in inside if ".tmp_" in name]
        scopes = [name.partition("/")[0] for name in inside if "/" in name]
        return list(dict.fromkeys([*layers, *scopes, *inside]))

    def _holds(self, name: str) -> bool:
        return name.startswith(f"{self._prefix}/")

    def _running(self) -> Frame:
        """Return the Frame (state) of the program function that opened the scope."""
        frame = self._frame()
        now = present_frame()
        same = frame is not None and now is not None and frame.declared.arrays is now.declared.arrays
        if frame is None or not same or (frame.inside_loop and frame is not now):
            raise errors.OutsideProgramError(
                f"the name scope {self._prefix!r} has values while the program function, loop or branch runs in which "
                f"it was opened, and found that to be over; expected it to be used there. From outside, values are "
                f"fetched: session.run(program, feed, fetch=[{self._prefix + '/fc_0'!r}]); and "
                f"{self._prefix + '/*'!r} stands for the names of its parameters"
            )
        return frame


class Parameters(Mapping[str, Any]):
    """The parameters of a name scope: arrays by name, in order of creation. `NameScope.parameters` returns them."""

    def __init__(self, scope: NameScope):
        self._scope = scope

    def __repr__(self) -> str:
        return f"Parameters({', '.join(self)})"

    def __getitem__(self, name: str) -> Any:
        names = self._names()
        if name not in names:
            prefix = self._scope._prefix
            raise errors.UnknownNameError(
                f"the name scope {prefix!r} has no parameter {name!r} so far. {errors.nearest(str(name), names)}"
            )
        return named_array(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __len__(self) -> int:
        return len(self._names())

    def _names(self) -> list[str]:
        scope = self._scope
        specs = scope._running().declared.arrays.items()
        return [n for n, s in specs if s.trainable is not None and (scope._holds(n) or scope._holds(s.layer))]
