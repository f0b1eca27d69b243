"""State IO: save and load a Session, either its parameters only or all state that a later run needs to continue.

Users receive parameters as a read-only dict of copies, because an assignment to a copy would not change the model.
"""

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import DictKey

from fluid import checkpoint, errors
from fluid._util.globs import select
from fluid.checkpoint import PathLike
from fluid.core import Array, Program, Scope, creation_paths, creation_sites, own_array, warn, warn_once
from fluid.distributed import group
from fluid.distributed.group import whole
from fluid.runtime.engine import Engine
from fluid.runtime.finite import became_non_finite, warn_of_non_finite
from fluid.runtime.parameter_updates import PREFIX, Rule


class ReadOnlyArrays(dict[str, jax.Array]):
    """A read-only dict of copies of parameters and states; an assignment raises an error that explains how to set them.

    For JAX, a ReadOnlyArrays is a pytree with the keys of a dict. Its copies and pickles are plain dicts.

    Raises:
      ArgumentTypeError: raised by each method that would change the dict.

    Example:
      >>> import fluid, numpy as np
      >>> session = fluid.Session(lambda: fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1))
      >>> session.params()["fc_0.b_0"] = np.ones(1)
      Traceback (most recent call last):
        ...
      fluid.errors.ArgumentTypeError: 'fc_0.b_0' is not set: these are copies of the arrays. Write ...
      >>> session.scope["fc_0.b_0"] = np.ones(1)
      >>> session.params()["fc_0.b_0"].tolist()
      [1.0]
    """

    def __init__(self, arrays: Mapping[str, jax.Array] = {}, paths: Mapping[str, str] = {}):
        super().__init__(arrays)
        self.paths = paths

    def _refuse(self, *args: Any, **values: Any) -> NoReturn:
        given = [*(args[0] if args and isinstance(args[0], dict) else args[:1]), *values]
        name = next((name for name in given if isinstance(name, str)), next(iter(self), "w"))
        raise errors.ArgumentTypeError(
            f"{name!r} is not set: these are copies of the arrays. Write session.scope[{name!r}] = array, or "
            f"trainer.session.scope[{name!r}] = array; several at once: trainer.load_params({{{name!r}: array}}, "
            f"strict=False). To change copies of your own: dict(trainer.params)"
        )

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> Any:
        return dict, (dict(self),)


def _flatten(arrays: ReadOnlyArrays) -> tuple[list[tuple[Any, Any]], tuple[str, ...]]:
    names = tuple(sorted(arrays))
    return [(jax.tree_util.DictKey(name), arrays[name]) for name in names], names


def _unflatten(names: tuple[str, ...], values: Iterable[Any]) -> ReadOnlyArrays:
    return ReadOnlyArrays(dict(zip(names, values, strict=True)))


jax.tree_util.register_pytree_with_keys(ReadOnlyArrays, _flatten, _unflatten)


_SLOTS = "@slots/"
_KEPT = 0.9  # if `rate=` of copy_params is 0.9 or more, the user probably means the weight of the old value


class SavesArrays:
    """A mixin of Session: the methods that save and load its arrays.

    Attributes:
      engine: the engine, with learning rates, layout and frozen names.
      scope: the parameters and states, by name.
      programs: the Programs of the session, by name.
    """

    engine: Engine
    _checked_copies: frozenset[Any] = frozenset()
    # The targets of `copy_params` in half precision, by name, in float32: small steps add up there.
    _exact_copies: Mapping[str, jax.Array] = MappingProxyType({})

    scope: Scope
    programs: dict[str, Program]
    _closed: bool

    @property
    def table(self) -> dict[str, Any] | None:
        """JSON data of the `fluid.reader.Table` from which a program is fed; None if no program has a Table."""
        return next((program.table.to_json() for program in self.programs.values() if program.table is not None), None)

    def save(self, path: PathLike) -> None:
        """Write parameters, states, optimizer state, step counter and random root atomically to one file."""
        self._write(path, self.state(), "session")

    def load(
        self,
        path: PathLike,
        strict: bool = True,
        rename: checkpoint.Rename = None,
        skip: str | Sequence[str] = (),
        names: str | Sequence[str] | None = None,
    ) -> None:
        """Restore the session from a file of `save`, or only parameters and states from a file of `save_params`.

        Args:
          path: path of the file.
          strict: False allows names that only the file or only the session has, as for `load_params`. If the file lacks
            an array of an optimizer state, the whole optimizer state keeps its values.
          rename: a mapping from names in the file to names in the programs, as for `load_params`. The optimizer states
            of a parameter are renamed with it.
          skip: names and globs of arrays to leave out, as for `load_params`, with their optimizer states. If an
            optimizer has state of all its parameters, such as the count of updates of Adam, skip all of them or none.
          names: names and globs of the parameters to load, with their optimizer states, as for `load_params`. The step
            counter, the random root, the learning rates and all other optimizer states keep their values. Name all
            parameters of such an optimizer, or none.

        Raises:
          ParameterFileError: the file does not exist, or holds something else.
          ParameterError: names, shapes or dtypes differ, or an optimizer state would fit only a part of its parameters;
            nothing is changed then.
          UnknownNameError: a name in `skip` or `names` is neither in the file nor in the programs.

        Example:
          >>> import fluid
          >>> def program():
          ...     loss = fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1, name="head"))
          ...     fluid.optimizer.Momentum(0.1, momentum=0.9).minimize(loss)
          ...     return loss
          >>> session = fluid.Session(program)
          >>> session.save("all.session")
          >>> session.load("all.session", skip=["head.b_0"])
          >>> session.load("all.session", names="*.w_0")
        """
        self._check_open()
        found = checkpoint.load_file(path)
        if found.kind != "session":
            self.load_params(path, strict, rename, skip, names)
            return
        whole_file = strict and not rename and not skip and names is None
        if strict:
            checkpoint.ArraySource({}, os.fspath(path), table=found.table).check_table(self.table)
        state = found.arrays if whole_file else self._part_of(found, path, strict, rename, skip, names)
        check_state(self, state, path, checkpoint.TAKE_A_PART, found.sites, found.paths if whole_file else {})
        self.restore(state)

    def _part_of(
        self,
        found: checkpoint.Loaded,
        path: PathLike,
        strict: bool,
        rename: checkpoint.Rename,
        skip: str | Sequence[str],
        names: str | Sequence[str] | None,
    ) -> dict[str, Any]:
        """Return the arrays that `load` restores from a file, by name; its arguments select and rename arrays."""
        source = checkpoint.ArraySource(
            {n: a for n, a in found.arrays.items() if n[0] != "@"}, os.fspath(path), found.sites, paths=found.paths
        )
        old_names = checkpoint.renamed({name: name for name in source.arrays}, rename, path)
        wanted = {name: (spec.shape, spec.dtype) for name, spec in self.scope.specs.items()}
        report = checkpoint.choose(
            source.renamed(rename),
            wanted,
            skip,
            names=names,
            sites=creation_sites(self.scope.specs),
            paths=creation_paths(self.scope.specs),
            allow_missing=not strict,
            allow_extra=not strict,
        )
        arrays = {name: found.arrays[there] for there, name in names_here(self.programs, found.arrays).items()}
        loaded = {name: old_names[name] for name in report.taken}  # names in the file, by names here
        loaded |= {} if names else {"@step": "@step", "@root": "@root"}
        # Each array of the file under these prefixes must also exist here, and `check_state` reports those that do not.
        complete = [] if skip or names else [_SLOTS]
        for program, rules in self.engine.rules.items():
            for index, rule in enumerate(rules):
                left = sorted(rule.settings.keys() - report.taken)
                if len(left) == len(rule.settings):
                    continue
                slots = {}
                for slot, owner in _owners(program, index, rule, self.scope.slots[program][index]):
                    if owner is None and left:
                        options = {"strict": None if strict else False, "rename": rename, "skip": skip, "names": names}
                        given = [f", {name}={value!r}" for name, value in options.items() if value not in (None, ())]
                        raise errors.ParameterError(
                            f"Session.load leaves out {', '.join(left[:4])}{', ...' if len(left) > 4 else ''} of the "
                            f"{len(rule.settings)} parameters of {type(rule.optimizer).__name__} in {program}, but "
                            f"{slot_name(slot)!r} in its state belongs to all of them, and fits only the old values or "
                            f"only the new ones. Load all of them, or the parameters without optimizer state: "
                            f"session.load_params({os.fspath(path)!r}{''.join(given)})"
                        )
                    if owner not in left:
                        there = [DictKey(old_names[owner]) if owner and key == DictKey(owner) else key for key in slot]
                        slots[slot_name(slot)] = slot_name(there)
                if not strict and (lacking := slots.values() - arrays.keys()):
                    warn(
                        f"{os.fspath(path)!r} has no {min(lacking)}; the state of {type(rule.optimizer).__name__} in "
                        f"{program} keeps its values, expected a file of the same optimizer"
                    )
                    continue
                loaded |= slots
                complete += [] if left else [f"{_SLOTS}{program}/{index}/"]
                rate = f"{PREFIX}{program}/{index}"
                loaded |= {} if names else {rate: rate}
        if strict:
            extra = arrays.keys() - loaded.values()
            loaded |= {name: name for name in extra if name.startswith(tuple(complete))}
        else:
            report.tell()
        kept = {name: array for name, array in live_state(self).items() if name not in loaded}
        return kept | {name: arrays[there] for name, there in loaded.items() if there in arrays}

    def save_params(self, path: PathLike, names: str | Sequence[str] | None = None) -> None:
        """Write parameters and states to one file; see `fluid.io.save_arrays`.

        Args:
          path: path of the file.
          names: names and globs, such as `["backbone/*"]`; all by default.

        Raises:
          ArgumentError: `names` is empty.
          UnknownNameError: an entry of `names` matches no name.
          ParameterFileError: the file cannot be written.
        """
        self._check_open()
        if names is not None and not len(names):
            raise errors.ArgumentError(
                'save_params(names=[]) would write a file with nothing in it; name some, as in names=["backbone/*"], '
                "or leave names out for all parameters and states"
            )
        chosen = None if names is None else select(names, self.scope.specs, "save_params")
        copies = self.scope.copies(chosen)
        if names := became_non_finite(self.scope.specs, copies, self.engine.members):
            warn_of_non_finite("save_params", names)
        self._write(path, copies, "parameters")

    def load_params(
        self,
        source: checkpoint.Parameters,
        strict: bool = True,
        rename: checkpoint.Rename = None,
        skip: str | Sequence[str] = (),
        names: str | Sequence[str] | None = None,
    ) -> checkpoint.LoadReport:
        """Set parameters and states from a file of `save_params`, or from arrays by name, but no optimizer state.

        Args:
          source: a path or a mapping. A path that ends in ".safetensors" may come from another framework.
          strict: False ignores arrays that no program has, and leaves arrays unchanged that the source lacks; a warning
            lists both. Different shapes remain an error, unless the arrays are skipped.
          rename: a mapping from names in the source to names in the programs, with globs and `{n}` for numbers, as in
            `{"old/*": "new/*"}` and `{"layers.{n}.kernel": "fc_{n}.w_0"}`.
          skip: names and globs of arrays to leave out, by their names in the programs, at any shape: `["head/*"]`.
          names: names and globs of the arrays to load, by their names in the programs: `["backbone/*"]`. All others
            keep their values; None for all.

        Returns:
          A LoadReport with the names that were loaded, ignored and missing.

        Raises:
          ArgumentError: `names` is empty.
          ParameterFileError: the file does not exist, or holds something else.
          ParameterError: names, shapes or dtypes differ, or no array would be set. Nothing is changed then.
          UnknownNameError: a name in `skip` or `names` is neither in the source nor in the programs.

        Example:
          >>> import fluid
          >>> net = lambda: fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1)
          >>> fluid.Session(net).save_params("net.params")
          >>> fluid.Session(net).load_params("net.params", names="*.b_0")
          1 array taken from net.params
            1 array skipped: fc_0.w_0 float32[2, 1] (here float32[2, 1])
        """
        found = checkpoint.source_of(source).renamed(rename)
        report = self._take_params(found, skip=skip, names=names, allow_missing=not strict, allow_extra=not strict)
        if not strict:
            report.tell()
        return report

    def copy_params(self, names: Mapping[str, str], rate: float = 1.0) -> list[str]:
        """Set the parameters and states of one net to the values of another net, or move them towards these values.

        If this is called after each step with a small rate, the second net is a moving average of the first.

        Args:
          names: a dict from source names to target names, with globs: `{"online/*": "target/*"}`.
          rate: in `(0, 1]`; the new value is `old + rate * (source - old)`. Integers are copied at any rate. For values
            in half precision, the session keeps the sums in float32 until it ends; a checkpoint stores them rounded.

        Returns:
          The names of the arrays that were set.

        Raises:
          ArgumentError: the rate is not in `(0, 1]`.
          UnknownNameError: a pattern matches nothing, or a target name is unknown.
          ParameterError: two arrays have different shapes or dtypes. Nothing is changed then.

        Example:
          >>> import fluid, numpy as np
          >>> def q(x):
          ...     return fluid.layers.fc(x, size=2)
          >>> online, target = fluid.shared(q, name="online"), fluid.shared(q, name="target")
          >>> def program():
          ...     x = fluid.layers.data("x", shape=[3])
          ...     return fluid.layers.mean(online(x) - target(x))
          >>> session = fluid.Session(program)
          >>> session.copy_params({"online/*": "target/*"})
          ['target/fc_0.w_0', 'target/fc_0.b_0']
          >>> session.run(feed={"x": np.ones((4, 3))})[0].item()
          0.0
        """
        self._check_open()
        if not isinstance(names, Mapping):
            raise errors.ArgumentTypeError(
                f"copy_params({names!r}, {rate!r}): expected a dict of names, each with the name that its value goes "
                f'to: copy_params({{"online/*": "target/*"}}, rate=0.005) moves the target'
            )
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate <= 1:
            raise errors.ArgumentError(
                f"copy_params(rate={rate!r}): expected a number in (0, 1]: 1.0 copies, 0.005 moves by 0.5 % of the way"
            )
        scope = self.scope
        chosen = select(list(names), scope.specs, "copy_params")
        pairs = checkpoint.renamed({name: name for name in chosen}, names, "the Session")
        for target, source in pairs.items():
            if target not in scope.specs:
                raise errors.UnknownNameError(
                    f"copy_params: {source!r} would go to {target!r}, which no program has. "
                    f"{errors.nearest(target, scope.specs)}"
                )
            here, there = (Array(scope.specs[name].shape, scope.specs[name].dtype) for name in (target, source))
            if here != there:
                raise errors.ParameterError(
                    f"copy_params: {source!r} is {there} and {target!r} is {here}; expected nets of one structure, as "
                    f'in fluid.shared(q, name="online") and fluid.shared(q, name="target")'
                )
        copy = (*names.items(), rate)
        # warn only once for equal arguments: loops call copy_params after each step
        if rate < 1 and copy not in self._checked_copies:
            self._warn_of_copies(pairs, rate)
            self._checked_copies |= {copy}
        with scope.lock:
            copies = {}  # every read is before the first write, so that {"a": "b", "b": "a"} swaps
            exact = dict(self._exact_copies)
            for target, source in pairs.items():
                new, old = scope.arrays[source], scope.arrays[target]
                if rate == 1:
                    moved = own_array(new)
                else:
                    moved, precise = _moved(old, new, np.float32(rate), exact.get(target, old))
                    if precise.dtype != moved.dtype:
                        exact[target] = precise
                copies[target] = jax.device_put(moved, old.sharding)
            scope.arrays.update(copies)
            self._exact_copies = exact
        return list(pairs)

    def _warn_of_copies(self, pairs: Mapping[str, str], rate: float) -> None:
        """Warn if an optimizer also trains a target of `copy_params`, or if `rate` keeps almost no old value."""
        trained = {
            name: program.name
            for program in self.programs.values()
            for minimize in program.minimizes
            for name in minimize.parameters
            if name in program.sloped
        }
        for target, source in pairs.items():
            if target not in trained:
                continue
            if source in trained:
                fix = (
                    f"for a copy that only follows, call that net in the program inside `with fluid.frozen():`, or say "
                    f"what is trained: minimize(loss, parameter_list=[{source!r}, ...])"
                )
            else:
                fix = f"to move {source!r} instead, turn the names round: copy_params({{{target!r}: {source!r}}})"
            text = (
                f"copy_params moves {target!r} towards {source!r}, and the optimizer of {trained[target]} trains "
                f"{target!r} as well; {fix}"
            )
            warn_once(self, "trained copy", lambda text=text: text)  # type: ignore[misc]
            break
        if rate >= _KEPT:
            text = (
                f"copy_params(rate={rate:g}) moves by {100 * rate:g} % of the way, and keeps next to nothing of the "
                f"old value; for an average that keeps {rate:g} write rate={1 - rate:.6g}, for a copy leave rate= out"
            )
            warn_once(self, "rate of copies", lambda: text)

    def _take_params(
        self,
        source: checkpoint.ArraySource,
        program: Program | None = None,
        skip: str | Sequence[str] = (),
        *,
        names: str | Sequence[str] | None = None,
        allow_missing: bool = False,
        allow_extra: bool = False,
        advice: str | None = None,
    ) -> checkpoint.LoadReport:
        """Set parameters and states from arrays that have the names of this session."""
        self._check_open()
        if not allow_missing:
            source.check_table(self.table)
        specs = self.scope.specs if program is None else program.parameters | program.states
        wanted = {name: (spec.shape, spec.dtype) for name, spec in specs.items()}
        report = checkpoint.choose(
            source,
            wanted,
            skip,
            names=names,
            sites=creation_sites(specs),
            paths=creation_paths(specs),
            allow_missing=allow_missing,
            allow_extra=allow_extra,
            advice=advice,
        )
        new = self.engine.layout.replace({name: source.arrays[name] for name in report.taken}, self.scope.arrays)
        with self.scope.lock:
            self.scope.arrays |= new
        return report

    def _write(self, path: PathLike, arrays: Mapping[str, jax.Array], kind: str) -> None:
        """Write arrays to a file. With several processes, the first process writes, and the other processes wait."""
        arrays = {name: whole(array) for name, array in arrays.items()}
        sites, paths = creation_sites(self.scope.specs), creation_paths(self.scope.specs)
        mesh = self.engine.layout.mesh
        if mesh is None or not mesh.is_multi_process:
            checkpoint.save_arrays(path, arrays, kind, sites, self.table, paths)
            return
        if group().is_first:
            checkpoint.save_arrays(path, arrays, kind, sites, self.table, paths)
        group().meet(f"the file {os.fspath(path)} that was written")

    def params(self) -> ReadOnlyArrays:
        """Return copies of parameters and states by name, which stay valid during further training.

        The dict is read-only. `session.scope["fc_0.w_0"] = array` sets a parameter.
        """
        self._check_open()
        return ReadOnlyArrays(self.scope.copies(), creation_paths(self.scope.specs))

    def state(self) -> dict[str, Any]:
        """Return all arrays that a later run needs to continue, by name.

        The entries are parameters, states, optimizer states `@slots/...`, the step counter `@step` and the random root
        `@root`.

        Learning rates that a user has set are included as `@learning_rate/...`; declared rates are not. If parameters
        are frozen, the entry `@frozen` lists them.

        Returns:
          Copies of the arrays, which stay valid during further training.
        """
        with self.scope.lock:
            return {name: own_array(array) for name, array in live_state(self).items()}

    def restore(self, state: Mapping[str, Any], own: Collection[str] = ()) -> None:
        """Restore the arrays that the method `state` returned, in this session or another one with equal programs.

        Args:
          state: arrays by name; their names, shapes and dtypes have passed `check_state`.
          own: names of arrays that have the final sharding and no other user; these are not copied.
        """
        self._check_open()
        state = {name: state[there] for there, name in names_here(self.programs, state).items()}
        paths, structure = jax.tree_util.tree_flatten_with_path(self.scope.slots)
        # All code that can raise an error runs first, so that an error leaves the session unchanged.
        here = live_state(self)
        names = here.keys() - self._optional_state().keys()
        new = self.engine.layout.replace({name: state[name] for name in names.difference(own)}, here)
        new |= {name: state[name] for name in names.intersection(own)}
        self.scope.slots = jax.tree.unflatten(structure, [new[slot_name(path)] for path, _ in paths])
        self.scope.step = new["@step"]
        self.scope.root = new["@root"]
        self.scope.arrays |= {n: new[n] for n in self.scope.arrays}
        self.engine.rates.restore(state)
        self.engine.freezing.restore(state)

    def freeze(self, patterns: str | Sequence[str]) -> list[str]:
        """Freeze parameters, and the moving statistics of their layers, from the next training step on.

        All optimizer states are kept; training steps are compiled again. The frozen names are saved and restored with
        the session.

        Args:
          patterns: names and globs, such as `"backbone/*"` or `["emb.w_0", "encoder/*"]`. Moving statistics of a layer
            are frozen when they are named, or when all parameters of the layer are frozen; batch_norm then normalises
            with them.

        Returns:
          The names that are frozen now and were not before.

        Raises:
          UnknownNameError: a pattern matches no name.
          ArgumentError: nothing would be left to train, or an optimizer cannot leave parameters out.
        """
        self._check_open()
        return self.engine.freezing.freeze(patterns)

    def unfreeze(self, patterns: str | Sequence[str] | None = None) -> list[str]:
        """Unfreeze parameters and states that `freeze` has frozen. Parameters that the program freezes stay frozen.

        Args:
          patterns: names and globs; None unfreezes everything that `freeze` has frozen.

        Returns:
          The names that are no longer frozen.

        Raises:
          UnknownNameError: a pattern matches no frozen name.
          ArgumentError: a name belongs to statistics that are frozen with the parameters of their layer.
        """
        self._check_open()
        return self.engine.freezing.unfreeze(patterns)

    def _optional_state(self) -> dict[str, Any]:
        return {**self.engine.rates.state(), **self.engine.freezing.state()}

    def _live_state(self) -> dict[str, Any]:
        scope = self.scope
        slots = {slot_name(path): value for path, value in jax.tree_util.tree_leaves_with_path(scope.slots)}
        return {**scope.arrays, **slots, "@step": scope.step, "@root": scope.root, **self._optional_state()}

    def _check_open(self) -> None:
        if self._closed:
            raise errors.ArgumentError("this session is closed; make a new one: fluid.Session(program)")


def live_state(session: SavesArrays) -> dict[str, Any]:
    """Return the arrays of `Session.state` themselves, not copies. The next training step donates their buffers."""
    session._check_open()
    return session._live_state()


def check_state(
    session: SavesArrays,
    found: Mapping[str, Any],
    where: Any,
    advice: str | None = None,
    sites_there: Mapping[str, str] = {},
    paths_there: Mapping[str, str] = {},
) -> None:
    """Check the names, shapes and dtypes of the saved `state` of another session, before a session restores it.

    Raises:
      ParameterError: a name, shape or dtype differs from the state of `session`. Learning rates and the names of frozen
        parameters are optional.
    """
    found = {name: found[there] for there, name in names_here(session.programs, found).items()}
    engine = session.engine
    here = session._optional_state()
    wanted = {n: (v.shape, str(v.dtype)) for n, v in live_state(session).items() if n not in here}
    optional = {**engine.rates.optional(found), **engine.freezing.optional(found)}
    sites = creation_sites(session.scope.specs)
    checkpoint.check_match(found, wanted | optional, where, advice=advice, sites=sites, sites_there=sites_there)
    source = checkpoint.ArraySource(dict(found), str(where), paths=paths_there)
    checkpoint.check_paths(source, wanted, creation_paths(session.scope.specs))


def names_here(programs: Mapping[str, Program], names: Iterable[str]) -> dict[str, str]:
    """Map each name in the saved `state` of another session to the name in a session of `programs`.

    Names of optimizer states and learning rates contain the name of their program function, which may have been
    renamed. If each session trains exactly one function, the current name replaces the saved name.
    """
    every = {name: name for name in names}
    prefixes = (_SLOTS, PREFIX)
    there = {name.split("/")[1] for name in every if name.startswith(prefixes)}
    here = [program.name for program in programs.values() if program.minimizes]
    if len(there) == 1 == len(here) and "/" not in here[0]:
        for prefix in prefixes:
            before, now = f"{prefix}{min(there)}/", f"{prefix}{here[0]}/"
            every |= {name: now + name.removeprefix(before) for name in every if name.startswith(before)}
    return every


@jax.jit
def _moved(old: jax.Array, new: jax.Array, rate: jax.Array, exact: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the interpolation `old + rate * (new - old)`; for integers return a copy of `new`.

    In half precision, a small step would be rounded away each time. So the second result is the interpolation in
    float32 at least, and a next call gets it as `exact`. An element of `old` that another computation has set since
    then replaces the element of `exact`.
    """
    if not jnp.issubdtype(old.dtype, jnp.inexact):
        return new + 0, new
    dtype = jnp.promote_types(old.dtype, jnp.float32)
    before = jnp.where(exact.astype(old.dtype) == old, exact.astype(dtype), old.astype(dtype))
    precise = before + rate * (new.astype(dtype) - before)
    return precise.astype(old.dtype), precise


def _owners(program: str, index: int, rule: Rule, slots: Any) -> Iterator[tuple[Any, str | None]]:
    """Yield each array of the optimizer state `slots` of a `minimize` call, as its path in the tree `Scope.slots`.

    With each path comes the name of the parameter to which the array belongs; None if it belongs to all parameters.
    """
    for path, _ in jax.tree_util.tree_leaves_with_path({program: {index: slots}}):
        keys = [key.key for key in path[2:] if isinstance(key, DictKey)]
        yield path, next((key for key in reversed(keys) if key in rule.settings), None)


def slot_name(path: Any) -> str:
    """Return the name of an optimizer state in `Session.state`, from its path in the tree `Scope.slots`."""
    return f"{_SLOTS}{jax.tree_util.keystr(path, simple=True, separator='/')}"
