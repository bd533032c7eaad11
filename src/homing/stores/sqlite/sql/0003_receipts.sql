-- runs with: 1
-- Number of messages that a provider accepted and later reported as failed. The provider's breaker uses it.
ALTER TABLE homing_roll_ups ADD COLUMN bounced INTEGER NOT NULL DEFAULT 0;
-- Finds kept receipts by the notification that they name.
ALTER TABLE homing_receipts ADD COLUMN notification_id TEXT;
CREATE INDEX homing_receipt_named ON homing_receipts (notification_id)
    WHERE kept IS NOT NULL AND notification_id IS NOT NULL;
