//! Hosts beside each other: network, host name, mounts, temporary folder and time since the boot
//! are each one's own, a cable leads to the servers' host, which is this one.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::sys::signal::Signal;

use crate::support::dovecot::Dovecot;
use crate::support::postgres::Postgres;
use crate::support::server::{Server, guarded};
use crate::support::site::Site;
use crate::support::{TempRoot, remove_variables, run};

/// Of all namespaces but the host's own network.
const NAMESPACES: [&str; 3] = ["--uts", "--mount", "--time"];

/// What all hosts call the mail server, each at the address on its own cable.
const MAIL_SERVER: &str = "mail.axial.net";

/// A process that holds a host's namespaces; with its end they go, and the cable with them, also
/// when we are killed.
pub struct Host {
    holder: Server,
    cable: String,
    /// The servers' address on this host's cable.
    pub server: String,
    /// This host's.
    own: String,
    /// With its configuration, `onedrop.toml`.
    pub folder: PathBuf,
}

impl Host {
    pub fn start(root: &TempRoot, n: usize, net: u8) -> Host {
        let folder = root.dir_for(&format!("host{n}"), "root", 0o755);
        // RFC 2544's range for benchmarks: in use nowhere else.
        let (server, own) =
            (format!("198.18.{net}.{}", 4 * n + 1), format!("198.18.{net}.{}", 4 * n + 2));
        let script = format!(
            "set -e; echo mx{n} >/proc/sys/kernel/hostname; mkdir {0}/tmp; mount -t tmpfs tmpfs \
             {0}/tmp; echo {server} {MAIL_SERVER} >{0}/hosts; mount --bind {0}/hosts /etc/hosts; : \
             >{0}/ready; exec sleep 1000",
            folder.display()
        );
        let log = folder.join("log");
        let mut command = guarded("unshare", None, Signal::SIGKILL);
        // One was started a day before the next.
        let up = (n * 86_400).to_string();
        command.arg("--net").args(NAMESPACES).args(["--boottime", &up, "sh", "-c", &script]);
        command.stdin(Stdio::null());
        command
            .stdout(fs::File::create(&log).expect("log"))
            .stderr(fs::File::create(&log).expect("log"));
        let mut holder = Server::start("host", command, Signal::SIGKILL, &log);
        holder.wait_ready(|| folder.join("ready").exists());
        let (pid, cable) = (holder.pid().to_string(), format!("od{}h{n}", std::process::id()));
        let ip = |args: &[&str]| run(Command::new("ip").args(args));
        let inside = |args: &[&str]| {
            run(Command::new("nsenter").args(["-t", &pid, "--net", "ip"]).args(args))
        };
        ip(&["link", "add", &cable, "type", "veth", "peer", "name", "eth0", "netns", &pid]);
        let host = Host { holder, cable, server, own, folder };
        ip(&["addr", "add", &format!("{}/30", host.server), "dev", &host.cable]);
        ip(&["link", "set", &host.cable, "up"]);
        inside(&["link", "set", "lo", "up"]);
        inside(&["addr", "add", &format!("{}/30", host.own), "dev", "eth0"]);
        inside(&["link", "set", "eth0", "up"]);
        host
    }

    /// The command that starts another with this host's namespaces.
    pub fn entrance(&self) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.holder.pid().to_string(), "--net"]).args(NAMESPACES).arg("--");
        command
    }

    /// `program` with this host's namespaces, to be completed and started.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = self.entrance();
        command.arg(program);
        remove_variables(&mut command);
        command
    }

    /// Pulls the cable, until it is plugged in again: packets are lost without a word.
    pub fn plug(&self, is_in: bool) {
        let state = if is_in { "up" } else { "down" };
        run(Command::new("ip").args(["link", "set", &self.cable, state]));
    }

    /// Drops every packet of this host's present TCP connections, both ways and without a word, as
    /// a firewall does that has forgotten them; new ones are let through.
    pub fn forget_connections(&self) -> Forgotten {
        // What cannot be answered by where it came in is not let in (rp_filter in the kernel's
        // ip-sysctl.rst).
        fs::write(format!("/proc/sys/net/ipv4/conf/{}/rp_filter", self.cable), "1")
            .expect("sysctl");
        let connections =
            run(Command::new("ss").args(["-Htn", "state", "established", "dst", &self.own]));
        let port =
            |line: &str| Some(line.split_ascii_whitespace().nth(3)?.rsplit_once(':')?.1.to_owned());
        let forgotten = Forgotten {
            host: self.own.clone(),
            ports: connections.lines().filter_map(port).collect(),
        };
        for port in &forgotten.ports {
            run(forgotten.rule("add", port).args(["priority", "1"]));
        }
        forgotten
    }
}

/// Connections whose packets are dropped for as long as this lives.
pub struct Forgotten {
    host: String,
    /// Of their ends on the host.
    pub ports: Vec<String>,
}

impl Forgotten {
    fn rule(&self, what: &str, port: &str) -> Command {
        let mut command = Command::new("ip");
        command.args([
            "rule",
            what,
            "to",
            &self.host,
            "ipproto",
            "tcp",
            "dport",
            port,
            "blackhole",
        ]);
        command
    }
}

impl Drop for Forgotten {
    fn drop(&mut self) {
        for port in &self.ports {
            let _ = self.rule("del", port).stderr(Stdio::null()).status();
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ =
            Command::new("ip").args(["link", "del", &self.cable]).stderr(Stdio::null()).status();
    }
}

/// Removes the rules that killed tests have left: with a test goes its cable, and with the cable
/// every address of its net.
fn clean_rules() {
    // Rules first: one that we see has its address until its test removes it.
    let rules = run(Command::new("ip").args(["-4", "rule"]));
    let addresses = run(Command::new("ip").args(["-4", "-o", "addr"]));
    for rule in rules.lines() {
        let words: Vec<&str> = rule.split_ascii_whitespace().collect();
        if let ["1:", "from", "all", "to", host, "ipproto", "tcp", "dport", port, "blackhole"] =
            words[..]
            && host.starts_with("198.18.")
            && let Some((net, _)) = host.rsplit_once('.')
            && !addresses.contains(&format!(" {net}."))
        {
            drop(Forgotten { host: host.to_owned(), ports: vec![port.to_owned()] });
        }
    }
}

/// A /24 of which no address is on this machine, and to which no rule leads.
pub fn free_net() -> u8 {
    clean_rules();
    let taken = run(Command::new("ip").args(["-4", "-o", "addr"]))
        + &run(Command::new("ip").args(["-4", "rule"]));
    let first = std::process::id() % 250;
    let nets = (0..250).map(|step| u8::try_from((first + step) % 250).expect("below 250"));
    nets.into_iter()
        .find(|net| !taken.contains(&format!(" 198.18.{net}.")))
        .expect("a free network")
}

/// Lines for the configuration of a Postgres on loopback and on the hosts' cables.
pub fn on_all_cables(hosts: &[Host], root: &TempRoot, net: u8) -> String {
    let access = format!(
        "local all all trust\nlocal replication all trust\n\
         host all onedrop 198.18.{net}.0/24 scram-sha-256\n"
    );
    let hba = root.write("pg_hba.conf", access);
    let addresses: Vec<&str> = hosts.iter().map(|host| &*host.server).collect();
    format!(
        "listen_addresses = '127.0.0.1,{}'\nhba_file = '{}'",
        addresses.join(","),
        hba.display()
    )
}

/// One Postgres and one Dovecot on loopback and on the hosts' cables, and each host's
/// configuration, with `more` at its end.
pub fn servers(hosts: &[Host], root: TempRoot, net: u8, more: &str) -> Site {
    let addresses: Vec<&str> = hosts.iter().map(|host| &*host.server).collect();
    let settings = on_all_cables(hosts, &root, net);
    let dovecot = Dovecot::start_high_performance_on(&addresses);
    let site = Site::of(Postgres::start_with(&settings), dovecot, root);
    for (n, host) in hosts.iter().enumerate() {
        let url = site.postgres.url_tcp().replace("127.0.0.1", &host.server);
        let ledger = format!(
            "[ledger]\nurl = \"{url}?sslmode=disable\"\npassword_file = \"$DIR/ledger.password\"\n"
        );
        let config = site.config(&format!("config{n}"), &format!("{ledger}{more}"));
        let text = fs::read_to_string(config).expect("configuration");
        let text = text.replace("imap://127.0.0.1:", &format!("imap://{MAIL_SERVER}:"));
        fs::write(host.folder.join("onedrop.toml"), text).expect("configuration");
    }
    site
}
