-- runs with: 1
-- The parts of the notification's policy that a receipt about a failure needs: whether a bounce that is the
-- recipient's fault also fails over, and the shortest and longest wait before a resend at the same provider. NULL
-- in rows that the previous release has settled.
ALTER TABLE homing_notifications ADD COLUMN bounce_always INTEGER;
ALTER TABLE homing_notifications ADD COLUMN bounce_min_ms INTEGER;
ALTER TABLE homing_notifications ADD COLUMN bounce_max_ms INTEGER;
-- The attempt that was reported as failed with an unknown code and therefore sent again. 0 if there is none.
ALTER TABLE homing_notifications ADD COLUMN unknown_bounce INTEGER NOT NULL DEFAULT 0;
