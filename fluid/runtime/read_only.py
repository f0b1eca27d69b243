"""Read-only dicts of copies of arrays: an assignment to a copy would have no effect on the model."""

from collections.abc import Iterable
from typing import Any, NoReturn

import jax

from fluid import errors


class ReadOnlyArrays(dict[str, jax.Array]):
    """A dict of copies of parameters and states; an assignment raises an error that shows how to set them.

    To JAX it is a pytree with the keys of a dict. Copies and pickles of it are plain dicts.

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
    return ReadOnlyArrays(zip(names, values, strict=True))


jax.tree_util.register_pytree_with_keys(ReadOnlyArrays, _flatten, _unflatten)
