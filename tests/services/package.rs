//! The Debian package: what lintian says of it, what is in it, and what it does to a machine when
//! it is installed, brought up to date, removed and purged. Here it holds this build's program, not
//! an optimized one: nothing else of it depends on that. `tests/run --full` builds it as it is
//! shipped (`packages_built.rs`).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::machine::{Machine, provide};
use crate::page::PROJECT;
use crate::support::{TempRoot, onedrop_path, run};

/// Packs the program as of this version, with cargo-deb of the system or of `tests/run`.
pub fn pack(root: &TempRoot, version: &str) -> PathBuf {
    let release = root.join("target/release");
    fs::create_dir_all(&release).expect("a folder");
    fs::copy(onedrop_path(), release.join("onedrop")).expect("the program");
    let package = root.join(format!("onedrop_{version}.deb"));
    let mut cargo = Command::new("cargo");
    cargo.current_dir(PROJECT).env("CARGO_TARGET_DIR", root.join("target"));
    cargo.args(["deb", "--no-build", "--fast", "--offline", "--deb-version", version, "-o"]);
    run(cargo.arg(&package));
    package
}

pub fn lint(package: &Path) {
    let mut lintian = Command::new("lintian");
    lintian.args(["--allow-root", "--fail-on", "error,warning", "--tag-display-limit", "0"]);
    let output = lintian.arg(package).output().expect("lintian");
    assert!(output.status.success(), "{}", told(&output));
}

pub fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Mode and owner of each file in the package, by its path.
fn contents(package: &Path) -> BTreeMap<String, String> {
    let listed = run(Command::new("dpkg-deb").arg("--contents").arg(package));
    let entry = |line: &str| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        (words[5].trim_start_matches('.').to_owned(), format!("{} {}", words[0], words[1]))
    };
    listed.lines().map(entry).collect()
}

/// The files of a folder of the project, with its folders' own.
fn files(folder: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(Path::new(PROJECT).join(folder)).expect("a folder") {
        let entry = entry.expect("an entry");
        let name = format!("{folder}/{}", entry.file_name().to_string_lossy());
        match entry.file_type().expect("a type").is_dir() {
            true => found.extend(files(&name)),
            false => found.push(name),
        }
    }
    found
}

/// Where a file of the project lies on a machine.
fn installed(name: &str) -> String {
    let (folder, file) = name.split_once('/').expect("a folder");
    match folder {
        "man" => format!("/usr/share/man/man{}/{file}.gz", &file[file.len() - 1..]),
        "conf" => format!("/usr/share/doc/onedrop/examples/{file}"),
        "docs" => format!("/usr/share/doc/onedrop/{name}"),
        "systemd" => match file {
            "onedrop.sysusers.conf" => "/usr/lib/sysusers.d/onedrop.conf".to_owned(),
            "onedrop.tmpfiles.conf" => "/usr/lib/tmpfiles.d/onedrop.conf".to_owned(),
            unit => format!("/usr/lib/systemd/system/{unit}"),
        },
        _ => match file {
            "onedrop.bash" => "/usr/share/bash-completion/completions/onedrop".to_owned(),
            "_onedrop" => "/usr/share/zsh/vendor-completions/_onedrop".to_owned(),
            fish => format!("/usr/share/fish/vendor_completions.d/{fish}"),
        },
    }
}

#[test]
fn the_package_has_all_that_is_shipped_and_lintian_finds_no_fault() {
    let root = TempRoot::new();
    let package = pack(&root, "0.1.0-1");
    lint(&package);
    let contents = contents(&package);
    let shipped = ["completions", "conf", "docs", "man", "systemd"].map(files).concat();
    assert!(shipped.len() > 60, "{shipped:?}");
    let missing: BTreeSet<String> = shipped
        .iter()
        .map(|name| installed(name))
        .filter(|at| !contents.contains_key(at))
        .collect();
    assert!(missing.is_empty(), "Cargo.toml's [package.metadata.deb] lacks {missing:?}");
    assert_eq!(contents["/usr/bin/onedrop"], "-rwxr-xr-x 0/0");
    assert_eq!(contents["/etc/onedrop/onedrop.toml"], "-rw-r----- 0/0");
    let odd = contents.iter().filter(|(_, mode)| {
        !["-rw-r--r-- 0/0", "drwxr-xr-x 0/0", "lrwxrwxrwx 0/0"].contains(&mode.as_str())
    });
    assert_eq!(odd.count(), 2);
    let field = |name| run(Command::new("dpkg-deb").arg("-f").arg(&package).arg(name));
    assert!(field("Depends").contains("libc6 (>= "), "{}", field("Depends"));
}

/// Delivers a message a time by the socket, until it is told to end. As Postfix does, it tries
/// again after 421 (the server is stopping), and ends at anything else, such as a refused
/// connection; `/root/count` says how many messages were taken.
const CLIENT: &str = r#"
import os, smtplib
count = 0
while not os.path.exists("/root/enough"):
    try:
        with smtplib.LMTP("/run/onedrop/lmtp.sock", timeout=60) as client:
            client.sendmail("lisa@gmail.com", ["scuba@mail.axial.net"],
                f"Message-ID: <{count}@upgrade>\nDate: Mon, 2 Nov 2026 12:00:00 +0000\n"
                f"Subject: {count}\n\nbody\n")
    except smtplib.SMTPResponseException as reply:
        if reply.smtp_code != 421:
            raise
        continue
    count += 1
    with open("/root/count.new", "w") as file:
        file.write(f"{count}\n")
    os.rename("/root/count.new", "/root/count")
"#;

const UNITS: &str = "onedrop-lmtp.socket onedrop-lmtp.service onedrop-jobs.timer";

#[test]
fn the_package_is_installed_upgraded_removed_and_purged() {
    let root = TempRoot::new();
    let packages = ["0.1.0-1", "0.1.0-2"].map(|version| pack(&root, version));
    let machine = Machine::boot(|files| {
        for (package, name) in packages.iter().zip(["one", "two"]) {
            provide(files, package, &format!("/root/{name}.deb"));
        }
        let client = root.join("client");
        fs::write(&client, CLIENT).expect("a file");
        provide(files, &client, "/root/client");
    });
    let is_active = |unit: &str| {
        machine
            .try_run(&format!("systemctl is-active {unit}"))
            .is_ok_and(|out| out.status.success())
    };
    let property = |unit: &str, name: &str| {
        machine.run(&format!("systemctl show -P {name} {unit}")).trim().to_owned()
    };
    // What tests/run may have left there.
    machine.run("rm -f /usr/sbin/policy-rc.d");

    // Installed: three steps are named, and nothing runs.
    let said = machine.run("dpkg -i /root/one.deb");
    for step in ["1. Say who has mail where", "onedrop migrate", "systemctl enable --now"] {
        assert!(said.contains(step), "{said}");
    }
    for unit in UNITS.split(' ') {
        assert!(!is_active(unit), "{unit} runs");
        let state = machine.try_run(&format!("systemctl is-enabled {unit}")).expect("systemctl");
        assert_eq!(told(&state), "disabled\n", "{unit}");
    }
    let modes = "stat -c '%a %U:%G %n' /etc/onedrop /etc/onedrop/onedrop.toml /etc/onedrop/conf.d \
        /var/lib/onedrop /run/onedrop";
    let kept_modes = "750 root:onedrop /etc/onedrop\n\
        640 root:onedrop /etc/onedrop/onedrop.toml\n\
        750 root:onedrop /etc/onedrop/conf.d\n\
        700 onedrop:onedrop /var/lib/onedrop\n";
    assert_eq!(machine.run(modes), format!("{kept_modes}755 root:root /run/onedrop\n"));
    assert_eq!(machine.run("ls -A /var/lib/onedrop"), "", "migrate is not the package's to run");
    assert!(machine.run("man -w onedrop-jobs-run onedrop.toml").contains("man5"));

    // Configured as the steps say, it delivers.
    machine.run(
        "printf '[directory]\\ndomains = [\"mail.axial.net\"]\\n' >/etc/onedrop/conf.d/site.toml
         runuser -u onedrop -- onedrop migrate",
    );
    machine.run(&format!("systemctl enable --now {UNITS}"));
    machine.run("systemd-run --quiet --unit=client python3 /root/client");
    assert!(machine.soon("test \"$(cat /root/count)\" -gt 3"), "{}", machine.journal());

    // Upgraded while mail comes: another server, the same socket, and no message was refused.
    let server = property("onedrop-lmtp.service", "MainPID");
    let socket = machine.run("stat -c %i /run/onedrop/lmtp.sock");
    machine.run(
        "chmod 600 /etc/onedrop/conf.d/site.toml; chgrp onedrop /etc/onedrop/conf.d/site.toml",
    );
    machine.run("chmod 640 /etc/onedrop/conf.d/site.toml; dpkg -i /root/two.deb");
    assert_ne!(property("onedrop-lmtp.service", "MainPID"), server, "the old program runs");
    assert_eq!(machine.run("stat -c %i /run/onedrop/lmtp.sock"), socket, "another socket");
    machine.run("rm /root/count");
    assert!(machine.soon("test \"$(cat /root/count)\" -gt 3"), "{}", machine.journal());
    machine.run("touch /root/enough");
    assert!(machine.soon("! systemctl is-active --quiet client"), "{}", machine.journal());
    let ended = machine.run("journalctl --no-pager -u client");
    assert!(!ended.contains("Traceback") && !ended.contains("with result"), "{ended}");
    let inbox = "find /var/lib/onedrop/mail/scuba/Maildir/new -type f | wc -l";
    assert_eq!(machine.run(inbox), machine.run("cat /root/count"));
    for unit in UNITS.split(' ') {
        assert!(is_active(unit), "{unit}: {}", machine.journal());
    }

    // Removed: nothing runs, and what an administrator wrote stays. Installed again: as before.
    machine.run("dpkg -r onedrop");
    for unit in UNITS.split(' ') {
        assert!(!is_active(unit), "{unit} runs");
    }
    machine.run("test ! -e /usr/bin/onedrop && test -s /etc/onedrop/onedrop.toml");
    machine.run("dpkg -i /root/two.deb && systemctl is-enabled onedrop-lmtp.service");
    assert_eq!(machine.run(modes).lines().count(), 5);
    assert!(machine.run(modes).starts_with(kept_modes));

    // Purged: no configuration and no link of it stays; the mail does.
    machine.run("dpkg -P onedrop");
    machine.run("test ! -e /etc/onedrop && test -d /var/lib/onedrop/mail/scuba");
    assert_eq!(machine.run("find /etc/systemd /var/lib/systemd -name '*onedrop*'"), "");
}
