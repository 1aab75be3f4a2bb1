"""The command ``bilevax``: what its commands are called; what they do is in the modules of this package."""

import sys
from typing import Annotated

try:
    import rich  # noqa: F401
    import typer
except ImportError as error:
    print(f"the command bilevax needs {error.name}: pip install 'bilevax[cli]'", file=sys.stderr)
    raise SystemExit(2) from error

from bilevax.app.cli import comparing, networks, project, proving, solving
from bilevax.app.cli.compiled import keep_compiled

app = typer.Typer(
    callback=keep_compiled,
    help="Bilevel optimisation with certified answers.",
    epilog="Exit codes: 0 success; 1 an answer, but without success; 2 wrong input. "
    "With --json, standard output is one JSON object; numbers that are not finite are the strings "
    "'NaN', 'Infinity' and '-Infinity', and wrong input is {'error': ...}.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)


@app.callback()
def about(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=project.show_version, help="Print the version.")
    ] = False,
) -> None:
    """Bilevel optimisation with certified answers."""


app.command("demo")(solving.demonstrate)
app.command("solve")(solving.solve_file)
app.command("certify")(solving.certify_file)
app.command("prove")(proving.prove_file)
app.command("multistart")(solving.multistart_file)
app.command("network")(networks.design_network)
app.command("compare")(comparing.compare_methods)
app.command("reproduce")(project.reproduce)
app.command("bench", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(project.bench)
app.command("info")(project.info)
