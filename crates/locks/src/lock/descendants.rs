//! The processes below one, by /proc (proc(5)): also those that left its process group or session.
//! The process that asks is a subreaper (PR_SET_CHILD_SUBREAPER), so that one whose parent has
//! ended is still below it. A process that is made meanwhile is met at the next round. A number may
//! be given anew while the processes are read, so each is looked at once more before its signal.

use std::collections::{HashMap, HashSet};
use std::fs;

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getpid};

/// Sends `signal` to every process below this one. One that ends in this moment, or is
/// another user's, is passed over.
pub(super) fn signal_all(signal: Signal) {
    let own = getpid();
    let found = below(own);
    // A parent may have ended by this very signal: then the child is this process's.
    let known: HashSet<Pid> = found.iter().copied().chain([own]).collect();
    for pid in found {
        if parent_of(pid).is_some_and(|parent| known.contains(&parent)) {
            let _ = kill(pid, signal);
        }
    }
}

/// The processes below `root`, children before their own.
pub(super) fn below(root: Pid) -> Vec<Pid> {
    let mut children: HashMap<Pid, Vec<Pid>> = HashMap::new();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    for pid in pids.map(Pid::from_raw) {
        if let Some(parent) = parent_of(pid) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let (mut found, mut at) = (children.remove(&root).unwrap_or_default(), 0);
    while let Some(pid) = found.get(at) {
        let own = children.remove(pid).unwrap_or_default();
        found.extend(own);
        at += 1;
    }
    found
}

/// Whether there are processes below `root`, and each of them runs: none has ended and waits for
/// its parent to hear of it.
pub(super) fn all_run_below(root: Pid) -> bool {
    let found = below(root);
    !found.is_empty()
        && found.into_iter().all(|pid| stat(pid).is_some_and(|(state, _)| state != 'Z'))
}

fn parent_of(pid: Pid) -> Option<Pid> {
    stat(pid).map(|(_, parent)| parent)
}

/// The third and fourth field of /proc/PID/stat; the second, the name, may hold blanks and
/// brackets.
fn stat(pid: Pid) -> Option<(char, Pid)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut rest = stat.rsplit_once(") ")?.1.split(' ');
    let state = rest.next()?.chars().next()?;
    Some((state, rest.next()?.parse().ok().map(Pid::from_raw)?))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn children_and_theirs_are_below() {
        let mut shell = Command::new("sh")
            .args(["-c", "sleep 60 & echo; wait"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let out = shell.stdout.take().unwrap();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line).unwrap();
        let pid = Pid::from_raw(i32::try_from(shell.id()).unwrap());
        let [sleep] = below(pid)[..] else { panic!("{:?}", below(pid)) };
        let mine = below(getpid());
        assert!(mine.contains(&pid) && mine.contains(&sleep), "{mine:?}");
        kill(sleep, Signal::SIGKILL).unwrap();
        shell.wait().unwrap();
        assert_eq!(below(pid), []);
    }
}
