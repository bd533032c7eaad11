-- runs with: 4
-- The sinks that events are published to. Every transaction that writes events reads this table first. A process that
-- adds or removes a sink then waits for the transactions that had read the table before: each event is written for the
-- sinks that are registered when it is committed.
CREATE TABLE homing.sinks (
    name          text COLLATE "C" PRIMARY KEY,
    kind          text COLLATE "C" NOT NULL,
    events        text COLLATE "C" NOT NULL,
    durable       boolean NOT NULL,
    registered_at bigint NOT NULL,
    last_seen_at  bigint NOT NULL
) WITH (fillfactor = 50);

-- The outbox: one row per event and sink, written with the change that the event describes.
CREATE TABLE homing.sink_events (
    number          bigint GENERATED ALWAYS AS IDENTITY,
    at              bigint NOT NULL,
    sink            text COLLATE "C" NOT NULL,
    notification_id text COLLATE "C",
    id              text COLLATE "C" NOT NULL,
    name            text COLLATE "C" NOT NULL,
    tenant          text COLLATE "C" NOT NULL,
    payload         text COLLATE "C" NOT NULL,
    PRIMARY KEY (sink, number),
    UNIQUE (sink, id)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000);
CREATE INDEX sink_events_age ON homing.sink_events (at);

ALTER TABLE homing.sinks ENABLE ROW LEVEL SECURITY;
ALTER TABLE homing.sink_events ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON homing.sink_events FOR SELECT USING (tenant = (SELECT homing.callers_tenant()));

-- The previous release writes events without a sink to `homing.outbox`. Once a sink is registered, they go to every
-- sink that wants them, in the same transaction. Until then they stay, and the first sinks that register get a copy.
CREATE FUNCTION homing.outbox_to_sinks() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM homing.sinks) THEN
        RETURN NEW;
    END IF;
    INSERT INTO homing.sink_events (sink, id, name, tenant, at, notification_id, payload)
    SELECT s.name, NEW.id, NEW.name, NEW.tenant, NEW.at, NEW.notification_id, NEW.payload
    FROM homing.sinks AS s WHERE NEW.name = ANY(string_to_array(s.events, ','))
    ON CONFLICT (sink, id) DO NOTHING;
    RETURN NULL;
END
$$;
CREATE TRIGGER outbox_to_sinks BEFORE INSERT ON homing.outbox
    FOR EACH ROW EXECUTE FUNCTION homing.outbox_to_sinks();
