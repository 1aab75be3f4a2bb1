"""Reading text files line by line, with errors that name the file and the line."""

from pathlib import Path
from typing import NoReturn


def text(path: Path) -> str:
    """Return what a text file holds; raise a `ValueError` that names the file if it is not text."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: expected a text file, got bytes that are no text ({error.reason}).") from error


def refuse(path: Path, line: int, expected: str, came: str) -> NoReturn:
    """Raise a `ValueError` that names the file and the line, what was expected and what came instead."""
    raise ValueError(f"{path}, line {line}: expected {expected}, got {came!r}.")


def number(word: str, path: Path, line: int, expected: str) -> float:
    """Return a word as a number, or raise the `ValueError` of `refuse`."""
    try:
        return float(word)
    except ValueError:
        refuse(path, line, expected, word)


def integer(word: str, path: Path, line: int, expected: str) -> int:
    """Return a word as a whole number, or raise the `ValueError` of `refuse`."""
    try:
        return int(word)
    except ValueError:
        refuse(path, line, expected, word)
