//! `onedrop web`: pages for administrators about what is on record. Read only, by GET and HEAD;
//! nothing in them comes from elsewhere, and no script runs in them.
//!
//! Promise: a page costs deliveries nothing but its questions to the ledger, of which [`QUESTIONS`]
//! run at a time, each for two seconds at most; whoever asks beyond that waits a little and gets
//! 503. While more than a few wait, a page's turn rests after it (`turns`): many who ask take a
//! small part of one processor together. `/healthz` has a turn of its own, and an answer that
//! serves all who ask within half a second. What foreign people wrote is shown as text: templates
//! escape it, and the policy of the pages lets no script run.
//! Relies on a ledger for questions alone. A crash leaves nothing.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Router, middleware};
use secrecy::SecretString;
use serde::Deserialize;
use tokio::runtime::Handle;

use crate::http::HttpLimits;
use activity::Activity;
use configured::KeptJobs;
use findings::KeptFindings;
use guard::PageGuard;
use health::KeptHealth;
use onedrop_core::ledger::{LedgerError, PagesLedger, SchemaVersion};
use onedrop_site::config::{Config, OWN_ROLE};
use page::{Head, Html, NotShown};
use turns::{PageTurn, Turns};

mod activity;
mod chart;
mod configured;
mod doubts;
mod failures;
mod findings;
mod front;
mod guard;
mod health;
mod hosts;
mod jobs;
mod locks;
mod page;
mod scan;
mod search;
mod story;
mod turns;

pub use configured::{ConfiguredJobs, NOT_JUDGED};

/// What clients may take.
pub const LIMITS: HttpLimits =
    HttpLimits { places: 64, head: Duration::from_secs(2), whole: Duration::from_secs(10) };

/// Pages that ask the ledger at a time.
pub const QUESTIONS: usize = 4;

/// Whatever asks the ledger at a time: those, and `/healthz`.
pub const AT_A_TIME: usize = QUESTIONS + 1;

/// A page that may have to look through many rows is begun when its questions take this long.
const AT_ONCE: Duration = Duration::from_millis(25);

/// What a page's questions may take together; its look at the schema may take as long before.
const TIME: Duration = Duration::from_secs(3);

/// How often attempts are counted, and findings read, while no page is open.
pub const COUNTING: Duration = Duration::from_secs(60);

const STYLE: &str = include_str!("web/style.css");

/// What the pages are made from.
pub struct PagesState {
    /// By its whole path: what was put off by it is in the journal.
    config_file: Option<String>,
    ledger: Arc<dyn PagesLedger>,
    guard: PageGuard,
    shows_subjects: bool,
    jobs: KeptJobs,
    host: String,
    /// What is said where the ledger refuses the pages' login.
    login: &'static str,
    activity: Activity,
    findings: KeptFindings,
    pages: Arc<Turns>,
    health: KeptHealth,
}

impl PagesState {
    pub fn new(
        config: &Config,
        ledger: Arc<dyn PagesLedger>,
        password: Option<SecretString>,
        host: String,
    ) -> PagesState {
        PagesState {
            config_file: None,
            ledger,
            guard: PageGuard::new(&config.web.hosts, password),
            shows_subjects: config.web.show_subjects,
            jobs: KeptJobs::default(),
            host,
            login: match config.web.ledger_url {
                Some(_) => " (this is the login of web.ledger_url)",
                None => OWN_ROLE,
            },
            activity: Activity::default(),
            findings: KeptFindings::default(),
            pages: Arc::new(Turns::new(QUESTIONS)),
            health: KeptHealth::default(),
        }
    }

    /// The configuration's file, by its whole path.
    pub fn reads(self, file: String) -> PagesState {
        PagesState { config_file: Some(file), ..self }
    }

    /// Those that are shown until others are read.
    pub fn know_jobs(&self, jobs: ConfiguredJobs) {
        self.jobs.keep(jobs);
    }

    /// More pages are asked for than there are turns.
    fn is_asked_much(&self) -> bool {
        self.pages.waiting() > 0
    }

    fn until(&self) -> Instant {
        Instant::now() + TIME
    }

    /// Whether the ledger's schema is one that this program knows.
    fn fits(&self) -> Result<(), LedgerError> {
        self.ledger.schema_version(self.until()).and_then(SchemaVersion::check)
    }

    /// An error of the ledger; where it refuses our login, with the key that it is of.
    fn told(&self, error: &LedgerError) -> String {
        match error {
            LedgerError::Login(_) | LedgerError::Denied(_) => format!("{error}{}", self.login),
            _ => error.to_string(),
        }
    }
}

/// Counts attempts, and reads findings and the configuration's jobs, now and then in a thread of
/// its own, so that a page finds them there. Closes sessions that are not used.
pub fn keep_counting(
    site: &Arc<PagesState>,
    every: Duration,
    read_jobs: impl Fn() -> Result<ConfiguredJobs, String> + Send + 'static,
) -> std::io::Result<()> {
    let site = Arc::downgrade(site);
    let count = move || {
        while let Some(site) = site.upgrade() {
            site.ledger.close_idle();
            // Those of the last minute that no other has followed.
            site.guard.tell_of_wrong_passwords(0);
            site.jobs.take(read_jobs());
            findings::read(&site);
            if let Err(error) = site.activity.fill(&*site.ledger) {
                tracing::warn!(error = site.told(&error), "attempts are not counted");
            }
            drop(site);
            thread::sleep(every);
        }
    };
    thread::Builder::new().name("counting".to_owned()).spawn(count).map(drop)
}

/// All pages.
pub fn router(site: Arc<PagesState>) -> Router {
    Router::new()
        .route("/", get(front))
        .route("/m/{number}", get(story))
        .route("/search", get(search))
        .route("/failures", get(failures))
        .route("/doubts", get(doubts))
        .route("/locks", get(locks))
        .route("/jobs", get(jobs))
        .route("/hosts", get(hosts))
        .route("/healthz", get(healthz))
        .route("/style.css", get(style))
        .fallback(nowhere)
        .layer(middleware::from_fn_with_state(Arc::clone(&site), guard::guard))
        .with_state(site)
}

/// What a page may be asked with.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct AskedPage {
    q: String,
    by: String,
    reason: String,
    before: Option<i64>,
    after: Option<i64>,
}

type Shared = State<Arc<PagesState>>;

async fn front(State(site): Shared) -> Response {
    made(site, front::page).await
}

async fn story(State(site): Shared, Path(number): Path<String>) -> Response {
    made(site, move |site| story::page(site, &number)).await
}

async fn search(State(site): Shared, Query(asked): Query<AskedPage>) -> Response {
    let head = search::head(&site, &asked);
    match search::part(&site, &asked) {
        Some(_) => begun(site, &head, move |site| search::page(site, &asked)).await,
        None => made(site, move |site| search::page(site, &asked)).await,
    }
}

async fn failures(State(site): Shared, Query(asked): Query<AskedPage>) -> Response {
    let head = failures::head(&site, &asked);
    begun(site, &head, move |site| failures::page(site, &asked)).await
}

async fn doubts(State(site): Shared, Query(asked): Query<AskedPage>) -> Response {
    let head = doubts::head(&site);
    begun(site, &head, move |site| doubts::page(site, &asked)).await
}

async fn locks(State(site): Shared) -> Response {
    made(site, |site| locks::page(site)).await
}

async fn jobs(State(site): Shared) -> Response {
    made(site, |site| jobs::page(site)).await
}

async fn hosts(State(site): Shared) -> Response {
    made(site, |site| hosts::page(site)).await
}

async fn nowhere(State(site): Shared) -> Response {
    NotShown::nowhere().response(&site)
}

async fn style() -> Response {
    ([(CONTENT_TYPE, "text/css; charset=utf-8")], STYLE).into_response()
}

/// For probes: 200, or 503 and why.
async fn healthz(State(site): Shared) -> Response {
    const TEXT: [(axum::http::HeaderName, &str); 1] = [(CONTENT_TYPE, "text/plain; charset=utf-8")];
    match health::of(&site).await {
        Ok(()) => (TEXT, "ok\n").into_response(),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("{why}\n")).into_response(),
    }
}

/// Makes a page of a ledger that [fits](PagesState::fits).
fn page_of(
    site: &Arc<PagesState>,
    make: impl FnOnce(&Arc<PagesState>) -> Result<Html, NotShown>,
) -> Result<Html, NotShown> {
    site.fits()?;
    make(site)
}

async fn made(
    site: Arc<PagesState>,
    make: impl FnOnce(&Arc<PagesState>) -> Result<Html, NotShown> + Send + 'static,
) -> Response {
    let turn = match site.pages.turn().await {
        Ok(turn) => turn,
        Err(why) => return NotShown::busy(why).response(&site),
    };
    match asked(Arc::clone(&site), turn, |site| page_of(site, make)).await {
        Ok(Ok(page)) => page.response(),
        Ok(Err(why)) => why.response(&site),
        Err(why) => NotShown::busy(why).response(&site),
    }
}

/// The page as [`made`] makes it; where its questions take longer than [`AT_ONCE`], what stands
/// above the rows comes before.
async fn begun(
    site: Arc<PagesState>,
    head: &Head,
    make: impl FnOnce(&Arc<PagesState>) -> Result<Html, NotShown> + Send + 'static,
) -> Response {
    let turn = match site.pages.turn().await {
        Ok(turn) => turn,
        Err(why) => return NotShown::busy(why).response(&site),
    };
    let mut asked = Box::pin(asked(Arc::clone(&site), turn, |site| page_of(site, make)));
    match tokio::time::timeout(AT_ONCE, &mut asked).await {
        Ok(Ok(Ok(page))) => page.response(),
        Ok(Ok(Err(why))) => why.response(&site),
        Ok(Err(why)) => NotShown::busy(why).response(&site),
        Err(_) => page::in_parts(head, async move {
            match asked.await {
                Ok(Ok(page)) => page,
                Ok(Err(why)) => why.page(&site),
                Err(why) => NotShown::busy(why).page(&site),
            }
        }),
    }
}

/// Does what blocks, in its turn; or why not.
async fn asked<T: Send + 'static>(
    site: Arc<PagesState>,
    turn: PageTurn,
    ask: impl FnOnce(&Arc<PagesState>) -> T + Send + 'static,
) -> Result<T, &'static str> {
    // Its turn ends with the questions, also when the client is gone before.
    let ask = move || {
        let began = Instant::now();
        let answer = ask(&site);
        if turn.must_rest(began.elapsed()) {
            Handle::current().spawn(turn.rest(began.elapsed()));
        }
        answer
    };
    // What panics is one page, not the server.
    let asked = tokio::task::spawn_blocking(ask).await;
    asked.map_err(|_| "an internal error; the log has it")
}
