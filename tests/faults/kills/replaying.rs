//! `onedrop replay` of an mbox with a state file.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use super::settings::{RETRY_LIMIT, Setting};
use super::sites::{Combination, Standing, files};
use crate::support::letters::from_ann;
use crate::support::site::run;
use crate::support::{onedrop_path, wait_until};

const LETTERS: [&str; 2] = ["first", "second"];

pub struct Replaying<'a>(pub &'a Combination);

impl Replaying<'_> {
    fn account(id: &str) -> String {
        format!("again-{id}")
    }

    fn letter(name: &str, id: &str) -> String {
        from_ann(&format!("{name}-{id}")) + "From here on all is well.\n"
    }

    fn state(&self, id: &str) -> PathBuf {
        self.0.site.root.join(id).join("state")
    }

    fn arguments(&self, id: &str) -> Vec<String> {
        let begin = "From ann@elsewhere.example Mon Jan  5 10:00:00 2015\n";
        let mbox = |name| {
            format!("{begin}{}\n", Replaying::letter(name, id).replace("\nFrom h", "\n>From h"))
        };
        let mbox = self.0.site.root.write(&format!("{id}/old.mbox"), LETTERS.map(mbox).concat());
        // A file that is written again would be another one.
        let then = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_700_000_000);
        let file = fs::File::options().write(true).open(&mbox).expect("the mbox");
        file.set_modified(then).expect("a date");
        let to = format!("{}@mail.axial.net", Replaying::account(id));
        let (mbox, state) = (mbox.display().to_string(), self.state(id).display().to_string());
        ["replay", "--mbox", "rd", "--to", &to, "--state", &state, &mbox].map(str::to_owned).into()
    }
}

impl Setting for Replaying<'_> {
    fn name(&self) -> String {
        format!("{} replay", self.0.name())
    }

    fn prepare(&self, id: &str) {
        self.0.make_home(&Replaying::account(id));
    }

    fn run(&self, id: &str, mut strace: Command) -> Output {
        strace.arg(onedrop_path()).args(self.arguments(id)).arg("--config").arg(self.0.config(id));
        strace.stdin(Stdio::null()).output().expect("strace")
    }

    fn standing(&self, id: &str) -> Standing {
        self.0.standing(id, &[(Replaying::account(id), "INBOX")])
    }

    fn bring_to_an_end(&self, id: &str) -> Result<usize, String> {
        let (config, arguments) = (self.0.config(id), self.arguments(id));
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let (mut tries, mut last) = (0, None);
        // One run waits for the killed one's lease; on a busy machine a deadline may come first.
        let done = wait_until(RETRY_LIMIT, || {
            tries += 1;
            let output = run(&config, &arguments);
            let is_done = output.status.success();
            last = Some(output);
            is_done
        });
        if !done {
            return Err(format!("not replayed after {tries} tries: {last:?}"));
        }
        let again = run(&config, &arguments);
        let said = String::from_utf8_lossy(&again.stderr).into_owned();
        match said.as_str() {
            "2 messages: 2 done by an earlier run\n" => Ok(tries),
            _ => Err(format!("replayed once more: {said}")),
        }
    }

    fn judge(&self, id: &str) -> Result<(), String> {
        let account = Replaying::account(id);
        let there = self.0.mailbox(id, &account, "INBOX");
        for name in LETTERS {
            let letter = Replaying::letter(name, id);
            let is_it = |copy: &&Vec<u8>| self.0.is_copy("INBOX", copy, letter.as_bytes());
            let count = there.iter().filter(is_it).count();
            if (count, there.len()) != (1, LETTERS.len()) {
                return Err(format!("{count} of the {name}, {} in all", there.len()));
            }
        }
        let standing = self.standing(id);
        if (standing.placed, standing.in_doubt) != (LETTERS.len(), 0) {
            return Err(format!("{standing:?}"));
        }
        let tmp = self.0.mail_root(id).join(account).join("Maildir/tmp");
        match self.0.dovecot.is_some() || files(&tmp).is_empty() {
            true => Ok(()),
            false => Err(format!("litter: {:?}", files(&tmp))),
        }
    }
}
