"""A random quadratic problem of ``benchmarks/proofs.py`` proven by discopt; run by an interpreter that has discopt.

Reads the problem's numbers as JSON from standard input, writes value, bound, status and CPU seconds as JSON. discopt
has to be told boxes for y and for the multipliers, which are not known: wide ones, far from active at the optima.
"""

import json
import sys
import time
from typing import Any

import numpy as np

REACH, MULTIPLIERS = 100.0, 200.0  # asserted bounds


def proven(d: dict[str, np.ndarray], time_limit: float) -> dict[str, Any]:
    """State the problem and solve it."""
    from discopt.bilevel import BilevelProblem  # pyright: ignore[reportMissingImports]
    from discopt.modeling.core import Model  # pyright: ignore[reportMissingImports]

    n_y, n_x = d["R"].shape
    model = Model("random")
    x = [model.continuous(f"x{k}", lb=-5, ub=5) for k in range(n_x)]
    y = [model.continuous(f"y{k}", lb=-REACH, ub=REACH) for k in range(n_y)]
    linear = lambda c, z: sum(float(a) * v for a, v in zip(c, z, strict=True))
    quadratic = lambda Q, z: 0.5 * sum(each * linear(row, z) for each, row in zip(z, Q, strict=True))
    both = x + y
    model.minimize(quadratic(d["W"], both) + linear(d["w"], both))
    prices = [linear(row, x) + float(c) for row, c in zip(d["R"], d["c"], strict=True)]
    lower = quadratic(d["Q"], y) + sum(price * each for price, each in zip(prices, y, strict=True))
    rows = [linear(a, y) + linear(b, x) <= float(u) for a, b, u in zip(d["A"], d["B"], d["b"], strict=True)]
    BilevelProblem(
        model,
        upper_vars=x,
        lower_vars=y,
        lower_objective=lower,
        lower_constraints=rows,
        include_follower_bounds=False,
        multiplier_ub=MULTIPLIERS,
    ).formulate(method="kkt", mpec_method="gdp")
    began = time.process_time()
    result = model.solve(time_limit=time_limit, gap_tolerance=1e-4)
    seconds = time.process_time() - began
    return {"value": result.objective, "bound": result.bound, "status": str(result.status), "cpu_seconds": seconds}


if __name__ == "__main__":
    given = json.load(sys.stdin)
    numbers = {name: np.array(values) for name, values in given["numbers"].items()}
    print("RESULT", json.dumps(proven(numbers, given["time_limit"])))
