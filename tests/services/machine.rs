//! A machine of its own for what only a booted system shows: Debian's systemd as init in a
//! container (systemd-nspawn), on a throw-away copy of this host's files or of another root's, with
//! its own processes, network and /run. Nothing that happens in it reaches the host; all of it is
//! gone with the process that holds it. Needs root, overlayfs and the Debian package
//! systemd-container.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::support::server::{Server, guarded, tail};
use crate::support::{TempRoot, wait_until};

/// How long a boot or a command may take on a busy host.
const LONG: Duration = Duration::from_secs(120);

/// Makes the copy in a mount namespace of its own, takes out what this host would start at boot and
/// what a mail host has where the pages put theirs (users, files, mail in a queue), adds what the
/// test has prepared, and becomes the container.
const BOOT: &str = r#"
set -eu
umask 022
at=$1 name=$2 from=$3
mount -t tmpfs tmpfs "$at/disk"
upper=$at/disk/upper
mkdir "$upper" "$at/disk/work"
if [ "$from" = / ]; then
    for folder in etc usr var; do
        # An overlay does not cross into another file system.
        ! mountpoint -q "/$folder" || {
            echo "/$folder of this host is mounted by itself, and the machine would lack it" >&2
            exit 1
        }
    done
    # A device 0/0 hides what is below it, however much it is (overlayfs).
    for folder in etc/onedrop home/doug home/scuba srv usr/share/onedrop var/lib/onedrop; do
        mkdir -p "$(dirname "$upper/$folder")"
        [ ! -e "/$folder" ] || mknod "$upper/$folder" c 0 0
    done
fi
layers="lowerdir=$from,upperdir=$upper,workdir=$at/disk/work"
mount -t overlay overlay -o "$layers" "$at/root"
if [ "$from" = / ]; then
    cd "$at/root"
    rm -rf etc/systemd/system/*.wants etc/rc?.d etc/systemd/system/*onedrop* \
        etc/systemd/system/postfix* usr/bin/onedrop usr/lib/*.d/onedrop.conf \
        usr/lib/systemd/system/*onedrop* usr/lib/systemd/system/postfix*.d \
        etc/postfix/main.cf etc/postfix/master.cf etc/dovecot/local.conf etc/dovecot/conf.d \
        var/log/mail.log var/lib/dpkg/info/onedrop.* var/lib/dpkg/updates
    # Another folder than the host's, whose dpkg may be at work: an apt that sees its notes refuses.
    mkdir var/lib/dpkg/updates
    # As Debian has them.
    cp -r usr/share/dovecot/conf.d usr/share/dovecot/dovecot.conf etc/dovecot/
    for queue in active bounce defer deferred hold incoming maildrop; do
        rm -rf var/spool/postfix/$queue/*
    done
    sed -i '/^Package: onedrop$/,/^$/d' var/lib/dpkg/status
    for user in doug onedrop onedrop-web scuba vmail; do
        sed -i "/^$user:/d" etc/passwd etc/shadow etc/group etc/gshadow
    done
    mkdir -p srv
    cd /
fi
ln -sf /lib/systemd/system/multi-user.target "$at/root/etc/systemd/system/default.target"
: >"$at/root/etc/machine-id"
cp -a "$at/files/." "$at/root/"
exec systemd-nspawn --quiet --register=no --keep-unit --private-network --link-journal=no \
    --machine="$name" --directory="$at/root" --console=pipe --boot
"#;

pub struct Machine {
    // Declared first: dropped before its folder goes.
    _container: Server,
    root: TempRoot,
    /// The container's init, as the host numbers it.
    init: u32,
}

impl Machine {
    /// Boots a machine whose files are the host's and, over them, what `prepare` puts under the
    /// folder that it gets.
    pub fn boot(prepare: impl FnOnce(&Path)) -> Machine {
        Machine::boot_from(Path::new("/"), prepare)
    }

    /// The same with the files of the system under `from`.
    pub fn boot_from(from: &Path, prepare: impl FnOnce(&Path)) -> Machine {
        assert!(crate::support::is_root(), "a machine of its own needs root");
        let root = TempRoot::new();
        for folder in ["disk", "root", "files"] {
            fs::create_dir(root.join(folder)).expect("a folder");
        }
        prepare(&root.join("files"));
        let log = root.join("console");
        let console = fs::File::create(&log).expect("a log");
        let name = root.file_name().expect("a name").to_string_lossy().replace('_', "-");
        let mut command = guarded("unshare", None, Signal::SIGKILL);
        command.args(["--mount", "--propagation", "private", "sh", "-c", BOOT, "sh"]);
        command.arg(&*root).arg(name).arg(from).stdin(Stdio::null());
        command.stdout(console.try_clone().expect("a log")).stderr(console);
        let mut container = Server::start("systemd-nspawn", command, Signal::SIGKILL, &log);
        let mut init = None;
        let up = wait_until(LONG, || {
            assert!(!container.ended(), "no container: {}", tail(&log));
            init = init_of(container.pid());
            init.is_some()
        });
        assert!(up, "no init: {}", tail(&log));
        let machine = Machine { _container: container, root, init: init.expect("an init") };
        let mut state = String::new();
        let booted = wait_until(LONG, || {
            state = machine
                .try_run("systemctl is-system-running")
                .map_or(String::new(), |output| told(&output));
            matches!(state.trim(), "running" | "degraded")
        });
        assert!(booted, "not booted: {state}\n{}", machine.console());
        machine
    }

    /// Runs a shell's command as root in the machine, in `/`, and returns what it printed.
    #[track_caller]
    pub fn run(&self, command: &str) -> String {
        let output = self.try_run(command).expect("nsenter");
        assert!(output.status.success(), "{command}\n{}{}", told(&output), self.journal());
        told(&output)
    }

    pub fn try_run(&self, command: &str) -> std::io::Result<Output> {
        let mut nsenter = Command::new("timeout");
        nsenter.args([&LONG.as_secs().to_string(), "nsenter", "-t", &self.init.to_string()]);
        nsenter.args(["--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup"]);
        nsenter.args([
            "--",
            "env",
            "-i",
            "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
            "LC_ALL=C",
            "sh",
            "-euc",
            command,
        ]);
        nsenter.stdin(Stdio::null()).output()
    }

    /// Whether `command` succeeds, now or within a while.
    #[must_use]
    pub fn soon(&self, command: &str) -> bool {
        wait_until(LONG, || self.try_run(command).is_ok_and(|output| output.status.success()))
    }

    /// The machine's journal, for a test that fails.
    pub fn journal(&self) -> String {
        self.try_run("journalctl --no-pager --boot -n 200")
            .map_or(String::new(), |output| told(&output))
    }

    fn console(&self) -> String {
        tail(&self.root.join("console"))
    }
}

/// The container's first process: systemd-nspawn's child that has become init.
fn init_of(nspawn: u32) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{nspawn}/task/{nspawn}/children")).ok()?;
    let is_init = |pid: &u32| {
        fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "systemd")
    };
    children.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).find(is_init)
}

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Copies a file of the project into the files of a machine to be.
pub fn provide(files: &Path, from: &Path, to: &str) -> PathBuf {
    let path = files.join(to.trim_start_matches('/'));
    fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
    fs::copy(from, &path).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
    path
}
