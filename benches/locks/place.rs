//! A ledger of each engine, and what the disk and the server take for the least that they do.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use postgres::{Client, NoTls};

use crate::process::program;
use crate::support::mariadb::Mariadb;
use crate::support::pgbouncer::PgBouncer;
use crate::support::postgres::Postgres;
use crate::support::{TempRoot, onedrop_path, run};
use crate::table::Times;

const PROBES: usize = 50;

pub struct Place {
    pub root: TempRoot,
    pub postgres: Postgres,
    pub sqlite: PathBuf,
    pub socket: PathBuf,
    pub pooled: PathBuf,
    pub mariadb: PathBuf,
    _bouncer: PgBouncer,
    _mariadb: Mariadb,
}

impl Place {
    pub fn new() -> Place {
        let (root, postgres) = (TempRoot::new(), Postgres::start());
        let config = |name: &str, ledger: &str| {
            let folder = root.join(name);
            fs::create_dir(&folder).expect("a folder");
            let store = root.join("mail").display().to_string();
            let text = format!(
                "{ledger}[store]\nurl = \"maildir://{store}\"\n\
                 [directory]\ndomains = [\"bench.example\"]\n[deliver]\ntrial = true\n"
            );
            let path = folder.join("onedrop.toml");
            fs::write(&path, text).expect("a configuration");
            let args = ["migrate", "--config", &path.display().to_string()];
            run(program(onedrop_path(), &args).stdin(Stdio::null()));
            path
        };
        let at = |url: &str| format!("[ledger]\nurl = \"{url}\"\n");
        let file = format!("sqlite://{}", root.join("ledger.db").display());
        let sqlite = config("sqlite", &at(&file));
        let socket = config("socket", &at(&postgres.url_socket()));
        let (bouncer, server) = (PgBouncer::start(&postgres), Mariadb::start());
        let pooled = config("pooled", &at(&bouncer.url()));
        let mariadb = config("mariadb", &server.toml());
        // PgBouncer keeps what `migrate` has used.
        let close =
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'onedrop'";
        postgres.psql(close);
        Place {
            root,
            postgres,
            sqlite,
            socket,
            pooled,
            mariadb,
            _bouncer: bouncer,
            _mariadb: server,
        }
    }

    pub fn with_lock(&self, config: &Path, args: &[&str]) -> Command {
        let config = config.display().to_string();
        let args = [&["--config", &config, "with-lock", "n"], args].concat();
        let mut command = program(onedrop_path(), &args);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command
    }

    /// A `with-lock` whose command ends, and says when, once its standard input ends; on this host
    /// or on another one.
    pub fn holder(&self, config: &Path, is_here: bool) -> Child {
        let script = "echo held; read line; exec date +%s%N";
        let mut command = self.with_lock(config, &["--wait", "60s", "--", "sh", "-c", script]);
        if !is_here {
            let enters = "echo mx2 >/proc/sys/kernel/hostname; exec \"$@\"";
            let mut there = program("unshare", &["--uts", "sh", "-c", enters, "sh"]);
            there.arg(command.get_program()).args(command.get_args());
            command = there;
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command.spawn().expect("our program")
    }

    /// One more block at a file's end, synced.
    pub fn sync(&self) -> Times {
        let mut options = OpenOptions::new();
        let mut file = options.create(true).append(true).open(self.root.join("probe")).expect("it");
        let mut one = || {
            let began = Instant::now();
            file.write_all(&[1; 4096]).and_then(|()| file.sync_data()).expect("a disk");
            began.elapsed()
        };
        Times::of((0..PROBES).map(|_| one()).collect())
    }

    pub fn session(&self) -> Client {
        let (host, port) = (self.postgres.socket_dir(), self.postgres.port());
        let to = format!("host={} port={port} user=onedrop dbname=onedrop", host.display());
        Client::connect(&to, NoTls).expect("a session")
    }

    pub fn query(&self) -> Times {
        let mut session = self.session();
        let mut one = || {
            let began = Instant::now();
            session.simple_query("SELECT 1").expect("an answer");
            began.elapsed()
        };
        Times::of((0..PROBES).map(|_| one()).collect())
    }

    /// A session's first answer, from connecting to its end.
    pub fn first_query(&self) -> Times {
        let one = || {
            let began = Instant::now();
            self.session().simple_query("SELECT 1").expect("an answer");
            began.elapsed()
        };
        Times::of((0..PROBES).map(|_| one()).collect())
    }

    /// What all figures are to be seen beside.
    pub fn print_probes(&self) {
        println!("| the least there is | median ms | least ms |\n|---|---:|---:|");
        for (name, times) in [
            ("4 KB more in a file, synced", self.sync()),
            ("`SELECT 1` in a session with Postgres", self.query()),
            ("the same with a session of its own", self.first_query()),
        ] {
            println!("| {name} | {:.2} | {:.2} |", times.median_ms(), times.least_ms());
        }
        println!();
    }
}

/// Runs it to its end and returns how long it took.
pub fn timed(command: &mut Command) -> Duration {
    let began = Instant::now();
    let status = command.status().expect("a program");
    let took = began.elapsed();
    assert!(status.success(), "{command:?}: {status}");
    took
}
