-- runs with: 1
-- A step of the clock that processes do not believe yet, see `core/clock_steps.py`. At most one row.
CREATE TABLE homing_clock (
    id            INTEGER PRIMARY KEY CHECK (id = 1),
    correction_ms INTEGER NOT NULL,
    suspected_at  INTEGER NOT NULL,
    renewed_at    INTEGER NOT NULL
);
