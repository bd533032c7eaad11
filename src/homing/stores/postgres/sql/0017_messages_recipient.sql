-- runs with: 4
-- outside a transaction
-- For searches by the recipient's id, which is the first text in the message, newest first.
DROP INDEX CONCURRENTLY IF EXISTS homing.messages_recipient;
CREATE INDEX CONCURRENTLY messages_recipient ON homing.messages (tenant, split_part(substr(message, 21, 300), '"', 1), id)
    WHERE substr(message, 1, 20) = '{"recipient":{"id":"';
