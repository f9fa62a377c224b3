//! A browser by WebDriver (https://www.w3.org/TR/webdriver2/): Debian's chromium, through
//! chromedriver. By hand: the protocol is one JSON object a request over HTTP, and the crates that
//! speak it bring an async client and some sixty crates of their own. Talks to the driver on this
//! host alone, with its own profile in a temporary folder.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::support::server::{Server, guarded};
use crate::support::{TempRoot, free_port};

/// The name of an element in WebDriver's answers.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";
/// The Enter and Tab keys.
pub const ENTER: &str = "\u{e007}";
pub const TAB: &str = "\u{e004}";

/// A browser with one window.
pub struct Browser {
    driver: Server,
    port: u16,
    session: String,
    _root: TempRoot,
}

impl Browser {
    pub fn start() -> Browser {
        let (root, port) = (TempRoot::new(), free_port());
        let log = root.join("driver.log");
        let mut command = guarded("/usr/bin/chromedriver", None, Signal::SIGKILL);
        command.arg(format!("--port={port}"));
        let file = std::fs::File::create(&log).expect("log");
        command.env("HOME", &*root).stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
        let driver = Server::start("chromedriver", command, Signal::SIGKILL, &log);
        let mut browser = Browser { driver, port, session: String::new(), _root: root };
        let ready = || TcpStream::connect(("127.0.0.1", port)).is_ok();
        browser.driver.wait_ready(ready);
        let profile = format!("--user-data-dir={}", browser._root.join("profile").display());
        let args = [
            "--headless=new",
            "--no-sandbox",
            "--disable-dev-shm-usage",
            "--disable-gpu",
            "--hide-scrollbars",
            "--disable-background-networking",
            "--disable-component-update",
            "--no-first-run",
            &profile,
        ];
        let wanted = json!({ "capabilities": { "alwaysMatch": {
            "browserName": "chrome",
            "goog:chromeOptions": { "binary": "/usr/bin/chromium", "args": args },
            "goog:loggingPrefs": { "browser": "ALL", "performance": "ALL" },
        }}});
        let made = browser.ask("POST", "/session", &wanted);
        browser.session = made["sessionId"].as_str().expect("a session").to_owned();
        browser.command("/timeouts", &json!({ "script": 60_000, "pageLoad": 60_000 }));
        browser
    }

    /// One question to the driver.
    #[track_caller]
    fn ask(&self, method: &str, path: &str, body: &Value) -> Value {
        let body = body.to_string();
        let mut driver = TcpStream::connect(("127.0.0.1", self.port)).expect("the driver");
        driver.set_read_timeout(Some(Duration::from_secs(120))).expect("a time");
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost:{}\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\nConnection: close\r\n\r\n",
            self.port,
            body.len()
        );
        driver.write_all(&[head.as_bytes(), body.as_bytes()].concat()).expect("the driver");
        let mut answer = Vec::new();
        let mut some = [0; 65_536];
        let whole = loop {
            let count = driver.read(&mut some).expect("an answer");
            answer.extend_from_slice(&some[..count]);
            let text = String::from_utf8_lossy(&answer);
            let length = text.split_once("\r\n\r\n").and_then(|(head, _)| {
                let head = head.to_lowercase();
                let (_, rest) = head.split_once("content-length:")?;
                rest.lines().next()?.trim().parse::<usize>().ok()
            });
            let start = answer.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4);
            if let (Some(length), Some(start)) = (length, start)
                && answer.len() >= start + length
            {
                break answer[start..start + length].to_vec();
            }
            assert!(count > 0, "the driver has closed: {text}");
        };
        let mut value: Value = serde_json::from_slice(&whole).expect("JSON");
        let value = value["value"].take();
        assert!(value["error"].is_null(), "{path} {body}: {value:#}");
        value
    }

    #[track_caller]
    fn command(&self, path: &str, body: &Value) -> Value {
        self.ask("POST", &format!("/session/{}{path}", self.session), body)
    }

    #[track_caller]
    pub fn go(&self, url: &str) {
        self.command("/url", &json!({ "url": url }));
    }

    #[track_caller]
    fn element(&self, css: &str) -> String {
        let found = self.command("/element", &json!({ "using": "css selector", "value": css }));
        found[ELEMENT].as_str().expect("an element").to_owned()
    }

    #[track_caller]
    pub fn click(&self, css: &str) {
        let element = self.element(css);
        self.command(&format!("/element/{element}/click"), &json!({}));
    }

    #[track_caller]
    pub fn type_into(&self, css: &str, text: &str) {
        let element = self.element(css);
        self.command(&format!("/element/{element}/value"), &json!({ "text": text }));
    }

    /// Presses keys where the focus is.
    #[track_caller]
    pub fn press(&self, keys: &str) {
        let each = |key: char| {
            let key = key.to_string();
            [json!({ "type": "keyDown", "value": key }), json!({ "type": "keyUp", "value": key })]
        };
        let actions: Vec<Value> = keys.chars().flat_map(each).collect();
        let keys = json!({ "type": "key", "id": "keys", "actions": actions });
        self.command("/actions", &json!({ "actions": [keys] }));
    }

    /// What this JavaScript returns.
    #[track_caller]
    pub fn run(&self, script: &str) -> Value {
        self.command("/execute/sync", &json!({ "script": script, "args": [] }))
    }

    /// The same, with what it gives to its last argument, a function.
    #[track_caller]
    pub fn run_to_end(&self, script: &str) -> Value {
        self.command("/execute/async", &json!({ "script": script, "args": [] }))
    }

    #[track_caller]
    pub fn text(&self) -> String {
        self.run("return document.body.innerText").as_str().unwrap_or_default().to_owned()
    }

    #[track_caller]
    pub fn path(&self) -> String {
        self.run("return location.pathname").as_str().unwrap_or_default().to_owned()
    }

    /// What the log of this kind has had since it was last asked for.
    #[track_caller]
    pub fn log(&self, kind: &str) -> Vec<Value> {
        let log = self.command("/se/log", &json!({ "type": kind }));
        log.as_array().cloned().unwrap_or_default()
    }

    #[track_caller]
    fn devtools(&self, command: &str, params: Value) -> Value {
        self.command("/goog/cdp/execute", &json!({ "cmd": command, "params": params }))
    }

    /// A screen of this width, light or dark.
    #[track_caller]
    pub fn screen(&self, width: u32, dark: bool) {
        let size = json!({
            "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false });
        self.devtools("Emulation.setDeviceMetricsOverride", size);
        let scheme = if dark { "dark" } else { "light" };
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.devtools("Emulation.setEmulatedMedia", json!({ "features": features }));
    }

    /// Writes the whole page as PNG.
    #[track_caller]
    pub fn picture(&self, file: &Path) {
        let whole = json!({ "captureBeyondViewport": true, "format": "png" });
        let shot = self.devtools("Page.captureScreenshot", whole);
        let text = shot["data"].as_str().unwrap_or_default();
        let bytes = STANDARD.decode(text).expect("base64");
        assert!(bytes.starts_with(b"\x89PNG"), "no picture");
        std::fs::write(file, bytes).expect("a file");
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !self.session.is_empty() && !std::thread::panicking() {
            let path = format!("/session/{}", self.session);
            self.ask("DELETE", &path, &json!({}));
        }
    }
}
