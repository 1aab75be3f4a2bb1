"""The layers of the package: each imports only from those above it, and the certificate shares nothing with solvers."""

import ast
import pathlib

import pytest

import bilevax

ROOT = pathlib.Path(bilevax.__file__).parent

# Each layer may import from itself and from the lines above its own; two on one line know nothing of each other.
LAYERS = [
    ["_support"],
    ["convex"],
    ["model"],
    ["exact"],
    ["certificate", "solvers"],
    ["proof"],
    ["driver"],
    ["paper"],
    ["problems"],
    ["datasets"],
    ["app", "sklearn"],
    [""],  # the public names
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}

# Conveniences of the public interface, imported when they are called.
ON_CALL = {
    ("solvers.sflcb", "paper.step_sizes"),  # SFLCB.from_theory
    ("driver.comparison", "app.plot"),  # Comparison.plot
}


def _modules() -> dict[str, pathlib.Path]:
    names = {}
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        names[".".join(part for part in parts if part != "__init__")] = path
    return names


MODULES = _modules()


def _imports(name: str) -> set[tuple[str, bool]]:
    """Return the modules of the package that a module imports, and whether it does so when it is loaded."""
    tree = ast.parse(MODULES[name].read_text())
    inside = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
        for part in ast.walk(node)
    }
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "bilevax":
            base = (node.module or "").removeprefix("bilevax").lstrip(".")
            for alias in node.names:
                below = f"{base}.{alias.name}".lstrip(".")
                found.add((below if below in MODULES else base, id(node) not in inside))
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("bilevax."):
                    found.add((alias.name.removeprefix("bilevax."), id(node) not in inside))
    return found


def _layer(name: str) -> str:
    return name.split(".")[0]


@pytest.mark.parametrize("name", sorted(MODULES))
def test_a_module_imports_only_from_its_own_layer_and_those_above(name):
    layer = _layer(name)
    for imported, _ in _imports(name):
        other = _layer(imported)
        allowed = other == layer or RANK[other] < RANK[layer] or (name, imported) in ON_CALL
        assert allowed, f"{name} imports {imported}, which is in a layer beside or below its own"


@pytest.mark.parametrize("name", sorted(name for name in MODULES if name.startswith("solvers.default")))
def test_the_default_shares_only_the_model_with_its_certificate(name):
    assert {_layer(imported) for imported, _ in _imports(name)} <= {"_support", "model", "solvers"}


def test_no_module_imports_itself_in_a_circle():
    graph = {name: {other for other, at_once in _imports(name) if at_once and other != name} for name in MODULES}
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join([*path[path.index(name) :], name])
        if name not in done:
            for other in graph[name]:
                visit(other, (*path, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def test_exceptions_are_still_needed():
    for name, imported in ON_CALL:
        assert (imported, False) in _imports(name)
