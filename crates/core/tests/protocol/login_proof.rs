//! The proof that the way into the store leads to the account that is named
//! (`crates/core/src/login_proof.rs`).

use std::path::{Path, PathBuf};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use onedrop_core::clock::Clock;
use onedrop_core::deliver::Failure;
use onedrop_core::directory::Destination;
use onedrop_core::ledger::memory::MemoryLedger;
use onedrop_core::login_proof::{WayProof, renew};
use onedrop_core::store::{Access, MailboxOwner, StoreError, Way, WitnessNames};

use crate::ports::soon;
use crate::world::Impatient;

/// What a server does with the account that a login names.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Login {
    Heeds,
    Ignores,
    TellsNothing,
    /// There is none: the mailboxes are files.
    NoServer,
}

/// A mail server that does so, whose user is `mda`, and for which accounts it was asked.
struct MailServer(Login, Mutex<Vec<String>>);

impl MailServer {
    fn that(login: Login) -> MailServer {
        MailServer(login, Mutex::default())
    }

    fn asked(&self) -> Vec<String> {
        self.1.lock().expect("no panic").clone()
    }
}

impl Access for MailServer {
    fn way(&self) -> Option<Way> {
        let way = Way { server: "mx:143".into(), login_user: "mda".into(), form: "sasl".into() };
        Some(way).filter(|_| self.0 != Login::NoServer)
    }

    fn root(&self) -> Option<&Path> {
        None
    }

    fn missing_place(&self, _: &str) -> Result<Option<PathBuf>, StoreError> {
        Ok(None)
    }

    fn whose_mailboxes(&self, account: &str, _: Instant) -> Result<MailboxOwner, StoreError> {
        self.1.lock().expect("no panic").push(account.to_owned());
        let proof = format!("asked for {account}");
        match self.0 {
            _ if account == "mda" => Err(StoreError::Setup("mda is the user itself".to_owned())),
            Login::Heeds | Login::NoServer => Ok(MailboxOwner::Accounts(proof)),
            Login::Ignores => Ok(MailboxOwner::Users(proof)),
            Login::TellsNothing => Err(StoreError::Setup("told to tell nothing".to_owned())),
        }
    }

    fn are_apart(&self, one: &str, other: &str, _: Instant) -> Result<bool, StoreError> {
        self.1.lock().expect("no panic").push(format!("{one} beside {other}"));
        match self.0 {
            // Boats and doug were made in the same second.
            Login::Heeds => Ok([one, other] != ["boats", "doug"]),
            Login::Ignores | Login::NoServer => Ok(false),
            Login::TellsNothing => Err(StoreError::NotStored("told to tell nothing".to_owned())),
        }
    }

    fn name_witnesses(&self, _: WitnessNames) {}

    fn has_mailbox(&self, _: &Destination, _: Instant) -> Result<bool, StoreError> {
        panic!("nobody asks")
    }

    fn check(&self, _: &str, _: Instant) -> Result<Vec<String>, StoreError> {
        panic!("nobody checks it")
    }
}

fn pass(
    proof: &Arc<WayProof>,
    accounts: &[&str],
    ledger: &MemoryLedger,
    server: &MailServer,
) -> Result<(), Failure> {
    proof.pass(accounts, "host", ledger, server, soon())
}

/// In a process that knows nothing yet.
fn pass_anew(accounts: &[&str], ledger: &MemoryLedger, server: &MailServer) -> Result<(), Failure> {
    pass(&Arc::default(), accounts, ledger, server)
}

fn renewed(ledger: &MemoryLedger, server: &MailServer) -> Result<(), Failure> {
    Ok(renew(&["lisa"], "other", ledger, server, soon()).map(drop)?)
}

fn why(refused: Result<(), Failure>) -> String {
    match refused {
        Err(Failure::Store(StoreError::Setup(why))) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_proof_is_made_once_for_all() {
    let (ledger, server) = (MemoryLedger::default(), MailServer::that(Login::Heeds));
    let proof = Arc::<WayProof>::default();
    let together = Barrier::new(10);
    thread::scope(|scope| {
        for _ in 0..10 {
            scope.spawn(|| {
                together.wait();
                pass(&proof, &["lisa"], &ledger, &server).expect("proven");
            });
        }
    });
    pass_anew(&["doug"], &ledger, &server).expect("proven");
    assert_eq!(server.asked(), ["lisa"], "the second process finds it on record");
}

#[test]
fn a_proof_that_was_taken_off_the_record_is_noticed_by_a_running_process() {
    let (ledger, clock) = (MemoryLedger::default(), Arc::<Impatient>::default());
    let proof = Arc::new(WayProof::by(Arc::clone(&clock) as Arc<dyn Clock>));
    pass(&proof, &["lisa"], &ledger, &MailServer::that(Login::Heeds)).expect("proven");
    // Another host's check has found another server by that name.
    let ignores = MailServer::that(Login::Ignores);
    renewed(&ledger, &ignores).expect_err("not proven");
    pass(&proof, &["lisa"], &ledger, &ignores).expect("not read again yet");
    clock.sleep(Duration::from_secs(60));
    assert!(why(pass(&proof, &["lisa"], &ledger, &ignores)).contains("ignores for whom"));
}

#[test]
fn where_no_server_stands_between_nobody_is_asked() {
    let (ledger, files) = (MemoryLedger::default(), MailServer::that(Login::NoServer));
    pass_anew(&["lisa"], &ledger, &files).expect("nothing to prove");
    assert!(files.asked().is_empty());
}

#[test]
fn a_server_that_ignores_the_account_is_not_passed() {
    let ledger = MemoryLedger::default();
    pass_anew(&["lisa"], &ledger, &MailServer::that(Login::Heeds)).expect("proven");
    // As `check` finds when another server has taken its place.
    let ignores = MailServer::that(Login::Ignores);
    let seen = why(renewed(&ledger, &ignores));
    assert!(seen.contains("ignores for whom: mail would land in mda's own mailbox"), "{seen}");
    let proof = Arc::<WayProof>::default();
    for _ in 0..2 {
        assert!(why(pass(&proof, &["lisa"], &ledger, &ignores)).contains("ignores for whom"));
    }
    assert_eq!(ignores.asked().len(), 2, "it is not asked again at once");
}

/// The server renews it so at its start.
#[test]
fn a_proof_on_record_is_renewed_by_two_accounts_and_without_a_login_for_the_user() {
    let start = |ledger: &MemoryLedger, server: &MailServer, accounts: &[&str]| {
        let proof = Arc::<WayProof>::default();
        let renewed = proof.begin().renew(accounts, "host", ledger, server, soon());
        let passed = pass(&proof, &["scuba"], ledger, server);
        (renewed.map_err(Failure::from), passed)
    };
    let (ledger, server) = (MemoryLedger::default(), MailServer::that(Login::Heeds));
    start(&ledger, &server, &["lisa", "doug"]).1.expect("proven");
    assert_eq!(server.asked(), ["lisa"], "none was on record");
    for (accounts, expected) in [
        (&["lisa", "doug"][..], &["lisa beside doug"][..]),
        (&["boats", "doug"], &["boats beside doug", "boats"]),
        (&["lisa"], &["lisa"]),
    ] {
        let server = MailServer::that(Login::Heeds);
        let (renewed, passed) = start(&ledger, &server, accounts);
        let proof = renewed.expect("renewed").expect("a server");
        assert!(proof.starts_with("the mail server at mx:143 "), "{proof}");
        passed.expect("proven");
        assert_eq!(server.asked(), expected);
    }
    // Another server answers by that name now.
    let ignores = MailServer::that(Login::Ignores);
    let (renewed, passed) = start(&ledger, &ignores, &["lisa", "doug"]);
    assert!(why(renewed.map(drop)).contains("ignores for whom"));
    assert!(why(passed).contains("ignores for whom"));
    assert_eq!(ignores.asked(), ["lisa beside doug", "lisa"]);
    // What is not known lets mail pass by the proof on record.
    pass_anew(&["lisa"], &ledger, &MailServer::that(Login::Heeds)).expect("proven again");
    let silent = MailServer::that(Login::TellsNothing);
    let (renewed, passed) = start(&ledger, &silent, &["lisa", "doug"]);
    assert!(why(renewed.map(drop)).contains("nothing proves"));
    passed.expect("on record");
}

#[test]
fn what_cannot_be_told_takes_no_proof_off_the_record() {
    let (ledger, silent) = (MemoryLedger::default(), MailServer::that(Login::TellsNothing));
    assert!(why(pass_anew(&["lisa"], &ledger, &silent)).contains("nothing proves"));
    pass_anew(&["lisa"], &ledger, &MailServer::that(Login::Heeds)).expect("proven");
    assert!(why(renewed(&ledger, &silent)).contains("nothing proves"));
    pass_anew(&["lisa"], &ledger, &silent).expect("on record");
}

#[test]
fn the_users_own_account_is_judged_by_another() {
    let (ledger, server) = (MemoryLedger::default(), MailServer::that(Login::Heeds));
    let proof = Arc::<WayProof>::default();
    let refused = why(pass(&proof, &["mda"], &ledger, &server));
    assert!(refused.contains("mda is the user itself"), "{refused}");
    pass(&proof, &["mda", "lisa"], &ledger, &server).expect("proven");
    assert_eq!(server.asked(), ["mda", "mda", "lisa"]);
}
