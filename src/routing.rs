//! Where mail goes: an address to an account, a message to its destinations. The directory answers
//! most; a site's own query (`directory.query`) is asked in the ledger's database, or where
//! `directory.url` says.

use std::sync::Arc;
use std::time::Instant;

use crate::config::{Config, SentSettings};
use crate::deliver::Failure;
use crate::directory::{Destination, Directory, Known, is_account_name};
use crate::envelope::Envelope;
use crate::ledger::{AccountServer, Accounts, LedgerError};
use crate::message::Message;
use crate::sender;

/// The configured addresses, and what to do with an author's copy.
#[derive(Clone)]
pub struct Routing {
    directory: Directory,
    /// Where the query is asked, if that is not the ledger.
    server: Option<Arc<dyn AccountServer>>,
    sent: SentSettings,
}

impl Routing {
    pub fn new(config: &Config, server: Option<Arc<dyn AccountServer>>) -> Routing {
        let directory = config.directory.addresses.clone();
        Routing { directory, server, sent: config.sent.clone() }
    }

    /// What is kept open to ask there.
    pub fn server(&self) -> Option<&dyn AccountServer> {
        self.server.as_deref()
    }

    /// Where `address` leads without asking anybody.
    pub fn known(&self, address: &str) -> Known {
        self.directory.known(address)
    }

    /// The account of `address`; `None` when nobody has it.
    ///
    /// # Errors
    /// The query failed, or answered with what cannot be an account.
    pub fn account_of(
        &self,
        address: &str,
        ledger: &dyn Accounts,
        until: Instant,
    ) -> Result<Option<String>, Failure> {
        let asked = match self.known(address) {
            Known::Account(account) => return Ok(Some(account)),
            Known::Nobody => return Ok(None),
            Known::Ask(asked) => asked,
        };
        let query = self.directory.query.as_deref().unwrap_or_default();
        let account = match &self.server {
            None => ledger.account_by_query(query, &asked, until)?,
            Some(server) => {
                server.account_by_query(query, &asked, until).map_err(Failure::Directory)?
            }
        };
        match account {
            Some(account) if !is_account_name(&account) => {
                let text = format!(
                    "directory.query: {account:?} for {} cannot be an account",
                    asked.address
                );
                Err(Failure::Setup(text))
            }
            account => Ok(account),
        }
    }

    /// Where the message belongs: each of the accounts' INBOX, and the Sent of an author we know
    /// and believe, which comes last.
    ///
    /// # Errors
    /// The query could not be asked.
    pub fn destinations(
        &self,
        accounts: &[String],
        message: &Message,
        envelope: &Envelope,
        ledger: &dyn Accounts,
        until: Instant,
    ) -> Result<Vec<Destination>, Failure> {
        let mut destinations: Vec<Destination> =
            accounts.iter().map(|account| Destination::inbox(account)).collect();
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

    /// The author's account. What the directory cannot say about an author must not keep mail from
    /// a recipient.
    fn author_account(
        &self,
        address: &str,
        ledger: &dyn Accounts,
        until: Instant,
    ) -> Result<Option<String>, Failure> {
        match self.account_of(address, ledger, until) {
            Err(
                failure @ (Failure::Setup(_)
                | Failure::Ledger(LedgerError::Refused(_) | LedgerError::TookTooLong(_))
                | Failure::Directory(
                    LedgerError::Refused(_) | LedgerError::TookTooLong(_),
                )),
            ) => {
                tracing::warn!(%failure, "no copy for the author");
                Ok(None)
            }
            account => account,
        }
    }
}
