"""The pure heart of Homing: vocabulary, policy and the one decision. No I/O, clock, randomness or logging."""
