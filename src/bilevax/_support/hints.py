"""Arguments under the names that other libraries give them: refused, with the name that is meant."""

import difflib
import functools
import inspect
from collections.abc import Callable
from typing import ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_MEANT = {
    "disp": "progress",
    "iterations": "max_steps",
    "max_iter": "max_steps",
    "maxiter": "max_steps",
    "method": "solver",
    "n_starts": "starts",
    "seed": "key",
    "timeout": "time_limit",
    "tol": "rtol",
    "tolerance": "rtol",
    "verbose": "progress",
}


def names_arguments(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Make a function answer an argument that it does not have by the name of the one that is meant."""
    names = list(inspect.signature(function).parameters)

    @functools.wraps(function)
    def wrapped(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        for name in kwargs:
            if name not in names:
                close = [_MEANT[name]] if _MEANT.get(name) in names else difflib.get_close_matches(name, names, 1)
                hint = f"did you mean {close[0]}?" if close else f"it has {', '.join(names)}."
                raise TypeError(f"{function.__name__}() has no argument {name!r}; {hint}")
        return function(*args, **kwargs)

    return wrapped
