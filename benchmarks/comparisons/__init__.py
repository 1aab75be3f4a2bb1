"""What `default.py` compares: one file a command, and the parts they share.

`instance` is a bilevel problem in plain numbers, from which every program of a comparison is built; `mpcc` hands one to
pympcc with IPOPT; `quadratics` and `network` build instances; `report` times, prints and holds the targets.
"""
