//! A file's sync beside what its writer does meanwhile, by some threads that are kept for it.

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
    idle: Vec<Sender<Job>>,
    count: usize,
}

struct Job {
    file: Arc<File>,
    done: Sender<io::Result<()>>,
}

/// A sync that has begun, or is to be done at the end.
#[derive(Debug)]
pub struct Syncing {
    file: Arc<File>,
    done: Option<Receiver<io::Result<()>>>,
}

impl Syncing {
    /// Begins to sync `file`, if a helper is free.
    pub fn begin(file: &Arc<File>) -> Syncing {
        let (done, is_done) = channel();
        let is_begun = helper()
            .is_some_and(|helper| helper.send(Job { file: Arc::clone(file), done }).is_ok());
        Syncing { file: Arc::clone(file), done: is_begun.then_some(is_done) }
    }

    /// Waits until content and date are durable.
    ///
    /// # Errors
    /// What the file system says. It may say so only once (fsync(2)): the file is of no use then.
    pub fn end(self) -> io::Result<()> {
        match self.done.map(|done| done.recv()) {
            Some(Ok(synced)) => synced,
            // Whatever it heard is not said again.
            Some(Err(_)) => Err(io::Error::other("the thread that synced it is gone")),
            None => self.file.sync_all(),
        }
    }
}

/// One that is free, or a new one.
fn helper() -> Option<Sender<Job>> {
    let mut helpers = helpers();
    if let Some(helper) = helpers.idle.pop() {
        return Some(helper);
    }
    if helpers.count >= MOST {
        return None;
    }
    let (sender, jobs) = channel();
    let again = sender.clone();
    thread::Builder::new().name("sync".to_owned()).spawn(move || help(&jobs, &again)).ok()?;
    helpers.count += 1;
    Some(sender)
}

fn help(jobs: &Receiver<Job>, again: &Sender<Job>) {
    while let Ok(Job { file, done }) = jobs.recv() {
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
