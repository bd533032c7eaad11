-- runs with: 4
-- A step of the clock that processes do not believe yet, see `core/clock_steps.py`. At most one row.
CREATE TABLE homing.clock (
    id            integer PRIMARY KEY CHECK (id = 1),
    correction_ms bigint NOT NULL,
    suspected_at  bigint NOT NULL,
    renewed_at    bigint NOT NULL
);

ALTER TABLE homing.clock ENABLE ROW LEVEL SECURITY;
