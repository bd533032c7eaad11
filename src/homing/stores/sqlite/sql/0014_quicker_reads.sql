-- runs with: 1
-- For searches by address. Without the tenant and the id, an entry has half the size and acceptance takes less time.
-- The few notifications of an address are sorted after they were read.
DROP INDEX homing_address;
CREATE INDEX homing_address ON homing_notifications (address);
-- For claims, and for the number of waiting notifications by due time, provider and reason.
DROP INDEX homing_due;
CREATE INDEX homing_due ON homing_notifications (lane, tenant, outlet, due_at, id, provider, reason, aged_from)
    WHERE due_at IS NOT NULL;
-- For what waits for a retry, that with the oldest last attempt first.
CREATE INDEX homing_last_attempt ON homing_notifications (tenant, last_attempt_at, id) WHERE status = 'retrying';
-- For the dead letters that were acknowledged, newest first.
CREATE INDEX homing_acknowledged ON homing_notifications (tenant, id)
    WHERE status = 'failed' AND acknowledged_at IS NOT NULL;
