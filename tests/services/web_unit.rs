//! onedrop-web.service on a machine of its own: its user can read no password of deliveries, and
//! serves every page all the same, by a role that may only read; or, with a ledger in a file, as
//! the user whose file it is, from whom the passwords are kept.

use std::fs;
use std::path::Path;

use crate::machine::{Machine, provide};
use crate::page::PROJECT;
use crate::support::{TempRoot, onedrop_path};

/// Nothing takes mail over here: `check` is not asked.
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
    install -d -o postgres /srv/pg /run/pg /var/run/postgresql
    echo owner-secret >/srv/owner
    runuser -u postgres -- $bin/initdb -D /srv/pg -U onedrop -E UTF8 --no-locale \
        -A scram-sha-256 --pwfile=/srv/owner --no-sync --no-instructions >/dev/null
    runuser -u postgres -- $bin/pg_ctl -w -s -D /srv/pg -l /srv/pg/log -o \
        \"-k /run/pg,/var/run/postgresql -c listen_addresses= -c fsync=off\" start
    export PGPASSWORD=owner-secret PGHOST=/run/pg PGUSER=onedrop
    $bin/createdb onedrop
    for one in ledger:owner-secret store:store-secret directory:directory-secret; do
        echo ${one#*:} | install -o onedrop -g onedrop -m 600 /dev/stdin \
            /etc/onedrop/${one%:*}.password
    done
    runuser -u onedrop -- onedrop migrate
    $bin/psql -q -d onedrop -f /root/grants.sql";

/// Where mail is delivered for once, into the ledger that is in use.
const DELIVERIES: &str = r#"
[store]
url = "maildir:///srv/deliveries/mail"
[directory]
domains = ["mail.axial.net"]
"#;

const PATHS: &str = "/ /failures /search?q=scuba /doubts /locks /jobs /hosts";

/// What follows the first of these in docs/web.md, up to the second.
fn part_of_page(begin: &str, end: &str) -> String {
    let page = crate::support::fixture_text("docs/web.md");
    let (_, rest) = page.split_once(begin).unwrap_or_else(|| panic!("no {begin}"));
    rest.split_once(end).expect("an end").0.to_owned()
}

/// Its SQL for Postgres.
fn grants() -> String {
    let block = part_of_page("```sql\n-- Postgres", "```");
    block.split_once('\n').expect("lines").1.to_owned()
}

/// The same as it says for the socket, and the configuration there.
fn by_socket() -> (String, String) {
    let text = part_of_page("By Postgres' Unix socket", "```toml\n");
    let [_, role, _, name, _, instead_of, _] = text.split('`').collect::<Vec<_>>()[..] else {
        panic!("{text}")
    };
    let rest = grants();
    let rest = rest.split_once(";\n").expect("the first statement").1.replace(instead_of, name);
    let config = part_of_page(&format!("{text}```toml\n"), "```");
    (format!("{role}\n{rest}"), config)
}

/// Delivers two messages, so that a search has a list.
fn deliver(machine: &Machine) {
    machine.run(
        "accept() { runuser -u onedrop -- onedrop migrate --accept-config $*; }
         accept --config /srv/deliveries/onedrop.toml
         runuser -u onedrop -- mkdir -p /srv/deliveries/mail/scuba
         for id in unit another; do
             printf 'From: ann@elsewhere.example\\nMessage-ID: <%s@x.example>\\n\\nhi\\n' $id |
                 runuser -u onedrop -- onedrop deliver --config /srv/deliveries/onedrop.toml \
                     -d scuba@mail.axial.net -f ann@elsewhere.example
         done
         accept",
    );
}

/// The body of a page, as the proxy's user gets it.
fn body(machine: &Machine, path: &str) -> String {
    machine.run(&format!(
        "runuser -u proxy -G onedrop-web -- curl -s --unix-socket /run/onedrop/web.sock \
             'http://localhost{path}'"
    ))
}

/// Each page is the one that was asked for, and has the messages that were delivered.
#[track_caller]
fn what_was_delivered_is_shown(machine: &Machine) {
    const ID: &str = "&#60;unit@x.example&#62;";
    let found = body(machine, "/search?q=scuba");
    let (link, _) = found.split_once(&format!("\">{ID}</a>")).unwrap_or_else(|| panic!("{found}"));
    let story = link.rsplit_once("href=\"").expect("a link").1;
    assert!(story.starts_with("/m/"), "{found}");
    for (path, parts) in [
        ("/healthz", &["ok\n"][..]),
        ("/", &["<h1>Now</h1>", "The last day"]),
        ("/failures", &["<h1>Failures</h1>"]),
        ("/search?q=scuba", &["<h1>Search</h1>", ID, "another@x.example"]),
        ("/search?q=elsewhere&by=sender", &["<h1>Search</h1>", ID, "another@x.example"]),
        (story, &[ID, "<strong>INBOX</strong>", "scuba", "placed", "recorded", "delivered"]),
        ("/doubts", &["<h1>Doubts</h1>"]),
        ("/locks", &["<h1>Locks</h1>"]),
        ("/jobs", &["<h1>Jobs</h1>"]),
        ("/hosts", &["<h1>Hosts</h1>"]),
    ] {
        let page = body(machine, path);
        for part in parts {
            assert!(page.contains(part), "{path}: {part}: {page}");
        }
        assert!(!page.contains("The ledger: "), "{path}: {page}");
        assert_eq!(page.trim_end().ends_with("</html>"), path != "/healthz", "{path}: {page}");
    }
}

/// What `onedrop check` says of the pages to this user.
fn checked(machine: &Machine, user: &str) -> String {
    let told = machine.run(&format!("runuser -u {user} -- onedrop check || true"));
    told.lines().filter(|line| line.contains(" web: ")).map(|line| line.to_owned() + "\n").collect()
}

/// Asks for every page as the proxy's user would.
fn pages(machine: &Machine) -> String {
    machine.run(&format!(
        "ask() {{
             runuser -u proxy -G onedrop-web -- curl -s -w '%{{http_code}}' -o /dev/null \
                 --unix-socket /run/onedrop/web.sock \"http://localhost$1\"
         }}
         for path in /healthz {PATHS}; do
             # A busy machine may not answer before the server gives a client up.
             code=$(ask $path) || code=$(ask $path)
             echo \"$path $code\"
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
            ("deliveries.toml", DELIVERIES),
            ("by_socket.sql", by_socket().0.as_str()),
            ("socket.toml", by_socket().1.as_str()),
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
    machine.run(
        "install -d -o onedrop /srv/deliveries
         install -D -g onedrop -m 640 /root/postgres.toml /srv/deliveries/conf.d/ledger.toml
         install -g onedrop -m 640 /root/deliveries.toml /srv/deliveries/onedrop.toml",
    );
    add("site");
    add("postgres");
    machine.run(POSTGRES);
    deliver(&machine);

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
    what_was_delivered_is_shown(&machine);
    // The check says so, and to whom the password is not as well.
    let password = "web: web.ledger_password_file: /etc/onedrop/reader.password belongs to";
    let ledger = "web: web.ledger_url: postgres:///onedrop";
    let well =
        format!("ok      {password} onedrop-web\nok      {ledger} is the ledger of ledger.url\n");
    assert_eq!(checked(&machine, "root"), well);
    let told = checked(&machine, "onedrop");
    let says = format!(
        "ok      {password} onedrop-web\nok      {ledger} was not asked: \
         web.ledger_password_file: /etc/onedrop/reader.password: permission denied to the user \
         onedrop\n"
    );
    assert_eq!(told, says);
    for owner in ["root", "onedrop"] {
        machine.run(&format!("chown {owner} /etc/onedrop/reader.password"));
        let told = checked(&machine, "root");
        let says = format!(
            "warning {password} {owner}, and onedrop-web.service runs as onedrop-web, who cannot \
             read it: chown onedrop-web /etc/onedrop/reader.password\n"
        );
        assert!(told.starts_with(&says), "{told}");
    }
    machine.run("chown onedrop-web /etc/onedrop/reader.password");
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

    // By the socket, as the page has it: Debian's pg_hba.conf asks no role there for a password.
    machine.run(
        "sed -i '1i local onedrop onedrop-web peer' /srv/pg/pg_hba.conf
         bin=$(echo /usr/lib/postgresql/*/bin)
         runuser -u postgres -- $bin/pg_ctl -s -D /srv/pg reload
         PGPASSWORD=owner-secret $bin/psql -q -v ON_ERROR_STOP=1 -h /run/pg -U onedrop -d onedrop \
             -f /root/by_socket.sql
         install -g onedrop -m 640 /root/socket.toml /etc/onedrop/conf.d/reader.toml
         rm /etc/onedrop/reader.password",
    );
    machine.run(restart);
    let answers = pages(&machine);
    assert!(all(&answers), "{answers}{}", machine.journal());
    assert_eq!(user(&machine), "onedrop-web");
    assert_eq!(readable(&machine), "onedrop.toml\nconf.d/site.toml\n");
    what_was_delivered_is_shown(&machine);
    let told = checked(&machine, "root");
    let says = format!("ok      {ledger} has no password, and lets this user not in, ");
    assert!(told.starts_with(&says) && told.lines().count() == 1, "{told}");

    // The service says that a ledger in a file is another's; by the drop-in the owner serves it,
    // who cannot read the other passwords.
    machine.run("rm /etc/onedrop/conf.d/postgres.toml /etc/onedrop/conf.d/reader.toml");
    machine.run(&format!(
        "rm -r /srv/deliveries/conf.d; runuser -u onedrop -- onedrop migrate; {restart}"
    ));
    deliver(&machine);
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
    what_was_delivered_is_shown(&machine);
    let readable = readable(&machine);
    assert!(!readable.contains("store") && !readable.contains("directory"), "{readable}");
    assert!(readable.contains("onedrop.toml\n"), "{readable}");
}
