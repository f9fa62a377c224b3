//! What is killed: a delivery, a repair, settle, a migration, the LMTP server; what brings it to an
//! end, and what must hold then.

use std::fs::{self, File};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use super::sites::{Combination, Kind, Standing, files, litter};
use crate::support::lmtp::{Launch, Lmtp};
use crate::support::lmtp_client::LmtpClient;
use crate::support::site::{deliver, delivered, run, settle_kept};
use crate::support::{onedrop_path, wait_until};

/// Postfix would try for days; here a lease and a few tries must do.
pub const RETRY_LIMIT: Duration = Duration::from_secs(25);
/// Between two tries of a command that waits for nothing.
const PACE: Duration = Duration::from_millis(200);
const PATIENCE: Duration = Duration::from_secs(20);

/// Something to be killed.
pub trait Setting: Sync {
    fn name(&self) -> String;
    /// Makes all that run `id` finds.
    fn prepare(&self, id: &str);
    /// Runs it to its end, or its death, by `strace`: a command to which the program and its
    /// arguments are added.
    fn run(&self, id: &str, strace: Command) -> Output;
    /// What a run ends with if it is not killed.
    fn status(&self) -> i32 {
        0
    }
    /// What there is after a kill.
    fn standing(&self, id: &str) -> Standing;
    /// Runs it until it has done all. Says how often it took.
    fn bring_to_an_end(&self, id: &str) -> Result<usize, String>;
    /// Places copies for Sent that a busy mail server kept it from placing. Says how many.
    fn settle(&self, _id: &str) -> Result<usize, String> {
        Ok(0)
    }
    fn judge(&self, id: &str) -> Result<(), String>;
}

/// `onedrop deliver`.
pub struct Delivery<'a> {
    pub site: &'a Combination,
    pub kind: Kind,
}

impl Delivery<'_> {
    fn message_file(&self, id: &str) -> PathBuf {
        self.site.site.root.write(&format!("{id}/message"), self.kind.message(id))
    }
}

impl Setting for Delivery<'_> {
    fn name(&self) -> String {
        format!("{} {:?}", self.site.name(), self.kind)
    }

    fn prepare(&self, id: &str) {
        self.site.prepare(id, self.kind);
    }

    fn run(&self, id: &str, mut strace: Command) -> Output {
        strace.arg(onedrop_path()).args(["deliver", "--config"]).arg(self.site.config(id));
        strace
            .args(self.kind.arguments(id))
            .stdin(File::open(self.message_file(id)).expect("message"));
        strace.output().expect("strace")
    }

    fn standing(&self, id: &str) -> Standing {
        self.site.standing(id, &self.kind.copies(id))
    }

    fn bring_to_an_end(&self, id: &str) -> Result<usize, String> {
        let (config, message, arguments) =
            (self.site.config(id), self.kind.message(id), self.kind.arguments(id));
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let (mut tries, mut last) = (0, None);
        let done = wait_until(RETRY_LIMIT, || {
            // The wait for locks and leases inside paces the tries.
            tries += 1;
            let output = deliver(&config, &arguments, &message);
            // On a busy machine a deadline may come between the recipient's copy and Sent's.
            let said = String::from_utf8_lossy(&output.stdout);
            let is_over = output.status.code() != Some(75) && !said.contains("kept for later");
            last = Some(output);
            is_over
        });
        if !done || !last.as_ref().is_some_and(|output| output.status.success()) {
            return Err(format!("not delivered again after {tries} tries: {last:?}"));
        }
        // A delivery of what is delivered changes nothing, however busy the machine is.
        let again = deliver(&self.site.patient_config(id), &arguments, &message);
        let said = String::from_utf8_lossy(&again.stdout).into_owned();
        if again.status.code() != Some(0)
            || !said.contains("already there ")
            || said.contains("stored ")
        {
            return Err(format!("delivered once more: {again:?}"));
        }
        Ok(tries)
    }

    fn judge(&self, id: &str) -> Result<(), String> {
        self.site.judge(id, &self.kind.copies(id), &self.kind.message(id))
    }
}

/// `onedrop verify --repair` of an account with one copy that has a double and another that is in
/// doubt.
pub struct Repair<'a>(pub &'a Combination);

impl Repair<'_> {
    fn account(id: &str) -> String {
        format!("mend-{id}")
    }

    fn letter(name: &str, id: &str) -> Vec<u8> {
        format!("From: ann@elsewhere.example\nMessage-ID: <{name}-{id}@x>\n\nA letter, {name}.\n")
            .into_bytes()
    }
}

impl Setting for Repair<'_> {
    fn name(&self) -> String {
        format!("{} verify --repair", self.0.name())
    }

    fn prepare(&self, id: &str) {
        self.0.make_home(&Repair::account(id));
        let (config, account, double) =
            (self.0.patient_config(id), Repair::account(id), Repair::letter("double", id));
        let recipient = format!("{account}@mail.axial.net");
        delivered(&config, &["-d", &recipient], &double);
        if let (Some(dovecot), Some(_)) = (&self.0.dovecot, &self.0.filters) {
            // A later try's, which its server carried out late.
            let [copy] = &dovecot.messages(&account, "INBOX")[..] else { panic!("{id}: one") };
            let copy = String::from_utf8_lossy(copy);
            let later = copy.replacen("X-Onedrop-Try: 1\r\n", "X-Onedrop-Try: 2\r\n", 1);
            assert_ne!(later, copy);
            let appended = dovecot.session(&account).append("INBOX", "", later.as_bytes());
            assert!(appended.is_ok_and(|answer| answer.is_ok()), "{id}: no double");
        } else if let Some(dovecot) = &self.0.dovecot {
            let date = self.0.value(
                id,
                &format!(
                    "SELECT to_char(m.recorded_at AT TIME ZONE 'UTC', 'DD-Mon-YYYY HH24:MI:SS') || \
                     ' +0000' FROM onedrop_message m JOIN onedrop_copy c ON c.message_id = m.id \
                     WHERE c.account = '{account}'"
                ),
            );
            let date = date.expect("a date");
            let options = format!("\"{}\"", date.trim());
            let appended =
                dovecot.session(&account).append("INBOX", &options, &self.0.stored(&double));
            assert!(appended.is_ok_and(|answer| answer.is_ok()), "{id}: no double");
        } else {
            // A reader has renamed the first, and a late delivery has linked its own.
            let maildir = self.0.mail_root(id).join(&account).join("Maildir");
            let name = files(&maildir.join("new")).concat();
            let (copy, read) =
                (maildir.join("new").join(&name), maildir.join("cur").join(format!("{name}:2,S")));
            fs::copy(&copy, &read).expect("a double");
            let date = fs::metadata(&copy).and_then(|copy| copy.modified()).expect("a date");
            File::open(&read).and_then(|read| read.set_modified(date)).expect("a date");
        }
        self.0
            .execute(id, &format!("UPDATE onedrop_copy SET epoch = 2 WHERE account = '{account}'"));
        delivered(&config, &["-d", &recipient], &Repair::letter("doubt", id));
        self.0.forget_receipts(id, &format!("account = '{account}' AND epoch = 1"));
    }

    fn run(&self, id: &str, mut strace: Command) -> Output {
        strace.arg(onedrop_path()).args([
            "verify",
            "--repair",
            // One thread, whose calls come in one order.
            "--parallel=1",
            "--account",
            &Repair::account(id),
            "--config",
        ]);
        strace.arg(self.0.config(id)).stdin(Stdio::null()).output().expect("strace")
    }

    fn standing(&self, id: &str) -> Standing {
        self.0.standing(id, &[(Repair::account(id), "INBOX")])
    }

    fn bring_to_an_end(&self, id: &str) -> Result<usize, String> {
        let (mut tries, mut last) = (0, None);
        let done = wait_until(RETRY_LIMIT, || {
            tries += 1;
            let output =
                run(&self.0.config(id), &["verify", "--repair", "--account", &Repair::account(id)]);
            // A run leaves alone what the killed one still has its lease of, and a double that it
            // only came to mark.
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            let is_quiet = said
                .lines()
                .all(|line| line.starts_with("info ") && line.contains("is marked as deleted"));
            let is_done = output.status.success() && is_quiet && self.standing(id).in_doubt == 0;
            last = Some(output);
            is_done
        });
        if done { Ok(tries) } else { Err(format!("not repaired: {last:?}")) }
    }

    fn judge(&self, id: &str) -> Result<(), String> {
        let account = Repair::account(id);
        let mut there = self.0.mailbox(id, &account, "INBOX");
        if let Some(dovecot) = &self.0.dovecot {
            // Killed between the two commands of a removal: the owner sees it struck out, and it
            // goes with the next EXPUNGE.
            let mut flags = dovecot.flags(&account, "INBOX").into_iter();
            there.retain(|_| {
                flags.next().is_some_and(|flags| !flags.contains(&"\\Deleted".to_owned()))
            });
        }
        let letters = ["double", "doubt"].map(|name| Repair::letter(name, id));
        let once = |letter: &Vec<u8>| {
            there.iter().filter(|copy| self.0.is_copy("INBOX", copy, letter)).count() == 1
        };
        if there.len() != letters.len() || !letters.iter().all(once) {
            return Err(format!("{} copies, or other bytes", there.len()));
        }
        if let Some(tries) = self.0.filters.is_some().then(|| tries(&there))
            && tries != [1, 1]
        {
            return Err(format!("the later try stayed: {tries:?}"));
        }
        let standing = self.standing(id);
        let left = litter(&self.0.mail_root(id).join(&account));
        match (standing.placed, standing.in_doubt) {
            _ if self.0.dovecot.is_none() && !left.is_empty() => Err(format!("litter: {left:?}")),
            (2, 0) => Ok(()),
            _ => Err(format!("{standing:?}")),
        }
    }
}

/// The tries that the copies name.
fn tries(copies: &[Vec<u8>]) -> Vec<u32> {
    let name = "X-Onedrop-Try: ";
    let of = |copy: &Vec<u8>| {
        let copy = String::from_utf8_lossy(copy);
        let line = copy.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|number| number.parse().ok()).unwrap_or_default()
    };
    copies.iter().map(of).collect()
}

/// `onedrop settle` with a copy of ours that is to go, because the mail program's stands beside it,
/// one that is the mail program's own, and one that is to be written.
pub struct Settle<'a>(pub &'a Combination);

impl Settle<'_> {
    fn account(id: &str) -> String {
        format!("from-{id}")
    }

    /// Copies for Sent are due at once.
    fn config(&self, id: &str) -> PathBuf {
        Settle::of(self.0.config(id))
    }

    fn patient_config(&self, id: &str) -> PathBuf {
        Settle::of(self.0.patient_config(id))
    }

    fn of(config: PathBuf) -> PathBuf {
        let text = fs::read_to_string(&config).expect("configuration");
        let text = text.replace("[sent]\n", "[sent]\nafter = \"1ms\"\n");
        fs::write(&config, text).expect("configuration");
        config
    }

    fn letter(name: &str, id: &str) -> Vec<u8> {
        let from = Settle::account(id);
        format!("From: {from}@mail.axial.net\nMessage-ID: <{name}-{id}@x>\n\nA letter, {name}.\n")
            .into_bytes()
    }

    fn saved(&self, name: &str, id: &str) -> Vec<u8> {
        let letter = [b"Bcc: boss@x\nContent-Language: en\n", &*Settle::letter(name, id)].concat();
        self.0.stored(&letter)
    }

    /// Lets the time for the next look at each copy come.
    fn let_looks_come(&self, id: &str) {
        let begin = "(SELECT min(recorded_at) FROM onedrop_message)";
        self.0.execute(id, &format!("UPDATE onedrop_unsettled SET look_at = {begin}"));
    }

    /// The mail program saves its copy.
    fn save(&self, name: &str, id: &str) {
        let (account, letter) = (Settle::account(id), self.saved(name, id));
        if let Some(dovecot) = &self.0.dovecot {
            let mut session = dovecot.session(&account);
            drop(session.command("CREATE Sent"));
            let appended = session.append("Sent", "(\\Seen)", &letter);
            assert!(appended.is_ok_and(|answer| answer.is_ok()), "{id}: not saved");
        } else {
            let sent = self.0.mail_root(id).join(&account).join("Maildir/.Sent");
            for sub in ["tmp", "new", "cur"] {
                fs::create_dir_all(sent.join(sub)).expect("folders");
            }
            fs::write(sent.join(format!("cur/1700000000.{name}.saved:2,S")), letter).expect("mail");
        }
    }

    fn deliver(&self, name: &str, id: &str) {
        self.0.make_home(&format!("to-{id}"));
        let (config, account) = (self.patient_config(id), Settle::account(id));
        let to = format!("to-{id}@mail.axial.net");
        delivered(&config, &["-d", &to, "--sasl-username", &account], &Settle::letter(name, id));
    }
}

impl Setting for Settle<'_> {
    fn name(&self) -> String {
        format!("{} settle", self.0.name())
    }

    fn prepare(&self, id: &str) {
        self.deliver("late", id);
        let written = run(&self.patient_config(id), &["settle"]);
        assert!(written.status.success() && !written.stdout.is_empty(), "{written:?}");
        self.save("late", id);
        self.save("own", id);
        self.deliver("own", id);
        self.deliver("none", id);
        self.let_looks_come(id);
    }

    fn run(&self, id: &str, mut strace: Command) -> Output {
        strace.arg(onedrop_path()).args(["settle", "--config"]).arg(self.config(id));
        strace.stdin(Stdio::null()).output().expect("strace")
    }

    fn standing(&self, id: &str) -> Standing {
        self.0.standing(id, &[(Settle::account(id), "Sent")])
    }

    fn bring_to_an_end(&self, id: &str) -> Result<usize, String> {
        let (config, mut tries, mut last) = (self.config(id), 0, None);
        let done = wait_until(RETRY_LIMIT, || {
            tries += 1;
            // `settle` lists as busy what the killed run has its lease of.
            self.let_looks_come(id);
            let output = run(&config, &["settle", "--json"]);
            let is_done = output.status.success() && output.stdout == b"[]\n";
            last = Some(output);
            if !is_done {
                thread::sleep(PACE);
            }
            is_done
        });
        if done { Ok(tries) } else { Err(format!("not settled: {last:?}")) }
    }

    fn judge(&self, id: &str) -> Result<(), String> {
        let mut there = self.0.mailbox(id, &Settle::account(id), "Sent");
        let ours = self.0.stored(&Settle::letter("none", id));
        let mut wanted = vec![self.saved("late", id), self.saved("own", id), ours];
        there.sort();
        wanted.sort();
        if there != wanted {
            let texts: Vec<_> = there.iter().map(|copy| String::from_utf8_lossy(copy)).collect();
            return Err(format!("{} copies, or other bytes: {texts:?}", there.len()));
        }
        let standing = self.standing(id);
        if (standing.placed, standing.in_doubt) == (3, 0) {
            Ok(())
        } else {
            Err(format!("{standing:?}"))
        }
    }
}

/// `onedrop migrate` into a ledger that is empty.
pub struct Migration<'a>(pub &'a Combination);

impl Migration<'_> {
    /// The configuration of a ledger of its own.
    fn config(&self, id: &str) -> PathBuf {
        let config = self.0.config(id);
        let text = fs::read_to_string(&config).expect("configuration");
        fs::write(&config, self.0.in_database(id, &text)).expect("configuration");
        config
    }

    /// The schema in a text.
    fn schema(&self, id: &str) -> String {
        let Some(postgres) = &self.0.postgres else {
            let ledger = self.0.sqlite(id);
            let mut query = ledger
                .prepare("SELECT type || name || coalesce(sql, '') FROM sqlite_schema ORDER BY 1")
                .expect("SQL");
            let rows = query.query_map([], |row| row.get::<_, String>(0)).expect("rows");
            return rows.map(|row| row.expect("row") + "\n").collect();
        };
        postgres.psql_in(
            &self.0.database(id),
            "SELECT string_agg(line, E'\\n' ORDER BY line) FROM (SELECT concat_ws(' ', table_name, \
             column_name, data_type, column_default, is_nullable) AS line FROM \
             information_schema.columns WHERE table_schema = 'public' UNION ALL SELECT \
             pg_get_functiondef(p.oid) FROM pg_proc p WHERE pronamespace = 'public'::regnamespace \
             UNION ALL SELECT indexdef FROM pg_indexes WHERE schemaname = 'public' UNION ALL \
             SELECT version || encode(sha256, 'hex') FROM onedrop_schema) AS lines",
        )
    }
}

impl Setting for Migration<'_> {
    fn name(&self) -> String {
        format!("{} migrate", self.0.name())
    }

    fn prepare(&self, id: &str) {
        if self.0.postgres.is_some() {
            let name = self.0.database(id);
            self.0.execute(id, &format!("CREATE DATABASE {name} OWNER onedrop"));
        }
    }

    fn run(&self, id: &str, mut strace: Command) -> Output {
        strace
            .arg(onedrop_path())
            .args(["migrate", "--config"])
            .arg(self.config(id))
            .stdin(Stdio::null());
        strace.output().expect("strace")
    }

    fn standing(&self, _id: &str) -> Standing {
        Standing::default()
    }

    fn bring_to_an_end(&self, id: &str) -> Result<usize, String> {
        for _ in 0..2 {
            let output = run(&self.config(id), &["migrate"]);
            if !output.status.success() {
                return Err(format!("{output:?}"));
            }
        }
        Ok(2)
    }

    fn judge(&self, id: &str) -> Result<(), String> {
        static WHOLE: std::sync::Mutex<Vec<(String, String)>> = std::sync::Mutex::new(Vec::new());
        let schema = self.schema(id);
        let mut whole = WHOLE.lock().expect("schema");
        // The first that is judged was not killed.
        let known =
            whole.iter().find(|(name, _)| *name == self.name()).map(|(_, schema)| schema.clone());
        match known {
            None => whole.push((self.name(), schema)),
            Some(known) if known == schema => {}
            Some(_) => return Err(format!("another schema:\n{schema}")),
        }
        Ok(())
    }
}

/// `onedrop lmtp`, from its start to its end, with one message for three recipients.
pub struct LmtpServer<'a>(pub &'a Combination);

impl LmtpServer<'_> {
    const KIND: Kind = Kind::ThreeRecipients;

    fn start(&self, id: &str, by: Option<&Command>) -> Lmtp {
        let mut launch = Launch::of(&self.0.config(id)).bare();
        if let Some(by) = by {
            launch = launch.by(by);
        }
        let mut lmtp = launch.begin();
        let socket = lmtp.socket();
        let up = wait_until(PATIENCE, || lmtp.has_ended() || UnixStream::connect(&socket).is_ok());
        assert!(up, "{id}: the server does not come up");
        lmtp
    }

    /// Delivers to those of `recipients` that are not delivered to yet, as far as the server goes
    /// along.
    fn deliver(
        socket: &std::path::Path,
        id: &str,
        recipients: &mut Vec<String>,
    ) -> std::io::Result<()> {
        let mut client = LmtpClient::unix(socket, PATIENCE)?;
        client.command("LHLO test.example")?;
        let sender = format!("from-{id}@mail.axial.net");
        client.command(&format!("MAIL FROM:<{sender}>"))?;
        for recipient in recipients.iter() {
            client.command(&format!("RCPT TO:<{recipient}>"))?;
        }
        if client.command("DATA")?.code != 354 {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&Self::KIND.message(id)).replace('\n', "\r\n");
        client.send(format!("{text}.\r\n").as_bytes())?;
        for recipient in recipients.clone() {
            if client.reply()?.is_ok() {
                recipients.retain(|other| *other != recipient);
            }
        }
        client.command("QUIT").map(drop)
    }
}

impl Setting for LmtpServer<'_> {
    fn name(&self) -> String {
        format!("{} lmtp", self.0.name())
    }

    fn prepare(&self, _id: &str) {}

    fn run(&self, id: &str, strace: Command) -> Output {
        let mut lmtp = self.start(id, Some(&strace));
        let mut left = Self::KIND.recipients(id);
        // What a client sees of a server that dies is judged by what it does then.
        let _ = Self::deliver(&lmtp.socket(), id, &mut left);
        self.0.site.root.write(&format!("{id}/left"), left.join("\n"));
        let status = lmtp.stop_traced();
        Output { status, stdout: Vec::new(), stderr: Vec::new() }
    }

    fn standing(&self, id: &str) -> Standing {
        self.0.standing(id, &Self::KIND.copies(id))
    }

    fn bring_to_an_end(&self, id: &str) -> Result<usize, String> {
        let left = fs::read_to_string(self.0.site.root.join(id).join("left")).expect("recipients");
        let mut left: Vec<String> = left.lines().map(str::to_owned).collect();
        let lmtp = self.start(id, None);
        let (mut tries, mut last) = (0, Ok(()));
        let done = wait_until(RETRY_LIMIT, || {
            if !left.is_empty() {
                tries += 1;
                last = Self::deliver(&lmtp.socket(), id, &mut left);
            }
            left.is_empty()
        });
        if !done {
            return Err(format!("not delivered to {left:?} after {tries} tries: {last:?}"));
        }
        Ok(tries)
    }

    fn settle(&self, id: &str) -> Result<usize, String> {
        let account = format!("from-{id}");
        settle_kept(&self.0.config(id), Some(&account), |sql| self.0.value(id, sql))
    }

    fn judge(&self, id: &str) -> Result<(), String> {
        // The server writes fields of its own in front of a recipient's copy.
        let copies = Self::KIND.copies(id);
        let wanted = self.0.stored(&Self::KIND.message(id));
        for (account, mailbox) in &copies {
            let there = self.0.mailbox(id, account, mailbox);
            let crlf =
                |copy: &[u8]| String::from_utf8_lossy(copy).replace("\r\n", "\n").into_bytes();
            let [copy] = &there[..] else {
                return Err(format!("{account}/{mailbox}: {} copies", there.len()));
            };
            let (copy, wanted) = (crlf(copy), crlf(&wanted));
            let own = *mailbox == "INBOX"
                && copy.starts_with(b"Return-Path: <from-")
                && copy.ends_with(&wanted);
            if copy != wanted && !own {
                return Err(format!(
                    "{account}/{mailbox}: not the message's bytes: {}",
                    String::from_utf8_lossy(&copy)
                ));
            }
        }
        let standing = self.standing(id);
        let is_clean = (standing.placed, standing.in_doubt) == (copies.len(), 0);
        if is_clean { Ok(()) } else { Err(format!("{standing:?}")) }
    }
}
