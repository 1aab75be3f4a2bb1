import dataclasses
import json
import os
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

import bilevax as bx
from bilevax.certificate.stationarity.least_norm import shortest
from bilevax.model.flat import FlatProblem, equilibrated
from known import (
    RECORDS,
    SMALL,
    TEXTBOOK,
    TOY_MINIMA,
    EnumeratedLowerLevel,
    bordered,
    built,
    certified_best,
    each_record,
    following,
    hinge,
    judge,
    present,
    slopes,
    toy,
    valley,
)

STATIONARY = 1e-7
NOT_STATIONARY = 1e-2


def leaves_close(found, expected, tolerance):
    found, expected = jax.tree.leaves(found), jax.tree.leaves(expected)
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


# --- the problem library


@pytest.mark.slow
@each_record()
def test_best_points_of_the_library(name):
    record, certificate = RECORDS[name], certified_best(name)
    best = record["best"]
    assert certificate.failure is None
    assert certificate.lower_feasible
    assert abs(certificate.value - best["F"]) <= 1e-4 * max(1.0, abs(best["F"]))
    np.testing.assert_allclose(np.ravel(certificate.y), best["y"], atol=1e-3)
    assert certificate.stationarity < 1e-2
    assert max(certificate.lower_stationarity, certificate.lower_complementarity) <= 1e-9
    assert certificate.lower_infeasibility <= 1e-9
    assert certificate.x_infeasibility <= 1e-6
    assert certificate.lower_unique == record["properties"]["lower_solution_unique_at_best"]


@each_record([name for name in RECORDS if RECORDS[name]["properties"]["licq_at_best"] is False])
def test_dependent_rows_are_seen(name):
    assert not certified_best(name).licq


@pytest.mark.slow
@each_record([name for name in RECORDS if RECORDS[name]["properties"]["licq_at_best"] is not False])
def test_multipliers_at_best_points(name):
    record, certificate = RECORDS[name], certified_best(name)
    best = record["best"]
    assert certificate.licq
    kinds = [("ineq", "lam_ineq"), ("eq", "nu_eq")]
    listed = [np.ravel(best[key]) for kind, key in kinds if len(judge.arr(record["lower"][kind]["b"]))]
    assert len(certificate.multipliers) == len(listed)
    for found, expected in zip(certificate.multipliers, listed, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-3 * (1 + np.abs(expected).max(initial=0.0)))
    if best.get("lam_ylo") is not None:
        lower = bx.solve_lower_level(built(name), np.array(best["x"], float)).flat
        of_bounds = lower.multipliers[sum(len(part) for part in listed) :]
        low, high = judge.bounds(record["lower"]["y_bounds"])
        expected = (np.ravel(best["lam_yhi"]) - np.ravel(best["lam_ylo"]))[np.isfinite(low) | np.isfinite(high)]
        np.testing.assert_allclose(of_bounds, expected, atol=1e-3 * (1 + np.abs(expected).max(initial=0.0)))


def infeasible_points(record, count):
    random, best = np.random.default_rng(3), np.array(record["best"]["x"], float)
    low, high = judge.bounds(record["upper"]["x_bounds"])
    found = []
    for _ in range(400):
        x = np.clip(best + random.uniform(-5, 5, record["n"]) * (1 + np.abs(best)), low, high)
        relaxation = judge.judge(record, x)[2]
        if relaxation > 1e-3:
            found.append((x, relaxation))
        if len(found) == count:
            break
    return found


@each_record([name for name in RECORDS if RECORDS[name]["properties"]["lower_infeasible_fraction"] > 0])
def test_infeasible_x_is_called_infeasible(name):
    points = infeasible_points(RECORDS[name], 4)
    assert len(points) == 4
    for x, relaxation in points:
        certificate = bx.certify(built(name), x)
        assert not certificate.lower_feasible
        assert certificate.value == np.inf
        assert certificate.failure is bx.Status.LOWER_INFEASIBLE
        assert certificate.stationarity == np.inf
        assert certificate.hypergradient is None
        assert certificate.lower_infeasibility == pytest.approx(relaxation, rel=1e-6)
        assert not certificate.confirms(1.0)
        assert "INFEASIBLE" in str(certificate)


def finite_difference(phi, x, h=1e-4):
    """Central differences; None where the two sides disagree (a kink within reach) or the border is near."""
    out = np.zeros(len(x))
    for index, unit in enumerate(np.eye(len(x))):
        ahead, here, behind = phi(x + h * unit), phi(x), phi(x - h * unit)
        if not np.isfinite([ahead, behind]).all():
            return None
        right, left = (ahead - here) / h, (here - behind) / h
        # Phi is piecewise quadratic or rational here: on one piece both sides agree to first order in h.
        if abs(right - left) > 1e-2 * (1 + abs(right)):
            return None
        out[index] = (ahead - behind) / (2 * h)
    return out


def natural_size(problem, x, y, gradient):
    """The length of a gradient of Phi in the natural units of f and x."""
    scales = equilibrated(FlatProblem(problem, x, y), x).scales
    return np.linalg.norm(scales.upper * scales.x * gradient)


@pytest.mark.slow
@each_record(SMALL)
def test_random_points_against_finite_differences(name):
    """At random x in X: hypergradient and stationarity as finite differences of an enumerated lower level say."""
    record, random = RECORDS[name], np.random.default_rng(11)
    oracle = EnumeratedLowerLevel(record)
    low, high = judge.bounds(record["upper"]["x_bounds"])
    best = np.array(record["best"]["x"], float)
    inside = [np.where(np.isfinite(side), side, best + off) for side, off in ((low, -5), (high, 5))]
    constraints, limits = judge.arr(record["upper"]["x_linear"]["C"], record["n"]), record["upper"]["x_linear"]["d"]
    compared = 0
    for _ in range(60):
        x = random.uniform(np.maximum(inside[0], -30), np.minimum(inside[1], 60))
        if len(limits) and np.any(constraints @ x > np.ravel(limits) - 1e-3):
            continue
        gradient = finite_difference(oracle.phi, x)
        if gradient is None:
            continue
        certificate = bx.certify(built(name), x)
        np.testing.assert_allclose(np.ravel(certificate.y), present(oracle.solve(x)), atol=1e-8 * (1 + np.abs(x).max()))
        assert certificate.value == pytest.approx(oracle.phi(x), rel=1e-8, abs=1e-8)
        assert certificate.hypergradient is not None
        size = float(np.linalg.norm(gradient))
        np.testing.assert_allclose(certificate.hypergradient, gradient, atol=1e-5 * (1 + size))
        natural = natural_size(built(name), x, certificate.y, gradient)
        assert certificate.stationarity == pytest.approx(natural / (1 + natural), abs=1e-5)
        compared += 1
        if compared == 4:
            break
    assert compared >= 2


@each_record([name for name in SMALL if RECORDS[name]["n"] == 1])
def test_stationarity_says_whether_there_is_descent(name):
    """On a grid of x that contains kinks, borders and ends of X, compare with slopes on both sides."""
    record, oracle = RECORDS[name], EnumeratedLowerLevel(RECORDS[name])
    low, high = (side[0] for side in judge.bounds(record["upper"]["x_bounds"]))
    best, h = record["best"]["x"][0], 1e-5
    grid = {best, *(best + np.array([-1.0, 0.5])), *(side for side in (low, high) if np.isfinite(side))}
    for x in sorted(x for x in grid if low <= x <= high):
        here = oracle.phi(np.array([x]))
        slopes = [(oracle.phi(np.array([x + s * h])) - here) / h for s in (-1, 1) if low <= x + s * h <= high]
        certificate = bx.certify(built(name), np.array([x]))
        if not np.isfinite(here):
            assert not certificate.lower_feasible
        elif min(slopes) < -0.05:
            assert certificate.stationarity > NOT_STATIONARY, (x, slopes)
        elif min(slopes) > -1e-3:
            assert certificate.stationarity < 1e-3, (x, slopes)


# --- textbook problems


@pytest.mark.parametrize("case", TEXTBOOK, ids=lambda case: case.name)
def test_textbook_answers(case):
    certificate = bx.certify(case.problem, case.x, case.y)
    assert certificate.value == pytest.approx(case.value, abs=1e-9)
    assert jax.tree.structure(certificate.y) == jax.tree.structure(jax.tree.map(np.asarray, case.y)) or isinstance(
        case.y, list
    )
    np.testing.assert_allclose(np.hstack(jax.tree.leaves(certificate.y)), np.hstack(jax.tree.leaves(case.y)), atol=1e-9)
    assert present(certificate.y_error) <= 1e-9
    assert certificate.stationarity <= STATIONARY
    assert certificate.licq == case.licq
    assert certificate.strict_complementarity == case.strict
    assert certificate.lower_unique
    assert certificate.failure is None
    assert certificate.confirms(1e-6)
    if case.multipliers is not None:
        leaves_close(certificate.multipliers, case.multipliers, 1e-9)


def test_hypergradient_keeps_the_structure_of_x():
    case = next(case for case in TEXTBOOK if case.name == "pytrees")
    certificate = bx.certify(case.problem, {"capacity": 6.0, "toll": np.array([1.0, 0.25])}, case.y)
    hypergradient = present(certificate.hypergradient)
    assert set(hypergradient) == {"capacity", "toll"}
    assert hypergradient["capacity"] == pytest.approx(2.0)
    np.testing.assert_allclose(hypergradient["toll"], [2.0, -1.0], atol=1e-9)


@pytest.mark.parametrize("minimum", TOY_MINIMA)
def test_toy_minima_are_stationary(minimum):
    problem = toy()
    assert bx.certify(problem, minimum).stationarity < 1e-5
    aside = bx.certify(problem, min(minimum + 0.05, 3.0))
    assert aside.stationarity > 1e-4
    assert present(aside.descent).value < aside.value


# --- kinks


@pytest.mark.parametrize(
    ("data", "stationary"),
    [
        pytest.param(slopes(-1.0, 3.0), True, id="minimum"),
        pytest.param(slopes(1.0, -3.0), False, id="maximum"),
        pytest.param(slopes(1.0, -3.0, 1.0), False, id="maximum with curvature"),
        pytest.param(slopes(1.0, 1.0), False, id="slopes 1 and 2"),
        pytest.param(slopes(0.0, 1.0), True, id="flat on one side, rising on the other"),
        pytest.param(slopes(0.0, -1.0), False, id="flat on one side, falling on the other"),
        pytest.param(slopes(0.0, 0.0, 1.0), True, id="smooth through the kink"),
        pytest.param(slopes(1e-3, -3e-3), False, id="shallow maximum"),  # shallow is a matter of units
    ],
)
@pytest.mark.parametrize("shift", [0.0, 1e-10, -1e-10])
def test_kink_in_one_variable(data, stationary, shift):
    certificate = bx.certify(hinge(data), shift)
    assert not certificate.strict_complementarity
    if stationary:
        assert certificate.stationarity <= STATIONARY
        assert certificate.descent is None
    else:
        assert certificate.stationarity > NOT_STATIONARY
        assert present(certificate.descent).value < certificate.value


def absolutes(weights: Any, x: Any = 0.0):
    """The data of ``weights . |x| + x . x`` over y = max(x, 0): |x| = 2 y - x."""
    return slopes(np.array(x) - np.array(weights), 2 * np.array(weights))


@pytest.mark.parametrize(
    ("data", "stationary"),
    [
        pytest.param(absolutes([1.0, 1.0]), True, id="|a| + |b|"),
        pytest.param(absolutes([-1.0, -1.0]), False, id="-|a| - |b|"),
        pytest.param(absolutes([1.0, -1.0]), False, id="|a| - |b|: a saddle"),
        pytest.param(absolutes([1.0, 0.0]), True, id="|a|"),
        pytest.param(absolutes([1.0, 0.0], [0.0, 1.0]), False, id="|a| + b"),
        pytest.param(absolutes([1.0, 0.5], [0.0, 0.4]), True, id="|a| + |b|/2 + 0.4 b"),
        pytest.param(absolutes([1.0, 0.5], [0.0, 0.6]), False, id="|a| + |b|/2 + 0.6 b"),
        pytest.param(absolutes([1.0, -1e-2]), None, id="|a| - |b|/100: a shallow saddle"),
    ],
)
def test_kink_in_two_variables(data, stationary):
    certificate = bx.certify(valley(data), np.zeros(2))
    assert certificate.hypergradient is None
    if stationary is None:
        assert certificate.stationarity > 2e-3
    elif stationary:
        assert certificate.stationarity <= STATIONARY
    else:
        assert certificate.stationarity > NOT_STATIONARY


def test_hypergradient_across_a_row_without_effect():
    """The second y is weakly active everywhere, but does not depend on x."""
    problem = bx.BilevelProblem(
        upper=lambda x, y: 3 * y[0] + y[1] - x[0],
        lower=lambda x, y: (y[0] - x[0]) ** 2 + y[1] ** 2,
        y_set=bx.NonNegative(),
        y_like=np.zeros(2),
    )
    certificate = bx.certify(problem, [2.0])
    assert not certificate.strict_complementarity
    np.testing.assert_allclose(present(certificate.hypergradient), [2.0], atol=1e-9)
    assert bx.certify(problem, [0.0]).hypergradient is None


def test_one_kink_shared_by_many_rows():
    """Twelve rows that all become active at x = 0: more pieces than anybody lists."""
    slopes = np.linspace(1.0, 2.0, 12)
    make = lambda sign: bx.BilevelProblem(
        upper=lambda x, y: sign * jnp.sum(2 * y - slopes * x),
        lower=lambda x, y: jnp.sum((y - slopes * x) ** 2),
        y_set=bx.NonNegative(),
        y_like=np.zeros(12),
    )
    assert bx.certify(make(1.0), 0.0).stationarity <= STATIONARY
    assert bx.certify(make(-1.0), 0.0).stationarity > NOT_STATIONARY


def test_one_kink_where_rows_gain_and_lose():
    """Strong stationarity asks of each row what only their sum has to give: its branches see the sum."""
    weights = np.tile([3.0, 3.0, 3.0, -1.0], 3)
    make = lambda slope: bx.BilevelProblem(
        upper=lambda x, y: jnp.sum(weights * y) + slope * x,
        lower=lambda x, y: jnp.sum((y - x) ** 2),
        y_set=bx.NonNegative(),
        y_like=np.zeros(12),
    )
    certificate = bx.certify(make(-3.0), 0.0)  # slopes -3 and 21
    assert certificate.stationarity <= STATIONARY
    assert "branches" in certificate.stationarity_test
    assert bx.certify(make(1.0), 0.0).stationarity > NOT_STATIONARY  # slopes 1 and 25
    assert bx.certify(make(-25.0), 0.0).stationarity > NOT_STATIONARY  # slopes -25 and -1


# --- margins


@pytest.mark.parametrize("distance", [1e-4, -1e-4, 5e-4, -5e-4])
@pytest.mark.parametrize("problem", [hinge, valley], ids=["rows", "Y"])
def test_beside_a_kink_stationarity_is_at_least_the_margin(problem, distance):
    minimum, maximum = (-1.0, 3.0), (1.0, -3.0)
    x = np.full(2, distance) if problem is valley else distance
    data = lambda pair: slopes([pair[0]] * 2, [pair[1]] * 2) if problem is valley else slopes(*pair)
    certificate = bx.certify(problem(data(minimum)), x)
    assert abs(distance) / 2 <= certificate.radius <= 1e-3
    assert certificate.stationarity <= STATIONARY
    assert "within 0.001" in certificate.stationarity_test or "within 0.0001" in certificate.stationarity_test
    assert certificate.confirms(1e-3)
    assert not certificate.confirms(1e-6)
    assert bx.certify(problem(data(maximum)), x).stationarity > NOT_STATIONARY


def test_far_from_a_kink_no_margin_helps():
    assert bx.certify(hinge(slopes(-1.0, 3.0)), 0.02).stationarity > 0.1


@pytest.mark.parametrize("distance", [1e-4, 5e-4])
def test_beside_an_end_of_x_set(distance):
    for slope, stationary in ((1.0, True), (-1.0, False)):
        certificate = bx.certify(following(slopes(slope), bx.Box(0.0, 2.0), 0.0), distance)
        value = max(certificate.stationarity, certificate.radius)
        assert 0.49 * distance <= value <= 1e-3 if stationary else value > 0.1


# --- a network: merely convex, dependent rows, multipliers without bound

LEAST_SHARE = 1e-6


def corridor(gain):
    """Links 12, 23, 13; travellers 1-2, 1-3, 2-3. y: their shares, then 1-2 on 12, 1-3 on 12, 23 and 13, 2-3 on 23."""
    time, outside = jnp.array([1.0, 1.0, 2.0, 10.0, 2.0]), 3.0
    balance = np.array(
        [[-1.0, 0, 0, 1, 0, 0, 0, 0], [0, -1, 0, 0, 1, 0, 1, 0], [0, 0, 0, 0, 1, -1, 0, 0], [0, 0, -1, 0, 0, 0, 0, 1]]
    )
    flows = np.array([[0.0, 0, 0, 1, 1, 0, 0, 0], [0, 0, 0, 0, 0, 1, 0, 1], [0, 0, 0, 0, 0, 0, 1, 0]])
    entropy = lambda s: s * (jnp.log(s) - 1) + (1 - s) * (jnp.log(1 - s) - 1)
    return bx.BilevelProblem(
        upper=lambda x, y, gain: jnp.array([1.0, 3.0, 10.0]) @ x - gain @ y[:3],
        lower=lambda x, y, gain: time @ y[3:] + jnp.sum(entropy(y[:3]) - outside * y[:3]),
        coupling=[
            bx.LinearCoupling(A=balance, B=np.zeros((4, 3)), lower=0.0, upper=0.0),
            bx.LinearCoupling(A=flows, B=-np.eye(3), upper=0.0),
        ],
        x_set=bx.NonNegative(),
        y_set=bx.Box(np.r_[np.full(3, LEAST_SHARE), np.zeros(5)], np.r_[np.full(3, 1 - LEAST_SHARE), np.ones(5)]),
        data=np.array(gain, float),
    )


NEVER_WORTH_IT = (2.0, 6.0, 1.0)  # whoever first uses link 2-3 when it grows pays less than it costs
BUILT = 1 / (1 + np.exp(-2.0)) + LEAST_SHARE


def test_network_optimum_on_the_border_of_feasibility():
    certificate = bx.certify(corridor(NEVER_WORTH_IT), [BUILT, 2 * LEAST_SHARE, 0.0])
    assert not certificate.licq
    assert certificate.value == pytest.approx(-BUILT + LEAST_SHARE, abs=1e-5)
    assert certificate.stationarity <= STATIONARY
    assert certificate.confirms(1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gain", "x"),
    [
        pytest.param(NEVER_WORTH_IT, [BUILT + 0.02, 2e-6, 0.0], id="too wide"),
        pytest.param(NEVER_WORTH_IT, [BUILT - 0.05, 2e-6, 0.0], id="too narrow"),
        pytest.param(NEVER_WORTH_IT, [BUILT, 0.1, 0.0], id="a link too many"),
        pytest.param(NEVER_WORTH_IT, [2e-6, 2e-6, 0.0], id="nothing built"),
        pytest.param((2.0, 6.0, 5.0), [BUILT, 2e-6, 0.0], id="descent into the feasible set"),
    ],
)
def test_network_points_that_are_not_stationary(gain, x):
    certificate = bx.certify(corridor(gain), x)
    assert certificate.lower_feasible
    assert certificate.stationarity > NOT_STATIONARY


def test_network_design_to_four_digits():
    """All links 1e-4 too wide: the shares near their bound are then far from it in the logarithm."""
    certificate = bx.certify(corridor(NEVER_WORTH_IT), np.array([BUILT, 2e-6, 0.0]) + 1e-4)
    assert 5e-5 <= max(certificate.stationarity, certificate.radius) <= 1e-3


# --- the border of feasibility


@pytest.mark.parametrize(
    ("data", "stationary"),
    [
        pytest.param(slopes(1.0), True, id="minimum at the border"),
        pytest.param(slopes(-1.0), False, id="reversed"),
        pytest.param(slopes(0.0, 1.0), True, id="minimum through y"),
        pytest.param(slopes(0.0, -1.0), False, id="reversed through y"),
        pytest.param(slopes(-3.0, 1.0), False, id="falls inward"),
        pytest.param(slopes(3.0, -1.0), True, id="rises inward"),
    ],
)
def test_border_of_feasibility(data, stationary):
    certificate = bx.certify(bordered(data), [1.0])
    assert certificate.lower_feasible
    assert certificate.hypergradient is None
    if stationary:
        assert certificate.stationarity <= STATIONARY
    else:
        assert certificate.stationarity > NOT_STATIONARY
    beyond = bx.certify(bordered(data), [0.9])
    assert not beyond.lower_feasible
    assert beyond.lower_infeasibility == pytest.approx(0.05, rel=1e-6)


@pytest.mark.parametrize(("slope", "stationary"), [(-1.0, True), (1.0, False)])
def test_border_of_feasibility_from_above(slope, stationary):
    """x <= y <= 1: feasible for x <= 1 only."""
    problem = bx.BilevelProblem(
        upper=lambda x, y, slope: slope * jnp.sum(x),
        lower=lambda x, y, slope: jnp.sum(y**2),
        coupling=bx.LinearCoupling(A=[[1.0]], B=[[-1.0]], lower=0.0),
        y_set=bx.Box([-5.0], [1.0]),
        data=slope,
    )
    value = bx.certify(problem, [1.0]).stationarity
    assert value <= STATIONARY if stationary else value > NOT_STATIONARY


@pytest.mark.parametrize(
    ("x", "slope", "stationary"), [(0.0, 1.0, True), (0.0, -1.0, False), (2.0, -1.0, True), (2.0, 1.0, False)]
)
def test_ends_of_x_set(x, slope, stationary):
    value = bx.certify(following(slopes(slope), bx.Box(0.0, 2.0), 0.0), x).stationarity
    assert value <= STATIONARY if stationary else value > NOT_STATIONARY


@pytest.mark.parametrize(
    ("x_set", "x", "outward", "tangent"),
    [
        (bx.Ball(2.0), [1.2, 1.6], [0.6, 0.8], [-0.8, 0.6]),
        (bx.Simplex(), [0.25, 0.75], [1.0, 1.0], [1.0, -1.0]),
        (bx.Polyhedron([[1.0, 2.0]], upper=4.0), [2.0, 1.0], [1.0, 2.0], [2.0, -1.0]),
    ],
)
def test_normals_of_each_x_set(x_set, x, outward, tangent):
    stationarity = lambda slope: bx.certify(following(slopes(slope), x_set, np.zeros(2)), np.array(x)).stationarity
    assert stationarity(-np.array(outward)) <= STATIONARY
    assert stationarity(tangent) > 0.1
    if not isinstance(x_set, bx.Simplex):  # there the normal acts in both directions
        assert stationarity(outward) > 0.1


def test_normals_of_a_product():
    def stationarity(share, free):
        problem = bx.BilevelProblem(
            share_and_free,
            lambda x, y, data: (y - x["free"]) ** 2,
            x_set=bx.Product({"share": bx.Box(0.0, 1.0), "free": bx.Free()}),
            y_like=0.0,
            data=(share, free),
        )
        return bx.certify(problem, {"share": 1.0, "free": 0.0}).stationarity

    assert stationarity(-1.0, 0.0) <= STATIONARY
    assert stationarity(1.0, 0.0) > NOT_STATIONARY
    assert stationarity(-1.0, 0.5) > NOT_STATIONARY


def share_and_free(x, y, data):
    return data[0] * x["share"] + data[1] * x["free"]


# --- other lower levels


def test_merely_convex_lower_level_is_not_called_unique():
    problem = bx.BilevelProblem(
        upper=lambda x, y: jnp.sum((x - 1) ** 2) + y[0] ** 2,
        lower=lambda x, y: (y[0] - x[0]) ** 2,
        y_set=bx.Box([-5.0, 0.0], [5.0, 1.0]),
    )
    certificate = bx.certify(problem, [0.5])
    assert not certificate.lower_unique
    assert certificate.failure is None
    assert certificate.value == pytest.approx(0.5)
    assert certificate.stationarity <= STATIONARY
    assert bx.certify(problem, [0.75]).stationarity > NOT_STATIONARY
    assert "not proven" in str(certificate)


def test_linear_lower_level_with_a_unique_vertex():
    problem = bx.BilevelProblem(
        upper=lambda x, y: jnp.sum((y - 2) ** 2),
        lower=lambda x, y: -jnp.sum(y),
        coupling=bx.LinearCoupling(A=np.eye(2), B=-np.ones((2, 1)), upper=0.0),
    )
    certificate = bx.certify(problem, [2.0])
    np.testing.assert_allclose(certificate.y, [2.0, 2.0], atol=1e-9)
    np.testing.assert_allclose(certificate.multipliers, [1.0, 1.0], atol=1e-9)
    assert certificate.lower_unique
    assert certificate.stationarity <= STATIONARY
    assert bx.certify(problem, [1.0]).stationarity > NOT_STATIONARY


@pytest.mark.parametrize(
    ("lower", "failure"),
    [
        (lambda x, y: jnp.sum(y), bx.Status.LOWER_UNBOUNDED),
        (lambda x, y: y[0] ** 2 - y[1], bx.Status.LOWER_UNBOUNDED),
        (lambda x, y: -jnp.sum(y**2), bx.Status.LOWER_NOT_CONVEX),
        (lambda x, y: y[0] ** 2 + 3 * y[0] * y[1] + y[1] ** 2, bx.Status.LOWER_NOT_CONVEX),
    ],
)
def test_lower_levels_without_a_minimiser(lower, failure):
    problem = bx.BilevelProblem(lambda x, y: jnp.sum(x**2), lower, y_like=np.zeros(2))
    certificate = bx.certify(problem, [1.0])
    assert certificate.failure is failure
    assert certificate.lower_feasible
    assert np.isnan(certificate.value)
    assert certificate.stationarity == np.inf
    assert not certificate.confirms(1.0)
    assert failure.value in str(certificate)


def test_general_smooth_lower_level():
    """g = exp(y) - x y over y <= 1: y = min(log x, 1)."""
    problem = bx.BilevelProblem(
        upper=lambda x, y: (x - 4) ** 2 + y**2,
        lower=lambda x, y: jnp.exp(y) - x * y,
        coupling=bx.LinearCoupling(A=1.0, upper=1.0),
    )
    inside, outside = bx.certify(problem, 2.0), bx.certify(problem, 5.0)
    assert inside.y == pytest.approx(np.log(2.0), abs=1e-10)
    assert inside.hypergradient == pytest.approx(-4.0 + 2 * np.log(2.0) / 2.0, abs=1e-8)
    assert inside.lower_stationarity <= 1e-9
    assert outside.y == pytest.approx(1.0, abs=1e-10)
    assert outside.multipliers == pytest.approx([5.0 - np.e], abs=1e-8)
    assert outside.hypergradient == pytest.approx(2.0, abs=1e-8)


@pytest.mark.parametrize(
    ("y_set", "nearest"),
    [
        (bx.Ball(1.0), lambda x: x / np.linalg.norm(x)),
        (bx.Simplex(2.0), lambda x: x - (x.sum() - 2.0) / 3),
        (bx.Box(-0.5, 0.5), lambda x: np.clip(x, -0.5, 0.5)),
        (bx.Polyhedron([[1.0, 1.0, 1.0]], upper=1.0), lambda x: x - (x.sum() - 1.0) / 3),
    ],
)
def test_hypergradient_through_each_y_set(y_set, nearest):
    """y*(x) is a projection that is known in closed form around this x."""
    target, x, h = np.array([0.3, -0.2, 0.9]), np.array([1.0, 0.8, 1.1]), 1e-6
    problem = bx.BilevelProblem(
        upper=lambda x, y: jnp.sum((y - target) ** 2) + 0.1 * jnp.sum(x**2),
        lower=lambda x, y: 0.5 * jnp.sum((y - x) ** 2),
        y_set=y_set,
        y_like=np.zeros(3),
    )
    phi = lambda x: np.sum((nearest(x) - target) ** 2) + 0.1 * np.sum(x**2)
    expected = [(phi(x + h * unit) - phi(x - h * unit)) / (2 * h) for unit in np.eye(3)]
    certificate = bx.certify(problem, x)
    np.testing.assert_allclose(certificate.y, nearest(x), atol=1e-9)
    np.testing.assert_allclose(present(certificate.hypergradient), expected, atol=1e-7)
    assert certificate.stationarity > NOT_STATIONARY
    descent = present(certificate.descent)
    assert descent.value < certificate.value
    assert descent.value == pytest.approx(phi(descent.x), abs=1e-9)


# --- fields


@pytest.mark.parametrize("delta", [0.5, 0.1, 1e-3])
def test_penalty_gap(delta):
    """g = (y - x)^2 / 2, f = y: y_delta = x - delta, so Phi - Phi_delta = delta / 2."""
    problem = bx.BilevelProblem(lambda x, y: y + x**2, lambda x, y: 0.5 * (y - x) ** 2, y_like=0.0)
    certificate = bx.certify(problem, 3.0, delta=delta)
    assert certificate.penalty_gap == pytest.approx(delta / 2, rel=1e-6)
    assert certificate.delta == delta
    assert bx.certify(problem, 3.0).penalty_gap is None


def test_penalty_gap_where_the_penalised_problem_is_not_convex():
    problem = bx.BilevelProblem(lambda x, y: -(y**2), lambda x, y: 0.5 * (y - x) ** 2, y_like=0.0)
    assert bx.certify(problem, 3.0, delta=1.0).penalty_gap is None
    assert present(bx.certify(problem, 3.0, delta=0.1).penalty_gap) > 0


def test_y_error_is_the_distance_of_the_given_y():
    problem = toy()
    assert bx.certify(problem, 0.7).y_error is None
    certificate = bx.certify(problem, 0.7, 0.2)
    assert certificate.y_error == pytest.approx(0.5, abs=1e-9)
    assert certificate.y == pytest.approx(0.7, abs=1e-9)
    assert certificate.value == bx.certify(problem, 0.7).value or certificate.value == pytest.approx(
        bx.certify(problem, 0.7).value, rel=1e-12
    )


def test_x_outside_its_set_is_reported():
    certificate = bx.certify(toy(), 3.5)
    assert 0.05 < certificate.x_infeasibility < 0.2
    assert not certificate.confirms(1.0)


def test_certificate_prints():
    text = str(bx.certify(toy(), 0.7, delta=0.1))
    for word in ("Phi(x)", "stationarity", "LICQ", "hypergradient", "penalty gap"):
        assert word in text


# --- precision and JAX's settings


def same(a, b):
    for field in dataclasses.fields(a):
        left, right = getattr(a, field.name), getattr(b, field.name)
        if isinstance(left, str | bool | bx.Status) or left is None:
            assert left == right, field.name
        else:
            for p, q in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
                np.testing.assert_array_equal(p, q, err_msg=field.name)


@pytest.mark.parametrize("x", [2, np.int32(2), np.float32(2.0), jnp.float32(2.0), np.array(2), 2.0])
def test_integers_and_float32_keep_their_values(x):
    problem = toy()
    same(bx.certify(problem, x), bx.certify(problem, 2.0))


def test_data_and_matrices_in_float32_and_integers():
    def make(kind):
        return bx.BilevelProblem(
            upper=lambda x, y, data: jnp.sum((y - data["target"]) ** 2) + jnp.sum(x**2),
            lower=lambda x, y, data: jnp.sum((y - data["target"] * x) ** 2),
            coupling=bx.LinearCoupling(A=kind([[1, 2], [0, 3]]), B=kind([[1], [2]]), upper=kind([4, 5])),
            x_set=bx.Box(kind([-3]), kind([3])),
            data={"target": kind([2, 5])},
        )

    wanted = bx.certify(make(lambda value: np.array(value, np.float64)), [1.0])
    for dtype in (np.int64, np.int8, np.float32, np.float16):
        found = bx.certify(make(lambda value, dtype=dtype: np.array(value, dtype)), [1])
        assert found.value == pytest.approx(wanted.value, rel=1e-12)
        np.testing.assert_allclose(found.y, wanted.y, rtol=1e-12)
        np.testing.assert_allclose(present(found.hypergradient), present(wanted.hypergradient), rtol=1e-9)


def test_global_precision_does_not_matter():
    problem = toy()
    assert not jax.config.read("jax_enable_x64")
    outside = bx.certify(problem, 0.7, delta=0.1)
    with jax.enable_x64(True):
        same(outside, bx.certify(problem, 0.7, delta=0.1))
        same(outside, bx.certify(toy(), 0.7, delta=0.1))
    assert outside.lower_stationarity <= 1e-12


SETTINGS = """
import json, jax
before = dict(jax.config.values)
import jax.numpy as jnp, bilevax as bx
problem = bx.BilevelProblem(lambda x, y: jnp.exp(-y) + x**2, lambda x, y: (y - 2 * x) ** 2,
                            bx.LinearCoupling(A=1.0, B=-1.0, upper=0.0), x_set=bx.Box(0.0, 3.0))
certificate = bx.certify(problem, 0.7, delta=0.1)
solution = bx.solve(problem, 0.7, solver=bx.SFLCB(), max_steps=200)
assert jnp.ones(2).dtype == jnp.float64
print(json.dumps([before == dict(jax.config.values), certificate.value, certificate.stationarity, float(solution.x)]))
"""


@pytest.mark.slow
def test_settings_in_a_fresh_process_with_double_precision():
    compiling = {name: value for name, value in os.environ.items() if name.startswith(("XLA_", "JAX_", "OPENBLAS_"))}
    environment = compiling | {"JAX_ENABLE_X64": "1", "PATH": "", "JAX_PLATFORMS": "cpu"}
    out = subprocess.run([sys.executable, "-c", SETTINGS], env=environment, capture_output=True, text=True, check=True)
    untouched, value, stationarity, x = json.loads(out.stdout)
    assert untouched
    namespace = {}
    exec(SETTINGS.replace("jnp.float64", "jnp.float32").replace("print", "answer = "), namespace)
    assert json.loads(namespace["answer"])[1:] == [value, stationarity, x]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cost", "value", "least", "stationary"),
    [
        ((0.4, 0.6), -1.0, -np.inf, True),  # the price of y is worth both links together
        ((0.4, 0.7), -1.0, -np.inf, False),  # one of them is too wide
        ((-0.1, 1.1), -1.0, -np.inf, False),  # one of them pays on its own
        ((0.1, 0.2), 1.0, 1.0, True),  # more y would hurt, and less cannot be
        ((-0.1, 0.2), 1.0, 1.0, False),  # one of them may open: y does not follow
        ((0.1, 0.2), -1.0, 1.0, False),  # both may open together
    ],
)
@pytest.mark.parametrize("copies", [1, 3])
def test_rows_of_which_either_holds_y_back(cost, value, least, stationary, copies):
    # y = min(x_0, x_1) as long as that is below 3: at x_0 = x_1 either row can carry the force, and either can open.
    pairs = sp.kron(sp.eye(copies), np.ones((2, 1)))
    problem = bx.BilevelProblem(
        lambda x, y: jnp.tile(jnp.array(cost), copies) @ x + value * jnp.sum(y),
        lambda x, y: 0.5 * jnp.sum((y - 3) ** 2),
        bx.LinearCoupling(A=pairs, B=-sp.eye(2 * copies), upper=0.0),
        x_set=bx.Box(least, np.inf),
    )
    certificate = bx.certify(problem, np.ones(2 * copies))
    assert (certificate.stationarity <= 1e-6) == stationary, certificate


@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix])
def test_shortest_solutions_of_equations(form):
    random = np.random.default_rng(5)
    matrix, right = random.standard_normal((8, 12)), random.standard_normal(8)
    leading, others = matrix[:, :7], matrix[:, 7:]
    across = np.linalg.svd(others)[0][:, 5:]  # what the unknowns that cost nothing cannot do
    least = np.linalg.norm(np.linalg.lstsq(across.T @ leading, across.T @ right)[0])
    assert shortest(7, form(matrix), right) == pytest.approx(least, rel=1e-8)
    contradiction = np.vstack([matrix, matrix[:1]])
    assert shortest(7, form(contradiction), np.append(right, right[0] + 1)) == np.inf


@pytest.mark.parametrize("form", [sp.csr_matrix.toarray, sp.csr_matrix])
def test_shortest_solutions_see_a_misfit_that_a_conic_solver_takes_for_rounding(form):
    random = np.random.default_rng(1)
    rows, weight = sp.random(40, 30, 0.2, random_state=1, format="csr"), 1e-3
    right = rows @ random.standard_normal(30) + 1e-7 * random.standard_normal(40)
    matrix = sp.csr_matrix(sp.hstack([weight * sp.eye(40), rows]))
    missing = right - rows @ np.linalg.lstsq(rows.toarray(), right)[0]
    assert shortest(40, form(matrix), right) == pytest.approx(np.linalg.norm(missing) / weight, rel=1e-6)


@pytest.mark.slow
def test_points_beside_kinks_of_many_rows_are_near_them():
    random = np.random.default_rng(10008)
    n_x, n_y, n_rows = 10, 30, 45
    curvature = random.standard_normal((n_y, n_y))
    data = {
        "H": curvature @ curvature.T / n_y + 0.1 * np.eye(n_y),
        "C": random.standard_normal((n_y, n_x)),
        "goal": random.standard_normal(n_y),
    }
    problem = bx.BilevelProblem(
        upper=lambda x, y, data: 0.5 * jnp.sum((y - data["goal"]) ** 2) + 0.05 * x @ x,
        lower=lambda x, y, data: 0.5 * y @ data["H"] @ y + y @ data["C"] @ x,
        coupling=bx.LinearCoupling(
            A=random.standard_normal((n_rows, n_y)),
            B=0.5 * random.standard_normal((n_rows, n_x)),
            upper=random.uniform(0.0, 0.2, n_rows),
        ),
        data=data,
    )
    solution = bx.solve(problem, random.standard_normal(n_x))
    assert solution.success
    beside = bx.certify(problem, solution.x + 1e-8 * random.standard_normal(n_x))
    assert beside.stationarity <= 1e-6
    assert beside.radius <= 1e-6
