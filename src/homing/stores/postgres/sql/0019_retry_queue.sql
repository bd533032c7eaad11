-- runs with: 4
-- The tasks of a bridge from RabbitMQ, with the columns of a retry scheduler's own table.

-- Messages that their senders had tried before Homing got them. `status` is pending, retried (published again) or
-- failed (in manual review). A task that was published counts its own retry.
CREATE VIEW homing.retry_queue WITH (security_barrier) AS
SELECT t.seq AS id, coalesce(t.message -> 'metadata' ->> 'message_id', t.notification_id::text) AS message_id,
    CASE WHEN t.payload ~ '^[A-Za-z0-9+/]*={0,2}$' AND length(t.payload) % 4 = 0 THEN decode(t.payload, 'base64')
        ELSE convert_to(coalesce(t.payload, t.message ->> 'content'), 'UTF8') END AS original_payload,
    t.address AS original_queue, t.last_error AS error_reason,
    t.attempts_before - 1 + (t.status = 'retried')::integer AS retry_count,
    coalesce(t.max_attempts - 1, (
        SELECT cardinality(r.delays_ms) FROM homing.retry_rules AS r
        WHERE r.tenant IN ('*', t.tenant) AND r.type IN ('*', t.type) AND r.origin IN ('*', t.origin)
            AND r.channel IN ('*', 'queue') AND r.priority IN ('*', t.priority)
        ORDER BY r.position LIMIT 1
    ), (SELECT count(*)::integer FROM homing.schedule)) AS max_retries,
    homing.moment(t.due_at) AS next_retry_at, homing.moment(t.created_at) AS created_at, t.status,
    t.notification_id, t.tenant
FROM (
    SELECT m.seq, m.id AS notification_id, m.tenant, m.type, m.origin, m.priority, m.address, m.created_at,
        m.message::json AS message, m.message::json -> 'content' -> 'data' ->> 'payload' AS payload,
        l.last_error, l.attempts_before, l.max_attempts, coalesce(l.due_at, l.started_at) AS due_at, 'pending' AS status
    FROM homing.live AS l JOIN homing.messages AS m ON m.seq = l.seq
    WHERE l.attempts_before > 0 AND m.channel = 'queue'
        AND ((SELECT homing.callers_tenant()) IS NULL OR l.tenant = (SELECT homing.callers_tenant()))
    UNION ALL
    SELECT m.seq, m.id, m.tenant, m.type, m.origin, m.priority, m.address, m.created_at,
        m.message::json, m.message::json -> 'content' -> 'data' ->> 'payload',
        s.last_error, s.attempts_before, s.max_attempts, coalesce(s.sent_at, s.failed_at, s.updated_at),
        CASE WHEN s.status IN ('sent', 'delivered') THEN 'retried' ELSE 'failed' END
    FROM homing.settled AS s JOIN homing.messages AS m ON m.seq = s.seq
    WHERE s.attempts_before > 0 AND m.channel = 'queue'
        AND ((SELECT homing.callers_tenant()) IS NULL OR s.tenant = (SELECT homing.callers_tenant()))
) AS t;

-- As before, and also lets the role read its tenant's tasks of a bridge.
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
            'homing.roll_ups', 'homing.minute_roll_ups', 'homing.goals', 'homing.ledger', 'homing.registry',
            'homing.failed_notifications', 'homing.dead_letters', 'homing.queue_stats', 'homing.retry_statistics',
            'homing.retry_queue'
        ] LOOP
            IF to_regclass(relation) IS NOT NULL THEN
                EXECUTE format('GRANT SELECT ON %s TO %I', relation::regclass, create_tenant_role.role);
            END IF;
        END LOOP;
    END
    $$;
