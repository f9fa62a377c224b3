//! Maildir mode as the README says it, under a real systemd with a real Postfix and Postgres: the
//! units, the drop-in for the user who owns the mail, the socket in its folder, and pipe(8) with
//! `user=vmail:onedrop`.

use std::path::Path;

use crate::support::machine::{Machine, provide};
use crate::support::{fixture_text, onedrop_path};

const PROJECT: &str = env!("CARGO_MANIFEST_DIR");

/// What the README shows in its first block of this language behind a heading.
fn block(heading: &str, language: &str) -> String {
    let readme = fixture_text("README.md");
    let section = readme.split_once(&format!("\n### {heading}\n")).expect("the heading").1;
    let fence = format!("```{language}\n");
    section
        .split_once(&fence)
        .and_then(|(_, rest)| rest.split_once("```"))
        .expect("a block")
        .0
        .to_owned()
}

const MAILDIRS: &str = "Where the mailboxes are Maildirs on this host";

fn files(at: &Path) {
    provide(at, onedrop_path(), "/root/onedrop");
    for name in [
        "systemd/onedrop.sysusers.conf",
        "systemd/onedrop.tmpfiles.conf",
        "systemd/onedrop-lmtp.socket",
        "systemd/onedrop-lmtp.service",
        "conf/postfix/master.cf.onedrop",
        "conf/postfix/main.cf.onedrop",
    ] {
        provide(at, &Path::new(PROJECT).join(name), &format!("/root/{name}"));
    }
}

/// The install step, users and folders.
const INSTALL: &str = "
install -m 755 /root/onedrop /usr/bin/onedrop
install -m 644 /root/systemd/onedrop.sysusers.conf /usr/lib/sysusers.d/onedrop.conf
install -m 644 /root/systemd/onedrop.tmpfiles.conf /usr/lib/tmpfiles.d/onedrop.conf
install -m 644 /root/systemd/onedrop-lmtp.socket /root/systemd/onedrop-lmtp.service /usr/lib/systemd/system/
systemd-sysusers
systemd-tmpfiles --create /usr/lib/tmpfiles.d/onedrop.conf
systemctl daemon-reload
useradd --system --home-dir /srv/mail --shell /usr/sbin/nologin vmail
install -d -o vmail -g vmail -m 700 /srv/mail
";

/// Debian's own way to a cluster and its service; the role and the database of the README, vmail's.
const POSTGRES: &str = "
rm -rf /etc/postgresql/* /var/lib/postgresql/*/*
version=$(ls /usr/lib/postgresql | tail -n 1)
pg_createcluster $version main >/dev/null
systemctl start postgresql@$version-main
until runuser -u postgres -- psql -qc 'SELECT 1' >/dev/null 2>&1; do sleep 0.1; done
runuser -u postgres -- createuser vmail
runuser -u postgres -- createdb --owner vmail --encoding UTF8 --template template0 onedrop
";

/// A Postfix as Debian has it, with what the project ships appended.
const POSTFIX: &str = "
cp /usr/share/postfix/master.cf.dist /etc/postfix/master.cf
sed 's/^  flags=DORX user=onedrop/  flags=DORX user=vmail:onedrop/' /root/conf/postfix/master.cf.onedrop >>/etc/postfix/master.cf
grep -q user=vmail:onedrop /etc/postfix/master.cf
cat >/etc/postfix/main.cf <<'EOF'
compatibility_level = 3.6
myhostname = mx.mail.axial.net
mydestination =
inet_interfaces = loopback-only
maillog_file = /var/log/mail.log
virtual_mailbox_domains = mail.axial.net
virtual_mailbox_maps = static:all
virtual_transport = onedrop-lmtp:unix:/run/onedrop/lmtp.sock
EOF
cat /root/conf/postfix/main.cf.onedrop >>/etc/postfix/main.cf
systemctl start postfix@-
";

/// Sends one message to scuba and waits until it is in the Maildir, which then has `copies`.
#[track_caller]
fn send(machine: &Machine, id: &str, copies: usize) {
    machine.run(&format!(
        "printf 'From: lisa@gmail.com\\nSubject: {id}\\nMessage-ID: <{id}@x>\\n\\nbody of {id}\\n' |
         sendmail -f lisa@gmail.com scuba@mail.axial.net"
    ));
    let new = "/srv/mail/scuba/Maildir/new";
    let arrived = machine.soon(&format!("grep -qx 'body of {id}' {new}/*"));
    let log = || {
        machine.run("cat /var/log/mail.log; mailq; ls -lR /srv/mail | head -40")
            + &machine.journal()
    };
    assert!(arrived, "{id} has not arrived:\n{}", log());
    assert_eq!(machine.run(&format!("ls {new} | wc -l")).trim(), copies.to_string(), "{}", log());
    let owners = machine.run(&format!("stat -c %U {new}/* | sort -u"));
    assert_eq!(owners.trim(), "vmail");
    assert!(machine.soon("mailq | grep -q 'queue is empty'"), "{}", log());
}

#[track_caller]
fn socket_is_as_shipped(machine: &Machine) {
    let facts = machine.run("stat -c '%U %G %a' /run/onedrop /run/onedrop/lmtp.sock");
    assert_eq!(facts, "root root 755\nonedrop postfix 660\n", "{}", machine.journal());
}

#[test]
fn maildir_mode_works_as_the_readme_says() {
    let machine = Machine::boot(files);
    machine.run(INSTALL);
    machine.run(POSTGRES);
    let directory = "[directory]\ndomains = [\"mail.axial.net\"]\n";
    let config = format!("{}{directory}", block(MAILDIRS, "toml"));
    machine.run(&format!(
        "umask 027; cat >/etc/onedrop/onedrop.toml <<'EOF'\n{config}EOF\nchgrp onedrop /etc/onedrop/onedrop.toml"
    ));
    machine.run(&format!(
        "mkdir /etc/systemd/system/onedrop-lmtp.service.d
         cat >/etc/systemd/system/onedrop-lmtp.service.d/override.conf <<'EOF'\n{}EOF\nsystemctl daemon-reload",
        block(MAILDIRS, "ini")
    ));
    machine.run("runuser -u vmail -g onedrop -- onedrop migrate");
    machine.run("systemctl enable --now onedrop-lmtp.socket onedrop-lmtp.service");
    socket_is_as_shipped(&machine);
    machine.run(POSTFIX);

    send(&machine, "by-socket", 1);
    assert_eq!(machine.run("ps -o user= -C onedrop").trim(), "vmail");
    let before = machine.run("stat -c %i /run/onedrop/lmtp.sock");
    machine.run("systemctl restart onedrop-lmtp.service");
    socket_is_as_shipped(&machine);
    assert_eq!(machine.run("stat -c %i /run/onedrop/lmtp.sock"), before, "the socket is the same");
    send(&machine, "after-restart", 2);
    machine.run("systemctl stop onedrop-lmtp.service");
    socket_is_as_shipped(&machine);
    send(&machine, "started-by-the-socket", 3);

    machine.run("postconf virtual_transport=onedrop && postfix reload");
    send(&machine, "by-pipe", 4);
    let log = machine.run("cat /var/log/mail.log");
    assert_eq!(log.matches("relay=onedrop, ").count(), 1, "{log}");
    assert_eq!(log.matches(" status=sent ").count(), 4, "{log}");
    assert!(!log.contains(" status=deferred "), "{log}");

    // What the README says of work by hand.
    machine.run("runuser -u vmail -g onedrop -- onedrop verify");
}
