//! A hand-over that the mail server breaks off in the middle of a filter, and what is found of it:
//! it comes to its end where the guard is known to be in force, and nothing that a filter filed is
//! taken out but what stands twice in one mailbox.

use std::path::{Path, PathBuf};

use crate::support::dovecot::Dovecot;
use crate::support::filters::{Filters, Guard};
use crate::support::proxy::{Fault, Proxy, Stage, Upstream};
use crate::support::site::{self, Site};
use crate::support::trial::{End, Run};
use crate::support::{fixture_text, onedrop};

/// What runs in this order: `Copies`, the forward, INBOX.
const THREE: &str = "require [\"copy\", \"fileinto\", \"mailbox\"];\n\
     fileinto :copy :create \"Copies\";\nredirect :copy \"far@elsewhere.example\";\nkeep;\n";
const TERMS: &str = "[directory]\ndomains = [\"mail.axial.net\"]\n[lock]\nwait_secs = 0\n";
pub const SENDER: &str = "ann@elsewhere.example";

/// A filtering Dovecot and a ledger.
pub struct Filtering {
    pub site: Site,
    pub filters: Filters,
}

impl Filtering {
    pub fn new(guard: Guard) -> Filtering {
        let filters = Filters::new();
        let dovecot = Dovecot::start_high_performance_with(&filters.conf(guard));
        Filtering { site: Site::with(dovecot), filters }
    }

    /// Hands over by `port`.
    pub fn config(&self, port: u16) -> PathBuf {
        let store = format!("store.lmtp = \"lmtp://127.0.0.1:{port}\"\n");
        self.site.config("filtering", &format!("{store}{TERMS}"))
    }

    pub fn prove(&self, port: u16) {
        self.site.note_the_guard(&format!("lmtp://127.0.0.1:{port}"));
    }

    pub fn start(config: &Path, account: &str, message: &str) -> Run {
        let mut command = onedrop();
        let to = format!("{account}@mail.axial.net");
        command.args(["deliver", "-f", SENDER, "-d", &to, "--config"]).arg(config);
        command.current_dir("/");
        let mut run = Run::start(command);
        run.feed(message.as_bytes().to_vec());
        run
    }

    pub fn deliver(config: &Path, account: &str, message: &str) -> End {
        Filtering::start(config, account, message).end()
    }

    #[track_caller]
    pub fn verify(&self, config: &Path) -> String {
        self.site.end_leases();
        let args = ["verify", "--since", "48h", "--all", "--repair", "--json"];
        let verified = site::run(config, &args);
        assert!(verified.status.success(), "{verified:?}");
        String::from_utf8_lossy(&verified.stdout).into_owned()
    }

    /// How many messages these mailboxes have.
    pub fn counts<const N: usize>(&self, account: &str, mailboxes: [&str; N]) -> [usize; N] {
        mailboxes.map(|mailbox| self.site.dovecot.count(account, mailbox))
    }

    /// The value of the only copy, as it stands in its header.
    pub fn value(&self) -> String {
        self.site.postgres.psql("SELECT encode(value, 'hex') FROM onedrop_copy")
    }

    /// Dovecot's delivery dies while it sends: it has filed `Copies`, and INBOX is still to come.
    fn break_off(&self, config: &Path, account: &str, message: &str) {
        let [inbox] = self.counts(account, ["INBOX"]);
        self.filters.hold_senders();
        let run = Filtering::start(config, account, message);
        let lmtp = nix::unistd::Pid::from_raw(self.filters.wait_held());
        nix::sys::signal::kill(lmtp, nix::sys::signal::Signal::SIGKILL).expect("a process");
        self.filters.let_go();
        run.end().is(75, "4.");
        assert_eq!(self.counts(account, ["Copies", "INBOX"]), [1, inbox]);
        self.site.end_leases();
    }
}

pub fn letter(name: &str) -> String {
    format!(
        "From: {SENDER}\nTo: scuba@mail.axial.net\nDate: Thu, 26 Nov 2026 12:00:00 +0000\n\
         Subject: {name}\nMessage-ID: <{name}@x>\n\nthis is {name}\n"
    )
}

#[test]
fn what_a_dying_server_had_still_to_do_is_done_by_the_next_try() {
    let all = Filtering::new(Guard::On);
    let port = all.site.dovecot.lmtp_port();
    let config = all.config(port);
    all.prove(port);
    all.site.dovecot.make_home("scuba");
    // So that something is noted for the account.
    Filtering::deliver(&config, "scuba", &letter("earlier")).is(0, "");
    all.filters.script("scuba", THREE);
    all.break_off(&config, "scuba", &letter("broken"));
    Filtering::deliver(&config, "scuba", &letter("broken")).is(0, "");
    assert_eq!(all.counts("scuba", ["Copies", "INBOX"]), [2, 2]);
    assert_eq!(all.filters.sent_to("far@").len(), 2, "it died before it noted what it sent");
    // What stands twice in one mailbox goes, and no more than that.
    let told = all.verify(&config);
    assert_eq!(all.counts("scuba", ["Copies", "INBOX"]), [1, 2], "{told}");
    let copy = |mailbox| all.site.dovecot.messages("scuba", mailbox).pop().expect("a copy");
    for (mailbox, number) in [("Copies", 1), ("INBOX", 2)] {
        let text = String::from_utf8_lossy(&copy(mailbox)).into_owned();
        assert!(text.contains(&format!("X-Onedrop-Try: {number}")), "{text}");
    }
    all.verify(&config);
    assert_eq!(all.counts("scuba", ["Copies", "INBOX"]), [1, 2]);
}

/// `verify` leaves such a doubt to the next try, as long as the guard remembers.
#[test]
fn verify_does_not_end_what_may_be_half_done() {
    let all = Filtering::new(Guard::On);
    let port = all.site.dovecot.lmtp_port();
    let config = all.config(port);
    all.prove(port);
    all.site.dovecot.make_home("scuba");
    Filtering::deliver(&config, "scuba", &letter("earlier")).is(0, "");
    all.filters.script("scuba", THREE);
    all.break_off(&config, "scuba", &letter("broken"));
    let told = all.verify(&config);
    assert!(told.contains("the next attempt hands it over again"), "{told}");
    Filtering::deliver(&config, "scuba", &letter("broken")).is(0, "");
    assert_eq!(all.counts("scuba", ["Copies", "INBOX"]), [2, 2]);
    // Later than the guard remembers what is found is the end.
    all.filters.script("scuba", THREE);
    all.site.dovecot.make_home("doug");
    all.filters.script("doug", THREE);
    all.break_off(&config, "doug", &letter("old"));
    all.site.postgres.psql(
        "UPDATE onedrop_message SET recorded_at = recorded_at - interval '6 days' WHERE \
         message_id LIKE '%old%'",
    );
    Filtering::deliver(&config, "doug", &letter("old")).is(0, "");
    assert_eq!(all.counts("doug", ["Copies", "INBOX"]), [1, 0]);
}

/// What was handed over before the guard is known to be there was perhaps noted by none.
#[test]
fn what_came_before_the_guard_was_seen_ends_where_it_is_found() {
    let all = Filtering::new(Guard::On);
    let port = all.site.dovecot.lmtp_port();
    let config = all.config(port);
    all.site.dovecot.make_home("scuba");
    Filtering::deliver(&config, "scuba", &letter("earlier")).is(0, "");
    all.filters.script("scuba", THREE);
    all.break_off(&config, "scuba", &letter("broken"));
    let mut check = onedrop();
    check.args(["check", "--account", "scuba", "--config"]).arg(&config);
    let told = check.arg("--dovecot").arg(all.site.dovecot.config_file()).output();
    let told = String::from_utf8_lossy(&told.expect("onedrop").stdout).into_owned();
    assert!(told.contains("the guard is in force and remembers 518400 seconds"), "{told}");
    Filtering::deliver(&config, "scuba", &letter("broken")).is(0, "");
    assert_eq!(all.counts("scuba", ["Copies", "INBOX"]), [1, 1]);
}

/// A guard without a proof may not be there: what is found is the end.
#[test]
fn without_a_proof_what_is_found_is_the_end() {
    let all = Filtering::new(Guard::On);
    let config = all.config(all.site.dovecot.lmtp_port());
    all.site.dovecot.make_home("scuba");
    all.filters.script("scuba", THREE);
    all.break_off(&config, "scuba", &letter("broken"));
    Filtering::deliver(&config, "scuba", &letter("broken")).is(0, "");
    assert_eq!(all.counts("scuba", ["Copies", "INBOX"]), [1, 0]);
    assert_eq!(all.filters.sent_to("far@").len(), 1);
}

/// Dovecot waits two seconds for the mailbox's lock, and then says OK. A second hand-over would be
/// carried out.
#[test]
fn what_was_handed_over_into_a_mailbox_whose_lock_is_held_is_not_handed_over_again() {
    let filters = Filters::new();
    let waits = "protocol imap {\n  mail_max_lock_timeout = 2 s\n}\n";
    let conf = format!("{waits}{}", filters.conf(Guard::Off));
    let all = Filtering { site: Site::with(Dovecot::start_high_performance_with(&conf)), filters };
    let proxy = Proxy::start(Upstream::Lmtp(all.site.dovecot.lmtp_port()));
    let store = format!(
        "store = {{ lock_timeout_secs = 2, lmtp = \"lmtp://127.0.0.1:{}\" }}\n",
        proxy.port()
    );
    let config = all.site.config("filtering", &format!("{store}{TERMS}"));
    all.site.dovecot.make_home("scuba");
    Filtering::deliver(&config, "scuba", &letter("seen")).is(0, "");
    proxy.plan(Stage::Answer, Fault::Cut);
    Filtering::deliver(&config, "scuba", &letter("hidden")).is(75, "4.");
    proxy.heal();
    all.site.end_leases();
    let lock = all.site.dovecot.hide("scuba", "hidden");
    let end = Filtering::deliver(&config, "scuba", &letter("hidden"));
    end.is(75, "4.3.0 ").says("each opening of the mailbox took 0.9 s or more");
    drop(lock);
    all.site.end_leases();
    Filtering::deliver(&config, "scuba", &letter("hidden")).is(0, "");
    assert_eq!(all.counts("scuba", ["INBOX"]), [2]);
}

/// Dovecot remembers nothing of an account without a home folder: there the guard takes what was
/// found for all of it.
#[test]
fn where_nothing_is_noted_for_an_account_what_is_found_is_the_end() {
    const HOMELESS: &str = "passdb {\n  driver = static\n  args = password=@USER_PASSWORD@\n}\n\
         userdb {\n  driver = static\n  args = uid=@USER@ gid=nogroup allow_all_users=yes\n}\n";
    for (name, users, copies) in [("home", "", 1), ("none", HOMELESS, 1)] {
        let filters = Filters::new();
        let conf = filters.conf(Guard::On);
        let dovecot = match users {
            "" => Dovecot::start_high_performance_with(&conf),
            users => Dovecot::start_with_users(&format!("{users}{conf}")),
        };
        let all = Filtering { site: Site::with(dovecot), filters };
        let proxy = Proxy::start(Upstream::Lmtp(all.site.dovecot.lmtp_port()));
        let config = all.config(proxy.port());
        all.prove(proxy.port());
        all.site.dovecot.make_home("scuba");
        proxy.plan(Stage::Answer, Fault::Cut);
        Filtering::deliver(&config, "scuba", &letter(name)).is(75, "4.");
        proxy.heal();
        all.site.end_leases();
        Filtering::deliver(&config, "scuba", &letter(name)).is(0, "");
        assert_eq!(all.counts("scuba", ["INBOX"]), [copies], "{name}");
    }
}

#[test]
fn check_puts_on_record_whether_the_guard_is_in_force() {
    let all = Filtering::new(Guard::On);
    let port = all.site.dovecot.lmtp_port();
    let config = all.config(port);
    let check = || {
        let mut check = onedrop();
        check.args(["check", "--account", "scuba", "--config"]).arg(&config);
        let told = check.arg("--dovecot").arg(all.site.dovecot.config_file()).output();
        let told = told.expect("onedrop");
        let on_record = all.site.postgres.psql(&format!(
            "SELECT string_agg(split_part(way, ' since ', 1), '; ' ORDER BY way DESC) FROM \
             onedrop_proof WHERE way LIKE 'guard, %' AND server LIKE 'lmtp://127.0.0.1:{port} at \
             %'"
        ));
        (on_record, String::from_utf8_lossy(&told.stdout).into_owned())
    };
    let shipped = fixture_text("conf/dovecot/onedrop-guard.sieve");
    let earlier = "require \"duplicate\";\nif allof (exists \"X-Onedrop-Copy\", duplicate :handle \
                   \"onedrop\" :header \"X-Onedrop-Copy\" :seconds 518400) { discard; }\n";
    let shorter = shipped.replace("518400", "259200");
    let of_the_copy_alone = shipped.replacen("518400", "604800", 1);
    for (guard, expected) in [
        (&*shipped, "guard, 518400 s"),
        (earlier, ""),
        (&*shipped, "guard, 518400 s"),
        // What was handed over before is remembered for no longer than that.
        (&*shorter, "guard, 259200 s"),
        (&*shipped, "guard, 518400 s; guard, 259200 s"),
        (&*of_the_copy_alone, ""),
        (&*shipped, "guard, 518400 s"),
        ("keep;\n", ""),
    ] {
        all.filters.guard(guard);
        // What is on record is known for long.
        all.site.postgres.psql(
            "UPDATE onedrop_proof SET way = split_part(way, ' since ', 1) || ' since 1000' WHERE \
             way LIKE 'guard, %'",
        );
        let (on_record, told) = check();
        assert_eq!(on_record, expected, "{guard}\n{told}");
    }
    // Where several Dovecots deliver for an account, none knows what another has delivered.
    all.filters.guard(&shipped);
    assert_eq!(check().0, "guard, 518400 s");
    all.site.postgres.psql(
        "INSERT INTO onedrop_host (host, program_version, schema_version) VALUES ('mx2', '1', 1)",
    );
    let (on_record, told) = check();
    assert_eq!(on_record, "", "{told}");
    assert!(told.contains("does not go on record for deliveries: mx2 has used this"), "{told}");
}
