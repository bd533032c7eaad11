"""The simulator: the production code on virtual time, with random faults, checked against the invariants.

`python -m simulation` runs a campaign. This folder is not part of the installed package.
"""
