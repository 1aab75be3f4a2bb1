"""The variants of the default solver, where the library has them."""

from typing import Any

import bilevax as bx


def variants(wanted: list[str] | None = None) -> dict[str, Any]:
    """Return the variants by name; the default alone, as None, where it has no variants to choose from."""
    try:
        found = {name: bx.Default(variant=name) for name in ("direct", "first-order")}  # pyright: ignore
    except TypeError:
        found = {"default": None}
    return found if wanted is None else {name: solver for name, solver in found.items() if name in wanted}
