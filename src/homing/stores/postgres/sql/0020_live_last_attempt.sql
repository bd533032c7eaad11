-- runs with: 4
-- outside a transaction
-- For what waits for a retry, that with the oldest last attempt first.
DROP INDEX CONCURRENTLY IF EXISTS homing.live_last_attempt;
CREATE INDEX CONCURRENTLY live_last_attempt ON homing.live (tenant, last_attempt_at, seq) WHERE status = 'retrying';
