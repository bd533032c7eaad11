-- runs with: 4
-- The time of the first failure, from which the age of a retry counts. NULL in rows whose first attempt the previous
-- release has settled: their age counts from the last attempt. The previous release finds its oldest retry without an
-- index, among the rows that wait.
ALTER TABLE homing.live ADD COLUMN first_failed_at bigint;
ALTER TABLE homing.settled ADD COLUMN first_failed_at bigint;
DROP INDEX homing.live_retrying;
CREATE INDEX live_retrying ON homing.live (tenant, coalesce(first_failed_at, last_attempt_at))
    WHERE status = 'retrying';

CREATE OR REPLACE VIEW homing.states AS
SELECT
    seq, updated_at, aged_from, max_age_ms, last_delay_ms, started_at, due_at, deadline_at, lease_until,
    expires_at, last_attempt_at, sent_at, delivered_at, failed_at, acknowledged_at, queue, token, changes,
    attempts, attempts_before, max_attempts, attempt_floor, bounce_floor, failures_here, pinned, overdue,
    cancel_requested, unhurried, tenant, status, provider, worker, holds, reason, error_code, last_error,
    acknowledged_by, acknowledged_why, resent_as, engagement, bounce_always, bounce_min_ms, bounce_max_ms,
    unknown_bounce, moves, free_move, spent, first_failed_at
FROM homing.live
UNION ALL
SELECT
    seq, updated_at, aged_from, max_age_ms, last_delay_ms, started_at, due_at, deadline_at, lease_until,
    expires_at, last_attempt_at, sent_at, delivered_at, failed_at, acknowledged_at, queue, token, changes,
    attempts, attempts_before, max_attempts, attempt_floor, bounce_floor, failures_here, pinned, overdue,
    cancel_requested, unhurried, tenant, status, provider, worker, holds, reason, error_code, last_error,
    acknowledged_by, acknowledged_why, resent_as, engagement, bounce_always, bounce_min_ms, bounce_max_ms,
    unknown_bounce, moves, free_move, spent, first_failed_at
FROM homing.settled;

CREATE OR REPLACE VIEW homing.rows AS
SELECT m.seq, m.id, m.tenant, m.batch_id, q.lane, m.channel, m.mode, m.type, m.category, m.priority, m.origin,
    s.provider, q.outlet, s.pinned, m.address, s.status, s.token, s.changes, s.attempts, s.attempts_before,
    s.max_attempts, s.attempt_floor, s.bounce_floor, s.failures_here, s.last_delay_ms, s.max_age_ms, s.holds,
    m.created_at, s.updated_at, s.aged_from, m.send_at, s.expires_at, s.due_at, s.deadline_at, s.lease_until,
    s.started_at, s.worker, s.overdue, s.cancel_requested, s.reason, s.last_error, s.error_code,
    s.last_attempt_at, s.sent_at, s.delivered_at, s.failed_at, s.acknowledged_at, s.acknowledged_by,
    s.acknowledged_why, m.resend_of, s.resent_as, s.engagement, s.bounce_always, s.bounce_min_ms,
    s.bounce_max_ms, s.unknown_bounce, s.moves, s.free_move, s.spent, s.first_failed_at
FROM homing.messages AS m
JOIN homing.states AS s ON s.seq = m.seq
JOIN homing.queues AS q ON q.id = s.queue;

-- Replacing a view resets its options, so they are set again.
DO $$
BEGIN
    IF current_setting('server_version_num')::integer >= 150000 THEN
        ALTER VIEW homing.states SET (security_invoker = true);
        ALTER VIEW homing.rows SET (security_invoker = true);
    END IF;
END
$$;
