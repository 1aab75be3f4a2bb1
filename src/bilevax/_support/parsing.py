"""Reading text files line by line: what a malformed line is told."""

from pathlib import Path
from typing import NoReturn


def text(path: Path) -> str:
    """Return what a text file holds; a `ValueError` with its name where it holds something else."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: expected a text file, got bytes that are no text ({error.reason}).") from error


def refuse(path: Path, line: int, expected: str, came: str) -> NoReturn:
    """Raise a `ValueError` with the file and the line, what came and what was expected."""
    raise ValueError(f"{path}, line {line}: expected {expected}, got {came!r}.")


def number(word: str, path: Path, line: int, expected: str) -> float:
    """Return a word as a number, or refuse the line."""
    try:
        return float(word)
    except ValueError:
        refuse(path, line, expected, word)


def integer(word: str, path: Path, line: int, expected: str) -> int:
    """Return a word as a whole number, or refuse the line."""
    try:
        return int(word)
    except ValueError:
        refuse(path, line, expected, word)
