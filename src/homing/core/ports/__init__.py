"""The interfaces between Homing and its plug-ins: stores, providers, clocks, observers and other services."""
