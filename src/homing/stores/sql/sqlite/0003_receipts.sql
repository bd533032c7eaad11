-- runs with: 1
-- How many messages a provider took and then reported as not arrived: what its breaker looks at.
ALTER TABLE homing_roll_ups ADD COLUMN bounced INTEGER NOT NULL DEFAULT 0;
-- A kept receipt that names its notification waits for that one.
ALTER TABLE homing_receipts ADD COLUMN notification_id TEXT;
CREATE INDEX homing_receipt_named ON homing_receipts (notification_id)
    WHERE kept IS NOT NULL AND notification_id IS NOT NULL;
