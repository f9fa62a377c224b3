//! The five fields of a cron expression: numbers, names, lists, ranges and steps as Debian's
//! crontab takes them, and what croner adds for days (`L`, `LW`, `15W`, `5L`, `MON#2`, `?`, `+`).
//!
//! By hand, before croner: it takes names in every field and within words, skips empty parts of
//! lists, lets either day count where one begins with `*` and goes on, and describes `0-30/15` as
//! every 15 minutes. What it gets from here says the same in numbers alone.

/// A field's name, what it takes, and the names of its values.
struct FieldRule {
    name: &'static str,
    takes: &'static str,
    low: u32,
    high: u32,
    names: &'static [&'static str],
    /// The number of the first name.
    first_name: u32,
}

const fn numbers(name: &'static str, takes: &'static str, low: u32, high: u32) -> FieldRule {
    FieldRule { name, takes, low, high, names: &[], first_name: low }
}

const KINDS: [FieldRule; 5] = [
    numbers("minute", "0 to 59", 0, 59),
    numbers("hour", "0 to 23", 0, 23),
    numbers("day of the month", "1 to 31", 1, 31),
    FieldRule {
        names: &[
            "JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC",
        ],
        ..numbers("month", "1 to 12, or JAN to DEC", 1, 12)
    },
    FieldRule {
        names: &["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"],
        ..numbers("day of the week", "0 to 7, or SUN to SAT", 0, 7)
    },
];

const HOUR: usize = 1;
const DAY: usize = 2;
const WEEKDAY: usize = 4;

/// An expression whose fields are right.
pub(super) struct CronFields {
    /// The form on record: texts that say the same are equal.
    pub normalised: String,
    /// The form that croner takes.
    pub for_croner: String,
    /// The hour begins with `*`.
    pub each_hour: bool,
    /// The day of the month is, or has in its list, `LW`.
    pub last_weekday: bool,
}

/// # Errors
/// A sentence that says what is wrong and does not quote it.
pub(super) fn read(fields: &[&str]) -> Result<CronFields, String> {
    let names = || KINDS.map(|kind| kind.name).join(", ");
    let upper: Vec<String> = fields.iter().map(|field| field.to_ascii_uppercase()).collect();
    let Ok([minute, hour, day, month, weekday]) = <[String; 5]>::try_from(upper) else {
        let hint = if fields.len() == 6 { " (without seconds)" } else { "" };
        return Err(format!("expected five fields{hint}, found {}: {}", fields.len(), names()));
    };
    // croner's `?` is a `*`, and its `+` asks for both days.
    let (day, weekday) = (day.replace('?', "*"), weekday.replace('?', "*"));
    let both_asked = weekday.strip_prefix('+');
    let texts = [&minute, &hour, &day, &month, both_asked.unwrap_or(&weekday)];
    let mut read = Vec::with_capacity(KINDS.len());
    for (at, (kind, text)) in KINDS.iter().zip(texts).enumerate() {
        read.push(CronField::read(at, text).map_err(|why| {
            format!("the {} is wrong (it takes {}, also * , - and /): {why}", kind.name, kind.takes)
        })?);
    }
    // Either day counts, but where one begins with `*`: then both must match (crontab(5)).
    let both = both_asked.is_some() || day.starts_with('*') || weekday.starts_with('*');
    let (of_month, of_week) = (&read[DAY], &read[WEEKDAY]);
    let days = match (of_month.has_all(), of_week.has_all(), both) {
        (true, _, false) | (_, true, false) => ["*".to_owned(), "*".to_owned()],
        (false, false, true) => [of_month.for_croner(), format!("+{}", of_week.for_croner())],
        _ => [of_month.for_croner(), of_week.for_croner()],
    };
    let [minutes, hours, months] = [0, HOUR, 3].map(|at| read[at].for_croner());
    let [day_of_month, day_of_week] = days;
    let normalised = [&minute, &hour, &day, &month, &weekday].into_iter().enumerate();
    Ok(CronFields {
        normalised: normalised
            .map(|(at, text)| normal_form(at, text))
            .collect::<Vec<_>>()
            .join(" "),
        for_croner: format!("{minutes} {hours} {day_of_month} {months} {day_of_week}"),
        each_hour: hour.starts_with('*'),
        last_weekday: of_month.more.iter().any(|part| part == "LW"),
    })
}

struct CronField {
    at: usize,
    /// A bit for each value.
    values: u64,
    /// Days that depend on the month, as croner takes them.
    more: Vec<String>,
    /// Nothing but `*` and this step.
    step: Option<u32>,
}

impl CronField {
    fn read(at: usize, text: &str) -> Result<CronField, &'static str> {
        let mut field = CronField { at, values: 0, more: Vec::new(), step: None };
        for part in text.split(',') {
            let found = field.days_of_months(part)?;
            if !found {
                field.values |= values(at, part)?;
            }
        }
        if field.more.iter().any(|part| part == "L") && field.more.iter().any(|part| part == "LW") {
            return Err("it takes L or LW, and not both");
        }
        if at == WEEKDAY && field.values & 1 << 7 != 0 {
            field.values = field.values & !(1 << 7) | 1;
        }
        field.step = text.strip_prefix("*/").and_then(|step| step.parse().ok());
        Ok(field)
    }

    /// Whether this part names days that depend on the month; they are noted.
    fn days_of_months(&mut self, part: &str) -> Result<bool, &'static str> {
        match self.at {
            DAY if part == "L" || part == "LW" => self.more.push(part.to_owned()),
            DAY => {
                let Some(day) = part.strip_suffix('W') else { return Ok(false) };
                values(DAY, day)?;
                self.more.push(format!("{}W", value(DAY, day)?));
            }
            WEEKDAY if part == "L" => return Err("L needs a day before it: 5L is the last Friday"),
            WEEKDAY => {
                const WHICH: &str = "behind # it takes 1 to 5: MON#2 is the second Monday";
                let (days, which) = match (part.split_once('#'), part.strip_suffix('L')) {
                    (Some((days, "L")), _) | (None, Some(days)) => (days, "L".to_owned()),
                    (Some((days, which)), _) => match which.parse() {
                        Ok(which @ 1..=5_u8) => (days, format!("#{which}")),
                        _ => return Err(WHICH),
                    },
                    (None, None) => return Ok(false),
                };
                let days = values(WEEKDAY, days)?;
                let each = (0..=7).filter(|day| days & 1 << day != 0);
                self.more.extend(each.map(|day| format!("{}{which}", day % 7)));
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn has_all(&self) -> bool {
        let high = if self.at == WEEKDAY { 6 } else { KINDS[self.at].high };
        (KINDS[self.at].low..=high).all(|value| self.values & 1 << value != 0)
    }

    fn for_croner(&self) -> String {
        let FieldRule { low, high, .. } = KINDS[self.at];
        // It describes by the step, which is true only where the last one is as long as the others.
        let even = |step: &u32| self.at < DAY && (high + 1) % step == 0;
        match self.step.filter(even) {
            _ if self.has_all() => "*".to_owned(),
            Some(step) => format!("*/{step}"),
            None => {
                let each = (low..=high).filter(|value| self.values & 1 << value != 0);
                let parts = each.map(|value| value.to_string()).chain(self.more.iter().cloned());
                parts.collect::<Vec<_>>().join(",")
            }
        }
    }
}

/// `*`, a value or a range, the first two of them with a step: a bit for each value.
fn values(at: usize, part: &str) -> Result<u64, &'static str> {
    let FieldRule { low, high, .. } = KINDS[at];
    let (range, step) = match part.split_once('/') {
        None => (part, None),
        Some((range, step)) => (range, Some(step)),
    };
    let (first, last) = match range.split_once('-') {
        _ if range == "*" => (low, high),
        Some((first, last)) => {
            let (first, last_value) = (value(at, first)?, value(at, last)?);
            // A week has two Sundays, and no range ends with the first.
            let sunday = at == WEEKDAY && last == "SUN" && first > 0;
            (first, if sunday { 7 } else { last_value })
        }
        None if step.is_some() && !range.is_empty() => {
            return Err("before / it takes * or a range, as in 10-59/15");
        }
        None => (value(at, range)?, value(at, range)?),
    };
    if first > last {
        return Err("a range goes from the lower to the higher value");
    }
    let step = step.map_or(Some(1), number).filter(|step| *step > 0);
    let step = step.ok_or("behind / it takes a number from 1")?;
    let mut each = (first..=last).step_by(usize::try_from(step).unwrap_or(usize::MAX));
    // As crontab: what a range steps over need not be a value.
    let bit = |value| (low..=high).contains(&value).then_some(1 << value).ok_or(NO_VALUE);
    each.try_fold(0, |values, value| Ok(values | bit(value)?))
}

const NO_VALUE: &str = "it has a part that is none of these";

/// A number, whatever the field takes, or a name.
fn value(at: usize, word: &str) -> Result<u32, &'static str> {
    let kind = &KINDS[at];
    if word.is_empty() {
        return Err("it has an empty part");
    }
    if let Some(place) = kind.names.iter().position(|name| *name == word) {
        return Ok(kind.first_name + u32::try_from(place).unwrap_or_default());
    }
    if KINDS.iter().any(|other| other.names.contains(&word)) {
        return Err("it has a name of another field");
    }
    number(word).ok_or(NO_VALUE)
}

/// Digits alone, without a sign.
fn number(word: &str) -> Option<u32> {
    let digits = word.bytes().all(|byte| byte.is_ascii_digit());
    word.parse().ok().filter(|_| digits)
}

/// Numbers without a 0 before them, names as numbers, and the parts of a list in order; but a part
/// that begins with `*` stays first or does not become it, since that decides which days count.
fn normal_form(at: usize, field: &str) -> String {
    let mut parts: Vec<String> = field.split(',').map(|part| normal_part(at, part)).collect();
    let star_first = field.starts_with('*');
    parts.sort_by_cached_key(|part| (part.starts_with('*') != star_first, part.clone()));
    parts.dedup();
    parts.join(",")
}

fn normal_part(at: usize, part: &str) -> String {
    let mut text = String::new();
    for piece in part.split_inclusive(['-', '/', '#']) {
        let word = piece.trim_end_matches(['-', '/', '#']);
        let sunday_at_the_end = at == WEEKDAY && word == "SUN" && text.ends_with('-');
        match value(at, word).ok().or_else(|| number(word)) {
            Some(_) if sunday_at_the_end && text != "0-" => text.push('7'),
            Some(number) => text += &number.to_string(),
            None => text += word,
        }
        text += &piece[word.len()..];
    }
    match (text.as_str(), at) {
        ("*/1", _) => "*".to_owned(),
        ("7", WEEKDAY) => "0".to_owned(),
        _ => text,
    }
}
