//! How Postgres goes about what `onedrop verify` asks, in a ledger of which the window is a small
//! part: by indexes, as the server's own log of plans says (auto_explain).

use super::*;

/// Of the messages, 40 are of the last hour.
const MANY: &str = "
INSERT INTO onedrop_message OVERRIDING SYSTEM VALUE
SELECT (jsonb_populate_record(m, jsonb_build_object('id', m.id + n,
    'id_hash', '\\x' || md5(n::text) || md5(n::text), 'digest', '\\x' || repeat('00', 32),
    'recorded_at', clock_timestamp() - (20000 - n) * interval '90 seconds'))).*
FROM onedrop_message m, generate_series(1, 20000) n;
INSERT INTO onedrop_copy OVERRIDING SYSTEM VALUE
SELECT (jsonb_populate_record(c, jsonb_build_object('id', c.id + n, 'message_id', c.message_id + n,
    'account', 'user' || n % 50, 'uid', n))).*
FROM onedrop_copy c, generate_series(1, 20000) n;
VACUUM (ANALYZE) onedrop_message, onedrop_copy, onedrop_unsettled, onedrop_kept;";

#[test]
fn verify_reads_the_window_by_indexes() {
    let rig = PostgresRig::with(
        "session_preload_libraries = 'auto_explain'\nauto_explain.log_min_duration = 0\n\
         auto_explain.log_analyze = on\n",
    );
    let host = Host::of(&rig);
    let claim = host.claim(&mail("model"), &inbox());
    host.confirm(&claim, &uid(1));
    for statement in MANY.split_inclusive(';') {
        rig.postgres.psql(statement);
    }
    let begun = rig.postgres.whole_log().len();
    let hour = Duration::from_secs(3600);
    let window = Window { since: SystemTime::now() - hour, all: true };
    let copies = host.copies_by(&window, 500);
    assert!((30..60).contains(&copies.len()), "{}", copies.len());
    assert!(host.copies_by(&Window { all: false, ..window }, 500).is_empty());
    let log = rig.postgres.whole_log().split_off(begun);
    let plans = log.matches("plan:").count();
    assert!(plans > 2 && log.contains("FROM wanted"), "{log}");
    for index in ["onedrop_message_recorded_at", "onedrop_copy_account"] {
        assert!(log.contains(&format!("using {index}")), "{index}: {log}");
    }
    for table in ["onedrop_message", "onedrop_copy"] {
        assert!(!log.contains(&format!("Seq Scan on {table} ")), "{table}: {log}");
    }
    // No step has read more rows than the day before the window has.
    let rows = |part: &str| {
        let rest = part.split_once("rows=")?.1;
        rest.split(' ').next()?.parse::<u64>().ok()
    };
    let most = log.split("(actual time=").skip(1).filter_map(rows).max();
    assert!(most.is_some_and(|most| most < 1200), "{most:?} rows: {log}");
}
