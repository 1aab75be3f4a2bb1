"""What is wrong with the input is said before the work, and what goes wrong on the way is never called a success.

Beside this: wrong couplings, sets, operators, networks and data sets are refused in the tests of their own files.
"""

import math
import re
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

import bilevax as bx
from bilevax import datasets
from bilevax.problems import NetworkDesign
from known import toy
from test_networks import NET, TRIPS, written

FIRST_ORDER = bx.Default(variant="first-order")
SOLVERS = {"SFLCB": bx.SFLCB(), "default": bx.Default(), "first-order": FIRST_ORDER}


def far(x, y):
    return jnp.sum((x - 1) ** 2) + jnp.sum(y**2)


def near(x, y):
    return jnp.sum((y - jnp.sum(x)) ** 2)


# --- numbers that are none


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda bad: bx.BilevelProblem(far, near, data={"a": np.array([1.0, bad])}), "data: expected numbers, got NaN"),
        (lambda bad: bx.LinearCoupling([[bad]], upper=0.0), "A: expected finite entries, got NaN"),
        (lambda bad: bx.LinearCoupling(sp.csr_matrix([[bad]]), upper=0.0), "A: expected finite entries, got NaN"),
        (lambda bad: bx.LinearCoupling([[1.0]], [[bad]], upper=0.0), "B: expected finite entries, got NaN"),
        (lambda bad: bx.LinearCoupling([[1.0]], upper=bad), r"upper: expected numbers \(or infinities\), got NaN"),
        (lambda bad: bx.Box(bad, 1.0), r"expected numbers \(or infinities\) for lower, got NaN"),
        (lambda bad: bx.solve(toy(), bad), "x0: expected finite numbers, got NaN"),
        (lambda bad: bx.solve(toy(), 0.7, y0=bad), "y0: expected finite numbers, got NaN"),
        (lambda bad: bx.certify(toy(), bad), "x0: expected finite numbers, got NaN"),
        (lambda bad: bx.run(toy(), jnp.asarray(bad), solver=bx.SFLCB()), "x0: expected finite numbers, got NaN"),
    ],
)
def test_nan_in_the_input_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make(np.nan)


def halfway(x, y):
    """Defined for x >= 0.6; wants to go to 0.2."""
    return jnp.sum((x - 0.2) ** 2 + 0 * y + 0 * jnp.sqrt(x - 0.6))


def halfway_lower(x, y):
    return jnp.sum((y - x) ** 2 + 0 * y * jnp.sqrt(x - 0.6))


@pytest.mark.slow
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(("upper", "lower"), [(halfway, near), (lambda x, y: (x - 0.2) ** 2 + 0 * y, halfway_lower)])
def test_nan_on_the_way_is_no_success(solver, upper, lower):
    # Sweeps that meet no number are made in vain; by 20 steps they are at the border.
    limit: dict[str, Any] = {"max_steps": 20} if solver == "first-order" else {}
    solution = bx.solve(bx.BilevelProblem(upper, lower, y_like=0.0), 1.0, solver=SOLVERS[solver], **limit)
    assert not solution.success
    assert solution.x >= 0.6  # a point where both objectives are numbers
    assert np.isfinite(solution.value)
    assert solution.value <= 0.64 + 1e-9
    assert np.isfinite(solution.certificate.stationarity)


@pytest.mark.slow
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("level", ["upper", "lower"])
def test_nan_from_the_start_on_is_told(solver, level):
    objectives: dict[str, Any] = {"upper": lambda x, y: x**2, "lower": lambda x, y: (y - x) ** 2}
    objectives[level] = lambda x, y, good=objectives[level]: good(x, y) * jnp.nan
    solution = bx.solve(bx.BilevelProblem(**objectives, y_like=0.0), 0.7, solver=SOLVERS[solver])
    assert solution.status is bx.Status.NOT_A_NUMBER
    assert not solution.success
    assert "NaN" in solution.message


def test_an_infinite_start_is_told():
    problem = bx.BilevelProblem(lambda x, y: y - jnp.log(x), lambda x, y: (y - x) ** 2, x_set=bx.Box(0.0, 10.0))
    solution = bx.solve(problem, 0.0)
    assert solution.status is bx.Status.NOT_A_NUMBER
    assert "start elsewhere" in solution.message
    assert bx.solve(problem, 0.5).success


# --- shapes


BOTH = bx.LinearCoupling(np.eye(2), np.eye(2), upper=1.0)


@pytest.mark.parametrize(
    ("problem", "settings", "message"),
    [
        (lambda: (far, near, BOTH), {"x0": np.zeros(3)}, r"B has 2 columns, but x, an array of shape \(3,\)"),
        (lambda: (far, near, BOTH), {"x0": np.zeros(2), "y0": np.zeros(3)}, "A has 2 columns, but y"),
        (
            lambda: (far, near, BOTH, bx.Box(np.zeros(3), 1.0)),
            {"x0": np.zeros(2)},
            "does not broadcast to the variable",
        ),
        (
            lambda: (lambda x, y: x, near, BOTH),
            {"x0": np.zeros(2)},
            "upper: expected an objective that returns a scalar",
        ),
        (
            lambda: (far, lambda x, y: y, BOTH),
            {"x0": np.zeros(2)},
            "lower: expected an objective that returns a scalar",
        ),
        (lambda: (far, lambda x, y: x @ y[:1], BOTH), {"x0": np.zeros(2)}, "lower: the objective failed when called"),
        (lambda: (far, near, bx.LinearCoupling(np.eye(2), np.ones((3, 2)))), {}, "the same number of rows"),
        (lambda: (far, near, bx.LinearCoupling(np.eye(2), upper=np.ones(3))), {}, "expected a number or 2 numbers"),
        (lambda: (far, near), {"x0": np.zeros(0), "y0": np.zeros(2)}, "x0: expected at least one number"),
        (lambda: (far, near), {"x0": None, "y0": np.zeros(2)}, "x0: expected at least one number"),
        (lambda: (far, near), {"x0": "three", "y0": np.zeros(2)}, "x0: expected numbers, got str"),
        (lambda: (far, near), {"x0": np.zeros(2), "y0": np.zeros(0)}, "y: expected at least one number"),
        (lambda: (3.0, near), {}, "upper: expected a function"),
    ],
)
def test_wrong_shapes_and_empty_problems_are_refused(problem, settings, message):
    with pytest.raises(ValueError, match=message):
        bx.solve(bx.BilevelProblem(*problem()), **settings)


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["default", "first-order"])
@pytest.mark.parametrize("rows", [None, (), bx.LinearCoupling(np.zeros((0, 2)))], ids=["none", "empty", "zero rows"])
def test_a_problem_without_rows_is_one(solver, rows):
    problem = bx.BilevelProblem(far, near, rows, y_like=np.zeros(2))
    solution = bx.solve(problem, np.zeros(2), solver=SOLVERS[solver])
    assert solution.success, solution.message
    np.testing.assert_allclose(solution.x, 0.2, atol=1e-5)  # (x - 1) + 4 x = 0


# --- arguments


@pytest.mark.slow
@pytest.mark.parametrize("solver", SOLVERS)
def test_a_start_outside_x_is_projected_and_told(solver):
    with pytest.warns(UserWarning, match=r"x0: expected a point of X, got one .*outside by 0\.33 .*projection") as told:
        outside = bx.solve(toy(), 5.0, solver=SOLVERS[solver], max_steps=50)
    assert told[0].filename == __file__  # where the user called
    inside = bx.solve(toy(), 3.0, solver=SOLVERS[solver], max_steps=50)
    np.testing.assert_array_equal(outside.x, inside.x)


@pytest.mark.slow
@pytest.mark.parametrize(("x", "x_set"), [(0.1, bx.Box(0.1, 3.0)), (0.1, bx.Box(0.0, 0.1)), (1.0, bx.Free())])
def test_a_start_on_the_border_is_none_outside(x, x_set, recwarn):
    for dtype in (np.float32, np.float64):
        bx.solve(toy(x_set=x_set), x, solver=bx.SFLCB(), max_steps=1, dtype=dtype)
    assert not [warning for warning in recwarn if "x0" in str(warning.message)]


@pytest.mark.parametrize("solver", ["SFLCB", "no such", bx.Default, 3])
@pytest.mark.parametrize("front", [bx.solve, bx.multistart])
def test_an_unknown_solver_is_refused(front, solver):
    with pytest.raises(
        ValueError,
        match=r"solver: expected a solver object, one of Default\(\), SFLCB.*got (.*SFLCB|.*such|.*Default|int)",
    ):
        front(toy(), np.array([0.7, 0.8]) if front is bx.multistart else 0.7, solver=solver)


def other_shapes():
    return bx.solve(bx.BilevelProblem(far, near, y_like=np.zeros(2)), np.zeros(2))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"callback": 3}, "callback: expected a function of a Progress, got int"),
        ({"checkpoint": 3}, "checkpoint: expected a path, got int"),
        ({"resume": 3.0}, "resume: expected a path, got float"),
        ({"time_limit": "3"}, "time_limit: expected a number of seconds > 0, got '3'"),
        ({"time_limit": np.nan}, "time_limit: expected a number of seconds > 0, got nan"),
        ({"rtol": "tight"}, "rtol: expected a number >= 0, got 'tight'"),
        ({"max_steps": True}, "max_steps: expected a whole number >= 0, got True"),
        ({"warm_start": 3.0}, "warm_start: expected a Solution of a problem with the same shapes"),
        ({"warm_start": other_shapes}, "warm_start: expected a Solution of a problem with the same shapes"),
    ],
)
def test_wrong_arguments_of_the_default(change, message):
    change = {key: value() if value is other_shapes else value for key, value in change.items()}
    with pytest.raises(ValueError, match=message):
        bx.solve(toy(), 0.7, **change)


# --- files


BINARY = bytes(range(256))


@pytest.mark.parametrize("place", [0, 1])
def test_a_binary_file_is_no_tntp_file(tmp_path, place):
    paths = written(tmp_path)
    paths[place].write_bytes(BINARY)
    with pytest.raises(ValueError, match=rf"{paths[place].name}: expected a text file, got bytes that are no text"):
        NetworkDesign.from_tntp(*paths)


@pytest.mark.parametrize("keep", [0.3, 0.6, 0.8, 0.95])
def test_a_truncated_network_is_no_network(tmp_path, keep):
    with pytest.raises(ValueError, match=r"a_net\.tntp"):
        NetworkDesign.from_tntp(*written(tmp_path, net=NET[: int(keep * len(NET))]))


@pytest.mark.parametrize("cut", [-1, -4, -6, -9, -16])
def test_truncated_trips_are_no_trips(tmp_path, cut):
    whole = TRIPS.replace("<END", "<TOTAL OD FLOW> 12.5\n<END").rstrip(";\n")
    NetworkDesign.from_tntp(*written(tmp_path, trips=whole))
    with pytest.raises(ValueError, match=r"a_trips\.tntp"):
        NetworkDesign.from_tntp(*written(tmp_path, trips=whole[:cut]))


@pytest.mark.parametrize("reader", [datasets.libsvm, NetworkDesign.from_json])
def test_a_binary_file_is_no_data_set(tmp_path, reader):
    path = tmp_path / "data"
    path.write_bytes(BINARY)
    with pytest.raises(ValueError, match="data: expected a text file, got bytes that are no text"):
        reader(path)


@pytest.mark.parametrize("cut", ["1 1:0.5 2:0.25\n-1 1:", "1 1:0.5 2:0.25\n-1 1", "1 1:0.5\n-", ""])
def test_a_truncated_data_set_is_none(tmp_path, cut):
    path = tmp_path / "data"
    path.write_text(cut)
    with pytest.raises(ValueError, match="data"):
        datasets.libsvm(path)


@pytest.mark.parametrize(
    "reader", [datasets.libsvm, NetworkDesign.from_json, lambda path: NetworkDesign.from_tntp(path, path)]
)
def test_files_that_are_not_there(tmp_path, reader):
    with pytest.raises(OSError, match="missing"):
        reader(tmp_path / "missing")


@pytest.mark.parametrize(
    ("function", "wrong", "hint"),
    [
        (bx.solve, "tol", "did you mean rtol?"),
        (bx.solve, "verbose", "did you mean progress?"),
        (bx.solve, "time_limt", "did you mean time_limit?"),
        (bx.solve, "momentum", "it has problem, x0, y0"),
        (bx.multistart, "seed", "did you mean key?"),
        (bx.certify, "tol", "it has problem, x, y"),
        (bx.compare, "verbose", "did you mean progress?"),
        (bx.prove, "tol", "did you mean gap?"),
        (bx.BilevelProblem, "bounds", "did you mean x_set?"),
        (bx.BilevelProblem, "sense", "to maximise, minimise the negative: upper=lambda x, y: -profit(x, y)."),
    ],
)
def test_arguments_of_other_libraries_are_answered_by_ours(function, wrong, hint):
    with pytest.raises(TypeError, match=re.escape(f"{function.__name__}() has no argument {wrong!r}; {hint}")):
        function(bx.problems.toy(), 0.7, **{wrong: 1})


def test_bounds_in_a_list_are_answered_by_box():
    bounds: Any = [(0.0, 1.0)]
    with pytest.raises(ValueError, match=r"x_set: .*got list; bounds are Box\(lower, upper\)"):
        bx.BilevelProblem(lambda x, y: x, lambda x, y: y, x_set=bounds)


def test_numpy_in_an_objective_is_answered_by_jax_numpy():
    problem = bx.BilevelProblem(lambda x, y: np.exp(np.asarray(y)) + x, lambda x, y: (y - x) ** 2, y_like=0.0)
    with pytest.raises(ValueError, match=r"upper: .*use jax\.numpy"):
        bx.certify(problem, 0.7)


@pytest.mark.parametrize(
    ("upper", "hint"),
    [
        (lambda x, y: np.exp(y), "a function of NumPy was called; use jax.numpy."),
        (lambda x, y: math.exp(x) * y, "a function of Python (math, float, int, range) was called; use jax.numpy."),
        (lambda x, y: y if x > 0 else y**2, "an `if` asked for a value that is not known while JAX traces it"),
    ],
)
def test_what_cannot_be_traced_is_answered_by_what_can(upper, hint):
    with pytest.raises(ValueError, match=re.escape(f"upper: {hint}")):
        bx.solve(bx.BilevelProblem(upper, lambda x, y: (y - x) ** 2, y_like=0.0), 0.5)
