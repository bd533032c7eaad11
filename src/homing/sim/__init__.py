"""Runs the engine on virtual time: simulation runs with injected faults, and rehearsals of an outage."""
