-- runs with: 4
-- outside a transaction
-- For the number of dead letters that nobody has acknowledged, and the oldest of them.
DROP INDEX CONCURRENTLY IF EXISTS homing.settled_unacknowledged;
CREATE INDEX CONCURRENTLY settled_unacknowledged ON homing.settled (tenant, failed_at)
    WHERE status = 'failed' AND acknowledged_at IS NULL;
