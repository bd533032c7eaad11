-- The copies from other stores into this schema, and the progress of a copy that is not complete yet. Until it is
-- complete, no worker uses the schema.

CREATE TABLE homing.copies (
    source   text COLLATE "C" PRIMARY KEY,
    began_at bigint NOT NULL,
    ended_at bigint
);

CREATE TABLE homing.copied_parts (
    part   text COLLATE "C" PRIMARY KEY,
    after  text COLLATE "C" NOT NULL, -- key of the last copied record, as JSON
    number bigint NOT NULL
);

ALTER TABLE homing.copies ENABLE ROW LEVEL SECURITY;
ALTER TABLE homing.copied_parts ENABLE ROW LEVEL SECURITY;
