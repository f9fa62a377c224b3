//! A message's story: the order of its events, and what is shown of many copies.

use crate::served::Served;
use crate::support::letters;
use crate::support::site::{Files, Site, delivered};

const SCUBA: &str = "scuba@mail.axial.net";

/// A site with one delivered message.
fn site() -> (Site<Files>, std::path::PathBuf) {
    let site = Site::embedded();
    site.remember_for_ever();
    let config = site.config("web", "");
    delivered(&config, &["-d", SCUBA], letters::from_ann("one").as_bytes());
    (site, config)
}

#[test]
fn events_stand_in_their_order_across_the_end_of_summer_time() {
    let (site, config) = site();
    // 02:50 and, twenty minutes later, 02:10.
    let (before, after) = (1_792_889_400, 1_792_890_600);
    site.sqlite()
        .execute_batch(&format!(
            "UPDATE onedrop_message SET recorded_at = {before};
             UPDATE onedrop_attempt SET started_at = {before};
             UPDATE onedrop_copy SET placed_at = {after}"
        ))
        .expect("times");
    let served = Served::start_with(&config, &[], |command| {
        command.env("TZ", "Europe/Berlin");
    });
    let page = served.page("/m/1");
    let story = page.split_once("<ol class=\"story\">").expect("a story").1;
    let at = |text: &str| story.find(text).unwrap_or_else(|| panic!("{text}: {story}"));
    assert!(at("2026-10-25 02:50:00") < at("2026-10-25 02:10:00"), "{story}");
    assert!(at("the message is on record") < at("INBOX of scuba as "), "{story}");
}
