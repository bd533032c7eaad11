-- runs with: 1
-- The sums of the newest minute of each row stay in the row, so that a transaction writes one page for both. `minute_at`
-- is that minute, or 0 if nothing was counted in it. The first change in another minute moves them to
-- `homing_minute_roll_ups`. What the previous release counts there directly is added when both are read.
ALTER TABLE homing_roll_ups ADD COLUMN minute_at INTEGER NOT NULL DEFAULT 0;
ALTER TABLE homing_roll_ups ADD COLUMN minute_accepted INTEGER NOT NULL DEFAULT 0;
ALTER TABLE homing_roll_ups ADD COLUMN minute_sent INTEGER NOT NULL DEFAULT 0;
ALTER TABLE homing_roll_ups ADD COLUMN minute_delivered INTEGER NOT NULL DEFAULT 0;
ALTER TABLE homing_roll_ups ADD COLUMN minute_failed INTEGER NOT NULL DEFAULT 0;
ALTER TABLE homing_roll_ups ADD COLUMN minute_retried INTEGER NOT NULL DEFAULT 0;
ALTER TABLE homing_roll_ups ADD COLUMN minute_attempts INTEGER NOT NULL DEFAULT 0;
ALTER TABLE homing_roll_ups ADD COLUMN minute_bounced INTEGER NOT NULL DEFAULT 0;
ALTER TABLE homing_roll_ups ADD COLUMN minute_opened INTEGER NOT NULL DEFAULT 0;
ALTER TABLE homing_roll_ups ADD COLUMN minute_clicked INTEGER NOT NULL DEFAULT 0;
ALTER TABLE homing_roll_ups ADD COLUMN minute_attempt_ms INTEGER NOT NULL DEFAULT 0;
ALTER TABLE homing_roll_ups ADD COLUMN minute_late_0 INTEGER NOT NULL DEFAULT 0;
ALTER TABLE homing_roll_ups ADD COLUMN minute_late_1 INTEGER NOT NULL DEFAULT 0;
ALTER TABLE homing_roll_ups ADD COLUMN minute_late_2 INTEGER NOT NULL DEFAULT 0;
ALTER TABLE homing_roll_ups ADD COLUMN minute_late_3 INTEGER NOT NULL DEFAULT 0;
ALTER TABLE homing_roll_ups ADD COLUMN minute_late_4 INTEGER NOT NULL DEFAULT 0;
ALTER TABLE homing_roll_ups ADD COLUMN minute_late_5 INTEGER NOT NULL DEFAULT 0;
ALTER TABLE homing_roll_ups ADD COLUMN minute_late_6 INTEGER NOT NULL DEFAULT 0;
ALTER TABLE homing_roll_ups ADD COLUMN minute_late_7 INTEGER NOT NULL DEFAULT 0;
ALTER TABLE homing_roll_ups ADD COLUMN minute_late_8 INTEGER NOT NULL DEFAULT 0;
ALTER TABLE homing_roll_ups ADD COLUMN minute_late_9 INTEGER NOT NULL DEFAULT 0;
ALTER TABLE homing_roll_ups ADD COLUMN minute_late_10 INTEGER NOT NULL DEFAULT 0;
ALTER TABLE homing_roll_ups ADD COLUMN minute_late_11 INTEGER NOT NULL DEFAULT 0;
