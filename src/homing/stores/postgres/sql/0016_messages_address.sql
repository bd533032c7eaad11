-- runs with: 4
-- outside a transaction
-- For searches by address, newest first. An address may be longer than an entry of an index.
DROP INDEX CONCURRENTLY IF EXISTS homing.messages_address;
CREATE INDEX CONCURRENTLY messages_address ON homing.messages (tenant, left(address, 300), id);
