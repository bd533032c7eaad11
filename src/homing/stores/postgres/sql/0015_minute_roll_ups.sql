-- runs with: 4
-- The sums of `roll_ups` for each minute, kept for 48 hours. `attempt_ms` is the total duration of the attempts. `late_0`
-- to `late_11` count what was sent by how late it was. What the previous release does is not counted, and neither is
-- what it folds out of the ledger.
CREATE TABLE homing.minute_roll_ups (
    minute_at  bigint NOT NULL,
    accepted   bigint NOT NULL DEFAULT 0,
    sent       bigint NOT NULL DEFAULT 0,
    delivered  bigint NOT NULL DEFAULT 0,
    failed     bigint NOT NULL DEFAULT 0,
    retried    bigint NOT NULL DEFAULT 0,
    attempts   bigint NOT NULL DEFAULT 0,
    bounced    bigint NOT NULL DEFAULT 0,
    opened     bigint NOT NULL DEFAULT 0,
    clicked    bigint NOT NULL DEFAULT 0,
    attempt_ms bigint NOT NULL DEFAULT 0,
    late_0     bigint NOT NULL DEFAULT 0,
    late_1     bigint NOT NULL DEFAULT 0,
    late_2     bigint NOT NULL DEFAULT 0,
    late_3     bigint NOT NULL DEFAULT 0,
    late_4     bigint NOT NULL DEFAULT 0,
    late_5     bigint NOT NULL DEFAULT 0,
    late_6     bigint NOT NULL DEFAULT 0,
    late_7     bigint NOT NULL DEFAULT 0,
    late_8     bigint NOT NULL DEFAULT 0,
    late_9     bigint NOT NULL DEFAULT 0,
    late_10    bigint NOT NULL DEFAULT 0,
    late_11    bigint NOT NULL DEFAULT 0,
    tenant     text COLLATE "C" NOT NULL,
    channel    text COLLATE "C" NOT NULL,
    provider   text COLLATE "C" NOT NULL,
    PRIMARY KEY (minute_at, tenant, channel, provider)
);
ALTER TABLE homing.minute_roll_ups ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON homing.minute_roll_ups FOR SELECT USING (tenant = (SELECT homing.callers_tenant()));

-- `late` is the lateness bucket of what was sent, otherwise NULL. The previous release leaves `minute_at` NULL.
ALTER TABLE homing.ledger
    ADD COLUMN minute_at bigint,
    ADD COLUMN attempt_ms bigint NOT NULL DEFAULT 0,
    ADD COLUMN late integer;

-- As before, and also lets the role read the sums of single minutes.
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
            'homing.failed_notifications', 'homing.dead_letters', 'homing.queue_stats', 'homing.retry_statistics'
        ] LOOP
            IF to_regclass(relation) IS NOT NULL THEN
                EXECUTE format('GRANT SELECT ON %s TO %I', relation::regclass, create_tenant_role.role);
            END IF;
        END LOOP;
    END
    $$;
