# ruff: noqa: E501 - one mistake a line, with the message it gets
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevax as bx
from bilevax.model.problem import validate
from known import toy


def upper(x, y):
    return jnp.sum(x**2) + jnp.sum(y)


def lower(x, y):
    return jnp.sum((y - 1.0) ** 2)


def problem(**change):
    return bx.BilevelProblem(**{"upper": upper, "lower": lower, "y_like": np.zeros(3), **change})


@pytest.mark.parametrize(
    ("make", "x0", "message"),
    [
        # the start
        (lambda: problem(), np.nan, r"x0: expected finite numbers, got NaN or infinity in an array of shape \(\)"),
        (lambda: problem(), [1.0, np.inf], r"x0: expected finite numbers, got NaN or infinity in an array of shape \(2,\)"),
        (lambda: problem(), "start", "x0: expected numbers, got str"),
        (lambda: problem(), 1.0 + 2.0j, "x0: expected numbers, got complex"),
        (lambda: problem(), [[1.0], [1.0, 2.0]], "x0: expected numbers, got list"),
        (lambda: problem(), [], "x0: expected at least one number, got none"),
        (lambda: problem(), None, "x0: expected at least one number, got none"),
        (lambda: problem(), {}, "x0: expected at least one number, got none"),
        (lambda: problem(), {"a": "b"}, "x0: expected numbers, got str"),
        # objectives
        (lambda: problem(upper=lambda x, y: y), 1.0, r"upper: expected an objective that returns a scalar, got an array of shape \(3,\)"),
        (lambda: problem(lower=lambda x, y: (x, y)), 1.0, "lower: expected an objective that returns a scalar, got a tree of shapes"),
        (lambda: problem(lower=lambda x, y: None), 1.0, "lower: expected an objective that returns a scalar, got"),
        (lambda: problem(upper=lambda x, y: "f"), 1.0, "upper: "),
        (lambda: problem(upper=lambda x, y: x > 0), 1.0, "upper: expected a real objective, got dtype bool"),
        (lambda: problem(upper=lambda x, y: 1j * x), 1.0, "upper: expected a real objective, got dtype complex128"),
        (lambda: problem(upper=lambda x, y: x["a"]), 1.0, r"upper: the objective failed when called as fn\(x, y\) with x = an array of shape \(\)"),
        (lambda: problem(upper=lambda x: x), 1.0, "upper: the objective failed when called as .*TypeError"),
        (lambda: problem(data=1.0), 1.0, r"upper: the objective failed when called as fn\(x, y, data\)"),
        (lambda: problem(lower=lambda x, y: jnp.sum(x @ y)), [1.0, 2.0], "lower: the objective failed"),
        # the shape of y
        (lambda: problem(y_like=np.zeros(0)), 1.0, "y: expected at least one number, got none: the lower level is empty"),
        (lambda: problem(y_like=None), 1.0, "y0: the shape of y is unknown; give y0, or y_like"),
        # sets
        (lambda: problem(x_set=bx.Box(np.zeros(3), 1.0)), [0.0, 0.0], r"x_set: the box's lower bound is an array of shape \(3,\), which does not broadcast to the variable, an array of shape \(2,\)"),
        (lambda: problem(x_set=bx.Box({"a": 0.0}, 1.0)), [0.0], "x_set: the box's lower bound is a tree of shapes"),
        (lambda: problem(x_set=bx.Box([2.0, 0.0], 1.0)), [0.0, 0.0], "expected lower <= upper, got lower 2 > upper 1 at entry 0"),
        (lambda: problem(y_set=bx.Box(0.0, np.ones(4))), 1.0, "y_set: the box's upper bound is"),
        (lambda: problem(x_set=bx.Polyhedron(np.ones((1, 4)))), [0.0], "x_set: the polyhedron's A has 4 columns, but the variable, .* has 1 entries"),
        (lambda: problem(x_set=bx.Ball(1.0, np.zeros(4))), [0.0], "x_set: the ball's center is"),
        (lambda: problem(x_set=bx.Product([bx.Free()])), [0.0], "x_set: the product's sets have structure"),
        (lambda: problem(x_set=bx.Product({"a": bx.Free(), "b": bx.Free()})), {"a": 1.0}, "x_set: the product's sets have structure"),
        (lambda: problem(x_set=bx.Product({"a": bx.Box(np.zeros(2), 1.0)})), {"a": np.zeros(3)}, "x_set, leaf 0: the box's lower bound"),
        (lambda: problem(x_set=(0.0, 1.0)), 1.0, "x_set: expected a set such as Box or NonNegative, got tuple"),
        (lambda: problem(y_set=bx.Box), 1.0, "y_set: expected a set"),
        # the rest of the description
        (lambda: problem(upper=3.0), 1.0, r"upper: expected a function of \(x, y\), got float"),
        (lambda: problem(lower=None), 1.0, r"lower: expected a function of \(x, y\), got NoneType"),
        (lambda: problem(data={"a": np.array([1.0, np.nan])}), 1.0, r"data: expected numbers, got NaN in an array of shape \(2,\)"),
        (lambda: problem(data=float("nan")), 1.0, "data: expected numbers, got NaN"),
        (lambda: problem(coupling=bx.AffineCoupling(lambda x, y: y * x)), 2.0, "coupling: expected a function that is affine"),
        (lambda: "problem", 1.0, "problem: expected a BilevelProblem, got str"),
    ],
)  # fmt: skip
def test_mistakes_are_explained_before_anything_is_compiled(make, x0, message):
    for judge in (bx.certify, lambda *a: bx.solve(*a, solver=bx.SFLCB()), lambda *a: bx.run(*a, solver=bx.SFLCB())):
        with pytest.raises(ValueError, match=message.replace("complex128", "complex")):
            judge(make(), x0)


def test_validation_compiles_no_program(compilations):
    """Mistakes in shapes are found by looking, not by running: the objective is never compiled."""

    def expensive(x, y):
        for _ in range(50):
            x = jnp.sin(x) @ jnp.ones((7, 7))
        return y

    bad = bx.BilevelProblem(expensive, lower, x_set=bx.Box(0.0, 1.0), y_like=np.zeros(3))
    with compilations() as count, pytest.raises(ValueError, match="upper: expected an objective that returns a scalar"):
        bx.solve(bad, np.zeros(7), solver=bx.SFLCB())
    assert count[0] == 0


def test_y0_must_agree_with_y_like():
    with pytest.raises(
        ValueError, match=r"y0: expected an array of shape \(3,\) as in y_like, got an array of shape \(2,\)"
    ):
        bx.certify(problem(), 1.0, [0.0, 0.0])
    with pytest.raises(ValueError, match="y0: expected finite numbers"):
        bx.certify(problem(), 1.0, [0.0, 0.0, np.nan])


def shape_of_y(made, x0, y0=None):
    with jax.enable_x64(True):
        return jax.tree.map(lambda leaf: leaf.shape, validate(made, x0, y0)[1], is_leaf=lambda v: hasattr(v, "shape"))


def test_where_the_shape_of_y_comes_from():
    matrix, box = bx.LinearCoupling(np.ones((2, 4))), bx.Box(np.zeros((2, 2)), 1.0)
    assert shape_of_y(problem(y_like=None), 1.0, [0.0, 0.0]) == (2,)
    assert shape_of_y(problem(), 1.0) == (3,)
    assert shape_of_y(
        problem(y_like={"a": 1.0, "b": [1, 2]}, lower=lambda x, y: y["a"], upper=lambda x, y: x), 1.0
    ) == {
        "a": (),
        "b": (2,),
    }
    assert shape_of_y(problem(y_like=jax.ShapeDtypeStruct((5,), np.float32)), 1.0) == (5,)
    assert shape_of_y(problem(y_like=None, coupling=matrix), 1.0) == (4,)
    assert shape_of_y(problem(y_like=None, y_set=box), 1.0) == (2, 2)
    assert shape_of_y(problem(y_like=None, y_set=box, coupling=matrix), 1.0, np.zeros((2, 2))) == (2, 2)
    assert shape_of_y(toy(), 0.7) == ()


@pytest.mark.parametrize(
    ("objective", "shape"),
    [
        (lambda x, y: (y - 2 * x) ** 2, ()),
        (lambda x, y: y[0] ** 2 + y[1] * x, (2,)),
        (lambda x, y: y @ np.eye(3) @ y, (3,)),
    ],
)
def test_the_objectives_may_tell_the_shape_of_y(objective, shape):
    assert shape_of_y(bx.BilevelProblem(objective, objective), 1.0) == shape


@pytest.mark.parametrize(
    ("objective", "x0"),
    [
        (lambda x, y: jnp.sum(y**2) + x, 1.0),
        (lambda x, y: y @ y + x, 1.0),
        (lambda x, y: y[0] * x + y @ y, 1.0),
        (lambda x, y: jnp.sum((x - y) ** 2), np.ones(5)),
    ],
)
def test_objectives_that_accept_any_y_do_not_tell_its_shape(objective, x0):
    """A guess would silently solve another problem."""
    with pytest.raises(ValueError, match="the shape of y is unknown"):
        bx.certify(bx.BilevelProblem(objective, objective), x0)


@pytest.mark.parametrize("x0", [[1, 2], (1, 2), np.array([1, 2]), {"a": [1, 2]}, {"a": (np.float32(1), 2)}])
def test_starts_in_every_form_keep_their_values(x0):
    with jax.enable_x64(True):
        made = bx.BilevelProblem(lambda x, y: y, lambda x, y: y**2, y_like=0.0)
        found = validate(made, x0)[0]
    assert all(leaf.dtype == np.float64 for leaf in jax.tree.leaves(found))
    np.testing.assert_array_equal(np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(found)]), [1.0, 2.0])


def test_lists_of_arrays_are_trees():
    with jax.enable_x64(True):
        made = bx.BilevelProblem(lambda x, y: y, lambda x, y: y**2, y_like=0.0)
        found = validate(made, [np.zeros(2), np.zeros(3)])[0]
    assert [leaf.shape for leaf in found] == [(2,), (3,)]


def test_data_keeps_integers_and_structure():
    made = problem(data={"index": np.array([0, 2]), "scale": np.float32(0.5), "name": "kept"})
    assert made.data["index"].dtype.kind == "i"
    assert made.data["scale"].dtype == np.float64
    assert made.data["name"] == "kept"


def test_data_that_selects():
    made = bx.BilevelProblem(
        lambda x, y, data: jnp.sum(y[data["index"]]),
        lambda x, y, data: jnp.sum((y - x * data["scale"]) ** 2),
        y_like=np.zeros(3),
        data={"index": np.array([0, 2]), "scale": np.array([1.0, 2.0, 3.0])},
    )
    certificate = bx.certify(made, 2.0)
    assert certificate.value == pytest.approx(8.0)
    assert certificate.hypergradient == pytest.approx(4.0)


def test_scalars_of_shape_one_count_as_scalars():
    made = bx.BilevelProblem(lambda x, y: x**2 + y, lambda x, y: (y - x) ** 2, y_like=np.zeros(1))
    assert bx.certify(made, [2.0]).value == pytest.approx(6.0)
