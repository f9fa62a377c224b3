//! The configuration as an administrator meets it. Each case is files under `fixtures/config/`; a
//! new one needs no Rust:
//!
//! - `NAME.toml`, or a folder `NAME/` with `onedrop.toml` and `conf.d/`, or neither (a file that is
//!   missing);
//! - `NAME.env`, if wanted: one `VARIABLE=VALUE` per line; `ONEDROP_CONFIG` in it replaces
//!   `--config`;
//! - `NAME.expected`: the whole text of the errors, or `warning: ...` lines, or `fine`;
//! - `files/`: what a case may name; files called `shared*` are readable by everybody (git does not
//!   keep modes).
//!
//! `$DIR` in any of them is the temporary folder the case runs in.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use onedrop::config::{Backfill, Config, LedgerUrl, Loaded, RunIn, StoreUrl, job_keys, known_keys};
use onedrop::directory::Home;
use onedrop::ledger::postgres::PostgresUrl;
use onedrop::store::imap::Tls;
use secrecy::ExposeSecret;

use crate::support::TempRoot;

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/config");
const SHIPPED: &str = include_str!("../../conf/onedrop.toml");

#[test]
fn every_case_says_exactly_what_is_expected() {
    let mut wrong = String::new();
    let mut count = 0;
    for entry in fs::read_dir(FIXTURES).expect("fixtures/config") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|extension| extension == "expected") {
            let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
            let expected = fs::read_to_string(&path).expect("the expected text");
            let actual = Case::prepare(&name).outcome();
            if actual != expected {
                wrong += &format!("=== {name}\n--- expected\n{expected}--- actual\n{actual}");
            }
            count += 1;
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert!(count >= 40, "only {count} cases found");
}

#[test]
fn every_fixture_belongs_to_a_case() {
    for entry in fs::read_dir(FIXTURES).expect("fixtures/config") {
        let path = entry.expect("an entry").path();
        let is_case = path.with_extension("expected").exists() || path.ends_with("files");
        assert!(is_case, "{} has no .expected file", path.display());
    }
}

#[test]
fn no_case_shows_a_secret() {
    for entry in fs::read_dir(FIXTURES).expect("fixtures/config") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|extension| extension == "expected") {
            let text = fs::read_to_string(&path).expect("the expected text");
            assert!(!text.contains("hunter2"), "{}", path.display());
        }
    }
}

#[test]
fn the_shipped_file_states_the_defaults() {
    let loaded = load_text(SHIPPED, &[]).expect("the shipped file");
    let mut config = loaded.config.clone();
    config.jobs.jobs.clear();
    assert_eq!(config, Config::default());
    assert!(loaded.ledger_password().is_none() && loaded.store_password().is_none());
}

/// The program has no job built in: these are text that an administrator may change.
#[test]
fn the_shipped_file_has_these_jobs() {
    let loaded = load_text(SHIPPED, &[]).expect("the shipped file");
    let [purge, settle, verify] = &loaded.config.jobs.jobs[..] else {
        panic!("{:?}", loaded.config.jobs.jobs);
    };
    assert_eq!(verify.name, "verify");
    assert_eq!(verify.schedule.to_string(), "17 3 * * * UTC");
    assert_eq!(verify.command, ["onedrop", "verify", "--since", "48h", "--repair"]);
    assert_eq!(verify.timeout, Some(Duration::from_secs(2 * 3600)));
    assert_eq!(verify.retry, Duration::ZERO, "something that is left stays all day");
    assert_eq!(purge.name, "purge");
    assert_eq!(purge.schedule.to_string(), "47 2 * * * UTC");
    assert_eq!(purge.command, ["onedrop", "purge"]);
    assert_eq!(purge.timeout, Some(Duration::from_secs(4 * 3600)));
    assert_eq!(settle.name, "settle");
    assert_eq!(settle.schedule.to_string(), "every 10m");
    assert_eq!(settle.command, ["onedrop", "settle"]);
    assert_eq!(settle.timeout, Some(Duration::from_secs(3600)));
    let plain = "[jobs.purge]\nschedule = \"47 2 * * *\"\ntimeout = \"4h\"\n\
                 command = [\"onedrop\", \"purge\"]\n\
                 [jobs.settle]\nevery = \"10m\"\ntimeout = \"1h\"\n\
                 command = [\"onedrop\", \"settle\"]\n\
                 [jobs.verify]\nschedule = \"17 3 * * *\"\ntimeout = \"2h\"\nretry = \"0\"\n\
                 command = [\"onedrop\", \"verify\", \"--since\", \"48h\", \"--repair\"]";
    let plain = load_text(plain, &[]).expect("a job").config.jobs.jobs;
    assert_eq!(plain, loaded.config.jobs.jobs, "the other keys have their defaults");
}

#[test]
fn a_job_from_several_files_has_the_last_value_of_each_key() {
    let jobs = Case::prepare("jobs-layers").load().expect("a good configuration").config.jobs;
    assert_eq!(jobs.run_in, RunIn::Server, "from a variable");
    assert_eq!(jobs.timezone, "Europe/London", "from a variable");
    let names: Vec<_> = jobs.jobs.iter().map(|job| job.name.as_str()).collect();
    assert_eq!(names, ["fetch", "prepare", "add.all", "report"], "dependencies first, then names");
    let report = &jobs.jobs[3];
    assert_eq!(report.schedule.to_string(), "0 7 * * 1-5 Europe/London");
    assert_eq!(report.command, ["/usr/local/bin/report", "--all"], "a list is replaced");
    assert_eq!(report.depends_on, ["fetch", "add.all"]);
    assert_eq!(report.backfill, Backfill::All);
    assert_eq!((report.backfill_most, report.enabled), (14, false));
    assert_eq!(report.late, None, "an empty one unsets");
    assert_eq!(report.retry, Duration::ZERO);
    assert_eq!(report.splay, Duration::from_secs(90));
    assert_eq!(jobs.jobs[0].schedule.to_string(), "every 15m");
    assert_eq!(
        jobs.jobs[1].schedule.to_string(),
        "0 0 * * * Antarctica/Troll",
        "as @daily means it"
    );
}

#[test]
fn the_shipped_file_shows_every_key_in_its_section() {
    let mut shown = Vec::new();
    let mut section = "";
    for line in SHIPPED.lines() {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            section = name;
        } else if let Some((key, _)) = uncommented(line).and_then(|line| line.split_once(" = ")) {
            shown.push(format!("{section}.{key}"));
        }
    }
    let of_jobs = job_keys().map(|(key, _)| key).filter(|key| *key != "every");
    let of_jobs = of_jobs.map(|key| format!("jobs.verify.{key}"));
    let all: Vec<String> = known_keys().map(str::to_owned).chain(of_jobs).collect();
    // The other jobs show only what they set.
    let purge = ["schedule", "command", "timeout"].map(|key| format!("jobs.purge.{key}"));
    let settle = ["every", "command", "timeout"].map(|key| format!("jobs.settle.{key}"));
    assert_eq!(shown, [all, purge.to_vec(), settle.to_vec()].concat());
    assert!(SHIPPED.contains("#   every = \""), "an example; beside schedule it is an error");
}

#[test]
fn the_shipped_file_parses_with_its_commented_keys() {
    let text: String =
        SHIPPED.lines().map(|line| uncommented(line).unwrap_or(line).to_owned() + "\n").collect();
    let why = load_text(&text, &[]).expect_err("its files are not there").to_string();
    let is_a_file = |line: &str| line.ends_with(": no such file") || line.contains("credentials");
    // The userdb is not for the shipped list of domains, which is empty, nor is LMTP for Maildirs.
    let is_known = |line: &str| {
        is_a_file(line)
            || line.contains("without directory.domains")
            || line.contains("store.lmtp: needs a store.url of imap://")
    };
    assert!(why.lines().all(|line| is_known(line) || line.contains("there is no job")), "{why}");
    let (sections, _) = text.split_once("[jobs.verify]").expect("a job");
    let config: Config = toml::from_str(sections).expect("the shipped file, uncommented");
    assert_eq!(
        config.ledger.password_file.as_deref(),
        Some(Path::new("/etc/onedrop/ledger.password"))
    );
    assert_eq!(config.ledger.ca_file.as_deref(), Some(Path::new("/etc/onedrop/ledger-ca.pem")));
    assert_eq!(
        config.store.password_file.as_deref(),
        Some(Path::new("/etc/onedrop/store.password"))
    );
    assert_eq!(config.store.ca_file.as_deref(), Some(Path::new("/etc/onedrop/store-ca.pem")));
    assert!(config.directory.query.is_some());
    assert_eq!(config.deliver.via.as_deref(), Some(Path::new("/run/onedrop/lmtp.sock")));
    assert_eq!(config.lmtp.metrics, "127.0.0.1:9725".parse().ok());
}

/// Three locks may have to be waited for. A server that answers in time has left no append that
/// comes to its end later.
#[test]
fn the_dovecot_we_ship_waits_for_a_lock_for_less_than_we_wait_for_an_answer() {
    let shipped = include_str!("../../conf/dovecot/onedrop.conf");
    let secs = shipped.lines().find_map(|line| {
        line.trim().strip_prefix("mail_max_lock_timeout = ")?.strip_suffix(" secs")
    });
    let secs: u64 = secs.and_then(|secs| secs.parse().ok()).expect("seconds");
    assert!(secs > 0 && 3 * secs < Config::default().limits.answer_secs, "{secs} s");
}

#[test]
fn the_demo_needs_no_server() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("conf/demo.toml");
    // Its heading has README's first command.
    let command = "cargo run -- deliver --config conf/demo.toml \\\n";
    for page in ["conf/demo.toml", "README.md"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(page);
        let text = fs::read_to_string(path).expect("a page");
        assert!(text.contains(command), "{page}");
    }
    let config = Config::load_from(Some(&path), std::iter::empty()).expect("the demo").config;
    assert_eq!(config.ledger.url, LedgerUrl::Sqlite { path: "demo/ledger.db".into() });
    assert_eq!(config.store.kind(), StoreUrl::Maildir { root: "demo/mail".into() });
    assert_eq!(config.directory.domains, ["mail.axial.net"]);
    assert_eq!(
        config.directory.accounts,
        BTreeMap::from([("lisa@gmail.com".to_owned(), Home::of("lisa"))])
    );
    assert_eq!(config.sent.authserv_id, "mail.axial.net");
}

#[test]
fn later_layers_override_earlier_ones_and_join_accounts() {
    let loaded = Case::prepare("layers").load().expect("a good configuration");
    let config = &loaded.config;
    assert_eq!(config.sent.mailbox, "from the variable");
    assert_eq!(config.lock.lease_secs, 301, "conf.d/20 is after conf.d/10");
    assert_eq!(config.lock.wait_secs, 4, "the main file's other keys stay");
    assert_eq!(config.directory.domains, ["second.example"], "a list is replaced");
    let accounts: Vec<_> = config
        .directory
        .accounts
        .iter()
        .map(|(key, home)| format!("{key}={}", home.account))
        .collect();
    assert_eq!(
        accounts,
        ["a.b@main.example=kept", "c[0]@conf.example=added", "lisa@main.example=replaced"]
    );
    let names: Vec<_> =
        loaded.files.iter().map(|file| file.file_name().unwrap_or_default().to_owned()).collect();
    assert_eq!(names, ["onedrop.toml", "10-first.toml", "20-second.toml"]);
}

#[test]
fn variables_keep_what_is_written_and_ignore_case() {
    let loaded = load_text(
        "[ledger]\npassword_file = \"/nonexistent\"",
        &[
            ("ONEDROP__STORE__USER", "007"),
            ("onedrop__sent__AUTHSERV_ID", "1e5"),
            ("ONEDROP__LEDGER__KEEP_RAW", "TRUE"),
            ("ONEDROP__LEDGER__PASSWORD_FILE", ""),
            ("ONEDROP__LIMITS__MESSAGE_BYTES", "9223372036854775807"),
            ("ONEDROP__DIRECTORY__DOMAINS", "A.example, b.example,"),
            ("ONEDROP__DIRECTORY__ACCOUNT", "{address}"),
            ("ONEDROP__DIRECTORY__RECIPIENT_DELIMITER", ""),
            ("ONEDROP__LMTP__LISTEN", "127.0.0.1:24, unix:/run/a.sock"),
            ("ONEDROP__DELIVER__VIA", ""),
            ("UNRELATED", "x"),
        ],
    )
    .expect("good variables");
    let config = loaded.config;
    assert_eq!(config.store.user, "007");
    assert_eq!(
        config.lmtp.listen,
        ["127.0.0.1:24", "unix:/run/a.sock"].map(|place| place.parse().expect("a place"))
    );
    assert_eq!(config.deliver.via, None, "empty: not set");
    assert_eq!(config.sent.authserv_id, "1e5");
    assert!(config.ledger.keep_raw);
    assert_eq!(config.ledger.password_file, None, "an empty path unsets");
    assert_eq!(config.limits.message_bytes, i64::MAX as u64);
    assert_eq!(config.directory.domains, ["a.example", "b.example"]);
    assert_eq!(config.directory.account.to_string(), "{address}");
    assert_eq!(config.directory.recipient_delimiter, "");
}

#[test]
fn a_password_is_read_but_never_shown() {
    let loaded = Case::prepare("imap-fine").load().expect("a good configuration");
    let password = loaded.store_password().expect("a password");
    assert_eq!(password.expose_secret(), " hunter2 ", "only the newline goes");
    assert!(!format!("{loaded:?}").contains("hunter2"));
}

#[test]
fn urls_are_parsed_once() {
    let ledger = |url: &str| url.parse::<LedgerUrl>().map_err(|error| error.to_string());
    let sqlite = |path: &str| Ok(LedgerUrl::Sqlite { path: path.into() });
    let postgres = |url: &str| PostgresUrl::parse(url).map(|url| LedgerUrl::Postgres { url });
    assert_eq!(ledger("sqlite:///var/x.db"), sqlite("/var/x.db"));
    assert_eq!(ledger("sqlite:/var/x.db"), sqlite("/var/x.db"));
    assert_eq!(ledger("sqlite:demo/x.db"), sqlite("demo/x.db"));
    for (url, shown) in [
        (
            "postgres://o@a:5432,b:5433/o?target_session_attrs=read-write",
            "postgres://a:5432,b:5433/o",
        ),
        ("postgresql:///o?host=/run/pg&user=o", "postgres:///o"),
    ] {
        assert_eq!(ledger(url), postgres(url));
        assert_eq!(ledger(url).map(|ledger| ledger.to_string()).as_deref(), Ok(shown));
    }
    let store = |url: &str| url.parse::<StoreUrl>().map_err(|error| error.to_string());
    let imap = |host: &str, port, tls| Ok(StoreUrl::Imap { host: host.to_owned(), port, tls });
    assert_eq!(store("maildir:///var/mail"), Ok(StoreUrl::Maildir { root: "/var/mail".into() }));
    assert_eq!(store("imap://mail.example"), imap("mail.example", 143, Tls::StartTls));
    assert_eq!(store("imaps://mail.example/"), imap("mail.example", 993, Tls::Implicit));
    assert_eq!(store("imap://127.0.0.1:10143"), imap("127.0.0.1", 10143, Tls::StartTls));
    assert_eq!(store("imaps://[2001:db8::1]"), imap("2001:db8::1", 993, Tls::Implicit));
    assert_eq!(store("imap://[::1]:1143"), imap("::1", 1143, Tls::StartTls));
    assert_eq!(
        store("imap://[::1]:1143").map(|store| store.to_string()).as_deref(),
        Ok("imap://[::1]:1143")
    );
}

#[test]
fn bad_urls_are_refused_without_showing_them() {
    let ledgers = [
        "",
        "hunter2",
        "/var/lib/hunter2.db",
        "sqlite:",
        "sqlite:///",
        "sqlite://hunter2/x.db",
        "sqlite:///var/hunter2/",
        "sqlite::memory:",
        "sqlite:file:hunter2",
        "sqlite:///x.db?password=hunter2",
        "postgres:hunter2",
        "postgres://u:hunter2@h/db",
        "postgres://u:@hunter2/db",
        "postgres://u:hun@ter2@h/db",
        "postgres://u@h/db?password=hunter2",
        "postgres://u@h/db?a=b&%70assWord=hunter2",
        "postgres://u@h/db?sslpassword=hunter2",
        "host=h user=u password=hunter2",
        "host=h password=hunter2://",
        "postgers://u:hunter2@h/db",
        "mysql://u:hunter2@h/db",
        "postgres://h/\nhunter2",
    ];
    for url in ledgers {
        let error = url.parse::<LedgerUrl>().expect_err(url).to_string();
        assert!(!error.contains("hunter2"), "{url}: {error}");
    }
    let stores = [
        "imap:hunter2",
        "imap://",
        "imap://u:hunter2@h",
        "imaps://hunter2@h",
        "imap://h:0",
        "imap://h:65536",
        "imap://h:",
        "imap://h:+143",
        "imap://h/INBOX",
        "imap://::1",
        "imap://[::1",
        "imap://[hunter2]",
        "imap://[::1]143",
        "imap://h hunter2",
        "imap://:143",
        "maildir://hunter2/mail",
        "maildir:",
        "pop3://u:hunter2@h",
    ];
    for url in stores {
        let error = url.parse::<StoreUrl>().expect_err(url).to_string();
        assert!(!error.contains("hunter2"), "{url}: {error}");
    }
}

#[test]
fn starttls_applies_to_imap_only() {
    let kind = |url: &str, starttls| {
        let mut store = Config::default().store;
        store.url = url.parse().expect("a good URL");
        store.starttls = starttls;
        match store.kind() {
            StoreUrl::Imap { tls, .. } => Some(tls),
            StoreUrl::Maildir { .. } => None,
        }
    };
    assert_eq!(kind("imap://localhost", true), Some(Tls::StartTls));
    assert_eq!(kind("imap://localhost", false), Some(Tls::None));
    assert_eq!(kind("imaps://localhost", false), Some(Tls::Implicit));
    assert_eq!(kind("maildir:///m", false), None);
}

#[test]
fn the_first_line_is_short_and_counts_the_rest() {
    let one = load_text("[store]\nusr = 1", &[]).expect_err("an unknown key").first_line();
    assert!(one.starts_with("configuration: /"), "{one}");
    assert!(
        one.ends_with("/onedrop.toml:2:1: unknown key store.usr (did you mean store.user?)"),
        "{one}"
    );
    let three = load_text("[store]\nusr = 1\nurl = 1\nuser = 1", &[])
        .expect_err("three problems")
        .first_line();
    assert!(three.ends_with(" (and 2 more; run: onedrop check)"), "{three}");
    let missing = PathBuf::from(format!("/nonexistent/{}\n/onedrop.toml", "ü".repeat(300)));
    let environment = [("ONEDROP__STORE__USR".into(), "x".into())];
    let long = Config::load_from(Some(&missing), environment.into_iter())
        .expect_err("no such file")
        .first_line();
    assert!(long.len() < 200 && long.ends_with("... (and 1 more; run: onedrop check)"), "{long}");
    assert!(!long.contains('\n'));
}

#[test]
fn what_chose_the_file_is_named() {
    let error = |explicit: Option<&str>, variable: Option<&str>| {
        let environment = variable.map(|value| ("ONEDROP_CONFIG".into(), value.into()));
        Config::load_from(explicit.map(Path::new), environment.into_iter())
            .expect_err("no such file")
            .to_string()
    };
    assert_eq!(
        error(Some("/no/a.toml"), Some("/no/b.toml")),
        "/no/a.toml: no such file (named by --config)"
    );
    assert_eq!(
        error(None, Some("/no/b.toml")),
        "/no/b.toml: no such file (named by ONEDROP_CONFIG)"
    );
}

#[test]
fn only_regular_files_are_read() {
    for path in ["/dev/null", "/proc/self/fd"] {
        let error = Config::load_from(Some(Path::new(path)), std::iter::empty())
            .expect_err("not a file")
            .to_string();
        assert_eq!(error, format!("{path}: not a regular file (named by --config)"));
    }
}

/// One case in a temporary folder of its own.
struct Case {
    folder: TempRoot,
    explicit: Option<PathBuf>,
    environment: Vec<(OsString, OsString)>,
}

impl Case {
    fn prepare(name: &str) -> Self {
        let folder = TempRoot::new();
        let fixtures = Path::new(FIXTURES);
        let copy = |from: &Path, to: &Path| copy_with_dir(from, to, &folder);
        copy(&fixtures.join("files"), &folder.join("files"));
        let (single, whole) = (format!("{name}.toml"), fixtures.join(name));
        let main = if whole.is_dir() {
            copy(&whole, &folder);
            folder.join("onedrop.toml")
        } else {
            if fixtures.join(&single).exists() {
                copy(&fixtures.join(&single), &folder.join(&single));
            }
            folder.join(single)
        };
        let mut environment = Vec::new();
        if let Ok(lines) = fs::read(fixtures.join(format!("{name}.env"))) {
            let lines = with_dir(&lines, &folder);
            for line in lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
                let equals = line.iter().position(|byte| *byte == b'=').expect("VARIABLE=VALUE");
                let text = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
                environment.push((text(&line[..equals]), text(&line[equals + 1..])));
            }
        }
        let chosen = environment.iter().any(|(name, _)| name == "ONEDROP_CONFIG");
        Self { explicit: (!chosen).then_some(main), folder, environment }
    }

    fn load(&self) -> Result<Loaded, onedrop::config::ConfigErrors> {
        Config::load_from(self.explicit.as_deref(), self.environment.iter().cloned())
    }

    fn outcome(&self) -> String {
        let text = match self.load() {
            Err(errors) => format!("{errors}\n"),
            Ok(loaded) if loaded.warnings.is_empty() => "fine\n".to_owned(),
            Ok(loaded) => {
                loaded.warnings.iter().map(|warning| format!("warning: {warning}\n")).collect()
            }
        };
        text.replace(self.folder.to_str().expect("a UTF-8 path"), "$DIR")
    }
}

fn load_text(
    text: &str,
    environment: &[(&str, &str)],
) -> Result<Loaded, onedrop::config::ConfigErrors> {
    let folder = TempRoot::new();
    let path = folder.join("onedrop.toml");
    fs::write(&path, text).expect("a written file");
    Config::load_from(
        Some(&path),
        environment.iter().map(|(name, value)| (name.into(), value.into())),
    )
}

/// A key's line, also when it is commented out, as `# key = value`; examples are indented deeper.
fn uncommented(line: &str) -> Option<&str> {
    let line = line.strip_prefix("# ").unwrap_or(line);
    let (key, _) = line.split_once(" = ")?;
    key.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_').then_some(line)
}

fn copy_with_dir(from: &Path, to: &Path, folder: &Path) {
    if from.is_dir() {
        fs::create_dir_all(to).expect("a folder");
        for entry in fs::read_dir(from).expect("a folder") {
            let name = entry.expect("an entry").file_name();
            copy_with_dir(&from.join(&name), &to.join(&name), folder);
        }
        return;
    }
    fs::write(to, with_dir(&fs::read(from).expect("a fixture"), folder)).expect("a written file");
    let shared = to.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"shared"));
    fs::set_permissions(to, fs::Permissions::from_mode(if shared { 0o644 } else { 0o600 }))
        .expect("a mode");
}

/// Replaces `$DIR` in bytes, which need not be text.
fn with_dir(bytes: &[u8], folder: &Path) -> Vec<u8> {
    let mut replaced = Vec::new();
    let mut rest = bytes;
    while let Some(at) = rest.windows(4).position(|window| window == b"$DIR") {
        replaced.extend_from_slice(&rest[..at]);
        replaced.extend_from_slice(folder.as_os_str().as_encoded_bytes());
        rest = &rest[at + 4..];
    }
    replaced.extend_from_slice(rest);
    replaced
}
