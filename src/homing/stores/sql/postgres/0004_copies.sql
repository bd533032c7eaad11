-- What was copied into this schema from another store, and how far a copy has come that is under way. While one
-- is, no worker uses the schema.

CREATE TABLE homing.copies (
    source   text COLLATE "C" PRIMARY KEY,
    began_at bigint NOT NULL,
    ended_at bigint
);

CREATE TABLE homing.copied_parts (
    part   text COLLATE "C" PRIMARY KEY,
    after  text COLLATE "C" NOT NULL, -- the key of the last record, as JSON
    number bigint NOT NULL
);

ALTER TABLE homing.copies ENABLE ROW LEVEL SECURITY;
ALTER TABLE homing.copied_parts ENABLE ROW LEVEL SECURITY;
