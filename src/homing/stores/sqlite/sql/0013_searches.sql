-- runs with: 1
-- For searches by address, newest first.
CREATE INDEX homing_address ON homing_notifications (tenant, address, id);
-- For searches by the recipient's id, which is the first text in the message.
CREATE INDEX homing_recipient ON homing_messages (
    substr(substr(message, 21, 300), 1, instr(substr(message, 21, 300) || '"', '"') - 1))
    WHERE substr(message, 1, 20) = '{"recipient":{"id":"';
-- For the number of dead letters that nobody has acknowledged, and the oldest of them.
CREATE INDEX homing_unacknowledged ON homing_notifications (tenant, failed_at)
    WHERE status = 'failed' AND acknowledged_at IS NULL;
