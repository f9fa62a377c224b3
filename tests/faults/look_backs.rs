//! Looks among all that is in a big mailbox keep no other recipient's mail waiting: not by an old
//! Date, which anyone can write, and not where each mail has to be looked for.

use std::fs;
use std::time::Duration;

use crate::support::dovecot::{Dovecot, MAIL_USER};
use crate::support::letters;
use crate::support::lmtp::Lmtp;
use crate::support::postfix::{Delivery, Postfix, PostfixSpec};
use crate::support::site::Site;
use crate::support::trial::LETTERS;
use crate::support::{chown_recursive, is_full, onedrop_path};

const LONG: Duration = Duration::from_secs(3600);
const ANN: &str = letters::ANN;
/// What Postfix hands over at a time, to one server (default_destination_concurrency_limit).
const AT_A_TIME: usize = 20;

struct Attacked {
    site: Site,
    lmtp: Lmtp,
    postfix: Postfix,
    /// How many are sent to the big mailbox.
    many: usize,
}

impl Attacked {
    /// A ledger 30 days old, and a mailbox of the size that the attack had, or of a tenth.
    fn new(main_cf: &str) -> Attacked {
        // Appends into a mailbox of that size wait for each other for longer than is shipped.
        let site = Site::with(Dovecot::start_that_waits_for_locks(15));
        let since = "UPDATE onedrop_ledger SET remembers_since = now() - interval '30 days'";
        site.postgres.psql(since);
        let (stands, many) = if is_full() { (50_000, 40) } else { (1500, 15) };
        let folder = site.dovecot.maildir("big");
        for sub in ["cur", "new", "tmp"] {
            fs::create_dir_all(folder.join(sub)).expect("a Maildir");
        }
        for number in 0..stands {
            let letter = letters::one_of_many("stands", number);
            let name = format!("cur/{}.M{number}P1.x:2,S", 1_700_000_000 + number);
            fs::write(folder.join(name), &letter[..420]).expect("a message");
        }
        chown_recursive(&site.dovecot.mail_root(), MAIL_USER);
        let own = "[dedup]\nreceived_by = [\"mx.axial.net\"]\n[store]\nlock_timeout_secs = 15\n";
        let lmtp = site.server(&format!("{LETTERS}{own}"));
        let delivery = Delivery::Lmtp(format!("unix:{}", lmtp.socket().display()));
        let postfix = Postfix::start(&PostfixSpec {
            delivery,
            retry_secs: Some(if is_full() { 60 } else { 2 }),
            // Postfix gives no Message-ID to what has none.
            main_cf: format!(
                "default_destination_concurrency_limit = {AT_A_TIME}\n\
                 local_header_rewrite_clients =\n{main_cf}"
            ),
            ..PostfixSpec::new(onedrop_path())
        });
        Attacked { site, lmtp, postfix, many }
    }

    /// The attack, and mail for others in the middle of it. Returns Postfix' log when all is sent.
    fn run(&self, with_id: bool) -> String {
        let postfix = &self.postfix;
        let old = |number: usize| {
            let id = format!("Message-ID: <old.{with_id}.{number}@x>\n");
            let id = if with_id { id.as_str() } else { "" };
            let date = "Mon, 01 Jan 2001 00:00:00 +0000";
            format!("From: {ANN}\nDate: {date}\nSubject: old {with_id} {number}\n{id}\nHello.\n")
        };
        let other = |number: usize| letters::from_ann(&format!("other.{with_id}.{number}"));
        let mut sent = Vec::new();
        for number in 0..self.many {
            sent.push(old(number));
            postfix.send(ANN, &["big@mail.axial.net"], sent[number].as_bytes());
            if number % 5 == 4 {
                let to = format!("other{number}@mail.axial.net");
                postfix.send(ANN, &[&to], other(number).as_bytes());
            }
        }
        assert!(postfix.wait_until_queue_empty(LONG), "{}\n{}", postfix.log(), self.lmtp.log());
        for number in (4..self.many).step_by(5) {
            let account = format!("other{number}");
            letters::stand_in(&self.site.dovecot, &account, "INBOX", [other(number)]);
            self.site.dovecot.empty(&account);
        }
        let stands: Vec<Vec<u8>> = self.site.dovecot.messages("big", "INBOX");
        for letter in &sent {
            let is_it = |copy: &&Vec<u8>| letters::letter(copy) == letter.as_bytes();
            assert_eq!(stands.iter().filter(is_it).count(), 1, "{letter}");
        }
        postfix.log()
    }

    fn looked(&self, came_to: &str) -> f64 {
        let name = format!("onedrop_look_backs_total{{came_to=\"{came_to}\"}}");
        self.lmtp.metric(&name).expect("a metric")
    }
}

#[test]
fn an_old_date_makes_nobody_look_back() {
    let attacked = Attacked::new("");
    for with_id in [false, true] {
        let log = attacked.run(with_id);
        let deferred: Vec<&str> = log.lines().filter(|line| line.contains("=deferred")).collect();
        assert!(deferred.is_empty(), "{deferred:#?}");
    }
    for came_to in ["found", "nothing", "later", "failed"] {
        assert_eq!(attacked.looked(came_to), 0.0, "{came_to}\n{}", attacked.lmtp.metrics());
    }
}

#[test]
fn looking_back_for_many_keeps_nobody_elses_mail_waiting() {
    // Postfix leaves out what it would write above these: they may be of any age.
    let leaves_out = "header_checks = regexp:{ { /^Received:.*for <big@/ IGNORE } }\n";
    let attacked = Attacked::new(leaves_out);
    for with_id in [false, true] {
        let log = attacked.run(with_id);
        let to = |whom: &'static str| {
            let whom = format!("to=<{whom}");
            let is_its = move |(_, line): &(usize, &str)| line.contains(&whom);
            log.lines().enumerate().filter(is_its).collect::<Vec<_>>()
        };
        // An order, and no time: while one for others is on its way, few of the old ones end.
        let lines: Vec<&str> = log.lines().collect();
        for (sent, line) in to("other").into_iter().filter(|(_, line)| line.contains("=sent")) {
            let id = line.split(": ").nth(1).expect("a queue id");
            let came = lines.iter().position(|line| line.contains(&format!("{id}: from=<")));
            let meanwhile = lines[came.expect("its arrival")..sent].iter();
            let old = meanwhile.filter(|line| line.contains("to=<big") && line.contains("=sent"));
            assert!(old.count() <= attacked.many / 2, "{id}\n{log}");
        }
        // A figure of the run, which no test asserts.
        let delay = |line: &str| line.split("delay=").nth(1)?.split(',').next()?.parse().ok();
        let delays: Vec<f64> = to("other").iter().filter_map(|(_, line)| delay(line)).collect();
        let longest = delays.iter().copied().fold(0.0, f64::max);
        println!("with an id {with_id}: {} for others, at most {longest} s each", delays.len());
        let waited = to("other").iter().filter(|(_, line)| line.contains("=deferred")).count();
        assert_eq!(waited, 0, "{log}");
    }
    let nothing = attacked.looked("nothing");
    assert!(nothing >= attacked.many as f64, "{}", attacked.lmtp.metrics());
    assert_eq!(attacked.looked("failed"), 0.0, "{}", attacked.lmtp.log());
}
