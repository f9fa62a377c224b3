//! What is shipped, built as it is shipped, which takes long: with `tests/run --full` alone. The
//! same bytes from two folders; a root of Debian with nothing else in it; a static program.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::machine::Machine;
use crate::package::{lint, told};
use crate::page::{PROJECT, Page};
use crate::set_up::{leads_from_the_package_to_the_first_mail, new_postfix, provide_package};
use crate::support::site::{Site, finish_delivery};
use crate::support::{TempRoot, is_full, run};

/// A copy of the sources.
fn copy(folder: PathBuf) -> PathBuf {
    fs::create_dir_all(&folder).expect("a folder");
    let copy = "tar -C \"$1\" --exclude=./target --exclude=./.git -c . | tar -C \"$2\" -x";
    run(Command::new("sh").args(["-euc", copy, "sh", PROJECT]).arg(&folder));
    folder
}

/// `packaging/build` in a copy; what it made.
fn build(folder: &Path, args: &[&str]) -> PathBuf {
    let mut build = Command::new(folder.join("packaging/build"));
    build.args(args).env_remove("CARGO_TARGET_DIR").stderr(Stdio::inherit());
    PathBuf::from(run(&mut build).lines().last().expect("what was made"))
}

#[test]
fn two_builds_have_the_same_bytes_and_a_bare_debian_takes_them() {
    if !is_full() {
        return;
    }
    let root = TempRoot::new();
    let copies = ["one", "another/folder"].map(|folder| copy(root.join(folder)));
    let [first, second] = copies.map(|folder| build(&folder, &[]));
    assert!(fs::read(&first).expect("one") == fs::read(&second).expect("another"), "they differ");
    lint(&first);
    for release in ["bookworm", "trixie"] {
        // A Debian with what every Debian has; apt brings what the package depends on.
        let debian = root.join(release);
        let mut bootstrap = Command::new("mmdebstrap");
        bootstrap.args(["--variant=apt", "--quiet", release]).arg(&debian);
        run(bootstrap.arg(mirror()));
        fs::copy("/etc/resolv.conf", debian.join("etc/resolv.conf")).expect("a copy");
        takes_the_package_where_no_system_runs(&debian, &first);
        leads_to_the_first_mail(&debian, &first);
    }
}

/// Where an image is built there is no /proc, and no systemd.
fn takes_the_package_where_no_system_runs(debian: &Path, package: &Path) {
    fs::copy(package, debian.join("onedrop.deb")).expect("a copy");
    // Without /proc; but a delivery needs it.
    let run_in = |before: &str, command: &str| {
        let clean = "env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C";
        let script = format!("{before}; exec chroot \"$1\" {clean} sh -euc \"$2\"");
        let mut chroot = Command::new("unshare");
        chroot.args(["--mount", "sh", "-euc", &script, "sh"]).arg(debian).arg(command);
        let output = chroot.output().expect("chroot");
        assert!(output.status.success(), "{command}: {}", told(&output));
        told(&output)
    };
    let inside = |command: &str| run_in("true", command);
    let apt = "DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends";
    let said = inside(&format!("apt-get update -qq; {apt} /onedrop.deb"));
    assert!(said.contains(&Page::read("packaging/next-steps").text), "{said}");
    assert!(inside("onedrop --version").starts_with("onedrop "));
    let modes = "stat -c '%a %U:%G' /etc/onedrop /etc/onedrop/onedrop.toml /var/lib/onedrop";
    assert_eq!(inside(modes), "750 root:onedrop\n640 root:onedrop\n700 onedrop:onedrop\n");
    inside("printf '[directory]\\ndomains = [\"a.example\"]\\n' >/etc/onedrop/conf.d/site.toml");
    inside("runuser -u onedrop -- onedrop migrate");
    // The folder says that there is such an account.
    inside("runuser -u onedrop -- mkdir -p /var/lib/onedrop/mail/scuba");
    let message = "printf 'Message-ID: <1@x>\\nSubject: x\\n\\nbody\\n'";
    let deliver = "runuser -u onedrop -- onedrop deliver -f '' -d scuba@a.example";
    let said = run_in("mount --bind /proc \"$1/proc\"", &format!("{message} | {deliver}"));
    assert!(said.starts_with("stored account=scuba"), "{said}");
    inside(&format!("{apt} --reinstall /onedrop.deb && dpkg -r onedrop && dpkg -P onedrop"));
    inside("test ! -e /etc/onedrop && test -d /var/lib/onedrop/mail/scuba");
    // As it was; Debian 13 has no userdel here.
    inside("rm -r /var/lib/onedrop; sed -i /^onedrop/d /etc/passwd /etc/group /etc/*shadow");
}

/// README's set-up, followed to its first mail, on a Debian that has booted: with Debian's own
/// Postfix, which install.md's lines have set up, and nothing else.
fn leads_to_the_first_mail(debian: &Path, package: &Path) {
    let script = "mount --bind /proc \"$1/proc\"; exec chroot \"$1\" env -i \
        PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends systemd-sysv postfix";
    run(Command::new("unshare").args(["--mount", "sh", "-euc", script, "sh"]).arg(debian));
    let machine = Machine::boot_from(debian, |files| provide_package(files, package));
    machine.run("postconf maillog_file=/var/log/mail.log");
    new_postfix(&machine);
    machine.run("systemctl start postfix");
    leads_from_the_package_to_the_first_mail(&machine, |_| ());
}

/// Where this host's packages come from.
fn mirror() -> String {
    let listed = run(Command::new("apt-get").args(["indextargets", "--format", "$(REPO_URI)"]));
    let debian = listed.lines().find(|line| line.ends_with("/debian/")).expect("a mirror");
    debian.to_owned()
}

#[test]
fn a_static_program_delivers_into_maildirs_and_by_postgres_and_imap() {
    if !is_full() {
        return;
    }
    let root = TempRoot::new();
    let program = build(&copy(root.join("static")), &["--static"]);
    let kind = run(Command::new("readelf").args(["--program-headers", "--wide"]).arg(&program));
    assert!(!kind.contains("INTERP"), "{kind}");
    let embedded = Site::embedded();
    delivers(&program, &embedded.config("host", ""));
    assert_eq!(embedded.inbox("scuba").len(), 1);
    let site = Site::with_servers();
    delivers(&program, &site.config("host", ""));
    assert_eq!(site.dovecot.count("scuba", "INBOX"), 1);
}

/// Twice, which leaves one copy.
fn delivers(program: &Path, config: &Path) {
    for said in ["stored account=scuba", "already there account=scuba"] {
        let mut deliver = Command::new(program);
        deliver.args(["deliver", "-f", "", "-d", "scuba@mail.axial.net", "--config"]).arg(config);
        deliver.current_dir(config.parent().expect("a folder"));
        deliver.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = deliver.spawn().expect("the program");
        let output = finish_delivery(child, b"Message-ID: <1@x>\nSubject: x\n\nbody\n");
        assert!(told(&output).starts_with(said), "{}", told(&output));
    }
}
