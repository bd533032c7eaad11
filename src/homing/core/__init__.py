"""The pure core: the rules of delivery, the checks of requests, and the interfaces of plug-ins.

No module of this package does I/O, logs, or reads a clock or a random source. Outside the package, the
modules import only the standard library and msgspec. Start with `notifications`, which defines the basic
types.
"""
