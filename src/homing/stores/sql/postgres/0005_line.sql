-- runs with: 4
-- Asked for the time by every transaction: without settings of its own, the function becomes a part of the
-- statement that calls it instead of being planned each time.
CREATE OR REPLACE FUNCTION homing.now_ms() RETURNS bigint LANGUAGE sql STABLE PARALLEL SAFE
    AS $$ SELECT pg_catalog.floor(extract(epoch FROM pg_catalog.now()) * 1000)::bigint $$;
