//! What `onedrop check` finds about Postfix. Each Postfix is a folder `fixtures/postfix/NAME/`; a
//! new one needs no Rust:
//!
//! - `main.cf` and `master.cf`, read by the installed postconf;
//! - `expected`: every finding about Postfix, a line each.
//!
//! `$DIR` in any of them is the temporary folder the case runs in, with a good `onedrop.toml` and
//! the LMTP server's socket `lmtp.sock` in it; `$BIN` is the program.

use std::fs;
use std::os::unix::fs::chown;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use onedrop::check::of_postconf;

use super::{CheckSite, USER};
use crate::support::{
    chown_recursive, fixture_text, onedrop, onedrop_path, set_mode, unix_user, wait_until,
};

impl CheckSite {
    fn postfix_findings(&self) -> String {
        self.about("postfix", &mut self.command())
    }
}

#[test]
fn every_postfix_gets_exactly_the_findings_expected() {
    const AT_ONCE: usize = 4;
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/postfix");
    let entries = fs::read_dir(&fixtures).expect("fixtures/postfix");
    let folders: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    let wrong_in = |folder: &Path| {
        let name = folder.file_name().expect("a name").to_string_lossy();
        let expected = fs::read_to_string(folder.join("expected")).unwrap_or_default();
        let actual = CheckSite::of_fixture(&name).postfix_findings();
        let wrong = format!("=== {name}\n--- expected\n{expected}--- actual\n{actual}");
        (actual != expected).then_some(wrong)
    };
    // A check waits for a dozen programs, one after the other.
    let wrong: String = std::thread::scope(|scope| {
        let part = folders.len().div_ceil(AT_ONCE);
        let check = |part: &[PathBuf]| -> String {
            part.iter().filter_map(|folder| wrong_in(folder)).collect()
        };
        let parts: Vec<_> =
            folders.chunks(part).map(|part| scope.spawn(move || check(part))).collect();
        parts.into_iter().map(|part| part.join().expect("no panic")).collect()
    });
    assert!(wrong.is_empty(), "{wrong}");
    assert!(folders.len() >= 60, "only {} cases found", folders.len());
}

#[test]
fn the_snippets_we_ship_have_no_errors_and_no_warnings() {
    let main = fixture_text("conf/postfix/main.cf.onedrop");
    let master = fixture_text("conf/postfix/master.cf.onedrop");
    // The program, its user and its socket are not on every host that runs tests.
    let master = master
        .replace("argv=/usr/bin/onedrop", &format!("argv={}", onedrop_path().display()))
        .replace("user=onedrop", &format!("user={USER}"));
    let is_route = |line: &&str| line.starts_with("#virtual_transport");
    let lines: Vec<_> = main.lines().filter(is_route).collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    for line in lines {
        let site = CheckSite::new();
        let main = main.replace(&format!("\n{line}\n"), &format!("\n{}\n", &line[1..]));
        site.write_postfix("main.cf", &main);
        site.write_postfix("master.cf", &master);
        let findings = site.postfix_findings();
        let is_of_this_host = |told: &str| {
            told.contains(": deliveries read /etc/onedrop/onedrop.toml, ")
                || told.contains("nobody listens at /run/onedrop/")
        };
        assert!(
            findings.lines().all(|told| told.starts_with("ok ") || is_of_this_host(told)),
            "{findings}"
        );
        assert!(findings.contains(&format!("gets mail by {}", &line[1..])), "{findings}");
    }
}

#[test]
fn a_postfix_that_cannot_be_read_is_an_error() {
    let site = CheckSite::new();
    fs::remove_dir_all(site.path("postfix")).expect("a folder");
    let findings = site.postfix_findings();
    assert!(
        findings.starts_with("error ") && findings.contains("cannot read the configuration"),
        "{findings}"
    );
}

/// Which postconf is run shows by the complaint of one that fails.
#[test]
fn a_program_is_an_executable_file_in_an_absolute_folder() {
    let site = CheckSite::good();
    site.write("postconf", b"#!/bin/sh\necho first; echo 'postconf: fatal: mine' >&2; exit 1\n");
    let folder = site.path("");
    for (path, mode, expected) in [
        (folder.as_str(), 0o755, true),
        (&format!("/nonexistent:{folder}"), 0o755, true),
        (&folder, 0o644, false),
        (".", 0o755, false),
        ("", 0o755, false),
    ] {
        set_mode(&site.folder.join("postconf"), mode);
        let mut command = site.command();
        let output = command.env("PATH", path).current_dir(&site.folder).output();
        let told = site.told(&output.expect("onedrop").stdout);
        let complaint = "error   postfix: $DIR/postconf cannot read the configuration: postconf: \
                         fatal: mine\n";
        assert_eq!(told.contains(complaint), expected, "{path} {mode:o}: {told}");
    }
}

#[test]
fn a_program_that_hangs_is_killed_with_what_it_started() {
    let site = CheckSite::good();
    site.write("postconf", b"#!/bin/sh\n/bin/sleep 600 & echo $! >$0.pid; wait\n");
    set_mode(&site.folder.join("postconf"), 0o755);
    let told = site.about("postfix", site.command().env("PATH", site.path("")));
    assert_eq!(told, "error   $DIR/postconf did not answer in time\n");
    let pid = fs::read_to_string(site.path("postconf.pid")).expect("it was started");
    let runs = || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with('Z'))
    };
    assert!(wait_until(Duration::from_secs(10), || !runs()), "process {pid} still runs");
}

/// An empty variable names no file; both read the default one then.
#[test]
fn an_empty_onedrop_config_is_no_other_file_than_the_deliveries() {
    let site = CheckSite::good();
    let master = fixture_text("fixtures/postfix/good/master.cf");
    site.write_postfix(
        "master.cf",
        &site.filled(&master.replace("--config $DIR/onedrop.toml", "")),
    );
    let mut command = onedrop();
    command.args(["check", "--postfix", &site.path("postfix")]).env("ONEDROP_CONFIG", "");
    let told = site.about("postfix", command.stdin(Stdio::null()));
    assert!(told.contains("transport onedrop: "), "{told}");
    assert!(!told.contains("and this check read"), "{told}");
}

#[test]
fn variables_that_deliveries_do_not_get_are_told() {
    let site = CheckSite::good();
    let told = site.about("postfix", &mut site.command_with(&[("LOCK__WAIT_SECS", "3")]));
    let expected = "transport onedrop: ONEDROP__LOCK__WAIT_SECS is set for this check";
    assert!(told.contains(expected), "{told}");
}

#[test]
fn what_the_transports_user_may_not_is_an_error_that_names_it() {
    // Of root's group or Postfix's: a user's other groups do not count, as for pipe(8).
    let cases = [
        ("onedrop.toml", 0o600, "root", "read the configuration $DIR/onedrop.toml"),
        ("conf.d", 0o700, "root", "read the configuration's folder $DIR/conf.d"),
        ("conf.d/a.toml", 0o600, "root", "read the configuration $DIR/conf.d/a.toml"),
        ("password", 0o600, "root", "read ledger.password_file $DIR/password"),
        ("password", 0o600, "root", "read directory.password_file $DIR/password"),
        ("ca.pem", 0o600, "root", "read directory.ca_file $DIR/ca.pem"),
        ("users.db", 0o600, "root", "read directory.url $DIR/users.db"),
        ("userdb.sock", 0o600, "root", "write to directory.userdb $DIR/userdb.sock"),
        ("ledger.db", 0o644, "root", "write to the ledger $DIR/ledger.db"),
        ("mail", 0o755, "root", "write to the Maildirs' folder $DIR/mail"),
        ("lmtp.sock", 0o660, "root", "write to the LMTP server's socket $DIR/lmtp.sock"),
        ("", 0o700, "root", "read the configuration $DIR/onedrop.toml: $DIR is closed"),
        (
            "onedrop.toml",
            0o640,
            "postfix",
            "read the configuration $DIR/onedrop.toml (its group may: user=nobody:postfix)",
        ),
    ];
    for (file, mode, group, expected) in cases {
        let site = CheckSite::good();
        site.deliver_once();
        site.password();
        fs::create_dir(site.path("conf.d")).expect("a folder");
        let more = "[ledger]\npassword_file = \"$DIR/password\"\n\
             [deliver]\nvia = \"$DIR/lmtp.sock\"\n\
             [directory]\naccount = \"{address}\"\nquery = \"SELECT $1\"\n\
             url = \"sqlite://$DIR/users.db\"\npassword_file = \"$DIR/password\"\n\
             ca_file = \"$DIR/ca.pem\"\nuserdb = \"unix:$DIR/userdb.sock\"\n";
        site.write("conf.d/a.toml", site.filled(more).as_bytes());
        site.write("users.db", b"");
        site.write("ca.pem", b"");
        drop(UnixListener::bind(site.path("userdb.sock")).expect("a socket"));
        chown_recursive(&site.folder, USER);
        let before = site.postfix_findings();
        assert!(!before.contains("cannot "), "{before}");
        let path = site.folder.join(file);
        chown(&path, Some(0), Some(unix_user(group).gid.as_raw())).expect("chown");
        set_mode(&path, mode);
        let findings = site.postfix_findings();
        let expected = format!(
            "error   transport onedrop: user=nobody cannot {expected}; every message waits until \
             it can"
        );
        assert!(findings.lines().any(|line| line == expected), "{expected}\nis not in\n{findings}");
    }
}

/// Mode bits decide: the owner's, else the group's, else the others'.
#[test]
fn a_socket_that_postfix_may_not_use_is_an_error() {
    let site = CheckSite::of_fixture("lmtp-good");
    let (postfix, other) = (unix_user("postfix"), unix_user(USER));
    let (owner, group) = (postfix.uid.as_raw(), postfix.gid.as_raw());
    let (other, others) = (other.uid.as_raw(), other.gid.as_raw());
    let expected = "postfix cannot write to the LMTP server's socket $DIR/lmtp.sock, and every \
                    message waits; ";
    // Root asks the kernel; what another user reads are the mode bits.
    let program = site.folder.join("onedrop");
    fs::copy(onedrop_path(), &program).expect("a copy where everybody may run it");
    set_mode(&program, 0o755);
    let findings = || {
        let mut as_another = Command::new(&program);
        as_another
            .args(site.plain_command().get_args())
            .stdin(Stdio::null())
            .uid(other)
            .gid(others);
        [site.about("postfix", &mut site.command()), site.about("postfix", &mut as_another)]
    };
    for (user, of_group, mode, may) in [
        (owner, others, 0o200, true),
        (owner, group, 0o566, false),
        (other, group, 0o020, true),
        (other, group, 0o656, false),
        (other, others, 0o002, true),
        (other, others, 0o665, false),
    ] {
        let socket = site.folder.join("lmtp.sock");
        chown(&socket, Some(user), Some(of_group)).expect("chown");
        set_mode(&socket, mode);
        for told in findings() {
            assert_eq!(!told.contains(expected), may, "{user}:{of_group} {mode:o}: {told}");
        }
    }
    set_mode(&site.folder, 0o766);
    let closed = "socket $DIR/lmtp.sock: $DIR is closed, and every message waits; ";
    for told in findings() {
        assert!(told.contains(closed), "{told}");
    }
}

/// Forms of a service of master.cf, as postconf prints them, and what they mean.
#[test]
fn a_service_and_its_command_line_are_read_as_pipe_reads_them() {
    let told = |master: &str| -> String {
        of_postconf("", master).iter().map(|finding| finding.line() + "\n").collect()
    };
    let (nothing, in_a_shell) =
        ("nothing in this Postfix runs onedrop", "argv starts onedrop by a text for ");
    for (service, expected) in [
        (
            "n n - - pipe -v -o {onedrop_destination_recipient_limit = 2} -o a=b flags=D FLAGS=F \
             argv=onedrop deliver",
            "flags=DF and onedrop_destination_recipient_limit is  (-o in master.cf does not reach",
        ),
        ("n n - - pipe flags=D {FLAGS = F} argv=onedrop", "flags=D lacks R"),
        ("n n - - pipe NULL_SENDER=a null_sender=b argv=onedrop", "null_sender=b: bounces come"),
        ("- n - - pipe argv=/usr/bin/onedrop deliver", "\"unpriv\" of master.cf is not n"),
        ("n y - - pipe argv=/usr/bin/onedrop deliver", "\"chroot\" of master.cf means y"),
        ("n n - - pipe argv=env A=b {onedrop} deliver", "argv starts onedrop through env: "),
        ("n n - - pipe argv=sh -c {exec /usr/bin/onedrop deliver}", in_a_shell),
        ("n n - - pipe argv=env A=b;onedrop", in_a_shell),
        ("n n - - pipe argv=/usr/bin/onedrops /etc/onedrop/onedrop.toml", nothing),
        ("n n - - smtp argv=/usr/bin/onedrop deliver", nothing),
        ("n n", nothing),
        ("n n - - {pipe argv=/usr/bin/onedrop deliver", nothing),
    ] {
        let told = told(&format!("\n# comment\nonedrop unix - {service}\n"));
        assert!(told.contains(expected), "{service}: {expected} is not in\n{told}");
    }
    for (recipient, expected) in [
        ("${recipient}", None),
        ("$(recipient)", None),
        ("$user@$domain", None),
        ("x$recipient", None),
        ("$(user)", Some("${user}: the domain is lost")),
        ("x$mailbox-y", Some("x${mailbox}-y: the domain is lost")),
        ("a$$b$", Some("a$$b$: every message goes to the same account")),
        ("$(open", Some("$(open: every message goes to the same account")),
    ] {
        let argv = format!("argv=/usr/bin/onedrop deliver -d {recipient} -f ${{sender}}");
        let told = told(&format!("onedrop unix - n n - - pipe {argv}\n"));
        let about = told.lines().find_map(|line| line.split_once("argv has -d "));
        match expected {
            None => assert!(about.is_none() && !told.contains(nothing), "{recipient}: {told}"),
            Some(text) => {
                assert!(about.is_some_and(|(_, about)| about.starts_with(text)), "{told}")
            }
        }
    }
}

/// By the list of domains, an account, a query or a userdb; tables, exceptions and localhost are
/// passed over.
#[test]
fn the_domains_that_the_directory_does_not_know_are_told() {
    let site = CheckSite::good();
    let domains = "a.example, hash:/etc/x  /etc/postfix/domains,!b.example localhost.a.example, \
                   localhost gmail.com c.example xn--bcher-kva.example";
    let main = fixture_text("fixtures/postfix/good/main.cf");
    site.write_postfix("main.cf", &format!("{main}virtual_mailbox_domains = {domains}\n"));
    let (a, query) = (("DIRECTORY__DOMAINS", "A.example"), ("DIRECTORY__QUERY", "SELECT $1"));
    let two_forms = ("DIRECTORY__DOMAINS", "b\u{fc}cher.example");
    let userdb = ("DIRECTORY__USERDB", "unix:/run/none");
    for (settings, unknown) in [
        (&[][..], Some("a.example, c.example, xn--bcher-kva.example")),
        (&[a], Some("c.example, xn--bcher-kva.example")),
        (&[two_forms], Some("a.example, c.example")),
        // A query is for the domains, if there are any.
        (&[a, query], Some("c.example, xn--bcher-kva.example")),
        (&[query], None),
        (&[userdb, ("DIRECTORY__ACCOUNT", "{address}")], None),
    ] {
        let told = site.about("postfix", &mut site.command_with(settings));
        let start = "warning virtual_mailbox_domains has domains that [directory] does not know: ";
        let line = told.lines().find_map(|line| line.strip_prefix(start)?.split_once(';'));
        assert_eq!(line.map(|(domains, _)| domains), unknown, "{settings:?}: {told}");
    }
}

#[test]
fn a_limit_below_that_of_postfix_is_told() {
    let site = CheckSite::good();
    let main = fixture_text("fixtures/postfix/good/main.cf");
    let said = |own: &str, of_postfix: &str| {
        site.write_postfix("main.cf", &format!("{main}message_size_limit = {of_postfix}\n"));
        let settings = [("LIMITS__MESSAGE_BYTES", own)];
        let told = site.about("postfix", &mut site.command_with(&settings));
        let line = told.lines().find(|line| line.contains("limits.message_bytes"));
        line.map(str::to_owned)
    };
    for (own, of_postfix) in [("0", "0"), ("1000000", "1000000"), ("1000001", "1000000")] {
        assert_eq!(said(own, of_postfix), None, "{own} beside {of_postfix}");
    }
    for (own, of_postfix, shown) in [("999999", "1000000", "1000000"), ("50", "0", "0 (none)")] {
        let line = said(own, of_postfix).expect("a line");
        let begins = format!(
            "warning limits.message_bytes = {own} is less than message_size_limit = {shown}: "
        );
        assert!(line.starts_with(&begins), "{line}");
    }
}

#[test]
fn what_becomes_of_mail_for_addresses_that_postfix_does_not_know_is_told() {
    let site = CheckSite::good();
    let main = fixture_text("fixtures/postfix/good/main.cf");
    site.write_postfix("main.cf", &format!("{main}virtual_mailbox_domains = a.example\n"));
    let (waits, goes_back) = ("mail for nobody waits for days", "mail for nobody goes back to");
    let domains = ("DIRECTORY__DOMAINS", "a.example");
    let real = ("DELIVER__TRIAL", "false");
    let reject = ("DIRECTORY__UNKNOWN_ACCOUNT", "reject");
    for (settings, then) in [
        (&[domains][..], "whatever stands before the @ gets a Maildir of its own (deliver.trial)"),
        (&[domains, real], waits),
        (&[domains, real, reject], goes_back),
        (&[domains, ("DIRECTORY__USERDB", "unix:/run/none")], goes_back),
        (&[domains, ("DIRECTORY__QUERY", "SELECT $1")], goes_back),
        (&[], goes_back),
    ] {
        let told = site.about("postfix", &mut site.command_with(settings));
        let start = "warning virtual_mailbox_maps is empty: Postfix takes mail for any address in \
                     virtual_mailbox_domains; ";
        let line = told.lines().find_map(|line| line.strip_prefix(start));
        assert!(line.is_some_and(|line| line.contains(then)), "{settings:?}: {told}");
    }
}

/// A relative path begins in the queue directory, with chroot every path does; a server at a
/// wildcard takes what comes from this host.
#[test]
fn a_next_hop_is_read_as_lmtp_does() {
    let site = CheckSite::new();
    let socket = "unix:$DIR/lmtp.sock";
    for (next_hop, chroot, listen, leads) in [
        (socket, "n", socket, true),
        (socket, "n", "127.0.0.1:24", false),
        ("unix:lmtp.sock", "n", socket, true),
        ("unix:/lmtp.sock", "n", socket, false),
        ("unix:/lmtp.sock", "y", socket, true),
        ("inet:127.0.0.1:2400", "n", "127.0.0.1:2400", true),
        ("inet:[127.0.0.1]", "n", "127.0.0.1:24", true),
        ("[::1]:24", "n", "[::1]:24", true),
        ("inet:[ipv6:::1]", "n", "[::1]:24", true),
        ("localhost:24", "n", "127.0.0.1:24", true),
        ("mail.example", "n", "127.0.0.1:24", false),
        ("inet:[mail.example]:24", "n", "127.0.0.1:24", false),
        ("127.0.0.1:lmtp", "n", "127.0.0.1:24", false),
        ("", "n", "127.0.0.1:24", false),
        ("127.0.0.1:24", "n", "0.0.0.0:24", true),
        ("127.0.0.1:24", "n", "[::]:24", true),
        ("127.0.0.1:24", "n", "127.0.0.1:2400", false),
        ("192.0.2.1:24", "n", "0.0.0.0:24", false),
    ] {
        let main = format!("queue_directory = $DIR\nvirtual_transport = lmtp:{next_hop}\n");
        site.write_postfix("main.cf", &format!("compatibility_level = 3.6\n{main}"));
        site.write_postfix("master.cf", &format!("lmtp unix - - {chroot} - - lmtp\n"));
        let told = site.about("postfix", &mut site.command_with(&[("LMTP__LISTEN", listen)]));
        assert_eq!(told.contains(" transport lmtp: "), leads, "{next_hop} {listen}: {told}");
        // A name is not looked up.
        let is_name = ["mail.example", "inet:[mail.example]:24", "127.0.0.1:lmtp", ""];
        let is_unseen = !leads && is_name.contains(&next_hop);
        assert_eq!(told.contains("no lmtp(8) service is seen to get mail"), is_unseen, "{told}");
        let leads_nowhere = !leads && !is_unseen;
        assert_eq!(told.contains("nothing in this Postfix runs onedrop"), leads_nowhere, "{told}");
    }
}
