-- The SQL functions and views for triggers and for operators who use psql. Requests and commands wait in `inbox`
-- until a worker processes them in the same way as those from the library or the service.

CREATE TABLE homing.inbox (
    number          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    enqueued_at     bigint  NOT NULL,
    lease_until     bigint  NOT NULL DEFAULT 0,
    id              uuid    NOT NULL, -- id of the request's notification, or of its batch
    notification_id uuid,             -- the notification that a command targets
    max_retries     integer,
    already_failed  boolean NOT NULL DEFAULT false,
    kind            text COLLATE "C" NOT NULL CHECK (kind IN ('send', 'retry', 'acknowledge', 'resend', 'cleanup')),
    tenant          text COLLATE "C" NOT NULL,
    request         text COLLATE "C",
    last_error      text COLLATE "C",
    who             text COLLATE "C" NOT NULL DEFAULT '',
    why             text COLLATE "C" NOT NULL DEFAULT ''
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000);
CREATE INDEX inbox_id ON homing.inbox (id);
CREATE INDEX inbox_command ON homing.inbox (notification_id) WHERE notification_id IS NOT NULL;

ALTER TABLE homing.inbox ENABLE ROW LEVEL SECURITY; -- without a policy: only the functions can access it

-- The retry delays of the workers' policy, as the workers last wrote them. Initially those of the preset `fixed`.
CREATE TABLE homing.schedule (
    retry    integer PRIMARY KEY,
    delay_ms bigint NOT NULL
);
INSERT INTO homing.schedule (retry, delay_ms)
VALUES (0, 60000), (1, 300000), (2, 900000), (3, 3600000), (4, 21600000);

ALTER TABLE homing.schedule ENABLE ROW LEVEL SECURITY;

CREATE FUNCTION homing.moment(at_ms bigint) RETURNS timestamptz
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog
    AS $$ SELECT 'epoch'::timestamptz + at_ms * interval '1 millisecond' $$;

-- Returns the time of retry `n` (the first is 0) if the attempt before it fails now.
CREATE FUNCTION homing.calculate_next_retry(n integer) RETURNS timestamptz
    LANGUAGE sql STABLE STRICT PARALLEL SAFE SECURITY DEFINER SET search_path = pg_catalog
    AS $$
        SELECT homing.moment(homing.now_ms() + delay_ms) FROM homing.schedule
        WHERE retry <= greatest(n, 0) ORDER BY retry DESC LIMIT 1
    $$;

-- Returns a UUIDv7: milliseconds, then random bits. The version bits are 0100 in a random UUID and 0111 here.
CREATE FUNCTION homing.uuid7() RETURNS uuid LANGUAGE sql VOLATILE PARALLEL SAFE SET search_path = pg_catalog
    AS $$
        SELECT encode(set_bit(set_bit(overlay(
            uuid_send(gen_random_uuid())
            PLACING substring(int8send(floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM 3)
            FROM 1 FOR 6), 52, 1), 53, 1), 'hex')::uuid
    $$;

-- For triggers. It never makes the caller's statement fail: after an error it raises a warning and returns NULL. A
-- request that cannot be decoded later becomes a dead letter with the reason. Returns the id of the notification,
-- or of the batch if the request has several recipients.
-- `already_failed`: the first attempt was made elsewhere and failed, so the first retry follows after the policy's
-- first delay. `max_retries` is this notification's own maximum.
CREATE FUNCTION homing.enqueue(
    channel         text,
    recipient       jsonb,
    content         jsonb       DEFAULT NULL,
    type            text        DEFAULT NULL,
    tenant          text        DEFAULT 'default',
    template_key    text        DEFAULT NULL,
    data            jsonb       DEFAULT NULL,
    priority        text        DEFAULT NULL,
    category        text        DEFAULT NULL,
    origin          text        DEFAULT NULL,
    provider        text        DEFAULT NULL,
    bulk            boolean     DEFAULT NULL,
    idempotency_key text        DEFAULT NULL,
    dedup_key       text        DEFAULT NULL,
    send_at         timestamptz DEFAULT NULL,
    expires_at      timestamptz DEFAULT NULL,
    metadata        jsonb       DEFAULT NULL,
    already_failed  boolean     DEFAULT false,
    last_error      text        DEFAULT NULL,
    max_retries     integer     DEFAULT NULL
) RETURNS uuid LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog
    AS $$
    DECLARE
        new_id uuid := homing.uuid7();
        asked jsonb;
    BEGIN
        SELECT jsonb_object_agg(given.key, given.value) INTO asked FROM jsonb_each(jsonb_build_object(
            'channel', channel, 'recipient', recipient, 'content', content, 'type', type,
            'templateKey', template_key, 'data', data, 'priority', priority, 'category', category,
            'origin', origin, 'provider', provider, 'bulk', bulk, 'idempotencyKey', idempotency_key,
            'dedupKey', dedup_key, 'sendAt', send_at, 'expiresAt', expires_at, 'metadata', metadata
        )) AS given WHERE given.value <> 'null';
        INSERT INTO homing.inbox (
            enqueued_at, id, max_retries, already_failed, kind, tenant, request, last_error, who
        ) VALUES (
            homing.now_ms(), new_id, max_retries, coalesce(already_failed, false), 'send',
            coalesce(homing.callers_tenant(), tenant, 'default'), coalesce(asked, '{}')::text, last_error, session_user
        );
        PERFORM pg_notify(split_part('homing.inbox', '.', 1), 'inbox');
        RETURN new_id;
    EXCEPTION WHEN OTHERS THEN
        RAISE WARNING 'homing.enqueue: the notification was not taken: %', SQLERRM
            USING HINT = 'See the log of the server; homing db check tells what is wrong with the schema.';
        RETURN NULL;
    END
    $$;

-- Adds a command to the inbox, like a request. Rejects a command for a notification that does not exist. A
-- tenant's role is recorded under its own name.
CREATE FUNCTION homing.command(kind text, about uuid, who text, why text, new_id uuid) RETURNS void
    LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog
    AS $$
    DECLARE
        owner text;
        actor text := CASE WHEN homing.callers_tenant() IS NULL THEN coalesce(who, session_user) ELSE session_user END;
    BEGIN
        SELECT found.tenant INTO owner FROM (
            SELECT m.tenant FROM homing.messages AS m WHERE m.id = about
            UNION ALL
            SELECT i.tenant FROM homing.inbox AS i WHERE i.id = about AND i.kind = 'send'
        ) AS found WHERE found.tenant = coalesce(homing.callers_tenant(), found.tenant) LIMIT 1;
        IF owner IS NULL THEN
            RAISE EXCEPTION 'there is no notification %', about
                USING HINT = 'homing.failed_notifications and homing.dead_letters list them.';
        END IF;
        INSERT INTO homing.inbox (enqueued_at, id, notification_id, kind, tenant, who, why)
        VALUES (homing.now_ms(), new_id, about, kind, owner, actor, coalesce(why, ''));
        PERFORM pg_notify(split_part('homing.inbox', '.', 1), 'inbox');
    END
    $$;

REVOKE EXECUTE ON FUNCTION homing.command(text, uuid, text, text, uuid) FROM PUBLIC;

CREATE FUNCTION homing.acknowledge(id uuid, who text DEFAULT NULL, why text DEFAULT NULL) RETURNS void
    LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog
    AS $$ SELECT homing.command('acknowledge', id, who, why, homing.uuid7()) $$;

CREATE FUNCTION homing.retry_now(id uuid, who text DEFAULT NULL, why text DEFAULT NULL) RETURNS void
    LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog
    AS $$ SELECT homing.command('retry', id, who, why, homing.uuid7()) $$;

-- Returns the id of the new notification.
CREATE FUNCTION homing.resend(id uuid, who text DEFAULT NULL, why text DEFAULT NULL) RETURNS uuid
    LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog
    AS $$
    DECLARE
        new_id uuid := homing.uuid7();
    BEGIN
        PERFORM homing.command('resend', id, who, why, new_id);
        RETURN new_id;
    END
    $$;

-- Asks a worker to remove data that has exceeded its retention (see homing.toml). Workers also do so regularly.
CREATE FUNCTION homing.cleanup() RETURNS void
    LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog
    AS $$
    BEGIN
        IF homing.callers_tenant() IS NOT NULL THEN
            RAISE EXCEPTION 'cleanup is for all tenants; a tenant''s role may not ask for it';
        END IF;
        INSERT INTO homing.inbox (enqueued_at, id, kind, tenant, who)
        VALUES (homing.now_ms(), homing.uuid7(), 'cleanup', '', session_user);
        PERFORM pg_notify(split_part('homing.inbox', '.', 1), 'inbox');
    END
    $$;

-- Notifications that wait for a retry, including reported failures that no worker has processed yet.
CREATE VIEW homing.failed_notifications WITH (security_barrier) AS
SELECT m.id, m.tenant, m.type AS notification_type, m.channel, l.attempts - 1 AS retry_count,
    homing.moment(l.due_at) AS next_retry_at, l.last_error, l.error_code, l.status,
    m.message::json -> 'metadata' AS metadata,
    homing.moment(m.created_at) AS created_at, homing.moment(l.updated_at) AS updated_at
FROM homing.live AS l JOIN homing.messages AS m ON m.seq = l.seq
WHERE l.status = 'retrying' AND m.tenant = coalesce((SELECT homing.callers_tenant()), m.tenant)
UNION ALL
SELECT i.id, i.tenant, i.request::json ->> 'type', i.request::json ->> 'channel', 0,
    homing.moment(i.enqueued_at + (SELECT s.delay_ms FROM homing.schedule AS s ORDER BY s.retry LIMIT 1)),
    i.last_error, NULL, 'retrying', i.request::json -> 'metadata',
    homing.moment(i.enqueued_at), homing.moment(i.enqueued_at)
FROM homing.inbox AS i
WHERE i.kind = 'send' AND i.already_failed AND i.tenant = coalesce((SELECT homing.callers_tenant()), i.tenant);

-- Notifications that failed permanently. An acknowledgement is visible immediately.
CREATE VIEW homing.dead_letters WITH (security_barrier) AS
SELECT m.id, m.tenant, m.type AS notification_type, m.channel, greatest(s.attempts - 1, 0) AS retry_count,
    s.attempts AS attempt_count, s.last_error AS final_error, s.error_code, s.reason,
    m.message::json AS payload, homing.moment(m.created_at) AS created_at, homing.moment(s.failed_at) AS failed_at,
    s.acknowledged_at IS NOT NULL OR c.who IS NOT NULL AS acknowledged,
    coalesce(s.acknowledged_by, c.who) AS acknowledged_by,
    homing.moment(coalesce(s.acknowledged_at, c.enqueued_at)) AS acknowledged_at,
    coalesce(s.acknowledged_why, c.why) AS acknowledged_why, s.resent_as
FROM homing.settled AS s JOIN homing.messages AS m ON m.seq = s.seq
LEFT JOIN LATERAL (
    SELECT i.who, i.why, i.enqueued_at FROM homing.inbox AS i
    WHERE i.notification_id = m.id AND i.kind IN ('acknowledge', 'resend') ORDER BY i.number LIMIT 1
) AS c ON true
WHERE s.status = 'failed' AND m.tenant = coalesce((SELECT homing.callers_tenant()), m.tenant);

-- The number of notifications by status, their retries, and how many are due now.
CREATE VIEW homing.queue_stats WITH (security_barrier) AS
SELECT t.tenant, t.status, t.count, t.avg_retries, coalesce(d.due, 0) AS due
FROM (
    SELECT a.tenant, a.status, sum(a.count)::bigint AS count,
        round(sum(a.count * greatest(a.attempts - 1, 0)) / sum(a.count), 2) AS avg_retries
    FROM homing.all_tallies AS a WHERE a.count > 0 GROUP BY a.tenant, a.status
) AS t
LEFT JOIN (
    SELECT l.tenant, l.status, count(*) AS due FROM homing.live AS l
    WHERE l.due_at <= homing.now_ms() GROUP BY l.tenant, l.status
) AS d ON d.tenant = t.tenant AND d.status = t.status
WHERE t.tenant = coalesce((SELECT homing.callers_tenant()), t.tenant);

-- The number of notifications by number of attempts and result.
CREATE VIEW homing.retry_statistics WITH (security_barrier) AS
SELECT a.tenant, a.attempts, sum(a.count + a.purged)::bigint AS count,
    sum(a.count) FILTER (WHERE a.status IN ('pending', 'sending', 'retrying'))::bigint AS pending_count,
    sum(a.count + a.purged) FILTER (WHERE a.status IN ('sent', 'delivered'))::bigint AS sent_count,
    sum(a.count + a.purged) FILTER (WHERE a.status = 'failed')::bigint AS failed_count
FROM homing.all_tallies AS a
WHERE a.tenant = coalesce((SELECT homing.callers_tenant()), a.tenant)
GROUP BY a.tenant, a.attempts HAVING sum(a.count + a.purged) > 0;
