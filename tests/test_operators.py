import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.experimental import sparse as jax_sparse

import bilevax as bx
from bilevax.model.operators import Diagonal, Lineax, Sparse, as_linear_map, probe_columns


def unsorted(matrix):
    """The same matrix with columns out of order, every entry split into two, and zeros stored."""
    coo = sp.coo_matrix(matrix)
    data = np.r_[0.25 * coo.data, 0.75 * coo.data, [0.0]]
    rows, columns = np.r_[coo.row, coo.row, [0]], np.r_[coo.col, coo.col, [matrix.shape[1] - 1]]
    order = np.lexsort([-columns, rows])
    data, rows, columns = data[order], rows[order], columns[order]
    indptr = np.r_[0, np.cumsum(np.bincount(rows, minlength=matrix.shape[0]))]
    raw = sp.csr_matrix((data, columns, indptr), shape=matrix.shape)
    assert not raw.has_canonical_format or not coo.nnz
    return raw


def bcoo(matrix, padding=0):
    """JAX marks padding by indices out of bounds; whatever is stored there does not count."""
    coo = sp.coo_matrix(matrix)
    data = np.r_[coo.data, np.full(padding, 7.0)]
    index = np.vstack([np.c_[coo.row, coo.col], np.tile(matrix.shape, (padding, 1))]).astype(np.int32)
    return jax_sparse.BCOO((jnp.asarray(data), jnp.asarray(index)), shape=matrix.shape)


def bcsr(matrix):
    csr = sp.csr_matrix(matrix)
    return jax_sparse.BCSR(
        (jnp.asarray(csr.data), jnp.asarray(csr.indices), jnp.asarray(csr.indptr)), shape=matrix.shape
    )


FORMS = {
    "dense": np.asarray,
    "list": lambda m: m.tolist(),
    "jax": jnp.asarray,
    **{
        name: (lambda m, name=name: getattr(sp.csr_matrix(m), f"to{name}")())
        for name in ("csr", "csc", "coo", "lil", "dok", "bsr", "dia")
    },
    "sparse array": sp.csr_array,
    "unsorted with duplicates": unsorted,
    "BCOO": bcoo,
    "padded BCOO": lambda m: bcoo(m, padding=2),
    "BCSR": bcsr,
    "lineax matrix": lambda m: lx.MatrixLinearOperator(jnp.asarray(m)),
    "lineax function": lambda m: lx.FunctionLinearOperator(
        lambda v: jnp.asarray(m) @ v, jax.ShapeDtypeStruct((m.shape[1],), jnp.float64)
    ),
    "lineax tagged": lambda m: lx.TaggedLinearOperator(lx.MatrixLinearOperator(jnp.asarray(m)), ()),
    "lineax composed": lambda m: 2.0 * lx.MatrixLinearOperator(jnp.asarray(0.5 * m)),
}

MATRICES = {
    "ordinary": np.array([[1.0, 0.0, -2.0], [0.0, 3.0, 0.5]]),
    "empty rows and columns": np.array([[0.0, 0, 0, 0], [0, 2, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]]),
    "a dense row": np.vstack([np.eye(9), np.arange(1.0, 10.0), np.zeros(9)]),
    "a dense column": np.vstack([np.eye(9), np.arange(1.0, 10.0), np.zeros(9)]).T,
    "one entry": np.array([[4.0]]),
    "all zeros": np.zeros((3, 2)),
    "diagonal": np.diag([1.0, -2.0, 0.0]),
    "one row": np.array([[1.0, 2.0, 3.0]]),
    "one column": np.array([[1.0], [2.0], [3.0]]),
}


TELLING = [(form, "empty rows and columns") for form in FORMS] + [
    (form, kind) for form in ("dense", "csr", "unsorted with duplicates", "padded BCOO") for kind in MATRICES
]


@pytest.mark.slow
@pytest.mark.parametrize(("form", "kind"), sorted(set(TELLING)))
def test_forms_of_matrices(form, kind):
    dense = MATRICES[kind]
    random = np.random.default_rng(0)
    u, v = random.standard_normal(dense.shape[0]), random.standard_normal(dense.shape[1])
    with jax.enable_x64(True):
        linear = as_linear_map(FORMS[form](dense), "A")
        assert linear.shape == dense.shape
        forward, backward = linear.mv(jnp.asarray(v)), linear.rmv(jnp.asarray(u))
        np.testing.assert_allclose(forward, dense @ v, atol=1e-13)
        np.testing.assert_allclose(backward, u @ dense, atol=1e-13)
        assert u @ np.asarray(forward) == pytest.approx(v @ np.asarray(backward), abs=1e-12)
        stored = linear.to_scipy()
    assert sp.issparse(stored)
    np.testing.assert_array_equal(stored.toarray(), dense)


@pytest.mark.parametrize(
    ("operator", "dense"),
    [
        (lx.IdentityLinearOperator(jax.ShapeDtypeStruct((3,), jnp.float32)), np.eye(3)),
        (lx.DiagonalLinearOperator(jnp.array([1.0, -2.0])), np.diag([1.0, -2.0])),
        (lx.IdentityLinearOperator(*(jax.ShapeDtypeStruct((n,), jnp.float32) for n in (3, 2))), np.eye(2, 3)),
        (
            lx.TaggedLinearOperator(lx.DiagonalLinearOperator(jnp.array([1.0, -2.0])), lx.symmetric_tag),
            np.diag([1.0, -2.0]),
        ),
        (lx.TridiagonalLinearOperator(jnp.ones(3), jnp.ones(2), jnp.zeros(2)), np.eye(3) + np.eye(3, k=-1)),
    ],
)
def test_structured_operators(operator, dense):
    linear = as_linear_map(operator, "A")
    u, v = np.arange(1.0, dense.shape[0] + 1), np.arange(1.0, dense.shape[1] + 1)
    np.testing.assert_allclose(linear.mv(jnp.asarray(v)), dense @ v, rtol=1e-6)
    np.testing.assert_allclose(linear.rmv(jnp.asarray(u)), dense.T @ u, rtol=1e-6)
    np.testing.assert_array_equal(linear.to_scipy().toarray(), dense)


def test_cheap_forms_are_kept():
    assert isinstance(as_linear_map(sp.eye(5), "A"), Diagonal)
    assert isinstance(as_linear_map(lx.IdentityLinearOperator(jax.ShapeDtypeStruct((3,), jnp.float32)), "A"), Diagonal)
    assert isinstance(as_linear_map(sp.random(20, 30, 0.1, random_state=0), "A"), Sparse)
    assert isinstance(as_linear_map(FORMS["lineax function"](np.ones((2, 3))), "A"), Lineax)


@st.composite
def sparse_matrices(draw):
    rows, columns = draw(st.sampled_from([1, 4, 11])), draw(st.sampled_from([1, 5, 9]))
    entries = draw(
        st.lists(
            st.tuples(st.integers(0, rows - 1), st.integers(0, columns - 1), st.integers(-3, 3)),
            max_size=rows * columns,
        )
    )
    i, j, values = np.array(entries or [(0, 0, 0)]).T
    return sp.coo_matrix((values.astype(float), (i, j)), shape=(rows, columns))


@pytest.mark.slow
@settings(max_examples=12)
@given(matrix=sparse_matrices(), seed=st.integers(0, 100))
def test_adjoint_of_random_sparse_matrices(matrix, seed):
    """Duplicates add up, and <u, A v> = <A' u, v>."""
    random, dense = np.random.default_rng(seed), matrix.toarray()
    u, v = random.standard_normal(dense.shape[0]), random.standard_normal(dense.shape[1])
    linear = as_linear_map(matrix, "A")
    np.testing.assert_array_equal(linear.to_scipy().toarray(), dense)
    with jax.enable_x64(True), jax.disable_jit():
        np.testing.assert_allclose(linear.mv(jnp.asarray(v)), dense @ v, atol=1e-12)
        np.testing.assert_allclose(linear.rmv(jnp.asarray(u)), u @ dense, atol=1e-12)


def test_in_batches():
    matrix = sp.random(9, 6, 0.4, random_state=0)
    random = np.random.default_rng(0)
    u, v = random.standard_normal((3, 9)), random.standard_normal((3, 6))
    linear = as_linear_map(matrix, "A")
    with jax.enable_x64(True):
        np.testing.assert_allclose(jax.vmap(lambda row: linear.mv(row))(jnp.asarray(v)), v @ matrix.T, atol=1e-12)
        np.testing.assert_allclose(jax.vmap(lambda row: linear.rmv(row))(jnp.asarray(u)), u @ matrix, atol=1e-12)


@pytest.mark.parametrize(("rows", "columns", "batch"), [(3, 7, 10), (7, 3, 10), (5, 5, 40), (1, 9, 9), (0, 4, 10)])
def test_probing_in_batches_that_do_not_divide_the_columns(rows, columns, batch):
    matrix = np.random.default_rng(0).standard_normal((rows, columns))
    with jax.enable_x64(True):
        found = probe_columns(lambda v: jnp.asarray(matrix) @ v, matrix.shape, batch_entries=batch)
    np.testing.assert_allclose(found.toarray(), matrix, atol=1e-15)


def test_values_survive_in_full_precision():
    """Built while JAX runs in float32, used in float64."""
    value = 0.1 + 1e-12
    coupling = bx.LinearCoupling([[value, 1.0]], sp.csr_matrix([[value, 0.0]]), upper=value)
    B, A, offset = coupling.matrices(np.zeros(2), np.zeros(2), None)
    assert A.toarray()[0, 0] == B.toarray()[0, 0] == coupling.upper[0] == value
    assert not offset.any()


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        ([[1.0, np.nan]], "A: expected finite entries, got NaN or infinity"),
        (sp.csr_matrix([[1.0, np.inf]]), "A: expected finite entries"),
        (jax_sparse.BCOO.fromdense(jnp.array([[1.0, jnp.nan]])), "A: expected finite entries"),
        (lx.MatrixLinearOperator(jnp.array([[jnp.nan]])), "A: expected finite entries"),
        (lx.DiagonalLinearOperator(jnp.array([1.0, jnp.nan])), "A: expected finite entries"),
        ([1.0, 2.0], r"A: expected a matrix .*, got an array of shape \(2,\)"),
        (np.zeros((2, 2, 2)), r"A: expected a matrix .*, got an array of shape \(2, 2, 2\)"),
        ([["a", "b"]], "A: expected a matrix of real numbers, got list"),
        ([[1.0 + 2.0j]], "A: expected a matrix of real numbers"),
        (sp.csr_matrix([[1.0 + 2.0j]]), "A: expected a matrix of real numbers"),
        (None, "A: expected a matrix"),
        ([[1.0], [1.0, 2.0]], "A: expected a matrix of real numbers, got list"),
        (jax_sparse.BCOO.fromdense(jnp.ones((2, 2, 2)), n_batch=1), "A: expected a two-dimensional BCOO"),
    ],
)
def test_wrong_matrices(matrix, message):
    with pytest.raises(ValueError, match=message):
        as_linear_map(matrix, "A")


@pytest.mark.parametrize("shape", [(23, 4), (20, 4), (7, 9)])
def test_a_large_matrix_is_passed_over_once(monkeypatch, shape):
    """Products, response and adjoints block by block are those of the whole matrix, which no product touches."""
    random = np.random.default_rng(0)
    matrix, vectors = random.standard_normal(shape), tuple(random.standard_normal((2, shape[1])))
    offset = random.standard_normal(shape[0])

    def respond(images, rows):
        forces = jnp.sin(images[0] + rows["offset"]), images[1] * rows["offset"]
        return forces, {"sum": forces[0] + forces[1]}

    def there_and_back():
        operator = as_linear_map(matrix, "A")
        return jax.jit(lambda vectors, rows: operator.there_and_back(vectors, respond, rows))

    with jax.enable_x64(True):
        expected = there_and_back()(vectors, {"offset": offset})
        monkeypatch.setattr("bilevax.model.operators._LARGE", 0)
        monkeypatch.setattr("bilevax.model.operators._BLOCK", 5 * 8 * shape[1])
        program = there_and_back()
        found = program(vectors, {"offset": offset})
        text = program.lower(vectors, {"offset": offset}).as_text()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-12), found, expected)
    np.testing.assert_allclose(found[1]["sum"], np.sin(matrix @ vectors[0] + offset) + matrix @ vectors[1] * offset)
    sizes = [line.split(": (")[1].split(")")[0] for line in text.splitlines() if "dot_general" in line]
    whole = f"tensor<{shape[0]}x{shape[1]}xf64>"
    assert sizes
    assert not any(whole in line for line in sizes)


def test_a_matrix_stays_as_it_was_given():
    array = np.arange(6.0).reshape(2, 3) + 1
    operator = as_linear_map(array, "A")
    stored = operator.to_scipy()
    array[:] = 0.0
    for matrix in (stored, operator.to_scipy()):
        np.testing.assert_array_equal(matrix.toarray(), [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
