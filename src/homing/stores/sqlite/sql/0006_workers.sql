-- runs with: 1
-- The workers, each as its last heartbeat described it. `lanes` and `providers` hold JSON. A worker that stops removes
-- its row; one that died is removed a day later.
CREATE TABLE homing_workers (
    name       TEXT    PRIMARY KEY,
    version    TEXT    NOT NULL,
    lanes      TEXT    NOT NULL,
    providers  TEXT    NOT NULL,
    draining   INTEGER NOT NULL,
    started_at INTEGER NOT NULL,
    seen_at    INTEGER NOT NULL
) WITHOUT ROWID;
