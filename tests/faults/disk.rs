//! What a power failure would leave, by the calls of a trace: a file's content is kept once it was
//! synced after its last write, a name once its folder was synced after the name was made
//! (fsync(2)). What was there before the trace is kept.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use crate::strace::Call;

const WRITES: [&str; 7] =
    ["write", "writev", "pwrite64", "pwritev", "ftruncate", "utimensat", "fallocate"];

/// What is kept at one moment.
#[derive(Debug, Default)]
pub struct Disk {
    /// Names made since the beginning, and whether they would be kept.
    names: HashMap<PathBuf, bool>,
    /// The file of each name that was linked.
    linked: HashMap<PathBuf, String>,
    /// When what was written last to a file was written.
    written: HashMap<String, usize>,
    /// When the last successful sync of a file or folder began.
    synced: HashMap<String, usize>,
    /// When a sync of a file failed last: what was written before may be lost, and no later sync
    /// says so (fsync(2)).
    spoiled: HashMap<String, usize>,
}

impl Disk {
    /// After the calls that had ended before line `moment` of the trace. `is_old` says whether a
    /// path was there before the trace.
    pub fn at(calls: &[Call], moment: usize, is_old: impl Fn(&Path) -> bool) -> Disk {
        let mut disk = Disk::default();
        let mut open: HashMap<i32, String> = HashMap::new();
        let mut made: Vec<(PathBuf, usize)> = Vec::new();
        let mut calls: Vec<&Call> = calls.iter().filter(|call| call.began < moment).collect();
        calls.sort_by_key(|call| call.ended);
        for call in calls {
            let name = &*call.name;
            if !call.worked() {
                if matches!(name, "fsync" | "fdatasync") {
                    disk.spoiled.insert(call.on().to_owned(), call.ended);
                }
                continue;
            }
            // A write counts from its beginning, all that makes something durable only from its
            // end.
            if WRITES.contains(&name) {
                disk.written.insert(call.on().to_owned(), call.ended);
            }
            if call.ended >= moment {
                continue;
            }
            match name {
                "openat" => {
                    if let Some((fd, path)) = call.returned() {
                        open.insert(fd, path.to_owned());
                        let path = PathBuf::from(path);
                        let makes = call.args.contains("O_CREAT")
                            && !made.iter().any(|(made, _)| *made == path);
                        if makes && !is_old(&path) {
                            made.push((path, call.ended));
                        }
                    }
                }
                "mkdir" => made.push((PathBuf::from(call.quoted(0)), call.ended)),
                "linkat" | "link" => {
                    let (from, to) = (call.quoted(0), PathBuf::from(call.quoted(1)));
                    let source =
                        match from.strip_prefix("/proc/self/fd/").and_then(|fd| fd.parse().ok()) {
                            Some(fd) => open.get(&fd).cloned().unwrap_or_default(),
                            None => from.to_owned(),
                        };
                    disk.linked.insert(to.clone(), source);
                    made.retain(|(path, _)| *path != to);
                    made.push((to, call.ended));
                }
                "unlink" | "unlinkat" => {
                    // Its absence is what is to be kept now.
                    let path = PathBuf::from(call.quoted(0));
                    made.retain(|(made, _)| *made != path);
                    made.push((path, call.ended));
                }
                "fsync" | "fdatasync" => {
                    disk.synced.insert(call.on().to_owned(), call.began);
                }
                _ => {}
            }
        }
        for (path, at) in made {
            let folder = path
                .parent()
                .map(|folder| folder.to_string_lossy().into_owned())
                .unwrap_or_default();
            let kept = disk.synced.get(&folder).is_some_and(|sync| *sync > at);
            disk.names.insert(path, kept);
        }
        disk
    }

    /// Whether all that was written to the file would be kept; not whether its name would.
    pub fn keeps_content(&self, path: &Path) -> bool {
        let file =
            self.linked.get(path).cloned().unwrap_or_else(|| path.to_string_lossy().into_owned());
        let Some(written) = self.written.get(&file) else { return true };
        self.synced.get(&file).is_some_and(|sync| sync > written)
            && self.spoiled.get(&file).is_none_or(|spoiled| written > spoiled)
    }

    /// The names on the way to `path`, itself included, that would not be there, or would be there
    /// again.
    pub fn lost_names(&self, path: &Path) -> Vec<PathBuf> {
        path.ancestors()
            .filter(|one| self.names.get(*one) == Some(&false))
            .map(Path::to_owned)
            .collect()
    }

    /// Panics unless file and name, and those of all folders above, would be kept.
    #[track_caller]
    pub fn assert_keeps(&self, path: &Path, when: &str) {
        assert!(
            self.keeps_content(path),
            "{when}: the content of {} is not synced",
            path.display()
        );
        let lost = self.lost_names(path);
        assert!(lost.is_empty(), "{when}: the folders of these names are not synced: {lost:?}");
    }
}
