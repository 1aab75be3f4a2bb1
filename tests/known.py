"""The one table of known answers: records of the shared problem library, and small textbook problems written out.

Everything here that solves a lower level is NumPy or SciPy, so that it stays independent of the code under test.
"""

import dataclasses
import functools
import importlib.util
import itertools
import os
import pathlib
from collections.abc import Callable
from typing import Any, TypeVar

import jax.numpy as jnp
import numpy as np
import pytest

import bilevax as bx

Kind = TypeVar("Kind")


def present(value: Kind | None) -> Kind:
    """Return what may be missing and is not: a missing one fails the test."""
    assert value is not None
    return value


def linear_rows(problem: bx.BilevelProblem, index: int = 0) -> Any:
    """Return a coupling that was given by matrices; of which kind its operators are, the test knows."""
    rows = problem.coupling[index]
    assert isinstance(rows, bx.LinearCoupling)
    return rows


_BESIDE_THE_CHECKOUT = pathlib.Path(__file__).resolve().parents[2] / "shared" / "problems"
PROBLEMS = pathlib.Path(os.environ.get("BILEVAX_PROBLEMS", _BESIDE_THE_CHECKOUT))


def _load_judge() -> Any:
    if not (PROBLEMS / "judge.py").exists():
        return None
    spec = importlib.util.spec_from_file_location("bilevax_judge", PROBLEMS / "judge.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


judge = _load_judge()
RECORDS = {record["name"]: record for record in judge.records()} if judge else {}
SMALL = [name for name, record in RECORDS.items() if record["n"] <= 4 and record["m"] <= 4]


def each_record(names: list[str] | None = None) -> pytest.MarkDecorator:
    """Parametrise over records; where the library is missing, one skipped test says so."""
    if not RECORDS:
        reason = f"no problem library at {PROBLEMS}; set BILEVAX_PROBLEMS"
        return pytest.mark.parametrize("name", [pytest.param(None, marks=pytest.mark.skip(reason=reason))])
    return pytest.mark.parametrize("name", list(RECORDS) if names is None else names)


@functools.cache
def built(name: str) -> bx.BilevelProblem:
    """Return a record as a problem; the same object every time, so that it is compiled once."""
    return judge.build(RECORDS[name], bx, jnp)[0]


@functools.cache
def certified_best(name: str) -> bx.Certificate:
    """Return the certificate at the record's best point."""
    return bx.certify(built(name), np.array(RECORDS[name]["best"]["x"], float))


class EnumeratedLowerLevel:
    """A record's lower level solved by trying every active set: exact, for a quadratic g and a few rows."""

    def __init__(self, record: dict[str, Any]):
        data = {key: np.array(value, float) for key, value in record.get("data", {}).items()}
        self.n, self.m = record["n"], record["m"]
        self.upper = judge.fn(record["upper"]["F"], data, np)
        self.lower = judge.fn(record["lower"]["f"], data, np)
        ineq, eq = record["lower"]["ineq"], record["lower"]["eq"]
        low, high = judge.bounds(record["lower"]["y_bounds"])
        identity, none = np.eye(self.m), np.zeros((self.m, self.n))
        rows = [
            (judge.arr(ineq["A"], self.m), judge.arr(ineq["B"], self.n), judge.arr(ineq["b"])),
            (identity[np.isfinite(high)], none[np.isfinite(high)], high[np.isfinite(high)]),
            (-identity[np.isfinite(low)], none[np.isfinite(low)], -low[np.isfinite(low)]),
        ]
        self.A, self.B, self.b = (np.concatenate([row[k] for row in rows]) for k in range(3))
        self.Ae, self.Be, self.be = judge.arr(eq["A"], self.m), judge.arr(eq["B"], self.n), judge.arr(eq["b"])

    def gradient(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return grad_y g by complex steps, exact to rounding."""
        steps = 1e-30j * np.eye(self.m)
        return np.array([np.imag(self.lower(x, y + step)) / 1e-30 for step in steps])

    def solve(self, x: np.ndarray) -> np.ndarray | None:
        """Return y*(x), or None when no active set satisfies the optimality conditions: infeasible."""
        start = self.gradient(x, np.zeros(self.m))
        hessian = np.array([self.gradient(x, unit) - start for unit in np.eye(self.m)])
        bound, target = self.b - self.B @ x, self.be - self.Be @ x
        held = len(target)
        for size in range(self.m - held + 1):
            for chosen in itertools.combinations(range(len(bound)), size):
                active = np.vstack([self.Ae, self.A[list(chosen)]])
                system = np.block([[hessian, active.T], [active, np.zeros((len(active), len(active)))]])
                right = np.concatenate([-start, target, bound[list(chosen)]])
                if np.linalg.matrix_rank(system) < len(system):
                    continue
                answer = np.linalg.solve(system, right)
                y, multipliers = answer[: self.m], answer[self.m + held :]
                scale = 1 + np.abs(answer).max()
                if np.all(self.A @ y <= bound + 1e-11 * scale) and np.all(multipliers >= -1e-11 * scale):
                    return y
        return None

    def phi(self, x: np.ndarray) -> float:
        """Return Phi(x), inf where the lower level is infeasible."""
        y = self.solve(x)
        return np.inf if y is None else float(self.upper(x, y))


@dataclasses.dataclass(frozen=True)
class Textbook:
    """A small problem whose answer follows on paper: a stationary point with its exact lower level."""

    name: str
    make: Callable[[], bx.BilevelProblem]
    x: Any
    y: Any
    value: float
    multipliers: Any
    licq: bool
    strict: bool

    @functools.cached_property
    def problem(self) -> bx.BilevelProblem:
        return self.make()


def _toy_upper(x: Any, y: Any) -> Any:
    return jnp.exp(2 - y) / (2 + jnp.cos(6 * x)) + 0.5 * jnp.log((4 * x - 2) ** 2 + 1)


def _toy_lower(x: Any, y: Any) -> Any:
    return (y - 2 * x) ** 2


def toy(upper: float = 0.0, x_set: Any = None) -> bx.BilevelProblem:
    """The paper's toy: y*(x) = x, four local minima in [0, 3]."""
    rows = bx.LinearCoupling(A=1.0, B=-1.0, upper=upper)
    return bx.BilevelProblem(_toy_upper, _toy_lower, rows, x_set=bx.Box(0.0, 3.0) if x_set is None else x_set)


TOY_MINIMA = np.array([0.14889100, 0.98622483, 2.01972563, 2.99077403])


def linear_upper(x: Any, y: Any, slopes: Any) -> Any:
    """An upper objective whose numbers are data: one compiled program for a whole table of cases."""
    return jnp.sum(slopes["x"] * x) + jnp.sum(slopes["y"] * y) + jnp.sum(slopes["x^2"] * x**2)


def slopes(x: Any, y: Any = 0.0, square: float = 0.0) -> dict[str, Any]:
    """The data of `linear_upper`: ``x . x + y . y + square |x|^2``."""
    return {"x": np.array(x, float), "y": np.array(y, float), "x^2": np.array(square, float)}


def _follow(x: Any, y: Any, slopes: Any) -> Any:
    return jnp.sum((y - x) ** 2)


def _toward_two(x: Any, y: Any, slopes: Any) -> Any:
    return jnp.sum((y - 2.0) ** 2)


UNIT = bx.Box(-0.5, 0.5)  # without it these problems look the same at every scale: nothing would be next to a kink


def hinge(data: dict[str, Any]) -> bx.BilevelProblem:
    """y*(x) = max(x, 0)."""
    rows = bx.LinearCoupling(A=-1.0, B=0.0, upper=0.0)
    return bx.BilevelProblem(linear_upper, _follow, rows, x_set=UNIT, data=data)


def valley(data: dict[str, Any]) -> bx.BilevelProblem:
    """y*(x) = max(x, 0) in each of two variables."""
    return bx.BilevelProblem(linear_upper, _follow, x_set=UNIT, y_set=bx.NonNegative(), y_like=np.zeros(2), data=data)


def bordered(data: dict[str, Any]) -> bx.BilevelProblem:
    """1 <= y <= x: feasible for x >= 1 only, and y*(x) = min(x, 2)."""
    rows = bx.LinearCoupling(A=[[1.0], [-1.0]], B=[[-1.0], [0.0]], upper=[0.0, -1.0])
    return bx.BilevelProblem(linear_upper, _toward_two, rows, data=data)


def following(data: dict[str, Any], x_set: bx.Box, like: Any) -> bx.BilevelProblem:
    """y*(x) = x, over a set X."""
    return bx.BilevelProblem(linear_upper, _follow, x_set=x_set, y_like=like, data=data)


TEXTBOOK = [
    Textbook(
        "row active",  # y = min(x, 1)
        lambda: bx.BilevelProblem(
            upper=lambda x, y: (x - 3) ** 2 + (y - 2) ** 2,
            lower=lambda x, y: (y - x) ** 2,
            coupling=bx.LinearCoupling(A=1.0, upper=1.0),
        ),
        x=3.0, y=1.0, value=1.0, multipliers=[4.0], licq=True, strict=True,
    ),
    Textbook(
        "row slack",  # y = x
        lambda: bx.BilevelProblem(
            upper=lambda x, y: (x - 1) ** 2 + (y + 1) ** 2,
            lower=lambda x, y: (y - x) ** 2,
            coupling=bx.LinearCoupling(A=1.0, upper=1.0),
        ),
        x=0.0, y=0.0, value=2.0, multipliers=[0.0], licq=True, strict=True,
    ),
    Textbook(
        "equality",  # y = (x/2, x/2)
        lambda: bx.BilevelProblem(
            upper=lambda x, y: (y[0] - 1) ** 2 + jnp.sum((x - 4) ** 2),
            lower=lambda x, y: 0.5 * jnp.sum(y**2),
            coupling=bx.LinearCoupling(A=[[1.0, 1.0]], B=[[-1.0]], lower=0.0, upper=0.0),
        ),
        x=[3.6], y=[1.8, 1.8], value=0.8, multipliers=[-1.8], licq=True, strict=True,
    ),
    Textbook(
        "range, lower side",  # y = clip(x, -1, 1)
        lambda: bx.BilevelProblem(
            upper=lambda x, y: (y + 0.5) ** 2 + (x + 3) ** 2,
            lower=lambda x, y: 0.5 * (y - x) ** 2,
            coupling=bx.LinearCoupling(A=1.0, lower=-1.0, upper=1.0),
        ),
        x=-3.0, y=-1.0, value=0.25, multipliers=[-2.0], licq=True, strict=True,
    ),
    Textbook(
        "kink",  # Phi = 2 x right of 0, -x left of it
        lambda: hinge(slopes(-1.0, 3.0)),
        x=0.0, y=0.0, value=0.0, multipliers=[0.0], licq=True, strict=False,
    ),
    Textbook(
        "border",  # feasible for x >= 1; there y = 1 and both rows press: 2 (y - 2) + l1 - l2 = 0
        lambda: bordered(slopes(1.0, 1.0)),
        x=[1.0], y=[1.0], value=2.0, multipliers=None, licq=False, strict=True,
    ),
    Textbook(
        "duplicated rows",  # as 'row active'
        lambda: bx.BilevelProblem(
            upper=lambda x, y: jnp.sum((x - 3) ** 2 + (y - 2) ** 2),
            lower=lambda x, y: jnp.sum((y - x) ** 2),
            coupling=bx.LinearCoupling(A=[[1.0], [1.0], [2.0]], upper=[1.0, 1.0, 2.0]),
        ),
        x=[3.0], y=[1.0], value=1.0, multipliers=None, licq=False, strict=True,
    ),
    Textbook(
        "pytrees",  # flow = demand - toll, kept below capacity
        lambda: bx.BilevelProblem(
            upper=lambda x, y: jnp.sum((x["toll"] - 1) ** 2) + (x["capacity"] - 5) ** 2 + jnp.sum(y["flow"] ** 2),
            lower=lambda x, y: 0.5 * jnp.sum((y["flow"] + x["toll"]) ** 2) + 0.5 * y["spill"] ** 2,
            coupling=(
                bx.AffineCoupling(lambda x, y: {"total": jnp.sum(y["flow"]) - x["capacity"]}, upper=0.0),
                bx.AffineCoupling(lambda x, y: y["spill"] - x["capacity"], lower=0.0, upper=0.0),
            ),
            x_set=bx.Product({"capacity": bx.Free(), "toll": bx.Box(0.0, 10.0)}),
        ),
        x={"capacity": 5.0, "toll": np.array([0.5, 0.5])},
        y={"flow": np.array([-0.5, -0.5]), "spill": 5.0},
        value=1.0,
        multipliers=({"total": 0.0}, -5.0),
        licq=True, strict=True,
    ),
]  # fmt: skip


def made_up_network() -> bx.problems.NetworkDesign:
    """Return a network of three places."""
    return bx.problems.NetworkDesign.from_arrays(
        tail=["harbour", "station", "harbour", "airport", "station", "airport"],
        head=["station", "harbour", "airport", "harbour", "airport", "station"],
        time=[1.0, 1.0, 4.0, 4.0, 2.0, 2.0],
        cost=[1.0, 1.0, 5.0, 5.0, 2.5, 2.5],
        origin=["harbour", "station", "harbour", "station"],
        destination=["station", "harbour", "airport", "airport"],
        demand=[1.0, 1.0, 1.5, 1.0],
        outside=[3.0, 3.0, 5.0, 4.0],
        revenue=[2.0, 2.0, 9.0, 3.0],
        coordinates=[[1.0, 0.8], [0.0, 0.0], [0.4, 0.5]],
        nodes=["airport", "harbour", "station"],
    )
