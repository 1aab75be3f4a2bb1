"""How long something took, on a machine that may be busy with other work."""

import time


class Stopwatch:
    """Seconds since it was started, without most of those in which other processes had the cores.

    Never more than the wall clock's, nor than what this process computed. Where a limit is kept by the wall clock, as
    all of ours are, the work after it is all that the second can exceed.
    """

    def __init__(self) -> None:
        self._wall, self._computed = time.monotonic(), time.process_time()

    def seconds(self) -> float:
        return min(time.monotonic() - self._wall, time.process_time() - self._computed)
