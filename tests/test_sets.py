import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import bilevax as bx
from bilevax._support.precision import call_host, float64

SIZE = 4
MATRIX = np.array([[1.0, 1.0, 0.0, 0.0], [0.0, 1.0, -2.0, 0.5], [1.0, 0.0, 0.0, -1.0]])
LOW, HIGH = np.array([-1.0, -np.inf, 0.5]), np.array([1.0, 2.0, 0.5])

SETS = {
    "free": bx.Free(),
    "box": bx.Box(np.array([-1.0, 0.0, -np.inf, 2.0]), np.array([1.0, np.inf, 3.0, 2.0])),
    "box of numbers": bx.Box(-0.5, 0.25),
    "nonnegative": bx.NonNegative(),
    "simplex": bx.Simplex(),
    "simplex of 7": bx.Simplex(7),
    "ball": bx.Ball(1.5),
    "ball elsewhere": bx.Ball(0.75, np.array([3.0, -1.0, 0.0, 2.0])),
    "polyhedron": bx.Polyhedron(MATRIX, lower=LOW, upper=HIGH),
    "sparse polyhedron": bx.Polyhedron(sp.csr_matrix(MATRIX), lower=LOW, upper=HIGH),
    "halfspace": bx.Polyhedron(np.ones((1, SIZE)), upper=1.0),
}

points = arrays(np.float64, SIZE, elements=st.floats(-100, 100, width=32))
each_set = pytest.mark.parametrize("kind", SETS)


def project(kind, point):
    with jax.enable_x64(True):
        return np.asarray(SETS[kind].project(jnp.asarray(point)))


def violation(kind, point):
    """How far a point is from the set, written out here and not taken from the set's own rows."""
    if kind == "free":
        return 0.0
    if kind == "box":
        return max(0.0, -1 - point[0], point[0] - 1, -point[1], point[2] - 3, abs(point[3] - 2))
    if kind == "box of numbers":
        return max(0.0, *(-0.5 - point), *(point - 0.25))
    if kind == "nonnegative":
        return max(0.0, *(-point))
    if kind.startswith("simplex"):
        return max(abs(point.sum() - (7 if "7" in kind else 1)), *(-point))
    if kind == "ball":
        return max(0.0, np.linalg.norm(point) - 1.5)
    if kind == "ball elsewhere":
        return max(0.0, np.linalg.norm(point - np.array([3.0, -1.0, 0.0, 2.0])) - 0.75)
    if kind == "halfspace":
        return max(0.0, point.sum() - 1.0)
    image = MATRIX @ point
    return max(0.0, *(LOW - image), *(image - HIGH))


@each_set
@given(point=points)
def test_projection_lands_in_the_set_and_stays(kind, point):
    nearest = project(kind, point)
    scale = 1 + np.abs(point).max()
    assert violation(kind, nearest) <= 1e-12 * scale
    np.testing.assert_allclose(project(kind, nearest), nearest, atol=1e-12 * scale)


@each_set
@given(a=points, b=points)
def test_projection_is_nonexpansive(kind, a, b):
    shrunk = np.linalg.norm(project(kind, a) - project(kind, b))
    assert shrunk <= np.linalg.norm(a - b) + 1e-11 * (1 + np.abs([a, b]).max())


@each_set
@given(point=points, other=points)
def test_projection_is_the_nearest_point(kind, point, other):
    """The angle test, exact for convex sets: no point of the set lies further along the way to ``point``."""
    nearest, member = project(kind, point), project(kind, other)
    assert (point - nearest) @ (member - nearest) <= 1e-9 * (1 + np.abs(np.r_[point, other]).max()) ** 2


@pytest.mark.parametrize("kind", ["simplex", "ball elsewhere", "polyhedron", "halfspace", "box"])
def test_projection_agrees_with_scipy(kind):
    random = np.random.default_rng(5)
    constraints = {
        "simplex": [{"type": "eq", "fun": lambda v: v.sum() - 1}, {"type": "ineq", "fun": lambda v: v}],
        "ball elsewhere": [
            {"type": "ineq", "fun": lambda v: 0.75**2 - np.sum((v - np.array([3.0, -1.0, 0.0, 2.0])) ** 2)}
        ],
        "polyhedron": [
            {"type": "eq", "fun": lambda v: MATRIX[2] @ v - 0.5},
            {"type": "ineq", "fun": lambda v: np.r_[HIGH[:2] - MATRIX[:2] @ v, MATRIX[0] @ v + 1]},
        ],
        "halfspace": [{"type": "ineq", "fun": lambda v: 1 - v.sum()}],
        "box": [
            {"type": "eq", "fun": lambda v: v[3] - 2},
            {"type": "ineq", "fun": lambda v: np.array([v[0] + 1, 1 - v[0], v[1], 3 - v[2]])},
        ],
    }[kind]
    for _ in range(3):
        point = 3 * random.standard_normal(SIZE)
        found = scipy.optimize.minimize(
            lambda v, point=point: np.sum((v - point) ** 2), project(kind, np.zeros(SIZE)),
            jac=lambda v, point=point: 2 * (v - point), constraints=constraints, method="SLSQP",
            options={"ftol": 1e-14, "maxiter": 500},
        )  # fmt: skip
        np.testing.assert_allclose(project(kind, point), found.x, atol=2e-6)


@each_set
def test_projection_inside_jit_and_vmap(kind):
    random = np.random.default_rng(6)
    batch = 5 * random.standard_normal((3, SIZE))
    with jax.enable_x64(True):
        expected = np.array([SETS[kind].project(jnp.asarray(point)) for point in batch])
        np.testing.assert_allclose(jax.jit(jax.vmap(lambda v: SETS[kind].project(v)))(batch), expected, atol=1e-13)


def test_traced_sets():
    """A set may be an argument of a compiled function."""
    point = jnp.array([3.0, -4.0])

    @jax.jit
    def run(bound, matrix):
        return (
            bx.Box(-bound, bound).project(point),
            bx.Ball(bound).project(point),
            bx.Simplex(bound).project(point),
            bx.Polyhedron(matrix, upper=bound).project(point),
        )

    box, ball, simplex, half = run(jnp.array(1.0), jnp.array([[1.0, 0.0]]))
    np.testing.assert_allclose(box, [1.0, -1.0])
    np.testing.assert_allclose(ball, [0.6, -0.8], rtol=1e-6)
    np.testing.assert_allclose(simplex, [1.0, 0.0])
    np.testing.assert_allclose(half, [1.0, -4.0], rtol=1e-6)


@each_set
@pytest.mark.parametrize("wide", [False, True])
def test_projection_keeps_the_precision(kind, wide):
    with jax.enable_x64(wide):
        like = jax.ShapeDtypeStruct((SIZE,), jnp.float32)
        assert jax.eval_shape(lambda v: SETS[kind].project(v), like).dtype == jnp.float32


@pytest.mark.parametrize("size", [1e-12, 1.0, 1e8, 1e17, 1e25])
def test_simplex_at_every_scale(size):
    """Far away the shift swallows the total: the nearest point is then a vertex, or an even split."""
    with jax.enable_x64(True):
        vertex = np.asarray(bx.Simplex().project(jnp.array([0.0, size, -size])))
        even = np.asarray(bx.Simplex().project(jnp.full(4, size)))
        low = np.asarray(bx.Simplex().project(jnp.array([-size, -size])))
    if size >= 1.0:
        np.testing.assert_allclose(vertex, [0.0, 1.0, 0.0], atol=1e-12)
    np.testing.assert_allclose(even, np.full(4, 0.25), atol=1e-12)
    np.testing.assert_allclose(low, [0.5, 0.5], atol=1e-12)


def test_product_and_trees():
    sets = bx.Product({"share": bx.Simplex(), "flow": (bx.NonNegative(), bx.Ball(1.0)), "rest": bx.Free()})
    value = {
        "share": jnp.array([2.0, 0.0]),
        "flow": (jnp.array([[-1.0, 1.0]]), jnp.array([3.0, 4.0])),
        "rest": jnp.array(-7.0),
    }
    found = jax.jit(lambda v: sets.project(v))(value)
    np.testing.assert_allclose(found["share"], [1.0, 0.0])
    np.testing.assert_allclose(found["flow"][0], [[0.0, 1.0]])
    np.testing.assert_allclose(found["flow"][1], [0.6, 0.8], rtol=1e-6)
    assert found["rest"] == -7.0


def test_one_set_over_a_whole_tree():
    """Simplex and Ball see all leaves together, a box each alone."""
    value = {"a": jnp.array([2.0]), "b": jnp.array([[2.0], [0.0]])}
    together = bx.Simplex().project(value)
    np.testing.assert_allclose(together["a"], [0.5])
    np.testing.assert_allclose(together["b"], [[0.5], [0.0]])
    np.testing.assert_allclose(bx.Ball(1.0).project(value)["a"], [np.sqrt(0.5)], rtol=1e-6)
    np.testing.assert_allclose(bx.Box({"a": 0.0, "b": 1.0}, 1.5).project(value)["b"], [[1.5], [1.0]])
    half = bx.Polyhedron(np.ones((1, 3)), upper=1.0).project(value)
    np.testing.assert_allclose(half["b"], [[1.0], [-1.0]], rtol=1e-6)


@each_set
@given(point=points)
def test_rows_describe_the_same_set(kind, point):
    """What exact solvers see of a set is what the projection sees."""
    rows = SETS[kind].rows(jax.ShapeDtypeStruct((SIZE,), np.float64))
    member = project(kind, point)
    scale = 1 + np.abs(point).max()

    def missing(v):
        image = rows.matrix @ v
        inside = [0.0, *(rows.lower - image), *(image - rows.upper)]
        return max(inside + [np.linalg.norm(v[ball.index] - ball.center) - ball.radius for ball in rows.balls])

    assert missing(member) <= 1e-11 * scale
    if violation(kind, point) > 1e-3:
        assert missing(point) > 1e-5


def test_gradient_through_the_ball_is_finite_at_its_center():
    gradient = jax.grad(lambda v: jnp.sum(bx.Ball(1.0).project(v)))(jnp.zeros(2))
    np.testing.assert_allclose(gradient, [1.0, 1.0])


# --- validation


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: bx.Box(1.0, 0.0), "Box: expected lower <= upper, got lower 1 > upper 0 at entry 0"),
        (lambda: bx.Box([0.0, 3.0], [1.0, 2.0]), "lower 3 > upper 2 at entry 1"),
        (lambda: bx.Box(np.nan, 1.0), "Box: expected numbers .* for lower, got NaN"),
        (lambda: bx.Box(0.0, [1.0, np.nan]), "for upper, got NaN"),
        (lambda: bx.Box("low", 1.0), "Box: expected numbers"),
        (lambda: bx.Box(np.inf, np.inf), "Box: no value"),
        (lambda: bx.Box(-np.inf, -np.inf), "Box: no value"),
        (lambda: bx.Simplex(0.0), "Simplex: expected a positive number for total, got 0"),
        (lambda: bx.Simplex(-1.0), "Simplex: expected a positive number for total, got -1"),
        (lambda: bx.Simplex(np.inf), "Simplex: expected a positive number"),
        (lambda: bx.Simplex([1.0, 2.0]), "Simplex: expected a positive number"),
        (lambda: bx.Ball(-2.0), "Ball: expected a positive number for radius, got -2"),
        (lambda: bx.Ball(np.nan), "Ball: expected a positive number for radius, got nan"),
        (lambda: bx.Ball(1.0, [np.nan, 0.0]), "Ball: expected a finite center"),
        (lambda: bx.Polyhedron([[1.0, np.nan]]), "Polyhedron: A: expected finite entries"),
        (lambda: bx.Polyhedron([1.0, 2.0]), "Polyhedron: A: expected a matrix"),
        (lambda: bx.Polyhedron([[1.0, 2.0]], upper=[1.0, 2.0]), "Polyhedron: upper: expected a number or 1 numbers"),
        (lambda: bx.Polyhedron([[1.0]], lower=2.0, upper=1.0), "Polyhedron: expected lower <= upper, got lower 2"),
        (lambda: bx.Polyhedron([[1.0]], lower=np.nan), "Polyhedron: lower: expected numbers"),
        (lambda: bx.Polyhedron([[1.0]], lower=np.inf), "Polyhedron: no value"),
        (lambda: bx.Product({"a": 3.0}), "Product: expected a pytree of sets, got a leaf of type float"),
    ],
)
def test_wrong_sets(make, message):
    with pytest.raises(ValueError, match=message):
        make()


EMPTY = bx.Polyhedron([[1.0], [1.0]], lower=[2.0, -np.inf], upper=[np.inf, 1.0])


@pytest.mark.parametrize(
    ("x_set", "x0"), [(EMPTY, np.zeros(1)), (bx.Product({"a": EMPTY, "b": bx.Box(0.0, 1.0)}), {"a": [0.0], "b": 0.5})]
)
def test_an_empty_x_is_refused(x_set, x0):
    problem = bx.BilevelProblem(
        lambda x, y: jnp.asarray(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(x))),
        lambda x, y: y**2,
        x_set=x_set,
        y_like=0.0,
    )
    calls = [bx.solve, bx.certify, bx.solve_lower_level]
    calls.append(lambda *given: bx.run(*given, solver=bx.SFLCB()))
    calls.append(lambda *given: bx.solve(*given, solver=bx.SFLCB()))
    for call in calls:
        with pytest.raises(
            ValueError, match=r"x_set.*: Polyhedron: the set is empty; its rows miss each other by 0\.5"
        ):
            call(problem, x0)


def test_a_box_whose_bounds_cross_only_once_they_are_spread_is_refused():
    problem = bx.BilevelProblem(lambda x, y: x["a"], lambda x, y: y**2, x_set=bx.Box(1.0, {"a": 2.0, "b": 0.0}))
    with pytest.raises(ValueError, match=r"x_set: expected lower <= upper, got lower 1 > upper 0 at entry 1"):
        bx.solve(problem, {"a": 1.0, "b": 0.0}, y0=0.0)


@pytest.mark.slow
@pytest.mark.parametrize("solver", [bx.SFLCB(), bx.Default(variant="first-order")], ids=["SFLCB", "first-order"])
def test_a_polyhedron_inside_compiled_code_keeps_its_digits_in_a_process_of_float32(solver):
    """Its projection is called from threads of XLA's, which know nothing of the precision asked for here."""
    assert not jax.config.read("jax_enable_x64")
    rows = np.random.default_rng(0).standard_normal((3, 50))
    problem = bx.BilevelProblem(
        lambda x, y: jnp.sum((y - 0.1) ** 2) + jnp.sum(x**2),
        lambda x, y: jnp.sum((y - x - 1) ** 2),
        x_set=bx.Polyhedron(rows, upper=0.1),
        y_set=bx.Polyhedron(rows[::-1], upper=0.2),
    )
    solution = bx.solve(problem, np.zeros(50), solver=solver, max_steps=30)
    assert np.isfinite(solution.value)
    assert np.max(rows @ solution.x) <= 0.1 + 1e-9
    assert jax.tree.leaves(solution.x)[0].dtype == np.float64


def test_a_call_of_the_host_hands_over_every_bit():
    given = {
        "double": np.array([[1 / 3, np.pi], [1e300, -0.0]]),
        "whole": np.array([2**53 + 1]),
        "flag": np.array(True),
    }
    seen = []

    def host(tree):
        seen.append(tree)
        return tree["double"] / 3

    with float64():
        placed = jax.tree.map(jnp.asarray, given)
        like = jax.ShapeDtypeStruct((2, 2), np.float64)
        compiled = jax.jit(lambda tree: call_host(host, like, tree))
    with float64():
        answer = np.asarray(compiled(placed))
        batch = np.asarray(jax.vmap(compiled)(jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), placed)))
    np.testing.assert_array_equal(answer, given["double"] / 3)
    np.testing.assert_array_equal(batch, np.stack([given["double"] / 3] * 2))
    for name, array in given.items():
        np.testing.assert_array_equal(seen[0][name], array)
        assert seen[0][name].dtype == array.dtype


def test_an_empty_polyhedron_is_refused_when_projected_onto():
    empty = bx.Polyhedron([[1.0], [1.0]], lower=[2.0, -np.inf], upper=[np.inf, 1.0])
    with pytest.raises(ValueError, match="empty"):
        empty.project(jnp.zeros(1))


def test_a_polyhedron_is_cut_with_a_box():
    rows = bx.Polyhedron(np.ones((1, 3)), upper=1.0)
    for cut in (rows & bx.Box(0.0, 1.0), bx.Box(0.0, 1.0) & rows):
        np.testing.assert_allclose(cut.project(np.array([2.0, 2.0, -1.0])), [0.5, 0.5, 0.0], atol=1e-7)
    both = rows & bx.Polyhedron(np.eye(3)[:1], lower=0.25)
    np.testing.assert_allclose(both.project(np.zeros(3)), [0.25, 0.0, 0.0], atol=1e-7)
    with pytest.raises(ValueError, match="expected a set of 3 entries without balls to cut it with, got a Ball"):
        _ = rows & bx.Ball(1.0)
    with pytest.raises(TypeError):
        _ = rows & 3  # pyright: ignore[reportOperatorIssue]


def test_a_box_tells_the_shape_of_its_variable():
    for box, shape in ((bx.Box(0.0, np.ones(2)), (2,)), (bx.Box(np.zeros(3), 1.0), (3,))):
        assert [leaf.shape for leaf in jax.tree.leaves(box.like())] == [shape]
    assert bx.Box(0.0, 1.0).like() is None
