"""The pure core: the vocabulary, the retry decision and the row transitions.

Values come in and values go out. No module here does I/O, logs, or reads a clock or a random source; they
import the standard library and msgspec only. Start with `notifications`, which defines the vocabulary.
"""
