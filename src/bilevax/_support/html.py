"""What notebooks show of an answer: small tables in HTML."""

import html
from collections.abc import Iterable, Sequence


def facts(title: str, lines: Iterable[tuple[str, str]]) -> str:
    """Return a title and facts by their names, a line each."""
    rows = "".join(f"<tr><th style='text-align:left'>{_text(key)}</th>{_cell(value)}</tr>" for key, value in lines)
    return f"<b>{_text(title)}</b><table>{rows}</table>"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], below: Sequence[str] = ()) -> str:
    """Return rows of texts under their heads, and sentences below them."""
    head = "".join(f"<th>{_text(name)}</th>" for name in heads)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>" + "".join(f"<p>{_text(line)}</p>" for line in below)


def _cell(text: str) -> str:
    return f"<td style='text-align:left'>{_text(text)}</td>"


def _text(text: str) -> str:
    return html.escape(str(text))
