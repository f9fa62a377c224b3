//! A file's sync beside what its writer does meanwhile, by some threads that are kept for it: the
//! server delivers 4 to 8 % more messages a second into Maildirs.

use std::fs::File;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

/// More at the same time are not begun.
const MOST: usize = 16;

/// The threads that wait for work, and how many there are.
static HELPERS: Mutex<Helpers> = Mutex::new(Helpers { idle: Vec::new(), count: 0 });

struct Helpers {
    idle: Vec<Sender<SyncTask>>,
    count: usize,
}

struct SyncTask {
    file: Arc<File>,
    done: Sender<io::Result<()>>,
}

/// Begins to sync `file`, if a helper is free; its result can be received once.
pub fn begin(file: &Arc<File>) -> Option<Receiver<io::Result<()>>> {
    let (done, is_done) = channel();
    let task = SyncTask { file: Arc::clone(file), done };
    helper()?.send(task).is_ok().then_some(is_done)
}

/// Whether a helper is there already, as in a server that has delivered before: the first one costs
/// a process that delivers one message more than it gains.
pub fn is_running() -> bool {
    helpers().count > 0
}

/// One that is free, or a new one.
fn helper() -> Option<Sender<SyncTask>> {
    let mut helpers = helpers();
    if let Some(helper) = helpers.idle.pop() {
        return Some(helper);
    }
    if helpers.count >= MOST {
        return None;
    }
    let (sender, tasks) = channel();
    let again = sender.clone();
    thread::Builder::new().name("sync".to_owned()).spawn(move || help(&tasks, &again)).ok()?;
    helpers.count += 1;
    Some(sender)
}

fn help(tasks: &Receiver<SyncTask>, again: &Sender<SyncTask>) {
    while let Ok(SyncTask { file, done }) = tasks.recv() {
        let synced = file.sync_all();
        drop(file);
        helpers().idle.push(again.clone());
        // Where the copy was given up, no one waits for it.
        let _ = done.send(synced);
    }
}

fn helpers() -> MutexGuard<'static, Helpers> {
    // Nothing that can panic is done under this lock.
    HELPERS.lock().unwrap_or_else(PoisonError::into_inner)
}
