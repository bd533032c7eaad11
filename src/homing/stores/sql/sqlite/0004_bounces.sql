-- runs with: 1
-- What a receipt about a failure needs of the policy that the notification was sent by: whether a bounce that
-- is the recipient's fault fails over all the same, and the shortest and longest wait before a re-send at the
-- same provider. NULL in rows that were settled by the code of the release before.
ALTER TABLE homing_notifications ADD COLUMN bounce_always INTEGER;
ALTER TABLE homing_notifications ADD COLUMN bounce_min_ms INTEGER;
ALTER TABLE homing_notifications ADD COLUMN bounce_max_ms INTEGER;
-- The attempt that failed with an unknown code and was sent again for it; 0 if there is none.
ALTER TABLE homing_notifications ADD COLUMN unknown_bounce INTEGER NOT NULL DEFAULT 0;
