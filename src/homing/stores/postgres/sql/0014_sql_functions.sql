-- runs with: 4
-- The SQL functions and views for triggers and operators, second edition.

-- An entry whose `lease_until` is NULL is a command that the previous release does not know and never takes. It
-- needs no lease: the transaction that applies the command also removes the entry.
ALTER TABLE homing.inbox ALTER COLUMN lease_until DROP NOT NULL;
ALTER TABLE homing.inbox ADD COLUMN idempotency_key text COLLATE "C";
ALTER TABLE homing.inbox DROP CONSTRAINT inbox_kind_check;
ALTER TABLE homing.inbox ADD CONSTRAINT inbox_kind_check
    CHECK (kind IN ('send', 'retry', 'acknowledge', 'resend', 'cleanup', 'fail'));
CREATE INDEX inbox_key ON homing.inbox (tenant, idempotency_key) WHERE idempotency_key IS NOT NULL;
-- Recognizes a request that `enqueue` gets again. NULL if the request came another way.
ALTER TABLE homing.requests ADD COLUMN body_hash text COLLATE "C";

-- The retry delays of all rules, as the workers last wrote them. The first row that matches a notification applies
-- to it; `*` matches everything. `delays_ms` has one delay per retry.
CREATE TABLE homing.retry_rules (
    position  integer PRIMARY KEY,
    tenant    text COLLATE "C" NOT NULL,
    type      text COLLATE "C" NOT NULL,
    origin    text COLLATE "C" NOT NULL,
    channel   text COLLATE "C" NOT NULL,
    priority  text COLLATE "C" NOT NULL,
    delays_ms bigint[] NOT NULL
);
ALTER TABLE homing.retry_rules ENABLE ROW LEVEL SECURITY;

-- What `process_notification_queue` has already returned to a caller: the sums of the hour of its last call. `name` is
-- the caller's application_name, and its tenant if it has one.
CREATE TABLE homing.process_calls (
    role      text COLLATE "C" NOT NULL,
    name      text COLLATE "C" NOT NULL,
    called_at bigint NOT NULL,
    hour_at   bigint NOT NULL,
    succeeded bigint NOT NULL,
    retried   bigint NOT NULL,
    failed    bigint NOT NULL,
    PRIMARY KEY (role, name)
);
ALTER TABLE homing.process_calls ENABLE ROW LEVEL SECURITY;

-- Without its own settings, and with a body that is as immutable as the function, PostgreSQL inlines it into the
-- views instead of calling it for every row.
CREATE OR REPLACE FUNCTION homing.moment(at_ms bigint) RETURNS timestamptz
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    AS $$ SELECT pg_catalog.to_timestamp(at_ms OPERATOR(pg_catalog./) 1000.0::pg_catalog.float8) $$;

-- Returns a hash of a request, with what it says about an earlier attempt.
CREATE FUNCTION homing.body_hash(request text, already_failed boolean, last_error text, max_retries integer) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog
    AS $$ SELECT md5(jsonb_build_array(request, already_failed, last_error, max_retries)::text) $$;

-- For triggers. It never makes the caller's statement fail: after an error it raises a warning and returns NULL. A
-- request that cannot be decoded later becomes a dead letter with the reason. Returns the id of the notification,
-- or of the batch if the request has several recipients. If the same request was made before under its idempotency
-- key, it returns the id of that one.
-- If the inbox is locked, it waits for 100 ms, and once per statement: a statement that inserts many rows would wait
-- for each of them. It also ignores a statement_timeout that ends this wait, but not one that ends anything else, and
-- no cancel request.
-- `already_failed`: the first attempt was made elsewhere and failed, so the first retry follows after the policy's
-- first delay. `max_retries` is this notification's own maximum.
CREATE OR REPLACE FUNCTION homing.enqueue(
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
) RETURNS uuid LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog SET lock_timeout = '100ms'
    SET timezone = 'UTC' -- so that sessions with different time zones write the same request
    AS $$
    DECLARE
        new_id    uuid;
        first_id  uuid;
        owner     text;
        asked     jsonb;
        hash      text;
        time_left interval;
        has_locks boolean := false;
    BEGIN
        IF current_setting('homing.inbox_was_locked', true) = statement_timestamp()::text THEN
            LOCK TABLE homing.inbox IN ROW EXCLUSIVE MODE NOWAIT;
            IF idempotency_key IS NOT NULL THEN
                LOCK TABLE homing.requests IN ACCESS SHARE MODE NOWAIT;
            END IF;
        ELSE
            LOCK TABLE homing.inbox IN ROW EXCLUSIVE MODE;
            IF idempotency_key IS NOT NULL THEN
                LOCK TABLE homing.requests IN ACCESS SHARE MODE;
            END IF;
        END IF;
        has_locks := true;
        new_id := homing.uuid7();
        owner := coalesce(homing.callers_tenant(), tenant, 'default');
        SELECT jsonb_object_agg(given.key, given.value) INTO asked FROM jsonb_each(jsonb_build_object(
            'channel', channel, 'recipient', recipient, 'content', content, 'type', type,
            'templateKey', template_key, 'data', data, 'priority', priority, 'category', category,
            'origin', origin, 'provider', provider, 'bulk', bulk, 'idempotencyKey', idempotency_key,
            'dedupKey', dedup_key, 'sendAt', send_at, 'expiresAt', expires_at, 'metadata', metadata
        )) AS given WHERE given.value <> 'null';
        IF idempotency_key IS NOT NULL THEN
            hash := homing.body_hash(coalesce(asked, '{}')::text, coalesce(already_failed, false), last_error, max_retries);
            first_id := coalesce(
                (SELECT CASE WHEN cardinality(r.ids) = 1 OR r.batch_id !~ '^[0-9a-f-]{36}$'
                    THEN r.ids[1] ELSE r.batch_id::uuid END
                 FROM homing.requests AS r
                 WHERE r.tenant = owner AND r.idempotency_key = enqueue.idempotency_key AND r.body_hash = hash),
                (SELECT i.id FROM homing.inbox AS i
                 WHERE i.tenant = owner AND i.idempotency_key = enqueue.idempotency_key
                    AND homing.body_hash(i.request, i.already_failed, i.last_error, i.max_retries) = hash
                 ORDER BY i.number LIMIT 1));
        END IF;
        INSERT INTO homing.inbox (
            enqueued_at, id, max_retries, already_failed, kind, tenant, request, last_error, who, idempotency_key
        ) VALUES (
            homing.now_ms(), new_id, max_retries, coalesce(already_failed, false), 'send', owner,
            coalesce(asked, '{}')::text, last_error, session_user,
            -- A longer key is invalid, and might not fit into the index. The request becomes a dead letter.
            CASE WHEN length(idempotency_key) <= 255 AND length(owner) <= 255 THEN idempotency_key END
        );
        -- A full queue of NOTIFY would make the caller's COMMIT fail. Without a message, workers find the entry later.
        IF pg_notification_queue_usage() < 0.5 THEN
            PERFORM pg_notify(split_part('homing.inbox', '.', 1), 'inbox');
        END IF;
        RETURN coalesce(first_id, new_id);
    EXCEPTION
        WHEN query_canceled THEN
            -- With the locks, nothing is waited for, so this is the caller's own time limit. A time limit ends a
            -- statement once, so what comes after it is a cancel request. The time limit counts from the arrival of
            -- the statement, which may be a little before its start.
            time_left := statement_timestamp() + current_setting('statement_timeout')::interval - clock_timestamp();
            IF has_locks OR current_setting('statement_timeout') = '0'
                OR current_setting('homing.time_limit_passed', true) = statement_timestamp()::text
                OR time_left > least(current_setting('statement_timeout')::interval / 2, interval '1 s') THEN
                RAISE;
            END IF;
            PERFORM set_config('homing.time_limit_passed', statement_timestamp()::text, true);
            PERFORM set_config('homing.inbox_was_locked', statement_timestamp()::text, true);
            RAISE WARNING 'homing.enqueue: the notification was not taken: statement_timeout'
                USING HINT = 'The inbox may be locked: see pg_locks. The statement continues without a time limit.';
            RETURN NULL;
        WHEN OTHERS THEN
            IF SQLSTATE = '55P03' THEN -- lock_not_available
                PERFORM set_config('homing.inbox_was_locked', statement_timestamp()::text, true);
            END IF;
            RAISE WARNING 'homing.enqueue: the notification was not taken: %', SQLERRM
                USING HINT = 'See the log of the server; homing db check tells what is wrong with the schema.';
            RETURN NULL;
    END
    $$;

-- Adds a command to the inbox, like a request. Rejects a command for a notification that does not exist. A
-- tenant's role is recorded under its own name.
CREATE OR REPLACE FUNCTION homing.command(kind text, about uuid, who text, why text, new_id uuid) RETURNS void
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
        INSERT INTO homing.inbox (enqueued_at, lease_until, id, notification_id, kind, tenant, who, why)
        VALUES (homing.now_ms(), CASE kind WHEN 'fail' THEN NULL ELSE 0 END, new_id, about, kind, owner, actor,
                coalesce(why, ''));
        PERFORM pg_notify(split_part('homing.inbox', '.', 1), 'inbox');
    END
    $$;

-- Returns the id of the new notification. Raises an exception if the notification cannot be resent now.
CREATE OR REPLACE FUNCTION homing.resend(id uuid, who text DEFAULT NULL, why text DEFAULT NULL) RETURNS uuid
    LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog
    AS $$
    DECLARE
        new_id uuid := homing.uuid7();
        known  record;
    BEGIN
        -- A simultaneous call waits here, so that it sees the command of the other.
        PERFORM pg_advisory_xact_lock(hashtextextended('homing.resend ' || id, 0));
        PERFORM homing.command('resend', id, who, why, new_id); -- first, because it rejects an unknown id
        SELECT i.id INTO known FROM homing.inbox AS i
        WHERE i.notification_id = resend.id AND i.kind = 'resend' AND i.id <> new_id ORDER BY i.number LIMIT 1;
        IF FOUND THEN
            DELETE FROM homing.inbox AS i WHERE i.id = new_id; -- the same command waits already
            RETURN known.id;
        END IF;
        SELECT s.status, m.mode, coalesce(s.resent_as, r.ids[1]) AS resent_as INTO known
        FROM homing.messages AS m
        JOIN homing.states AS s ON s.seq = m.seq
        LEFT JOIN homing.requests AS r ON r.tenant = m.tenant AND r.idempotency_key = 'resend:' || m.id
        WHERE m.id = resend.id;
        IF known.resent_as IS NOT NULL THEN
            RAISE EXCEPTION 'the notification % was already resent, as %', id, known.resent_as;
        ELSIF known.mode = 'synchronous' THEN
            RAISE EXCEPTION 'the notification % is synchronous, and such notifications are never sent again', id;
        ELSIF known.status IS NULL OR known.status NOT IN ('failed', 'expired', 'skipped', 'cancelled', 'in_doubt') THEN
            RAISE EXCEPTION 'the notification % is %; it cannot be resent', id, coalesce(known.status, 'pending')
                USING HINT = 'homing.retry_now makes a waiting notification due now.';
        END IF;
        RETURN new_id;
    END
    $$;

-- Ends a waiting notification as a dead letter.
CREATE FUNCTION homing.move_to_dead_letter(id uuid, who text DEFAULT NULL, why text DEFAULT NULL) RETURNS void
    LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog
    AS $$ SELECT homing.command('fail', id, who, why, homing.uuid7()) $$;

-- Waits until the workers have processed what is in the inbox and what is due, at most `batch` notifications and for
-- `wait`, and returns how many notifications they have settled since the previous call of the same caller: the same
-- role with the same application_name. The first call counts from the beginning of the previous hour. Of each role,
-- the 100 names that called last are known. Nothing is sent here; a warning says so if no worker runs.
CREATE FUNCTION homing.process_notification_queue(
    batch         integer  DEFAULT 50,
    wait          interval DEFAULT '10 s',
    OUT processed bigint,
    OUT succeeded bigint,
    OUT retried   bigint,
    OUT failed    bigint
) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog
    AS $$
    DECLARE
        mine       text := homing.callers_tenant(); -- NULL for a caller that sees all tenants
        my_role    text := session_user;
        my_name    text := concat_ws('/', current_setting('application_name'), mine);
        hour_ms    bigint := 3600000;
        this_hour  bigint := homing.now_ms() / hour_ms * hour_ms;
        give_up_at timestamptz := clock_timestamp() + wait;
        last_entry bigint;
        known      homing.process_calls;
        sums       record;
        awaited    bigint[];
        due_until  bigint;
        held       text[];
    BEGIN
        IF NOT EXISTS (
            SELECT 1 FROM homing.workers AS w
            WHERE w.seen_at > homing.now_ms() - 60000 AND NOT w.draining AND w.name NOT LIKE '%:process'
        ) THEN
            RAISE WARNING 'homing.process_notification_queue: no worker runs, so nothing is processed now'
                USING HINT = 'Start homing worker, or run homing process every minute.';
        ELSE
            SELECT max(i.number) INTO last_entry FROM homing.inbox AS i WHERE i.tenant = coalesce(mine, i.tenant);
            WHILE clock_timestamp() < give_up_at AND EXISTS (
                SELECT 1 FROM homing.inbox AS i WHERE i.number <= last_entry AND i.tenant = coalesce(mine, i.tenant)
            ) LOOP
                PERFORM pg_sleep(0.02);
            END LOOP;
            -- Commands in the inbox may just have made something due, so this is the time of the clock.
            due_until := homing.now_ms() + floor(extract(epoch FROM clock_timestamp() - now()) * 1000)::bigint;
            SELECT array_agg(b.provider) INTO held
            FROM homing.breakers AS b, LATERAL (SELECT b.breaker::json AS state) AS c
            WHERE c.state ->> 'forced' = 'open' OR (
                c.state ->> 'forced' IS NULL AND c.state ->> 'phase' = 'open'
                AND (c.state ->> 'open_until')::bigint > due_until);
            SELECT array_agg(found.seq) INTO awaited FROM (
                SELECT due.seq FROM homing.queues AS q CROSS JOIN LATERAL (
                    SELECT l.seq, l.due_at, l.provider FROM homing.live AS l
                    WHERE l.queue = q.id AND l.due_at <= due_until ORDER BY l.due_at LIMIT batch
                ) AS due
                WHERE q.tenant = coalesce(mine, q.tenant) AND due.provider <> ALL (coalesce(held, '{}'))
                UNION ALL
                SELECT l.seq FROM homing.live AS l
                WHERE l.lease_until IS NOT NULL AND l.tenant = coalesce(mine, l.tenant)
                LIMIT batch
            ) AS found;
            WHILE clock_timestamp() < give_up_at AND EXISTS (
                SELECT 1 FROM homing.live AS l
                WHERE l.seq = ANY (awaited) AND (l.lease_until IS NOT NULL OR l.due_at <= due_until)
            ) LOOP
                PERFORM pg_sleep(0.02);
            END LOOP;
            IF held IS NOT NULL THEN
                SELECT count(*) AS number, string_agg(DISTINCT l.provider, ', ') AS providers INTO sums
                FROM homing.live AS l
                WHERE l.provider = ANY (held) AND l.due_at <= due_until AND l.tenant = coalesce(mine, l.tenant);
                IF sums.number > 0 THEN
                    RAISE NOTICE '% due notifications are held by the breaker of %', sums.number, sums.providers;
                END IF;
            END IF;
        END IF;
        -- A simultaneous call of the same caller waits here, so that it does not return the same counts.
        PERFORM pg_advisory_xact_lock(hashtextextended(concat_ws('/', 'homing.process_calls', my_role, my_name), 0));
        SELECT c.* INTO known FROM homing.process_calls AS c WHERE c.role = my_role AND c.name = my_name;
        IF NOT FOUND THEN
            known := ROW(my_role, my_name, 0, this_hour - hour_ms, 0, 0, 0);
        END IF;
        SELECT sum(r.sent) AS succeeded, sum(r.retried) AS retried, sum(r.failed) AS failed,
            coalesce(sum(r.sent) FILTER (WHERE r.hour_at >= this_hour), 0) AS succeeded_now,
            coalesce(sum(r.retried) FILTER (WHERE r.hour_at >= this_hour), 0) AS retried_now,
            coalesce(sum(r.failed) FILTER (WHERE r.hour_at >= this_hour), 0) AS failed_now
        INTO sums FROM homing.all_roll_ups AS r
        WHERE r.hour_at >= known.hour_at AND r.tenant = coalesce(mine, r.tenant);
        succeeded := greatest(coalesce(sums.succeeded, 0) - known.succeeded, 0);
        retried := greatest(coalesce(sums.retried, 0) - known.retried, 0);
        failed := greatest(coalesce(sums.failed, 0) - known.failed, 0);
        processed := succeeded + retried + failed;
        DELETE FROM homing.process_calls AS c
        WHERE c.called_at < homing.now_ms() - 24 * hour_ms AND (c.role, c.name) <> (my_role, my_name);
        DELETE FROM homing.process_calls AS c WHERE c.role = my_role AND c.name IN (
            SELECT o.name FROM homing.process_calls AS o WHERE o.role = my_role AND o.name <> my_name
            ORDER BY o.called_at DESC OFFSET 99);
        INSERT INTO homing.process_calls AS c (role, name, called_at, hour_at, succeeded, retried, failed)
        VALUES (my_role, my_name, homing.now_ms(), this_hour, sums.succeeded_now, sums.retried_now, sums.failed_now)
        ON CONFLICT ON CONSTRAINT process_calls_pkey DO UPDATE SET called_at = excluded.called_at,
            hour_at = excluded.hour_at, succeeded = excluded.succeeded, retried = excluded.retried, failed = excluded.failed;
    END
    $$;

-- Notifications that wait for a retry, including reported failures that no worker has processed yet.
CREATE OR REPLACE VIEW homing.failed_notifications WITH (security_barrier) AS
SELECT m.id, m.tenant, m.type AS notification_type, m.channel, l.attempts - 1 AS retry_count,
    homing.moment(l.due_at) AS next_retry_at, l.last_error, l.error_code, l.status,
    m.message::json -> 'metadata' AS metadata,
    homing.moment(m.created_at) AS created_at, homing.moment(l.updated_at) AS updated_at,
    m.message::json AS payload,
    coalesce(l.max_attempts - 1, (
        SELECT cardinality(r.delays_ms) FROM homing.retry_rules AS r
        WHERE r.tenant IN ('*', m.tenant) AND r.type IN ('*', m.type) AND r.origin IN ('*', m.origin)
            AND r.channel IN ('*', m.channel) AND r.priority IN ('*', m.priority)
        ORDER BY r.position LIMIT 1
    ), (SELECT count(*)::integer FROM homing.schedule)) AS max_retries,
    homing.moment(coalesce(l.last_attempt_at, m.created_at)) AS last_error_at
FROM homing.live AS l JOIN homing.messages AS m ON m.seq = l.seq
WHERE l.status = 'retrying' AND ((SELECT homing.callers_tenant()) IS NULL OR l.tenant = (SELECT homing.callers_tenant()))
UNION ALL
SELECT i.id, i.tenant, asked.request ->> 'type', asked.request ->> 'channel', 0,
    homing.moment(i.enqueued_at + coalesce(found.delays_ms[1], (SELECT s.delay_ms FROM homing.schedule AS s
        ORDER BY s.retry LIMIT 1))),
    i.last_error, NULL, 'retrying', asked.request -> 'metadata', homing.moment(i.enqueued_at),
    homing.moment(i.enqueued_at), asked.request,
    coalesce(i.max_retries, cardinality(found.delays_ms), (SELECT count(*)::integer FROM homing.schedule)),
    homing.moment(i.enqueued_at)
FROM homing.inbox AS i
CROSS JOIN LATERAL (SELECT i.request::json AS request) AS asked
LEFT JOIN LATERAL (
    SELECT r.delays_ms FROM homing.retry_rules AS r
    WHERE r.tenant IN ('*', i.tenant) AND r.type IN ('*', asked.request ->> 'type')
        AND r.origin IN ('*', asked.request ->> 'origin') AND r.channel IN ('*', asked.request ->> 'channel')
        AND r.priority IN ('*', coalesce(nullif(asked.request ->> 'priority', 'normal'), 'medium'))
    ORDER BY r.position LIMIT 1
) AS found ON true
WHERE i.kind = 'send' AND i.already_failed
    AND ((SELECT homing.callers_tenant()) IS NULL OR i.tenant = (SELECT homing.callers_tenant()));

-- Notifications that failed permanently. An acknowledgement is visible immediately.
CREATE OR REPLACE VIEW homing.dead_letters WITH (security_barrier) AS
SELECT m.id, m.tenant, m.type AS notification_type, m.channel, greatest(s.attempts - 1, 0) AS retry_count,
    s.attempts AS attempt_count, s.last_error AS final_error, s.error_code, s.reason,
    m.message::json AS payload, homing.moment(m.created_at) AS created_at, homing.moment(s.failed_at) AS failed_at,
    s.acknowledged_at IS NOT NULL OR c.who IS NOT NULL AS acknowledged,
    coalesce(s.acknowledged_by, c.who) AS acknowledged_by,
    homing.moment(coalesce(s.acknowledged_at, c.enqueued_at)) AS acknowledged_at,
    coalesce(s.acknowledged_why, c.why) AS acknowledged_why, s.resent_as,
    m.message::json -> 'metadata' AS metadata
FROM homing.settled AS s JOIN homing.messages AS m ON m.seq = s.seq
LEFT JOIN (
    SELECT DISTINCT ON (i.notification_id) i.notification_id, i.who, i.why, i.enqueued_at FROM homing.inbox AS i
    WHERE i.notification_id IS NOT NULL AND i.kind IN ('acknowledge', 'resend') ORDER BY i.notification_id, i.number
) AS c ON c.notification_id = m.id
WHERE s.status = 'failed' AND ((SELECT homing.callers_tenant()) IS NULL OR s.tenant = (SELECT homing.callers_tenant()));

-- The number of notifications by status, their retries, and how many are due now. Requests in the inbox are included.
CREATE OR REPLACE VIEW homing.queue_stats WITH (security_barrier) AS
SELECT t.tenant, t.status, sum(t.count)::bigint AS count,
    round(sum(t.retries) / sum(t.count), 2) AS avg_retries, sum(t.due)::bigint AS due
FROM (
    SELECT a.tenant, a.status, a.count, a.count * greatest(a.attempts - 1, 0) AS retries, 0 AS due
    FROM homing.all_tallies AS a WHERE a.count > 0
    UNION ALL
    SELECT l.tenant, l.status, 0, 0, count(*) FROM homing.live AS l
    WHERE l.due_at <= homing.now_ms() GROUP BY l.tenant, l.status
    UNION ALL
    SELECT i.tenant, CASE WHEN i.already_failed THEN 'retrying' ELSE 'pending' END COLLATE "C", count(*), 0,
        count(*) FILTER (WHERE NOT i.already_failed)
    FROM homing.inbox AS i WHERE i.kind = 'send' GROUP BY i.tenant, i.already_failed
) AS t
WHERE ((SELECT homing.callers_tenant()) IS NULL OR t.tenant = (SELECT homing.callers_tenant()))
GROUP BY t.tenant, t.status HAVING sum(t.count) > 0;

-- The number of notifications by number of attempts and result.
CREATE OR REPLACE VIEW homing.retry_statistics WITH (security_barrier) AS
SELECT a.tenant, a.attempts, sum(a.count + a.purged)::bigint AS count,
    coalesce(sum(a.count) FILTER (WHERE a.status IN ('pending', 'sending', 'retrying')), 0)::bigint AS pending_count,
    coalesce(sum(a.count + a.purged) FILTER (WHERE a.status IN ('sent', 'delivered')), 0)::bigint AS sent_count,
    coalesce(sum(a.count + a.purged) FILTER (WHERE a.status = 'failed'), 0)::bigint AS failed_count
FROM homing.all_tallies AS a
WHERE ((SELECT homing.callers_tenant()) IS NULL OR a.tenant = (SELECT homing.callers_tenant()))
GROUP BY a.tenant, a.attempts HAVING sum(a.count + a.purged) > 0;

-- As before, and also lets the role read how many of its tenant's notifications met the latency goals.
CREATE OR REPLACE FUNCTION homing.create_tenant_role(tenant text, role text) RETURNS void
    LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog
    AS $$
    DECLARE
        relation text;
        owner    oid;
    BEGIN
        IF coalesce(tenant, '') = '' THEN
            RAISE EXCEPTION 'a tenant has a name';
        END IF;
        IF NOT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = create_tenant_role.role) THEN
            EXECUTE format('CREATE ROLE %I NOLOGIN', create_tenant_role.role);
        END IF;
        SELECT relowner INTO owner FROM pg_class WHERE oid = 'homing.messages'::regclass;
        IF pg_has_role(create_tenant_role.role, owner, 'MEMBER')
            OR (SELECT rolbypassrls FROM pg_roles WHERE rolname = create_tenant_role.role) THEN
            RAISE EXCEPTION 'the role % cannot be confined: it passes row-level security', create_tenant_role.role
                USING HINT = 'Give the tenant a role that is no superuser, has no BYPASSRLS and is no member of the owner.';
        END IF;
        INSERT INTO homing.tenant_roles AS t (role, tenant)
        VALUES (quote_ident(create_tenant_role.role)::regrole, create_tenant_role.tenant)
        ON CONFLICT ON CONSTRAINT tenant_roles_pkey DO UPDATE SET tenant = excluded.tenant;
        EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', split_part('homing.x', '.', 1), create_tenant_role.role);
        FOREACH relation IN ARRAY ARRAY[
            'homing.messages', 'homing.live', 'homing.settled', 'homing.attempts', 'homing.causes', 'homing.tallies',
            'homing.roll_ups', 'homing.goals', 'homing.ledger', 'homing.registry', 'homing.failed_notifications',
            'homing.dead_letters', 'homing.queue_stats', 'homing.retry_statistics'
        ] LOOP
            IF to_regclass(relation) IS NOT NULL THEN
                EXECUTE format('GRANT SELECT ON %s TO %I', relation::regclass, create_tenant_role.role);
            END IF;
        END LOOP;
    END
    $$;
