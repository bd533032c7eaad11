-- runs with: 4
-- outside a transaction
-- For the dead letters that were acknowledged, if they are few among many others.
DROP INDEX CONCURRENTLY IF EXISTS homing.settled_acknowledged;
CREATE INDEX CONCURRENTLY settled_acknowledged ON homing.settled (tenant, seq)
    WHERE status = 'failed' AND acknowledged_at IS NOT NULL;
