-- runs with: 1
-- The providers that failed in the current round of failover, or that rejected the notification for good, as JSON.
-- `moves` counts the attempts that were moves at once to another provider. `free_move` is 1 if the next attempt is one.
-- The previous release writes none of them: for its rows, every attempt counts.
ALTER TABLE homing_notifications ADD COLUMN moves INTEGER NOT NULL DEFAULT 0;
ALTER TABLE homing_notifications ADD COLUMN free_move INTEGER NOT NULL DEFAULT 0;
ALTER TABLE homing_notifications ADD COLUMN spent TEXT NOT NULL DEFAULT '{}';
