-- runs with: 4
-- Every transaction calls this function to get the time. Without its own settings, PostgreSQL can inline it into
-- the calling statement instead of planning it each time.
CREATE OR REPLACE FUNCTION homing.now_ms() RETURNS bigint LANGUAGE sql STABLE PARALLEL SAFE
    AS $$ SELECT pg_catalog.floor(extract(epoch FROM pg_catalog.now()) * 1000)::bigint $$;
