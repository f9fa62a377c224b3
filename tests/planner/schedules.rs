//! When a schedule is due, above all where clocks are put forward and back.

use std::time::{Duration, Instant, SystemTime};

use onedrop::schedule::Schedule;

use crate::world::{shown, utc};

fn cron(text: &str, zone: &str) -> Schedule {
    Schedule::cron(text, zone).unwrap_or_else(|why| panic!("{text}: {why}"))
}

/// All times from one moment to another, found forwards; backwards they must be the same.
fn times(schedule: &Schedule, from: &str, to: &str) -> Vec<String> {
    let (from, to) = (utc(from), utc(to));
    let mut found = Vec::new();
    let mut at = schedule.next_after(from);
    while at <= to {
        found.push(at);
        at = schedule.next_after(at);
    }
    let mut back = Vec::new();
    let mut at = schedule.newest_until(to);
    while let Some(time) = at.filter(|time| *time > from) {
        back.insert(0, time);
        at = schedule.newest_until(time - Duration::from_millis(1));
    }
    let shown = |times: Vec<SystemTime>| times.into_iter().map(shown).collect::<Vec<_>>();
    let (found, back) = (shown(found), shown(back));
    assert_eq!(found, back, "{schedule} forwards and backwards");
    found
}

/// Europe/London 2026: forward on 29 March at 01:00 UTC (01:00 to 02:00 local), back on 25 October
/// at 01:00 UTC (02:00 to 01:00 local).
#[test]
fn london() {
    let spring = |text| times(&cron(text, "Europe/London"), "2026-03-28 23:00", "2026-03-29 03:00");
    let autumn = |text| times(&cron(text, "Europe/London"), "2026-10-24 22:30", "2026-10-25 03:00");
    // A daily job in the hour that is left out runs when that ends, once.
    assert_eq!(spring("30 1 * * *"), ["2026-03-29 01:00"]);
    assert_eq!(spring("0 1 * * *"), ["2026-03-29 01:00"]);
    assert_eq!(spring("0,15 1 * * *"), ["2026-03-29 01:00"]);
    assert_eq!(spring("30 1,2 * * *"), ["2026-03-29 01:00", "2026-03-29 01:30"]);
    assert_eq!(spring("0,30 1-2 * * *"), ["2026-03-29 01:00", "2026-03-29 01:30"]);
    assert_eq!(spring("30 0 * * *"), ["2026-03-29 00:30"]);
    // By the time that passes: what is left out is left out.
    assert_eq!(spring("*/15 1 * * *"), [""; 0]);
    let hours = ["2026-03-29 00:00", "2026-03-29 01:00", "2026-03-29 02:00", "2026-03-29 03:00"];
    assert_eq!(spring("0 * * * *"), hours);
    assert_eq!(spring("30 */2 * * *"), ["2026-03-29 00:30", "2026-03-29 01:30"]);
    let quarters = spring("*/15 * * * *");
    assert_eq!(quarters.len(), 16, "every 15 minutes of what passes: {quarters:?}");
    assert_eq!(quarters[8..10], ["2026-03-29 01:15", "2026-03-29 01:30"]);
    // The hour that comes twice: a daily job runs in the first, an hourly in both.
    assert_eq!(autumn("30 1 * * *"), ["2026-10-25 00:30"]);
    assert_eq!(autumn("0 2 * * *"), ["2026-10-25 02:00"]);
    assert_eq!(autumn("0,30 1 * * *"), ["2026-10-25 00:00", "2026-10-25 00:30"]);
    let hours = ["2026-10-24 23:00", "2026-10-25 00:00", "2026-10-25 01:00", "2026-10-25 02:00"];
    assert_eq!(autumn("0 * * * *")[..4], hours);
    assert_eq!(autumn("*/15 * * * *").len(), 18, "4.5 hours");
    assert_eq!(autumn("*/15 1 * * *").len(), 8, "two hours");
}

/// Antarctica/Troll 2026: from UTC to UTC+2 on 29 March at 01:00 UTC, back on 25 October at 01:00
/// UTC: two hours are left out, two come twice.
#[test]
fn troll() {
    let spring =
        |text| times(&cron(text, "Antarctica/Troll"), "2026-03-29 00:00", "2026-03-29 02:00");
    let autumn =
        |text| times(&cron(text, "Antarctica/Troll"), "2026-10-24 22:45", "2026-10-25 03:00");
    assert_eq!(spring("30 1 * * *"), ["2026-03-29 01:00"]);
    assert_eq!(spring("30 2 * * *"), ["2026-03-29 01:00"]);
    assert_eq!(spring("15 1,2,3 * * *"), ["2026-03-29 01:00", "2026-03-29 01:15"]);
    assert_eq!(spring("0 * * * *"), ["2026-03-29 01:00", "2026-03-29 02:00"]);
    assert_eq!(spring("*/15 * * * *").len(), 8);
    assert_eq!(autumn("30 1 * * *"), ["2026-10-24 23:30"]);
    assert_eq!(autumn("30 2 * * *"), ["2026-10-25 00:30"]);
    let hours = ["23:00", "00:00", "01:00", "02:00", "03:00"];
    let found = autumn("0 * * * *");
    assert!(found.iter().zip(hours).all(|(time, hour)| time.ends_with(hour)), "{found:?}");
    assert_eq!(found.len(), 5);
    assert_eq!(autumn("*/15 * * * *").len(), 17);
}

/// Australia/Lord_Howe 2026: half an hour; back on 4 April at 15:00 UTC (02:00 to 01:30 local),
/// forward on 3 October at 15:30 UTC (02:00 to 02:30 local).
#[test]
fn lord_howe() {
    let zone = "Australia/Lord_Howe";
    let autumn = |text| times(&cron(text, zone), "2026-04-04 14:00", "2026-04-04 16:00");
    let spring = |text| times(&cron(text, zone), "2026-10-03 14:30", "2026-10-03 16:30");
    assert_eq!(autumn("45 1 * * *"), ["2026-04-04 14:45"]);
    assert_eq!(autumn("30 1 * * *"), ["2026-04-04 14:30"]);
    assert_eq!(autumn("0 2 * * *"), ["2026-04-04 15:30"]);
    assert_eq!(autumn("0 * * * *"), ["2026-04-04 15:30"]);
    let quarters = autumn("*/15 * * * *");
    assert_eq!(quarters.len(), 8, "{quarters:?}");
    assert_eq!(spring("15 2 * * *"), ["2026-10-03 15:30"]);
    assert_eq!(spring("0 2 * * *"), ["2026-10-03 15:30"]);
    assert_eq!(spring("0 * * * *"), ["2026-10-03 16:00"], "02:00 does not come");
    assert_eq!(
        spring("15,45 * * * *"),
        ["2026-10-03 14:45", "2026-10-03 15:15", "2026-10-03 15:45", "2026-10-03 16:15"]
    );
    assert_eq!(spring("*/15 * * * *").len(), 8);
}

/// Whatever moment one asks at, also in an hour that comes twice: the newest time and the next one
/// are neighbours in the list of all.
#[test]
fn the_newest_and_the_next_of_any_moment() {
    let zones = [
        ("Europe/London", "2026-03-28 12:00"),
        ("Europe/London", "2026-10-24 12:00"),
        ("Antarctica/Troll", "2026-03-28 12:00"),
        ("Antarctica/Troll", "2026-10-24 12:00"),
        ("Australia/Lord_Howe", "2026-04-04 03:00"),
        ("Australia/Lord_Howe", "2026-10-03 03:00"),
    ];
    for (zone, begin) in zones {
        for text in ["30 1 * * *", "*/20 1,2 * * *", "0 * * * *", "*/10 * * * *", "45 1 * * *"] {
            let (schedule, begin) = (cron(text, zone), utc(begin));
            let mut all = vec![schedule.newest_until(begin).expect("a time")];
            while all[all.len() - 1] < begin + Duration::from_secs(2 * 86_400) {
                all.push(schedule.next_after(all[all.len() - 1]));
            }
            for step in 0..24 * 12 {
                let at = begin + Duration::from_secs(step * 300);
                let next = all.partition_point(|time| *time <= at);
                let told = (schedule.newest_until(at), schedule.next_after(at));
                let context = || format!("{schedule} at {}", shown(at));
                assert_eq!(told, (Some(all[next - 1]), all[next]), "{}", context());
            }
        }
    }
}

/// Every day has each of its times once, over all changes of ten years in zones with odd ones.
#[test]
fn a_daily_time_comes_once_a_day() {
    for zone in [
        "Europe/London",
        "Antarctica/Troll",
        "Australia/Lord_Howe",
        "America/Sao_Paulo",
        "Africa/Casablanca",
        "Asia/Gaza",
        "America/Havana",
        "Asia/Beirut",
        "UTC",
    ] {
        for text in ["0 0 * * *", "30 0 * * *", "30 1 * * *", "15 2 * * *", "0 3 * * *"] {
            let found = times(&cron(text, zone), "2016-01-01 12:00", "2026-01-01 12:00");
            assert_eq!(found.len(), 3653, "{text} in {zone}");
        }
        let found = times(&cron("0 */6 * * *", zone), "2016-01-01 12:00", "2018-01-01 12:00");
        assert!((2900..=2960).contains(&found.len()), "{} in {zone}", found.len());
    }
}

/// Apia left out 30 December 2011, a whole day.
#[test]
fn a_day_that_never_was() {
    let found = times(&cron("0 8 * * *", "Pacific/Apia"), "2011-12-29 00:00", "2012-01-01 00:00");
    assert_eq!(
        found,
        ["2011-12-29 18:00", "2011-12-30 10:00", "2011-12-30 18:00", "2011-12-31 18:00"]
    );
}

#[test]
fn days_months_and_leap_years() {
    let utc_times = |text, from, to| times(&cron(text, "UTC"), from, to);
    assert_eq!(
        utc_times("0 0 29 2 *", "2026-01-01 00:00", "2036-12-31 00:00"),
        ["2028-02-29 00:00", "2032-02-29 00:00", "2036-02-29 00:00"]
    );
    // Both days are given: either counts, as in crontab(5).
    assert_eq!(
        utc_times("0 12 13 * FRI", "2026-02-01 00:00", "2026-02-28 00:00"),
        ["2026-02-06 12:00", "2026-02-13 12:00", "2026-02-20 12:00", "2026-02-27 12:00"]
    );
    // Beyond crontab(5).
    for (text, days) in [
        ("0 0 L * *", "31 28"),
        ("0 0 LW * *", "30 27"),
        ("0 0 15,LW 1 *", "15 30"),
        ("0 0 1W,31W * *", "1 30 2"),
        ("0 0 * * 5L", "30 27"),
        ("0 0 * * friL,SUN#1", "4 30 1 27"),
        ("0 0 * * FRI#2", "9 13"),
        ("0 0 * 1 6-7#1,SUN#2", "3 4 11"),
        ("0 0 1-7 * +MON", "5 2"),
        ("0 0 ? * FRI-7#5", "30 31"),
        ("0 0 L,LW * *", "30 31 27 28"),
        ("0 0 1 * ?", "1 1"),
    ] {
        let found = utc_times(text, "2025-12-31 12:00", "2026-02-28 12:00");
        let found: Vec<_> = found.iter().map(|time| time[8..10].trim_start_matches('0')).collect();
        assert_eq!(found.join(" "), days, "{text}");
    }
    assert_eq!(utc_times("0 0 31 * *", "2026-01-31 00:00", "2026-05-31 00:00").len(), 2);
    assert_eq!(
        utc_times("@weekly", "2026-11-01 00:00", "2026-11-15 00:00"),
        ["2026-11-08 00:00", "2026-11-15 00:00"]
    );
    for (nickname, fields) in [
        ("@hourly", "0 * * * *"),
        ("@daily", "0 0 * * *"),
        ("@midnight", "0 0 * * *"),
        ("@weekly", "0 0 * * 0"),
        ("@monthly", "0 0 1 * *"),
        ("@yearly", "0 0 1 1 *"),
        ("@annually", "0 0 1 1 *"),
        ("0 0 * * 7", "0 0 * * SUN"),
    ] {
        let both =
            |text| times(&cron(text, "Europe/London"), "2025-12-01 00:30", "2027-01-01 12:00");
        assert_eq!(both(nickname), both(fields), "{nickname}");
    }
}

#[test]
fn what_is_no_schedule_is_told_without_quoting_it() {
    for (text, why) in [
        ("", "expected five fields, found 0"),
        ("* * * *", "found 4"),
        ("0 0 3 * * *", "expected five fields (without seconds), found 6"),
        ("0 0 3 * * * 2026", "found 7"),
        ("@reboot", "or one of @hourly"),
        ("@daily 3", "or one of @hourly"),
        ("@Daily", "or one of @hourly"),
        ("60 * * * *", "the minute is wrong (it takes 0 to 59"),
        ("* 24 * * *", "the hour is wrong"),
        ("* * 0 * *", "the day of the month is wrong"),
        ("* * 32 * *", "the day of the month is wrong"),
        ("* * * 13 *", "the month is wrong"),
        ("* * * * 8", "the day of the week is wrong"),
        ("5-1 * * * *", "the minute is wrong"),
        ("*/0 * * * *", "the minute is wrong"),
        ("H 3 * * *", "the minute is wrong"),
        ("5; * * * *", "the minute is wrong"),
        ("** * * * *", "the minute is wrong"),
        ("1-5-7 * * * *", "the minute is wrong"),
        ("*/2/3 * * * *", "the minute is wrong"),
        ("5/15 * * * *", "before / it takes * or a range"),
        ("5, 6 * * *", "it has an empty part"),
        ("5, 6 * * * *", "found 6"),
        ("5,,6 * * * *", "it has an empty part"),
        ("? * * * *", "the minute is wrong"),
        ("30 6 MON-FRI * *", "the day of the month is wrong (it takes 1 to 31"),
        ("30 6 * MON *", "a name of another field"),
        ("0 0 32W * *", "the day of the month is wrong"),
        ("0 0 L-3 * *", "the day of the month is wrong"),
        ("0 0 * * L", "the day of the week is wrong"),
        ("0 0 * * L", "L needs a day before it: 5L is the last Friday"),
        ("0 0 * * 8L", "the day of the week is wrong"),
        ("0 0 * * MON#6", "MON#2 is the second Monday"),
        ("0 0 * * FRI-MON", "from the lower to the higher value"),
        ("0 0 * * FRI-SUN", "ends with 7, as in FRI-7"),
        ("hunter2 3 * * *", "the minute is wrong"),
        ("@daily@ 3 * * *", "or one of @hourly"),
        ("0 3 * * @daily", "the day of the week is wrong"),
        ("0 3 31 2 *", "this date never comes"),
        ("0 3 31 4,6,9,11 *", "this date never comes"),
    ] {
        let error = Schedule::cron(text, "UTC").expect_err(text);
        assert!(error.contains(why) && !error.contains("hunter2"), "{text}: {error}");
    }
    for text in ["", "0", "999ms", "-5m", "5", "1 month", "hunter2"] {
        assert!(Schedule::every(text, "UTC").is_err(), "{text}");
    }
    for text in
        ["0 at 04:00", "36h at 04:00", "3d at 24:00", "3d at 04:60", "3d at 4", "3d at +4:00"]
    {
        let error = Schedule::every(text, "UTC").expect_err(text);
        assert!(error.contains("as in \"3d at 04:00\""), "{text}: {error}");
    }
}

#[test]
fn a_schedule_is_shown_as_it_is_on_record_and_described() {
    for (schedule, shown, words) in [
        (cron("17  03 * * *", "europe/london"), "17 3 * * * Europe/London", "at 03:17 (Europe"),
        (cron("@daily", "utc"), "0 0 * * * UTC", "at 00:00 (UTC)"),
        (cron("* * * * *", "utc"), "* * * * * UTC", "every minute (UTC)"),
        (cron("0 0 * * FRI-7", "utc"), "0 0 * * 5-7 UTC", "at 00:00, on Friday to Sunday"),
        (cron("0 6 */1 * MON", "utc"), "0 6 * * 1 UTC", "at 06:00, on Monday (UTC)"),
        (
            cron("0 6 9,*/20 * MON", "utc"),
            "0 6 9,*/20 * 1 UTC",
            "at 06:00, on day 1, 9 and 21 of the month, and on Monday (UTC)",
        ),
        (
            cron("0 6 */20,9 3-5,8 MON", "utc"),
            "0 6 */20,9 3-5,8 1 UTC",
            "on day 1, 9 and 21 of the month if that is Monday, in March to May and August (UTC)",
        ),
        (cron("*/90 * * * *", "utc"), "*/90 * * * * UTC", "at minute 0 of every hour"),
        (cron("0-30/15,7 * * * *", "utc"), "0-30/15,7 * * * * UTC", "at minute 0, 7, 15 and 30 of"),
        (cron("*/15 */6 * * *", "utc"), "*/15 */6 * * * UTC", "every 15 minutes of hour 0, 6, 12"),
        (
            cron("*/25 9-17 * * *", "utc"),
            "*/25 9-17 * * * UTC",
            "at minute 0, 25 and 50 of hour 9 to",
        ),
        (cron("30 6,18 * * *", "utc"), "30 18,6 * * * UTC", "at 06:30 and 18:30 (UTC)"),
        (cron("0 0 L * *", "utc"), "0 0 L * * UTC", "on the last day of the month"),
        (cron("0 0 lw * *", "utc"), "0 0 LW * * UTC", "the last weekday (Monday to Friday) of"),
        (cron("0 0 5,15w * *", "utc"), "0 0 15W,5 * * UTC", "nearest to day 15"),
        (cron("0 0 * * MONL", "utc"), "0 0 * * MONL UTC", "on the last Monday of the month"),
        (cron("0 0 * * 2,FRI#2", "utc"), "0 0 * * 2,5#2 UTC", "on Tuesday and the second Friday"),
        (Schedule::every("15m", "UTC").expect("a time"), "every 15m", "15m after the last start"),
        (
            Schedule::every("72h at 4:00", "europe/london").expect("a time"),
            "every 3d at 04:00 Europe/London",
            "at 04:00 (Europe/London), 3d after the last start",
        ),
    ] {
        assert_eq!(schedule.to_string(), shown);
        assert!(schedule.describe().contains(words), "{}", schedule.describe());
        let on_record = Schedule::on_record(shown).expect("a schedule");
        assert_eq!(on_record.to_string(), shown);
    }
    assert_eq!(Schedule::on_record("0 0 * * * Mars/Olympus"), None);
}

/// A clock that is wrong must not stop a planner, nor keep it busy.
#[test]
fn far_times_are_found_at_once() {
    let start = Instant::now();
    let far = SystemTime::UNIX_EPOCH + Duration::from_secs(400_000_000_000);
    let before = SystemTime::UNIX_EPOCH - Duration::from_secs(86_400);
    for schedule in [
        cron("17 3 * * *", "Europe/London"),
        cron("*/5 * * * *", "Europe/London"),
        cron("0 0 29 2 *", "UTC"),
    ] {
        let last = schedule.next_after(far);
        assert_eq!(schedule.next_after(last), last, "{schedule} has come to its end");
        assert!(schedule.newest_until(far).is_some_and(|newest| newest < last));
        assert_eq!(schedule.newest_until(before), None);
        assert!(schedule.next_after(before) >= SystemTime::UNIX_EPOCH);
        assert!(schedule.newest_until(utc("2400-01-01 00:00")).is_some());
    }
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}
