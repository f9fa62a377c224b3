//! What every request passes and every answer carries: GET and HEAD alone; a Host that is ours, so
//! that no page of elsewhere reaches us under its own name (DNS rebinding); the password, if there
//! is one, where a wrong one is answered late; and the fields that keep browsers from running,
//! framing, storing or passing on anything.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::{Request, State};
use axum::http::header::{self, HeaderName};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest, Sha256};

use super::PagesState;

const POLICY: &str = "default-src 'none'; style-src 'self'; img-src 'self' data:; \
    form-action 'self'; frame-ancestors 'none'; base-uri 'none'";

const FIELDS: [(HeaderName, &str); 7] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-store"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

const TEXT: [(HeaderName, &str); 1] = [(header::CONTENT_TYPE, "text/plain; charset=utf-8")];

/// How late the answer to a wrong password comes. The places of clients bound how many wait so.
const LATE: Duration = Duration::from_secs(1);

/// How often the log has wrong passwords at most.
const TELLING: Duration = Duration::from_secs(60);

/// What a client gives for a password.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GivenPassword {
    Right,
    Missing,
    Wrong,
}

/// Wrong passwords that the log does not have yet.
#[derive(Default)]
struct WrongPasswords {
    count: u64,
    told: Option<Instant>,
}

impl WrongPasswords {
    /// How many the log gets now.
    fn due(&mut self, now: Instant) -> Option<u64> {
        let is_soon = self.told.is_some_and(|told| now.duration_since(told) < TELLING);
        if self.count == 0 || is_soon {
            return None;
        }
        self.told = Some(now);
        Some(std::mem::take(&mut self.count))
    }
}

/// Who may ask.
pub struct PageGuard {
    /// In lower case.
    hosts: Vec<String>,
    /// Of the password.
    digest: Option<[u8; 32]>,
    wrong: Mutex<WrongPasswords>,
}

impl PageGuard {
    pub fn new(hosts: &[String], password: Option<SecretString>) -> PageGuard {
        let digest = |password: SecretString| Sha256::digest(password.expose_secret()).into();
        let hosts = hosts.iter().map(|host| host.to_lowercase()).collect();
        PageGuard { hosts, digest: password.map(digest), wrong: Mutex::default() }
    }

    /// Logs how many gave a wrong password, once a minute at most.
    pub fn tell_of_wrong_passwords(&self, more: u64) {
        let mut wrong = self.wrong.lock().unwrap_or_else(PoisonError::into_inner);
        wrong.count += more;
        if let Some(count) = wrong.due(Instant::now()) {
            tracing::warn!(count, "a wrong password was given");
        }
    }

    fn knows(&self, headers: &HeaderMap) -> bool {
        let mut named = headers.get_all(header::HOST).iter();
        let (Some(host), None) = (named.next(), named.next()) else { return false };
        host.to_str().ok().and_then(without_port).is_some_and(|host| {
            let host = host.to_ascii_lowercase();
            host == "localhost" || is_address(&host) || self.hosts.contains(&host)
        })
    }

    fn given(&self, headers: &HeaderMap) -> GivenPassword {
        let Some(digest) = &self.digest else { return GivenPassword::Right };
        let Some(value) = headers.get(header::AUTHORIZATION) else { return GivenPassword::Missing };
        let given = value.to_str().ok().and_then(|value| {
            let (scheme, value) = value.split_once(' ')?;
            let value = STANDARD.decode(value.trim()).ok()?;
            let colon = value.iter().position(|byte| *byte == b':')?;
            scheme.eq_ignore_ascii_case("basic").then(|| Sha256::digest(&value[colon + 1..]))
        });
        // All bytes of the digests are compared, whichever differs: how long it takes says nothing.
        let is_right = given.is_some_and(|given| {
            let differing = given.iter().zip(digest).fold(0, |all, (a, b)| all | (a ^ b));
            std::hint::black_box(differing) == 0
        });
        if is_right { GivenPassword::Right } else { GivenPassword::Wrong }
    }
}

fn without_port(host: &str) -> Option<&str> {
    if let Some(end) = host.strip_prefix('[').and_then(|rest| rest.find(']')) {
        let (address, port) = host.split_at(end + 2);
        return is_port(port).then_some(address);
    }
    match host.split_once(':') {
        Some((host, port)) => port.bytes().all(|byte| byte.is_ascii_digit()).then_some(host),
        None => Some(host),
    }
}

/// Nothing, or a colon and digits.
fn is_port(text: &str) -> bool {
    text.is_empty()
        || text.strip_prefix(':').is_some_and(|port| port.bytes().all(|b| b.is_ascii_digit()))
}

/// An address needs no name to be looked up.
fn is_address(host: &str) -> bool {
    let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    match bracketed {
        Some(host) => host.parse::<Ipv6Addr>().is_ok(),
        None => matches!(host.parse(), Ok(IpAddr::V4(_))),
    }
}

/// Answers a request that is not allowed by itself, and sets the fields of each answer.
pub async fn guard(State(site): State<Arc<PagesState>>, request: Request, next: Next) -> Response {
    let (method, headers) = (request.method(), request.headers());
    let mut response = if method != Method::GET && method != Method::HEAD {
        let allow = [(header::ALLOW, "GET, HEAD")];
        (StatusCode::METHOD_NOT_ALLOWED, allow, TEXT, "GET and HEAD only\n").into_response()
    } else if !site.guard.knows(headers) {
        let why = "not a name of these pages: web.hosts has those that are\n";
        (StatusCode::MISDIRECTED_REQUEST, TEXT, why).into_response()
    } else {
        match site.guard.given(headers) {
            GivenPassword::Right => next.run(request).await,
            GivenPassword::Missing => asks_for_a_password(),
            GivenPassword::Wrong => {
                site.guard.tell_of_wrong_passwords(1);
                tokio::time::sleep(LATE).await;
                asks_for_a_password()
            }
        }
    };
    for (name, value) in FIELDS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

fn asks_for_a_password() -> Response {
    let ask = [(header::WWW_AUTHENTICATE, "Basic realm=\"onedrop\", charset=\"UTF-8\"")];
    (StatusCode::UNAUTHORIZED, ask, TEXT, "a password is needed\n").into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: HeaderName, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(name, HeaderValue::from_str(value).expect("a value"))])
    }

    #[test]
    fn only_names_of_ours_are_known() {
        let guard = PageGuard::new(&["Status.Example.org".to_owned()], None);
        for (host, is_known) in [
            ("localhost", true),
            ("LOCALHOST:9726", true),
            ("127.0.0.1:9726", true),
            ("192.0.2.7", true),
            ("[::1]:9726", true),
            ("[::1]", true),
            ("status.example.org", true),
            ("status.example.ORG:443", true),
            ("evil.example", false),
            ("status.example.org.evil.example", false),
            ("localhost.evil.example:9726", false),
            ("127.0.0.1.evil.example", false),
            ("[::1].evil.example", false),
            ("::1", false),
            ("localhost:80:80", false),
            ("localhost:x", false),
            ("", false),
        ] {
            assert_eq!(guard.knows(&headers(header::HOST, host)), is_known, "{host}");
        }
        assert!(!guard.knows(&HeaderMap::new()));
        let mut two = headers(header::HOST, "localhost");
        two.append(header::HOST, HeaderValue::from_static("evil.example"));
        assert!(!guard.knows(&two));
    }

    #[test]
    fn the_password_is_the_whole_password() {
        let guard = PageGuard::new(&[], Some("s3cret:with colon".into()));
        for (value, gets_in) in [
            ("onedrop:s3cret:with colon", true),
            (":s3cret:with colon", true),
            ("onedrop:s3cret:with colo", false),
            ("onedrop:s3cret:with colon ", false),
            ("onedrop:", false),
            ("s3cret", false),
        ] {
            let basic = format!("Basic {}", STANDARD.encode(value));
            let given = guard.given(&headers(header::AUTHORIZATION, &basic));
            let expected = if gets_in { GivenPassword::Right } else { GivenPassword::Wrong };
            assert_eq!(given, expected, "{value}");
        }
        assert_eq!(guard.given(&HeaderMap::new()), GivenPassword::Missing);
        let bearer = headers(header::AUTHORIZATION, "Bearer s3cret:with colon");
        assert_eq!(guard.given(&bearer), GivenPassword::Wrong);
        assert_eq!(PageGuard::new(&[], None).given(&HeaderMap::new()), GivenPassword::Right);
    }

    #[test]
    fn wrong_passwords_are_told_once_a_minute_and_none_is_left_out() {
        let (mut wrong, began) = (WrongPasswords::default(), Instant::now());
        assert_eq!(wrong.due(began), None);
        wrong.count += 1;
        assert_eq!(wrong.due(began), Some(1));
        wrong.count += 7;
        assert_eq!(wrong.due(began + TELLING / 2), None);
        assert_eq!(wrong.due(began + TELLING), Some(7));
        assert_eq!(wrong.due(began + TELLING * 3), None);
    }
}
