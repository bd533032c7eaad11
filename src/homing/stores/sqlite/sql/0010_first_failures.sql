-- runs with: 1
-- The time of the first failure, from which the age of a retry counts. NULL in rows whose first attempt the previous
-- release has settled: their age counts from the last attempt. The index keeps its name, which the previous release uses.
ALTER TABLE homing_notifications ADD COLUMN first_failed_at INTEGER;
DROP INDEX homing_retrying;
CREATE INDEX homing_retrying ON homing_notifications (tenant, coalesce(first_failed_at, last_attempt_at))
    WHERE status = 'retrying';
