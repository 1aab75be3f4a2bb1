# ruff: noqa: E501 - one mistake a line, with the message it gets
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest
import scipy.sparse as sp

import bilevax as bx

X = {"p": np.zeros(2), "q": np.zeros((1, 2))}
Y = (np.zeros(()), np.zeros((3,)))


def nested(x, y):
    """Rows in a tree, with a constant, through reshapes, gathers and sums."""
    return {
        "sum": jnp.sum(x["p"]) - 2 * y[0] + 5.0,
        "each": y[1][jnp.array([2, 0, 0])] - x["q"].reshape(-1)[0] * jnp.array([1.0, 2.0, 3.0]),
        "table": jnp.outer(y[1], jnp.array([1.0, -1.0])) + x["p"],
    }


def reference():
    """The matrix of `nested`, columns (p, q | y0, y1), rows in JAX's order: each, sum, table."""
    B, A = np.zeros((10, 4)), np.zeros((10, 4))
    for row, (source, factor) in enumerate(zip((2, 0, 0), (1.0, 2.0, 3.0), strict=True)):
        A[row, 1 + source], B[row, 2] = 1.0, -factor
    B[3, :2], A[3, 0] = 1.0, -2.0
    for i in range(3):
        for j in range(2):
            A[4 + 2 * i + j, 1 + i], B[4 + 2 * i + j, j] = (1.0, -1.0)[j], 1.0
    return B, A, np.r_[0.0, 0, 0, 5, np.zeros(6)]


def flat(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def draw(like, seed):
    random = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: jnp.asarray(random.standard_normal(np.shape(leaf))), like)


COUPLINGS = {
    "affine": bx.AffineCoupling(nested),
    "dense": bx.LinearCoupling(reference()[1], reference()[0]),
    "sparse": bx.LinearCoupling(sp.csc_matrix(reference()[1]), sp.coo_matrix(reference()[0])),
    "without B": bx.LinearCoupling(reference()[1]),
    "lineax": bx.LinearCoupling(lx.MatrixLinearOperator(jnp.asarray(reference()[1])), reference()[0]),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", COUPLINGS)
def test_adjoint_matrices_and_values_on_trees(kind):
    seed = 0
    coupling = COUPLINGS[kind]
    B, A, offset = reference()
    B = 0 * B if kind == "without B" else B
    offset = offset if kind == "affine" else 0 * offset
    with jax.enable_x64(True):
        x, y = draw(X, seed), draw(Y, seed + 10)
        rows = coupling.value(x, y, None)
        multipliers = draw(rows, seed + 20)
        pull_x, pull_y = coupling.adjoint_x(x, y, None, multipliers), coupling.adjoint_y(x, y, None, multipliers)
        found = coupling.matrices(x, y, None)
    assert jax.tree.structure(pull_x) == jax.tree.structure(x)
    assert jax.tree.structure(pull_y) == jax.tree.structure(y)
    np.testing.assert_allclose(flat(rows), B @ flat(x) + A @ flat(y) + offset, atol=1e-12)
    np.testing.assert_allclose(flat(pull_x), B.T @ flat(multipliers), atol=1e-12)
    np.testing.assert_allclose(flat(pull_y), A.T @ flat(multipliers), atol=1e-12)
    for matrix, wanted in zip(found, (B, A, offset), strict=True):
        np.testing.assert_allclose(matrix.toarray() if sp.issparse(matrix) else matrix, wanted, atol=1e-14)


def test_a_sequence_of_couplings_adds_up():
    problem = bx.BilevelProblem(
        lambda x, y: jnp.zeros(()),
        lambda x, y: jnp.zeros(()),
        [COUPLINGS["affine"], COUPLINGS["dense"], COUPLINGS["without B"]],
    )
    with jax.enable_x64(True):
        x, y = draw(X, 0), draw(Y, 1)
        rows = problem.rows(x, y)
        u = draw(rows, 2)
        left = flat(u) @ (flat(rows) - flat(problem.rows(*jax.tree.map(jnp.zeros_like, (x, y)))))
        right = flat(problem.adjoint_x(x, y, u)) @ flat(x) + flat(problem.adjoint_y(x, y, u)) @ flat(y)
    assert left == pytest.approx(right, rel=1e-12)


def test_data_reaches_the_rows():
    coupling = bx.AffineCoupling(lambda x, y, data: data["scale"] * y - x, upper=0.0)
    problem = bx.BilevelProblem(
        lambda x, y, data: x**2 + y, lambda x, y, data: (y - 10) ** 2, coupling, data={"scale": 2.0}, y_like=0.0
    )
    assert bx.certify(problem, 3.0).y == pytest.approx(1.5, abs=1e-9)


def test_bounds_as_trees():
    lower = {"sum": -1.0, "each": [0.0, 1.0, 2.0], "table": np.full((3, 2), -np.inf)}
    coupling = bx.AffineCoupling(nested, lower=lower, upper=9.0)
    with jax.enable_x64(True):
        low, high = coupling.bounds(nested(draw(X, 0), draw(Y, 0)))
    np.testing.assert_array_equal(low["each"], [0.0, 1.0, 2.0])
    assert float(low["sum"]) == -1.0
    assert high["table"].shape == (3, 2)
    assert np.all(np.asarray(high["table"]) == 9.0)


def test_multipliers_come_back_in_the_form_of_the_coupling():
    def make(coupling):
        return bx.BilevelProblem(
            lambda x, y: jnp.sum(x**2), lambda x, y: jnp.sum((y - 3) ** 2), coupling, y_like=np.zeros(2)
        )

    alone = bx.AffineCoupling(lambda x, y: {"cap": y - x}, upper=0.0)
    assert set(bx.certify(make(alone), [1.0]).multipliers) == {"cap"}
    np.testing.assert_allclose(bx.certify(make(alone), [1.0]).multipliers["cap"], [4.0, 4.0], atol=1e-8)
    several = bx.certify(make([alone, bx.LinearCoupling([[1.0, -1.0]], lower=0.0, upper=0.0)]), [1.0]).multipliers
    assert isinstance(several, tuple)
    assert len(several) == 2
    assert bx.certify(make(None), [1.0]).multipliers == ()
    assert len(bx.certify(make([alone]), [1.0]).multipliers) == 1


# --- validation


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: bx.LinearCoupling(np.eye(2), np.eye(3)), r"same number of rows, got A of shape \(2, 2\) and B of shape \(3, 3\)"),
        (lambda: bx.LinearCoupling(np.eye(2), upper=[1.0, 2.0, 3.0]), r"upper: expected a number or 2 numbers, got shape \(3,\)"),
        (lambda: bx.LinearCoupling(np.eye(2), lower=[1.0, np.nan]), "lower: expected numbers .*, got NaN"),
        (lambda: bx.LinearCoupling(np.eye(2), lower=2.0, upper=1.0), "expected lower <= upper, got lower 2 > upper 1 at entry 0"),
        (lambda: bx.LinearCoupling(np.eye(2), lower=np.inf), "no value satisfies"),
        (lambda: bx.LinearCoupling(np.eye(2), upper=-np.inf), "no value satisfies"),
        (lambda: bx.LinearCoupling(np.eye(2), upper="much"), "upper: expected a number"),
        (lambda: bx.AffineCoupling(nested, lower=np.nan), "expected numbers .* for lower, got NaN"),
        (lambda: bx.AffineCoupling(nested, upper="much"), "AffineCoupling: expected numbers"),
        (lambda: bx.AffineCoupling(3.0), "AffineCoupling: expected a function"),  # pyright: ignore[reportArgumentType]
        (lambda: bx.AffineCoupling(nested, upper=-np.inf), "no value satisfies"),
    ],
)  # fmt: skip
def test_wrong_couplings(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def certify_with(coupling, x=(1.0, 2.0), y=(1.0, 2.0, 3.0)):
    problem = bx.BilevelProblem(lambda x, y: jnp.sum(x**2), lambda x, y: jnp.sum(y**2), coupling)
    return bx.certify(problem, np.array(x), np.array(y))


@pytest.mark.parametrize(
    ("fn", "row"),
    [
        pytest.param(lambda x, y: jnp.abs(y), "row", id="abs"),
        pytest.param(lambda x, y: jnp.maximum(y, -50.0), "row", id="max far away"),
        pytest.param(lambda x, y: jnp.maximum(y[0], x[0]), "row", id="max"),
        pytest.param(lambda x, y: x[0] * y, "row", id="product"),
        pytest.param(lambda x, y: y.at[1].set(y[1] + 1e-3 * x[0] * x[1]), r"row \(1,\)", id="bilinear in x, one row"),
        pytest.param(lambda x, y: {"a": y, "b": jnp.sum(y**2)}, r"row \(0,\) of \['b'\]", id="square in a tree"),
        pytest.param(lambda x, y: jnp.sin(1e-3 * y), "row", id="nearly linear"),
        pytest.param(lambda x, y: jnp.where(y > 0, y, 2 * y), "row", id="where"),
        pytest.param(lambda x, y: jnp.round(y), "row", id="round"),
        pytest.param(lambda x, y: 1 / y, "row", id="reciprocal"),
        pytest.param(lambda x, y: jnp.sort(y), "row", id="sort"),
        pytest.param(lambda x, y: y / jnp.sum(x), "row", id="nan at zero"),
    ],
)
def test_functions_that_are_not_affine(fn, row):
    with pytest.raises(ValueError, match=f"coupling: expected a function that is affine in x and y, but at {row}"):
        certify_with(bx.AffineCoupling(fn, upper=1e6))


def test_affine_functions_are_accepted():
    certify_with(bx.AffineCoupling(lambda x, y: 1e6 * y + 1e-6 * x[0] - 1e9, upper=1e12))
    certify_with(bx.AffineCoupling(lambda x, y: jnp.cumsum(y)[::-1] + jnp.max(jnp.array([1.0, 2.0])), upper=1e6))


@pytest.mark.parametrize(
    ("coupling", "message"),
    [
        (bx.LinearCoupling(np.eye(2)), r"coupling: A has 2 columns, but y, an array of shape \(3,\), has 3 entries"),
        (bx.LinearCoupling(np.eye(3), np.eye(3)), r"coupling: B has 3 columns, but x, an array of shape \(2,\), has 2"),
        ([bx.LinearCoupling(np.eye(3)), bx.LinearCoupling(np.eye(2))], r"coupling\[1\]: A has 2 columns"),
        (bx.AffineCoupling(lambda x, y: x + y), "coupling: the function failed on x = .*shape"),
        (bx.AffineCoupling(lambda x, y: y["a"]), "coupling: the function failed"),
        (bx.AffineCoupling(lambda x, y: y > 0), "coupling: expected rows of real numbers"),
        (bx.AffineCoupling(lambda x, y: "rows"), "coupling: "),
        (bx.AffineCoupling(lambda x, y: y, upper=[1.0, 2.0]), r"coupling: upper is an array of shape \(2,\), which does not"),
        (bx.AffineCoupling(lambda x, y: y, lower={"a": 1.0}), "coupling: lower is a tree of shapes"),
        (bx.AffineCoupling(lambda x, y: y, [0.0, 0.0, 2.0], 1.0), "coupling: expected lower <= upper, got lower 2 > upper 1 at entry 2"),
        ("rows", "coupling: expected a LinearCoupling, an AffineCoupling, a ConvexCoupling, or a sequence or dictionary of them, got str"),
        ({"a": bx.LinearCoupling(np.eye(2))}, r"coupling\['a'\]: A has 2 columns"),
        ({1: bx.LinearCoupling(np.eye(3))}, "coupling: expected a LinearCoupling, .* got dict"),
        ([np.eye(3)], "coupling: expected a LinearCoupling"),
        (np.eye(3), "coupling: expected a LinearCoupling, .* got ndarray"),
    ],
)  # fmt: skip
def test_couplings_that_do_not_fit(coupling, message):
    with pytest.raises(ValueError, match=message):
        certify_with(coupling)


def test_multipliers_of_rows_by_name_come_back_by_name():
    """The names may come in any order."""
    rows = {
        "most": bx.LinearCoupling(np.eye(2), upper=[0.5, 9.0]),
        "equal": bx.LinearCoupling([[1.0, -1.0]], upper=0.0),
    }
    parts = lambda x, y: jnp.sum(y**2) + x[0], lambda x, y: jnp.sum((y - jnp.array([2.0, 1.0])) ** 2) + 0 * x[0]
    named, listed = (bx.certify(bx.BilevelProblem(*parts, coupling), [0.0]) for coupling in (rows, [*rows.values()]))
    assert set(named.multipliers) == {"most", "equal"}
    for name, multipliers in zip(rows, listed.multipliers, strict=True):
        assert named.multipliers[name] == pytest.approx(multipliers)
