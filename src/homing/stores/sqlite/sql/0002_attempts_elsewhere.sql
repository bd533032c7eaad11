-- runs with: 1
-- The number of attempts made before Homing accepted a notification, and the notification's own maximum of
-- attempts (NULL: the policy's maximum). The previous release writes neither.

ALTER TABLE homing_notifications ADD COLUMN attempts_before INTEGER NOT NULL DEFAULT 0;
ALTER TABLE homing_notifications ADD COLUMN max_attempts INTEGER;
