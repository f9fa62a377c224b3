//! What the servers of a run promise (`tests/kit/src/shared.rs`).

use std::io::{BufRead as _, BufReader};
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};

use super::support::{TempRoot, shared, wait_until};
use super::*;

/// Its process has the name by which a run is known.
#[test]
fn a_run_has_one_postgres_for_all_and_when_it_is_killed_nothing_is_left() {
    let folder = TempRoot::new();
    let run = folder.join("cargo-run");
    symlink("/bin/sh", &run).expect("a link");
    let mut run = Command::new(run)
        .args(["-c", r#""$@" && "$@" && echo done; read end"#, "run"])
        .arg(std::env::current_exe().expect("this program"))
        .args(["--exact", "on_postgres::a_message_is_recorded_once"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a run");
    let said = BufReader::new(run.stdout.take().expect("stdout")).lines().map_while(Result::ok);
    let said: Vec<String> = said.take_while(|line| line != "done").collect();
    let passed = |line: &&String| line.starts_with("test result: ok. 1 passed");
    assert_eq!(said.iter().filter(passed).count(), 2, "{said:?}");
    let servers = shared::servers_of(run.id());
    let [server] = servers.as_slice() else { panic!("{servers:?}") };
    let answers = || TcpStream::connect(("127.0.0.1", server.port)).is_ok();
    assert!(server.folder.exists() && answers(), "{server:?}");
    run.kill().expect("killed");
    run.wait().expect("its end");
    let is_gone = || !server.folder.exists() && !answers();
    assert!(wait_until(Duration::from_secs(20), is_gone), "{server:?}");
}
