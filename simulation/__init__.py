"""The simulator: production code on virtual time, with random faults, checked against the invariants.

`python -m simulation` runs a campaign. It is not part of the installed package.
"""
