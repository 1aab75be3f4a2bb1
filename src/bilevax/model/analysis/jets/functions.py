"""Functions of one number: the value and its first two derivatives, and the chain rule."""

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import special


def power_rule(v: np.ndarray, p: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return ``v**p`` with its derivatives."""
    return v**p, p * v ** (p - 1.0), p * (p - 1.0) * v ** (p - 2.0)


def integer_power_rule(v: np.ndarray, p: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return ``v**p`` with its derivatives, also where v is zero."""
    term = lambda factor, power: factor * v**power if factor else np.zeros_like(v)
    return v ** float(p), term(float(p), float(p - 1)), term(float(p * (p - 1)), float(p - 2))


def _logistic(v: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    s = special.expit(v)
    d = s * special.expit(-v)
    return s, d, d * (1 - 2 * s)


def _tanh(v: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    t = np.tanh(v)
    return t, 1 - t**2, -2 * t * (1 - t**2)


def _tan(v: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    t = np.tan(v)
    return t, 1 + t**2, 2 * t * (1 + t**2)


def _gauss(v: np.ndarray) -> np.ndarray:
    return 2 / np.sqrt(np.pi) * np.exp(-(v**2))


def _erf_inv(v: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    w = special.erfinv(v)
    d = 1 / _gauss(w)
    return w, d, 2 * w * d**2


def _cbrt(v: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    r = np.cbrt(v)
    return r, 1 / (3 * r**2), -2 / (9 * r**5)


def _constant_slope(slope: Any) -> Callable:
    return lambda v, _: (v * slope(v), slope(v), np.zeros_like(v))


UNARY: dict[str, Callable] = {
    "neg": lambda v, _: (-v, -np.ones_like(v), np.zeros_like(v)),
    "abs": _constant_slope(np.sign),
    "exp": lambda v, _: (np.exp(v),) * 3,
    "exp2": lambda v, _: (np.exp2(v), np.log(2) * np.exp2(v), np.log(2) ** 2 * np.exp2(v)),
    "expm1": lambda v, _: (np.expm1(v), np.exp(v), np.exp(v)),
    "log": lambda v, _: (np.log(v), np.where(v >= 0, 1 / v, np.nan), np.where(v >= 0, -1 / v**2, np.nan)),
    "log1p": lambda v, _: (np.log1p(v), np.where(v >= -1, 1 / (1 + v), np.nan), -1 / (1 + v) ** 2),
    "sqrt": lambda v, _: power_rule(v, 0.5),
    "rsqrt": lambda v, _: power_rule(v, -0.5),
    "cbrt": lambda v, _: _cbrt(v),
    "square": lambda v, _: (v**2, 2 * v, np.full_like(v, 2.0)),
    "integer_pow": lambda v, params: integer_power_rule(v, params["y"]),
    "sin": lambda v, _: (np.sin(v), np.cos(v), -np.sin(v)),
    "cos": lambda v, _: (np.cos(v), -np.sin(v), -np.cos(v)),
    "tan": lambda v, _: _tan(v),
    "asin": lambda v, _: (np.arcsin(v), (1 - v**2) ** -0.5, v * (1 - v**2) ** -1.5),
    "acos": lambda v, _: (np.arccos(v), -((1 - v**2) ** -0.5), -v * (1 - v**2) ** -1.5),
    "atan": lambda v, _: (np.arctan(v), 1 / (1 + v**2), -2 * v / (1 + v**2) ** 2),
    "sinh": lambda v, _: (np.sinh(v), np.cosh(v), np.sinh(v)),
    "cosh": lambda v, _: (np.cosh(v), np.sinh(v), np.cosh(v)),
    "tanh": lambda v, _: _tanh(v),
    "asinh": lambda v, _: (np.arcsinh(v), (1 + v**2) ** -0.5, -v * (1 + v**2) ** -1.5),
    "acosh": lambda v, _: (np.arccosh(v), (v**2 - 1) ** -0.5, -v * (v**2 - 1) ** -1.5),
    "atanh": lambda v, _: (np.arctanh(v), 1 / (1 - v**2), 2 * v / (1 - v**2) ** 2),
    "logistic": lambda v, _: _logistic(v),
    "erf": lambda v, _: (special.erf(v), _gauss(v), -2 * v * _gauss(v)),
    "erfc": lambda v, _: (special.erfc(v), -_gauss(v), 2 * v * _gauss(v)),
    "erf_inv": lambda v, _: _erf_inv(v),
    "lgamma": lambda v, _: (special.gammaln(v), special.digamma(v), special.polygamma(1, v)),
    "digamma": lambda v, _: (special.digamma(v), special.polygamma(1, v), special.polygamma(2, v)),
    "xlogx": lambda v, _: (special.xlogy(v, v), np.log(v) + 1, 1 / v),
}


def chain_rule(a: np.ndarray, rule: Callable) -> np.ndarray:
    """Return the jet of a function of one number, by the chain rule."""
    value, d1, d2 = rule(a[0])
    if len(a) == 1:
        return np.asarray(value)[None]
    size1, size2 = np.abs(d1), np.abs(d2)
    return np.stack([value, d1 * a[1], d2 * a[1] ** 2 + d1 * a[2], size1 * a[3], size2 * a[3] ** 2 + size1 * a[4]])


# Functions whose derivative is zero, where there is one.
STEPS: dict[str, Callable] = {
    "sign": np.sign,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.round,
    "is_finite": np.isfinite,
    "not": lambda v: ~v,
}
