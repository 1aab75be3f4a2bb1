"""Upper objectives that know the lower level's multipliers: markets with prices that are known."""

import jax.numpy as jnp
import numpy as np
import pytest

import bilevax as bx
from bilevax.model.prices import usual
from bilevax.model.problem import Choice

_COSTS = np.array([0.0, 3.0, 7.0])
_CAPACITY = np.array([6.0, 5.0, 10.0])


def _income(bid, made, multipliers, data):
    """What a generator with cost 1 loses when all are paid the price, minus the multiplier of the balance."""
    return -data["unit"] * (-multipliers[0] * data["price"] - 1.0) * made[0] * data["made"]


def _cost(bid, made, data):
    quantity = made * data["made"]
    rising = 0.5 * data["curved"] * quantity @ quantity
    return data["lower"] * (bid[0] * quantity[0] + data["costs"] @ quantity + rising)


def market(curved=0.0, choice: Choice = "optimistic", made=1.0, lower=1.0, row=1.0, unit=1.0):
    """A leader bids a price for 6 units; rivals offer 5 at 3 and 10 at 7; demand is 8. Other units on request."""
    data = {"unit": unit, "made": made, "lower": lower, "price": row / lower / made, "costs": _COSTS, "curved": curved}
    return bx.BilevelProblem(
        _income,
        _cost,
        bx.LinearCoupling(row * np.ones((1, 3)), lower=row * 8.0 / made, upper=row * 8.0 / made),
        x_set=bx.Box(np.zeros(1), 10.0),
        y_set=bx.Box(0.0, _CAPACITY / made),
        data=data,
        choice=choice,
        multipliers_in_upper=True,
    )


@pytest.mark.slow
def test_leader_bids_just_what_the_next_rival_does():
    """Below the bid of 7 the leader sells 3 at its own bid; at 7 the optimistic market still buys from it."""
    solution = bx.solve(market(), np.array([2.0]))
    assert solution.success
    assert solution.value == pytest.approx(-18.0, rel=1e-9)
    assert solution.x == pytest.approx([7.0])
    assert solution.y == pytest.approx([3.0, 5.0, 0.0], abs=1e-7)
    assert solution.multipliers == pytest.approx([-7.0])
    assert solution.certificate.value_range == pytest.approx((-18.0, 0.0), abs=1e-6)
    assert not solution.certificate.lower_unique
    again = bx.solve(market(), np.array([4.0]), warm_start=solution)
    assert again.success
    assert again.value == pytest.approx(-18.0)


def test_price_of_curved_costs():
    """With costs that rise with 0.1 of the output the price is 7 where the dear rival is about to begin."""
    solution = bx.solve(market(0.1), np.array([2.0]))
    assert solution.success
    assert solution.value == pytest.approx(-18.0, rel=1e-7)
    assert solution.x == pytest.approx([6.7], rel=1e-6)
    assert solution.multipliers == pytest.approx([-7.0], rel=1e-6)


@pytest.mark.slow
def test_a_jump_at_the_pessimistic_choice_is_no_success():
    """At 7 the pessimistic market buys nothing from the leader, and below no bid is the best."""
    solution = bx.solve(market(choice="pessimistic"), np.array([2.0]))
    assert not (solution.success and solution.value < -12.0 - 1e-6)


@pytest.mark.parametrize("x", [6.9, 5.0])
def test_certificate_refutes_a_bid_that_could_be_higher(x):
    certificate = bx.certify(market(), np.array([x]), np.array([3.0, 5.0, 0.0]))
    assert certificate.value == pytest.approx(-3 * (x - 1.0))
    assert certificate.multipliers == pytest.approx([-x])
    assert certificate.y_error == pytest.approx(0.0, abs=1e-9)
    assert not certificate.confirms(1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("units", [{"made": 1e-6}, {"lower": 1e6}, {"row": 1e-5}, {"unit": 1e6}, {"made": 1e5}])
@pytest.mark.parametrize("curved", [0.0, 0.1])
def test_units_do_not_matter(units, curved):
    solution = bx.solve(market(curved, **units), np.array([2.0]))
    assert solution.success
    assert solution.value == pytest.approx(-18.0 * units.get("unit", 1.0), rel=1e-6)
    assert solution.x == pytest.approx([7.0 - 3 * curved], rel=1e-5)


@pytest.mark.parametrize(("choice", "price"), [("optimistic", 3.0), ("pessimistic", 7.0)])
def test_where_the_price_is_not_unique_the_choice_decides(choice, price):
    """The cheap generator makes just what is wanted: any price from its cost to the other's clears the market."""
    problem = bx.BilevelProblem(
        lambda x, y, multipliers: (x[0] - 1.0) ** 2 - multipliers["balance"][0],
        lambda x, y: 3.0 * y[0] + 7.0 * y[1],
        {"balance": bx.LinearCoupling(np.ones((1, 2)), lower=5.0, upper=5.0)},
        y_set=bx.Box(0.0, np.array([5.0, 10.0])),
        choice=choice,
        multipliers_in_upper=True,
    )
    solution = bx.solve(problem, np.zeros(1))
    assert solution.success or choice == "pessimistic"  # stationarity is not proven at the worst of several
    assert solution.x == pytest.approx([1.0], abs=1e-5)
    assert solution.value == pytest.approx(price)
    assert solution.multipliers["balance"] == pytest.approx([-price])
    assert solution.certificate.value_range == pytest.approx((3.0, 7.0))
    assert not solution.certificate.lower_unique


def _every_kind_of_row(seed):
    """A strongly convex g with equality, one-sided and range rows, bounds of every kind and rows in Y."""
    random = np.random.default_rng(seed)
    n = 7
    root = random.standard_normal((n, n))
    hessian, mixed, linear = root @ root.T + np.eye(n), random.standard_normal((n, 2)), 3 * random.standard_normal(n)
    a, b = random.standard_normal((4, n)), random.standard_normal((4, 2))
    inside = random.uniform(-0.5, 0.5, n)
    middle = a @ inside
    low = np.array([middle[0], -np.inf, middle[2] - 0.1, middle[3] - 0.2])
    high = np.array([middle[0], middle[1] + 0.1, middle[2] + 0.1, np.inf])
    least = inside - np.array([0.1, np.inf, 0.1, np.inf, 0.0, 0.3, np.inf])
    most = inside + np.array([0.1, 0.1, np.inf, np.inf, 0.0, 0.3, 0.2])
    rows = random.standard_normal((2, n))
    y_set = bx.Box(least, most) & bx.Polyhedron(rows, rows @ inside - 0.1, rows @ inside + 0.1)
    return {
        "lower": lambda x, y: 0.5 * y @ hessian @ y + y @ (mixed @ x + linear),
        "coupling": [bx.LinearCoupling(a[part], b[part], low[part], high[part]) for part in (slice(2), slice(2, 4))],
        "y_set": y_set,
    }


@pytest.mark.parametrize("seed", range(4))
def test_multipliers_are_those_of_the_lower_level(seed):
    """Where they are unique, the larger problem finds the same y and the same multipliers."""
    parts = _every_kind_of_row(seed)
    plain = bx.BilevelProblem(lambda x, y: y @ y, **parts)
    knows = bx.BilevelProblem(lambda x, y, multipliers: y @ y + multipliers[1][0], multipliers_in_upper=True, **parts)
    x = 0.01 * np.random.default_rng(seed).standard_normal(2)
    wanted, found = bx.solve_lower_level(plain, x), bx.solve_lower_level(knows, x)
    assert found.y == pytest.approx(wanted.y, abs=1e-7)
    for one, other in zip(found.multipliers, wanted.multipliers, strict=True):
        assert one == pytest.approx(other, abs=1e-6)
    value = bx.certify(knows, x).value
    assert value == pytest.approx(wanted.y @ wanted.y + wanted.multipliers[1][0], rel=1e-6)


@pytest.mark.slow
def test_upper_rows_beside_prices():
    """A leader that may sell at most 2 bids 6.9: the dear rival makes 1, the price is 7.1."""
    problem = market(0.1)
    problem = bx.BilevelProblem(
        _income,
        _cost,
        problem.coupling,
        x_set=problem.x_set,
        y_set=problem.y_set,
        data=problem.data,
        upper_rows={"sold": bx.LinearCoupling(np.array([[1.0, 0.0, 0.0]]), upper=2.0)},
        multipliers_in_upper=True,
    )
    solution = bx.solve(problem, np.array([8.0]))
    assert solution.success
    assert solution.x == pytest.approx([6.9], rel=1e-6)
    assert solution.value == pytest.approx(-12.2, rel=1e-6)
    assert solution.certificate.upper_multipliers["sold"] > 0


@pytest.mark.slow
def test_many_starts_comparisons_and_proofs_know_prices():
    problem = market()
    found = bx.multistart(problem, np.array([[1.0], [6.5]]))
    assert found.best.value == pytest.approx(-18.0)
    assert found.best.y.shape == (3,)
    rows = bx.compare(problem, np.array([2.0]), points=3).rows()
    assert rows[0]["certified"]
    assert rows[1]["status"] == "refused"
    proof = bx.prove(problem, found.best)
    assert proof.upper_bound <= -18.0 + 1e-6 or str(proof.status) == "unsupported"
    seen = []
    bx.solve(problem, np.array([2.0]), callback=lambda now: seen.append(np.shape(now.y)) or False, max_steps=3)
    assert set(seen) == {(3,)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lower": lambda x, y: jnp.sum(jnp.exp(y))}, "linear or quadratic"),
        ({"lower": lambda x, y: x[0] ** 2 * jnp.sum(y)}, "linear or quadratic"),
        ({"lower": lambda x, y: y[0] ** 2 - y[1] ** 2}, "convex in y"),
        ({"y_set": bx.Ball(3.0)}, "a Ball"),
        ({"coupling": bx.ConvexCoupling(lambda x, y: jnp.sum(y**2) - 1), "y_like": np.zeros(2)}, "a ConvexCoupling"),
        ({"coupling": None}, "without a coupling"),
        ({"upper": lambda x, y: y[0]}, r"called as fn\(x, y, multipliers\)"),
        ({"multipliers_in_upper": 1}, "expected True or False"),
    ],
)
def test_what_is_outside_is_refused_by_name(changes, message):
    parts = {
        "upper": lambda x, y, multipliers: y[0] + jnp.sum(multipliers),
        "lower": lambda x, y: x[0] * y[0] + jnp.sum(y),
        "coupling": bx.LinearCoupling(np.ones((1, 2)), lower=1.0),
        "multipliers_in_upper": True,
    }
    with pytest.raises(ValueError, match=message):
        bx.solve(bx.BilevelProblem(**(parts | changes)), np.zeros(1))


def test_a_warm_start_of_another_kind_is_refused():
    other = bx.solve(bx.BilevelProblem(lambda x, y: (x + y) ** 2, lambda x, y: (y - x) ** 2), 1.0)
    with pytest.raises(ValueError, match="multipliers_in_upper"):
        bx.solve(market(), np.array([2.0]), warm_start=other)


def test_other_methods_refuse_by_name():
    with pytest.raises(ValueError, match="SFLCB: expected an f of x and y alone"):
        bx.solve(market(), np.array([2.0]), solver=bx.SFLCB())


def test_usual_problems_stay_as_they_are():
    problem = bx.BilevelProblem(lambda x, y: y, lambda x, y: (y - x) ** 2)
    assert usual(problem, 0.0).problem is problem


@pytest.mark.parametrize("x0", [10.0, 60.0])
def test_a_generator_withholds_what_makes_the_price(x0):
    """The bidding example of BilevelJuMP's manual: with rivals of 40 and 40 an offer of 20 leaves the price at 1000."""
    problem = bx.BilevelProblem(
        lambda offer, made, multipliers: multipliers["balance"][0] * made[0],
        lambda offer, made: jnp.array([0.0, 50.0, 100.0, 1000.0]) @ made,
        {
            "balance": bx.LinearCoupling(np.ones((1, 4)), lower=100.0, upper=100.0),
            "offer": bx.LinearCoupling(np.eye(1, 4), -np.eye(1), upper=0.0),
        },
        x_set=bx.Box(0.0, 100.0),
        y_set=bx.Box(0.0, np.array([100.0, 40.0, 40.0, 100.0])),
        multipliers_in_upper=True,
    )
    solution = bx.solve(problem, np.array([x0]))
    assert solution.success
    assert solution.value == pytest.approx(-20000.0)
    assert solution.x == pytest.approx([20.0])
    assert solution.certificate.value_range == pytest.approx((-20000.0, -2000.0))
