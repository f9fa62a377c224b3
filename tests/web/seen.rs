//! What people see: in a real browser, by mouse and keyboard, narrow and wide, light and dark, and
//! by axe-core (https://github.com/dequelabs/axe-core), which is fetched for the run and not kept.
//! `ONEDROP_PICTURES` names a folder in which the pictures stay.

use std::fs;
use std::io::Read;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use onedrop::config::Config;
use onedrop::http::HttpLimits;
use onedrop::web;
use serde_json::Value;

use crate::browser::{Browser, ENTER, TAB};
use crate::pages::{HOSTILE, Story};
use crate::served::Served;
use crate::support::sample::part;
use crate::support::{TempRoot, is_full, run, wait_until};
use crate::wire::{CUT_OFF, InProcess, WaitsAt};

const LONG: Duration = Duration::from_secs(60);

struct Rig {
    story: Story,
    served: Served,
    browser: Browser,
}

impl Rig {
    fn new() -> Rig {
        let story = Story::new();
        let served = Served::start(&story.config, &[]);
        let browser = Browser::start();
        browser.screen(1280, false);
        let rig = Rig { story, served, browser };
        rig.go("/");
        // What the browser asked itself for at its start.
        rig.browser.log("performance");
        rig
    }

    fn go(&self, path: &str) {
        self.browser.go(&format!("http://127.0.0.1:{}{path}", self.served.port));
    }

    /// No error in the console, and nothing asked for elsewhere.
    #[track_caller]
    fn is_quiet(&self, path: &str) {
        let console = self.browser.log("browser");
        let told = console.iter().filter(|line| {
            // The console names the page that is not there.
            !(path == "/nope" && line["message"].as_str().unwrap_or_default().contains("404"))
        });
        assert_eq!(told.count(), 0, "{path}: {console:#?}");
        let here = format!("http://127.0.0.1:{}/", self.served.port);
        for line in self.browser.log("performance") {
            let message: Value =
                serde_json::from_str(line["message"].as_str().unwrap_or_default()).expect("JSON");
            if message["message"]["method"] != "Network.requestWillBeSent" {
                continue;
            }
            let url = message["message"]["params"]["request"]["url"].as_str().unwrap_or_default();
            let is_ours = url.starts_with(&here) || url.starts_with("data:");
            assert!(is_ours, "{path} asks for {url}");
        }
    }
}

#[test]
fn a_search_leads_to_the_story_and_a_hostile_subject_stays_text() {
    let rig = Rig::new();
    let browser = &rig.browser;
    rig.go("/");
    browser.type_into("#q", "4F1c2B3x");
    browser.click("form[role=search] button");
    assert!(wait_until(LONG, || browser.path().starts_with("/m/")), "{}", browser.text());
    let text = browser.text();
    for part in ["<hostile@x.example>", HOSTILE, "recorded", "delivered", "placed", "4F1c2B3x"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let title = browser.run("return document.title");
    assert!(
        title.as_str().is_some_and(|title| title.starts_with("<hostile@x.example>")),
        "{title}"
    );
    assert_eq!(browser.run("return document.scripts.length"), 0);
    // What a script would have to get past.
    browser.run("document.body.appendChild(document.createElement('script')).text = 'taken = 1'");
    assert_eq!(browser.run("return typeof taken"), "undefined");
    let refused = browser.log("browser");
    assert!(refused.iter().any(|line| line.to_string().contains("Content Security Policy")));
    for path in rig.story.paths() {
        rig.go(&path);
        rig.is_quiet(&path);
        assert_eq!(browser.run("return document.scripts.length"), 0, "{path}");
    }
    let locks = rig.served.page("/locks");
    let (held, waits) = locks.split_once("the run of November").expect("who holds it");
    assert!(held.contains("1 of 1") && waits.contains("one of 1") && waits.contains("December"));
}

#[test]
fn everything_is_reached_by_the_keyboard_alone() {
    let rig = Rig::new();
    let browser = &rig.browser;
    rig.go("/");
    let focused = || {
        let what = "const e = document.activeElement; \
            return e.getAttribute('href') || e.id || e.textContent.trim()";
        browser.run(what).as_str().unwrap_or_default().to_owned()
    };
    let is_seen = || {
        let outline = "const s = getComputedStyle(document.activeElement); \
            const b = document.activeElement.getBoundingClientRect(); \
            return s.outlineStyle !== 'none' && b.left >= 0 && b.width > 0";
        browser.run(outline) == true
    };
    let mut order = Vec::new();
    for _ in 0..30 {
        browser.press(TAB);
        if browser.run("return document.activeElement === document.body") == true {
            break;
        }
        order.push(focused());
        assert!(is_seen(), "{order:?}");
    }
    for wanted in ["#main", "/", "/failures", "/doubts", "/jobs", "/locks", "/hosts", "q", "by"] {
        assert!(order.iter().any(|one| one == wanted), "{wanted}: {order:?}");
    }
    assert_eq!(order[0], "#main", "{order:?}");
    // The skip link leads into the content; a search needs no mouse.
    rig.go("/");
    browser.press(&format!("{TAB}{ENTER}"));
    assert!(wait_until(LONG, || focused() == "main"), "{}", focused());
    rig.go("/");
    for _ in 0..20 {
        browser.press(TAB);
        if focused() == "q" {
            break;
        }
    }
    browser.press(&format!("<hostile@x.example>{ENTER}"));
    assert!(wait_until(LONG, || browser.path().starts_with("/m/")), "{}", browser.text());
    // What is folded opens by Enter.
    rig.go("/");
    browser.run("document.querySelector('summary').focus()");
    browser.press(ENTER);
    assert_eq!(browser.run("return document.querySelector('details').open"), true);
}

#[test]
fn pages_fit_from_narrow_to_wide_and_axe_finds_nothing() {
    let rig = Rig::new();
    let axe = axe();
    let pictures = std::env::var_os("ONEDROP_PICTURES").map(PathBuf::from);
    if let Some(folder) = &pictures {
        fs::create_dir_all(folder).expect("a folder");
    }
    let browser = &rig.browser;
    let violations = || violations(browser, &axe);
    // It finds what is there to be found.
    rig.go("/");
    browser.run(
        "document.getElementById('main').appendChild(new Image()); \
                 document.querySelector('h1').style.color = '#ddd'",
    );
    let found = violations();
    for known in ["image-alt", "color-contrast"] {
        assert!(found.iter().any(|one| one.to_string().contains(known)), "{known}: {found:?}");
    }
    // Each page is seen wide, dark or narrow; with later commits in turn.
    let turn = part(3) as usize;
    for (at, path) in rig.story.paths().iter().enumerate() {
        let screens = match is_full() {
            true => vec![(1280, false), (1280, true), (320, false), (320, true)],
            false => vec![[(1280, false), (1280, true), (320, false)][(at + turn) % 3]],
        };
        for (width, dark) in screens {
            browser.screen(width, dark);
            rig.go(path);
            // All that is folded is seen, too.
            browser.run("document.querySelectorAll('details').forEach(d => d.open = true)");
            let name = path.trim_matches('/').replace(['/', '?', '=', '&', '@'], "-");
            let scheme = if dark { "dark" } else { "light" };
            if let Some(folder) = &pictures {
                browser.picture(&folder.join(format!("{at:02}-{name}-{width}-{scheme}.png")));
            }
            let wide = browser.run("return document.documentElement.scrollWidth");
            assert!(wide.as_u64().is_some_and(|wide| wide <= width.into()), "{path}: {wide}");
            assert_eq!(violations(), Vec::<Value>::new(), "{path} {width} {scheme}");
        }
    }
}

#[test]
fn a_page_that_was_cut_off_says_so_and_one_that_was_not_does_not() {
    let waits = WaitsAt::call("last_row");
    // The server's own bound cuts a page whose rows take too long.
    let limits = HttpLimits { whole: Duration::from_secs(4), ..web::LIMITS };
    let cutting = InProcess::with(&Config::default(), limits, waits.clone());
    let (browser, axe) = (Browser::start(), axe());
    let shown = || {
        browser.run(
            "const p = document.querySelector('.looking'); \
             return p && [p.checkVisibility(), document.body.innerText.includes(p.innerText)]",
        )
    };
    for dark in [false, true] {
        browser.screen(1280, dark);
        browser.go(&format!("http://127.0.0.1:{}/failures", cutting.port));
        assert_eq!(shown(), serde_json::json!([true, true]), "{}", browser.text());
        assert!(browser.text().ends_with(CUT_OFF), "{}", browser.text());
        // Its heading would have come with the rows.
        let found = violations(&browser, &axe);
        let id =
            |one: &Value| one.as_str().unwrap_or_default().split(':').next().map(str::to_owned);
        let found: Vec<_> = found.iter().filter_map(id).collect();
        assert!(found.iter().all(|id| id == "page-has-heading-one"), "{found:?}");
    }
    waits.goes_on.store(true, Ordering::SeqCst);
    cutting.end();
    // The same page, begun as well, and not cut.
    let waits = WaitsAt::call("last_row");
    let whole = InProcess::start(waits.clone());
    thread::scope(|scope| {
        scope.spawn(|| {
            assert!(wait_until(LONG, || waits.waiting() == 1));
            // Whatever was asked for before this one that has begun has begun, too.
            let mut other = whole.ask("/failures");
            let begun = other.read_exact(&mut [0; 16]);
            waits.goes_on.store(true, Ordering::SeqCst);
            begun.expect("a beginning");
        });
        browser.go(&format!("http://127.0.0.1:{}/failures", whole.port));
    });
    assert_eq!(shown(), serde_json::json!([false, false]), "{}", browser.text());
    assert_eq!(browser.run("return document.querySelectorAll('main h1').length"), 1);
    assert!(!browser.text().contains(CUT_OFF), "{}", browser.text());
    assert_eq!(violations(&browser, &axe), Vec::<Value>::new());
    whole.end();
}

/// What axe finds wrong in the page that is shown.
fn violations(browser: &Browser, axe: &str) -> Vec<Value> {
    browser.run(axe);
    let found = browser.run_to_end(
        "const done = arguments[arguments.length - 1]; \
         axe.run(document, { preload: false }).then(r => done(r.violations.map(v => \
             v.id + ': ' + v.help + ' ' + v.nodes.map(n => n.html + ' ' + \
             n.failureSummary).join('; '))), e => done([String(e)]))",
    );
    found.as_array().cloned().unwrap_or_else(|| panic!("{found}"))
}

/// The script of axe-core.
fn axe() -> String {
    let folder = TempRoot::new();
    let packed = Command::new("npm")
        .args(["pack", "axe-core@4.14.1", "--silent", "--pack-destination"])
        .arg(&*folder)
        .current_dir(&*folder)
        .output()
        .unwrap_or_else(|error| panic!("npm, which fetches axe-core, cannot be run: {error}"));
    assert!(
        packed.status.success(),
        "axe-core is not to be had: npm's registry is out of reach or refuses it, so nobody has \
         looked whether the pages are accessible: {}",
        String::from_utf8_lossy(&packed.stderr)
    );
    let name = String::from_utf8_lossy(&packed.stdout).trim().to_owned();
    run(Command::new("tar").arg("-xzf").arg(folder.join(&name)).current_dir(&*folder));
    fs::read_to_string(folder.join("package/axe.min.js")).expect("axe-core's script")
}
