"""Commands that deliver: `process`, `worker` and `serve`, and the supervisor of the processes of `serve`."""
