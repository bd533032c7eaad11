-- runs with: 1
-- The sinks that events are published to. `events` holds the names of its events, separated by commas.
CREATE TABLE homing_sinks (
    name          TEXT    PRIMARY KEY,
    kind          TEXT    NOT NULL,
    events        TEXT    NOT NULL,
    durable       INTEGER NOT NULL,
    registered_at INTEGER NOT NULL,
    last_seen_at  INTEGER NOT NULL
) WITHOUT ROWID;

-- The outbox: one row per event and sink, written with the change that the event describes.
CREATE TABLE homing_sink_events (
    number          INTEGER PRIMARY KEY AUTOINCREMENT,
    sink            TEXT    NOT NULL,
    id              TEXT    NOT NULL,
    name            TEXT    NOT NULL,
    tenant          TEXT    NOT NULL,
    at              INTEGER NOT NULL,
    notification_id TEXT,
    payload         TEXT    NOT NULL,
    UNIQUE (sink, id)
);
CREATE INDEX homing_sink_events_next ON homing_sink_events (sink, number);
CREATE INDEX homing_sink_events_age ON homing_sink_events (at);

-- The previous release writes events without a sink to `homing_outbox`. Once a sink is registered, they go to every
-- sink that wants them, in the same transaction. Until then they stay, and the first sinks that register get a copy.
CREATE TRIGGER homing_outbox_to_sinks BEFORE INSERT ON homing_outbox
WHEN EXISTS (SELECT 1 FROM homing_sinks)
BEGIN
    INSERT OR IGNORE INTO homing_sink_events (sink, id, name, tenant, at, notification_id, payload)
    SELECT s.name, NEW.id, NEW.name, NEW.tenant, NEW.at, NEW.notification_id, NEW.payload
    FROM homing_sinks AS s WHERE instr(',' || s.events || ',', ',' || NEW.name || ',') > 0;
    SELECT RAISE(IGNORE);
END;
