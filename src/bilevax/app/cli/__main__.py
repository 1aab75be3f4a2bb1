"""``python -m bilevax.app.cli`` is the command ``bilevax``."""

from bilevax.app.cli import app

app()
