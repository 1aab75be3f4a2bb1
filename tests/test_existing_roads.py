"""Existing roads: smoothed travellers, the search with them, and what `NetworkDesign.solve` makes of it."""

import dataclasses

import numpy as np
import pytest
import scipy.sparse as sp

import bilevax as bx
from bilevax.problems.network import existing_roads
from bilevax.problems.network.contraction import contracted
from bilevax.problems.network.restriction import whole
from bilevax.problems.network.road_search import box_step, evaluated, search
from bilevax.problems.network.smoothed import SmoothLoss, SmoothRoads, _NormalEquations
from known import present
from test_sparse_direct import roads

BARRIER = 1e-2


@pytest.fixture(scope="module")
def smooth():
    """Return a contracted network with smoothed travellers, and capacities."""
    design = roads(1, 6, 9)
    small = contracted(whole(design))
    return small, SmoothRoads(small, 1.0), small.capacities(design.start())


def settled(travellers: SmoothRoads, x: np.ndarray) -> SmoothLoss:
    """Return the loss at x to all digits: each call ends in a step from where the last one ended."""
    at = travellers.first(x)
    for _ in range(2):
        at = present(travellers.loss(x, BARRIER, at)).at
    return present(travellers.loss(x, BARRIER, at))


def test_the_slope_of_the_smoothed_loss(smooth):
    _, travellers, x = smooth
    here = settled(travellers, x)
    for link in range(len(x)):
        step = 1e-4 * np.eye(len(x))[link]
        above, below = (settled(travellers, x + sign * step) for sign in (1, -1))
        assert here.gradient[link] == pytest.approx((above.value - below.value) / 2e-4, abs=1e-5)


def test_the_second_derivative_of_the_smoothed_loss(smooth):
    _, travellers, x = smooth
    here = settled(travellers, x)
    hessian = travellers.hessian(here)
    for link in range(len(x)):
        step = 1e-4 * np.eye(len(x))[link]
        above, below = (settled(travellers, x + sign * step).gradient for sign in (1, -1))
        np.testing.assert_allclose(hessian[link], (above - below) / 2e-4, atol=1e-4 * np.abs(hessian).max())


def test_without_smoothing_travellers_are_those_of_the_lower_level(smooth):
    small, travellers, x = smooth
    at = travellers.first(x)
    for barrier in 10.0 ** -np.arange(1, 11):
        at = present(travellers.loss(x, barrier, at)).at
    exact = bx.solve_lower_level(small.problem(1e-6), x)
    np.testing.assert_allclose(at.y[travellers.flows :], exact.y["share"], atol=1e-4)


def test_a_step_in_a_box():
    random = np.random.default_rng(0)
    root = random.standard_normal((8, 8))
    hessian, gradient = root @ root.T + 0.1 * np.eye(8), random.standard_normal(8)
    low, high = -random.uniform(0, 0.3, 8), random.uniform(0, 0.3, 8)
    step, value = box_step(gradient, hessian, low, high)
    slope = gradient + hessian @ step
    np.testing.assert_allclose(np.clip(step - slope, low, high), step, atol=1e-3)
    assert value == pytest.approx(gradient @ step + 0.5 * step @ hessian @ step)


def test_the_smoothed_loss_falls_with_the_smoothing(smooth):
    small, _, x = smooth
    values = [point.value for point in search(small, x)]
    assert np.all(np.diff(values) < 1e-6)


@pytest.mark.slow
def test_roads_are_designed_and_certified_from_several_starts():
    design = roads(3)
    one, three = design.solve(), design.solve(starts=3)
    assert one.success, one.message
    assert three.success, three.message
    assert three.value <= one.value + 1e-9
    plain = bx.solve(design.problem(), design.start())
    assert one.value <= plain.value + 1e-6
    assert bx.certify(design.problem(), one.x).value == pytest.approx(one.value, abs=1e-8)


def stopped_after(stages):
    """Return the search, interrupted after so many stages."""

    def interrupted(small, x):
        yield from (point for point, _ in zip(search(small, x), range(stages), strict=False))
        raise KeyboardInterrupt

    return interrupted


@pytest.mark.slow
def test_a_search_that_is_interrupted_early_leaves_its_start(monkeypatch):
    monkeypatch.setattr(existing_roads, "search", stopped_after(1))
    design = roads(3)
    solution, start = design.solve(), bx.certify(design.problem(), design.start())
    assert solution.status is bx.Status.INTERRUPTED
    assert not solution.success
    assert solution.value == pytest.approx(start.value, abs=1e-6)
    small = contracted(whole(design))
    stage = next(search(small, small.capacities(design.start())))
    assert bx.certify(design.problem(), small.links(stage.at.x)).value > start.value + 0.01


@pytest.mark.slow
def test_a_search_that_is_interrupted_late_leaves_its_last_point(monkeypatch):
    monkeypatch.setattr(existing_roads, "search", stopped_after(12))
    design = roads(3)
    far = 3 * design.start()
    solution = design.solve(far)
    assert solution.status is bx.Status.INTERRUPTED
    assert solution.value < bx.certify(design.problem(), far).value - 0.01


def test_a_design_is_evaluated_all_but_exactly():
    design = roads(3)
    small = contracted(whole(design))
    exact = bx.certify(design.problem(), design.start()).value
    x = small.capacities(design.start())
    assert present(evaluated(small, x)).value == pytest.approx(exact, abs=1e-3)
    near = SmoothRoads(small, 1.0)
    rough = present(near.loss(x, BARRIER, near.first(x)))
    assert abs(rough.value - exact) > 0.1
    assert present(evaluated(small, x, rough)).value == pytest.approx(exact, abs=1e-3)


def test_a_time_limit_that_is_over_at_once_leaves_an_answer():
    solution = roads(3).solve(time_limit=1e-3)
    assert solution.status is bx.Status.TIME_LIMIT
    assert solution.stats["time"] < 10


def test_without_roads_to_begin_with_nothing_is_smoothed(monkeypatch):
    design = dataclasses.replace(roads(3), existing=None, detour=1.5)
    monkeypatch.setattr(existing_roads, "search", None)
    assert np.isfinite(design.solve(time_limit=5.0).value)


def test_normal_equations_of_more_rows_than_32_bits_count_squared():
    count = 50_000
    A = sp.csr_matrix(sp.diags([np.ones(count), np.full(count - 1, -0.5)], [0, -1], format="csr"))
    solver = _NormalEquations(A, count).factorise(np.ones(count), np.zeros(0))
    assert solver is not None
    right = np.random.default_rng(0).standard_normal(count)
    np.testing.assert_allclose(A @ (A.T @ solver.solve(right)), right, atol=1e-9)
