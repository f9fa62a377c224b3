//! What `onedrop check` finds about Dovecot.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use onedrop::check::of_doveconf;

use super::CheckSite;
use crate::support::{run, set_mode};

const IMAP: &str = "imap://127.0.0.1:1";
const LMTP: &str = "lmtp://127.0.0.1:1";

/// What a check finds where doveconf is this script, in PATH and, if so, named as a file.
fn findings(doveconf: &[u8], store: &str, is_named: bool) -> String {
    findings_with(doveconf, store, None, is_named)
}

/// Like [`findings`], with a `store.lmtp`.
fn findings_with(doveconf: &[u8], store: &str, lmtp: Option<&str>, is_named: bool) -> String {
    let site = CheckSite::good();
    site.write("doveconf", doveconf);
    set_mode(&site.folder.join("doveconf"), 0o755);
    let path = format!("{}:{}", site.path(""), std::env::var("PATH").unwrap_or_default());
    about_dovecot(&site, store, lmtp, is_named.then_some("doveconf"), &path)
}

fn about_dovecot(
    site: &CheckSite,
    store: &str,
    lmtp: Option<&str>,
    file: Option<&str>,
    path: &str,
) -> String {
    site.about("dovecot", &mut command(site, store, lmtp, file, path))
}

fn command(
    site: &CheckSite,
    store: &str,
    lmtp: Option<&str>,
    file: Option<&str>,
    path: &str,
) -> Command {
    let password = site.password();
    let mut settings = vec![
        ("STORE__URL", store),
        ("STORE__STARTTLS", "false"),
        ("STORE__PASSWORD_FILE", &password),
    ];
    settings.extend(lmtp.map(|lmtp| ("STORE__LMTP", lmtp)));
    let mut command = site.command_with(&settings);
    if let Some(file) = file {
        command.arg("--dovecot").arg(site.path(file));
    }
    command.env("PATH", path);
    command
}

/// Each is a file of what doveconf prints (`NAME.conf`) and the findings about it, by IMAP
/// (`NAME.imap`) and into Maildirs (`NAME.maildir`), or, of `guard-NAME.conf`, handed over by LMTP
/// (`NAME.lmtp`). `@CONF@` is the folder of what we ship for Dovecot.
#[test]
fn every_dovecot_gets_exactly_the_findings_expected() {
    let (mut wrong, mut count) = (String::new(), 0);
    let project = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (fixtures, conf) = (project.join("fixtures/dovecot"), project.join("conf/dovecot"));
    for entry in fs::read_dir(fixtures).expect("fixtures/dovecot") {
        let path = entry.expect("an entry").path();
        if path.extension() != Some(OsStr::new("conf")) {
            continue;
        }
        let name = path.display();
        let entry_name = path.file_name().unwrap_or_default().to_string_lossy();
        let is_about_the_guard = entry_name.starts_with("guard-");
        let cat = format!("sed 's,@CONF@,{},' {name}", conf.display());
        let doveconf = format!("#!/bin/sh\n[ \"$*\" = \"-c $0 -n\" ] && {cat}\n");
        for (kind, store, lmtp) in [
            ("imap", IMAP, None),
            ("maildir", "maildir:///nonexistent", None),
            ("lmtp", IMAP, Some(LMTP)),
        ] {
            if (kind == "lmtp") != is_about_the_guard {
                continue;
            }
            let actual = findings_with(doveconf.as_bytes(), store, lmtp, true);
            let actual = actual.replace(&conf.display().to_string(), "@CONF@");
            let expected = fs::read_to_string(path.with_extension(kind)).unwrap_or_default();
            if actual != expected {
                wrong +=
                    &format!("=== {name} {kind}\n--- expected\n{expected}--- actual\n{actual}");
            }
        }
        count += 1;
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert!(count >= 5, "only {count} cases found");
}

#[test]
fn a_doveconf_that_fails_or_babbles_is_survived() {
    let failing = b"#!/bin/sh\necho 'doveconf: Fatal: Permission denied' >&2; exit 89\n";
    let told = findings(failing, IMAP, false);
    assert!(
        told.starts_with("ok      nothing about Dovecot was tested: ")
            && told.contains("Permission denied"),
        "{told}"
    );
    assert!(findings(failing, IMAP, true).starts_with("error   "));
    let endless = b"#!/bin/sh\nexec yes 'a = b {'\n";
    assert!(findings(endless, IMAP, false).contains("nothing about Dovecot was tested"));
    let noise = b"#!/bin/sh\nhead -c 1000000 /dev/urandom\n";
    assert!(findings(noise, IMAP, false).contains("mail_max_lock_timeout is not set"));
    // The settings of this host's Dovecot mean nothing for mailboxes on another.
    assert_eq!(findings(failing, "imap://192.0.2.1:143", false), "");
}

#[test]
fn a_guard_that_cannot_be_seen_is_told() {
    let failing = b"#!/bin/sh\necho 'doveconf: Fatal: Permission denied' >&2; exit 89\n";
    let told = findings_with(failing, IMAP, Some(LMTP), false);
    assert!(told.starts_with("warning nothing about Dovecot was tested: "), "{told}");
    let told = findings_with(failing, "imap://192.0.2.1:143", Some("lmtp://192.0.2.1:24"), false);
    assert!(told.starts_with("warning its settings cannot be seen from here"), "{told}");
}

/// It may run before the guard, and what it does is done twice then.
#[test]
fn a_script_that_cannot_be_read_may_run_before_the_guard() {
    let site = CheckSite::good();
    let project = Path::new(env!("CARGO_MANIFEST_DIR"));
    let conf = fs::read_to_string(project.join("fixtures/dovecot/guard-in-force.conf"));
    let guard = project.join("conf/dovecot/onedrop-guard.sieve").display().to_string();
    // Root as well can read nothing below a file.
    let unread = format!("{guard}/unread.sieve");
    let conf = conf
        .expect("a fixture")
        .replace("@CONF@/onedrop-guard.sieve", &unread)
        .replace("/nonexistent/more.sieve", &guard);
    site.write("doveconf", format!("#!/bin/sh\ncat <<'X'\n{conf}\nX\n").as_bytes());
    set_mode(&site.folder.join("doveconf"), 0o755);
    let path = format!("{}:{}", site.path(""), std::env::var("PATH").unwrap_or_default());
    let mut check = command(&site, IMAP, Some(LMTP), Some("doveconf"), &path);
    let told = site.told(&check.output().expect("onedrop").stdout);
    let expected = format!("untested dovecot: {unread}, which runs before users' scripts, could");
    assert!(told.contains(&expected) && !told.contains("the guard is in force"), "{told}");
}

/// With the real doveconf, and the guard at its place.
#[test]
fn the_guard_we_ship_is_in_force() {
    let site = CheckSite::good();
    let shipped = |name: &str| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("conf/dovecot").join(name);
        fs::read_to_string(path).expect("a file that is shipped")
    };
    site.write("guard.sieve", shipped("onedrop-guard.sieve").as_bytes());
    let place = "/etc/dovecot/onedrop-guard.sieve";
    let conf =
        shipped("onedrop.conf") + &shipped("onedrop-lmtp.conf").replace("group = onedrop", "");
    assert!(conf.contains(place));
    let conf = conf.replace(place, &site.path("guard.sieve"));
    let path = std::env::var("PATH").unwrap_or_default();
    let about = |conf: &str| {
        site.write("dovecot.conf", format!("protocols = imap lmtp\n{conf}").as_bytes());
        about_dovecot(&site, IMAP, Some(LMTP), Some("dovecot.conf"), &path)
    };
    assert_eq!(about(&conf), "ok      its settings fit\n");
    // Another script at its place.
    site.write("guard.sieve", b"# duplicate \"x-onedrop-copy\" discard\nkeep;\n");
    assert!(about(&conf).starts_with("warning no script that runs before"), "{}", about(&conf));
}

/// `sievec` cuts what the guard asks for to what the Dovecot that it asks allows.
#[test]
fn a_guard_that_was_compiled_too_soon_is_told() {
    let site = CheckSite::good();
    let path = std::env::var("PATH").unwrap_or_default();
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("conf/dovecot");
    let script = fs::read(shipped.join("onedrop-guard.sieve")).expect("the guard");
    site.write("guard.sieve", &script);
    let conf = fs::read_to_string(shipped.join("onedrop.conf")).expect("settings")
        + &fs::read_to_string(shipped.join("onedrop-lmtp.conf")).expect("settings");
    let conf = conf
        .replace("group = onedrop", "")
        .replace("/etc/dovecot/onedrop-guard.sieve", &site.path("guard.sieve"));
    site.write("dovecot.conf", format!("protocols = imap lmtp\n{conf}").as_bytes());
    let compile = |period: &str| {
        site.write("sievec.conf", format!("plugin {{\n{period}\n}}\n").as_bytes());
        let mut sievec = Command::new("sievec");
        run(sievec.arg("-c").arg(site.path("sievec.conf")).arg(site.path("guard.sieve")));
    };
    let about = || about_dovecot(&site, IMAP, Some(LMTP), Some("dovecot.conf"), &path);
    let fits = "ok      its settings fit\n";
    for (period, secs) in [("", 172_800), ("sieve_duplicate_max_period = 1h", 3600)] {
        compile(period);
        let expected = format!(
            "warning the guard of store.lmtp was compiled to remember {secs} seconds ({}), and \
             not the 518400 of its text: ",
            "$DIR/guard.svbin"
        );
        let told = about();
        assert!(told.starts_with(&expected), "{period}: {told}");
        let mend = "; compile it again: sievec -c /etc/dovecot/dovecot.conf $DIR/guard.sieve";
        assert!(told.contains(mend), "{told}");
    }
    compile("sieve_duplicate_max_period = 7d");
    assert_eq!(about(), fits);
    // `check` says of a file that is no compiled guard that it cannot read it.
    site.write("guard.svbin", b"no code");
    let told = about();
    assert!(
        told.contains("how long the guard of store.lmtp remembers could not be read"),
        "{told}"
    );
    // Dovecot compiles a script anew that is newer, and then its own settings count.
    let later = SystemTime::UNIX_EPOCH + Duration::from_secs(1);
    let script = fs::File::options().write(true).open(site.path("guard.sieve")).expect("a file");
    script.set_modified(later).expect("a time");
    assert_eq!(about(), fits);
}

/// Dovecot ends an account's name at its own delimiter.
#[test]
fn accounts_that_dovecot_would_cut_are_told() {
    let site = CheckSite::good();
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/dovecot");
    let conf = fs::read_to_string(shipped.join("guard-in-force.conf")).expect("a fixture");
    let guard = Path::new(env!("CARGO_MANIFEST_DIR")).join("conf/dovecot");
    let conf = conf.replace("@CONF@", &guard.display().to_string());
    fs::create_dir(site.folder.join("conf.d")).expect("a folder");
    let about = |delimiter: &str, directory: &str| {
        let conf = format!("{conf}recipient_delimiter = {delimiter}\n");
        site.write("doveconf", format!("#!/bin/sh\ncat <<'X'\n{conf}\nX\n").as_bytes());
        set_mode(&site.folder.join("doveconf"), 0o755);
        site.write("conf.d/directory.toml", format!("[directory]\n{directory}\n").as_bytes());
        let path = format!("{}:{}", site.path(""), std::env::var("PATH").unwrap_or_default());
        about_dovecot(&site, IMAP, Some(LMTP), Some("doveconf"), &path)
    };
    let (fits, domains) = ("ok      its settings fit\n", "domains = [\"x.example\"]\n");
    let ours = |ours: &str| format!("{domains}recipient_delimiter = \"{ours}\"");
    let left =
        "leaves \"+\" in accounts: Dovecot's recipient_delimiter ends the name of an account";
    for (dovecots, directory, expected) in [
        ("+", String::new(), fits.to_owned()),
        ("+", ours("+"), fits.to_owned()),
        ("_", ours("_-"), fits.to_owned()),
        ("", ours(""), fits.to_owned()),
        ("+", ours(""), format!("warning directory.recipient_delimiter = \"\" {left}")),
        ("-+", ours("-"), format!("warning directory.recipient_delimiter = \"-\" {left}")),
        ("+", "query = \"SELECT $1\"".into(), format!("{fits}ok      not known from here: ")),
        ("", "query = \"SELECT $1\"".into(), fits.to_owned()),
        (
            "+",
            "accounts = { \"a@b\" = \"doug+x\", \"b@b\" = \"lisa@ho+me\" }".into(),
            "warning 1 accounts of directory.accounts contain one of \"+\" (doug+x): ".into(),
        ),
    ] {
        let told = about(dovecots, &directory);
        assert!(told.starts_with(&expected), "{dovecots} {directory}: {told}");
        assert!(expected != fits || told == fits, "{dovecots} {directory}: {told}");
    }
}

#[test]
fn the_dovecot_settings_we_ship_fit() {
    let site = CheckSite::good();
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("conf/dovecot/onedrop.conf");
    let more = "protocols = imap lmtp\nprotocol lmtp {\n  mail_plugins = $mail_plugins sieve\n}\n";
    site.write("dovecot.conf", format!("!include {}\n{more}", shipped.display()).as_bytes());
    let path = std::env::var("PATH").unwrap_or_default();
    let about = about_dovecot(&site, IMAP, None, Some("dovecot.conf"), &path);
    assert_eq!(about.lines().count(), 1, "{about}");
    let expected = "warning the plugin sieve is in mail_plugins of protocol lmtp";
    assert!(about.starts_with(expected), "{about}");
}

/// The texts of the findings about these settings for appends from 127.0.0.1.
fn by_imap(conf: &str) -> String {
    of_doveconf(conf).into_iter().map(|finding| finding.text + "\n").collect()
}

/// The field is a word (2.3) or a switch (2.4); a trusted network waits as well.
#[test]
fn the_penalty_is_off_for_everybody_or_for_whom_a_passdb_lets_in() {
    let passdb = |field: &str| format!("passdb {{\n  override_fields = {field}\n}}\n");
    let section = |field: &str| format!("passdb x {{\n  fields {{\n    {field}\n  }}\n}}\n");
    let anvil = "service anvil {\n  unix_listener anvil-auth-penalty {\n    mode = 0\n  }\n}\n";
    for (conf, is_off) in [
        (passdb("nodelay=y"), true),
        (passdb("allow_nets=10.0.0.0/8 nodelay"), true),
        (section("nodelay = yes"), true),
        (anvil.to_owned(), true),
        (anvil.replace("= 0", "= 0600"), false),
        (passdb("nodelay=no"), false),
        (passdb("proxy=y"), false),
        (section("nodelay = no"), false),
        (passdb("nodelay=y").replace("passdb", "userdb"), false),
        ("login_trusted_networks = 127.0.0.1\n".to_owned(), false),
    ] {
        let told = by_imap(&conf);
        assert_eq!(
            !told.contains("lets every login from 127.0.0.1 wait"),
            is_off,
            "{conf}: {told}"
        );
    }
}

/// Plugins are words (2.3) or switches (2.4).
#[test]
fn a_protocols_own_plugins_come_first() {
    let sieve = "the plugin sieve is in mail_plugins of protocol lmtp";
    let quota = "the plugin quota is in mail_plugins of protocol lmtp and not of protocol imap";
    for (conf, expected) in [
        (
            "# 2.3.19.1: /etc/dovecot/dovecot.conf\nmail_plugins = \" quota\"\n\
             mail_location = maildir:~/Maildir # {\n\
             protocol imap {\n  mail_plugins = \" quota imap_quota\"\n}\n\
             protocol lmtp {\n  mail_plugins = \" quota sieve\"\n}\n",
            &[sieve][..],
        ),
        ("mail_plugins = quota\nprotocol imap {\n  mail_plugins = acl\n}\n", &[quota]),
        (
            "mail_plugins {\n  quota = yes\n  acl = yes\n}\n\
             protocol lmtp {\n  mail_plugins {\n    sieve = yes\n    acl = no\n  }\n}\n",
            &[sieve],
        ),
        (
            "mail_plugins {\n  quota = yes\n}\n\
             protocol imap {\n  mail_plugins {\n    quota = no\n  }\n}\n",
            &[quota],
        ),
        ("protocol lmtp {\n  mail_plugins {\n    quota = no\n    sieve = no\n  }\n}\n", &[]),
    ] {
        let told = by_imap(conf);
        for text in [sieve, quota] {
            assert_eq!(told.contains(text), expected.contains(&text), "{conf}: {told}");
        }
    }
}

#[test]
fn what_is_no_configuration_is_passed_over() {
    let deep = "a {\n".repeat(100_000) + "b = c\n" + &"}\n".repeat(100_000);
    for noise in ["}\n}\n", "= x\n\"a = b\n", "\u{feff}\r\n", &deep] {
        let told = by_imap(&format!("{noise}mail_fsync = never\n"));
        assert!(told.contains("mail_fsync = never"), "{told}");
    }
}

/// An append waits for three locks, and 20 s for its answer.
#[test]
fn times_have_units() {
    let (too_long, not_understood, unset) = (" longer than for its", "not understood", "not set");
    let too_short = " sooner than store.lock_timeout_secs = 5 says";
    for (time, expected) in [
        ("6 secs", None),
        ("6s", None),
        ("5 secs", None),
        ("4 secs", Some(too_short)),
        ("1 second", Some(too_short)),
        ("6000 msecs", None),
        ("200 ms", Some(too_short)),
        ("0", Some(unset)),
        ("0 secs", Some(unset)),
        ("7 secs", Some(too_long)),
        ("6001 msecs", Some(too_long)),
        ("2 mins", Some(too_long)),
        ("2m", Some(too_long)),
        ("1 hour", Some(too_long)),
        ("1 days", Some(too_long)),
        ("1 weeks", Some(too_long)),
        ("5", Some(not_understood)),
        ("-1 secs", Some(not_understood)),
        ("soon", Some(not_understood)),
        ("99999999999999999999 secs", Some(not_understood)),
        ("18446744073709551615 weeks", Some(not_understood)),
    ] {
        let told = by_imap(&format!("mail_max_lock_timeout = {time}\n"));
        let about = told.lines().find(|line| line.starts_with("mail_max_lock_timeout"));
        match expected {
            None => assert_eq!(about, None, "{time}"),
            Some(text) => assert!(about.is_some_and(|line| line.contains(text)), "{time}: {told}"),
        }
    }
}
