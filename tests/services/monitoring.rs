//! The dashboard and the alerts that we ship: that Prometheus takes them, that each alert fires and
//! says what to do, and that every metric they and the pages name is one of the program's.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::page::{PROJECT, Page};
use crate::reference::metrics_served;
use crate::support::site::{Site, run};

const RULES: &str = "conf/prometheus/onedrop.rules.yml";
const RULES_TEST: &str = "conf/prometheus/onedrop.rules.test.yml";
const DASHBOARD: &str = "conf/grafana/onedrop.json";
/// Pages on metrics, and on nothing else that is called so.
const PAGES: [&str; 3] = ["docs/metrics.md", "docs/monitoring.md", "docs/troubleshoot-alerts.md"];

fn read(file: &str) -> String {
    fs::read_to_string(Path::new(PROJECT).join(file))
        .unwrap_or_else(|error| panic!("{file}: {error}"))
}

#[test]
fn prometheus_takes_the_rules_and_they_fire_when_they_should() {
    for (kind, file) in [("check", RULES), ("test", RULES_TEST)] {
        let output = Command::new("promtool")
            .args([kind, "rules", file])
            .current_dir(PROJECT)
            .output()
            .expect("promtool, of the Debian package prometheus");
        let told = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success() && told.contains("SUCCESS"), "{kind} {file}: {told}");
    }
}

/// What follows `key` in lines of YAML.
fn values<'a>(text: &'a str, key: &str) -> Vec<&'a str> {
    let lines = text.lines().map(|line| line.trim_start().trim_start_matches("- "));
    lines.filter_map(|line| Some(line.strip_prefix(key)?.trim())).collect()
}

#[test]
fn each_alert_is_tested_and_links_to_what_to_do() {
    let rules = read(RULES);
    let alerts = values(&rules, "alert: ");
    assert!(alerts.len() > 10, "{alerts:?}");
    let page = Page::read("docs/troubleshoot-alerts.md");
    // Where the package puts the page.
    let package = read("Cargo.toml");
    let (_, folder) = package.split_once("[\"docs/*.md\", \"").expect("the pages are packed");
    let (folder, _) = folder.split_once('"').expect("a folder");
    let links: Vec<String> = alerts
        .iter()
        .map(|name| format!("/{folder}troubleshoot-alerts.md#{}", name.to_lowercase()))
        .collect();
    assert_eq!(values(&rules, "runbook: "), links);
    assert_eq!(page.sections(), alerts, "a section for each, in their order");
    let test = read(RULES_TEST);
    let fires = |name: &&str| test.contains(&format!("alertname: {name}\n        exp_alerts:\n"));
    assert_eq!(alerts.iter().filter(|name| !fires(name)).collect::<Vec<_>>(), [&""; 0]);
}

/// Names of metrics in a text.
fn named(text: &str) -> BTreeSet<String> {
    let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let words = text.split(|c| !is_name(c));
    words.filter(|word| word.starts_with("onedrop_")).map(str::to_owned).collect()
}

#[test]
fn every_metric_that_is_named_is_one_of_the_programs() {
    let served = metrics_served();
    let family = |name: &str| {
        let endings = ["_total", "_bucket", "_sum", "_count"];
        let end = endings.iter().find_map(|end| name.strip_suffix(end));
        end.unwrap_or(name).to_owned()
    };
    let mut seen = BTreeSet::new();
    for file in [RULES, RULES_TEST, DASHBOARD].into_iter().chain(PAGES) {
        let names = named(&read(file));
        let unknown: Vec<_> = names.iter().filter(|name| !served.contains(&family(name))).collect();
        assert!(unknown.is_empty(), "{file}: {unknown:?} is none of {served:?}");
        seen.extend(names.iter().filter(|_| file == DASHBOARD).map(|name| family(name)));
    }
    assert_eq!(seen, served, "the dashboard shows all of them");
}

/// What a host reports whether or not it sees the ledger.
const OF_HOSTS: [&str; 6] = [
    "onedrop_build_info",
    "onedrop_ledger_up",
    "onedrop_store_up",
    "onedrop_jobs_config_ok",
    "onedrop_unrecorded_deliveries",
    "onedrop_status_timestamp_seconds",
];

/// The gauges of a host that sees the ledger.
fn gauges_of_status() -> BTreeSet<String> {
    let site = Site::embedded();
    let config = site.config("etc", "[jobs.report]\nevery = \"1h\"\ncommand = [\"true\"]\n");
    let file = site.root.join("onedrop.prom");
    let to = file.to_str().expect("UTF-8");
    for args in [&["migrate"][..], &["status", "--prometheus", to]] {
        let output = run(&config, args);
        assert!(output.status.success(), "{args:?}: {output:?}");
    }
    let told = fs::read_to_string(&file).expect("metrics");
    let types = told.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    types.map(str::to_owned).collect()
}

/// A server that has lost the ledger keeps its last figures.
#[test]
fn the_dashboard_shows_of_the_ledger_what_hosts_say_that_see_it() {
    const SEES_IT: &str = " and on (instance, job) (onedrop_ledger_up == 1) and on (instance, job) \
                           (time() - onedrop_status_timestamp_seconds < 900)";
    let gauges = gauges_of_status().into_iter();
    let of_ledger: BTreeSet<_> = gauges.filter(|name| !OF_HOSTS.contains(&&**name)).collect();
    assert!(of_ledger.len() > 8, "{of_ledger:?}");
    let dashboard: Value = serde_json::from_str(&read(DASHBOARD)).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels").iter();
    let targets = panels.filter_map(|panel| panel["targets"].as_array()).flatten();
    let mut count = 0;
    for shown in targets.map(|target| target["expr"].as_str().expect("an expression")) {
        if named(shown).iter().any(|name| of_ledger.contains(name)) {
            assert!(shown.contains(SEES_IT), "{shown}");
            count += 1;
        }
    }
    assert!(count >= of_ledger.len() - 1, "two are shown as their sum");
}

#[test]
fn the_dashboard_is_plain_json_for_any_data_source() {
    fn look(value: &Value, wrong: &mut Vec<String>) {
        match value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    let is_fixed = match name.as_str() {
                        "id" => true,
                        "uid" => value != "${datasource}",
                        _ => false,
                    };
                    if is_fixed {
                        wrong.push(format!("{name}: {value}"));
                    }
                    look(value, wrong);
                }
            }
            Value::Array(values) => values.iter().for_each(|value| look(value, wrong)),
            _ => {}
        }
    }
    let dashboard: Value = serde_json::from_str(&read(DASHBOARD)).expect("JSON");
    let mut wrong = Vec::new();
    look(&dashboard, &mut wrong);
    assert!(wrong.is_empty(), "these hold in one installation alone: {wrong:?}");
    let panels = dashboard["panels"].as_array().expect("panels");
    for panel in panels.iter().filter(|panel| panel["type"] != "row") {
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{}", panel["title"]);
        let targets = panel["targets"].as_array().expect("targets");
        assert!(!targets.is_empty(), "{}", panel["title"]);
    }
}
