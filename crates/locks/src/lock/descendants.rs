//! The processes below one, by /proc (proc(5)): also those that left its process group or session.
//! The process that asks is a subreaper (PR_SET_CHILD_SUBREAPER), so that one whose parent has
//! ended is still below it. A process that is made meanwhile is met at the next round. A number may
//! be given anew while the processes are read, so each is looked at once more before its signal.
//! What /proc hides (its mount's hidepid) is found in its parent's list of children, unless that
//! one is hidden, too.

use std::collections::{HashMap, HashSet};
use std::fs;

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getpid};

/// Sends `signal` to every process below this one. One that ends in this moment, or is another
/// user's, is passed over. `child` is one that this process has not waited for: its number is no
/// other's, whatever /proc shows.
pub(super) fn signal_all(signal: Signal, child: Option<Pid>) {
    let own = getpid();
    let found = below(own);
    // A parent may have ended by this very signal: then the child is this process's.
    let known: HashSet<Pid> = found.iter().map(|(pid, _)| *pid).chain([own]).collect();
    // It may have been waited for in this moment: then /proc has another's by its number, or none.
    let child = child.filter(|child| parent_of(*child).is_none_or(|parent| parent == own));
    if let Some(child) = child.filter(|child| !known.contains(child)) {
        let _ = kill(child, signal);
    }
    for (pid, parent) in found {
        let is_still_below = match parent_of(pid) {
            Some(parent) => known.contains(&parent),
            None => [parent, own].into_iter().any(|of| listed(of).contains(&pid)),
        };
        if is_still_below || child == Some(pid) {
            let _ = kill(pid, signal);
        }
    }
}

/// The processes below `root`, each with its parent and after it.
pub(super) fn below(root: Pid) -> Vec<(Pid, Pid)> {
    let mut children: HashMap<Pid, Vec<Pid>> = HashMap::new();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    for pid in pids.map(Pid::from_raw) {
        if let Some(parent) = parent_of(pid) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let (mut found, mut known) = (vec![(root, root)], HashSet::from([root]));
    let mut at = 0;
    while let Some(&(parent, _)) = found.get(at) {
        let shown = children.remove(&parent).unwrap_or_default();
        for pid in shown.into_iter().chain(listed(parent)) {
            if known.insert(pid) {
                found.push((pid, parent));
            }
        }
        at += 1;
    }
    found.split_off(1)
}

/// Whether there are processes below `root`, and each of them runs: none has ended and waits for
/// its parent to hear of it.
pub(super) fn all_run_below(root: Pid) -> bool {
    let found = below(root);
    !found.is_empty()
        && found.into_iter().all(|(pid, _)| stat(pid).is_some_and(|(state, _)| state != 'Z'))
}

/// The children of all threads of `of` (proc_pid_task(5)), hidden or not. A kernel may be built
/// without such lists, and one that is read while a child ends may lack others.
fn listed(of: Pid) -> Vec<Pid> {
    let tasks = fs::read_dir(format!("/proc/{of}/task")).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let all: String = lists.collect();
    all.split_whitespace().filter_map(|pid| pid.parse().ok()).map(Pid::from_raw).collect()
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
        let [(sleep, parent)] = below(pid)[..] else { panic!("{:?}", below(pid)) };
        assert_eq!((parent, listed(pid)), (pid, vec![sleep]));
        let mine = below(getpid());
        assert!(mine.contains(&(pid, getpid())) && mine.contains(&(sleep, pid)), "{mine:?}");
        kill(sleep, Signal::SIGKILL).unwrap();
        shell.wait().unwrap();
        assert!(below(pid).is_empty(), "{:?}", below(pid));
    }
}
