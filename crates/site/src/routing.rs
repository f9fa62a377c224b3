//! Where mail goes: an address to an account, a message to its destinations. The directory answers
//! most; a site's own query (`directory.query`) is asked in the ledger's database, or where
//! `directory.url` says, and then Dovecot's user database (`directory.userdb`).

use std::sync::Arc;
use std::time::Instant;

use crate::config::{Config, SentSettings};
use crate::filing::{FileRule, mailbox_by_rule};
use crate::userdb::Userdb;
use onedrop_core::deliver::{Failure, PastMail};
use onedrop_core::directory::UserdbError;
use onedrop_core::directory::{
    Asked, Destination, Directory, Home, Known, is_account_name, mailbox_name,
};
use onedrop_core::envelope::Envelope;
use onedrop_core::ledger::{AccountServer, LedgerError, RoutingLedger};
use onedrop_core::message::Message;
use onedrop_core::sender;

/// The configured addresses, and what to do with an author's copy.
#[derive(Clone)]
pub struct Routing {
    directory: Directory,
    /// Where the query is asked, if that is not the ledger.
    server: Option<Arc<dyn AccountServer>>,
    userdb: Option<Arc<Userdb>>,
    rules: Vec<FileRule>,
    /// Each account's own filters file what is handed over.
    hands_over: bool,
    sent: SentSettings,
}

impl Routing {
    pub fn new(config: &Config, server: Option<Arc<dyn AccountServer>>) -> Routing {
        let directory = config.directory.addresses.clone();
        let userdb = directory.userdb.clone().map(|path| Arc::new(Userdb::new(path)));
        let (rules, sent) = (config.file.clone(), config.sent.clone());
        let hands_over = config.store.lmtp.is_some();
        Routing { directory, server, userdb, rules, hands_over, sent }
    }

    /// What is kept open to ask there.
    pub fn server(&self) -> Option<&dyn AccountServer> {
        self.server.as_deref()
    }

    /// Where `address` leads without asking anybody.
    pub fn known(&self, address: &str) -> Known {
        self.directory.known(address)
    }

    /// The account of a recipient, and the mailbox that is meant; `None` when no account has the
    /// address.
    ///
    /// # Errors
    /// The query or the userdb failed, or answered with what cannot be an account or its mailbox;
    /// or an address that had mail is unknown now.
    pub fn account_of(
        &self,
        address: &str,
        ledger: &dyn RoutingLedger,
        until: Instant,
    ) -> Result<Option<Home>, Failure> {
        let known = self.known(address);
        match self.home_of(known.clone(), ledger, until)? {
            None => self.unknown_for_good(address, &known, ledger, until).map(|()| None),
            home => Ok(home),
        }
    }

    fn home_of(
        &self,
        known: Known,
        ledger: &dyn RoutingLedger,
        until: Instant,
    ) -> Result<Option<Home>, Failure> {
        let asked = match known {
            Known::Home(home) => return Ok(Some(home)),
            Known::Nobody => return Ok(None),
            Known::Ask(asked) => asked,
        };
        match self.account_by_query(&asked, ledger, until)? {
            None => self.account_by_userdb(&asked, until),
            home => Ok(home),
        }
    }

    /// An address that had mail is never unknown for good: that is a fault of the set-up, or it was
    /// closed, and an administrator decides.
    fn unknown_for_good(
        &self,
        address: &str,
        known: &Known,
        ledger: &dyn RoutingLedger,
        until: Instant,
    ) -> Result<(), Failure> {
        let asked = self.directory.asked(address);
        let addresses = [address, &asked.given, &asked.address];
        let mut why = "the configuration does not know it".to_owned();
        if let Known::Ask(asked) = known {
            why = format!("directory.query has no row for {}", asked.address);
            let mut accounts = vec![asked.address.clone()];
            if self.userdb.is_some()
                && let Some(name) = self.directory.name_in_userdb(asked)
            {
                why = format!("directory.userdb has no user {name}");
                accounts.insert(0, name);
            }
            let past = PastMail { ledger, why: &why, until };
            accounts.iter().try_for_each(|account| past.none_for(account))?;
        }
        PastMail { ledger, why: &why, until }.none_to(&addresses, address)
    }

    fn account_by_query(
        &self,
        asked: &Asked,
        ledger: &dyn RoutingLedger,
        until: Instant,
    ) -> Result<Option<Home>, Failure> {
        let Some(query) = &self.directory.query else { return Ok(None) };
        let home = match &self.server {
            None => ledger.account_by_query(query, asked, until)?,
            Some(server) => {
                server.account_by_query(query, asked, until).map_err(Failure::Directory)?
            }
        };
        let Some(Home { account, mailbox }) = home else { return Ok(None) };
        let of = &asked.address;
        let account = fit("directory.query", account, of)?;
        let mailbox = match mailbox {
            None => asked.mailbox.clone(),
            Some(name) if self.hands_over => {
                let text = format!(
                    "directory.query: names the mailbox {name:?} for {of}, and store.lmtp leaves \
                     it to the account's own filters where a copy goes"
                );
                return Err(Failure::Setup(text));
            }
            Some(name) => Some(mailbox_name(&name).ok_or_else(|| {
                let text = format!("directory.query: {name:?} for {of} cannot name a mailbox");
                Failure::Setup(text)
            })?),
        };
        Ok(Some(Home { account, mailbox }))
    }

    fn account_by_userdb(&self, asked: &Asked, until: Instant) -> Result<Option<Home>, Failure> {
        let Some(userdb) = &self.userdb else { return Ok(None) };
        let Some(name) = self.directory.name_in_userdb(asked) else { return Ok(None) };
        let Some(account) = userdb.user(&name, until)? else { return Ok(None) };
        let account = fit("directory.userdb", account, &name)?;
        Ok(Some(Home { account, mailbox: asked.mailbox.clone() }))
    }

    /// The recipients' mailboxes: that of the first rule (`[[file]]`) that applies to the message,
    /// for all of them; else the one that is meant.
    pub fn own(&self, homes: &[Option<Home>], message: &Message) -> Vec<Option<Destination>> {
        let by_rule = mailbox_by_rule(&self.rules, message);
        let own = |home: &Home| match by_rule {
            Some(mailbox) => Destination { mailbox: mailbox.to_owned(), ..home.destination() },
            None => home.destination(),
        };
        homes.iter().map(|home| home.as_ref().map(own)).collect()
    }

    /// Where the message belongs: into each of the recipients' `own` mailboxes, and the Sent of an
    /// author we know and believe, which comes last.
    ///
    /// # Errors
    /// The query could not be asked.
    pub fn destinations(
        &self,
        own: &[Option<Destination>],
        message: &Message,
        envelope: &Envelope,
        ledger: &dyn RoutingLedger,
        until: Instant,
    ) -> Result<Vec<Destination>, Failure> {
        let mut destinations = Routing::mailboxes(own);
        let sent = &self.sent;
        if let Some(author) = sender::author(message, envelope, sent.trust, &sent.authserv_id)
            && let Some(account) = self.author_account(&author.address, ledger, until)?
        {
            let vouched = match &author.if_same_account_as {
                None => true,
                Some(login) => {
                    *login == account
                        || self.author_account(login, ledger, until)?.as_ref() == Some(&account)
                }
            };
            if vouched {
                let destination = Destination::sent(&account, &sent.mailbox);
                // One mailbox gets one copy, also where somebody calls their INBOX the place for
                // sent mail.
                if !destinations.iter().any(|other| other.is_same_mailbox(&destination)) {
                    destinations.push(destination);
                }
            }
        }
        Ok(destinations)
    }

    /// The recipients' own mailboxes, each once.
    pub fn mailboxes(own: &[Option<Destination>]) -> Vec<Destination> {
        let mut mailboxes: Vec<Destination> = Vec::new();
        for mailbox in own.iter().flatten() {
            if !mailboxes.iter().any(|other| other.is_same_mailbox(mailbox)) {
                mailboxes.push(mailbox.clone());
            }
        }
        mailboxes
    }

    /// The author's account. What the directory cannot say about an author must not keep mail from
    /// a recipient.
    fn author_account(
        &self,
        address: &str,
        ledger: &dyn RoutingLedger,
        until: Instant,
    ) -> Result<Option<String>, Failure> {
        match self.home_of(self.known(address), ledger, until) {
            Err(
                failure @ (Failure::Setup(_)
                | Failure::Userdb(UserdbError::NotNow(_))
                | Failure::Ledger(LedgerError::Refused(_) | LedgerError::TookTooLong(_))
                | Failure::Directory(
                    LedgerError::Refused(_) | LedgerError::TookTooLong(_),
                )),
            ) => {
                tracing::warn!(%failure, "no copy for the author");
                Ok(None)
            }
            home => Ok(home?.map(|home| home.account)),
        }
    }
}

/// What was found for `asked`, if it can be an account.
fn fit(by: &str, account: String, asked: &str) -> Result<String, Failure> {
    match is_account_name(&account) {
        true => Ok(account),
        false => Err(Failure::Setup(format!("{by}: {account:?} for {asked} cannot be an account"))),
    }
}
