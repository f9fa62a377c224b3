//! What all pages share: their head, times and states as text and shapes, and the page that says
//! why another cannot be shown.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::SystemTime;

use askama::Template;
use axum::body::{Body, Bytes, HttpBody};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderName, StatusCode};
use axum::response::{IntoResponse, Response};
use hyper::body::Frame;
use jiff::{Timestamp, tz::TimeZone};

use super::PagesState;
use onedrop_core::ledger::LedgerError;
use onedrop_core::text::{shown, shown_lines};

/// The text of a page.
pub struct Html(String);

/// What stands above and below each page.
pub struct Head {
    pub title: String,
    /// The path of the page, for the list of pages.
    pub here: &'static str,
    pub host: String,
    pub shows_subjects: bool,
    /// What is searched for.
    pub q: String,
    pub by: String,
    pub now: When,
    /// In which times are that say no other.
    pub zone: String,
}

/// A time, for people and for machines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct When {
    /// By the clock of this host; a time whose offset is not today's has it at its end.
    pub text: String,
    pub iso: String,
    /// `None`: it is not known.
    pub time: Option<Timestamp>,
}

/// A state as word and shape; its colour only repeats them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateMark {
    pub word: &'static str,
    pub shape: &'static str,
    pub class: &'static str,
}

impl StateMark {
    pub const fn good(word: &'static str) -> StateMark {
        StateMark { word, shape: "\u{2713}", class: "good" }
    }

    pub const fn waits(word: &'static str) -> StateMark {
        StateMark { word, shape: "\u{25d4}", class: "waits" }
    }

    pub const fn doubt(word: &'static str) -> StateMark {
        StateMark { word, shape: "?", class: "doubt" }
    }

    pub const fn bad(word: &'static str) -> StateMark {
        StateMark { word, shape: "\u{2717}", class: "bad" }
    }

    /// Of an attempt.
    pub fn of_outcome(outcome: Option<&str>) -> StateMark {
        match outcome {
            Some("delivered") => StateMark::good("delivered"),
            Some("permfail") => StateMark::bad("refused"),
            Some(_) => StateMark { shape: "\u{21bb}", ..StateMark::bad("deferred") },
            None => StateMark::waits("no end on record"),
        }
    }
}

impl When {
    pub fn of(time: SystemTime) -> When {
        Timestamp::try_from(time).map_or_else(|_| When::unknown(), When::at)
    }

    /// Of a time on record (RFC 3339), with milliseconds where it has some.
    pub fn on_record(text: &str) -> When {
        match text.parse() {
            Ok(time) => When::at(time),
            Err(_) => When { text: shown(text).into_owned(), iso: String::new(), time: None },
        }
    }

    fn at(time: Timestamp) -> When {
        When::within(time, &TimeZone::system(), Timestamp::now())
    }

    fn within(time: Timestamp, zone: &TimeZone, now: Timestamp) -> When {
        let zoned = time.to_zoned(zone.clone());
        let form = match time.subsec_millisecond() {
            0 => "%Y-%m-%d %H:%M:%S",
            _ => "%Y-%m-%d %H:%M:%S%.3f",
        };
        let mut text = zoned.strftime(form).to_string();
        // In the hour that an autumn has twice, the same digits are two times.
        if zone.to_offset(now) != zoned.offset() {
            text += &zoned.strftime(" %:z").to_string();
        }
        When { text, iso: time.to_string(), time: Some(time) }
    }

    fn unknown() -> When {
        When { text: "?".to_owned(), iso: String::new(), time: None }
    }

    /// Without seconds and the year.
    pub fn hour(time: SystemTime) -> When {
        let mut when = When::of(time);
        if let (Some(hour), Some(offset)) = (when.text.get(5..16), when.text.get(19..)) {
            when.text = format!("{hour}{offset}");
        }
        when
    }

    /// The hour and minute alone.
    pub fn clock(&self) -> &str {
        self.text.get(11..16).unwrap_or(&self.text)
    }
}

/// `3 ms`, `1.5 s`.
pub fn took(millis: Option<i64>) -> String {
    match millis {
        None => String::new(),
        Some(millis) if millis < 1000 => format!("{millis} ms"),
        Some(millis) => format!("{:.1} s", millis as f64 / 1000.0),
    }
}

impl PagesState {
    pub(super) fn head(&self, title: &str, here: &'static str) -> Head {
        let now = Timestamp::now().to_zoned(TimeZone::system());
        Head {
            title: title.to_owned(),
            here,
            host: self.host.clone(),
            shows_subjects: self.shows_subjects,
            q: String::new(),
            by: String::new(),
            now: When::at(now.timestamp()),
            zone: now.strftime("UTC%:z").to_string(),
        }
    }
}

const HTML: [(HeaderName, &str); 1] = [(CONTENT_TYPE, "text/html; charset=utf-8")];

/// Where the content begins.
const CONTENT: &str = "<main id=\"main\" tabindex=\"-1\">\n";

/// Stands there until the content comes: what follows hides it (`style.css`).
const LOOKING: &str = "<p class=\"looking\">Looking for rows. If this text stays, the page was cut \
                       off: load it again.</p>\n";

/// A page whose head is sent before its content is there.
pub fn in_parts(head: &Head, page: impl Future<Output = Html> + Send + 'static) -> Response {
    let begins = Some(Html::beginning(head).into());
    let rest: Rest = Box::pin(async move { page.await.rest().into() });
    (HTML, Body::new(InParts { begins, rest: Some(rest) })).into_response()
}

type Rest = Pin<Box<dyn Future<Output = Bytes> + Send>>;

/// See [`in_parts`]; by hand, because it would be the only stream here.
struct InParts {
    begins: Option<Bytes>,
    rest: Option<Rest>,
}

impl HttpBody for InParts {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(begins) = self.begins.take() {
            return Poll::Ready(Some(Ok(Frame::data(begins))));
        }
        let Some(rest) = &mut self.rest else { return Poll::Ready(None) };
        let rest = ready!(rest.as_mut().poll(context));
        self.rest = None;
        Poll::Ready(Some(Ok(Frame::data(rest))))
    }
}

/// Templates escape what HTML has a use for; what hides or turns round the text beside it is none
/// of their own, so it came with a value.
fn rendered(page: &impl Template) -> askama::Result<String> {
    page.render().map(|page| shown_lines(&page).into_owned())
}

impl Html {
    /// The page; a template fails only where a value in it does.
    pub fn of(page: &impl Template) -> Result<Html, NotShown> {
        let why = |error: askama::Error| {
            NotShown::new(StatusCode::INTERNAL_SERVER_ERROR, "Not shown", error.to_string())
        };
        rendered(page).map(Html).map_err(why)
    }

    pub fn response(self) -> Response {
        (HTML, self.0).into_response()
    }

    /// What stands above the content of every page with this head, and what is there until it
    /// comes.
    fn beginning(head: &Head) -> String {
        let page = NotShownPage { head, text: "", next: ("", "/") };
        let page = rendered(&page).unwrap_or_default();
        let begins =
            page.split_once(CONTENT).map(|(begins, _)| [begins, CONTENT, LOOKING].concat());
        begins.unwrap_or_default()
    }

    /// What comes below [`Html::beginning`].
    fn rest(mut self) -> String {
        self.0.split_off(self.0.find(CONTENT).map_or(0, |at| at + CONTENT.len()))
    }
}

/// Why a page is not shown.
#[derive(Debug)]
pub struct NotShown {
    status: StatusCode,
    title: &'static str,
    text: String,
    /// An error of the ledger, which the server logs.
    error: Option<LedgerError>,
    elsewhere: Option<String>,
}

#[derive(Template)]
#[template(path = "not_shown.html")]
struct NotShownPage<'a> {
    head: &'a Head,
    text: &'a str,
    /// What goes on from here, and its path.
    next: (&'a str, &'a str),
}

impl NotShown {
    fn new(status: StatusCode, title: &'static str, text: String) -> NotShown {
        NotShown { status, title, text, error: None, elsewhere: None }
    }

    pub fn nowhere() -> NotShown {
        let text = "There is no such page, or what it showed has been forgotten.".to_owned();
        NotShown::new(StatusCode::NOT_FOUND, "Not found", text)
    }

    pub fn busy(why: &str) -> NotShown {
        let text = format!("This page could not be made: {why}. Try again in a moment.");
        NotShown::new(StatusCode::SERVICE_UNAVAILABLE, "Busy", text)
    }

    /// Another page has it.
    pub fn see(path: String) -> NotShown {
        let elsewhere = Some(path);
        NotShown { elsewhere, ..NotShown::new(StatusCode::SEE_OTHER, "See", String::new()) }
    }

    pub fn response(self, site: &PagesState) -> Response {
        if let Some(path) = &self.elsewhere {
            return axum::response::Redirect::to(path).into_response();
        }
        (self.status, self.page(site).response()).into_response()
    }

    /// The same as a page, for one that was begun.
    pub fn page(self, site: &PagesState) -> Html {
        let told = |error| shown(&format!("The ledger: {}.", site.told(error))).into_owned();
        let said = self.error.as_ref().map_or(self.text, told);
        let (text, next) = match &self.elsewhere {
            Some(path) => ("One message was found.", ("To its story", path.as_str())),
            None => (said.as_str(), ("To the front page", "/")),
        };
        let page = NotShownPage { head: &site.head(self.title, ""), text, next };
        Html(rendered(&page).unwrap_or_else(|_| said.clone()))
    }
}

impl From<LedgerError> for NotShown {
    fn from(error: LedgerError) -> NotShown {
        let (status, title) = (StatusCode::SERVICE_UNAVAILABLE, "The ledger does not answer");
        NotShown { error: Some(error), ..NotShown::new(status, title, String::new()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_with_another_offset_than_todays_says_so() {
        let zone = TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").expect("a zone");
        let time = |text: &str| text.parse::<Timestamp>().expect("a time");
        let (summer, winter) = (time("2026-10-25T00:50:00Z"), time("2026-10-25T01:10:00Z"));
        for (at, now, says) in [
            (summer, winter, "2026-10-25 02:50:00 +02:00"),
            (winter, winter, "2026-10-25 02:10:00"),
            (summer, summer, "2026-10-25 02:50:00"),
            (winter, summer, "2026-10-25 02:10:00 +01:00"),
        ] {
            let when = When::within(at, &zone, now);
            assert_eq!(when.text, says);
            assert_eq!(when.clock(), &says[11..16]);
        }
    }
}
