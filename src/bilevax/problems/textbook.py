"""Bilevel problems of the literature with linear rows in the lower level, each with its best known answer."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from bilevax.model.coupling import LinearCoupling
from bilevax.model.problem import BilevelProblem
from bilevax.model.sets import Box, ConvexSet, NonNegative, Polyhedron

_INF = np.inf


@dataclasses.dataclass(frozen=True, eq=False)
class Textbook:
    """A problem of the literature; x and y are arrays of one dimension.

    Attributes
    ----------
    name, reference
        Its usual name, and where it comes from.
    upper, lower, coupling, x_set, y_set
        The parts of `problem`, as in `BilevelProblem`.
    x0, y0
        The usual start.
    best_x, best_y, best_value
        The best known answer, which is global: `bilevax.prove` bounds it from below to 1e-6.
    strongly_convex
        Whether the lower objective is strongly convex in y; it is merely convex otherwise, often linear.
    """

    name: str
    reference: str
    _: dataclasses.KW_ONLY
    upper: Callable[[Any, Any], Any]
    lower: Callable[[Any, Any], Any]
    coupling: LinearCoupling | None = None
    x_set: ConvexSet | None = None
    y_set: ConvexSet | None = None
    x0: Any
    y0: Any
    best_x: Any
    best_y: Any
    best_value: float
    strongly_convex: bool = True

    def __post_init__(self):
        for name in ("x0", "y0", "best_x", "best_y"):
            object.__setattr__(self, name, np.array(getattr(self, name), np.float64))

    @functools.cached_property
    def problem(self) -> BilevelProblem:
        """The problem; the same object every time, so that it is compiled once."""
        return BilevelProblem(self.upper, self.lower, self.coupling, self.x_set, self.y_set, y_like=self.y0)


def names() -> list[str]:
    """Return the problems' names."""
    return list(_TABLE)


def load(name: str) -> Textbook:
    """Return a problem by its name."""
    if name not in _TABLE:
        raise ValueError(f"name: expected one of {', '.join(_TABLE)}, got {name!r}.")
    return _TABLE[name]


_BARD_ROWS = LinearCoupling(A=[[1], [-0.5], [1]], B=[[-3], [1], [1]], upper=[-3, 4, 7])
_FLOUDAS_ROWS = LinearCoupling(A=[[1, -2], [2, 0], [0, 2]], B=[[1, 1], [-1, 0], [0, -1]], upper=[40, -10, -10])
_OUTRATA_ROWS = LinearCoupling(A=[[-0.333, 1], [1, -0.333]], upper=[2, 2])
_OUTRATA_HESSIAN = np.array([[1.0, -2.0], [-2.0, 5.0]])

_ALL = [
    Textbook(
        "Bard1988Ex1",
        "Bard 1988, Mathematical Programming 40, example 1",
        upper=lambda x, y: (x[0] - 5) ** 2 + (2 * y[0] + 1) ** 2,
        lower=lambda x, y: (y[0] - 1) ** 2 - 1.5 * x[0] * y[0],
        coupling=_BARD_ROWS,
        x_set=NonNegative(),
        y_set=NonNegative(),
        x0=[4],
        y0=[0],
        best_x=[1],
        best_y=[0],
        best_value=17,
    ),
    Textbook(
        "Bard1988Ex2",
        "Bard 1988, Mathematical Programming 40, example 2, after Aiyoshi and Shimizu 1981",
        upper=lambda x, y: -(200 - y[0] - y[2]) * (y[0] + y[2]) - (160 - y[1] - y[3]) * (y[1] + y[3]),
        lower=lambda x, y: (y[0] - 4) ** 2 + (y[1] - 13) ** 2 + (y[2] - 35) ** 2 + (y[3] - 2) ** 2,
        coupling=LinearCoupling(
            A=[[0.4, 0.7, 0, 0], [0.6, 0.3, 0, 0], [0, 0, 0.4, 0.7], [0, 0, 0.6, 0.3]],
            B=[[-1, 0, 0, 0], [0, -1, 0, 0], [0, 0, -1, 0], [0, 0, 0, -1]],
            upper=[0, 0, 0, 0],
        ),
        x_set=Polyhedron(
            [[1, 1, 1, 1], [1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]],
            lower=[-_INF, 0, 0, 0, 0],
            upper=[40, 10, 5, 15, 20],
        ),
        y_set=Box([0, 0, 0, 0], [20, 20, 40, 40]),
        x0=[5, 5, 15, 15],
        y0=[0, 0, 0, 0],
        best_x=[7.914313373892, 4.371447720387, 11.08569556229, 16.628543343435],
        best_y=[2.28573130701, 10.000029787268, 27.714238905724, 0],
        best_value=-6600,
    ),
    Textbook(
        "ClarkWesterberg1990a",
        "Clark and Westerberg 1990, Computers and Chemical Engineering 14, section 3.2",
        upper=lambda x, y: (x[0] - 3) ** 2 + (y[0] - 2) ** 2,
        lower=lambda x, y: (y[0] - 5) ** 2,
        coupling=LinearCoupling(A=[[1], [-2], [2]], B=[[-2], [1], [1]], upper=[1, -2, 14]),
        x_set=Box([0], [8]),
        x0=[1],
        y0=[1],
        best_x=[1],
        best_y=[3],
        best_value=5,
    ),
    Textbook(
        "Colson2002BIPA2",
        "Colson 2002, BIPA2",
        upper=lambda x, y: (x[0] - 5) ** 2 + (2 * y[0] + 1) ** 2,
        lower=lambda x, y: (y[0] - 1) ** 2 - 1.5 * x[0] * y[0] + x[0] ** 3,
        coupling=_BARD_ROWS,
        x_set=NonNegative(),
        y_set=NonNegative(),
        x0=[4],
        y0=[0],
        best_x=[1],
        best_y=[0],
        best_value=17,
    ),
    Textbook(
        "FloudasEtal2013",
        "Floudas et al. 2013, Handbook of Test Problems; Tuy et al. 2007",
        upper=lambda x, y: 2 * x[0] + 2 * x[1] - 3 * y[0] - 3 * y[1] - 60,
        lower=lambda x, y: (y[0] - x[0] + 20) ** 2 + (y[1] - x[1] + 20) ** 2,
        coupling=_FLOUDAS_ROWS,
        x_set=Box([0, 0], [50, 50]),
        y_set=Box([-10, -10], [20, 20]),
        x0=[10, 10],
        y0=[20, 20],
        best_x=[0, 0],
        best_y=[-10, -10],
        best_value=0,
    ),
    Textbook(
        "HatzEtal2013",
        "Hatz, Leyffer, Schloeder and Bock 2013",
        upper=lambda x, y: -x[0] + 2 * y[0] + y[1],
        lower=lambda x, y: (x[0] - y[0]) ** 2 + y[1] ** 2,
        y_set=NonNegative(),
        x0=[1],
        y0=[1, 1],
        best_x=[0],
        best_y=[0, 0],
        best_value=0,
    ),
    Textbook(
        "LamparielloSagratella2017Ex32",
        "Lampariello and Sagratella 2017, example 3.2",
        upper=lambda x, y: x[0] ** 2 + y[0] ** 2,
        lower=lambda x, y: (x[0] + y[0] - 1) ** 2,
        x0=[1],
        y0=[1],
        best_x=[0.5],
        best_y=[0.5],
        best_value=0.5,
    ),
    Textbook(
        "MacalHurter1997",
        "Macal and Hurter 1997",
        upper=lambda x, y: (x[0] - 1) ** 2 + (y[0] - 1) ** 2,
        lower=lambda x, y: 0.5 * y[0] ** 2 + 500 * y[0] - 50 * x[0] * y[0],
        x0=[1],
        y0=[1],
        best_x=[10.016393442623],
        best_y=[0.819672131148],
        best_value=81.3278688525,
    ),
    Textbook(
        "MuuQuy2003Ex1",
        "Muu and Quy 2003, example 1",
        upper=lambda x, y: y[0] ** 2 + y[1] ** 2 + x[0] ** 2 - 4 * x[0],
        lower=lambda x, y: y[0] ** 2 + 0.5 * y[1] ** 2 + y[0] * y[1] + (1 - 3 * x[0]) * y[0] + (1 + x[0]) * y[1],
        coupling=LinearCoupling(A=[[2, 1]], B=[[-2]], upper=[1]),
        x_set=Box([0], [2]),
        y_set=NonNegative(),
        x0=[2],
        y0=[0, 0],
        best_x=[0.846153846154],
        best_y=[0.769230769231, 0],
        best_value=-2.0769230769,
    ),
    Textbook(
        "Outrata1990Ex1a",
        "Outrata 1990, Zeitschrift fuer Operations Research 34, example 1a",
        upper=lambda x, y: 0.5 * (y[0] ** 2 + y[1] ** 2) - 3 * y[0] - 4 * y[1] + 0.1 * (x[0] ** 2 + x[1] ** 2),
        lower=lambda x, y: 0.5 * y @ _OUTRATA_HESSIAN @ y - x @ y,
        coupling=_OUTRATA_ROWS,
        y_set=NonNegative(),
        x0=[0, 0],
        y0=[3, 3],
        best_x=[1.031566454486, 3.097797180137],
        best_y=[2.597047924286, 1.792936709567],
        best_value=-8.9172029564,
    ),
    Textbook(
        "Outrata1990Ex1b",
        "Outrata 1990, Zeitschrift fuer Operations Research 34, example 1b",
        upper=lambda x, y: 0.5 * (y[0] ** 2 + y[1] ** 2) - 3 * y[0] - 4 * y[1] + 1.0 * (x[0] ** 2 + x[1] ** 2),
        lower=lambda x, y: 0.5 * y @ _OUTRATA_HESSIAN @ y - x @ y,
        coupling=_OUTRATA_ROWS,
        y_set=NonNegative(),
        x0=[0, 0],
        y0=[3, 3],
        best_x=[0.278839149639, 0.474811712935],
        best_y=[2.343819174067, 1.032490012214],
        best_value=-7.5784581639,
    ),
    Textbook(
        "Outrata1990Ex2a",
        "Outrata 1990, Zeitschrift fuer Operations Research 34, example 2a",
        upper=lambda x, y: 0.5 * (y[0] - 3) ** 2 + 0.5 * (y[1] - 4) ** 2,
        lower=lambda x, y: 0.5 * (y[0] ** 2 + y[1] ** 2) - (3 + 1.333 * x[0]) * y[0] - x[0] * y[1],
        coupling=_OUTRATA_ROWS,
        x_set=NonNegative(),
        y_set=NonNegative(),
        x0=[1],
        y0=[1, 1],
        best_x=[2.076337931275],
        best_y=[2.998500749625, 2.998500749625],
        best_value=0.5015014981,
    ),
    Textbook(
        "ShimizuAiyoshi1981Ex2",
        "Shimizu and Aiyoshi 1981, IEEE Transactions on Automatic Control 26, example 2",
        upper=lambda x, y: (x[0] - 30) ** 2 + (x[1] - 20) ** 2 - 20 * y[0] + 20 * y[1],
        lower=lambda x, y: (x[0] - y[0]) ** 2 + (x[1] - y[1]) ** 2,
        x_set=Polyhedron([[-1, -2], [1, 1], [0, 1]], lower=[-_INF, -_INF, -_INF], upper=[-30, 25, 15]),
        y_set=Box([0, 0], [10, 10]),
        x0=[1, 1],
        y0=[1, 1],
        best_x=[20, 5],
        best_y=[10, 5],
        best_value=225,
    ),
    Textbook(
        "ShimizuEtal1997a",
        "Shimizu, Ishizuka and Bard 1997",
        upper=lambda x, y: (x[0] - 5) ** 2 + (2 * y[0] + 1) ** 2,
        lower=lambda x, y: (y[0] - 1) ** 2 - 1.5 * x[0] * y[0],
        coupling=_BARD_ROWS,
        x0=[1],
        y0=[1],
        best_x=[0.945945945946],
        best_y=[-0.162162162162],
        best_value=16.8918918919,
    ),
    Textbook(
        "Yezza1996Ex41",
        "Yezza 1996, Journal of Optimization Theory and Applications 89, example 4.1",
        upper=lambda x, y: 0.5 * (y[0] - 2) ** 2 + 0.5 * (x[0] - y[0] - 2) ** 2,
        lower=lambda x, y: 0.5 * y[0] ** 2 + x[0] - y[0],
        coupling=LinearCoupling(A=[[1]], B=[[-1]], upper=[0]),
        y_set=NonNegative(),
        x0=[-1],
        y0=[-1],
        best_x=[3],
        best_y=[1],
        best_value=0.5,
    ),
    Textbook(
        "Bard1998_721",
        "Bard 1998, Practical Bilevel Optimization, example 7.2.1",
        upper=lambda x, y: 0.5 * (x[0] - 0.8) ** 2 + 0.5 * (x[1] - 0.2) ** 2 + 0.5 * (y[0] - 1) ** 2,
        lower=lambda x, y: 0.5 * y[0] ** 2 - y[0] - x[0] * y[0] + 2 * x[1] * y[0],
        x_set=Box([0, 0], [1, 1]),
        y_set=Box([0], [1]),
        x0=[0.5, 0.5],
        y0=[0.5],
        best_x=[0.8, 0.2],
        best_y=[1],
        best_value=0,
    ),
    Textbook(
        "Bard1998_722",
        "Bard 1998, Practical Bilevel Optimization, example 7.2.2",
        upper=lambda x, y: 0.5 * (x[0] - 1) ** 2 + 0.5 * (x[1] - 0.4) ** 2 + 0.5 * (y[0] - 0.8) ** 2,
        lower=lambda x, y: 0.5 * y[0] ** 2 - y[0] - x[0] * y[0] + 3 * x[1] * y[0],
        x_set=Box([0, 0], [1, 1]),
        y_set=Box([0], [1]),
        x0=[0.5, 0.5],
        y0=[0.5],
        best_x=[1, 0.4],
        best_y=[0.8],
        best_value=0,
    ),
    Textbook(
        "Bard1998_813",
        "Bard 1998, Practical Bilevel Optimization, example 8.1.3",
        upper=lambda x, y: (x[0] - 1) ** 2 + (y[0] - 1) ** 2,
        lower=lambda x, y: 0.5 * y[0] ** 2 + 500 * y[0] - 50 * x[0] * y[0],
        x_set=Box([-100], [100]),
        y_set=Box([0], [100]),
        x0=[5],
        y0=[1],
        best_x=[1],
        best_y=[0],
        best_value=1,
    ),
    Textbook(
        "sl1",
        "MacMPEC sl1, Scholtes and Leyffer",
        upper=lambda x, y: (y[0] - 2) ** 2 + y[1] ** 2,
        lower=lambda x, y: 0.01 * y[0] ** 2 + y[1] ** 2,
        coupling=LinearCoupling(
            A=[[-10, -1], [-1, 0], [0, -1]], B=[[1, 0, 0], [0, 1, 0], [0, 0, 50]], upper=[-10, -2, 0]
        ),
        x_set=Box([10, 0.01, 0], [_INF, 10, 1]),
        x0=[10, 1, 0.5],
        y0=[2, 0],
        best_x=[10.1, 0.01, 0],
        best_y=[2.01, 0],
        best_value=0.0001,
    ),
    Textbook(
        "jr1",
        "MacMPEC jr1, Jiang and Ralph",
        upper=lambda x, y: (x[0] - 1) ** 2 + y[0] ** 2,
        lower=lambda x, y: 0.5 * y[0] ** 2 - x[0] * y[0],
        y_set=NonNegative(),
        x0=[0],
        y0=[0],
        best_x=[0.5],
        best_y=[0.5],
        best_value=0.5,
    ),
    Textbook(
        "jr2",
        "MacMPEC jr2, Jiang and Ralph",
        upper=lambda x, y: (y[0] - 1) ** 2 + x[0] ** 2,
        lower=lambda x, y: 0.5 * y[0] ** 2 - x[0] * y[0],
        y_set=NonNegative(),
        x0=[0],
        y0=[0],
        best_x=[0.5],
        best_y=[0.5],
        best_value=0.5,
    ),
    Textbook(
        "Outrata1990Ex2b",
        "Outrata 1990, Zeitschrift fuer Operations Research 34, example 2b",
        upper=lambda x, y: 0.5 * (y[0] - 3) ** 2 + 0.5 * (y[1] - 4) ** 2,
        lower=lambda x, y: 0.5 * (1 + x[0]) * y[0] ** 2 - (3 + 1.333 * x[0]) * y[0] - x[0] * y[1],
        coupling=_OUTRATA_ROWS,
        x_set=NonNegative(),
        y_set=NonNegative(),
        x0=[5],
        y0=[0, 0],
        best_x=[0.000642713389],
        best_y=[2.998500749625, 2.998500749625],
        best_value=0.5015014981,
        strongly_convex=False,
    ),
    Textbook(
        "ex9.2.4",
        "Floudas et al., Handbook of Test Problems, 9.2.4; Yezza 1996",
        upper=lambda x, y: 0.5 * (y[0] - 2) ** 2 + 0.5 * (y[1] - 2) ** 2,
        lower=lambda x, y: 0.5 * y[0] ** 2 + y[1],
        coupling=LinearCoupling(A=[[1, 1]], B=[[-1]], lower=[0], upper=[0]),
        x_set=NonNegative(),
        y_set=NonNegative(),
        x0=[1],
        y0=[1, 0],
        best_x=[3],
        best_y=[1, 2],
        best_value=0.5,
        strongly_convex=False,
    ),
    Textbook(
        "BardBook1998",
        "Bard 1998, Practical Bilevel Optimization",
        upper=lambda x, y: (
            x[0] ** 2
            - 2 * x[0] * y[0]
            - 40 * x[0]
            + x[1] ** 2
            - 2 * x[1] * y[1]
            - 40 * x[1]
            + y[0] ** 2
            + 40 * y[0]
            + y[1] ** 2
            + 40 * y[1]
            + 800
        ),
        lower=lambda x, y: 2 * x[0] + 2 * x[1] - 3 * y[0] - 3 * y[1] - 60,
        coupling=_FLOUDAS_ROWS,
        x_set=Box([0, 0], [50, 50]),
        y_set=Box([-10, -10], [20, 20]),
        x0=[1, 1],
        y0=[1, 1],
        best_x=[25, 30],
        best_y=[5, 10],
        best_value=0,
        strongly_convex=False,
    ),
    Textbook(
        "DempeEtal2012",
        "Dempe et al. 2012",
        upper=lambda x, y: x[0],
        lower=lambda x, y: x[0] * y[0],
        x_set=Box([-1], [1]),
        y_set=Box([0], [1]),
        x0=[1],
        y0=[1],
        best_x=[-1],
        best_y=[1],
        best_value=-1,
        strongly_convex=False,
    ),
    Textbook(
        "LamparielloSagratella2017Ex31",
        "Lampariello and Sagratella 2017, example 3.1",
        upper=lambda x, y: x[0] ** 2 + y[0] ** 2,
        lower=lambda x, y: y[0],
        coupling=LinearCoupling(A=[[-1]], B=[[-1]], upper=[-1]),
        x_set=Box([1], _INF),
        x0=[1],
        y0=[1],
        best_x=[1],
        best_y=[0],
        best_value=1,
        strongly_convex=False,
    ),
    Textbook(
        "AnandalinghamWhite1990",
        "Anandalingham and White 1990",
        upper=lambda x, y: -x[0] - 3 * y[0],
        lower=lambda x, y: -x[0] + 3 * y[0],
        coupling=LinearCoupling(
            A=[[-2], [-2], [-1], [2], [2]], B=[[-1], [1], [2], [1], [-1]], upper=[-10, 6, 21, 38, 18]
        ),
        x_set=NonNegative(),
        y_set=NonNegative(),
        x0=[1],
        y0=[1],
        best_x=[16],
        best_y=[11],
        best_value=-49,
        strongly_convex=False,
    ),
    Textbook(
        "Bard1984b",
        "Bard 1984",
        upper=lambda x, y: -5 * x[0] - y[0],
        lower=lambda x, y: y[0],
        coupling=LinearCoupling(A=[[-0.5], [1], [0.5], [-2]], B=[[-1], [-0.25], [1], [1]], upper=[-2, 2, 8, 4]),
        x_set=NonNegative(),
        y_set=NonNegative(),
        x0=[1],
        y0=[1],
        best_x=[7.2],
        best_y=[1.6],
        best_value=-37.6,
        strongly_convex=False,
    ),
    Textbook(
        "BardFalk1982Ex2",
        "Bard and Falk 1982, example 2",
        upper=lambda x, y: -2 * x[0] + x[1] + 0.5 * y[0],
        lower=lambda x, y: x[0] + x[1] - 4 * y[0] + y[1],
        coupling=LinearCoupling(A=[[1, -1], [0, 1], [0, 0]], B=[[-2, 0], [1, -3], [1, 1]], upper=[-2.5, 2, 2]),
        x_set=NonNegative(),
        y_set=NonNegative(),
        x0=[1, 1],
        y0=[1, 1],
        best_x=[2, 0],
        best_y=[1.5, 0],
        best_value=-3.25,
        strongly_convex=False,
    ),
    Textbook(
        "BialasKarwan1984a",
        "Bialas and Karwan 1984",
        upper=lambda x, y: -x[0] - y[1],
        lower=lambda x, y: -y[1],
        coupling=LinearCoupling(A=[[1, 1], [-1, 1], [1, 1], [-1, 1]], B=[[1], [-1], [-1], [1]], upper=[3, -1, 1, 1]),
        x_set=NonNegative(),
        y_set=Box([0, 0], [_INF, 0.5]),
        x0=[1],
        y0=[1, 1],
        best_x=[1.5],
        best_y=[1, 0.5],
        best_value=-2,
        strongly_convex=False,
    ),
    Textbook(
        "BialasKarwan1984b",
        "Bialas and Karwan 1984",
        upper=lambda x, y: -y[0],
        lower=lambda x, y: y[0],
        coupling=LinearCoupling(
            A=[[-2], [2], [2], [-2], [-1]], B=[[-1], [1], [-1], [1], [2]], upper=[-10, 38, 18, 6, 21]
        ),
        x_set=NonNegative(),
        y_set=NonNegative(),
        x0=[10],
        y0=[14],
        best_x=[16],
        best_y=[11],
        best_value=-11,
        strongly_convex=False,
    ),
    Textbook(
        "CandlerTownsley1982",
        "Candler and Townsley 1982",
        upper=lambda x, y: -8 * x[0] - 4 * x[1] + 4 * y[0] - 40 * y[1] - 4 * y[2],
        lower=lambda x, y: x[0] + 2 * x[1] + y[0] + y[1] + 2 * y[2],
        coupling=LinearCoupling(
            A=[[-1, 1, 1], [-1, 2, -0.5], [2, -1, -0.5]], B=[[0, 0], [2, 0], [0, 2]], upper=[1, 1, 1]
        ),
        x_set=NonNegative(),
        y_set=NonNegative(),
        x0=[1, 1],
        y0=[1, 1, 1],
        best_x=[0, 0.9],
        best_y=[0, 0.6, 0.4],
        best_value=-29.2,
        strongly_convex=False,
    ),
    Textbook(
        "HaurieSavardWhite1990",
        "Haurie, Savard and White 1990",
        upper=lambda x, y: x[0] + 5 * y[0],
        lower=lambda x, y: -y[0],
        coupling=LinearCoupling(A=[[2], [4], [-5], [-1]], B=[[-3], [3], [2], [-1]], upper=[6, 48, 9, -8]),
        x0=[1],
        y0=[1],
        best_x=[12],
        best_y=[3],
        best_value=27,
        strongly_convex=False,
    ),
    Textbook(
        "LiuHart1994",
        "Liu and Hart 1994",
        upper=lambda x, y: -x[0] - 3 * y[0],
        lower=lambda x, y: y[0],
        coupling=LinearCoupling(A=[[1], [2], [-1]], B=[[-1], [1], [4]], upper=[3, 12, 12]),
        x_set=NonNegative(),
        y_set=NonNegative(),
        x0=[1],
        y0=[1],
        best_x=[4],
        best_y=[4],
        best_value=-16,
        strongly_convex=False,
    ),
    Textbook(
        "TuyEtal1993",
        "Tuy et al. 1993",
        upper=lambda x, y: -2 * x[0] + x[1] + 0.5 * y[0],
        lower=lambda x, y: -4 * y[0] + y[1],
        coupling=LinearCoupling(A=[[1, -1], [0, 1]], B=[[-2, 0], [1, -3]], upper=[-2.5, 2]),
        x_set=Polyhedron([[1, 1], [1, 0], [0, 1]], lower=[-_INF, 0, 0], upper=[2, _INF, _INF]),
        y_set=NonNegative(),
        x0=[0, 0],
        y0=[0, 0],
        best_x=[2, 0],
        best_y=[1.5, 0],
        best_value=-3.25,
        strongly_convex=False,
    ),
    Textbook(
        "qpec1",
        "MacMPEC qpec1, Jiang and Ralph 1997",
        upper=lambda x, y: jnp.sum((x + 1) ** 2) + jnp.sum((y + 2) ** 2),
        lower=lambda x, y: 0.5 * jnp.sum(y**2) - x @ y[:10],
        y_set=NonNegative(),
        x0=[1] * 10,
        y0=[1] * 20,
        best_x=[-1] * 10,
        best_y=[0] * 20,
        best_value=80,
    ),
    Textbook(
        "qpec2",
        "MacMPEC qpec2, Jiang and Ralph 1997",
        upper=lambda x, y: jnp.sum((x - 1) ** 2) + jnp.sum((y - 2) ** 2),
        lower=lambda x, y: 0.5 * jnp.sum(y**2) - x @ y[:10],
        y_set=NonNegative(),
        x0=[1] * 10,
        y0=[1] * 20,
        best_x=[1.5] * 10,
        best_y=[1.5] * 10 + [0] * 10,
        best_value=45,
    ),
]

_TABLE = {entry.name: entry for entry in _ALL}
