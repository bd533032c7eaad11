-- runs with: 4
-- outside a transaction
-- For searches by address. Without the tenant and the id, an entry is smaller and acceptance takes less time. The few
-- notifications of an address are sorted after they were read. An address may be longer than an entry of an index.
DROP INDEX CONCURRENTLY IF EXISTS homing.messages_address;
CREATE INDEX CONCURRENTLY messages_address ON homing.messages (left(address, 300));
