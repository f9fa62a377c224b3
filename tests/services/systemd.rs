//! The units we ship, judged by systemd's own tools, which need no running systemd: they are well
//! formed, confined, and agree with each other and with tmpfiles about users, folders and the
//! socket.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use onedrop::config::Config;

use crate::support::TempRoot;

const UNITS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/systemd");
const NAMES: [&str; 9] = [
    "onedrop-jobs.service",
    "onedrop-jobs.timer",
    "onedrop-lmtp.service",
    "onedrop-lmtp.socket",
    "onedrop-textfile.service",
    "onedrop-textfile.timer",
    "onedrop-users.socket",
    "onedrop-web.service",
    "onedrop-web.socket",
];
/// The highest exposure that we accept: 0 is none, 10 all.
const EXPOSURE: [(&str, f64); 4] = [
    ("onedrop-lmtp.service", 2.0),
    ("onedrop-jobs.service", 2.5),
    ("onedrop-textfile.service", 2.0),
    ("onedrop-web.service", 2.0),
];

#[test]
fn systemd_finds_no_fault_with_the_units() {
    let units = Units::installed();
    let output = units.analyze(&["verify", "--man=no"], &NAMES);
    let said = String::from_utf8_lossy(&output.stderr);
    // What other packages' units lack is not ours to mend.
    let ours: Vec<_> = said.lines().filter(|line| line.contains("onedrop")).collect();
    assert!(ours.is_empty(), "{said}");
}

#[test]
fn the_services_are_confined() {
    let units = Units::installed();
    for (name, most) in EXPOSURE {
        let output = units.analyze(&["security", "--offline=true", "--no-pager"], &[name]);
        let told = String::from_utf8_lossy(&output.stdout);
        let overall = told.lines().find(|line| line.contains("Overall exposure level"));
        let exposure = overall
            .and_then(|line| line.rsplit_once(": ")?.1.split(' ').next()?.parse::<f64>().ok());
        assert!(
            exposure.is_some_and(|exposure| exposure <= most),
            "{name}: {told}{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

/// Its members may read the journal.
const JOURNAL: &str = "systemd-journal";

/// A job may need more than a server.
const SHARED: [&str; 9] = [
    "User",
    "Group",
    "UMask",
    "StateDirectory",
    "StateDirectoryMode",
    "ConfigurationDirectory",
    "ConfigurationDirectoryMode",
    "ProtectSystem",
    "NoNewPrivileges",
];

#[test]
fn jobs_run_as_the_server_does() {
    let (jobs, server) = (shipped("onedrop-jobs.service"), shipped("onedrop-lmtp.service"));
    for name in SHARED {
        assert_eq!(setting(&jobs, name), setting(&server, name), "{name}");
    }
    // The tick passes it on; what is left after the end of its time is systemd's.
    assert_eq!(setting(&jobs, "KillMode"), "mixed");
    let stop: u64 = setting(&jobs, "TimeoutStopSec").parse().expect("seconds");
    assert!(stop > 5 + 60 + 10, "grace, the lock's time, a call: {stop}");
}

/// By systemd's default a unit ends with any of its processes that is.
#[test]
fn a_job_that_is_killed_for_its_memory_ends_no_other_nor_the_server() {
    for name in ["onedrop-jobs.service", "onedrop-lmtp.service"] {
        assert_eq!(setting(&shipped(name), "OOMPolicy"), "continue", "{name}");
    }
}

/// systemd does so when the last unit of a user ends: after each tick.
#[test]
fn no_unit_removes_the_lines_of_those_that_wait_for_locks() {
    let user = setting(&shipped("onedrop-jobs.service"), "User").to_owned();
    for name in NAMES.iter().filter(|name| name.ends_with(".service")) {
        let unit = shipped(name);
        let removes = unit.lines().any(|line| line == "RemoveIPC=yes");
        assert_eq!(removes, setting(&unit, "User") != user, "{name}");
    }
    let drop_in = shipped("../conf/systemd/onedrop-web-sqlite.conf");
    assert_eq!((setting(&drop_in, "User"), setting(&drop_in, "RemoveIPC")), (&*user, "no"));
}

#[test]
fn units_and_tmpfiles_agree_about_the_folders() {
    let service = shipped("onedrop-lmtp.service");
    let tmpfiles = shipped("onedrop.tmpfiles.conf");
    let user = setting(&service, "User");
    for (kind, parent, owner) in [("State", "/var/lib", user), ("Configuration", "/etc", "root")] {
        let folder = format!("{parent}/{}", setting(&service, &format!("{kind}Directory")));
        let mode = setting(&service, &format!("{kind}DirectoryMode"));
        let line = tmpfiles.lines().map(|line| line.split_ascii_whitespace().collect::<Vec<_>>());
        let found = line
            .filter(|words| words.first() == Some(&"d"))
            .find(|words| words.get(1) == Some(&&*folder));
        // For a folder that is made; one that is there stays as it is.
        let made = [mode, owner, setting(&service, "Group")].map(|word| format!(":{word}"));
        assert_eq!(found, Some(vec!["d", &folder, &made[0], &made[1], &made[2]]));
    }
    // The socket's folder has an owner that no service changes.
    assert!(!service.lines().any(|line| line.starts_with("RuntimeDirectory")), "{service}");
    assert!(
        tmpfiles.lines().any(|line| line == "d /run/onedrop     0755 root    root"),
        "{tmpfiles}"
    );
    assert!(shipped("onedrop.sysusers.conf").contains(&format!("u {user} - ")));
}

#[test]
fn the_pages_have_a_user_of_their_own_and_are_served_only_where_it_is_asked_for() {
    let (web, server) = (shipped("onedrop-web.service"), shipped("onedrop-lmtp.service"));
    for name in ["UMask", "ProtectSystem", "NoNewPrivileges"] {
        assert_eq!(setting(&web, name), setting(&server, name), "{name}");
    }
    let user = setting(&web, "User");
    assert_ne!(user, setting(&server, "User"));
    let groups = format!("{} {JOURNAL}", setting(&server, "Group"));
    assert_eq!(setting(&web, "SupplementaryGroups"), groups);
    // systemd would give the folders of deliveries to this user.
    assert!(!web.contains("\nStateDirectory") && !web.contains("\nReadWritePaths"), "{web}");
    let socket = shipped("onedrop-web.socket");
    assert_eq!(
        ["SocketUser", "SocketGroup", "SocketMode"].map(|name| setting(&socket, name)),
        [user, setting(&web, "Group"), "0660"]
    );
    assert!(shipped("onedrop.sysusers.conf").contains(&format!("\nu {user} - ")));
    // The service comes with its socket's first client, and by nothing else.
    assert!(!web.contains("WantedBy"), "{web}");
    for proxy in ["conf/nginx/onedrop-web.conf", "conf/caddy/Caddyfile", "docs/web.md"] {
        let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(proxy));
        assert!(text.expect("a file").contains(setting(&socket, "ListenStream")), "{proxy}");
    }
}

/// A drop-in takes it away, and no upgrade brings it back: the users are no members.
#[test]
fn the_units_that_read_the_journal_name_its_group() {
    for name in ["onedrop-lmtp.service", "onedrop-textfile.service"] {
        assert_eq!(setting(&shipped(name), "SupplementaryGroups"), JOURNAL, "{name}");
    }
    let users = shipped("onedrop.sysusers.conf");
    assert!(!users.lines().any(|line| line.starts_with("m ")), "{users}");
}

#[test]
fn the_metrics_in_a_file_lie_where_the_page_says_and_only_where_they_are_asked_for() {
    let (textfile, server) = (shipped("onedrop-textfile.service"), shipped("onedrop-lmtp.service"));
    for name in SHARED.iter().filter(|name| !name.starts_with("StateDirectory")) {
        assert_eq!(setting(&textfile, name), setting(&server, name), "{name}");
    }
    // systemd would give the folder of deliveries to this user; where it is, it may be written.
    assert!(!textfile.contains("\nStateDirectory"), "{textfile}");
    let state = format!("-/var/lib/{}", setting(&server, "StateDirectory"));
    assert_eq!(setting(&textfile, "ReadWritePaths"), state);
    // Others read the file, between two runs as well.
    let folder = format!("/run/{}", setting(&textfile, "RuntimeDirectory"));
    assert_eq!(setting(&textfile, "RuntimeDirectoryMode"), "0755");
    assert_eq!(setting(&textfile, "RuntimeDirectoryPreserve"), "yes");
    let file = setting(&textfile, "ExecStart").rsplit(' ').next().expect("a file");
    assert_eq!(Path::new(file).parent(), Some(Path::new(&folder)));
    assert!(file.ends_with(".prom"), "{file}");
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/monitoring.md"));
    let page = page.expect("a page");
    assert!(page.contains(&format!("ln -s {file} ")), "{page}");
    assert!(page.contains("systemctl enable --now onedrop-textfile.timer"), "{page}");
    assert!(!textfile.contains("WantedBy"), "{textfile}");
}

#[test]
fn the_socket_is_the_one_that_the_configuration_names() {
    let socket = shipped("onedrop-lmtp.socket");
    let path = setting(&socket, "ListenStream");
    let conf = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/conf/onedrop.toml"))
        .expect("conf");
    assert!(conf.contains(&format!("\n# via = \"{path}\"\n")), "{path}");
    // deliver runs as that user; lmtp(8) as one of that group.
    let user = setting(&socket, "SocketUser").to_owned();
    assert_eq!(user, setting(&shipped("onedrop-lmtp.service"), "User"));
    assert_eq!(
        (setting(&socket, "SocketGroup"), setting(&socket, "SocketMode")),
        ("postfix", "0660")
    );
}

#[test]
fn a_stop_leaves_deliveries_the_time_to_end() {
    let limits = Config::default().limits;
    let service = shipped("onedrop-lmtp.service");
    let stop: u64 = setting(&service, "TimeoutStopSec").parse().expect("seconds");
    assert!(stop > limits.deadline_secs + limits.answer_secs, "{stop}");
}

/// The units in a temporary folder, with a program that every host has in place of ours.
struct Units {
    folder: TempRoot,
}

impl Units {
    fn installed() -> Self {
        let folder = TempRoot::new();
        for name in NAMES {
            let text = shipped(name).replace("=/usr/bin/onedrop ", "=/bin/true ");
            fs::write(folder.join(name), text).expect("a unit");
        }
        Self { folder }
    }

    fn analyze(&self, arguments: &[&str], units: &[&str]) -> Output {
        let mut command = Command::new("systemd-analyze");
        command.args(arguments).args(units.iter().map(|unit| self.folder.join(unit)));
        command.env("LC_ALL", "C").output().expect("systemd-analyze (Debian package systemd)")
    }
}

fn shipped(name: &str) -> String {
    fs::read_to_string(Path::new(UNITS).join(name)).expect("a shipped file")
}

/// The value of a setting that is there once.
fn setting<'a>(unit: &'a str, name: &str) -> &'a str {
    let values: Vec<_> =
        unit.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('=')).collect();
    assert_eq!(values.len(), 1, "{name} in\n{unit}");
    values[0]
}
