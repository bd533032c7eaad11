-- runs with: 4
-- The workers, each as its last heartbeat described it. `lanes` and `providers` hold JSON. A worker that stops removes
-- its row; one that died is removed a day later.
CREATE TABLE homing.workers (
    name       text COLLATE "C" PRIMARY KEY,
    version    text COLLATE "C" NOT NULL,
    lanes      text COLLATE "C" NOT NULL,
    providers  text COLLATE "C" NOT NULL,
    draining   boolean NOT NULL,
    started_at bigint NOT NULL,
    seen_at    bigint NOT NULL
) WITH (fillfactor = 50);

ALTER TABLE homing.workers ENABLE ROW LEVEL SECURITY;
