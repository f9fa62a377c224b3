//! `onedrop trace`: what it finds, and how it shows it.

use std::fs;
use std::io::Write;
use std::process::Stdio;

use crate::command_line::{Admin, Ended};

#[test]
fn trace_finds_by_time_sender_subject_and_failure() {
    let admin = Admin::new();
    let mail = admin.site.root.join("mail");
    std::fs::write(mail.join("ghost"), "no folder").expect("a file in the way");
    let mut command = admin.command(&["deliver", "-f", "ann@x", "-d", "ghost@mail.axial.net"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("binary");
    child
        .stdin
        .take()
        .expect("stdin")
        .write_all(b"Subject: Lost and found\n\nbody\n")
        .expect("a message");
    assert_eq!(child.wait().expect("end").code(), Some(75));
    let subjects = |args: &[&str]| {
        let ended = admin.run(&[&["trace"], args].concat());
        let told = ended.out.lines().filter_map(|line| line.strip_prefix("subject     "));
        (
            ended.status,
            told.map(|subject| subject[..4].to_owned()).collect::<Vec<_>>().join(", "),
            ended.err,
        )
    };
    let (lost, both) = ("Lost".to_owned(), "Lost, Our ".to_owned());
    assert_eq!(subjects(&["--failed"]), (Some(0), lost.clone(), String::new()));
    assert_eq!(subjects(&["--sender", "ANN@"]), (Some(0), lost.clone(), String::new()));
    assert_eq!(subjects(&["--subject", "lost"]), (Some(0), lost, String::new()));
    assert_eq!(subjects(&["--since", "1h"]), (Some(0), both.clone(), String::new()));
    assert_eq!(subjects(&["--since", "1h", "--limit", "1"]).1, "Lost");
    assert_eq!(subjects(&["--sender", "a", "--since", "2026-01-01"]).1, both);
    assert_eq!(
        subjects(&["scuba", "--failed", "--subject", "next"]),
        (Some(1), String::new(), "nothing on record for scuba about next that failed\n".to_owned())
    );
    assert_eq!(subjects(&["--since", "2099-01-01"]).0, Some(1));
    // Without a time, a week.
    let db = rusqlite::Connection::open(admin.site.root.join("ledger.db")).expect("ledger");
    db.execute("UPDATE onedrop_message SET recorded_at = recorded_at - 8 * 86400", [])
        .expect("an older message");
    assert_eq!(
        subjects(&["--failed"]),
        (Some(1), String::new(), "nothing on record since 7d that failed\n".to_owned())
    );
    assert_eq!(subjects(&["--failed", "--since", "9d"]).1, "Lost");
    assert_eq!(subjects(&["ghost"]).1, "Lost");
}

#[test]
fn of_very_many_attempts_trace_shows_the_newest_and_counts_the_others() {
    let admin = Admin::new();
    admin
        .site
        .sqlite()
        .execute_batch(
            "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 1200)
             INSERT INTO onedrop_attempt (message_id, recipient, queue_id, host, pid, started_at)
             SELECT 1, 'scuba@mail.axial.net', '', 'mx1', n, 1.7e9 + n FROM n",
        )
        .expect("attempts");
    let before =
        "SELECT CAST(count(*) - 1200 AS TEXT) FROM onedrop_attempt_text WHERE message_id = 1";
    let before: usize = admin.site.ledger(before)[0].parse().expect("a number");
    let told = admin.run(&["trace", "scuba", "--utc"]).out;
    let left = format!("attempts    {} older attempts are on record\n", 200 + before);
    assert!(told.contains(&left), "{told}");
    assert_eq!(told.matches("\nattempt  ").count(), 1000);
    assert!(told.contains("mx1 pid 1200\n") && !told.contains("mx1 pid 200\n"));
    let json = admin.run(&["trace", "scuba", "--json"]).out;
    let traces: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(traces[0]["attempts_left"], 200 + before);
    assert_eq!(traces[0]["attempts"].as_array().map(Vec::len), Some(1000));
}

/// On a terminal lines fit; elsewhere values are whole. Times are this host's, or UTC.
#[test]
fn trace_tells_people_in_their_own_time_and_width() {
    let admin = Admin::new();
    let subject = format!("a word {}", "x".repeat(120));
    let ledger = admin.site.sqlite();
    ledger.execute("UPDATE onedrop_message SET subject = ?1", [subject]).expect("a long word");
    let zone = |zone: &str, args: &[&str]| {
        let output = admin
            .command(&[&["trace", "4Xyz12"], args].concat())
            .env("TZ", zone)
            .output()
            .expect("binary");
        Ended::of(&output).out
    };
    let (local, there) = (zone("Asia/Kolkata", &[]), zone("Asia/Kolkata", &["--utc"]));
    let time = |told: &str| {
        let line = told
            .lines()
            .find_map(|line| line.strip_prefix("recorded    "))
            .expect("a line")
            .to_owned();
        line.trim_end_matches(" UTC").replace(" +05:30", "+05:30")
    };
    let (local, utc) = (time(&local), format!("{}Z", time(&there)));
    let instant = |text: &str| text.parse::<jiff::Timestamp>().expect("a time");
    assert_eq!(instant(&local), instant(&utc), "{local} {utc}");
    assert!(local.ends_with("+05:30"));
    // But for a word that no line has room for, which is there to be copied.
    let long = |text: &str| {
        let is_long = |line: &&str| line.chars().count() > 100 && !line.contains("xxxx");
        text.lines().map(|line| line.trim_end_matches('\r')).filter(is_long).count()
    };
    let piped = admin.run(&["trace", "4Xyz12"]).out;
    let on_a_terminal = admin
        .shell("script -qec 'stty cols 100 rows 50; NO_COLOR=1 $onedrop trace 4Xyz12' /dev/null")
        .out;
    assert!(long(&piped) > 0 && on_a_terminal.contains("\ncopy  "), "{on_a_terminal}");
    assert_eq!(long(&on_a_terminal), 0, "{on_a_terminal}");
    let black = |text: &str| text.chars().filter(|c| !c.is_whitespace()).collect::<String>();
    assert_eq!(black(&on_a_terminal), black(&piped), "nothing is lost");
}

#[test]
fn the_text_names_each_copys_state_and_local_times() {
    let admin = Admin::new();
    let at = |time: &str| time.parse::<jiff::Timestamp>().expect("a time").as_second().to_string();
    let (summer, winter) = (at("2026-07-01T10:00:00Z"), at("2026-12-31T23:30:00Z"));
    // By the host's clock since its boot.
    let left = at("2099-07-01T10:01:30Z").parse::<i64>().expect("seconds")
        - jiff::Timestamp::now().as_second();
    let since_boot = fs::read_to_string("/proc/uptime").expect("a clock");
    let since_boot: f64 = since_boot.split(' ').next().expect("seconds").parse().expect("seconds");
    let leased = (since_boot + left as f64).to_string();
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("a boot");
    let copy = |mailbox: &str, shared: u8, epoch: u8, leased: &str, in_doubt: u8| {
        format!(
            "INSERT INTO onedrop_copy (message_id, account, mailbox, shared, epoch, owner, \
             leased_until, lease_boot, in_doubt, prior_doubt) SELECT id, 'scuba', '{mailbox}', \
             {shared}, {epoch}, 'mx1:42', {leased}, '{}', {in_doubt}, 0 FROM onedrop_message;",
            boot.trim()
        )
    };
    let copies = [
        copy("a", 0, 2, "NULL", 0),
        copy("b", 0, 3, "NULL", 1),
        copy("c", 0, 1, &leased, 1),
        copy("Sent", 1, 1, "NULL", 0),
    ];
    let others = format!(
        "DELETE FROM onedrop_copy WHERE shared;
         UPDATE onedrop_message SET recorded_at = {summer}, size_bytes = 12, subject = 'a' || \
         char(27) || '[2J';
         UPDATE onedrop_copy SET placed_at = {winter}, nul_replaced = 1, found_by_look = 1, \
         receipt_kind = 'uid', receipt = '7/42';
         UPDATE onedrop_attempt SET started_at = {summer}, host = 'mx1', pid = 42, duration_ms = \
         5, sender = '', outcome = 'delivered', status = '2.0.0', reason = 'kept', \
         detail = 'stored account=scuba mailbox=INBOX; stored account=lisa';
         INSERT INTO onedrop_kept (message_id, why, kept_at, bytes) SELECT id, 'over quota', 0, \
         x'' FROM onedrop_message;"
    );
    admin.site.sqlite().execute_batch(&(others + &copies.concat())).expect("rows");
    let told = |zone: &str, args: &[&str]| {
        let mut command = admin.command(&[&["trace", "4Xyz12"], args].concat());
        Ended::of(&command.env("TZ", zone).output().expect("binary")).out
    };
    let text = told("Europe/Berlin", &[]);
    for line in [
        "recorded    2026-07-01 12:00:00 +02:00",
        "size        12 bytes",
        "subject     a\\u001b[2J",
        "copy        account=scuba mailbox=INBOX: placed 2027-01-01 00:30:00 +01:00, uid=42, found \
         in the mailbox after a doubt, NUL bytes stored as 0x80",
        "copy        account=scuba mailbox=a: not delivered, tried 2 times",
        "copy        account=scuba mailbox=b: in doubt, mx1:42 may have written it; the next \
         try looks first, tried 3 times",
        "copy        account=scuba mailbox=Sent: sent copy kept for later: over quota",
        "attempt     2026-07-01 12:00:00 +02:00 to scuba@mail.axial.net: \
         delivered 2.0.0 kept in 5 ms",
        "            from <>, mx1 pid 42, queue id 4Xyz12",
        "            stored account=scuba mailbox=INBOX",
        "            stored account=lisa",
    ] {
        assert!(text.lines().any(|found| found == line), "{line:?} is not in\n{text}");
    }
    let leased = "copy        account=scuba mailbox=c: mx1:42 is delivering it until \
                  2099-07-01 12:01:";
    assert!(text.lines().any(|found| found.starts_with(leased)), "{text}");
    let utc = told("Europe/Berlin", &["--utc"]);
    assert!(utc.contains("recorded    2026-07-01 10:00:00 UTC\n"), "{utc}");
}

/// What a sender wrote neither moves a terminal's cursor nor turns text round, in any output.
#[test]
fn what_hides_or_turns_text_round_is_shown_as_an_escape() {
    let admin = Admin::empty();
    let message = "From: =?utf-8?q?Ann=1B[2J?= <ann@x.example>\n\
                   Subject: =?utf-8?q?a=1B[31m_=E2=80=AEgnp.exe=E2=80=A8b?=\n\
                   Message-ID: <turned\u{202e}@x>\nDate: Mon, 23 Nov 2026 10:00:00 +0000\n\nbody\n";
    let file = admin.site.root.write("turned.eml", message);
    let file = file.display().to_string();
    let hidden = |text: &str| {
        text.contains(|c: char| {
            c.is_control() && c != '\n'
                || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
        })
    };
    let outputs: [&[&str]; 7] = [
        &["replay", "--json", "--to", "scuba@mail.axial.net", &file],
        &["trace", "scuba"],
        &["trace", "scuba", "--json"],
        &["status"],
        &["verify", "--since", "1h"],
        &["forget", "--since", "1h", "--dry-run"],
        &["with-lock", "turned", "--", "/no\u{1b}[2J\u{202e}such"],
    ];
    for args in outputs {
        let ended = admin.run(args);
        assert!(!hidden(&ended.out) && !hidden(&ended.err), "{args:?}: {ended:?}");
        if args == ["trace", "scuba"] {
            for said in ["\\u202egnp.exe\\u2028b", "<turned\\u202e@x>"] {
                assert!(ended.out.contains(said), "{said}: {}", ended.out);
            }
        }
    }
}
