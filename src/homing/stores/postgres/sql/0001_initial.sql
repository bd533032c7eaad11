-- All tables refer to a notification by its number `seq`. The data that never changes after acceptance is in
-- `messages`. The data that changes is in `live` while Homing still has to act on the notification, and then moves
-- to `settled`. So the table with the most writes stays small, and few dead rows accumulate in it.
-- Times are milliseconds since the epoch. Texts are compared by their bytes, as everywhere in Homing.

CREATE FUNCTION homing.now_ms() RETURNS bigint LANGUAGE sql STABLE PARALLEL SAFE SET search_path = pg_catalog
    AS $$ SELECT floor(extract(epoch FROM now()) * 1000)::bigint $$;

-- The queues in which rows wait. They never change, so a row can refer to its queue by a number of four bytes.
CREATE TABLE homing.queues (
    id     integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    lane   text COLLATE "C" NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    outlet text COLLATE "C" NOT NULL,
    UNIQUE (lane, tenant, outlet)
);

-- When a queue was last served, in microseconds. The least recently served is next.
CREATE TABLE homing.turns (
    queue  integer PRIMARY KEY,
    served bigint NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.5, autovacuum_vacuum_threshold = 500);

CREATE SEQUENCE homing.seqs AS bigint CACHE 1;

CREATE TABLE homing.messages (
    seq        bigint NOT NULL PRIMARY KEY,
    created_at bigint NOT NULL,
    send_at    bigint,
    id         uuid NOT NULL UNIQUE,
    resend_of  uuid,
    batch_id   text COLLATE "C" NOT NULL,
    tenant     text COLLATE "C" NOT NULL,
    channel    text COLLATE "C" NOT NULL,
    mode       text COLLATE "C" NOT NULL,
    type       text COLLATE "C" NOT NULL,
    category   text COLLATE "C" NOT NULL,
    priority   text COLLATE "C" NOT NULL,
    origin     text COLLATE "C" NOT NULL,
    address    text COLLATE "C" NOT NULL,
    message    text COLLATE "C" NOT NULL
);
CREATE INDEX messages_tenant ON homing.messages (tenant, id);
CREATE INDEX messages_batch ON homing.messages (batch_id);

CREATE TABLE homing.live (
    seq              bigint NOT NULL PRIMARY KEY,
    updated_at       bigint NOT NULL,
    aged_from        bigint NOT NULL,
    max_age_ms       bigint NOT NULL,
    last_delay_ms    bigint NOT NULL DEFAULT 0,
    started_at       bigint NOT NULL DEFAULT 0,
    due_at           bigint,
    deadline_at      bigint,
    lease_until      bigint,
    expires_at       bigint,
    last_attempt_at  bigint,
    sent_at          bigint,
    delivered_at     bigint,
    failed_at        bigint,
    acknowledged_at  bigint,
    queue            integer NOT NULL,
    token            integer NOT NULL DEFAULT 0,
    changes          integer NOT NULL DEFAULT 0,
    attempts         integer NOT NULL DEFAULT 0,
    attempts_before  integer NOT NULL DEFAULT 0,
    max_attempts     integer,
    attempt_floor    integer NOT NULL DEFAULT 0,
    bounce_floor     integer NOT NULL DEFAULT 0,
    failures_here    integer NOT NULL DEFAULT 0,
    pinned           boolean NOT NULL DEFAULT false,
    overdue          boolean NOT NULL DEFAULT false,
    cancel_requested boolean NOT NULL DEFAULT false,
    unhurried        boolean NOT NULL DEFAULT false, -- true if synchronous: it has no deadline
    tenant           text COLLATE "C" NOT NULL,
    status           text COLLATE "C" NOT NULL,
    provider         text COLLATE "C" NOT NULL,
    worker           text COLLATE "C" NOT NULL DEFAULT '',
    holds            text COLLATE "C",
    reason           text COLLATE "C",
    error_code       text COLLATE "C",
    last_error       text COLLATE "C",
    acknowledged_by  text COLLATE "C",
    acknowledged_why text COLLATE "C",
    resent_as        uuid,
    engagement       text COLLATE "C"
);
CREATE TABLE homing.settled (LIKE homing.live INCLUDING DEFAULTS, PRIMARY KEY (seq));

-- For claims: the rows of one queue, the earliest due first.
CREATE INDEX live_due ON homing.live (queue, due_at, seq) WHERE due_at IS NOT NULL;
-- For reclaims.
CREATE INDEX live_lease ON homing.live (lease_until) WHERE lease_until IS NOT NULL;
CREATE INDEX live_deadline ON homing.live (deadline_at) WHERE deadline_at IS NOT NULL AND NOT unhurried;
-- For the oldest retry of a tenant.
CREATE INDEX live_retrying ON homing.live (tenant, last_attempt_at) WHERE status = 'retrying';
-- For lists of the statuses that are rare among many successful rows.
CREATE INDEX settled_rare ON homing.settled (tenant, status, seq) WHERE status NOT IN ('sent', 'delivered');
-- For prunes.
CREATE INDEX settled_age ON homing.settled (status, updated_at);

-- Every row of `live` is deleted after a short time, so autovacuum must run often and without pauses.
ALTER TABLE homing.live SET (
    fillfactor = 85,
    autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_insert_scale_factor = 0.2,
    autovacuum_analyze_scale_factor = 0.5, autovacuum_analyze_threshold = 20000,
    autovacuum_vacuum_cost_delay = 0
);
ALTER TABLE homing.settled SET (autovacuum_vacuum_scale_factor = 0.05);
ALTER TABLE homing.messages SET (autovacuum_vacuum_scale_factor = 0.05);

CREATE VIEW homing.states AS
SELECT
    seq, updated_at, aged_from, max_age_ms, last_delay_ms, started_at, due_at, deadline_at, lease_until,
    expires_at, last_attempt_at, sent_at, delivered_at, failed_at, acknowledged_at, queue, token, changes,
    attempts, attempts_before, max_attempts, attempt_floor, bounce_floor, failures_here, pinned, overdue,
    cancel_requested, unhurried, tenant, status, provider, worker, holds, reason, error_code, last_error,
    acknowledged_by, acknowledged_why, resent_as, engagement
FROM homing.live
UNION ALL
SELECT
    seq, updated_at, aged_from, max_age_ms, last_delay_ms, started_at, due_at, deadline_at, lease_until,
    expires_at, last_attempt_at, sent_at, delivered_at, failed_at, acknowledged_at, queue, token, changes,
    attempts, attempts_before, max_attempts, attempt_floor, bounce_floor, failures_here, pinned, overdue,
    cancel_requested, unhurried, tenant, status, provider, worker, holds, reason, error_code, last_error,
    acknowledged_by, acknowledged_why, resent_as, engagement
FROM homing.settled;

-- A notification without its message. The columns have the names of the fields of `Row`.
CREATE VIEW homing.rows AS
SELECT m.seq, m.id, m.tenant, m.batch_id, q.lane, m.channel, m.mode, m.type, m.category, m.priority, m.origin,
    s.provider, q.outlet, s.pinned, m.address, s.status, s.token, s.changes, s.attempts, s.attempts_before,
    s.max_attempts, s.attempt_floor, s.bounce_floor, s.failures_here, s.last_delay_ms, s.max_age_ms, s.holds,
    m.created_at, s.updated_at, s.aged_from, m.send_at, s.expires_at, s.due_at, s.deadline_at, s.lease_until,
    s.started_at, s.worker, s.overdue, s.cancel_requested, s.reason, s.last_error, s.error_code,
    s.last_attempt_at, s.sent_at, s.delivered_at, s.failed_at, s.acknowledged_at, s.acknowledged_by,
    s.acknowledged_why, m.resend_of, s.resent_as, s.engagement
FROM homing.messages AS m
JOIN homing.states AS s ON s.seq = m.seq
JOIN homing.queues AS q ON q.id = s.queue;

-- `change` is the number of the row's change that an attempt or cause belongs to. It defines their order.
CREATE TABLE homing.attempts (
    seq                 bigint NOT NULL,
    started_at          bigint NOT NULL,
    latency_ms          bigint NOT NULL,
    change              integer NOT NULL,
    number              integer NOT NULL,
    receipt_rank        integer NOT NULL DEFAULT 0,
    provider            text COLLATE "C" NOT NULL,
    outcome             text COLLATE "C" NOT NULL,
    worker              text COLLATE "C" NOT NULL,
    error_code          text COLLATE "C",
    error               text COLLATE "C",
    provider_message_id text COLLATE "C",
    PRIMARY KEY (seq, change)
);
CREATE INDEX attempts_message ON homing.attempts (provider_message_id, provider)
    WHERE provider_message_id IS NOT NULL;

CREATE TABLE homing.causes (
    seq    bigint  NOT NULL,
    at     bigint  NOT NULL,
    change integer NOT NULL,
    kind   text COLLATE "C" NOT NULL,
    name   text COLLATE "C" NOT NULL,
    before text COLLATE "C" NOT NULL,
    after  text COLLATE "C" NOT NULL,
    who    text COLLATE "C" NOT NULL,
    why    text COLLATE "C" NOT NULL,
    PRIMARY KEY (seq, change)
);

CREATE TABLE homing.requests (
    created_at      bigint NOT NULL,
    batch_id        text COLLATE "C" NOT NULL,
    tenant          text COLLATE "C" NOT NULL,
    idempotency_key text COLLATE "C" NOT NULL,
    fingerprint     text COLLATE "C" NOT NULL,
    ids             uuid[] NOT NULL,
    PRIMARY KEY (tenant, idempotency_key)
);
CREATE INDEX requests_age ON homing.requests (created_at);

CREATE TABLE homing.dedups (
    accepted_at bigint, -- NULL while the accepting transaction is open
    id          uuid NOT NULL,
    tenant      text COLLATE "C" NOT NULL,
    dedup_key   text COLLATE "C" NOT NULL,
    PRIMARY KEY (tenant, dedup_key)
);
CREATE INDEX dedups_age ON homing.dedups (accepted_at);

-- Every callback event once. `kept` holds a receipt whose attempt is not known yet, otherwise NULL.
CREATE TABLE homing.receipts (
    number              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    received_at         bigint NOT NULL,
    notification_id     uuid,
    attempt             integer NOT NULL DEFAULT 0,
    provider            text COLLATE "C" NOT NULL,
    event_id            text COLLATE "C" NOT NULL,
    provider_message_id text COLLATE "C" NOT NULL,
    kept                text COLLATE "C",
    UNIQUE (provider, event_id)
);
CREATE INDEX receipts_kept ON homing.receipts (provider_message_id, provider) WHERE kept IS NOT NULL;
CREATE INDEX receipts_kept_for ON homing.receipts (notification_id)
    WHERE kept IS NOT NULL AND notification_id IS NOT NULL;
CREATE INDEX receipts_age ON homing.receipts (received_at);

CREATE TABLE homing.outbox (
    number          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at              bigint NOT NULL,
    lease_until     bigint NOT NULL DEFAULT 0,
    notification_id text COLLATE "C",
    id              text COLLATE "C" NOT NULL UNIQUE,
    name            text COLLATE "C" NOT NULL,
    tenant          text COLLATE "C" NOT NULL,
    payload         text COLLATE "C" NOT NULL,
    leased_to       text COLLATE "C" NOT NULL DEFAULT ''
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000);

-- Counts and hourly sums. A batch only appends to the ledger, one row per kind of change, so writers never wait
-- for each other. Upkeep folds the ledger into the two tables. The sum of table and ledger is always exact.
CREATE TABLE homing.ledger (
    hour_at         bigint  NOT NULL,
    number          integer NOT NULL,
    purged          integer NOT NULL DEFAULT 0,
    attempts_before integer,
    attempts_after  integer,
    accepted        integer NOT NULL DEFAULT 0,
    sent            integer NOT NULL DEFAULT 0,
    delivered       integer NOT NULL DEFAULT 0,
    failed          integer NOT NULL DEFAULT 0,
    retried         integer NOT NULL DEFAULT 0,
    attempts        integer NOT NULL DEFAULT 0,
    bounced         integer NOT NULL DEFAULT 0,
    tenant          text COLLATE "C" NOT NULL,
    channel         text COLLATE "C" NOT NULL,
    provider        text COLLATE "C" NOT NULL,
    before          text COLLATE "C",
    after           text COLLATE "C"
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000);

CREATE TABLE homing.tallies (
    count    bigint  NOT NULL DEFAULT 0,
    purged   bigint  NOT NULL DEFAULT 0,
    attempts integer NOT NULL,
    tenant   text COLLATE "C" NOT NULL,
    status   text COLLATE "C" NOT NULL,
    PRIMARY KEY (tenant, status, attempts)
);

CREATE TABLE homing.roll_ups (
    hour_at   bigint NOT NULL,
    accepted  bigint NOT NULL DEFAULT 0,
    sent      bigint NOT NULL DEFAULT 0,
    delivered bigint NOT NULL DEFAULT 0,
    failed    bigint NOT NULL DEFAULT 0,
    retried   bigint NOT NULL DEFAULT 0,
    attempts  bigint NOT NULL DEFAULT 0,
    bounced   bigint NOT NULL DEFAULT 0,
    tenant    text COLLATE "C" NOT NULL,
    channel   text COLLATE "C" NOT NULL,
    provider  text COLLATE "C" NOT NULL,
    PRIMARY KEY (hour_at, tenant, channel, provider)
);

CREATE VIEW homing.all_tallies AS
SELECT tenant, status, attempts, sum(count)::bigint AS count, sum(purged)::bigint AS purged FROM (
    SELECT tenant, status, attempts, count, purged FROM homing.tallies
    UNION ALL
    SELECT tenant, before, attempts_before, -number, purged FROM homing.ledger WHERE before IS NOT NULL
    UNION ALL
    SELECT tenant, after, attempts_after, number, 0 FROM homing.ledger WHERE after IS NOT NULL
) AS cells GROUP BY tenant, status, attempts;

CREATE VIEW homing.all_roll_ups AS
SELECT hour_at, tenant, channel, provider, sum(accepted)::bigint AS accepted, sum(sent)::bigint AS sent,
    sum(delivered)::bigint AS delivered, sum(failed)::bigint AS failed, sum(retried)::bigint AS retried,
    sum(attempts)::bigint AS attempts, sum(bounced)::bigint AS bounced
FROM (
    SELECT hour_at, tenant, channel, provider, accepted, sent, delivered, failed, retried, attempts, bounced
    FROM homing.roll_ups
    UNION ALL
    SELECT hour_at, tenant, channel, provider, accepted, sent, delivered, failed, retried, attempts, bounced
    FROM homing.ledger WHERE accepted + sent + delivered + failed + retried + attempts + bounced > 0
) AS sums GROUP BY hour_at, tenant, channel, provider;

CREATE TABLE homing.registry (
    updated_at bigint  NOT NULL,
    version    integer NOT NULL,
    tenant     text COLLATE "C" NOT NULL,
    kind       text COLLATE "C" NOT NULL,
    key        text COLLATE "C" NOT NULL,
    value      text COLLATE "C" NOT NULL,
    updated_by text COLLATE "C" NOT NULL,
    PRIMARY KEY (tenant, kind, key)
);

CREATE TABLE homing.breakers (
    provider text COLLATE "C" PRIMARY KEY,
    version  integer NOT NULL,
    breaker  text COLLATE "C" NOT NULL
);

CREATE TABLE homing.buckets (
    key    text COLLATE "C" PRIMARY KEY,
    tokens double precision NOT NULL,
    at     bigint NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE homing.leads (
    task       text COLLATE "C" PRIMARY KEY,
    worker     text COLLATE "C" NOT NULL,
    lead_until bigint NOT NULL
) WITH (fillfactor = 50);
