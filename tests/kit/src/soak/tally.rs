//! What has come into the Maildirs: each file is read, compared byte for byte with what was sent,
//! marked, and removed, so that the disk holds no more than what came in the last moments.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use super::mail::{ACCOUNTS, Letters, accounts};

/// Which copies were seen, a bit for each of a message's accounts.
pub struct Tally {
    seen: Vec<AtomicU8>,
    pub copies: AtomicU64,
}

impl Tally {
    pub fn new(messages: u64) -> Tally {
        let seen = (0..messages).map(|_| AtomicU8::new(0)).collect();
        Tally { seen, copies: AtomicU64::new(0) }
    }

    /// Takes what comes until `is_over`, and what is left then. Returns what is wrong.
    pub fn take(&self, mail: &Path, letters: &Letters, is_over: &AtomicBool) -> Vec<String> {
        let mut wrong = Vec::new();
        loop {
            let is_last = is_over.load(Ordering::SeqCst);
            let before = self.copies.load(Ordering::SeqCst);
            for account in 0..ACCOUNTS {
                let maildir = mail.join(format!("u{account}/Maildir"));
                for folder in ["new", "cur"] {
                    self.take_folder(&maildir.join(folder), account, letters, &mut wrong);
                }
            }
            if is_last {
                return wrong;
            }
            if self.copies.load(Ordering::SeqCst) == before {
                thread::sleep(Duration::from_millis(20));
            }
        }
    }

    fn take_folder(&self, folder: &Path, account: u64, letters: &Letters, wrong: &mut Vec<String>) {
        // A folder that no message has come to yet.
        for entry in fs::read_dir(folder).into_iter().flatten() {
            let path = entry.expect("an entry").path();
            let copy = fs::read(&path).expect("a copy");
            if let Err(why) = self.mark(account, &copy, letters) {
                wrong.push(format!("{}: {why}", path.display()));
            }
            fs::remove_file(&path).expect("a file of ours");
            self.copies.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn mark(&self, account: u64, copy: &[u8], letters: &Letters) -> Result<(), String> {
        let number = letters.number_of(copy)?;
        let seen = self.seen.get(number as usize).ok_or(format!("{number} was not sent"))?;
        let place = accounts(number).position(|one| one == account);
        let bit = 1 << place.ok_or(format!("{number} is not for this account"))?;
        match seen.fetch_or(bit, Ordering::SeqCst) & bit {
            0 => Ok(()),
            _ => Err(format!("{number} stands twice")),
        }
    }

    /// Copies that did not come, at most the first few.
    pub fn missing(&self) -> Vec<String> {
        let numbers = (0..).zip(&self.seen);
        let missing = numbers.flat_map(|(number, seen)| {
            let seen = seen.load(Ordering::SeqCst);
            let absent = move |(at, _): &(usize, u64)| seen & (1 << at) == 0;
            accounts(number)
                .enumerate()
                .filter(absent)
                .map(move |(_, account)| format!("{number} did not come to u{account}"))
        });
        missing.take(20).collect()
    }
}
