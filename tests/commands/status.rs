//! `onedrop status`: what it says of a ledger as it is on record, and how it ends.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::time::{SystemTime, UNIX_EPOCH};

use onedrop::config::Config;
use onedrop::directory::Home;
use onedrop::status::{StatusLevel, of_postqueue};
use serde_json::Value;

use crate::command_line::{Admin, Ended, SCUBA};
use crate::support::postfix::stopped;
use crate::support::set_mode;

mod due;

/// A line as `status` prints it: level, topic, and what is said.
#[derive(Debug, PartialEq, Eq)]
struct Line<'a>(&'a str, &'a str, &'a str);

fn lines(text: &str) -> Vec<Line<'_>> {
    let line = |line| {
        let (level, rest): (&str, &str) = str::split_at_checked(line, 11)?;
        let (topic, text) = rest.split_at_checked(10)?;
        Some(Line(level.trim(), topic.trim(), text))
    };
    text.lines().skip(1).filter_map(line).collect()
}

/// `status` on a host whose Postfix has these messages in its queue.
fn status(admin: &Admin, queue: &str, args: &[&str]) -> Ended {
    status_by(admin, &format!("cat <<'END'\n{queue}END\n"), args)
}

/// The same with a `postqueue` that does this.
fn status_by(admin: &Admin, postqueue: &str, args: &[&str]) -> Ended {
    let bin = admin.site.root.join("bin");
    fs::create_dir_all(&bin).expect("a folder");
    fs::write(bin.join("postqueue"), format!("#!/bin/sh\n{postqueue}")).expect("a program");
    set_mode(&bin.join("postqueue"), 0o755);
    let mut command = admin.command(&[&["status"], args].concat());
    Ended::of(
        &command.env("PATH", format!("{}:/usr/bin:/bin", bin.display())).output().expect("onedrop"),
    )
}

fn secs() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs()
}

#[test]
fn a_host_where_all_is_well_ends_in_0() {
    let admin = Admin::new();
    let ended = status(&admin, "", &[]);
    assert_eq!((ended.status, ended.err.as_str()), (Some(0), ""), "{ended:?}");
    let first = ended.out.lines().next().expect("a line");
    assert!(first.starts_with("onedrop ") && first.ends_with(": all is well"), "{first}");
    let host = nix::unistd::gethostname().expect("a name").into_string().expect("text");
    let store = format!("maildir://{} answers", admin.site.root.join("mail").display());
    let lines = lines(&ended.out);
    let took = lines.iter().find(|line| line.1 == "duration").expect("a duration");
    assert!(took.2.starts_with("delivered in ") && took.2.ends_with("(p99)"), "{took:?}");
    assert_eq!(
        lines.into_iter().filter(|line| line.1 != "duration").collect::<Vec<_>>(),
        [
            Line("ok", "ledger", "schema version 11"),
            Line("ok", "hosts", &format!("{host} (1 attempt)")),
            Line("ok", "attempts", "last hour: 1 delivered, 0 tempfail, 0 permfail"),
            Line("ok", "doubts", "no copy in doubt, no lease without an end (of 2d)"),
            Line("ok", "jobs", "none in the configuration"),
            Line("ok", "verify", "no job has run it"),
            Line("ok", "purge", "none yet"),
            Line("ok", "store", &store),
            Line("ok", "queue", "nothing for us in Postfix' queue"),
        ]
    );
}

#[test]
fn a_queue_that_is_not_told_wants_attention_where_there_is_one() {
    let admin = Admin::new();
    for fails in [
        "echo 'postqueue: fatal: User scuba(1001) is not allowed to view the mail queue' >&2
         exit 69",
        "exit 1",
        // More than is read: it cannot write the rest.
        "exec head -c 40000000 /dev/zero",
    ] {
        let ended = status_by(&admin, fails, &[]);
        assert_eq!(ended.status, Some(1), "{fails}: {ended:?}");
        let lines = lines(&ended.out);
        let queue = lines.iter().find(|line| line.1 == "queue").expect("a queue");
        assert_eq!(queue.0, "ATTENTION");
        assert!(queue.2.contains("postqueue cannot tell the queue: "), "{queue:?}");
        assert!(queue.2.ends_with("  -> postqueue -p"), "{queue:?}");
    }
    let not_set_up = "echo 'postqueue: fatal: open /etc/postfix/main.cf: No such file or \
                      directory' >&2; exit 69";
    let ended = status_by(&admin, not_set_up, &[]);
    assert_eq!(ended.status, Some(0), "{ended:?}");
    assert!(lines(&ended.out).iter().all(|line| line.1 != "queue"), "{ended:?}");
}

/// A trial on a mail host says nothing of the host's own Postfix.
#[test]
fn a_postfix_that_does_not_run_wants_attention_where_it_delivers_by_this_configuration() {
    let admin = Admin::new();
    let config = admin.site.root.join("etc/onedrop.toml").display().to_string();
    let pipe = |named: &str| {
        format!(
            "onedrop unix - n n - - pipe\n  user=nobody argv=/usr/bin/onedrop deliver \
             {named} -d ${{recipient}}\n"
        )
    };
    let (ours, others) = (pipe(&format!("--config {config}")), pipe(""));
    let command = format!("mailbox_command = /usr/bin/onedrop deliver --config {config}\n");
    let lmtp = "virtual_transport = lmtp:unix:/run/onedrop/lmtp.sock\n";
    let local = "local unix - n n - - local\n";
    let client = "lmtp unix - - n - - lmtp\n";
    let listens = Admin::with("[lmtp]\nlisten = [\"unix:/run/elsewhere.sock\"]\n");
    let by_table = "transport_maps = hash:/etc/postfix/transport\n";
    let by_name = "virtual_transport = lmtp:inet:mx.example.net:24\n";
    for (admin, main_cf, master_cf, leads_to_us) in [
        (&admin, "", ours.as_str(), true),
        (&admin, &command, local, true),
        (&admin, "", others.as_str(), false),
        // The server at that socket reads the host's own configuration.
        (&admin, lmtp, client, false),
        (&admin, "", local, false),
        // What a table or a name leads to is not looked up.
        (&listens, by_table, client, true),
        (&listens, by_name, client, true),
        (&listens, by_table, local, false),
        (&listens, "", client, false),
        (&admin, by_table, client, false),
    ] {
        let bin = stopped(&admin.site.root, main_cf, master_cf);
        let mut command = admin.command(&["status"]);
        command.env("PATH", format!("{}:/usr/bin:/bin", bin.display()));
        let ended = Ended::of(&command.output().expect("onedrop"));
        let lines = lines(&ended.out);
        let queue = lines.iter().find(|line| line.1 == "queue").expect("a queue");
        let (status, line) = match leads_to_us {
            true => (1, ("ATTENTION", "Postfix is not running  -> systemctl status 'postfix*'")),
            false => {
                (0, ("ok", "Postfix is not running, and does not deliver by this configuration"))
            }
        };
        assert_eq!(
            (ended.status, (queue.0, queue.2)),
            (Some(status), line),
            "{main_cf}{master_cf}"
        );
    }
}

const JOBS: &str = r#"
[jobs.verify]
schedule = "17 3 * * *"
command = ["onedrop", "verify"]
[jobs.a]
every = "15m"
command = ["true"]
[jobs.b]
every = "15m"
command = ["true"]
[jobs.c]
every = "15m"
command = ["true"]
[jobs.d]
every = "15m"
command = ["true"]
"#;

/// Whatever can be wrong at once, on record.
fn all_wrong(admin: &Admin) {
    let now = secs();
    let hosts: String = (0..20)
        .map(|n| {
            format!("INSERT INTO onedrop_host VALUES ('gone{n}', '0.1.0', 10, {}, 0);", now - 7200)
        })
        .chain((0..20).map(|n| {
            format!("INSERT INTO onedrop_host VALUES ('mx{n}', '0.1.0', 10, {now}, 5000);")
        }))
        .collect();
    let attempts: String = (0..20)
        .map(|n| {
            let reasons = ["store_setup", "ledger_down", "store_down", "deadline", "over_quota"];
            let reason = reasons[n % 5];
            let status = if reason == "store_setup" { "4.3.5" } else { "4.3.0" };
            format!(
                "INSERT INTO onedrop_attempt (id_hash, recipient, queue_id, host, pid, started_at,
                                              duration_ms, outcome, status, reason)
                 VALUES (x'00', 'a@b', '', 'pipe{n}', 1, {now}, 5, 'tempfail', '{status}',
                         '{reason}');"
            )
        })
        .collect();
    admin
        .site
        .sqlite()
        .execute_batch(&format!(
            "{hosts}{attempts}
             UPDATE onedrop_ledger SET remembers_since = {old}, purged_at = NULL;
             UPDATE onedrop_message SET recorded_at = {old};
             INSERT OR REPLACE INTO onedrop_unsettled SELECT id, 0 FROM onedrop_copy;
             UPDATE onedrop_copy SET placed_at = NULL, receipt_kind = NULL, receipt = NULL,
                 in_doubt = 1, epoch = 2, leased_until = 1, lease_ms = 1000;
             UPDATE onedrop_copy SET in_doubt = 0, leased_until = NULL WHERE shared;
             INSERT INTO onedrop_kept SELECT id, 'full', {old}, x'' FROM onedrop_message;",
            old = now - 5 * 86_400,
        ))
        .expect("rows");
}

#[test]
fn the_queue_is_that_of_all_instances_that_are_enabled() {
    let admin = Admin::new();
    let bin = admin.site.root.join("bin");
    fs::create_dir_all(&bin).expect("a folder");
    let postconf = "#!/bin/sh\ncase \"$*\" in
        *multi_instance_directories) echo '/etc/postfix-in, /etc/postfix-off' ;;
        '-c /etc/postfix-in -hx multi_instance_enable') echo yes ;;
        *) echo no ;;
        esac\n";
    fs::write(bin.join("postconf"), postconf).expect("a program");
    set_mode(&bin.join("postconf"), 0o755);
    let queued = |id: &str| {
        format!(
            "{{\"queue_name\": \"deferred\", \"queue_id\": \"{id}\", \"arrival_time\": 1, \
             \"recipients\": [{{\"address\": \"{SCUBA}\"}}]}}"
        )
    };
    let (first, second) = (queued("4First"), queued("4Second"));
    let postqueue = format!(
        "case \"$*\" in
         '-j') echo '{first}' ;;
         '-c /etc/postfix-in -j') echo '{second}' ;;
         *) echo \"postqueue: fatal: $*\" >&2; exit 1 ;;
         esac\n"
    );
    let ended = status_by(&admin, &postqueue, &[]);
    assert!(ended.out.contains("2 for us in Postfix' queue, 2 deferred"), "{ended:?}");
    // As it answers those that are not root.
    let down = "echo 'Queue report unavailable - mail system is down' >&2; exit 69";
    let ended = status_by(&admin, &format!("{down}\n"), &[]);
    let line =
        "ATTENTION  queue     Postfix' instance /etc/postfix-in is not running  -> systemctl";
    assert!(ended.out.contains(line) && ended.status == Some(1), "{ended:?}");
    // The queue of the one that runs is what matters.
    let first_down = postqueue.replace(&format!("echo '{first}'"), down);
    let ended = status_by(&admin, &first_down, &[]);
    assert!(ended.out.contains("1 for us in Postfix' queue, 1 deferred"), "{ended:?}");
    let broken = postqueue.replace(&format!("echo '{second}'"), "exit 1");
    let ended = status_by(&admin, &broken, &[]);
    let next = "  -> postqueue -c /etc/postfix-in -p\n";
    assert!(ended.out.contains(next) && ended.status == Some(1), "{ended:?}");
}

/// A query without domains would be asked for every address, also for those elsewhere.
#[test]
fn mail_that_may_be_for_others_is_counted_apart_and_wants_no_attention() {
    let queued = |id: &str, to: &str| {
        format!(
            "{{\"queue_name\": \"deferred\", \"queue_id\": \"{id}\", \"arrival_time\": 1, \
             \"recipients\": [{{\"address\": \"{to}\"}}]}}\n"
        )
    };
    let (out, ours) = (queued("4Out", "x@elsewhere.example"), queued("4Own", "lisa@gmail.com"));
    let mut directory = Config::default().directory.addresses;
    directory.query = Some("SELECT $1".to_owned());
    directory.accounts.insert("lisa@gmail.com".to_owned(), Home::of("lisa"));
    let apart = "whether 1 other is ours is not known (no directory.domains)";
    let one = of_postqueue(&out, &directory, SystemTime::now());
    assert_eq!(one.level, StatusLevel::Ok, "{one:?}");
    assert_eq!(one.text, format!("nothing surely for us in Postfix' queue, {apart}"));
    let both = of_postqueue(&(ours + &out), &directory, SystemTime::now());
    assert_eq!(both.level, StatusLevel::Attention, "{both:?}");
    let start = format!("1 for us in Postfix' queue, 1 deferred, {apart}, the oldest 4Own for ");
    assert!(both.text.starts_with(&start), "{both:?}");
    directory.domains = vec!["elsewhere.example".to_owned()];
    let one = of_postqueue(&out, &directory, SystemTime::now());
    assert_eq!(one.level, StatusLevel::Attention, "{one:?}");
    let start = "1 for us in Postfix' queue, 1 deferred, the oldest 4Out for ";
    assert!(one.text.starts_with(start), "{one:?}");
}

#[test]
fn each_line_that_is_not_well_names_the_next_command_and_all_fit_a_screen() {
    let admin = Admin::with(JOBS);
    all_wrong(&admin);
    let old = secs() - 9000;
    let queue = format!(
        "{{\"queue_name\": \"deferred\", \"queue_id\": \"4Old\", \"arrival_time\": {old}, \
         \"recipients\": [{{\"address\": \"scuba@mail.axial.net\"}}]}}\n\
         {{\"queue_name\": \"deferred\", \"queue_id\": \"4Out\", \"arrival_time\": 1, \
         \"recipients\": [{{\"address\": \"x@elsewhere.example\"}}]}}\n\
         {{\"queue_name\": \"hold\", \"queue_id\": \"4Held\", \"arrival_time\": 1, \
         \"recipients\": [{{\"address\": \"scuba@mail.axial.net\"}}]}}\n\
         {{\"queue_name\": \"active\", \"queue_id\": \"4New\", \"arrival_time\": {}, \
         \"recipients\": [{{\"address\": \"doug@mail.axial.net\"}}]}}\n\
         not JSON\n",
        secs()
    );
    fs::remove_dir_all(admin.site.root.join("mail")).expect("no mailboxes");
    fs::write(admin.site.root.join("mail"), "").expect("a file in the way");
    let ended = status(&admin, &queue, &[]);
    assert_eq!(ended.status, Some(1), "{ended:?}");
    assert!(ended.out.lines().count() <= 24, "{}", ended.out);
    let lines = lines(&ended.out);
    let bad: Vec<_> = lines.iter().filter(|line| line.0 == "ATTENTION").collect();
    for line in &bad {
        let (said, command) = line.2.split_once("  -> ").expect("a command");
        assert!(!said.is_empty() && !command.is_empty(), "{line:?}");
    }
    let topics: Vec<&str> = bad.iter().map(|line| line.1).collect();
    assert_eq!(
        topics,
        [
            "hosts", "hosts", "hosts", "hosts", "reasons", "doubts", "sent", "jobs", "jobs",
            "jobs", "jobs", "verify", "purge", "store", "queue"
        ]
    );
    let has = |text: &str| assert!(ended.out.contains(text), "{text:?} is not in\n{}", ended.out);
    has("gone0 0.1.0 was last seen 2h ago  -> ssh gone0 systemctl status 'onedrop-*'");
    has("the clock of mx0 differs from the ledger's by 5s  -> timedatectl");
    has("17 more not seen of late");
    has("last hour: 1 delivered, 20 tempfail, 0 permfail");
    has("; 4 of them are yours to mend (4.3.5)  -> onedrop check");
    has("0 copies in doubt, 1 lease without an end (of 2d), the oldest from 5d ago  -> \
         onedrop verify --since 6d --repair");
    has("1 copy for Sent waits for more than a day  -> onedrop settle");
    has("a is not on record yet (does onedrop jobs tick run?)  -> onedrop jobs show a");
    has("2 more are not well  -> onedrop jobs list");
    has(
        "no job has run it, and the ledger remembers for 5d  -> onedrop verify --since 6d --repair",
    );
    has("never ended, and the ledger is 5d old  -> onedrop purge");
    has(
        "2 for us in Postfix' queue, 1 deferred, 1 message on hold, the oldest 4Old for 2h 30m  -> \
         onedrop trace 4Old",
    );
}

/// The line of this topic, after what this SQL does; `$NOW` is the time.
fn line_after(admin: &Admin, sql: &str, topic: &str) -> (String, String) {
    let sql = sql.replace("$NOW", &secs().to_string());
    admin.site.sqlite().execute_batch(&sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
    let ended = status(admin, "", &[]);
    let lines = lines(&ended.out);
    let line = lines.iter().find(|line| line.1 == topic);
    let line = line.unwrap_or_else(|| panic!("{topic}: {ended:?}"));
    (line.0.to_owned(), line.2.to_owned())
}

/// `count` attempts that ended just now.
fn attempts(count: u32, outcome: &str, reason: &str) -> String {
    format!(
        "WITH RECURSIVE n (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < {count})
         INSERT INTO onedrop_attempt (id_hash, recipient, queue_id, host, pid, started_at,
                                      duration_ms, outcome, status, reason)
         SELECT x'00', 'a@b', '', 'mx1', x, $NOW, 1000 * x, '{outcome}', '4.3.0', '{reason}'
         FROM n;"
    )
}

#[test]
fn more_than_a_hundredth_deferred_wants_attention_but_for_full_mailboxes_and_other_deliveries() {
    let admin = Admin::new();
    let after = |sql: String| line_after(&admin, &sql, "reasons");
    let normal = attempts(99, "delivered", "delivered")
        + &attempts(70, "tempfail", "over_quota")
        + &attempts(60, "tempfail", "contended");
    let (level, text) = after(normal + &attempts(1, "tempfail", "store_down"));
    assert_eq!(level, "ok", "{text}");
    assert_eq!(text, "why not: over_quota 70, contended 60, store_down 1");
    let (level, text) = after(attempts(1, "tempfail", "store_down"));
    assert_eq!(level, "ATTENTION", "{text}");
    assert!(text.ends_with("  -> onedrop trace --failed --since 1h"), "{text}");
    // One of a hundred took longer than the others.
    let (_, text) = line_after(&admin, "", "duration");
    assert_eq!(text, "delivered in 49000 ms (p50), 98000 ms (p99)");
}

#[test]
fn more_mail_returned_than_delivered_wants_attention() {
    let admin = Admin::new();
    let after = |sql: String| line_after(&admin, &sql, "reasons");
    let (level, text) = after(attempts(19, "permfail", "no_account"));
    assert_eq!((&*level, &*text), ("ok", "why not: no_account 19"));
    let (level, text) = after(attempts(1, "permfail", "no_account"));
    assert_eq!(level, "ATTENTION", "{text}");
    assert!(text.ends_with("  -> onedrop trace --failed --since 1h"), "{text}");
    assert_eq!(after(attempts(20, "delivered", "delivered")).0, "ok");
}

#[test]
fn a_doubt_of_the_last_hour_is_left_to_the_next_try() {
    let admin = Admin::new();
    let doubt = "UPDATE onedrop_copy SET placed_at = NULL, receipt_kind = NULL, receipt = NULL,
                     in_doubt = 1, placed_epoch = 0, leased_until = NULL;";
    let (level, text) = line_after(&admin, doubt, "doubts");
    assert_eq!(level, "ok", "{text}");
    assert!(text.ends_with("; Postfix' next try looks"), "{text}");
    let old = "UPDATE onedrop_message SET recorded_at = $NOW - 7200;";
    let (level, text) = line_after(&admin, old, "doubts");
    assert_eq!(level, "ATTENTION", "{text}");
    assert!(text.ends_with("  -> onedrop verify --since 48h --repair"), "{text}");
}

#[test]
fn what_verify_and_purge_left_is_told() {
    let admin = Admin::with(JOBS);
    let ran = |exit: &str| {
        let sql = format!(
            "INSERT OR REPLACE INTO onedrop_job (name, revision, value, schedule, pause_note, \
             epoch, open_try, next_try, first_seen, seen_at, last_start, last_end, last_exit, \
             last_error, errors, runs)
             VALUES ('verify', 1, x'00', '', '', 1, 0, 1, $NOW, $NOW, $NOW - 7300, $NOW - 7200, \
             {exit}, '', 0, 1)"
        );
        line_after(&admin, &sql, "verify")
    };
    let told = |level: &str, text: &str| (level.to_owned(), text.to_owned());
    assert_eq!(ran("0"), told("ok", "ended 2h ago, nothing left to repair"));
    assert_eq!(
        ran("1"),
        told(
            "ATTENTION",
            "ended 2h ago and left something that a person must look at  -> onedrop jobs show \
             verify"
        )
    );
    assert_eq!(ran("75"), told("ATTENTION", "failed 2h ago  -> onedrop jobs show verify"));
    let purged = |ago: u64| {
        let sql = format!("UPDATE onedrop_ledger SET purged_at = $NOW - {ago}");
        line_after(&admin, &sql, "purge")
    };
    assert_eq!(purged(7200), told("ok", "ended 2h ago"));
    assert_eq!(purged(3 * 86_400), told("ATTENTION", "ended 3d ago  -> onedrop purge"));
}

#[test]
fn a_ledger_that_cannot_be_asked_ends_in_75() {
    let admin = Admin::new();
    admin
        .site
        .sqlite()
        .execute_batch("UPDATE onedrop_ledger SET version = 99, oldest_program = 99")
        .expect("a ledger of the future");
    let ended = status(&admin, "", &[]);
    assert_eq!(ended.status, Some(75), "{ended:?}");
    let lines = lines(&ended.out);
    let topics: Vec<_> = lines.iter().map(|line| (line.0, line.1)).collect();
    assert_eq!(topics, [("FAILED", "ledger"), ("ok", "store"), ("ok", "queue")], "{ended:?}");
    assert!(lines[0].2.ends_with("  -> onedrop migrate --dry-run"), "{lines:?}");
    let told: Value = serde_json::from_str(&status(&admin, "", &["--json"]).out).expect("JSON");
    assert_eq!((&told["level"], &told["figures"]), (&Value::from("failed"), &Value::Null));
}

#[test]
fn the_figures_come_as_json() {
    let admin = Admin::with(JOBS);
    all_wrong(&admin);
    let ended = status(&admin, "", &["--json"]);
    assert_eq!(ended.status, Some(1), "{ended:?}");
    let told: Value = serde_json::from_str(&ended.out).expect("JSON");
    assert_eq!(told["level"], "attention");
    let finding = &told["findings"][0];
    assert_eq!((&finding["level"], &finding["topic"]), (&"ok".into(), &"ledger".into()));
    let figures = &told["figures"];
    for (name, value) in [
        ("schema_version", 11),
        ("tempfail", 20),
        ("delivered", 1),
        ("without_end", 0),
        ("copies_in_doubt", 0),
        ("leases_without_end", 1),
        ("sent_waiting", 1),
        ("attempts_secs", 3600),
        ("copies_secs", 172_800),
    ] {
        assert_eq!(figures[name], value, "{name}");
    }
    assert_eq!(figures["reasons"][0]["count"], 4);
    assert_eq!(figures["hosts"].as_array().map(Vec::len), Some(61));
}

#[test]
fn metrics_go_to_a_file_that_is_replaced_as_a_whole() {
    let admin = Admin::new();
    let file = admin.site.root.join("onedrop.prom");
    let write = || {
        let mut command = admin.command(&["status", "--prometheus"]);
        Ended::of(&command.arg(&file).stdin(Stdio::null()).output().expect("onedrop"))
    };
    let ended = write();
    assert_eq!((ended.status, ended.out.as_str()), (Some(0), ""), "{ended:?}");
    let text = fs::read_to_string(&file).expect("metrics");
    let has = |text: &str, line: &str| {
        assert!(text.lines().any(|one| one == line), "{line} is not in\n{text}");
    };
    for line in [
        "onedrop_schema_version 11",
        "onedrop_ledger_up 1",
        "onedrop_store_up 1",
        "onedrop_copies_in_doubt 0",
        "# TYPE onedrop_copies_in_doubt gauge",
    ] {
        has(&text, line);
    }
    assert!(!text.contains("# EOF"), "{text}");
    let mode = |path: &Path| fs::metadata(path).expect("a file").permissions().mode() & 0o777;
    assert_eq!(mode(&file), 0o644, "another user's collector reads it");
    // One that takes mail is up, also where its figures cannot be read.
    let hidden = "ALTER TABLE onedrop_job RENAME TO hidden";
    admin.site.sqlite().execute_batch(hidden).expect("a table that is out of reach");
    let ended = write();
    assert_eq!(ended.status, Some(0));
    assert!(ended.err.contains("onedrop_job"), "{ended:?}");
    let text = fs::read_to_string(&file).expect("metrics");
    has(&text, "onedrop_ledger_up 1");
    assert!(!text.contains("onedrop_copies_in_doubt"), "{text}");
    let shown = "ALTER TABLE hidden RENAME TO onedrop_job";
    admin.site.sqlite().execute_batch(shown).expect("as it was");
    // A ledger that cannot be used is a metric, and no failure.
    let future = "UPDATE onedrop_ledger SET version = 99, oldest_program = 99";
    admin.site.sqlite().execute_batch(future).expect("a ledger of the future");
    assert_eq!(write().status, Some(0));
    let text = fs::read_to_string(&file).expect("metrics");
    has(&text, "onedrop_ledger_up 0");
    has(&text, "onedrop_store_up 1");
    let names: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
    let known = ["build_info", "ledger_up", "store_up", "jobs_config_ok", "unrecorded_deliveries"];
    let known = known.map(|name| format!("onedrop_{name} gauge"));
    assert_eq!(names, known, "what the ledger alone knows is left out");
    let names = fs::read_dir(&*admin.site.root).expect("files");
    let left: Vec<_> = names
        .flatten()
        .filter(|one| one.file_name().to_string_lossy().contains(".prom."))
        .collect();
    assert!(left.is_empty(), "{left:?}");
    let mut command = admin.command(&["status", "--prometheus", "/nowhere/at/all.prom"]);
    let ended = Ended::of(&command.output().expect("onedrop"));
    assert_eq!(ended.status, Some(75));
    assert!(ended.err.contains("/nowhere/at/all.prom: "), "{ended:?}");
}

#[test]
fn a_job_of_which_nothing_is_expected_has_no_errors_and_a_crash_is_one() {
    let jobs = ["crashed", "failed", "off", "paused"]
        .map(|name| format!("[jobs.{name}]\nevery = \"1h\"\ncommand = [\"true\"]\n"));
    let jobs = jobs.concat().replace("[jobs.off]\n", "[jobs.off]\nenabled = false\n");
    let admin = Admin::with(&jobs);
    let tick = admin.command(&["jobs", "tick"]).stdin(Stdio::null()).output().expect("onedrop");
    assert!(tick.status.success(), "{tick:?}");
    let changed = "UPDATE onedrop_job SET errors = 2 WHERE name IN ('failed', 'off', 'paused');
                   UPDATE onedrop_job SET paused_at = last_start WHERE name = 'paused';
                   UPDATE onedrop_job SET open_due = last_start WHERE name = 'crashed'";
    admin.site.sqlite().execute_batch(changed).expect("rows");
    let told = status(&admin, "", &["--json"]);
    let told: Value = serde_json::from_str(&told.out).expect("JSON");
    let jobs = told["figures"]["jobs"].as_array().expect("jobs").iter();
    let word = |job: &Value, name: &str| job[name].as_str().expect("a word").to_owned();
    let jobs =
        jobs.map(|job| format!("{} {} {}", word(job, "job"), word(job, "state"), job["errors"]));
    let mut jobs: Vec<String> = jobs.collect();
    jobs.sort();
    assert_eq!(
        jobs,
        ["crashed crashed 1", "failed failing 2", "off disabled 0", "paused paused 0"]
    );
}

#[test]
fn a_job_that_is_overdue_or_was_never_looked_for_is_told_by_its_metrics() {
    let jobs = ["late", "new", "paused", "well"]
        .map(|name| format!("[jobs.{name}]\nevery = \"1h\"\ncommand = [\"true\"]\n"));
    let admin = Admin::with(&jobs.concat());
    let tick = admin.command(&["jobs", "tick"]).stdin(Stdio::null()).output().expect("onedrop");
    assert!(tick.status.success(), "{tick:?}");
    let changed = "UPDATE onedrop_job SET next_due = next_due - 3 * 3600
                   WHERE name IN ('late', 'paused');
                   UPDATE onedrop_job SET paused_at = last_start WHERE name = 'paused';
                   DELETE FROM onedrop_job_run WHERE job = 'new';
                   DELETE FROM onedrop_job WHERE name = 'new'";
    admin.site.sqlite().execute_batch(changed).expect("rows");
    let file = admin.site.root.join("onedrop.prom");
    let mut command = admin.command(&["status", "--prometheus"]);
    let ended = Ended::of(&command.arg(&file).stdin(Stdio::null()).output().expect("onedrop"));
    assert_eq!(ended.status, Some(0), "{ended:?}");
    let text = fs::read_to_string(&file).expect("metrics");
    let value = |gauge: &str, job: &str| {
        let name = format!("onedrop_job_{gauge}{{name=\"{job}\"}} ");
        let value = text.lines().find_map(|line| line.strip_prefix(&*name));
        value.unwrap_or_else(|| panic!("no {name}in\n{text}")).parse::<u64>().expect("a number")
    };
    let all = ["late", "new", "paused", "well"];
    assert_eq!(all.map(|job| value("on_record", job)), [1, 0, 1, 1]);
    assert_eq!(["new", "paused", "well"].map(|job| value("overdue_seconds", job)), [0, 0, 0]);
    // Due an hour after its only run, less three.
    let late = value("overdue_seconds", "late");
    assert!((7200 - 60..7200 + 600).contains(&late), "{late}");
    let told = status(&admin, "", &["--json"]);
    let told: Value = serde_json::from_str(&told.out).expect("JSON");
    let states = told["figures"]["jobs"].as_array().expect("jobs").iter();
    let states: Vec<_> = states.map(|job| job["state"].as_str().expect("a word")).collect();
    assert_eq!(states, ["overdue", "new", "paused", "ok"]);
}
