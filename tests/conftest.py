"""That this file is here puts the folder on the import path: what several suites share lies in it."""

pytest_plugins = ["servers"]
