"""When, where and from which code numbers come."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path


def made() -> dict[str, str]:
    """Return date, commit and machine; the commit is unknown where bilevax is not run from a checkout."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": _commit(),
        "machine": f"{_processor()}, {os.cpu_count()} cores",
    }


def _commit() -> str:
    """Return the commit of the package, and whether its code was changed since; what figures write does not count."""
    package = str(Path(__file__).parents[2])
    try:
        commit = subprocess.run(
            ["git", "-C", package, "describe", "--always"], capture_output=True, text=True, check=True
        ).stdout.strip()
        changed = subprocess.run(["git", "-C", package, "diff", "--quiet", "HEAD", "--", "."], check=False).returncode
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{commit}-dirty" if changed else commit


def _processor() -> str:
    known = Path("/proc/cpuinfo")
    lines = known.read_text().splitlines() if known.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
