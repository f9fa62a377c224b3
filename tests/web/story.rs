//! A message's story: the order of its events, what is shown of many copies, and commands that do
//! what the page says.

use std::fs;

use crate::served::Served;
use crate::support::journal::journalctl;
use crate::support::letters;
use crate::support::site::{Files, Site, delivered, run};

const SCUBA: &str = "scuba@mail.axial.net";

/// A site with one delivered message.
fn site() -> (Site<Files>, std::path::PathBuf) {
    let site = Site::embedded();
    site.remember_for_ever();
    let config = site.config("web", "");
    delivered(&config, &["-d", SCUBA], letters::from_ann("one").as_bytes());
    (site, config)
}

#[test]
fn events_stand_in_their_order_across_the_end_of_summer_time() {
    let (site, config) = site();
    // 02:50 and, twenty minutes later, 02:10.
    let (before, after) = (1_792_889_400, 1_792_890_600);
    site.sqlite()
        .execute_batch(&format!(
            "UPDATE onedrop_message SET recorded_at = {before};
             UPDATE onedrop_attempt SET started_at = {before};
             UPDATE onedrop_copy SET placed_at = {after}"
        ))
        .expect("times");
    let served = Served::start_with(&config, &[], |command| {
        command.env("TZ", "Europe/Berlin");
    });
    let page = served.page("/m/1");
    let story = page.split_once("<ol class=\"story\">").expect("a story").1;
    let at = |text: &str| story.find(text).unwrap_or_else(|| panic!("{text}: {story}"));
    assert!(at("2026-10-25 02:50:00") < at("2026-10-25 02:10:00"), "{story}");
    assert!(at("the message is on record") < at("INBOX of scuba as "), "{story}");
}

#[test]
fn of_many_copies_those_that_are_not_placed_are_shown_and_the_others_told_of() {
    let (site, config) = site();
    let (many, shown) = (500, 200);
    let more = format!(
        "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {many})
         INSERT INTO onedrop_copy (value, message_id, account, mailbox, shared, epoch, owner,
                                   in_doubt, prior_doubt, looks_back)
         SELECT randomblob(16), 1, printf('many%03d', n), 'INBOX', 0, 1, '', 0, 0, 0 FROM n"
    );
    site.sqlite().execute_batch(&more).expect("copies");
    let page = Served::start(&config, &[]).page("/m/1");
    assert_eq!(page.matches("</strong> of <a ").count(), shown, "{page}");
    assert!(!page.contains("<strong>INBOX</strong> of <a href=\"/search?q=scuba\">"), "{page}");
    let told = format!("{} more copies: <code>onedrop trace ", many + 1 - shown);
    assert!(page.contains(&told), "{told}: {page}");
    let verify: Vec<_> = page.lines().filter(|line| line.contains("onedrop verify")).collect();
    assert_eq!(verify.len(), 1, "one for all accounts: {verify:?}");
    assert!(!verify[0].contains("--account"), "{verify:?}");
}

/// The commands on a page that begin so, without what marks them there.
fn commands(page: &str, name: &str) -> Vec<String> {
    let commands = page.split("<code>").skip(1).filter_map(|rest| rest.split("</code>").next());
    commands.filter(|one| one.starts_with(name)).map(|one| one.replace("&#39;", "'")).collect()
}

#[test]
fn the_commands_for_an_old_doubt_look_at_it() {
    for path in ["/m/1", "/doubts"] {
        let (site, config) = site();
        site.sqlite()
            .execute_batch(
                "UPDATE onedrop_message SET recorded_at = recorded_at - 3 * 86400;
                 UPDATE onedrop_copy SET in_doubt = 1, owner = 'mx9:77', placed_at = NULL,
                        leased_until = NULL;
                 INSERT INTO onedrop_unsettled (copy_id, look_at) VALUES (1, 0)",
            )
            .expect("a doubt");
        let page = Served::start(&config, &[]).page(path);
        assert!(page.contains("in doubt"), "{path}: {page}");
        assert_eq!(commands(&page, "onedrop settle"), Vec::<String>::new(), "{path}");
        let verify = commands(&page, "onedrop verify");
        let [command] = &verify[..] else { panic!("{path}: {verify:?}") };
        let words: Vec<&str> = command.split(' ').skip(1).collect();
        let ran = run(&config, &words);
        let looked = String::from_utf8_lossy(&ran.stderr).contains("1 copy compared");
        assert!(looked, "{path}: {command}: {ran:?}");
    }
}

#[test]
fn what_is_left_to_settle_is_not_for_verify() {
    let (site, config) = site();
    site.sqlite()
        .execute_batch(
            "UPDATE onedrop_copy SET placed_at = NULL, owner = '',
                 due_at = unixepoch() + 3600;
             INSERT INTO onedrop_unsettled (copy_id, look_at) VALUES (1, unixepoch() + 3600)",
        )
        .expect("a copy that is due");
    let served = Served::start(&config, &[]);
    let story = served.page("/m/1");
    assert_eq!(commands(&story, "onedrop settle").len(), 1, "{story}");
    assert_eq!(commands(&story, "onedrop verify"), Vec::<String>::new(), "{story}");
    let doubts = served.page("/doubts");
    assert_eq!(commands(&doubts, "onedrop settle").len(), 1, "{doubts}");
}

/// Only its owner's filters know in which mailbox it lies.
#[test]
fn a_copy_that_was_handed_over_is_in_no_mailbox_that_is_known() {
    let (site, config) = site();
    let trace = |more: &[&str]| {
        let ran = run(&config, &[&["trace", SCUBA], more].concat());
        String::from_utf8_lossy(&ran.stdout).into_owned()
    };
    for (found, said, told) in [
        (false, "; its filters decide where it lies", "the mail server has it: its filters decide"),
        (true, ", found in the mailbox after a doubt", "by the look after a doubt"),
    ] {
        let receipt = if found { "Filtered/7" } else { "aa BB" };
        site.sqlite()
            .execute(
                "UPDATE onedrop_copy SET receipt_kind = 'lmtp', receipt = ?1, found_by_look = ?2",
                (receipt, found),
            )
            .expect("a receipt");
        let text = trace(&[]);
        let copy = text.lines().find(|line| line.starts_with("copy ")).expect("a copy");
        assert!(copy.contains(&format!("lmtp={receipt}")) && copy.ends_with(said), "{copy}");
        assert!(copy.starts_with("copy        account=scuba: handed over"), "{copy}");
        assert!(trace(&["--json"]).contains("\"state\": \"handed over\""));
        let page = Served::start(&config, &[]).page("/m/1");
        assert!(page.contains(told) && page.contains("handed over"), "{page}");
        assert!(!page.contains("INBOX</strong>") && !page.contains("in INBOX of"), "{page}");
        assert_eq!(commands(&page, "onedrop verify"), Vec::<String>::new());
    }
}

/// The front page has it as `status` does, from this host's journal.
#[test]
fn what_was_put_off_before_it_was_on_record_stands_on_the_front_page() {
    let site = Site::embedded();
    site.remember_for_ever();
    let record = serde_json::json!({
        "__REALTIME_TIMESTAMP": "1795700000000000", "ONEDROP_STATUS": "4.3.5",
        "MESSAGE": "4Early: to=<a> message-id= tempfail 4.3.5: configuration: wrong",
    });
    let path = journalctl(&site.root, &[record]);
    let config = site.config("web", "");
    let served = Served::start_with(&config, &[], |command| {
        command.env("PATH", path);
    });
    let front = served.page("/");
    let line = "last hour: 1 put off before they were on record, the last: 4.3.5 configuration: \
                wrong";
    assert!(front.contains(line), "{front}");
    let asked = fs::read_to_string(site.root.join("asked")).expect("a question");
    let ours = format!("ONEDROP_UNRECORDED={}", config.display());
    assert!(asked.lines().any(|line| line == ours), "{ours}: {asked}");
}

/// What people elsewhere wrote, and what a job printed, neither hides nor turns round the text
/// beside it.
#[test]
fn on_no_page_is_a_character_that_hides_or_turns_text_round() {
    let site = Site::embedded();
    site.remember_for_ever();
    let config = site.config(
        "web",
        "[web]\nshow_subjects = true\n[jobs.loud]\nevery = \"1h\"\n\
         command = [\"/bin/sh\", \"-c\", 'printf \"\\033[2J\\342\\200\\256gnp\"; exit 3']\n",
    );
    let message = "From: ann@x.example\nSubject: =?utf-8?q?=E2=80=AEgnp=E2=80=A8=1B[2J?=\n\
                   Message-ID: <turned\u{202e}@x>\nDate: Mon, 23 Nov 2026 10:00:00 +0000\n\nbody\n";
    let sender = "ann\u{1b}[2J\u{202e}@x.example";
    delivered(&config, &["-d", SCUBA, "-f", sender], message.as_bytes());
    run(&config, &["jobs", "run", "loud"]);
    let served = Served::start(&config, &[]);
    let story = served.page("/m/1");
    // On record the sender is on one line.
    for said in ["ann [2J\\u202e@x.example", "\\u202egnp", "turned\\u202e@x"] {
        assert!(story.contains(said), "{said}: {story}");
    }
    let jobs = served.page("/jobs");
    assert!(jobs.contains("\\u001b[2J\\u202egnp"), "{jobs}");
    let search = "/search?q=x%E2%80%AE%1B";
    for path in ["/", "/m/1", "/jobs", "/failures", search, "/doubts", "/locks", "/hosts"] {
        let page = served.page(path);
        let turns = |c| matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        let hidden = |c: char| c.is_control() && c != '\n' || turns(c);
        assert!(!page.contains(hidden), "{path}: {page:?}");
    }
}
