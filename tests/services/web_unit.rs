//! onedrop-web.service on a machine of its own: its user can read no password of deliveries, and
//! serves every page all the same, by a role that may only read; or, with a ledger in a file, as
//! the user whose file it is, from whom the passwords are kept.

use std::fs;
use std::path::Path;

use crate::machine::{Machine, provide};
use crate::page::PROJECT;
use crate::support::{TempRoot, onedrop_path};

/// Where mail is handed over to nobody: `check` is not asked.
const SITE: &str = r#"
[store]
url = "imap://127.0.0.1:143"
password_file = "/etc/onedrop/store.password"
[directory]
domains = ["mail.axial.net"]
url = "postgres://users@/onedrop?host=/run/pg"
query = "SELECT $1"
password_file = "/etc/onedrop/directory.password"
"#;

const ON_POSTGRES: &str = r#"
[ledger]
url = "postgres://onedrop@/onedrop?host=/run/pg"
password_file = "/etc/onedrop/ledger.password"
"#;

const READER: &str = r#"
[web]
ledger_url = "postgres://onedrop_reader@/onedrop?host=/run/pg"
ledger_password_file = "/etc/onedrop/reader.password"
"#;

const POSTGRES: &str = "
    bin=$(echo /usr/lib/postgresql/*/bin)
    install -d -o postgres /srv/pg /run/pg
    echo owner-secret >/srv/owner
    runuser -u postgres -- $bin/initdb -D /srv/pg -U onedrop -E UTF8 --no-locale \
        -A scram-sha-256 --pwfile=/srv/owner --no-sync --no-instructions >/dev/null
    runuser -u postgres -- $bin/pg_ctl -w -s -D /srv/pg -l /srv/pg/log -o \
        \"-k /run/pg -c listen_addresses= -c fsync=off\" start
    export PGPASSWORD=owner-secret PGHOST=/run/pg PGUSER=onedrop
    $bin/createdb onedrop
    for one in ledger:owner-secret store:store-secret directory:directory-secret; do
        echo ${one#*:} | install -o onedrop -g onedrop -m 600 /dev/stdin \
            /etc/onedrop/${one%:*}.password
    done
    runuser -u onedrop -- onedrop migrate
    $bin/psql -q -d onedrop -f /root/grants.sql";

const PATHS: &str = "/ /failures /search?q=scuba /doubts /locks /jobs /hosts";

/// The SQL of docs/web.md for Postgres.
fn grants() -> String {
    let page = crate::support::fixture_text("docs/web.md");
    let (_, rest) = page.split_once("```sql\n-- Postgres").expect("a block");
    let (block, _) = rest.split_once("```").expect("an end");
    block.split_once('\n').expect("lines").1.to_owned()
}

/// Asks for every page as the proxy's user would.
fn pages(machine: &Machine) -> String {
    machine.run(&format!(
        "for path in /healthz {PATHS}; do
             runuser -u proxy -G onedrop-web -- curl -s -w \"$path %{{http_code}}\\n\" \
                 --unix-socket /run/onedrop/web.sock -o /dev/null \"http://localhost$path\"
         done"
    ))
}

fn user(machine: &Machine) -> String {
    let pid = machine.run("systemctl show -P MainPID onedrop-web.service");
    machine.run(&format!("ps -o user:20= -p {}", pid.trim())).trim().to_owned()
}

/// Of these files, those that the service could read, in what it sees of the system.
fn readable(machine: &Machine) -> String {
    machine.run(
        "pid=$(systemctl show -P MainPID onedrop-web.service)
         user=$(ps -o user:20= -p $pid); groups=$(ps -o supgid= -p $pid | tr -d ' ')
         for file in onedrop.toml conf.d/site.toml ledger.password store.password \
                     directory.password reader.password; do
             nsenter -t $pid -m setpriv --reuid $user --regid $user --groups $groups \
                 cat /etc/onedrop/$file >/dev/null 2>&1 && echo $file || true
         done",
    )
}

#[test]
fn the_pages_user_serves_them_all_and_reads_no_password_of_deliveries() {
    let root = TempRoot::new();
    let machine = Machine::boot(|files| {
        provide(files, onedrop_path(), "/usr/bin/onedrop");
        for (from, to) in [
            ("packaging/sysusers.d/onedrop.conf", "/usr/lib/sysusers.d/onedrop.conf"),
            ("packaging/tmpfiles.d/onedrop.conf", "/usr/lib/tmpfiles.d/onedrop.conf"),
            ("systemd/onedrop-web.service", "/usr/lib/systemd/system/onedrop-web.service"),
            ("systemd/onedrop-web.socket", "/usr/lib/systemd/system/onedrop-web.socket"),
            ("conf/systemd/onedrop-web-sqlite.conf", "/root/onedrop-web-sqlite.conf"),
            ("conf/onedrop.toml", "/root/onedrop.toml"),
        ] {
            provide(files, &Path::new(PROJECT).join(from), to);
        }
        for (name, text) in [
            ("grants.sql", grants().as_str()),
            ("site.toml", SITE),
            ("postgres.toml", ON_POSTGRES),
            ("reader.toml", READER),
        ] {
            let file = root.join(name);
            fs::write(&file, text).expect("a file");
            provide(files, &file, &format!("/root/{name}"));
        }
    });
    // As the package has it.
    machine.run("install -g onedrop -m 640 /root/onedrop.toml /etc/onedrop/onedrop.toml");
    let add = |name: &str| {
        let to = format!("/etc/onedrop/conf.d/{name}.toml");
        machine.run(&format!("install -g onedrop -m 640 /root/{name}.toml {to}"));
    };
    let restart = "systemctl daemon-reload; systemctl stop onedrop-web.service; \
         systemctl reset-failed onedrop-web.service onedrop-web.socket || true; \
         systemctl restart onedrop-web.socket";
    add("site");
    add("postgres");
    machine.run(POSTGRES);

    // Without a role of their own, the pages say which password they may not read.
    machine.run("systemctl enable --now onedrop-web.socket");
    machine.run("curl -s -m 1 --unix-socket /run/onedrop/web.sock http://localhost/ || true");
    let says = "ledger.password_file: /etc/onedrop/ledger.password: permission denied to the user \
                onedrop-web; give the pages a role of their own (web.ledger_url)";
    let is_said = format!("journalctl --no-pager -u onedrop-web | grep -qF '{says}'");
    assert!(machine.soon(&is_said), "{}", machine.journal());

    // With one, all pages are served by a user who can read that role's password, and no other.
    add("reader");
    machine.run(
        "echo a-password | install -o onedrop-web -g onedrop-web -m 600 /dev/stdin \
             /etc/onedrop/reader.password",
    );
    machine.run(restart);
    let all = |answers: &str| {
        answers.lines().count() == 8 && answers.lines().all(|line| line.ends_with(" 200"))
    };
    let answers = pages(&machine);
    assert!(all(&answers), "{answers}{}", machine.journal());
    assert_eq!(user(&machine), "onedrop-web");
    assert_eq!(readable(&machine), "onedrop.toml\nconf.d/site.toml\nreader.password\n");
    // Neither do those read others' passwords who only ask the ledger; who needs one says so.
    let as_reader = "PATH=$PATH ONEDROP__LEDGER__PASSWORD_FILE=/etc/onedrop/reader.password \
        ONEDROP__LEDGER__URL='postgres://onedrop_reader@/onedrop?host=/run/pg' \
        runuser -u onedrop-web -G onedrop -- onedrop";
    for command in ["lock list", "jobs list", "trace scuba || test $? = 1"] {
        machine.run(&format!("{as_reader} {command}"));
    }
    let verified = machine.try_run(&format!("{as_reader} verify")).expect("verify");
    let said = String::from_utf8_lossy(&verified.stderr).into_owned();
    assert_eq!(verified.status.code(), Some(75), "{said}");
    let says = "store.password: permission denied to the user onedrop-web";
    assert!(said.contains(says) && !said.contains("directory.password"), "{said}");

    // A ledger in a file is told to be another's; by the drop-in the owner serves it, whom the
    // other passwords are kept from.
    machine.run("rm /etc/onedrop/conf.d/postgres.toml /etc/onedrop/conf.d/reader.toml");
    machine.run(&format!("runuser -u onedrop -- onedrop migrate; {restart}"));
    let answers = pages(&machine);
    // Those that may look for long are begun before it is known.
    for page in ["/healthz", "/", "/locks", "/jobs", "/hosts"] {
        let line = format!("{page} 503\n");
        assert!(answers.contains(&line), "{answers}{}", machine.journal());
    }
    let health = "curl -s --unix-socket /run/onedrop/web.sock http://localhost/healthz";
    let said = machine.run(health);
    assert!(said.contains("/var/lib/onedrop/ledger.db: Permission denied"), "{said}");
    machine.run(&format!(
        "install -D -m 644 /root/onedrop-web-sqlite.conf \
             /etc/systemd/system/onedrop-web.service.d/sqlite.conf; {restart}"
    ));
    let answers = pages(&machine);
    assert!(all(&answers), "{answers}{}", machine.journal());
    assert_eq!(user(&machine), "onedrop");
    let readable = readable(&machine);
    assert!(!readable.contains("store") && !readable.contains("directory"), "{readable}");
    assert!(readable.contains("onedrop.toml\n"), "{readable}");
}
