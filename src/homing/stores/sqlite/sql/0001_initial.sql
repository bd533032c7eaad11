-- All tables refer to a notification by its number `seq`: short keys make small indexes, and large messages stay
-- out of the pages that change. All names have a prefix, because an application may keep its own tables in the
-- same file. It must do so to send notifications in its own transactions.

CREATE TABLE homing_notifications (
    seq              INTEGER PRIMARY KEY,
    id               TEXT    NOT NULL UNIQUE,
    tenant           TEXT    NOT NULL,
    batch_id         TEXT    NOT NULL,
    lane             TEXT    NOT NULL,
    channel          TEXT    NOT NULL,
    mode             TEXT    NOT NULL,
    type             TEXT    NOT NULL,
    category         TEXT    NOT NULL,
    priority         TEXT    NOT NULL,
    origin           TEXT    NOT NULL,
    provider         TEXT    NOT NULL,
    outlet           TEXT    NOT NULL,
    pinned           INTEGER NOT NULL,
    address          TEXT    NOT NULL,
    status           TEXT    NOT NULL,
    token            INTEGER NOT NULL DEFAULT 0,
    changes          INTEGER NOT NULL DEFAULT 0,
    attempts         INTEGER NOT NULL DEFAULT 0,
    attempt_floor    INTEGER NOT NULL DEFAULT 0,
    bounce_floor     INTEGER NOT NULL DEFAULT 0,
    failures_here    INTEGER NOT NULL DEFAULT 0,
    last_delay_ms    INTEGER NOT NULL DEFAULT 0,
    max_age_ms       INTEGER NOT NULL,
    holds            TEXT    NOT NULL DEFAULT '{}',
    created_at       INTEGER NOT NULL,
    updated_at       INTEGER NOT NULL,
    aged_from        INTEGER NOT NULL,
    send_at          INTEGER,
    expires_at       INTEGER,
    due_at           INTEGER,
    deadline_at      INTEGER,
    lease_until      INTEGER,
    started_at       INTEGER NOT NULL DEFAULT 0,
    worker           TEXT    NOT NULL DEFAULT '',
    overdue          INTEGER NOT NULL DEFAULT 0,
    cancel_requested INTEGER NOT NULL DEFAULT 0,
    reason           TEXT,
    last_error       TEXT,
    error_code       TEXT,
    last_attempt_at  INTEGER,
    sent_at          INTEGER,
    delivered_at     INTEGER,
    failed_at        INTEGER,
    acknowledged_at  INTEGER,
    acknowledged_by  TEXT,
    acknowledged_why TEXT,
    resend_of        TEXT,
    resent_as        TEXT,
    engagement       TEXT    NOT NULL DEFAULT '{}'
);

-- For claims: one tenant's rows at one outlet of one lane, the earliest due first.
CREATE INDEX homing_due ON homing_notifications (lane, tenant, outlet, due_at, id)
    WHERE due_at IS NOT NULL;
-- For reclaims. A synchronous notification has no deadline.
CREATE INDEX homing_deadline ON homing_notifications (deadline_at)
    WHERE deadline_at IS NOT NULL AND mode <> 'synchronous';
CREATE INDEX homing_lease ON homing_notifications (lease_until)
    WHERE lease_until IS NOT NULL;
-- For lists: by tenant, newest first; by batch; and of the statuses that are rare among many successful rows.
-- SQLite evaluates the condition at every write, and plain comparisons are several times faster than IN.
CREATE INDEX homing_tenant ON homing_notifications (tenant, id);
CREATE INDEX homing_batch ON homing_notifications (batch_id);
CREATE INDEX homing_rare ON homing_notifications (tenant, status, id)
    WHERE status <> 'pending' AND status <> 'sending' AND status <> 'sent' AND status <> 'delivered';
-- For the oldest retry of a tenant.
CREATE INDEX homing_retrying ON homing_notifications (tenant, last_attempt_at)
    WHERE status = 'retrying';
-- For prunes: rows by age that are neither waiting nor leased.
CREATE INDEX homing_final ON homing_notifications (status, updated_at)
    WHERE due_at IS NULL AND lease_until IS NULL;

CREATE TABLE homing_messages (
    seq     INTEGER PRIMARY KEY,
    message TEXT NOT NULL
);

-- `change` is the number of the row's change that an attempt or cause belongs to. It defines their order.
CREATE TABLE homing_attempts (
    seq                 INTEGER NOT NULL,
    change              INTEGER NOT NULL,
    number              INTEGER NOT NULL,
    provider            TEXT    NOT NULL,
    outcome             TEXT    NOT NULL,
    started_at          INTEGER NOT NULL,
    latency_ms          INTEGER NOT NULL,
    worker              TEXT    NOT NULL,
    error_code          TEXT,
    error               TEXT,
    provider_message_id TEXT,
    receipt_rank        INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (seq, change)
) WITHOUT ROWID;
CREATE INDEX homing_attempt_message ON homing_attempts (provider, provider_message_id)
    WHERE provider_message_id IS NOT NULL;

CREATE TABLE homing_causes (
    seq    INTEGER NOT NULL,
    change INTEGER NOT NULL,
    kind   TEXT    NOT NULL,
    name   TEXT    NOT NULL,
    at     INTEGER NOT NULL,
    before TEXT    NOT NULL,
    after  TEXT    NOT NULL,
    who    TEXT    NOT NULL,
    why    TEXT    NOT NULL,
    PRIMARY KEY (seq, change)
) WITHOUT ROWID;

-- The queues, each with the due time of its first waiting row (NULL if none waits). `served` is the turn in which
-- a queue, or in `homing_turns` a tenant, was last served. The least recently served is next.
CREATE TABLE homing_queues (
    lane        TEXT    NOT NULL,
    tenant      TEXT    NOT NULL,
    outlet      TEXT    NOT NULL,
    next_due_at INTEGER,
    served      INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (lane, tenant, outlet)
) WITHOUT ROWID;
CREATE INDEX homing_queue_due ON homing_queues (lane, next_due_at, served)
    WHERE next_due_at IS NOT NULL;

CREATE TABLE homing_turns (
    lane   TEXT    NOT NULL,
    tenant TEXT    NOT NULL,
    served INTEGER NOT NULL,
    PRIMARY KEY (lane, tenant)
) WITHOUT ROWID;

CREATE TABLE homing_counters (
    name  TEXT    PRIMARY KEY,
    value INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE homing_requests (
    tenant          TEXT    NOT NULL,
    idempotency_key TEXT    NOT NULL,
    fingerprint     TEXT    NOT NULL,
    batch_id        TEXT    NOT NULL,
    ids             TEXT    NOT NULL,
    created_at      INTEGER NOT NULL,
    PRIMARY KEY (tenant, idempotency_key)
) WITHOUT ROWID;
CREATE INDEX homing_request_age ON homing_requests (created_at);

CREATE TABLE homing_dedups (
    tenant      TEXT    NOT NULL,
    dedup_key   TEXT    NOT NULL,
    id          TEXT    NOT NULL,
    accepted_at INTEGER NOT NULL,
    PRIMARY KEY (tenant, dedup_key)
) WITHOUT ROWID;
CREATE INDEX homing_dedup_age ON homing_dedups (accepted_at);

-- Every callback event once. `kept` holds a receipt whose attempt is not known yet, otherwise NULL.
CREATE TABLE homing_receipts (
    number              INTEGER PRIMARY KEY,
    provider            TEXT    NOT NULL,
    event_id            TEXT    NOT NULL,
    provider_message_id TEXT    NOT NULL,
    received_at         INTEGER NOT NULL,
    kept                TEXT,
    UNIQUE (provider, event_id)
);
CREATE INDEX homing_receipt_kept ON homing_receipts (provider, provider_message_id)
    WHERE kept IS NOT NULL;
CREATE INDEX homing_receipt_age ON homing_receipts (received_at);

CREATE TABLE homing_outbox (
    number          INTEGER PRIMARY KEY AUTOINCREMENT,
    id              TEXT    NOT NULL UNIQUE,
    name            TEXT    NOT NULL,
    tenant          TEXT    NOT NULL,
    at              INTEGER NOT NULL,
    notification_id TEXT,
    payload         TEXT    NOT NULL,
    leased_to       TEXT    NOT NULL DEFAULT '',
    lease_until     INTEGER NOT NULL DEFAULT 0
);

CREATE TABLE homing_tallies (
    tenant   TEXT    NOT NULL,
    status   TEXT    NOT NULL,
    attempts INTEGER NOT NULL,
    count    INTEGER NOT NULL DEFAULT 0,
    purged   INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant, status, attempts)
) WITHOUT ROWID;

CREATE TABLE homing_roll_ups (
    hour_at   INTEGER NOT NULL,
    tenant    TEXT    NOT NULL,
    channel   TEXT    NOT NULL,
    provider  TEXT    NOT NULL,
    accepted  INTEGER NOT NULL DEFAULT 0,
    sent      INTEGER NOT NULL DEFAULT 0,
    delivered INTEGER NOT NULL DEFAULT 0,
    failed    INTEGER NOT NULL DEFAULT 0,
    retried   INTEGER NOT NULL DEFAULT 0,
    attempts  INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (hour_at, tenant, channel, provider)
) WITHOUT ROWID;

CREATE TABLE homing_registry (
    tenant     TEXT    NOT NULL,
    kind       TEXT    NOT NULL,
    key        TEXT    NOT NULL,
    value      TEXT    NOT NULL,
    version    INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    updated_by TEXT    NOT NULL,
    PRIMARY KEY (tenant, kind, key)
) WITHOUT ROWID;

CREATE TABLE homing_breakers (
    provider TEXT    PRIMARY KEY,
    version  INTEGER NOT NULL,
    breaker  TEXT    NOT NULL
) WITHOUT ROWID;

CREATE TABLE homing_buckets (
    key    TEXT    PRIMARY KEY,
    tokens REAL    NOT NULL,
    at     INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE homing_leads (
    task       TEXT    PRIMARY KEY,
    worker     TEXT    NOT NULL,
    lead_until INTEGER NOT NULL
) WITHOUT ROWID;
