//! The set-up in README and on the pages, word by word: every command is run as root, on a machine
//! of its own with a real systemd, Postfix, Postgres and Dovecot. README's begins with the package;
//! the other pages are followed after an installation from source. Only the compiler is replaced:
//! `cargo build --release` puts the program there that the tests have built.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::machine::{Machine, provide};
use crate::package::packed;
use crate::page::{PROJECT, Page};
use crate::support::onedrop_path;

/// The pages whose commands tests run, all of them. README's trial is run by `readme.rs`, the tour
/// by `tour.rs`, those on moving locks by `tests/locks/moving.rs`.
pub const FOLLOWED: [&str; 16] = [
    "README.md",
    "docs/install.md",
    "docs/jobs-ticking.md",
    "docs/locks.md",
    "docs/moving-civimail.md",
    "docs/moving-crontabber.md",
    "docs/moving-locks.md",
    "docs/moving-symfony.md",
    "docs/moving.md",
    "docs/set-up-filters.md",
    "docs/set-up-imap.md",
    "docs/set-up-lmtp.md",
    "docs/set-up-maildirs.md",
    "docs/set-up-mailbox-command.md",
    "docs/tour.md",
    "docs/tour-more.md",
];

/// Where the checkout is on the machine.
const CHECKOUT: &str = "/root/onedrop";

/// README's set-up.
pub const README_SET_UP: &str = "Set it up";

/// The sections of the page on installing that have commands to run.
const NEW_POSTFIX: &str = "A new Postfix";
const FROM_SOURCE: &str = "From source";

/// A machine with the project's files and what every site has: a Postfix that takes mail for the
/// domain.
fn machine() -> Machine {
    machine_with(|_| {})
}

fn machine_with(more: impl FnOnce(&Path)) -> Machine {
    let machine = Machine::boot(|files| {
        more(files);
        for folder in ["conf", "systemd", "fixtures/mail"] {
            provide_folder(files, folder);
        }
        provide(files, onedrop_path(), "/root/built/onedrop");
        let cargo = files.join("usr/bin/cargo");
        fs::create_dir_all(cargo.parent().expect("a folder")).expect("a folder");
        fs::write(&cargo, CARGO).expect("a script");
        fs::set_permissions(&cargo, Permissions::from_mode(0o755)).expect("a mode");
    });
    machine.run(POSTFIX);
    new_postfix(&machine);
    machine.run("systemctl start postfix@-");
    machine
}

fn provide_folder(files: &Path, folder: &str) {
    for entry in fs::read_dir(Path::new(PROJECT).join(folder)).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = format!("{folder}/{}", path.file_name().expect("a name").to_string_lossy());
        match path.is_dir() {
            true => provide_folder(files, &name),
            false => drop(provide(files, &path, &format!("{CHECKOUT}/{name}"))),
        }
    }
}

const CARGO: &str = "#!/bin/sh
set -e
[ \"$*\" = 'build --release' ]
mkdir -p target/release
cp /root/built/onedrop target/release/onedrop
";

/// Debian's master.cf, and a site's main.cf before it takes mail for a domain.
const POSTFIX: &str = "
cp /usr/share/postfix/master.cf.dist /etc/postfix/master.cf
cat >/etc/postfix/main.cf <<'EOF'
compatibility_level = 3.6
myhostname = mx.mail.axial.net
mydestination =
inet_interfaces = loopback-only
maillog_file = /var/log/mail.log
EOF
";

/// Debian's own way to a cluster and its service.
const POSTGRES: &str = "
rm -rf /etc/postgresql/* /var/lib/postgresql/*/*
version=$(ls /usr/lib/postgresql | tail -n 1)
pg_createcluster $version main >/dev/null
systemctl start postgresql@$version-main
until runuser -u postgres -- psql -qc 'SELECT 1' >/dev/null 2>&1; do sleep 0.1; done
";

/// The user who owns the mail.
const VMAIL: &str = "
useradd --system --home-dir /srv/mail --shell /usr/sbin/nologin vmail
install -d -o vmail -g vmail -m 700 /srv/mail
";

/// A Dovecot whose users are in a file and whose mail is vmail's, with Debian's folder conf.d. Its
/// LMTP server listens where Postfix can use it.
const DOVECOT: &str = "
rm -rf /etc/dovecot/conf.d /etc/dovecot/local.conf
mkdir /etc/dovecot/conf.d
cat >/etc/dovecot/dovecot.conf <<'EOF'
protocols = imap lmtp
listen = 127.0.0.1, ::1
ssl = no
!include conf.d/*.conf
EOF
cat >/etc/dovecot/conf.d/10-site.conf <<'EOF'
mail_location = maildir:/srv/mail/%u/Maildir
mail_uid = vmail
mail_gid = vmail
first_valid_uid = 100
namespace inbox {
  inbox = yes
}
passdb {
  driver = passwd-file
  args = /etc/dovecot/users
}
userdb {
  driver = static
  args = uid=vmail gid=vmail home=/srv/mail/%u
}
EOF
cat >/etc/dovecot/conf.d/20-lmtp.conf <<'EOF'
service lmtp {
  unix_listener /var/spool/postfix/private/dovecot-lmtp {
    mode = 0600
    user = postfix
    group = postfix
  }
}
protocol lmtp {
  auth_username_format = %n
}
EOF
printf 'scuba:{PLAIN}x\\ndoug:{PLAIN}x\\n' >/etc/dovecot/users
systemctl start dovecot
";

/// Runs every command of a page, or of one of its sections. What shows where a message went is run
/// a moment later, as the page says.
#[track_caller]
fn follow(machine: &Machine, name: &str, section: Option<&str>) {
    let blocks = Page::read(name).commands();
    let blocks = blocks.iter().filter(|block| section.is_none_or(|only| block.section == only));
    let mut count = 0;
    for block in blocks {
        run(machine, &block.text);
        count += 1;
    }
    assert!(count > 0, "{name} has no commands");
}

/// What install.md says of a Postfix that is new.
pub fn new_postfix(machine: &Machine) {
    follow(machine, "docs/install.md", Some(NEW_POSTFIX));
}

/// What the other pages begin with.
#[track_caller]
fn install(machine: &Machine) {
    follow(machine, "docs/install.md", Some(FROM_SOURCE));
}

/// What README's set-up begins with.
pub const APT: &str = "apt install ./onedrop_*.deb ";

/// README's set-up, but installed from source, and without a wait for the first jobs.
#[track_caller]
fn install_and_set_up(machine: &Machine) {
    install(machine);
    let blocks = Page::read("README.md").commands();
    for block in blocks.iter().filter(|block| block.section == README_SET_UP) {
        let is_kept = |line: &&str| !line.starts_with(APT) && !line.contains(" onedrop status");
        let kept: Vec<&str> = block.text.lines().filter(is_kept).collect();
        run(machine, &kept.join("\n"));
    }
}

#[track_caller]
fn run(machine: &Machine, block: &str) {
    let command = format!("cd {CHECKOUT}\n{block}");
    if block.contains(" onedrop trace ") {
        assert!(machine.soon(&command), "{command}\n{}", log(machine));
    }
    machine.run(&command);
}

fn log(machine: &Machine) -> String {
    machine.run("cat /var/log/mail.log; mailq; ls -lR /srv /var/lib/onedrop | head -60")
        + &machine.journal()
}

/// What `onedrop check` finds, which has no fault to find.
#[track_caller]
fn nothing_to_find(machine: &Machine, user: &str) {
    let told = machine.run(&format!("runuser -u {user} -- onedrop check --account scuba"));
    assert!(told.lines().all(|line| line.starts_with("ok ")), "{told}");
}

/// Sends one message to scuba; `files` names the copies, of which there are `copies` then.
#[track_caller]
fn send(machine: &Machine, id: &str, files: &str, copies: usize) {
    send_to(machine, "scuba@mail.axial.net", id, files, copies);
}

#[track_caller]
fn send_to(machine: &Machine, to: &str, id: &str, files: &str, copies: usize) {
    machine.run(&format!(
        "printf 'From: lisa@gmail.com\\nSubject: {id}\\nMessage-ID: <{id}@x>\\n\\nbody of {id}\\n' |
         sendmail -f lisa@gmail.com {to}"
    ));
    let arrived = machine.soon(&format!("grep -qx 'body of {id}' {files}"));
    assert!(arrived, "{id} has not arrived:\n{}", log(machine));
    assert!(machine.soon("mailq | grep -q 'queue is empty'"), "{}", log(machine));
    let there = machine.run(&format!("ls {files} | wc -l"));
    assert_eq!(there.trim(), copies.to_string(), "{}", log(machine));
}

/// Sends one message to `user`, and returns what Postfix's log says of its delivery.
#[track_caller]
fn way_of(machine: &Machine, user: &str, id: &str) -> String {
    machine.run(&format!(
        "printf 'Subject: {id}\\nMessage-ID: <{id}@x>\\n\\nbody\\n' |
         sendmail -f lisa@gmail.com {user}@mail.axial.net"
    ));
    let line = format!(
        "id=$(sed -n 's/.* \\([0-9A-F]*\\): message-id=<{id}@x>$/\\1/p' /var/log/mail.log)
         [ -n \"$id\" ]
         grep \" $id: to=.* status=\" /var/log/mail.log"
    );
    assert!(machine.soon(&line), "{id} was not delivered:\n{}", log(machine));
    machine.run(&line)
}

/// The message that the pages send is in scuba's INBOX, once.
#[track_caller]
fn is_there_once(machine: &Machine, files: &str) {
    let found = machine.run(&format!("grep -l '^Message-ID: <CAHk9w0next-meeting@' {files}"));
    assert_eq!(found.lines().count(), 1, "{found}{}", log(machine));
}

/// Postfix's log has this text, or soon: the copy stands a moment earlier.
#[track_caller]
fn is_logged(machine: &Machine, text: &str) {
    let is_there = format!("grep -qF '{text}' /var/log/mail.log");
    assert!(machine.soon(&is_there), "no {text:?}:\n{}", log(machine));
}

#[track_caller]
fn nothing_was_deferred(machine: &Machine) {
    let log = machine.run("cat /var/log/mail.log");
    assert!(!log.contains(" status=deferred ") && !log.contains(" status=bounced "), "{log}");
}

#[track_caller]
fn socket_is_as_shipped(machine: &Machine) {
    let facts = machine.run("stat -c '%U %G %a' /run/onedrop /run/onedrop/lmtp.sock");
    assert_eq!(facts, "root root 755\nonedrop postfix 660\n", "{}", machine.journal());
}

#[test]
fn each_command_of_the_page_on_installing_is_run() {
    let blocks = Page::read("docs/install.md").commands();
    let sections: Vec<&str> = blocks.iter().map(|block| block.section.as_str()).collect();
    assert_eq!(sections, [NEW_POSTFIX, FROM_SOURCE]);
}

#[test]
fn readme_leads_from_the_package_to_the_first_mail() {
    let machine = machine_with(|files| provide_package(files, &packed()));
    leads_from_the_package_to_the_first_mail(&machine, dovecot_serves_the_maildirs);
    what_no_ledger_has_is_in_the_journal(&machine);
}

/// Its user reads the journal with the group that docs/status.md names.
#[track_caller]
fn what_no_ledger_has_is_in_the_journal(machine: &Machine) {
    machine.run(
        "echo 'nosuch = 1' > /etc/onedrop/conf.d/wrong.toml
         chmod 644 /etc/onedrop/conf.d/wrong.toml
         printf 'Subject: early\\n\\nbody\\n' |
             sendmail -f lisa@gmail.com scuba@mail.axial.net",
    );
    let put_off = "grep -q 'dsn=4.3.5, status=deferred' /var/log/mail.log";
    assert!(machine.soon(put_off), "{}", log(machine));
    machine.run("rm /etc/onedrop/conf.d/wrong.toml");
    let line = "ATTENTION  log       last hour: 1 put off before they were on record, the last: \
                4.3.5 ";
    let as_reader = "runuser -u onedrop -g onedrop -G systemd-journal -- onedrop";
    assert!(Page::read("docs/status.md").text.contains(&format!("`{as_reader} status`")));
    let told = machine.run(&format!("{as_reader} status || true"));
    assert!(told.contains(line), "{told}{}", log(machine));
    let told = machine.run(&format!("{as_reader} trace scuba@mail.axial.net"));
    assert!(told.contains("            not on record: this host's log tells it\n"), "{told}");
}

/// Where README's first command finds it.
pub fn provide_package(files: &Path, package: &Path) {
    provide(files, package, &format!("{CHECKOUT}/onedrop_0.1.0-1_amd64.deb"));
}

/// README's set-up, to its last line. The machine has the package, and a Postfix that takes mail
/// for the domain and logs to `/var/log/mail.log`. `after_it` comes before what shows that all is
/// well.
#[track_caller]
pub fn leads_from_the_package_to_the_first_mail(machine: &Machine, after_it: impl Fn(&Machine)) {
    follow(machine, "README.md", Some(README_SET_UP));
    let new = "/var/lib/onedrop/mail/scuba/Maildir/new/*";
    is_there_once(machine, new);
    after_it(machine);
    nothing_to_find(machine, "onedrop");
    let told = machine.run("runuser -u onedrop -- onedrop status");
    assert!(told.contains(": all is well\n") && told.contains("3 jobs ok"), "{told}");
    send(machine, "another", new, 2);
    nothing_was_deferred(machine);
}

/// Debian's Dovecot has a mail_location of its own, which README changes.
fn dovecot_serves_the_maildirs(machine: &Machine) {
    let check = "runuser -u onedrop -- onedrop check --account scuba";
    let served = "Dovecot serves mbox:~/mail:INBOX=/var/mail/%u, and Onedrop writes Maildirs under \
                  /var/lib/onedrop/mail";
    let told = machine.run(check);
    assert!(told.contains(served), "{told}");
    machine.run(
        "cp /usr/share/onedrop/dovecot/onedrop-maildirs.conf /etc/dovecot/conf.d/99-onedrop.conf
         systemctl restart dovecot",
    );
    let fetched = machine.run("doveadm fetch -u scuba hdr.message-id mailbox INBOX all");
    assert!(fetched.contains("<CAHk9w0next-meeting@"), "{fetched}");
}

#[test]
fn the_pages_set_up_imap_and_then_lmtp() {
    let machine = machine();
    machine.run(VMAIL);
    machine.run(POSTGRES);
    machine.run(DOVECOT);
    install(&machine);
    follow(&machine, "docs/set-up-imap.md", None);
    let files = "/srv/mail/scuba/Maildir/[nc]*/*";
    is_there_once(&machine, files);
    is_logged(&machine, "(stored account=scuba mailbox=INBOX uid=1)");
    nothing_to_find(&machine, "onedrop");
    send(&machine, "by-pipe", files, 2);

    follow(&machine, "docs/set-up-lmtp.md", None);
    is_there_once(&machine, files);
    is_logged(&machine, "250 2.0.0 already there account=scuba mailbox=INBOX uid=1");
    nothing_to_find(&machine, "onedrop");
    send(&machine, "by-lmtp", files, 3);
    is_logged(&machine, "relay=mx.mail.axial.net[/run/onedrop/");
    nothing_was_deferred(&machine);
}

#[test]
fn the_pages_set_up_imap_and_then_filters() {
    let machine = machine();
    machine.run(VMAIL);
    machine.run(POSTGRES);
    machine.run(DOVECOT);
    install(&machine);
    follow(&machine, "docs/set-up-imap.md", None);
    // Its settings are new to the Dovecot that runs.
    machine.run("doveadm service status master");
    follow(&machine, "docs/set-up-filters.md", None);
    let guard = machine.run("sieve-dump /etc/dovecot/onedrop-guard.svbin");
    assert!(guard.contains("seconds: NUM 518400"), "{guard}");
    is_logged(&machine, "(handed over account=scuba lmtp=");
    let filtered = machine.run("cat /srv/mail/scuba/Maildir/.Filtered/new/*");
    assert!(filtered.contains("a message for a filter"), "{filtered}");
    assert_eq!(filtered.matches("X-Onedrop-Copy: ").count(), 1, "{filtered}");
    nothing_to_find(&machine, "onedrop");
    nothing_was_deferred(&machine);
}

#[test]
fn the_page_of_locks_says_what_happens() {
    let machine = machine();
    install_and_set_up(&machine);
    // Else a job of the shipped ones may just have its lock.
    machine.run("systemctl stop onedrop-jobs.timer onedrop-jobs.service");
    let blocks = Page::read("docs/locks.md").commands();
    let said: String =
        blocks.iter().map(|block| machine.run(&format!("cd {CHECKOUT}\n{}", block.text))).collect();
    let expected = "only here, only now\nimporting acme as import.acme#1:1\nsending\nfetch\nload\n\
                    report\nmigrating\n";
    assert_eq!(said, expected);
}

/// Two jobs: what the first one says shows who ran it, the other one goes on for long.
const JOBS: &str = "
mkdir -p /etc/onedrop/conf.d
cat >/etc/onedrop/conf.d/jobs.toml <<'EOF'
[jobs.quick]
every = \"1d\"
command = [\"sh\", \"-c\", \"echo $ONEDROP_JOB_NAME by $(id -un); onedrop --version\"]
[jobs.slow]
every = \"1d\"
command = [\"sh\", \"-c\", \"echo slow began; sleep 12345; true\"]
EOF
";

#[test]
fn the_timer_runs_the_jobs_that_are_due_and_a_stop_ends_them() {
    let machine = machine();
    install_and_set_up(&machine);
    machine.run(JOBS);
    follow(&machine, "docs/jobs-ticking.md", None);
    let journal = "journalctl -u onedrop-jobs -o cat --no-pager";
    for line in ["quick: quick by onedrop", "quick: onedrop [0-9.]*", "slow: slow began"] {
        let is_there = machine.soon(&format!("{journal} | grep -qx '{line}'"));
        assert!(is_there, "no {line:?}\n{}", machine.journal());
    }
    let onedrop = "runuser -u onedrop -- onedrop";
    // The journal has it before the run's end is on record.
    let is_recorded = machine.soon(&format!("{onedrop} jobs show quick | grep 'quick by onedrop'"));
    assert!(is_recorded, "{}", machine.run(&format!("{onedrop} jobs show quick")));
    let holder = machine.run(&format!("{onedrop} lock holder jobs/slow"));
    assert!(holder.contains("jobs/slow slot=1/1 "), "{holder}");
    machine.run("systemctl is-active onedrop-jobs.service");

    machine.run("systemctl stop onedrop-jobs.timer onedrop-jobs.service");
    let left = machine.try_run("pgrep -f 'sleep 1234[5]|jobs (run|tic)[k]'").expect("nsenter");
    assert!(!left.status.success(), "{}", String::from_utf8_lossy(&left.stdout));
    let holder = machine.try_run(&format!("{onedrop} lock holder jobs/slow")).expect("nsenter");
    assert_eq!(holder.status.code(), Some(1), "it was not given back");
    let slow = machine.run(&format!("{onedrop} jobs show slow --json"));
    assert!(slow.contains("\"failed\"") && slow.contains("SIGTERM"), "{slow}");
    let log = machine.run("journalctl --no-pager --boot");
    assert!(!log.contains("Killing process"), "{log}");

    // The server instead, within its own confinement.
    machine.run(
        "printf '[jobs]\\nrun_in = \"server\"\\n[jobs.slow]\\nevery = \"2d\"\\ncommand = \
         [\"sh\", \"-c\", \"echo began again; sleep 12345; true\"]\\n' \
         >/etc/onedrop/conf.d/jobs.toml
         runuser -u onedrop -- onedrop jobs reset slow
         systemctl start onedrop-lmtp.service",
    );
    let journal = "journalctl -u onedrop-lmtp -o cat --no-pager";
    let is_there = machine.soon(&format!("{journal} | grep -qx 'slow: began again'"));
    assert!(is_there, "{}", machine.journal());
    machine.run(&format!("{onedrop} lock holder jobs/slow"));
    machine.run("systemctl stop onedrop-lmtp.socket onedrop-lmtp.service");
    let left = machine.try_run("pgrep -f 'sleep 1234[5]|jobs (run|tic)[k]'").expect("nsenter");
    assert!(!left.status.success(), "{}", String::from_utf8_lossy(&left.stdout));
    let holder = machine.try_run(&format!("{onedrop} lock holder jobs/slow")).expect("nsenter");
    assert_eq!(holder.status.code(), Some(1), "it was not given back");
    copies_are_leased_within_the_units_confinement(&machine);
    a_reload_says_what_is_wrong(&machine);
}

/// `systemctl reload` fails where the configuration is wrong, and the server serves on by the old.
#[track_caller]
fn a_reload_says_what_is_wrong(machine: &Machine) {
    let reload = "systemctl reload onedrop-lmtp.service";
    let pid = machine.run("systemctl show -P MainPID onedrop-lmtp.service");
    machine.run(&format!(
        "printf '[limits]\ndeadline_sec = 5\n' >/etc/onedrop/conf.d/wrong.toml && ! {reload}"
    ));
    let journal = "journalctl -u onedrop-lmtp -o cat --no-pager";
    assert!(
        machine.soon(&format!("{journal} | grep -q 'limits.deadline_sec'")),
        "{}",
        log(machine)
    );
    machine.run("systemctl is-active onedrop-lmtp.service && rm /etc/onedrop/conf.d/wrong.toml");
    machine.run(&format!("{reload} && systemctl is-active onedrop-lmtp.service"));
    assert_eq!(machine.run("systemctl show -P MainPID onedrop-lmtp.service"), pid);
}

/// Leases in a ledger of SQLite count by the boot, so the unit must let its id be read.
#[track_caller]
fn copies_are_leased_within_the_units_confinement(machine: &Machine) {
    let files = "/var/lib/onedrop/mail/scuba/Maildir/new/*";
    machine.run(
        "rm /etc/onedrop/conf.d/jobs.toml
         systemctl start onedrop-lmtp.socket
         postconf virtual_transport=onedrop-lmtp:unix:/run/onedrop/lmtp.sock && postfix reload",
    );
    send(machine, "within-the-unit", files, 2);
    machine.run(
        "mkdir -p /etc/systemd/system/onedrop-lmtp.service.d
         printf '[Service]\\nInaccessiblePaths=/proc/sys/kernel/random/boot_id\\n' \
         >/etc/systemd/system/onedrop-lmtp.service.d/dark.conf
         systemctl daemon-reload && systemctl restart onedrop-lmtp.service",
    );
    let told = way_of(machine, "scuba", "dark");
    let expected = " status=deferred (host mx.mail.axial.net[/run/onedrop/lmtp.sock] said: 451 \
                    4.3.5 ledger: cannot tell which leases live: \
                    /proc/sys/kernel/random/boot_id, the id of the boot, cannot be read: ";
    assert!(told.contains(expected), "{told}");
    machine.run(
        "rm -r /etc/systemd/system/onedrop-lmtp.service.d
         systemctl daemon-reload && systemctl restart onedrop-lmtp.service && postqueue -f",
    );
    assert!(machine.soon(&format!("grep -qx 'Subject: dark' {files}")), "{}", log(machine));
    let there = machine.run(&format!("ls {files} | wc -l"));
    assert_eq!(there.trim(), "3", "{}", log(machine));
}

/// What Debian's own main.cf has, and two users.
const UNIX_USERS: &str = "
postconf recipient_delimiter=+ alias_maps=hash:/etc/aliases alias_database=hash:/etc/aliases
for user in scuba doug; do useradd --create-home $user; done
printf 'info: scuba\\npostmaster: doug, scuba\\n' >/etc/aliases
newaliases
";

#[test]
fn the_page_sets_up_mailbox_command() {
    let machine = machine();
    machine.run(UNIX_USERS);
    install_and_set_up(&machine);
    machine.run("runuser -u onedrop -- mkdir /var/lib/onedrop/mail/doug");
    let blocks = Page::read("docs/set-up-mailbox-command.md").commands();
    let (forward, before) = blocks.split_last().expect("blocks");
    before.iter().for_each(|block| run(&machine, &block.text));
    let files = "/var/lib/onedrop/mail/scuba/Maildir/new/*";
    is_there_once(&machine, files);
    is_logged(&machine, "relay=local, ");
    is_logged(&machine, "(delivered to command: ");
    let told = machine.run("runuser -u onedrop -- onedrop check --account scuba");
    let ok = "ok      postfix: mailbox_command: each user of this host delivers to its own account";
    // Where mail is read is another page's.
    let mut of_postfix = told.lines().filter(|line| line.contains(" postfix: "));
    assert!(told.contains(ok) && of_postfix.all(|line| line.starts_with("ok ")), "{told}");

    // Aliases, a detail, and a .forward with the command in it, beside another user.
    send_to(&machine, "info@mail.axial.net", "by-alias", files, 2);
    send_to(&machine, "scuba+lists@mail.axial.net", "with-a-detail", files, 3);
    run(&machine, &forward.text);
    send_to(&machine, "scuba@mail.axial.net", "by-forward", files, 4);
    machine.run("printf 'doug\\n' >>~scuba/.forward");
    send_to(&machine, "scuba@localhost", "to-both", files, 5);
    let of_doug = "/var/lib/onedrop/mail/doug/Maildir/new/*";
    assert!(machine.soon(&format!("grep -qx 'body of to-both' {of_doug}")), "{}", log(&machine));
    send_to(&machine, "postmaster@mail.axial.net", "to-two", files, 6);
    assert!(machine.soon(&format!("grep -qx 'body of to-two' {of_doug}")), "{}", log(&machine));
    let own = machine.run(&format!("head -n 3 $(grep -lx 'body of with-a-detail' {files})"));
    let mut lines = own.lines();
    assert_eq!(lines.next(), Some("Return-Path: <lisa@gmail.com>"), "{own}");
    assert_eq!(lines.next(), Some("Delivered-To: scuba+lists@mail.axial.net"), "{own}");
    nothing_was_deferred(&machine);

    // A user delivers for no other, whatever it says.
    let refused = machine.try_run(
        "runuser -u scuba -- onedrop deliver --via /run/onedrop/users.sock \\
         -d doug@mail.axial.net </usr/share/onedrop/welcome.eml",
    );
    let refused = refused.expect("nsenter");
    let said = String::from_utf8_lossy(&refused.stdout);
    assert_eq!(refused.status.code(), Some(75), "{said}");
    assert!(said.starts_with("4.3.5 user scuba may deliver to its own account alone"), "{said}");

    // While the server is away mail waits, and then comes once.
    machine.run("systemctl stop onedrop-users.socket onedrop-lmtp.socket onedrop-lmtp.service");
    let told = way_of(&machine, "scuba", "away");
    assert!(told.contains(" status=deferred ") && told.contains("cannot be reached"), "{told}");
    machine.run("systemctl start onedrop-lmtp.service && postqueue -f");
    assert!(machine.soon(&format!("grep -qx 'Subject: away' {files}")), "{}", log(&machine));
    assert_eq!(machine.run(&format!("ls {files} | wc -l")).trim(), "7", "{}", log(&machine));
}

#[test]
fn one_user_moves_from_dovecots_lmtp_server_and_back() {
    let machine = machine();
    machine.run(VMAIL);
    machine.run(DOVECOT);
    machine.run("postconf virtual_transport=lmtp:unix:private/dovecot-lmtp && postfix reload");
    assert!(way_of(&machine, "scuba", "before").contains("[private/dovecot-lmtp]"));
    // README's set-up, with the old transport put back: its ledger and its Maildirs will do.
    install_and_set_up(&machine);
    machine.run("postconf virtual_transport=lmtp:unix:private/dovecot-lmtp && postfix reload");

    let [begin, end] = &Page::read("docs/moving.md").commands()[..] else { panic!("two blocks") };
    run(&machine, &begin.text);
    let told = machine.run("runuser -u onedrop -- onedrop check --account scuba");
    assert!(told.contains("gets mail only if a table says so"), "{told}");
    assert!(way_of(&machine, "scuba", "pilot").contains("relay=onedrop, "));
    assert!(way_of(&machine, "scuba+lists", "detail").contains("relay=onedrop, "));
    assert!(way_of(&machine, "doug", "other").contains("[private/dovecot-lmtp]"));
    run(&machine, &end.text);
    assert!(way_of(&machine, "scuba", "after").contains("[private/dovecot-lmtp]"));
    nothing_was_deferred(&machine);
}

#[test]
fn the_pages_set_up_maildirs() {
    let machine = machine();
    machine.run(VMAIL);
    machine.run(POSTGRES);
    install(&machine);
    follow(&machine, "docs/set-up-maildirs.md", None);
    let new = "/srv/mail/scuba/Maildir/new/*";
    is_there_once(&machine, new);
    nothing_to_find(&machine, "vmail -g onedrop");
    socket_is_as_shipped(&machine);
    let owners = machine.run(&format!("stat -c %U {new} | sort -u"));
    assert_eq!(owners.trim(), "vmail");

    send(&machine, "by-socket", new, 2);
    assert_eq!(machine.run("ps -o user= -C onedrop").trim(), "vmail");
    let before = machine.run("stat -c %i /run/onedrop/lmtp.sock");
    machine.run("systemctl restart onedrop-lmtp.service");
    socket_is_as_shipped(&machine);
    assert_eq!(machine.run("stat -c %i /run/onedrop/lmtp.sock"), before, "the socket is the same");
    send(&machine, "after-restart", new, 3);
    machine.run("systemctl stop onedrop-lmtp.service");
    socket_is_as_shipped(&machine);
    send(&machine, "started-by-the-socket", new, 4);

    machine.run("postconf virtual_transport=onedrop && postfix reload");
    send(&machine, "by-pipe", new, 5);
    let owners = machine.run(&format!("stat -c %U {new} | sort -u"));
    assert_eq!(owners.trim(), "vmail");
    let log = machine.run("cat /var/log/mail.log");
    assert_eq!(log.matches("relay=onedrop, ").count(), 1, "{log}");
    assert_eq!(log.matches(" status=sent ").count(), 5, "{log}");
    nothing_was_deferred(&machine);

    // What the page says of work by hand.
    machine.run("runuser -u vmail -g onedrop -- onedrop verify");

    // What is delivered is what Dovecot's users see.
    let fetched = machine.run("doveadm fetch -u scuba hdr.message-id mailbox INBOX all");
    assert!(fetched.contains("<CAHk9w0next-meeting@"), "{fetched}");
}
