"""What functions are, found out on their jaxprs: verdicts on a table of functions, in any units, and the parts."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
from jax.scipy.special import entr, kl_div, logsumexp, rel_entr, xlogy

import bilevax as bx
from bilevax.datasets import Dataset
from bilevax.model.analysis import analyse, analyse_objective, jets, prove_by_hessian
from bilevax.model.analysis.program import Program
from bilevax.model.analysis.tracing import trace
from bilevax.problems import NetworkDesign, svm, textbook, toy
from bilevax.problems.quadratic import random_quadratic
from known import RECORDS, judge

_RANDOM = np.random.default_rng(0)
_H = _RANDOM.normal(size=(3, 3))
_PSD = _H @ _H.T
_D = _RANDOM.normal(size=(20, 3))
_LABEL = np.sign(_RANDOM.normal(size=20))
_Q = np.array([0.2, 0.3, 0.5])
_POSITIVE = {"y_bounds": (0.0, np.inf)}
_X_POSITIVE = {"x_bounds": (0.0, 3.0)}


def _unary(function: Callable) -> Callable:
    return lambda x, y: jnp.sum(function(y))


def _safe_norm(v: Any) -> Any:
    square = v @ v
    return jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1.0)), 0.0)


# name: function of x and y in R^3, smoothness, convexity in y, bounds
_TABLE: dict[str, tuple[Callable[[Any, Any], Any], str, str, dict[str, Any]]] = {
    # lines 4 to 8 of the certificate's problems
    "absolute residual": (lambda x, y: abs(y[0] - x[0]) + y[0] ** 2 / 2, "nonsmooth", "proven", {}),
    "exponential": (lambda x, y: jnp.exp(y[0]), "smooth", "proven", {}),
    "squared dead zone": (lambda x, y: jnp.maximum(0, abs(y[0] - x[0]) - 1) ** 2, "C1", "proven", {}),
    "sixth power": (lambda x, y: (y[0] - x[0]) ** 6, "smooth", "proven", {}),
    "double well": (lambda x, y: (y[0] ** 2 - 1) ** 2 + 0.3 * x[0] * y[0], "smooth", "unknown", {}),
    # losses
    "toy": (lambda x, y: (y[0] - 2 * x[0]) ** 2, "smooth", "proven", {}),
    "squared hinge": (lambda x, y: jnp.sum(jnp.maximum(0, 1 - _LABEL * (_D @ y)) ** 2), "C1", "proven", {}),
    "hinge": (lambda x, y: jnp.sum(jax.nn.relu(1 - _LABEL * (_D @ y))), "nonsmooth", "proven", {}),
    "logistic": (
        lambda x, y: jnp.sum(jnp.logaddexp(0, -_LABEL * (_D @ y))) + jnp.exp(x[0]) * y @ y,
        "smooth",
        "proven",
        {},
    ),
    "softplus": (lambda x, y: jnp.sum(jax.nn.softplus(y - x)), "smooth", "proven", {}),
    "log sigmoid": (_unary(lambda y: -jax.nn.log_sigmoid(y)), "smooth", "proven", {}),
    "cross entropy": (
        _unary(lambda y: -jnp.log(jax.nn.sigmoid(y)) - jnp.log(1 - jax.nn.sigmoid(y))),
        "smooth",
        "proven",
        {},
    ),
    "log1p of exp": (_unary(lambda y: jnp.log1p(jnp.exp(-y)) + jnp.log(1 + jnp.exp(y))), "smooth", "proven", {}),
    "poisson": (lambda x, y: jnp.sum(jnp.exp(_D @ y) - _D @ y), "smooth", "proven", {}),
    "pseudo-Huber": (lambda x, y: jnp.sum(jnp.sqrt(1 + (y - x) ** 2) - 1), "smooth", "proven", {}),
    "Huber": (_unary(lambda y: jnp.where(jnp.abs(y) <= 1, y**2 / 2, jnp.abs(y) - 0.5)), "C1", "unknown", {}),
    "broken Huber": (_unary(lambda y: jnp.where(jnp.abs(y) <= 1, y**2 / 2, jnp.abs(y))), "nonsmooth", "unknown", {}),
    "log-sum-exp": (lambda x, y: logsumexp(y + x), "smooth", "proven", {}),
    "log of a sum of exp": (lambda x, y: jnp.log(jnp.exp(y[0]) + jnp.exp(2 * y[1]) + 1), "smooth", "proven", {}),
    "log of softmax": (lambda x, y: -jnp.log(jax.nn.softmax(y)[0]), "smooth", "proven", {}),
    "log softmax": (lambda x, y: -jax.nn.log_softmax(y)[0], "smooth", "proven", {}),
    # functions with a domain
    "entropy": (lambda x, y: jnp.sum(y * jnp.log(y)) - 2 * x[0] * y[0], "smooth", "proven", _POSITIVE),
    "entropy without bounds": (_unary(lambda y: y * jnp.log(y)), "smooth", "proven", {}),
    "shares": (_unary(lambda y: y * (jnp.log(y) - 1) + (1 - y) * (jnp.log(1 - y) - 1)), "smooth", "proven", {}),
    "guarded entropy": (_unary(lambda y: jnp.where(y > 0, y * jnp.log(y), 0)), "smooth", "proven", {}),
    "xlogy": (_unary(lambda y: xlogy(y, y)), "smooth", "proven", {}),
    "xlogy of a quotient": (_unary(lambda y: xlogy(y, y / _Q)), "smooth", "proven", {}),
    "entr": (_unary(lambda y: -entr(y)), "smooth", "proven", {}),
    "rel_entr": (_unary(lambda y: rel_entr(y, jnp.array(_Q))), "smooth", "proven", {}),
    "kl_div": (_unary(lambda y: kl_div(y, jnp.array(_Q))), "smooth", "proven", _POSITIVE),
    "divergence": (_unary(lambda y: y * jnp.log(y / _Q) - y), "smooth", "proven", {}),
    "barrier": (lambda x, y: -jnp.sum(jnp.log(1 - _D @ y)), "smooth", "proven", {}),
    "minus root": (_unary(lambda y: -jnp.sqrt(y)), "smooth", "proven", {}),
    "reciprocal": (_unary(lambda y: 1 / y), "smooth", "proven", _POSITIVE),
    "reciprocal without bounds": (_unary(lambda y: 1 / y), "smooth", "unknown", {}),
    "quadratic over linear": (lambda x, y: y[0] ** 2 / y[1], "smooth", "proven", _POSITIVE),
    "power 2.5": (_unary(lambda y: y**2.5), "smooth", "proven", _POSITIVE),
    "travel times": (lambda x, y: jnp.sum(y * (1 + 0.15 * (y / (1 + x**2)) ** 4)), "smooth", "proven", _POSITIVE),
    "extended entropy": (
        _unary(lambda y: jnp.where(y > 0.1, y * jnp.log(y), 0.1 * jnp.log(0.1) + (y - 0.1) * (1 + jnp.log(0.1)))),
        "C1",
        "unknown",
        {},
    ),
    # kinks that are none
    "abs squared": (_unary(lambda y: jnp.abs(y) ** 2), "smooth", "proven", {}),
    "abs cubed": (_unary(lambda y: jnp.abs(y) ** 3), "smooth", "proven", {}),
    "abs to 1.5": (_unary(lambda y: jnp.abs(y) ** 1.5), "C1", "proven", {}),
    "abs of what is positive": (_unary(jnp.abs), "smooth", "proven", _POSITIVE),
    "relu squared": (_unary(lambda y: jnp.maximum(y, 0) ** 2), "C1", "proven", {}),
    "relu cubed": (_unary(lambda y: jnp.maximum(y, 0) ** 3), "smooth", "proven", {}),
    "max by abs": (_unary(lambda y: jnp.maximum(y, 0) - (y + jnp.abs(y)) / 2 + y**2), "smooth", "unknown", {}),
    "clip of data": (lambda x, y: jnp.sum(jnp.clip(_D, 0, 1) @ y) ** 2, "smooth", "proven", {}),
    "squared norm": (lambda x, y: jnp.linalg.norm(y - x) ** 2, "smooth", "proven", {}),
    "rounded norm": (lambda x, y: jnp.sqrt(jnp.sum((y - x) ** 2) + 1e-6), "smooth", "proven", {}),
    "sum of sorted": (lambda x, y: jnp.sum(jnp.sort(y)) + y @ y, "smooth", "unknown", {}),
    "sign times zero": (lambda x, y: (jnp.sign(y) * 0 + y) @ y, "smooth", "unknown", {}),
    "unused sign": (lambda x, y: jnp.stack([y @ y, jnp.sign(y[0])])[0], "smooth", "unknown", {}),
    "elu": (_unary(jax.nn.elu), "C1", "unknown", {}),
    "softplus by cases": (
        _unary(lambda y: jnp.where(y > 0, y + jnp.log1p(jnp.exp(-y)), jnp.log1p(jnp.exp(y)))),
        "smooth",
        "unknown",
        {},
    ),
    "logaddexp by hand": (
        lambda x, y: jnp.sum(jnp.maximum(x, y) + jnp.log1p(jnp.exp(-jnp.abs(x - y)))),
        "smooth",
        "unknown",
        {},
    ),
    "sinc": (_unary(lambda y: jnp.where(y == 0, 1.0, jnp.sin(y) / jnp.where(y == 0, 1.0, y))), "smooth", "unknown", {}),
    # kinks
    "norm with a safe gradient": (lambda x, y: _safe_norm(y - x) + y @ y, "nonsmooth", "proven", {}),
    "weak kink": (lambda x, y: 1e-6 * jnp.abs(y[0] - x[0]) + y @ y, "nonsmooth", "proven", {}),
    "norm": (lambda x, y: jnp.linalg.norm(y - x), "nonsmooth", "proven", {}),
    "sum of norms": (lambda x, y: jnp.sqrt(y[0] ** 2 + y[1] ** 2) + jnp.abs(y[2]), "nonsmooth", "proven", {}),
    "1-norm": (lambda x, y: jnp.linalg.norm(y, 1) + y @ y, "nonsmooth", "proven", {}),
    "largest": (lambda x, y: jnp.max(y - x) + y @ y, "nonsmooth", "proven", {}),
    "smallest": (lambda x, y: jnp.min(y - x) + y @ y, "nonsmooth", "unknown", {}),
    "min": (lambda x, y: jnp.minimum(y[0], y[1]) + y @ y, "nonsmooth", "unknown", {}),
    "clip": (_unary(lambda y: jnp.clip(y, 0, 1)), "nonsmooth", "unknown", {}),
    "sign": (lambda x, y: jnp.sign(y) @ y, "nonsmooth", "unknown", {}),
    "floor": (lambda x, y: jnp.floor(y[0]) + y @ y, "nonsmooth", "unknown", {}),
    "sort": (lambda x, y: jnp.sort(y) @ jnp.arange(3.0) + y @ y, "nonsmooth", "unknown", {}),
    "median": (lambda x, y: jnp.median(y) + y @ y, "nonsmooth", "unknown", {}),
    "cond": (lambda x, y: jax.lax.cond(y[0] > 0, lambda: y[0], lambda: 2 * y[0]), "nonsmooth", "unknown", {}),
    "where": (_unary(lambda y: jnp.where(y > 0, y, 2 * y)), "nonsmooth", "unknown", {}),
    "comparison as number": (_unary(lambda y: (y > 0) * 1.0), "nonsmooth", "unknown", {}),
    "abs of x": (lambda x, y: jnp.sum((y - jnp.abs(x)) ** 2), "nonsmooth", "proven", {}),
    "stopped gradient": (lambda x, y: jax.lax.stop_gradient(y[0]) * y[0], "nonsmooth", "proven", {}),
    "stopped equations": (
        lambda x, y: jnp.sum(jnp.linalg.solve(jax.lax.stop_gradient(jnp.outer(y, y)) + _PSD, y) ** 2),
        "nonsmooth",
        "unknown",
        {},
    ),
    # quadratic functions
    "quadratic": (lambda x, y: 0.5 * y @ _PSD @ y + x @ y, "smooth", "proven", {}),
    "quadratic by einsum": (lambda x, y: jnp.einsum("i,ij,j", y, _PSD, y), "smooth", "proven", {}),
    "indefinite": (lambda x, y: y @ (_PSD - 5 * np.eye(3)) @ y, "smooth", "refuted", {}),
    "bilinear": (lambda x, y: y[0] * y[1], "smooth", "refuted", {}),
    "expanded square": (lambda x, y: y[0] ** 2 - 2 * y[0] * y[1] + y[1] ** 2, "smooth", "proven", {}),
    "linear": (lambda x, y: x @ y, "smooth", "proven", {}),
    "times x": (lambda x, y: x[0] * y @ y, "smooth", "unknown", {}),
    "times positive x": (lambda x, y: x[0] * y @ y, "smooth", "proven", _X_POSITIVE),
    "variance": (lambda x, y: jnp.var(y) + jnp.mean((y - x) ** 2), "smooth", "proven", {}),
    "loop": (lambda x, y: jax.lax.fori_loop(0, 3, lambda i, c: c + y[i] ** 2, 0.0), "smooth", "proven", {}),
    # neither
    "cosh": (_unary(jnp.cosh), "smooth", "proven", {}),
    "sin": (_unary(jnp.sin), "smooth", "unknown", {}),
    "gelu": (_unary(jax.nn.gelu), "smooth", "unknown", {}),
    "while": (
        lambda x, y: jax.lax.while_loop(lambda c: c < 10, lambda c: c + y[0] ** 2 + 1, 0.0),
        "unknown",
        "unknown",
        {},
    ),
    "equations": (lambda x, y: jnp.sum(jnp.linalg.solve(jnp.outer(y, y) + _PSD, x) ** 2), "unknown", "unknown", {}),
    "inverse": (lambda x, y: x @ jnp.linalg.inv(jnp.outer(y, y) + _PSD) @ x, "unknown", "unknown", {}),
    "gather at argmax": (lambda x, y: y[jnp.argmax(y)], "unknown", "unknown", {}),
}


@pytest.mark.parametrize("name", _TABLE)
def test_table(name):
    function, smoothness, convexity, bounds = _TABLE[name]
    found = analyse(function, 3, 3, **bounds)
    assert (found.smoothness, found.convexity) == (smoothness, convexity), (found.reason, found.kinks)
    if smoothness == "nonsmooth":
        assert found.refused
    if smoothness == "smooth":
        assert not found.refused


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("known", [False, True], ids=["no points", "points"])
def test_units_do_not_matter(seed, known):
    random = np.random.default_rng(seed)
    for name, (function, smoothness, convexity, bounds) in _TABLE.items():
        unit = {"x": 10.0 ** random.integers(-6, 7, 3), "y": 10.0 ** random.integers(-6, 7, 3)}
        scaled: dict[str, Any] = {
            key: tuple(np.full(3, side) / unit[key[0]] for side in sides) for key, sides in bounds.items()
        }
        points = random.normal(size=(2, 12, 3))
        points = np.abs(points) if bounds else points
        given = (points[0] / unit["x"], points[1] / unit["y"]) if known else None
        changed = lambda x, y, f=function, u=unit: f(u["x"] * x, u["y"] * y)
        found = analyse(changed, 3, 3, points=given, **scaled)
        assert (found.smoothness, found.convexity) == (smoothness, convexity), (name, unit, found.kinks)


@pytest.mark.parametrize(
    ("name", "primitive", "words"),
    [
        ("absolute residual", "abs", "-t <= e <= t"),
        ("hinge", "relu", "t >= 0, t >= e"),
        ("largest", "max", "t >= a, t >= b"),
        ("min", "min", "not convex"),
        ("norm", "norm", "square"),
        ("sort", "sort", "not smooth"),
        ("floor", "floor", "not continuous"),
        ("sign", "sign", "not continuous"),
        ("clip", "clip", "bounds or rows"),
        ("where", "where", "slopes"),
        ("stopped gradient", "stop_gradient", "not that of the function"),
    ],
)
def test_kinks_are_named_with_their_rewriting(name, primitive, words):
    function, *_, bounds = _TABLE[name]
    kink = analyse(function, 3, 3, **bounds).refused[0]
    assert kink.primitive == primitive
    assert words in str(kink)
    assert "test_analysis.py" in kink.where


def test_a_kink_comes_with_a_point_on_it():
    (kink,) = analyse(lambda x, y: jnp.abs(y[0] - 3 * x[0]) + y @ y, 2, 2).refused
    assert kink.x is not None
    assert kink.y is not None
    np.testing.assert_allclose(kink.y[0], 3 * kink.x[0], atol=1e-9 * (1 + abs(kink.y[0])))
    assert kink.on_x
    assert kink.on_y


def test_kinks_outside_of_the_points_are_not_met():
    function = lambda x, y: jnp.abs(y[0]) + y @ y
    y = np.random.default_rng(0).uniform(1.0, 2.0, (10, 2))
    found = analyse(function, 1, 2, points=(np.zeros((10, 1)), y))
    assert found.smoothness == "smooth"
    assert [kink.verdict for kink in found.kinks] == ["not met"]
    assert analyse(function, 1, 2).smoothness == "nonsmooth"


def test_smooth_functions_without_branches_are_only_traced(monkeypatch):
    def evaluate(*_: Any) -> None:
        raise AssertionError("the function was evaluated")

    monkeypatch.setattr(Program, "evaluate", evaluate)
    assert analyse(_TABLE["logistic"][0], 3, 3).smoothness == "smooth"


def test_many_variables():
    function = lambda x, y: jnp.sum(jnp.abs(y)) + jnp.sum(jnp.exp(y)) + y @ y
    found = analyse(function, 1, 20_000)
    assert (found.smoothness, found.convexity) == ("nonsmooth", "proven")
    found = analyse(lambda x, y: logsumexp(y) + jnp.linalg.norm(y), 1, 20_000)
    assert (found.smoothness, found.convexity) == ("nonsmooth", "proven")


@pytest.mark.parametrize(
    ("function", "quadratic", "on_x", "affine", "degree"),
    [
        (lambda x, y: y @ _PSD @ y + (x @ y) * x[0], True, False, False, 3),
        (lambda x, y: y @ y * x[0] ** 2, True, True, False, 4),
        (lambda x, y: jnp.exp(x[0]) * y @ y, True, True, False, None),
        (lambda x, y: jnp.exp(x) @ y, True, False, True, None),
        (lambda x, y: y @ y + jnp.exp(x[0]), True, False, False, None),
        (lambda x, y: jnp.sum(y**3), False, False, False, 3),
        (lambda x, y: jnp.sum(y / (1 + x**2)), True, False, True, None),
        (lambda x, y: jnp.where(x > 0, y, 2 * y) @ y, True, True, False, None),
        (lambda x, y: jnp.linalg.solve(jnp.array(_PSD), y) @ y, True, False, False, None),
    ],
)
def test_degrees(function, quadratic, on_x, affine, degree):
    found = analyse(function, 3, 3)
    assert (found.quadratic, found.hessian_depends_on_x, found.affine) == (quadratic, on_x, affine)
    assert degree is None or found.degree == degree


@pytest.mark.parametrize(
    ("function", "kind", "argument", "affine", "strict"),
    [
        (lambda x, y: jnp.sum(y * jnp.log(y)), "log", lambda x, y: y, True, True),
        (lambda x, y: jnp.sum(jnp.where(y > 0, y * jnp.log(y), 0)), "log", lambda x, y: y, True, True),
        (lambda x, y: jnp.sum(xlogy(y, y)), "log", lambda x, y: y, True, False),
        (lambda x, y: -jnp.sum(jnp.log1p(x - y)), "log", lambda x, y: 1 + x - y, True, True),
        (lambda x, y: -jnp.sum(jnp.sqrt(2 * y - x)), "sqrt", lambda x, y: 2 * y - x, True, False),
        (lambda x, y: jnp.sum((y - 1) ** 1.5), "power", lambda x, y: y - 1, True, False),
        (lambda x, y: jnp.sum(x / y), "reciprocal", lambda x, y: y, True, True),
        (lambda x, y: jnp.sum(jnp.where(y < 2, y, jnp.inf)), "where", lambda x, y: 2 - y, True, False),
        (lambda x, y: jnp.log(y @ y - 1), "log", lambda x, y: np.array([y @ y - 1]), False, True),
    ],
)
def test_domain(function, kind, argument, affine, strict):
    (row,) = analyse(function, 3, 3).domain
    assert (row.kind, row.affine, row.strict, row.implied) == (kind, affine, strict, False)
    x, y = np.random.default_rng(0).normal(size=(2, 3))
    np.testing.assert_allclose(row.arguments(x, y), argument(x, y))
    assert row.arguments(x, np.stack([y, y])).shape == (2, len(np.atleast_1d(argument(x, y))))


def test_domains_that_bounds_imply_or_that_are_extended():
    entropy = lambda x, y: jnp.sum(y * jnp.log(y))
    for least, implied in ((1e-6, True), (0.0, False)):
        bounds = np.array(least), np.array(1.0)
        assert [row.implied for row in analyse(entropy, 1, 3, y_bounds=bounds).domain] == [implied]
    assert [row.implied for row in analyse(lambda x, y: logsumexp(y), 1, 3).domain] == [True]
    assert analyse(_TABLE["extended entropy"][0], 3, 3).domain == ()


def test_counterexamples_to_convexity():
    found = analyse(_TABLE["double well"][0], 3, 3)
    points = np.random.default_rng(0).uniform(-2, 2, (20, 3))
    test = found.refute_convexity(np.ones(3), points)
    assert test.counterexample is not None
    assert test.counterexample.curvature < 0
    assert test.tested > 100
    assert abs(test.counterexample.y[0]) < 1
    # on the right of the inflection there is none
    assert found.refute_convexity(np.ones(3), np.abs(points) + 0.6).counterexample is None


def test_a_saddle_is_found_among_many_variables():
    function = lambda x, y: jnp.sum(jnp.cosh(y)) - 1.02 * jnp.cosh(y[3])
    points = np.random.default_rng(0).normal(size=(10, 20))
    found = analyse(function, 1, 20).refute_convexity(np.zeros(1), points).counterexample
    assert found is not None
    assert np.argmax(np.abs(found.direction)) == 3


@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
def test_rounding_is_no_counterexample(unit):
    random = np.random.default_rng(0)
    points = random.normal(size=(20, 3)) / unit
    for function in (
        lambda x, y: jnp.sum((y - x) ** 2) - y @ y + 2 * x @ y,  # zero but for rounding
        lambda x, y: 0.1 * y @ y + 0.2 * y @ y - 0.3 * y @ y,
        lambda x, y: jnp.sum((_D[:2] @ y) ** 2),  # singular
        lambda x, y: jnp.sum(jnp.exp(y[:2] - y[1:])),
    ):
        scaled = lambda x, y, f=function: f(x, unit * y)
        found = analyse(scaled, 3, 3)
        assert found.convexity != "refuted"
        assert found.refute_convexity(random.normal(size=3), points).counterexample is None


def test_directions_that_leave_the_feasible_set_are_left_out():
    function = lambda x, y: jnp.exp(y[0] + y[1]) - jnp.cosh(y[2])
    found = analyse(function, 1, 3)
    points = np.random.default_rng(0).normal(size=(10, 3))
    points[:, 2] = 0.5
    assert found.refute_convexity(np.zeros(1), points).counterexample is not None
    assert found.refute_convexity(np.zeros(1), points, tangent=np.eye(3)[:, :2]).counterexample is None


def test_one_variable():
    assert analyse(lambda x, y: -(y[0] ** 2), 1, 1).convexity == "refuted"
    assert analyse(lambda x, y: 3 * y[0] ** 2 - y[0] * y[0], 1, 1).convexity == "proven"


def test_fixed_variables_do_not_count():
    bounds = (np.array([-1.0, 0.5]), np.array([1.0, 0.5]))
    assert analyse(lambda x, y: y[0] * y[1], 1, 2, y_bounds=bounds).convexity == "proven"


def test_hessians():
    random = np.random.default_rng(0)
    root = random.normal(size=(30, 20))
    unit = 10.0 ** random.integers(-6, 7, 30)
    singular = unit[:, None] * (root @ root.T) * unit
    assert prove_by_hessian(singular)[0] == "proven"
    assert prove_by_hessian(sp.csr_matrix(singular))[0] == "proven"
    direction = random.normal(size=30)
    wrong = unit[:, None] * (root @ root.T - 1e-6 * np.outer(direction, direction)) * unit
    verdict, eigenvalue, along = prove_by_hessian(wrong)
    assert verdict == "refuted"
    assert eigenvalue < 0
    assert along is not None
    assert along @ wrong @ along < 0
    large = sp.diags([np.full(2000, 2.0), np.full(1999, -1.0), np.full(1999, -1.0)], [0, 1, -1])
    assert prove_by_hessian(large)[0] == "proven"
    assert prove_by_hessian(large - 1.5 * sp.eye(2000))[0] == "unknown"
    assert prove_by_hessian(large - 3 * sp.eye(2000))[0] == "refuted"


def test_a_hessian_from_elsewhere_settles_it():
    matrix = np.random.default_rng(0).normal(size=(60, 60))
    found = analyse(lambda x, y: jnp.sum(jnp.outer(y, y) * matrix), 1, 60)
    assert (found.convexity, found.quadratic) == ("unknown", True)
    assert found.with_hessian(matrix + matrix.T).convexity == "refuted"
    assert found.with_hessian(matrix @ matrix.T).convexity == "proven"


_JETS = [
    lambda x, y: jax.scipy.special.logsumexp(y * x) + jnp.linalg.norm(y - x) + jax.nn.softmax(y)[0],
    lambda x, y: xlogy(y**2, y**2 + 1).sum() + entr(y**2).sum() + jnp.sum(jax.nn.relu(y) * x),
    lambda x, y: jnp.sum(y * y[::-1]) + jnp.sum((y**2) ** 2.5 + abs(y) ** 3) + jnp.clip(y, 0, 1).sum() + jnp.sort(y)[0],
    lambda x, y: (
        jnp.median(y) + y[jnp.array([0, 2, 2])] @ x[:3] + jnp.zeros(5).at[jnp.array([0, 2])].add(y[:2] ** 2)[2]
    ),
    lambda x, y: jax.lax.fori_loop(0, 4, lambda i, c: jnp.sin(c) + y[i] * x[i], 0.0),
    lambda x, y: jax.lax.scan(lambda c, v: (c * v, c + v), x[0], y, reverse=True)[1] @ x,
    lambda x, y: jax.lax.cond(y[0] > 0, lambda: y[1], lambda: x[1] ** 2) + jax.lax.cummax(y) @ x,
    lambda x, y: jnp.prod(y) / x[0] + jnp.cumsum(y) @ x + jnp.var(y) + jnp.max(y * x) + jnp.std(x),
    lambda x, y: jnp.exp(jnp.tanh(y.reshape(2, 2) @ x.reshape(2, 2))).sum() + jnp.tril(jnp.outer(y, y)).sum(),
    lambda x, y: jnp.linalg.norm(y.reshape(2, 2), axis=1).sum() + jnp.mod(y, 0.3).sum() + jnp.arctan(y) @ jnp.cosh(x),
    lambda x, y: (
        jnp.pad(y, 2) @ jnp.arange(8.0) + jnp.roll(y, 1) @ y + jnp.diff(y) @ y[1:] + jnp.where(y > 0, y, x).sum()
    ),
    lambda x, y: jax.vmap(lambda a, b: a**2 * b)(x, y).sum() + jax.scipy.special.gammaln(1 + y**2) @ jnp.log1p(x**2),
    lambda x, y: (
        jax.nn.sigmoid(y) @ x + jax.nn.gelu(y).sum() + jax.nn.elu(y).sum() + jax.scipy.stats.norm.logcdf(y).sum()
    ),
    lambda x, y: (
        (1 + x**2) @ ((1 + y**2) ** x) + 2.0**y @ x + jnp.split(y, 2)[1] @ x[:2] + jnp.arcsinh(y) @ jnp.cbrt(x)
    ),
    lambda x, y: jnp.einsum("ijk,k,j->i", jnp.arange(16.0).reshape(2, 2, 4), y, x[:2]).sum() + jnp.dot(y, x) * y[-1],
    lambda x, y: jnp.kron(y, x).sum() + jnp.trace(jnp.outer(x, y) @ jnp.outer(y, x)) + jnp.flip(y).at[1].set(x[0]) @ y,
]


@pytest.mark.slow
@pytest.mark.parametrize("index", range(len(_JETS)))
def test_jets_are_the_derivatives_of_jax(index):
    function = _JETS[index]
    x, y, along_x, along_y = np.random.default_rng(index).normal(size=(4, 3, 4))
    program = Program(trace(function, 4, 4))
    (found,) = program.evaluate(jets.line_jet(x, along_x), jets.line_jet(y, along_y), [program.result])
    (values,) = program.evaluate(x[None], y[None], [program.result])
    with jax.enable_x64(True):

        def taylor(x: Any, y: Any, along_x: Any, along_y: Any) -> Any:
            line = lambda t: function(x + t * along_x, y + t * along_y)
            return jnp.stack([line(0.0), jax.grad(line)(0.0), jax.grad(jax.grad(line))(0.0)])

        expected = np.asarray(jax.jit(jax.vmap(taylor))(x, y, along_x, along_y)).T
    np.testing.assert_allclose(found[:3], expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(values[0], expected[0], rtol=1e-12)
    assert (np.abs(found[1:3]) <= found[3:] * (1 + 1e-9) + 1e-12).all()


def _shapes(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), np.float64), tree)


def _check(problem: bx.BilevelProblem, x: Any, y: Any, convexity: str = "proven") -> None:
    upper, lower = (analyse_objective(problem, level, _shapes(x), _shapes(y)) for level in ("upper", "lower"))
    assert (upper.smoothness, lower.smoothness) == ("smooth", "smooth")
    assert lower.convexity == convexity, lower.reason


def test_toy():
    _check(toy(), 0.0, 0.0)


@pytest.mark.parametrize("upper", ["lipschitz", "nonconvex", "quadratic"])
def test_random_quadratic(upper):
    _check(random_quadratic(upper=upper).problem, np.zeros(3), np.zeros(4))


@pytest.mark.parametrize("sparse", [False, True])
def test_svm(sparse):
    random = np.random.default_rng(0)
    features = random.normal(size=(30, 5))
    rows = Dataset(sp.csr_matrix(features) if sparse else features, np.sign(random.normal(size=30)))
    _check(svm(rows, rows, flat=True), np.zeros(30), np.zeros(6))
    _check(svm(rows, rows), np.zeros(30), {"weights": np.zeros(5), "bias": np.zeros(())})


def test_network():
    costs: Any = {
        "time": [1.0, 1.0, 3.0],
        "cost": [1.0, 1.0, 1.0],
        "demand": [1.0],
        "outside": [4.0],
        "revenue": [10.0],
    }
    network = NetworkDesign.from_arrays([0, 1, 0], [1, 2, 2], origin=[0], destination=[2], **costs)
    problem = network.problem()
    _check(problem, np.zeros(3), problem.y_like)
    rows = analyse_objective(problem, "lower", _shapes(np.zeros(3)), problem.y_like).domain
    assert [(row.kind, row.affine, row.implied) for row in rows] == [("log", True, True)] * 2


@pytest.mark.parametrize("name", textbook.names())
def test_textbook(name):
    record = textbook.load(name)
    _check(record.problem, record.x0, record.y0)


@pytest.mark.skipif(not RECORDS, reason="no problem library; set BILEVAX_PROBLEMS")
def test_public_problems():
    for record in RECORDS.values():
        problem, x0, y0 = judge.build(record, bx, jnp)
        _check(problem, x0, y0)


def test_what_is_proven_is_not_refuted():
    """Random expressions: no counterexample to what the rules prove."""
    proven = 0
    for seed in range(60):
        random = np.random.default_rng(seed)
        bounds: dict[str, Any] = {"x_bounds": (-1.0, 2.0), "y_bounds": (0.0, 4.0) if seed % 2 else (-3.0, 3.0)}
        found = analyse(_random_expression(random), 3, 3, **bounds)
        if found.convexity != "proven":
            continue
        proven += 1
        x, points = random.uniform(-1, 2, 3), random.uniform(*bounds["y_bounds"], size=(20, 3))
        (values,) = found.program.evaluate(np.tile(x, (20, 1))[None], points[None], [found.program.result])
        points = points[np.isfinite(values[0])]
        if len(points) > 1:
            assert found.refute_convexity(x, points).counterexample is None, seed
    assert proven > 10


def _random_expression(random: np.random.Generator) -> Callable[[Any, Any], Any]:
    unary: list[Callable] = [jnp.exp, jnp.log, jnp.sqrt, jnp.abs, jnp.tanh, jnp.cosh, jax.nn.relu, jax.nn.sigmoid]
    unary += [jnp.negative, jnp.square, jnp.reciprocal, lambda v: v**3, lambda v: v**1.5, lambda v: xlogy(v, v)]
    binary: list[Callable] = [jnp.add, jnp.subtract, jnp.multiply, jnp.divide, jnp.maximum, jnp.minimum, jnp.logaddexp]
    steps = [
        (unary[random.integers(len(unary))], *random.integers(4 + step, size=1))
        if random.random() < 0.55
        else (binary[random.integers(len(binary))], *random.integers(4 + step, size=2))
        for step in range(random.integers(2, 6))
    ]

    def expression(x: Any, y: Any) -> Any:
        values = [y, x, _H @ y, y + 1.0]
        for function, *operands in steps:
            values.append(function(*(values[i] for i in operands)))
        return jnp.sum(values[-1])

    return expression


def test_properties_are_plain_records():
    found = analyse(_TABLE["toy"][0], 3, 3)
    assert dataclasses.replace(found, convexity="unknown").convexity == "unknown"
    assert "Program" not in repr(found)


def test_large_constants_are_not_taken_for_each_other():
    """Each is known by its identity, which a value that is gone leaves to the next one of its size."""

    def objective(x, y, xp=jnp):
        ramp = xp.arange(100.0)
        parts = [xp.concatenate([xp.sin(ramp + k) * 2.0 + 1.0, ramp[: k + 1]]) for k in range(60)]
        return sum(xp.sum(part * x[0]) for part in parts) + y[0]

    expected = objective([1.5], [2.0], np)
    program = Program(trace(objective, 1, 1))
    (found,) = program.evaluate(np.full((1, 1, 1), 1.5), np.full((1, 1, 1), 2.0), [program.result])
    assert found.ravel() == pytest.approx([expected])
