//! The Debian package: what lintian says of it, what is in it, and what it does to a machine when
//! it is installed, brought up to date, removed and purged. Here it holds this build's program, not
//! an optimized one: nothing else of it depends on that. `tests/run --full` builds it as it is
//! shipped (`packages_built.rs`).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::machine::{Machine, provide};
use crate::page::{PROJECT, Page};
use crate::set_up::{APT, README_SET_UP};
use crate::support::{TempRoot, onedrop_path, run, shared};

/// The program's package, version 0.1.0-1, with cargo-deb of the system or of `tests/run`: one for
/// all tests of a run.
pub fn packed() -> PathBuf {
    shared::file("onedrop.deb", |package| {
        let root = TempRoot::new();
        let release = root.join("target/release");
        fs::create_dir_all(&release).expect("a folder");
        fs::copy(onedrop_path(), release.join("onedrop")).expect("the program");
        let mut cargo = Command::new("cargo");
        cargo.current_dir(PROJECT).env("CARGO_TARGET_DIR", root.join("target"));
        cargo.args(["deb", "--no-build", "--fast", "--offline", "--deb-version", "0.1.0-1", "-o"]);
        run(cargo.arg(package));
    })
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
        "conf" => format!("/usr/share/onedrop/{file}"),
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
    let package = packed();
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
    for path in shared_paths() {
        let is_there = contents.keys().any(|at| at == &path || at.trim_end_matches('/') == path);
        assert!(is_there, "{path} is named, and not in the package");
    }
    let odd = contents.iter().filter(|(_, mode)| {
        !["-rw-r--r-- 0/0", "drwxr-xr-x 0/0", "lrwxrwxrwx 0/0"].contains(&mode.as_str())
    });
    assert_eq!(odd.count(), 2);
    let field = |name| run(Command::new("dpkg-deb").arg("-f").arg(&package).arg(name));
    assert!(field("Depends").contains("libc6 (>= "), "{}", field("Depends"));
}

/// What the pages, the shipped files and the package's own words name under `/usr/share/onedrop`.
fn shared_paths() -> BTreeSet<String> {
    let mut texts: Vec<String> = Page::all().into_iter().map(|page| page.text).collect();
    let shipped = ["conf", "systemd", "packaging"].map(files).concat();
    texts.extend(shipped.iter().map(|name| Page::read(name).text));
    let mut paths = BTreeSet::new();
    for text in &texts {
        for (at, _) in text.match_indices("/usr/share/onedrop") {
            let is_part = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
            let path = &text[at..];
            let path = &path[..path.find(|c| !is_part(c)).unwrap_or(path.len())];
            paths.insert(path.trim_end_matches(['/', '.']).to_owned());
        }
    }
    assert!(paths.len() > 8, "{paths:?}");
    paths
}

#[test]
fn the_package_names_the_three_steps_that_readme_shows() {
    let steps = Page::read("packaging/next-steps").text;
    let steps: Vec<&str> = steps.lines().filter_map(|line| line.strip_prefix("  ")).collect();
    let blocks = Page::read("README.md").commands();
    let block = blocks.iter().find(|block| block.section == README_SET_UP).expect("a block");
    let (install, shown) = block.text.split_once('\n').expect("lines");
    assert!(install.starts_with(APT), "{install}");
    assert_eq!(steps, shown.lines().collect::<Vec<_>>());
    let numbered = steps.iter().filter_map(|line| line.strip_prefix("# ")?.split(' ').next());
    assert_eq!(numbered.collect::<Vec<_>>(), ["1.", "2.", "3."]);
}

/// Another cargo-deb may write other bytes, or other scripts.
#[test]
fn one_cargo_deb_builds_the_package() {
    let build = Page::read("packaging/build").text;
    let version = build.lines().find_map(|line| line.strip_prefix("cargo_deb=")).expect("it");
    for name in ["tests/run", "docs/install.md"] {
        let text = Page::read(name).text;
        let named: Vec<&str> = text
            .match_indices("cargo-deb@")
            .filter_map(|(at, found)| text[at + found.len()..].split_whitespace().next())
            .collect();
        assert_eq!(named, [version], "{name}");
        assert!(!text.contains("--locked cargo-deb\n"), "{name}");
    }
}

/// Delivers message after message by the socket, until `/root/enough` is there. As Postfix does, it
/// tries again after 421 (the server is stopping), and ends at anything else, such as a refused
/// connection; `/root/count` says how many messages were taken.
const CLIENT: &str = r#"
import os, smtplib, time
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
    time.sleep(0.05)
"#;

/// All that can be enabled.
const UNITS: [&str; 6] = [
    "onedrop-lmtp.socket",
    "onedrop-users.socket",
    "onedrop-lmtp.service",
    "onedrop-jobs.timer",
    "onedrop-textfile.timer",
    "onedrop-web.socket",
];
/// The package enables none of these: a socket or a timer starts each.
const STARTED: [&str; 3] =
    ["onedrop-web.service", "onedrop-jobs.service", "onedrop-textfile.service"];

const CONFFILE: &str = "/etc/onedrop/onedrop.toml";

/// The package as of another version, with what `change` makes of its files, in their folder.
fn repacked(root: &TempRoot, package: &Path, version: &str, change: &str) -> PathBuf {
    let (files, to) = (root.join(format!("files-{version}")), root.join(format!("{version}.deb")));
    let script = "dpkg-deb -R \"$1\" \"$2\"
        (cd \"$2\" && sed -i \"s/^Version: .*/Version: $4/\" DEBIAN/control && eval \"$5\"
        rm -f DEBIAN/md5sums)
        dpkg-deb -Zgzip -z1 --root-owner-group -b \"$2\" \"$3\"";
    let mut shell = Command::new("sh");
    shell.args(["-euc", script, "sh"]).arg(package).arg(files).arg(&to).args([version, change]);
    run(&mut shell);
    to
}

struct Life {
    machine: Machine,
}

impl Life {
    fn is(&self, what: &str, unit: &str) -> bool {
        let asked = self.machine.try_run(&format!("systemctl {what} --quiet {unit}"));
        asked.is_ok_and(|output| output.status.success())
    }

    #[track_caller]
    fn all_are_enabled_and_active(&self) {
        for unit in UNITS {
            assert!(self.is("is-enabled", unit), "{unit}: {}", self.machine.journal());
            assert!(self.is("is-active", unit), "{unit}: {}", self.machine.journal());
        }
    }

    #[track_caller]
    fn nothing_runs(&self) {
        for unit in UNITS.into_iter().chain(STARTED) {
            assert!(!self.is("is-active", unit), "{unit} runs");
        }
        assert_eq!(self.machine.run("pgrep -x onedrop || true"), "");
    }

    fn property(&self, unit: &str, name: &str) -> String {
        self.machine.run(&format!("systemctl show -P {name} {unit}")).trim().to_owned()
    }

    /// The page of the whole, as a proxy asks for it.
    #[track_caller]
    fn a_page_is_served(&self) {
        let ask = "curl -sSf --unix-socket /run/onedrop/web.sock http://localhost";
        // On a busy machine one that was long in coming is cut off.
        let is_served = self.machine.soon(&format!("{ask}/ > /root/page"));
        assert!(is_served, "{}", self.machine.journal());
        let page = self.machine.run("cat /root/page");
        assert!(page.contains("<form") && page.contains("</html>"), "{page}");
        assert_eq!(self.machine.run(&format!("{ask}/healthz")), "ok\n");
    }

    /// Mode and owner of the configuration and of what the program may write.
    fn modes(&self) -> String {
        self.machine.run(
            "stat -c '%a %U:%G %n' /etc/onedrop /etc/onedrop/onedrop.toml /etc/onedrop/conf.d \
             /var/lib/onedrop",
        )
    }

    /// Every file of ledger and mail, by its bytes.
    fn ledger_and_mail(&self) -> String {
        self.machine.run("find /var/lib/onedrop -type f -exec sha256sum {} + | sort -k 2")
    }
}

const MODES: &str = "750 root:onedrop /etc/onedrop\n\
    640 root:onedrop /etc/onedrop/onedrop.toml\n\
    750 root:onedrop /etc/onedrop/conf.d\n\
    700 onedrop:onedrop /var/lib/onedrop\n";

/// What version 2 changes: the configuration that it brings, and a unit of each kind.
const SECOND: &str = "echo '# of version 2' >>etc/onedrop/onedrop.toml
    sed -i 's/^Description=.*/& 2/' usr/lib/systemd/system/onedrop-*";
const THIRD: &str = "echo '# of version 3' >>etc/onedrop/onedrop.toml";

#[test]
fn the_package_is_installed_upgraded_removed_and_purged() {
    let root = TempRoot::new();
    let one = packed();
    let two = repacked(&root, &one, "0.1.0-2", SECOND);
    let three = repacked(&root, &two, "0.1.0-3", THIRD);
    let machine = Machine::boot(|files| {
        for (package, name) in [(&one, "one"), (&two, "two"), (&three, "three")] {
            provide(files, package, &format!("/root/{name}.deb"));
        }
        let client = root.write("client", CLIENT);
        provide(files, &client, "/root/client");
    });
    let life = Life { machine };
    let machine = &life.machine;
    // What tests/run may have left there; and no index of all manual pages after each step.
    machine.run("rm -f /usr/sbin/policy-rc.d /var/lib/man-db/auto-update");

    // Installed: dpkg prints the steps word by word, and nothing runs or will.
    let said = machine.run("dpkg -i /root/one.deb");
    assert!(said.contains(&Page::read("packaging/next-steps").text), "{said}");
    life.nothing_runs();
    for unit in UNITS {
        let state = machine.try_run(&format!("systemctl is-enabled {unit}")).expect("systemctl");
        assert_eq!(told(&state), "disabled\n", "{unit}");
    }
    assert_eq!(life.modes(), MODES);
    assert_eq!(machine.run("stat -c '%a %U:%G' /run/onedrop"), "755 root:root\n");
    assert_eq!(machine.run("ls -A /var/lib/onedrop"), "", "migrate is not the package's to run");
    assert!(machine.run("man -w onedrop-jobs-run onedrop.toml").contains("man5"));
    machine.run("test -s /usr/share/doc/onedrop/conf/postfix/master.cf.onedrop");
    tools_take_the_alerts(machine);

    // Configured as the steps say, it delivers, and shows a page where that is asked for.
    machine.run(
        "cat >/etc/onedrop/conf.d/site.toml <<'EOF'
         [directory]
         domains = [\"mail.axial.net\"]
         [jobs.long]
         every = \"1d\"
         command = [\"sleep\", \"12345\"]
EOF
         runuser -u onedrop -- onedrop migrate
         runuser -u onedrop -- mkdir /var/lib/onedrop/mail/scuba",
    );
    machine.run(
        "systemctl enable --now onedrop-lmtp.socket onedrop-users.socket onedrop-lmtp.service",
    );
    // The ledger is a file: docs/web.md has what its pages need.
    let drop_in = "/etc/systemd/system/onedrop-web.service.d";
    machine.run(&format!(
        "install -D -m 644 /usr/share/onedrop/systemd/onedrop-web-sqlite.conf {drop_in}/sqlite.conf
         systemctl daemon-reload"
    ));
    machine
        .run("systemctl enable --now onedrop-jobs.timer onedrop-textfile.timer onedrop-web.socket");
    let socket = "stat -c '%i %a %U:%G' /run/onedrop/web.sock /run/onedrop/lmtp.sock";
    let sockets = machine.run(socket);
    assert!(sockets.contains(" 660 onedrop-web:onedrop-web\n"), "{sockets}");
    assert!(!life.is("is-active", "onedrop-web.service"), "nobody has asked for a page yet");
    life.a_page_is_served();
    machine.run("systemd-run --quiet --unit=client python3 /root/client");
    assert!(machine.soon("test \"$(cat /root/count)\" -gt 3"), "{}", machine.journal());

    // Upgraded while mail comes: other servers, with the new units, the same sockets, and no
    // message was refused. The configuration is the new package's.
    let servers = ["onedrop-lmtp.service", "onedrop-web.service"];
    let before = servers.map(|unit| life.property(unit, "MainPID"));
    machine.run("dpkg -i /root/two.deb");
    for (unit, before) in servers.into_iter().zip(before) {
        let now = life.property(unit, "MainPID");
        assert!(now != before && now != "0", "{unit}: the old program runs, or none");
    }
    for unit in UNITS.into_iter().chain(STARTED) {
        assert!(life.property(unit, "Description").ends_with(" 2"), "{unit} is the old one's");
    }
    assert_eq!(machine.run(socket), sockets, "other sockets");
    life.all_are_enabled_and_active();
    life.a_page_is_served();
    machine.run("rm /root/count");
    assert!(machine.soon("test \"$(cat /root/count)\" -gt 3"), "{}", machine.journal());
    machine.run("touch /root/enough");
    assert!(machine.soon("! systemctl is-active --quiet client"), "{}", machine.journal());
    let ended = machine.run("journalctl --no-pager -u client");
    assert!(!ended.contains("Traceback") && !ended.contains("with result"), "{ended}");
    let inbox = "find /var/lib/onedrop/mail/scuba/Maildir/new -type f | wc -l";
    assert_eq!(machine.run(inbox), machine.run("cat /root/count"));
    assert_eq!(machine.run(&format!("tail -n 1 {CONFFILE}")), "# of version 2\n");
    assert_eq!(life.modes(), MODES);

    // Upgraded where an administrator has changed the configuration, and stopped the servers: his
    // stays, the new one lies beside it for as few to read, and what was stopped stays so.
    machine.run(&format!("echo '# of mine' >>{CONFFILE}; cp {CONFFILE} /root/mine"));
    machine.run("systemctl stop onedrop-web.service onedrop-lmtp.service");
    machine.run(
        "DEBIAN_FRONTEND=noninteractive apt-get -o Dpkg::Options::=--force-confold \
         install -y /root/three.deb",
    );
    machine.run(&format!("cmp {CONFFILE} /root/mine"));
    assert_eq!(machine.run(&format!("tail -n 1 {CONFFILE}.dpkg-dist")), "# of version 3\n");
    let beside = machine.run(&format!("stat -c '%a %U:%G' {CONFFILE}.dpkg-dist"));
    assert_eq!((life.modes().as_str(), beside.as_str()), (MODES, "640 root:onedrop\n"));
    assert!(servers.iter().all(|unit| !life.is("is-active", unit)), "it was stopped");
    assert!(UNITS.iter().all(|unit| life.is("is-enabled", unit)), "it was enabled");

    // Removed: nothing runs, and what an administrator wrote stays, as do ledger and mail.
    life.a_page_is_served();
    machine.run("systemctl start onedrop-lmtp.service onedrop-jobs.service");
    assert!(machine.soon("pgrep -f 'sleep 1234[5]'"), "{}", machine.journal());
    machine.run("dpkg -r onedrop");
    life.nothing_runs();
    machine.run("! pgrep -f 'sleep 1234[5]'");
    let kept = life.ledger_and_mail();
    assert!(kept.contains("/ledger.db") && kept.contains("/mail/scuba/Maildir/new/"), "{kept}");
    machine.run(&format!("test ! -e /usr/bin/onedrop && cmp {CONFFILE} /root/mine"));
    assert_eq!(machine.run("find /run/onedrop -type s"), "");

    // Installed again: as before. What was enabled is.
    machine.run("dpkg -i /root/three.deb");
    assert!(UNITS.iter().all(|unit| life.is("is-enabled", unit)), "it was enabled");
    assert_eq!(life.modes(), MODES);
    machine.run(&format!("cmp {CONFFILE} /root/mine"));

    // What an administrator has opened to others stays so, and a configuration that is brought back
    // can be read by those who need it.
    machine.run(&format!("chmod 750 /var/lib/onedrop && rm {CONFFILE}"));
    machine.run("dpkg --force-confmiss -i /root/three.deb");
    let opened = MODES.replace("700 onedrop:onedrop", "750 onedrop:onedrop");
    assert_eq!(life.modes(), opened);

    // Purged: no configuration and no link of it stays; ledger and mail do, byte for byte.
    machine.run(&format!("rm -r {drop_in}"));
    let said = machine.run("dpkg -P onedrop");
    assert!(said.contains("Kept: /var/lib/onedrop"), "{said}");
    assert_eq!(life.ledger_and_mail(), kept);
    machine.run("test ! -e /etc/onedrop && ! ls -d /run/onedrop* && id onedrop");
    assert_eq!(machine.run("find /etc /var/lib/systemd -name '*onedrop*'"), "");

    // Where nothing was ever delivered, nothing stays.
    machine.run("mv /var/lib/onedrop /root/kept");
    machine.run("dpkg -i /root/one.deb && test -d /var/lib/onedrop && dpkg -P onedrop");
    machine.run("test ! -e /etc/onedrop && test ! -e /var/lib/onedrop");
}

/// By the page on monitoring, Prometheus finds the rules where the package puts them.
#[track_caller]
fn tools_take_the_alerts(machine: &Machine) {
    let blocks = Page::read("docs/monitoring.md").blocks();
    let block = blocks.iter().find(|block| block.text.contains("rule_files:")).expect("a block");
    let script = format!(
        "cat >/root/prometheus.yml <<'EOF'\n{}EOF\npromtool check config /root/prometheus.yml
         promtool test rules /usr/share/onedrop/prometheus/*.test.yml",
        block.text
    );
    let told = machine.run(&script);
    assert!(told.contains("SUCCESS: 1 rule files found"), "{told}");
    let block = blocks.iter().find(|block| block.text.contains("providers:")).expect("a block");
    let (_, folder) = block.text.split_once("path: ").expect("a folder");
    let folder = folder.split([' ', '}']).next().expect("a folder");
    machine.run(&format!("python3 -m json.tool {folder}/onedrop.json >/dev/null"));
}
