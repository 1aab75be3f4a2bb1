"""Answers as one HTML page: `write`; and a certificate line by line: `checks`."""

from bilevax.app.report.lines import Check, checks, short
from bilevax.app.report.page import require, versions, write

__all__ = ["Check", "checks", "require", "short", "versions", "write"]
