-- runs with: 4
-- How many notifications of each hour, tenant and delivery mode were sent within the latency goal of the mode, and how
-- many later. What the previous release sends is not counted, and neither is what it folds out of the ledger.
CREATE TABLE homing.goals (
    hour_at bigint NOT NULL,
    met     bigint NOT NULL DEFAULT 0,
    missed  bigint NOT NULL DEFAULT 0,
    tenant  text COLLATE "C" NOT NULL,
    mode    text COLLATE "C" NOT NULL,
    PRIMARY KEY (hour_at, tenant, mode)
);
ALTER TABLE homing.goals ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON homing.goals FOR SELECT USING (tenant = (SELECT homing.callers_tenant()));

ALTER TABLE homing.ledger
    ADD COLUMN opened integer NOT NULL DEFAULT 0,
    ADD COLUMN clicked integer NOT NULL DEFAULT 0,
    ADD COLUMN met integer NOT NULL DEFAULT 0,
    ADD COLUMN missed integer NOT NULL DEFAULT 0,
    ADD COLUMN mode text COLLATE "C" NOT NULL DEFAULT '';
-- Opens and clicks that providers reported.
ALTER TABLE homing.roll_ups
    ADD COLUMN opened bigint NOT NULL DEFAULT 0,
    ADD COLUMN clicked bigint NOT NULL DEFAULT 0;

CREATE OR REPLACE VIEW homing.all_roll_ups AS
SELECT hour_at, tenant, channel, provider, sum(accepted)::bigint AS accepted, sum(sent)::bigint AS sent,
    sum(delivered)::bigint AS delivered, sum(failed)::bigint AS failed, sum(retried)::bigint AS retried,
    sum(attempts)::bigint AS attempts, sum(bounced)::bigint AS bounced, sum(opened)::bigint AS opened,
    sum(clicked)::bigint AS clicked
FROM (
    SELECT hour_at, tenant, channel, provider, accepted, sent, delivered, failed, retried, attempts, bounced, opened,
        clicked
    FROM homing.roll_ups
    UNION ALL
    SELECT hour_at, tenant, channel, provider, accepted, sent, delivered, failed, retried, attempts, bounced, opened,
        clicked
    FROM homing.ledger
    WHERE accepted + sent + delivered + failed + retried + attempts + bounced + opened + clicked > 0
) AS sums GROUP BY hour_at, tenant, channel, provider;

-- Replacing a view resets its options, so they are set again.
DO $$
BEGIN
    IF current_setting('server_version_num')::integer >= 150000 THEN
        ALTER VIEW homing.all_roll_ups SET (security_invoker = true);
    END IF;
END
$$;
