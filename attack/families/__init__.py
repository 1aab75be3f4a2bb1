"""The families: each draws its cases from a seed. One file a group; every file registers with `family`."""

import dataclasses
import importlib
import zlib
from collections.abc import Callable

import numpy as np

from attack.model import Case
from attack.units import MODES, rescale


@dataclasses.dataclass(frozen=True)
class Family:
    """A name and a generator of cases."""

    name: str
    draw: Callable[[int, int], Case]
    about: str


FAMILIES: dict[str, Family] = {}
_GROUPS = (
    *("quadratic", "degenerate", "linear", "sets", "smooth", "points", "table", "hopeless", "wider", "proofs"),
    "functions",
    "markets",
)

# What the units families put into other units.
_BASES = (
    *("qp", "kink-optimum", "wrong-point", "softplus", "border", "qp-integer", "at-optimum", "lp", "equalities"),
    *("ball-y", "entropy", "qp-waves", "table-1", "table-9", "upper-rows", "upper-smooth", "convex-rows"),
)


def generator(name: str, seed: int, index: int) -> np.random.Generator:
    """Return the random numbers of one case: the same on every machine, whatever else is run."""
    return np.random.default_rng([zlib.crc32(name.encode()), seed, index])


def family(name: str) -> Callable[[Callable[[np.random.Generator], Case]], Callable[[np.random.Generator], Case]]:
    """Register a function of random numbers as a family."""

    def register(fn: Callable[[np.random.Generator], Case]) -> Callable[[np.random.Generator], Case]:
        FAMILIES[name] = Family(name, lambda seed, index: fn(generator(name, seed, index)), fn.__doc__ or "")
        return fn

    return register


def _register_units(bases: tuple[str, ...]) -> None:
    """Register the units families: case i is case i of a base family, the bases taking turns."""
    for turn, mode in enumerate(MODES):
        name = f"units-{mode}"

        def draw(seed: int, index: int, name: str = name, mode: str = mode, turn: int = turn) -> Case:
            base = bases[(index + 3 * turn) % len(bases)]
            case = dataclasses.replace(FAMILIES[base].draw(seed, index), note=f"{base} {index}")
            return rescale(case, mode, generator(name, seed, index))

        FAMILIES[name] = Family(name, draw, f"Other families in other units of {mode}.")


for _group in _GROUPS:
    importlib.import_module(f"attack.families.{_group}")
_register_units(_BASES)
