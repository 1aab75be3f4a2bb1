"""How the pages in this folder become a site: Markdown by MyST, the API from docstrings, the theme furo.

Formulas become MathML, which browsers draw by themselves, without a script; the font for them is part of the site.
"""

import importlib.metadata
import importlib.resources
import re

import math_core
from docutils import nodes

import bilevax

project = "bilevax"
author = "The bilevax developers"
project_copyright = "The bilevax developers, Apache-2.0"
version = release = importlib.metadata.version("bilevax")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = f"bilevax {version}"
html_copy_source = False
html_static_path = ["static", str(importlib.resources.files("ziamath") / "fonts" / "STIXTwoMath-Regular.ttf")]
html_css_files = ["formulas.css"]
html_math_renderer = "mathml"
myst_heading_anchors = 3
myst_enable_extensions = ["dollarmath"]
myst_fence_as_directive = ["math"]  # a block ```math, which GitHub draws too

default_role = "py:obj"  # `Name` in a docstring is a reference
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 80  # longer ones have a parameter a line
autodoc_preserve_defaults = True
napoleon_google_docstring = False
napoleon_attr_annotations = False
napoleon_use_param = False  # "lower, upper" stay together
napoleon_custom_sections = [("Attributes", "params_style")]

# Types in signatures that have no page here: those of other packages, and those that users only hand on.
_HANDED_ON = "SFLCBState|ConvexSet|Solver|CompiledSolver|RandomQuadratic|Contender|ConvexSolution|Descent"
nitpick_ignore_regex = [
    ("py:class", r"(collections|jax|jaxlib|jaxtyping|numpy|pathlib)\..*|Axes|Figure"),
    ("py:class", rf"(bilevax\..*\.)?({_HANDED_ON})"),
]

_CODE = re.compile(r"(`+[^`]*`+)")


def plain_docstrings(app, what, name, obj, options, lines):
    """Show indented formulas as written, and ``|x|`` and ``y'*`` in prose: they would be quotations and markup."""
    result, indent, formula = [], 0, None
    for line in lines:
        depth = len(line) - len(line.lstrip())
        if line.strip():
            if formula is not None and depth < formula:
                formula = None
            if formula is None and depth > indent and result and not result[-1].strip():
                result += [" " * indent + "::", ""]
                formula = depth
            if formula is None:
                indent = depth
                parts = _CODE.split(line)
                parts[::2] = [re.sub(r"\||(?<=')\*", r"\\\g<0>", part) for part in parts[::2]]
                line = "".join(parts)
        result.append(line)
    lines[:] = result


def public_name(app, env, node, contnode):
    """Find what a docstring of any module calls by its public name, such as `Solution`."""
    if node.get("reftype") == "obj" and node["reftarget"] in bilevax.__all__:
        target = f"bilevax.{node['reftarget']}"
        return env.get_domain("py").resolve_xref(env, node["refdoc"], app.builder, "obj", target, node, contnode)
    return None


_LATEX = math_core.LatexToMathML(fancy_error=False)


def inline_formula(translator, node):
    """Write a formula in a line of text; a word joiner behind it keeps a full stop on the same line."""
    formula = _LATEX.convert_with_local_state(node.astext(), displaystyle=False)
    translator.body.append(f'<span class="inline-formula">{formula}&#8288;</span>')
    raise nodes.SkipNode


def displayed_formula(translator, node):
    """Write a formula on lines of its own, which scrolls by itself where the screen is narrow."""
    formula = _LATEX.convert_with_local_state(node.astext(), displaystyle=True)
    translator.body.append(f'<div class="formula">{formula}</div>\n')
    raise nodes.SkipNode


def setup(app):
    """Register the hooks; docstrings are prepared before napoleon indents their sections."""
    app.add_html_math_renderer("mathml", (inline_formula, None), (displayed_formula, None))
    app.connect("autodoc-process-docstring", plain_docstrings, priority=100)
    app.connect("missing-reference", public_name)
