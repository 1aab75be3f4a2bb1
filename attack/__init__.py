"""Hard problems with an independent judge: `make attack` tries to fool bilevax's `success`.

Data flow one way: `families` draw a `model.Case` -> `subject` hands it to bilevax and brings back a plain claim
-> `judge` (NumPy and SciPy, no code of the package) decides -> `runner` and `report` count.
"""
