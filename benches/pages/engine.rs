//! A ledger full of mail in one of the engines, with a server for it, and the configuration of what
//! looks at it.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use crate::fill::Sink;
use crate::rows::{Engine, Month, Rows, hosts};
use crate::support::disk::SmallDisk;
use crate::support::dovecot::MAIL_USER;
use crate::support::mariadb::Mariadb;
use crate::support::postgres::Postgres;
use crate::support::{TempRoot, chown_recursive, onedrop_path, set_mode, unix_user};

/// The ledger's server.
enum Running {
    Postgres(Postgres),
    Mariadb(Mariadb),
    /// The ledger's file.
    Sqlite(PathBuf),
}

/// An engine with a month of mail, and `onedrop web` on it.
pub struct Site {
    ledger: Running,
    pub config: PathBuf,
    program: PathBuf,
    pub messages: i64,
    /// The last attempt's number.
    pub attempts: i64,
    _mail: SmallDisk,
    _root: TempRoot,
}

/// Messages that are put into tables at a time.
const AT_ONCE: i64 = 100_000;

/// Memory for half of the ledger; the system has the rest of it in its own.
const POSTGRES: &str = "shared_buffers = 512MB\nmax_wal_size = 8GB\n";

/// These make it as durable as Postgres is by default.
const MARIADB: [&str; 5] = [
    "--innodb-flush-log-at-trx-commit=1",
    "--innodb-flush-method=fsync",
    "--innodb-log-file-size=1G",
    "--innodb-buffer-pool-size=512M",
    "--skip-log-bin",
];

const JOBS: [&str; 5] = ["report", "billing", "import", "cleanup", "statistics"];
/// Of each.
const RUNS: usize = 5;
const LOCKS: usize = 20;

impl Site {
    pub fn filled(engine: Engine, messages: i64) -> Site {
        let began = Instant::now();
        let root = TempRoot::new();
        let folder = root.dir_for("etc", MAIL_USER, 0o755);
        let data = root.dir_for("data", MAIL_USER, 0o755);
        let mail = SmallDisk::mount(&root.join("mail"), "2g", MAIL_USER);
        // Where the server is started from, too.
        let program = folder.join("onedrop");
        fs::copy(onedrop_path(), &program).expect("a copy of the program");
        set_mode(&program, 0o755);
        let ledger = match engine {
            Engine::Postgres => Running::Postgres(Postgres::start_with(POSTGRES)),
            Engine::Mariadb => Running::Mariadb(Mariadb::start_with(&MARIADB)),
            Engine::Sqlite => Running::Sqlite(data.join("ledger.db")),
        };
        let url = match &ledger {
            Running::Postgres(postgres) => format!("url = \"{}\"\n", postgres.url_socket()),
            Running::Mariadb(mariadb) => {
                let password = folder.join("ledger.password");
                fs::write(&password, mariadb.password()).expect("a file");
                set_mode(&password, 0o600);
                let password = password.display();
                format!("url = \"{}\"\npassword_file = \"{password}\"\n", mariadb.url_socket())
            }
            Running::Sqlite(path) => format!("url = \"sqlite://{}\"\n", path.display()),
        };
        let config = folder.join("onedrop.toml");
        fs::write(&config, configuration(&url, &root.join("mail"))).expect("a configuration");
        chown_recursive(&folder, MAIL_USER);
        let mut site =
            Site { ledger, config, program, messages, attempts: 0, _mail: mail, _root: root };
        site.run(&["migrate"]);
        site.fill(engine, &data);
        site.locks_and_jobs();
        println!("\n{messages} messages on record after {} s", began.elapsed().as_secs());
        site
    }

    fn fill(&mut self, engine: Engine, folder: &Path) {
        let mut month = Month::new(engine, self.messages);
        let mut sink = match &self.ledger {
            Running::Postgres(postgres) => Sink::Postgres(postgres, folder),
            Running::Mariadb(mariadb) => Sink::Mariadb(mariadb, folder),
            Running::Sqlite(path) => {
                let ledger = rusqlite::Connection::open(path).expect("the ledger");
                ledger.execute_batch("PRAGMA synchronous = OFF").expect("a setting");
                Sink::Sqlite(ledger)
            }
        };
        for first in (1..=self.messages).step_by(AT_ONCE as usize) {
            let mut all = Rows::default();
            for number in first..=self.messages.min(first + AT_ONCE - 1) {
                let rows = month.message(number);
                all.messages.extend(rows.messages);
                all.copies.extend(rows.copies);
                all.attempts.extend(rows.attempts);
                all.unsettled.extend(rows.unsettled);
            }
            // The columns of all come from the first.
            all.attempts.sort_by_key(|row| std::cmp::Reverse(row.len()));
            sink.fill("onedrop_message", &all.messages);
            sink.fill("onedrop_copy", &all.copies);
            sink.fill("onedrop_attempt", &all.attempts);
            sink.fill("onedrop_unsettled", &all.unsettled);
        }
        sink.fill("onedrop_host", &hosts(engine));
        self.attempts = month.attempt;
        self.settle(sink);
    }

    /// What a server that has run for a month has done.
    fn settle(&self, sink: Sink<'_>) {
        match (sink, &self.ledger) {
            (Sink::Sqlite(ledger), Running::Sqlite(path)) => {
                let since = "UPDATE onedrop_ledger SET remembers_since = -1e15, config = NULL";
                ledger.execute(since, []).expect("its row");
                drop(ledger);
                chown_recursive(path.parent().expect("its folder"), MAIL_USER);
            }
            (_, Running::Postgres(postgres)) => {
                for table in ["message", "copy", "attempt"] {
                    postgres.psql(&format!(
                        "SELECT setval(pg_get_serial_sequence('onedrop_{table}', 'id'),
                                       (SELECT max(id) FROM onedrop_{table}))"
                    ));
                }
                postgres.remember_for_ever();
                postgres.psql("VACUUM (ANALYZE)");
                postgres.psql("CHECKPOINT");
            }
            (_, Running::Mariadb(mariadb)) => {
                mariadb.remember_for_ever();
                mariadb.sql(
                    "ANALYZE TABLE onedrop_message, onedrop_copy, onedrop_attempt,
                         onedrop_unsettled",
                );
            }
            _ => unreachable!("each ledger has its own sink"),
        }
    }

    fn locks_and_jobs(&self) {
        for at in 0..LOCKS {
            self.run(&["with-lock", &format!("nightly-{at}"), "--", "/bin/true"]);
        }
        for job in JOBS {
            for _ in 0..RUNS {
                self.run(&["jobs", "run", "--force", job]);
            }
        }
    }

    /// The program, as the mail's user, with its configuration.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        let (name, rest) = args.split_first().expect("a command");
        let user = unix_user(MAIL_USER);
        command.uid(user.uid.as_raw()).gid(user.gid.as_raw()).current_dir("/").env_clear();
        command.env("PATH", "/usr/sbin:/usr/bin:/bin").stdin(Stdio::null());
        // Of two words, some of them.
        let (name, rest) = match (*name, rest.split_first()) {
            ("jobs", Some((second, rest))) => (vec!["jobs", *second], rest),
            (name, _) => (vec![name], rest),
        };
        command.args(name).arg("--config").arg(&self.config).args(rest);
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        let output = self.command(args).output().expect("onedrop");
        assert!(output.status.success(), "{args:?}: {output:?}");
        output
    }

    pub fn program(&self) -> &Path {
        &self.program
    }
}

fn configuration(ledger: &str, mail: &Path) -> String {
    let mut text = format!(
        "[ledger]\n{ledger}[store]\nurl = \"maildir://{}\"\n[directory]\ndomains = \
         [\"mail.axial.net\"]\n[deliver]\ntrial = true\n[web]\nshow_subjects = true\n",
        mail.display()
    );
    for job in JOBS {
        text += &format!("[jobs.{job}]\nschedule = \"0 3 * * *\"\ncommand = [\"/bin/true\"]\n");
    }
    text
}
