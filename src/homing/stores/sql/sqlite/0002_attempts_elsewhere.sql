-- runs with: 1
-- Attempts that were made before a notification came here, and its own maximum (NULL: the policy's).
-- What the code of the release before writes has neither.

ALTER TABLE homing_notifications ADD COLUMN attempts_before INTEGER NOT NULL DEFAULT 0;
ALTER TABLE homing_notifications ADD COLUMN max_attempts INTEGER;
