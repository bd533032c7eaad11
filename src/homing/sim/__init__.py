"""The engine's own code on virtual time: worlds full of faults, and rehearsals of an outage."""
