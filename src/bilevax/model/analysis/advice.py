"""What is usually done about a kink, in the words of the field."""

from typing import Any

#: Functions of JAX whose name says more than that of the operation inside.
_CALLS = ("relu", "relu6", "leaky_relu", "clip", "median", "quantile", "percentile", "norm", "ptp", "argsort", "interp")

_NAMES = {
    "select_n": "where",
    "reduce_max": "max",
    "reduce_min": "min",
    "clamp": "clip",
    "convert_element_type": "a comparison used as a number",
    "rem": "mod",
    "sqrt": "norm",
    "pow": "a power at zero",
}

_ADVICE = {
    "abs": "write e = p - q with p, q >= 0 and use p + q, or a variable t with the rows -t <= e <= t and use t",
    "max": "use a variable t with the rows t >= a, t >= b in place of max(a, b)",
    "relu": "use a variable t with the rows t >= 0, t >= e in place of relu(e)",
    "min": "min is not convex; -min(a, b) = max(-a, -b) is, with a variable t and the rows t >= -a, t >= -b",
    "clip": "clip is neither convex nor smooth; use bounds or rows on the variable instead",
    "norm": "use the square of the norm, or sqrt(sum of squares + a small number)",
    "where": "join the cases with equal values and slopes, or use a variable t with a row t >= case each, if convex",
    "a power at zero": "use an exponent of 2 or more, or add a small number to the base",
    "cbrt": "the cube root has no derivative at zero; keep its argument away from it",
    "stop_gradient": "the derivative JAX computes is not that of the function; remove it",
    "while": "loops whose length depends on variables are not analysed; write the result in closed form",
    "scan": "long loops are not analysed; write the result in closed form",
}

_STEPS = ("sign", "floor", "ceil", "round", "mod", "argmax", "argmin", "argsort", "a comparison used as a number")
_ORDERED = ("sort", "top_k", "median", "quantile", "percentile")


def called(op: Any) -> str:
    """Return the name by which a user knows an operation."""
    return next((call for call in reversed(op.calls) if call in _CALLS), _NAMES.get(op.name) or str(op.name))


def rewriting(name: str) -> str:
    """Return the usual rewriting of what has a kink."""
    if name in _STEPS:
        return f"{name} is not continuous; no smooth or convex rewriting exists"
    if name in _ORDERED:
        return (
            f"{name} is not smooth and in general not convex; sums of the largest entries are, with variables and rows"
        )
    if name in ("cummax", "leaky_relu", "ptp"):
        return _ADVICE["max"]
    if name == "relu6":
        return _ADVICE["clip"]
    if name in ("eigh", "eig", "svd"):
        return "eigenvalues have kinks where they meet; use smooth functions of the matrix, or rows"
    return _ADVICE.get(name, "use a smooth expression, or variables with rows if it is convex")
