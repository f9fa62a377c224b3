-- The ledger: what came in, where its copies are, and who tried to deliver it.
-- Times are UTC. Texts compare byte by byte, without padding. MariaDB commits each of these
-- statements by itself, so that a migration that was cut short is run again from its start.
CREATE TABLE IF NOT EXISTS onedrop_ledger (
    version         INT NOT NULL COMMENT 'of the schema; 0: not whole yet',
    oldest_program  INT NOT NULL COMMENT 'lowest schema version of a program that may write',
    remembers_since DATETIME(6) NOT NULL
        COMMENT 'what was recorded since then is on record; its birth, moved on by each purge',
    facts_since     DATETIME(6) NOT NULL DEFAULT '1970-01-01'
        COMMENT 'facts of messages that were recorded before have been erased',
    purged_at       DATETIME(6) COMMENT 'when a purge last came to its end',
    config          TEXT
        COMMENT 'JSON of the configuration keys that all hosts must have alike; null: not set',
    one_row         BOOLEAN NOT NULL DEFAULT TRUE PRIMARY KEY CHECK (one_row)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin
  COMMENT = 'what holds for the whole ledger: one row';

CREATE TABLE IF NOT EXISTS onedrop_message (
    id            BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    id_hash       BINARY(32) NOT NULL
        COMMENT 'SHA-256 of the Message-ID, or the digest where there is none',
    digest        BINARY(32) NOT NULL COMMENT 'SHA-256 over what the author wrote',
    message_id    BLOB COMMENT 'raw bytes',
    sender        TEXT NOT NULL
        COMMENT 'envelope sender of the first attempt, empty for the null sender',
    subject       TEXT,
    date          DATETIME COMMENT 'the Date field',
    in_reply_to   TEXT COMMENT 'empty: the last of reference_ids',
    reference_ids TEXT,
    size_bytes    BIGINT NOT NULL,
    collision     BOOLEAN NOT NULL DEFAULT FALSE
        COMMENT 'when it was recorded, another message had this Message-ID and other content',
    nul_runs      MEDIUMBLOB COMMENT 'where NUL bytes stand: runs of offset and length',
    addresses     LONGTEXT COMMENT 'JSON: [[role, address, name], ...]',
    parts         LONGTEXT COMMENT 'JSON: [[path, content type, bytes, name], ...]',
    looks_back    BOOLEAN NOT NULL DEFAULT FALSE
        COMMENT 'older than what the ledger remembers, or its copies were forgotten',
    recorded_at   DATETIME NOT NULL,
    UNIQUE KEY onedrop_message_key (id_hash, digest),
    KEY onedrop_message_recorded_at (recorded_at)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin
  COMMENT = 'messages, each once';

CREATE OR REPLACE VIEW onedrop_message_text AS
SELECT id, CONVERT(message_id USING latin1) AS message_id, sender, subject, date,
       IF(in_reply_to = '', SUBSTRING_INDEX(reference_ids, ' ', -1), in_reply_to) AS in_reply_to,
       reference_ids, size_bytes, collision, recorded_at
FROM onedrop_message;

CREATE OR REPLACE VIEW onedrop_address AS
SELECT m.id AS message_id, a.position, a.role, a.name, a.address
FROM onedrop_message m, JSON_TABLE(m.addresses, '$[*]' COLUMNS (
    position FOR ORDINALITY,
    role VARCHAR(16) PATH '$[0]', address TEXT PATH '$[1]', name TEXT PATH '$[2]')) a;

CREATE OR REPLACE VIEW onedrop_part AS
SELECT m.id AS message_id, p.position, p.path, p.content_type, p.name, p.size_bytes
FROM onedrop_message m, JSON_TABLE(m.parts, '$[*]' COLUMNS (
    position FOR ORDINALITY, path VARCHAR(1000) PATH '$[0]',
    content_type TEXT PATH '$[1]', size_bytes BIGINT PATH '$[2]', name TEXT PATH '$[3]')) p;

CREATE TABLE IF NOT EXISTS onedrop_raw (
    message_id BIGINT NOT NULL,
    position   INT NOT NULL,
    bytes      MEDIUMBLOB NOT NULL,
    kept_at    DATETIME NOT NULL,
    PRIMARY KEY (message_id, position),
    FOREIGN KEY (message_id) REFERENCES onedrop_message (id) ON DELETE CASCADE
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC COMMENT = 'messages as received (ledger.keep_raw), in pieces by position';

CREATE TABLE IF NOT EXISTS onedrop_copy (
    id            BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    value         BINARY(16) NOT NULL COMMENT 'random: a claim names the row by it',
    message_id    BIGINT NOT NULL,
    account       VARBINARY(1000) NOT NULL,
    mailbox       VARBINARY(1000) NOT NULL,
    shared        BOOLEAN NOT NULL,
    epoch         BIGINT NOT NULL COMMENT 'how often it was leased',
    owner         VARCHAR(1000) NOT NULL COMMENT 'host:pid of the last lease',
    lease_value   BINARY(16) COMMENT 'random value of the attempt that has or had the lease',
    lease_ms      BIGINT NOT NULL DEFAULT 0,
    leased_until  DATETIME(6),
    in_doubt      BOOLEAN NOT NULL
        COMMENT 'a lease began, and nothing proved that nothing was written',
    prior_doubt   BOOLEAN NOT NULL COMMENT 'in_doubt before the last lease',
    looks_back    BOOLEAN NOT NULL DEFAULT FALSE
        COMMENT 'it may be older than its row: a look has no bound of date',
    placed_at     DATETIME(6),
    placed_epoch  BIGINT NOT NULL DEFAULT 0 COMMENT 'epoch of the claim that confirmed',
    receipt_kind  VARCHAR(16)
        COMMENT 'uid (IMAP), name (Maildir), lmtp (handed over), unnamed, or instead',
    receipt       VARCHAR(1000)
        COMMENT 'UIDVALIDITY/UID, the file''s unique name, a name of the delivery, or a mailbox',
    nul_replaced  BOOLEAN NOT NULL DEFAULT FALSE,
    found_by_look BOOLEAN NOT NULL DEFAULT FALSE,
    wrapped       BOOLEAN NOT NULL DEFAULT FALSE
        COMMENT 'attached to a message of ours, as the store did not take it as it came',
    by_sender     BOOLEAN NOT NULL DEFAULT FALSE
        COMMENT 'the receipt is that of the copy which the sender''s own mail program saved',
    due_at        DATETIME(6) COMMENT 'from then on settle has it; stays when it is placed',
    settled_at    DATETIME(6)
        COMMENT 'when a look after the last lease found one copy at most',
    recipient     VARCHAR(1000)
        COMMENT 'of the attempt that recorded the message with this copy alone, in lower case; null: it has its own row, or was erased',
    queue_id      VARCHAR(1000),
    host          TEXT,
    pid           BIGINT,
    began_at      DATETIME(6) COMMENT 'when that attempt began',
    attempt_ms    BIGINT
        COMMENT 'how long it took to store the copy; null: another stored it, or it has no end',
    UNIQUE KEY onedrop_copy_key (message_id, account, mailbox),
    KEY onedrop_copy_account (account, message_id),
    KEY onedrop_copy_recipient (recipient(128), message_id),
    KEY onedrop_copy_queue_id (queue_id(64)),
    FOREIGN KEY (message_id) REFERENCES onedrop_message (id) ON DELETE CASCADE
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin
  COMMENT = 'copies: a message in a mailbox';

CREATE TABLE IF NOT EXISTS onedrop_attempt (
    id          BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    message_id  BIGINT,
    id_hash     BINARY(32) COMMENT 'as the message''s, where there is none',
    recipient   VARCHAR(1000) NOT NULL COMMENT 'in lower case',
    sender      TEXT COMMENT 'envelope sender; null: the message''s',
    queue_id    VARCHAR(1000) NOT NULL,
    host        TEXT NOT NULL,
    pid         BIGINT NOT NULL,
    started_at  DATETIME(6) NOT NULL,
    duration_ms BIGINT COMMENT 'null: still running, or killed',
    outcome     VARCHAR(16) COMMENT 'delivered, tempfail or permfail',
    status      TEXT COMMENT 'as in RFC 3463',
    detail      TEXT COMMENT 'what Postfix was told',
    reason      TEXT COMMENT 'in a word (docs/reasons.md)',
    KEY onedrop_attempt_started_at (started_at),
    KEY onedrop_attempt_message (message_id, started_at),
    KEY onedrop_attempt_id_hash (id_hash),
    KEY onedrop_attempt_queue_id (queue_id(64)),
    KEY onedrop_attempt_recipient (recipient(128), message_id),
    FOREIGN KEY (message_id) REFERENCES onedrop_message (id) ON DELETE CASCADE
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin
  COMMENT = 'attempts to deliver, but for those in onedrop_copy';

CREATE OR REPLACE VIEW onedrop_attempt_text AS
SELECT a.id, a.message_id, a.id_hash, a.started_at, a.recipient,
       COALESCE(a.sender, m.sender) AS sender, a.queue_id, a.host, a.pid, a.duration_ms, a.outcome,
       a.status, a.detail, a.reason
FROM onedrop_attempt a LEFT JOIN onedrop_message m ON m.id = a.message_id
UNION ALL
SELECT NULL, c.message_id, NULL, c.began_at, c.recipient, m.sender, c.queue_id, c.host, c.pid,
       c.attempt_ms, IF(c.attempt_ms IS NULL, NULL, 'delivered'),
       IF(c.attempt_ms IS NULL, NULL, '2.0.0'),
       IF(c.attempt_ms IS NULL, NULL,
          CONCAT(IF(c.receipt_kind = 'lmtp', 'handed over', 'stored'), ' account=',
                 CONVERT(c.account USING utf8mb4),
                 IF(c.receipt_kind = 'lmtp', '',
                    CONCAT(' mailbox=', CONVERT(c.mailbox USING utf8mb4))), ' ',
                 CASE c.receipt_kind
                     WHEN 'uid' THEN CONCAT('uid=', SUBSTRING_INDEX(c.receipt, '/', -1))
                     WHEN 'unnamed' THEN 'uid=?'
                     ELSE CONCAT(c.receipt_kind, '=', c.receipt) END)),
       IF(c.attempt_ms IS NULL, NULL, 'delivered')
FROM onedrop_copy c STRAIGHT_JOIN onedrop_message m ON m.id = c.message_id
WHERE c.recipient IS NOT NULL;

CREATE TABLE IF NOT EXISTS onedrop_unsettled (
    copy_id BIGINT NOT NULL PRIMARY KEY,
    look_at DATETIME(6) NOT NULL COMMENT 'not before then',
    KEY onedrop_unsettled_look_at (look_at),
    FOREIGN KEY (copy_id) REFERENCES onedrop_copy (id) ON DELETE CASCADE
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC
  COMMENT = 'copies to be looked at again, however old: leased twice, in doubt, due, written twice';

CREATE TABLE IF NOT EXISTS onedrop_kept (
    message_id BIGINT NOT NULL PRIMARY KEY,
    why        TEXT NOT NULL COMMENT 'what the mail store said at the last try',
    kept_at    DATETIME(6) NOT NULL,
    FOREIGN KEY (message_id) REFERENCES onedrop_message (id) ON DELETE CASCADE
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin
  COMMENT = 'messages whose shared copy (Sent) could not be placed; gone once it is';

CREATE TABLE IF NOT EXISTS onedrop_kept_bytes (
    message_id BIGINT NOT NULL,
    position   INT NOT NULL,
    bytes      MEDIUMBLOB NOT NULL,
    PRIMARY KEY (message_id, position),
    FOREIGN KEY (message_id) REFERENCES onedrop_kept (message_id) ON DELETE CASCADE
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC COMMENT = 'the bytes of that copy, in pieces by position';

CREATE TABLE IF NOT EXISTS onedrop_proof (
    server     VARBINARY(1000) NOT NULL,
    login_user VARBINARY(1000) NOT NULL,
    way        VARBINARY(1000) NOT NULL
        COMMENT 'how the account is named at login (store.login)',
    host       TEXT NOT NULL COMMENT 'which host has seen it',
    proven_at  DATETIME(6) NOT NULL,
    PRIMARY KEY (server, login_user, way)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin
  COMMENT = 'mail servers seen to heed for whom a login acts; others get no mail';

CREATE TABLE IF NOT EXISTS onedrop_host (
    host            VARBINARY(1000) NOT NULL PRIMARY KEY,
    program_version TEXT NOT NULL,
    schema_version  INT NOT NULL COMMENT 'the one that its program writes',
    seen_at         DATETIME(6) NOT NULL,
    clock_offset_ms BIGINT COMMENT 'its clock less this server''s; null: not known'
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin
  COMMENT = 'hosts that use the ledger, and the program of each';

-- Whoever locks a row excludes others from a message or a turn, until the transaction ends.
CREATE TABLE IF NOT EXISTS onedrop_slot (
    n SMALLINT UNSIGNED NOT NULL PRIMARY KEY
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC COMMENT = 'locks of messages and turns: 16 bits of the hash; never changed';

INSERT INTO onedrop_slot (n)
SELECT seq FROM seq_0_to_65535 WHERE NOT EXISTS (SELECT 1 FROM onedrop_slot);

CREATE TABLE IF NOT EXISTS onedrop_lock (
    name_hash   BINARY(32) NOT NULL COMMENT 'SHA-256 that names the lock',
    slot        INT NOT NULL,
    name        VARBINARY(1000) NOT NULL,
    epoch       BIGINT NOT NULL
        COMMENT 'how often the slot was claimed or stolen: a fencing token',
    slots       INT NOT NULL DEFAULT 0 COMMENT 'of how many slots the holder wanted one',
    host        TEXT NOT NULL DEFAULT '',
    pid         BIGINT NOT NULL DEFAULT 0,
    command     TEXT NOT NULL DEFAULT ''
        COMMENT 'the program that runs under the lock, without its arguments',
    note        TEXT NOT NULL DEFAULT ''
        COMMENT 'what the holder said with --note, or why the lock was stolen',
    acquired_at DATETIME(6) COMMENT 'when the slot was claimed or stolen',
    PRIMARY KEY (name_hash, slot)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin
  COMMENT = 'named locks (onedrop with-lock); rows outlive their release: epochs only grow';

-- A table of its own: renewals must not wait for a transaction that has asserted the lock.
CREATE TABLE IF NOT EXISTS onedrop_lock_lease (
    name_hash   BINARY(32) NOT NULL,
    slot        INT NOT NULL,
    epoch       BIGINT NOT NULL,
    owner       BINARY(16) COMMENT 'random value of the claim, or of the steal',
    lease_ms    BIGINT NOT NULL DEFAULT 0,
    renewed_at  DATETIME(6),
    lease_until DATETIME(6) COMMENT 'by this server''s clock; null: given back or stolen',
    PRIMARY KEY (name_hash, slot)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC COMMENT = 'until when the newest epoch of a slot lasts';

CREATE TABLE IF NOT EXISTS onedrop_lock_waiter (
    id          BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    name_hash   BINARY(32) NOT NULL,
    name        VARBINARY(1000) NOT NULL,
    owner       BINARY(16) NOT NULL COMMENT 'random value of the claim',
    host        TEXT NOT NULL,
    pid         BIGINT NOT NULL,
    command     TEXT NOT NULL,
    note        TEXT NOT NULL,
    slots       INT NOT NULL COMMENT 'it wants one of so many slots',
    others      INT NOT NULL COMMENT 'how many of its host wait for its turn',
    since       DATETIME(6) NOT NULL,
    lease_ms    BIGINT NOT NULL,
    lease_until DATETIME(6) COMMENT 'how long its place lasts',
    UNIQUE KEY onedrop_lock_waiter_owner (name_hash, owner)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin
  COMMENT = 'who waits for a named lock, in the order of their turns; rows are there for seconds';

-- Fails unless this epoch of the slot is held (where an owner is given, by that owner), and keeps
-- others from claiming or stealing the slot until the transaction ends: call it in the transaction
-- that does the work, and keep that short. Renewals do not wait for it. Where a transaction is
-- REPEATABLE READ it must be the first statement, or the lease is judged by an old row.
CREATE OR REPLACE PROCEDURE onedrop_assert_lock(
    IN p_name VARCHAR(1000) CHARACTER SET utf8mb4, IN p_slot INT, IN p_epoch BIGINT,
    IN p_owner VARCHAR(64) CHARACTER SET utf8mb4)
    SQL SECURITY DEFINER
    COMMENT 'fails (45000) unless this epoch of the lock is held'
BEGIN
    DECLARE v_hash BINARY(32)
        DEFAULT UNHEX(SHA2(CONCAT(CAST('onedrop/1/name' AS BINARY), x'00',
                                  CAST(p_name AS BINARY)), 256));
    DECLARE v_epoch, v_held BIGINT DEFAULT NULL;
    DECLARE v_began DATETIME(6) DEFAULT UTC_TIMESTAMP(6);
    -- Else a lease that has run out long since would seem to last.
    DO SLEEP(0.0001);
    IF UTC_TIMESTAMP(6) = v_began THEN
        SIGNAL SQLSTATE '22023' SET MESSAGE_TEXT = 'this session has a clock of its own (SET timestamp): a lock goes by that of the server';
    END IF;
    SELECT epoch INTO v_epoch FROM onedrop_lock
    WHERE name_hash = v_hash AND slot = p_slot LOCK IN SHARE MODE;
    SELECT COUNT(*) INTO v_held FROM onedrop_lock_lease
    WHERE name_hash = v_hash AND slot = p_slot AND epoch = p_epoch
      AND lease_until > UTC_TIMESTAMP(6)
      AND (p_owner IS NULL OR HEX(owner) = UPPER(p_owner));
    IF NOT (v_epoch <=> p_epoch) OR v_held = 0 THEN
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'the lock is not held';
    END IF;
END;

-- Locks for programs, in their own sessions (docs/locks-programs.md): the same rows, epochs and line as
-- those of `onedrop with-lock`. The procedures commit by themselves, refuse an open transaction,
-- whose ROLLBACK would take the lock away from a program that believes that it has it, and keep no
-- row locked while they wait. Each returns a row.

-- Takes a slot and returns its owner, which names this claim from now on, the slot and the epoch;
-- null where it was not had within the time to wait.
CREATE OR REPLACE PROCEDURE onedrop_lock(
    IN p_name VARCHAR(1000) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin, IN p_ttl_secs DOUBLE,
    IN p_wait_secs DOUBLE, IN p_slots INT)
    SQL SECURITY DEFINER
    COMMENT 'takes a named lock; commits by itself'
BEGIN
    DECLARE v_hash BINARY(32)
        DEFAULT UNHEX(SHA2(CONCAT(CAST('onedrop/1/name' AS BINARY), x'00',
                                  CAST(p_name AS BINARY)), 256));
    -- RANDOM_BYTES is there from 10.10 on.
    DECLARE v_owner BINARY(16) DEFAULT UNHEX(LEFT(SHA2(CONCAT(UUID(), RAND()), 256), 32));
    DECLARE v_host VARCHAR(255) CHARACTER SET utf8mb4 DEFAULT SUBSTRING_INDEX(USER(), '@', -1);
    DECLARE v_command VARCHAR(255) CHARACTER SET utf8mb4 DEFAULT SUBSTRING_INDEX(USER(), '@', 1);
    DECLARE v_began DATETIME(6) DEFAULT UTC_TIMESTAMP(6);
    DECLARE v_waited, v_left DOUBLE DEFAULT 0;
    DECLARE v_place, v_epoch BIGINT;
    DECLARE v_slot, v_free, v_seen, v_before, v_most, v_taken INT;
    DECLARE v_is_busy, v_clashed BOOLEAN;
    DECLARE v_clashes INT DEFAULT 0;
    -- Another was in the way: asked again.
    DECLARE CONTINUE HANDLER FOR 1205, 1213, 1020, 1062 SET v_is_busy = TRUE;
    IF @@in_transaction THEN
        SIGNAL SQLSTATE '25001' SET MESSAGE_TEXT = 'onedrop_lock commits by itself: not within a transaction';
    END IF;
    IF p_name IS NULL OR OCTET_LENGTH(p_name) NOT BETWEEN 1 AND 200
        OR p_name REGEXP '[\\x{0}-\\x{1f}\\x{7f}-\\x{9f}]|^[\\x{20}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}]|[\\x{20}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}]$' THEN
        SIGNAL SQLSTATE '22023' SET MESSAGE_TEXT =
            'the name of a lock is 1 to 200 bytes without control characters, and without blanks at its ends';
    END IF;
    IF (p_ttl_secs BETWEEN 1 AND 604800 AND p_slots BETWEEN 1 AND 1000) IS NOT TRUE THEN
        SIGNAL SQLSTATE '22023' SET MESSAGE_TEXT = 'a lock has 1 to 1000 slots and lasts 1 to 604800 seconds';
    END IF;
    DO SLEEP(0.0001);
    IF UTC_TIMESTAMP(6) = v_began THEN
        SIGNAL SQLSTATE '22023' SET MESSAGE_TEXT = 'this session has a clock of its own (SET timestamp): a lock goes by that of the server';
    END IF;
    COMMIT;
    asking: LOOP
        SET v_left = COALESCE(p_wait_secs, 0) - v_waited, v_slot = 0, v_seen = 0, v_taken = NULL, v_clashed = FALSE;
        SELECT p_slots - COUNT(*) INTO v_free FROM onedrop_lock_lease
        WHERE name_hash = v_hash AND slot <= p_slots AND lease_until > UTC_TIMESTAMP(6);
        -- Of this call, or of the one before it in this session, which has just ended.
        SET v_place = (SELECT MIN(id) FROM onedrop_lock_waiter
                       WHERE name_hash = v_hash AND (owner = v_owner OR note = 'SQL' AND host = v_host AND pid = CONNECTION_ID())
                         AND lease_until > UTC_TIMESTAMP(6));
        SELECT COUNT(*), MAX(slots) INTO v_before, v_most FROM onedrop_lock_waiter
        WHERE name_hash = v_hash AND lease_until > UTC_TIMESTAMP(6) AND (v_place IS NULL OR id < v_place);
        slots: WHILE v_slot < p_slots AND v_free > 0 DO
            SET v_slot = v_slot + 1, v_is_busy = FALSE;
            IF EXISTS (SELECT 1 FROM onedrop_lock_lease
                       WHERE name_hash = v_hash AND slot = v_slot AND lease_until > UTC_TIMESTAMP(6)) THEN
                ITERATE slots;
            END IF;
            -- The lowest free slots are for those before it: were any slot taken of which others
            -- were free, two that come at once would leave none.
            SET v_seen = v_seen + 1;
            IF v_most >= v_slot AND v_before >= v_seen THEN
                ITERATE slots;
            END IF;
            COMMIT;
            IF NOT EXISTS (SELECT 1 FROM onedrop_lock_lease WHERE name_hash = v_hash AND slot = v_slot) THEN
                INSERT IGNORE INTO onedrop_lock (name_hash, slot, name, epoch) VALUES (v_hash, v_slot, p_name, 0);
                INSERT IGNORE INTO onedrop_lock_lease (name_hash, slot, epoch)
                SELECT name_hash, slot, epoch FROM onedrop_lock WHERE name_hash = v_hash AND slot = v_slot;
            END IF;
            -- Without autocommit the question above has begun a transaction.
            COMMIT;
            SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
            START TRANSACTION;
            -- Left out while a transaction that has asserted the lock is open, or another claims it.
            SET v_epoch = NULL;
            SELECT epoch INTO v_epoch FROM onedrop_lock
            WHERE name_hash = v_hash AND slot = v_slot FOR UPDATE SKIP LOCKED;
            IF v_epoch IS NOT NULL THEN
                UPDATE onedrop_lock_lease
                SET epoch = epoch + 1, owner = v_owner, lease_ms = 1000 * p_ttl_secs, renewed_at = UTC_TIMESTAMP(6),
                    lease_until = TIMESTAMPADD(MICROSECOND, 1000000 * p_ttl_secs, UTC_TIMESTAMP(6))
                WHERE name_hash = v_hash AND slot = v_slot
                  AND (lease_until IS NULL OR lease_until <= UTC_TIMESTAMP(6));
                IF ROW_COUNT() = 1 AND NOT v_is_busy THEN
                    SELECT epoch INTO v_epoch FROM onedrop_lock_lease WHERE name_hash = v_hash AND slot = v_slot;
                    UPDATE onedrop_lock
                    SET epoch = v_epoch, acquired_at = UTC_TIMESTAMP(6), host = v_host, pid = CONNECTION_ID(),
                        command = v_command, note = 'SQL', slots = p_slots
                    WHERE name_hash = v_hash AND slot = v_slot;
                    DELETE FROM onedrop_lock_waiter WHERE name_hash = v_hash AND (owner = v_owner OR id = v_place);
                    SET v_taken = v_slot;
                END IF;
            END IF;
            IF v_is_busy OR v_taken IS NULL THEN
                ROLLBACK;
                SET v_taken = NULL, v_clashed = TRUE;
            ELSE
                COMMIT;
                -- What keeps commits waiting (a backup) may outlast lock_wait_timeout: then it is undone.
                IF NOT v_is_busy THEN
                    LEAVE asking;
                END IF;
                SET v_taken = NULL, v_clashed = TRUE;
            END IF;
        END WHILE;
        COMMIT;
        SET v_is_busy = FALSE;
        IF v_left <= 0 THEN
            -- Who was in the way may have taken nothing.
            IF v_clashed AND v_clashes < 10 THEN
                SET v_clashes = v_clashes + 1;
                DO SLEEP(0.005 + RAND() / 100);
                ITERATE asking;
            END IF;
            -- Where others wait it lasts a little, for another call.
            SET v_seen = (SELECT COUNT(*) FROM onedrop_lock_waiter
                          WHERE name_hash = v_hash AND id > v_place AND lease_until > UTC_TIMESTAMP(6));
            UPDATE onedrop_lock_waiter
            SET lease_until = LEAST(lease_until, TIMESTAMPADD(MICROSECOND, 500000, UTC_TIMESTAMP(6)))
            WHERE id = v_place AND v_seen > 0;
            DELETE FROM onedrop_lock_waiter WHERE id = v_place AND v_seen = 0;
            COMMIT;
            LEAVE asking;
        END IF;
        IF v_place IS NULL THEN
            DELETE FROM onedrop_lock_waiter WHERE name_hash = v_hash AND lease_until <= UTC_TIMESTAMP(6);
            INSERT INTO onedrop_lock_waiter
                (name_hash, name, owner, host, pid, command, note, slots, others, since, lease_ms, lease_until)
            VALUES (v_hash, p_name, v_owner, v_host, CONNECTION_ID(), v_command, 'SQL', p_slots, 0, UTC_TIMESTAMP(6), 3000,
                    TIMESTAMPADD(SECOND, 3, UTC_TIMESTAMP(6)));
        ELSE
            UPDATE onedrop_lock_waiter SET lease_until = TIMESTAMPADD(SECOND, 3, UTC_TIMESTAMP(6))
            WHERE id = v_place AND lease_until < TIMESTAMPADD(MICROSECOND, 1500000, UTC_TIMESTAMP(6));
        END IF;
        COMMIT;
        DO SLEEP(LEAST(v_left, GREATEST(0.02, LEAST(IF(v_before = 0, 0.025, 0.25), v_waited / 20)) * (1 - RAND() / 4)));
        SET v_waited = TIMESTAMPDIFF(MICROSECOND, v_began, UTC_TIMESTAMP(6)) * 0.000001;
    END LOOP;
    SELECT IF(v_taken IS NULL, NULL, LOWER(HEX(v_owner))) AS owner, v_taken AS slot,
           IF(v_taken IS NULL, NULL, v_epoch) AS epoch;
END;

-- Makes it last so many seconds from now on, or at null only asks. Returns the seconds that are left;
-- null: it was lost.
CREATE OR REPLACE PROCEDURE onedrop_renew(
    IN p_name VARCHAR(1000) CHARACTER SET utf8mb4, IN p_owner VARCHAR(64) CHARACTER SET utf8mb4, IN p_ttl_secs DOUBLE)
    SQL SECURITY DEFINER
    COMMENT 'makes a named lock last; commits by itself'
BEGIN
    DECLARE v_hash BINARY(32)
        DEFAULT UNHEX(SHA2(CONCAT(CAST('onedrop/1/name' AS BINARY), x'00',
                                  CAST(p_name AS BINARY)), 256));
    DECLARE v_left DOUBLE;
    DECLARE v_began DATETIME(6) DEFAULT UTC_TIMESTAMP(6);
    IF @@in_transaction THEN
        SIGNAL SQLSTATE '25001' SET MESSAGE_TEXT = 'onedrop_renew commits by itself: not within a transaction';
    END IF;
    IF p_ttl_secs NOT BETWEEN 1 AND 604800 THEN
        SIGNAL SQLSTATE '22023' SET MESSAGE_TEXT = 'a lock lasts 1 to 604800 seconds';
    END IF;
    DO SLEEP(0.0001);
    IF UTC_TIMESTAMP(6) = v_began THEN
        SIGNAL SQLSTATE '22023' SET MESSAGE_TEXT = 'this session has a clock of its own (SET timestamp): a lock goes by that of the server';
    END IF;
    COMMIT;
    IF p_ttl_secs IS NULL THEN
        SET v_left = (SELECT TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), lease_until) * 0.000001
                      FROM onedrop_lock_lease
                      WHERE name_hash = v_hash AND owner = UNHEX(p_owner) AND lease_until > UTC_TIMESTAMP(6));
    ELSE
        UPDATE onedrop_lock_lease
        SET lease_ms = 1000 * p_ttl_secs, renewed_at = UTC_TIMESTAMP(6),
            lease_until = TIMESTAMPADD(MICROSECOND, 1000000 * p_ttl_secs, UTC_TIMESTAMP(6))
        WHERE name_hash = v_hash AND owner = UNHEX(p_owner) AND lease_until IS NOT NULL;
        SET v_left = IF(ROW_COUNT() > 0, p_ttl_secs, NULL);
    END IF;
    COMMIT;
    SELECT v_left AS left_secs;
END;

-- Gives it back; 0: it was lost.
CREATE OR REPLACE PROCEDURE onedrop_unlock(
    IN p_name VARCHAR(1000) CHARACTER SET utf8mb4, IN p_owner VARCHAR(64) CHARACTER SET utf8mb4)
    SQL SECURITY DEFINER
    COMMENT 'gives a named lock back; commits by itself'
BEGIN
    DECLARE v_held INT;
    IF @@in_transaction THEN
        SIGNAL SQLSTATE '25001' SET MESSAGE_TEXT = 'onedrop_unlock commits by itself: not within a transaction';
    END IF;
    COMMIT;
    UPDATE onedrop_lock_lease SET lease_until = NULL
    WHERE name_hash = UNHEX(SHA2(CONCAT(CAST('onedrop/1/name' AS BINARY), x'00', CAST(p_name AS BINARY)), 256))
      AND owner = UNHEX(p_owner) AND lease_until IS NOT NULL;
    SET v_held = ROW_COUNT();
    COMMIT;
    SELECT v_held AS held;
END;

-- How many hold it, and who has the first slot; takes nothing.
CREATE OR REPLACE PROCEDURE onedrop_lock_holder(IN p_name VARCHAR(1000) CHARACTER SET utf8mb4)
    SQL SECURITY DEFINER
    COMMENT 'who holds a named lock'
BEGIN
    DECLARE v_began DATETIME(6) DEFAULT UTC_TIMESTAMP(6);
    IF @@in_transaction THEN
        SIGNAL SQLSTATE '25001' SET MESSAGE_TEXT = 'onedrop_lock_holder commits by itself: not within a transaction';
    END IF;
    DO SLEEP(0.0001);
    IF UTC_TIMESTAMP(6) = v_began THEN
        SIGNAL SQLSTATE '22023' SET MESSAGE_TEXT = 'this session has a clock of its own (SET timestamp): a lock goes by that of the server';
    END IF;
    COMMIT;
    SELECT COUNT(h.slot) AS held, MIN(IF(h.nth = 1, h.host, NULL)) AS host, MIN(IF(h.nth = 1, h.pid, NULL)) AS pid,
           MIN(IF(h.nth = 1, h.left_secs, NULL)) AS left_secs
    FROM (SELECT k.slot, k.host, k.pid, ROW_NUMBER() OVER (ORDER BY k.slot) AS nth,
                 TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), l.lease_until) * 0.000001 AS left_secs
          FROM onedrop_lock k JOIN onedrop_lock_lease l ON l.name_hash = k.name_hash AND l.slot = k.slot
          WHERE k.name_hash = UNHEX(SHA2(CONCAT(CAST('onedrop/1/name' AS BINARY), x'00', CAST(p_name AS BINARY)), 256))
            AND l.lease_until > UTC_TIMESTAMP(6)) h;
    COMMIT;
END;

CREATE TABLE IF NOT EXISTS onedrop_job (
    name             VARBINARY(1000) NOT NULL PRIMARY KEY,
    revision         BIGINT NOT NULL
        COMMENT 'how often the row was changed: each change names the one it has seen',
    value            BINARY(16) NOT NULL COMMENT 'random value of the last change',
    schedule         TEXT NOT NULL
        COMMENT 'schedule and time zone that next_due was computed by',
    paused_at        DATETIME(3) COMMENT 'since when nothing starts; null: not paused',
    pause_note       TEXT NOT NULL,
    last_paused_at   DATETIME(3)
        COMMENT 'beginning of the last pause that has ended, at resumed_at',
    resumed_at       DATETIME(3),
    epoch            BIGINT NOT NULL
        COMMENT 'of the lock jobs/NAME under which the last run began',
    open_due         DATETIME(3) COMMENT 'due time of the run that has begun and not ended',
    open_try         BIGINT NOT NULL,
    next_due         DATETIME(3),
    next_try         BIGINT NOT NULL,
    retry_at         DATETIME(3) COMMENT 'when the run for next_due is tried again',
    first_seen       DATETIME(3) NOT NULL,
    seen_at          DATETIME(3) NOT NULL
        COMMENT 'when a configuration last had it, to the hour',
    last_start       DATETIME(3),
    last_end         DATETIME(3),
    last_success     DATETIME(3),
    last_success_due DATETIME(3) COMMENT 'newest due time that it has succeeded for',
    last_exit        BIGINT COMMENT 'exit status; 128 + n: ended by signal n',
    last_error       TEXT NOT NULL,
    errors           BIGINT NOT NULL COMMENT 'failures since the last success',
    runs             BIGINT NOT NULL,
    open_host        TEXT NOT NULL DEFAULT ''
        COMMENT 'host of the run that has begun and not ended',
    unheld_at        DATETIME(3) COMMENT 'when a tick first found the open run without its lock',
    paused_until     DATETIME(3) COMMENT 'when it is resumed by itself; null: not',
    stop_epoch       BIGINT NOT NULL DEFAULT 0
        COMMENT 'epoch of the run that is to end; 0: none is',
    stop_by          TEXT NOT NULL DEFAULT '' COMMENT 'who wants that, and why',
    hooks_state      TEXT NOT NULL DEFAULT ''
        COMMENT 'ok or failing: the state that its hooks were last called for, and a value of that change'
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin
  COMMENT = 'jobs (onedrop jobs): their state';

CREATE TABLE IF NOT EXISTS onedrop_job_run (
    id           BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    job          VARBINARY(1000) NOT NULL,
    due_at       DATETIME(3) NOT NULL COMMENT 'the time that it runs for; of skips the first',
    try          BIGINT NOT NULL,
    triggered_by VARCHAR(16) NOT NULL COMMENT 'schedule, retry, backfill or manual',
    epoch        BIGINT NOT NULL COMMENT 'of the lock jobs/NAME',
    host         TEXT NOT NULL,
    pid          BIGINT NOT NULL,
    started_at   DATETIME(3) NOT NULL,
    ended_at     DATETIME(3),
    outcome      VARCHAR(32) COMMENT 'ok, failed, timeout, stopped, lost, crashed, marked, skipped_late,
 _missed, _busy, _paused, _dependency or _most; null: not ended',
    exit_status  BIGINT,
    exit_signal  BIGINT,
    output       TEXT NOT NULL COMMENT 'the last 4 KiB of what it wrote',
    reason       TEXT NOT NULL COMMENT 'why it was skipped, or failed',
    last_due_at  DATETIME(3) NOT NULL COMMENT 'of skips the last time',
    occurrences  BIGINT NOT NULL COMMENT 'how many due times it stands for',
    begin_value  BINARY(16) NOT NULL COMMENT 'random value of the change that added it',
    end_value    BINARY(16) COMMENT 'of the one that ended it',
    UNIQUE KEY onedrop_job_run_key (job, due_at, try),
    KEY onedrop_job_run_job (job, id),
    KEY onedrop_job_run_ended_at (ended_at),
    FOREIGN KEY (job) REFERENCES onedrop_job (name) ON DELETE CASCADE
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin
  COMMENT = 'runs of jobs, and due times that were skipped';

-- The version is set once the schema is whole.
INSERT IGNORE INTO onedrop_ledger (version, oldest_program, remembers_since)
VALUES (0, 0, UTC_TIMESTAMP(6));
