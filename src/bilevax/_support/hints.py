"""What newcomers do by the habits of other libraries: refused, with what is meant here."""

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import ParamSpec, TypeVar

import jax

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

#: Arguments under the names that other libraries give them; the first that a function has is meant.
_MEANT = {
    "bounds": ("x_set",),
    "constraints": ("coupling",),
    "disp": ("progress",),
    "iterations": ("max_steps",),
    "max_iter": ("max_steps",),
    "maxiter": ("max_steps",),
    "method": ("solver",),
    "n_starts": ("starts",),
    "seed": ("key",),
    "timeout": ("time_limit",),
    "tol": ("rtol", "gap"),
    "tolerance": ("rtol", "gap"),
    "verbose": ("progress",),
}
_MAXIMISE = "to maximise, minimise the negative: upper=lambda x, y: -profit(x, y)."


def names_arguments(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Make a function answer an argument that it does not have by the name of the one that is meant."""
    names = list(inspect.signature(function).parameters)

    @functools.wraps(function)
    def wrapped(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        refuse_unknown(function.__qualname__.removesuffix(".__init__"), names, kwargs)
        return function(*args, **kwargs)

    return wrapped


def refuse_unknown(function: str, names: Sequence[str], given: Iterable[str]) -> None:
    """Raise TypeError for an argument that is none of the names, with the one that is meant."""
    for name in given:
        if name in names:
            continue
        meant = [other for other in _MEANT.get(name, ()) if other in names] or difflib.get_close_matches(name, names, 1)
        if name in ("sense", "maximize", "maximise") and "upper" in names:
            hint = _MAXIMISE
        else:
            known = [each for each in names if each != "self"]
            hint = f"did you mean {meant[0]}?" if meant else f"it has {', '.join(known)}."
        raise TypeError(f"{function}() has no argument {name!r}; {hint}")


def of_tracing(error: Exception) -> str | None:
    """Return what a user did to a value that is not known yet while a function is traced; None for other errors."""
    if isinstance(error, jax.errors.TracerArrayConversionError):
        return "a function of NumPy was called; use jax.numpy"
    if isinstance(error, jax.errors.TracerBoolConversionError):
        return "an `if` asked for a value that is not known while JAX traces it; use jnp.where, or rows and variables"
    if isinstance(error, jax.errors.ConcretizationTypeError):
        return "a function of Python (math, float, int, range) was called; use jax.numpy"
    return None
