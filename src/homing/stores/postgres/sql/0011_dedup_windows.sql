-- runs with: 4
-- The end of the dedup window of the notification that was accepted under the key. The row is kept until then, even if
-- that is longer than the retention of keys. 0 in rows that the previous release has written. The index dedups_age stays
-- as it is: building another one would block accepts meanwhile.
ALTER TABLE homing.dedups ADD COLUMN kept_until bigint NOT NULL DEFAULT 0;
