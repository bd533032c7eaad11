-- Direct database access for tenants. A role that belongs to a tenant sees only that tenant's rows, in any query.
-- Homing's own role owns the tables, and row-level security does not apply to the owner. For all other roles it
-- is on, and hides every row that no policy allows.

-- The role is stored by its oid, so a renamed role stays confined. A dump contains its name.
CREATE TABLE homing.tenant_roles (
    role   regrole PRIMARY KEY,
    tenant text COLLATE "C" NOT NULL
);

-- Returns the tenant that the caller is confined to, or NULL. A role is confined directly, or as a member of a
-- tenant's role. The setting `role` is the result of SET ROLE, which functions that run as their owner can still
-- read.
CREATE FUNCTION homing.callers_tenant() RETURNS text
    LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog
    AS $$
    DECLARE
        caller  name := coalesce(nullif(current_setting('role'), 'none'), session_user::text);
        tenants text[];
    BEGIN
        SELECT array_agg(t.tenant) INTO tenants FROM homing.tenant_roles AS t
        WHERE t.role = (SELECT oid FROM pg_roles WHERE rolname = caller);
        IF tenants IS NULL THEN
            SELECT array_agg(t.tenant) INTO tenants FROM homing.tenant_roles AS t
            WHERE t.role = (SELECT oid FROM pg_roles WHERE rolname = session_user);
        END IF;
        IF tenants IS NULL AND NOT pg_has_role(caller, current_user, 'MEMBER') THEN
            SELECT array_agg(DISTINCT t.tenant) INTO tenants FROM homing.tenant_roles AS t
            JOIN pg_roles AS r ON r.oid = t.role WHERE pg_has_role(caller, r.oid, 'MEMBER');
        END IF;
        IF cardinality(tenants) > 1 THEN
            RAISE EXCEPTION 'this role belongs to several tenants' USING HINT = 'SET ROLE to the role of one of them.';
        END IF;
        RETURN tenants[1];
    END
    $$;

-- Tables with a tenant column. The subselect is evaluated once per query, not once per row.
ALTER TABLE homing.messages ENABLE ROW LEVEL SECURITY;
ALTER TABLE homing.live ENABLE ROW LEVEL SECURITY;
ALTER TABLE homing.settled ENABLE ROW LEVEL SECURITY;
ALTER TABLE homing.tallies ENABLE ROW LEVEL SECURITY;
ALTER TABLE homing.roll_ups ENABLE ROW LEVEL SECURITY;
ALTER TABLE homing.ledger ENABLE ROW LEVEL SECURITY;
ALTER TABLE homing.registry ENABLE ROW LEVEL SECURITY;
ALTER TABLE homing.queues ENABLE ROW LEVEL SECURITY;
ALTER TABLE homing.requests ENABLE ROW LEVEL SECURITY;
ALTER TABLE homing.dedups ENABLE ROW LEVEL SECURITY;
ALTER TABLE homing.outbox ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON homing.messages FOR SELECT USING (tenant = (SELECT homing.callers_tenant()));
CREATE POLICY own ON homing.live FOR SELECT USING (tenant = (SELECT homing.callers_tenant()));
CREATE POLICY own ON homing.settled FOR SELECT USING (tenant = (SELECT homing.callers_tenant()));
CREATE POLICY own ON homing.tallies FOR SELECT USING (tenant = (SELECT homing.callers_tenant()));
CREATE POLICY own ON homing.roll_ups FOR SELECT USING (tenant = (SELECT homing.callers_tenant()));
CREATE POLICY own ON homing.ledger FOR SELECT USING (tenant = (SELECT homing.callers_tenant()));
CREATE POLICY own ON homing.registry FOR SELECT USING (tenant = (SELECT homing.callers_tenant()));
CREATE POLICY own ON homing.queues FOR SELECT USING (tenant = (SELECT homing.callers_tenant()));
CREATE POLICY own ON homing.requests FOR SELECT USING (tenant = (SELECT homing.callers_tenant()));
CREATE POLICY own ON homing.dedups FOR SELECT USING (tenant = (SELECT homing.callers_tenant()));
CREATE POLICY own ON homing.outbox FOR SELECT USING (tenant = (SELECT homing.callers_tenant()));

-- Tables that refer to a notification. The subselect sees only the messages of the caller's tenant.
ALTER TABLE homing.attempts ENABLE ROW LEVEL SECURITY;
ALTER TABLE homing.causes ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON homing.attempts FOR SELECT USING (
    EXISTS (SELECT 1 FROM homing.messages AS m
            WHERE m.seq = attempts.seq AND m.tenant = (SELECT homing.callers_tenant())));
CREATE POLICY own ON homing.causes FOR SELECT USING (
    EXISTS (SELECT 1 FROM homing.messages AS m
            WHERE m.seq = causes.seq AND m.tenant = (SELECT homing.callers_tenant())));

-- Tables that belong to no tenant. They have no policy, so only the owner sees their rows.
ALTER TABLE homing.receipts ENABLE ROW LEVEL SECURITY;
ALTER TABLE homing.turns ENABLE ROW LEVEL SECURITY;
ALTER TABLE homing.breakers ENABLE ROW LEVEL SECURITY;
ALTER TABLE homing.buckets ENABLE ROW LEVEL SECURITY;
ALTER TABLE homing.leads ENABLE ROW LEVEL SECURITY;
ALTER TABLE homing.tenant_roles ENABLE ROW LEVEL SECURITY;
ALTER TABLE homing.schema_versions ENABLE ROW LEVEL SECURITY;

-- A view reads with its owner's rights, without row-level security. From PostgreSQL 15 on it can use the caller's
-- rights. On 14, tenants' roles must not be granted these views, and `create_tenant_role` does not do so.
DO $$
BEGIN
    IF current_setting('server_version_num')::integer >= 150000 THEN
        ALTER VIEW homing.states SET (security_invoker = true);
        ALTER VIEW homing.rows SET (security_invoker = true);
        ALTER VIEW homing.all_tallies SET (security_invoker = true);
        ALTER VIEW homing.all_roll_ups SET (security_invoker = true);
    END IF;
END
$$;

-- Confines a role to a tenant and lets it read the tenant's rows. Creates the role, without login, if it does not
-- exist. Call it again after an upgrade to grant access to new tables.
CREATE FUNCTION homing.create_tenant_role(tenant text, role text) RETURNS void
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
            'homing.roll_ups', 'homing.ledger', 'homing.registry', 'homing.failed_notifications',
            'homing.dead_letters', 'homing.queue_stats', 'homing.retry_statistics'
        ] LOOP
            IF to_regclass(relation) IS NOT NULL THEN
                EXECUTE format('GRANT SELECT ON %s TO %I', relation::regclass, create_tenant_role.role);
            END IF;
        END LOOP;
    END
    $$;

-- Revokes the access of a tenant's role. The role itself remains.
CREATE FUNCTION homing.drop_tenant_role(role text) RETURNS void
    LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog
    AS $$
    DECLARE
        place text := quote_ident(split_part('homing.x', '.', 1));
    BEGIN
        EXECUTE format('REVOKE ALL ON ALL TABLES IN SCHEMA %s FROM %I', place, drop_tenant_role.role);
        EXECUTE format('REVOKE ALL ON SCHEMA %s FROM %I', place, drop_tenant_role.role);
        DELETE FROM homing.tenant_roles AS t WHERE t.role = quote_ident(drop_tenant_role.role)::regrole;
    END
    $$;

REVOKE EXECUTE ON FUNCTION homing.create_tenant_role(text, text), homing.drop_tenant_role(text) FROM PUBLIC;
