-- runs with: 1
-- The sums of `homing_roll_ups` for each minute, kept for 48 hours. `attempt_ms` is the total duration of the attempts.
-- `late_0` to `late_11` count what was sent by how late it was. What the previous release does is not counted.
CREATE TABLE homing_minute_roll_ups (
    minute_at  INTEGER NOT NULL,
    tenant     TEXT    NOT NULL,
    channel    TEXT    NOT NULL,
    provider   TEXT    NOT NULL,
    accepted   INTEGER NOT NULL DEFAULT 0,
    sent       INTEGER NOT NULL DEFAULT 0,
    delivered  INTEGER NOT NULL DEFAULT 0,
    failed     INTEGER NOT NULL DEFAULT 0,
    retried    INTEGER NOT NULL DEFAULT 0,
    attempts   INTEGER NOT NULL DEFAULT 0,
    bounced    INTEGER NOT NULL DEFAULT 0,
    opened     INTEGER NOT NULL DEFAULT 0,
    clicked    INTEGER NOT NULL DEFAULT 0,
    attempt_ms INTEGER NOT NULL DEFAULT 0,
    late_0     INTEGER NOT NULL DEFAULT 0,
    late_1     INTEGER NOT NULL DEFAULT 0,
    late_2     INTEGER NOT NULL DEFAULT 0,
    late_3     INTEGER NOT NULL DEFAULT 0,
    late_4     INTEGER NOT NULL DEFAULT 0,
    late_5     INTEGER NOT NULL DEFAULT 0,
    late_6     INTEGER NOT NULL DEFAULT 0,
    late_7     INTEGER NOT NULL DEFAULT 0,
    late_8     INTEGER NOT NULL DEFAULT 0,
    late_9     INTEGER NOT NULL DEFAULT 0,
    late_10    INTEGER NOT NULL DEFAULT 0,
    late_11    INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (minute_at, tenant, channel, provider)
) WITHOUT ROWID;
