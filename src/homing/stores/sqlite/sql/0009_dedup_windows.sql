-- runs with: 1
-- The end of the dedup window of the notification that was accepted under the key. The row is kept until then, even if
-- that is longer than the retention of keys. 0 in rows that the previous release has written.
ALTER TABLE homing_dedups ADD COLUMN kept_until INTEGER NOT NULL DEFAULT 0;
DROP INDEX homing_dedup_age;
CREATE INDEX homing_dedup_age ON homing_dedups (accepted_at, kept_until);
