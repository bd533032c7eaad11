-- runs with: 1
-- How many notifications of each hour, tenant and delivery mode were sent within the latency goal of the mode, and how
-- many later. What the previous release sends is not counted.
CREATE TABLE homing_goals (
    hour_at INTEGER NOT NULL,
    tenant  TEXT    NOT NULL,
    mode    TEXT    NOT NULL,
    met     INTEGER NOT NULL DEFAULT 0,
    missed  INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (hour_at, tenant, mode)
) WITHOUT ROWID;
-- Opens and clicks that providers reported.
ALTER TABLE homing_roll_ups ADD COLUMN opened INTEGER NOT NULL DEFAULT 0;
ALTER TABLE homing_roll_ups ADD COLUMN clicked INTEGER NOT NULL DEFAULT 0;
