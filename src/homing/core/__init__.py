"""The pure rules of Homing: vocabulary, policies and decisions. No I/O, clock, randomness or logging."""
