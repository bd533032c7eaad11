"""Commands that set up and check an installation: `init`, `doctor`, `db` and `bench`."""
