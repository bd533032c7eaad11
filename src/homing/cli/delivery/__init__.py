"""Commands that deliver: `process`, `worker` and `serve`, and the supervisor of their child processes."""
