//! A month of mail as rows: 5000 accounts of which one gets every tenth message, three of twenty
//! senders with a Sent here, one message of thirty deferred first, one attempt of fifty for an
//! unknown address; a few copies in doubt, leased twice, leased, due.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use onedrop::ledger::SCHEMA_VERSION;
use onedrop::lock_key::{content_hash, message_hash};

/// For which ledger the rows are: times and names differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    Postgres,
    Mariadb,
    Sqlite,
}

/// A value of a column.
#[derive(Debug, Clone)]
pub enum Cell {
    Null,
    Number(i64),
    Flag(bool),
    Text(String),
    Bytes(Vec<u8>),
    /// Seconds since 1970.
    Time(f64),
}

impl From<i64> for Cell {
    fn from(number: i64) -> Cell {
        Cell::Number(number)
    }
}

impl From<bool> for Cell {
    fn from(flag: bool) -> Cell {
        Cell::Flag(flag)
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Cell {
        Cell::Text(text.to_owned())
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Cell {
        Cell::Text(text)
    }
}

impl From<Vec<u8>> for Cell {
    fn from(bytes: Vec<u8>) -> Cell {
        Cell::Bytes(bytes)
    }
}

impl<T: Into<Cell>> From<Option<T>> for Cell {
    fn from(value: Option<T>) -> Cell {
        value.map_or(Cell::Null, Into::into)
    }
}

/// Columns and what they hold.
pub type Row = Vec<(&'static str, Cell)>;

/// The rows of one message.
#[derive(Debug, Default)]
pub struct Rows {
    pub messages: Vec<Row>,
    pub copies: Vec<Row>,
    pub attempts: Vec<Row>,
    pub unsettled: Vec<Row>,
}

const DOMAIN: &str = "mail.axial.net";
const ACCOUNTS: u64 = 5000;
const MONTH: Duration = Duration::from_secs(30 * 24 * 3600);

/// Who gets every tenth message.
pub const BUSY: &str = "busy";

/// Makes them, in the order of time.
pub struct Month {
    engine: Engine,
    messages: i64,
    /// The end of the month.
    now: f64,
    /// The last number of each.
    copy: i64,
    pub attempt: i64,
}

/// How the copy of a message stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stands {
    Placed,
    PlacedTwiceLeased,
    InDoubt,
    Leased,
    LeaseOver,
    Due,
}

/// The number, spread.
fn mixed(number: i64) -> u64 {
    number.unsigned_abs().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
}

impl Month {
    pub fn new(engine: Engine, messages: i64) -> Month {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
        Month { engine, messages, now: now.as_secs_f64(), copy: 0, attempt: 0 }
    }

    pub fn message_id(number: i64) -> String {
        format!("<20261122.{}.{number}@mail.example.org>", mixed(number))
    }

    pub fn queue_id(number: i64) -> String {
        format!("4Q{:010X}", mixed(number).wrapping_mul(number.unsigned_abs()) & 0xff_ffff_ffff)
    }

    pub fn account(number: i64) -> String {
        match number % 10 {
            0 => BUSY.to_owned(),
            _ => format!("user{}", mixed(number) % ACCOUNTS),
        }
    }

    pub fn address(account: &str) -> String {
        format!("{account}@{DOMAIN}")
    }

    /// Numbers from 1 on.
    pub fn message(&mut self, number: i64) -> Rows {
        let mut rows = Rows::default();
        let came =
            self.now - MONTH.as_secs_f64() * (self.messages - number) as f64 / self.messages as f64;
        let (spread, id) = (mixed(number), Month::message_id(number));
        let (account, hash) = (Month::account(number), message_hash(id.as_bytes()));
        let sender = format!("someone.{}@lists.example.org", spread % 10_000);
        if number % 50 == 7 {
            self.refused(&mut rows, came, number);
        }
        let is_answer = number % 5 < 2;
        let answered = is_answer.then(|| Month::message_id(number + 1));
        let cc = if number % 5 < 3 {
            format!(",[\"cc\",\"other.{}@example.net\",\"Other Person\"]", spread % 777)
        } else {
            String::new()
        };
        rows.messages.push(vec![
            ("id", number.into()),
            ("recorded_at", Cell::Time(came.floor())),
            ("date", Cell::Time(came.floor() - 3.0)),
            ("size_bytes", 12_345.into()),
            ("id_hash", hash.to_vec().into()),
            ("digest", content_hash(&hash).to_vec().into()),
            ("message_id", id.into_bytes().into()),
            ("sender", sender.as_str().into()),
            ("subject", format!("Re: the subject of message {number} of today").into()),
            ("in_reply_to", answered.clone().into()),
            ("reference_ids", answered.into()),
            (
                "addresses",
                format!(
                    "[[\"from\",\"{sender}\",\"Some One\"],[\"to\",\"{}\",null]{cc}]",
                    Month::address(&account)
                )
                .into(),
            ),
            ("parts", "[[\"1\",\"text/plain\",2345,null],[\"2\",\"text/html\",5678,null]]".into()),
        ]);
        let sent = (number % 20 < 3).then(|| format!("user{}", mixed(spread as i64) % ACCOUNTS));
        if number % 30 == 11 {
            self.deferred(&mut rows, came, number, &account);
        }
        let stands = self.stands(number);
        self.copy += 1;
        let lives_in_copy =
            sent.is_none() && number % 30 != 11 && stands != Stands::PlacedTwiceLeased;
        let place = (&*account, "INBOX");
        self.copy_row(&mut rows, came, number, place, stands, lives_in_copy);
        if let Some(sent) = &sent {
            self.copy += 1;
            self.copy_row(&mut rows, came, number, (sent, "Sent"), Stands::Placed, false);
        }
        if lives_in_copy {
            return rows;
        }
        self.attempt += 1;
        let is_delivered = matches!(stands, Stands::Placed | Stands::PlacedTwiceLeased);
        let said = format!("stored account={account} mailbox=INBOX uid={number}; ...");
        rows.attempts.push(vec![
            ("id", self.attempt.into()),
            ("message_id", number.into()),
            ("started_at", Cell::Time(came)),
            ("pid", (300 + number % 30_000).into()),
            ("duration_ms", is_delivered.then_some(millis(number)).into()),
            ("id_hash", Cell::Null),
            ("recipient", Month::address(&account).into()),
            ("queue_id", Month::queue_id(number).into()),
            ("host", host(number).into()),
            ("outcome", is_delivered.then_some("delivered").into()),
            ("status", is_delivered.then_some("2.0.0").into()),
            ("detail", is_delivered.then_some(said).into()),
            ("reason", is_delivered.then_some("delivered").into()),
        ]);
        rows
    }

    fn stands(&self, number: i64) -> Stands {
        match number {
            // The last ones are at work.
            _ if number > self.messages - 4 => Stands::Leased,
            _ if number % 20_000 == 19_990 => Stands::InDoubt,
            _ if number % 40_000 == 39_970 => Stands::LeaseOver,
            _ if number % 25_000 == 24_950 => Stands::PlacedTwiceLeased,
            _ if number % 100_000 == 99_930 => Stands::Due,
            _ => Stands::Placed,
        }
    }

    fn copy_row(
        &self,
        rows: &mut Rows,
        came: f64,
        number: i64,
        (account, mailbox): (&str, &str),
        stands: Stands,
        has_attempt: bool,
    ) {
        let is_placed = matches!(stands, Stands::Placed | Stands::PlacedTwiceLeased);
        let epoch: i64 = match stands {
            Stands::PlacedTwiceLeased => 2,
            Stands::Due => 0,
            _ => 1,
        };
        let until = match stands {
            Stands::Leased => Cell::Time(came + 7200.0),
            Stands::LeaseOver => Cell::Time(came + 90.0),
            _ => Cell::Null,
        };
        let owner = format!("{}:{}", host(number), 300 + number % 30_000);
        let of_mariadb = self.engine == Engine::Mariadb;
        let has_owner = of_mariadb || !is_placed;
        let value = (mixed(number).to_be_bytes().into_iter())
            .chain(self.copy.to_be_bytes())
            .collect::<Vec<u8>>();
        let mut row = vec![
            ("id", self.copy.into()),
            ("message_id", number.into()),
            ("value", value.clone().into()),
            ("account", self.name(account)),
            ("mailbox", self.name(mailbox)),
            ("shared", (mailbox == "Sent").into()),
            ("epoch", epoch.into()),
            ("owner", has_owner.then_some(owner).into()),
            ("lease_value", value.into()),
            ("lease_ms", 90_000.into()),
            ("leased_until", self.lease_end(until)),
            ("in_doubt", (!is_placed && stands != Stands::Due).into()),
            ("prior_doubt", false.into()),
            ("placed_at", if is_placed { Cell::Time(came + 0.03) } else { Cell::Null }),
            ("placed_epoch", epoch.into()),
            ("receipt_kind", is_placed.then_some("uid").into()),
            ("receipt", is_placed.then(|| format!("1700000000/{}", number % 100_000 + 1)).into()),
            ("due_at", if stands == Stands::Due { Cell::Time(came + 600.0) } else { Cell::Null }),
        ];
        if self.engine == Engine::Sqlite {
            row.push(("lease_boot", "of-another-boot".into()));
        }
        if has_attempt {
            let ended = (stands == Stands::Placed).then_some(millis(number));
            row.extend([
                ("recipient", Month::address(account).into()),
                ("queue_id", Month::queue_id(number).into()),
                ("host", host(number).into()),
                ("pid", (300 + number % 30_000).into()),
                ("began_at", Cell::Time(came)),
                ("attempt_ms", ended.into()),
            ]);
        }
        rows.copies.push(row);
        if matches!(stands, Stands::PlacedTwiceLeased | Stands::InDoubt | Stands::Due) {
            rows.unsettled
                .push(vec![("copy_id", self.copy.into()), ("look_at", Cell::Time(came + 7200.0))]);
        }
    }

    /// SQLite's ends of leases are seconds since the boot, here of another one.
    fn lease_end(&self, until: Cell) -> Cell {
        match (self.engine, until) {
            (Engine::Sqlite, Cell::Time(_)) => Cell::Time(1000.0),
            (_, until) => until,
        }
    }

    /// MariaDB has names as bytes.
    fn name(&self, name: &str) -> Cell {
        match self.engine {
            Engine::Mariadb => name.as_bytes().to_vec().into(),
            _ => name.into(),
        }
    }

    /// An attempt that came before the one that delivered.
    fn deferred(&mut self, rows: &mut Rows, came: f64, number: i64, account: &str) {
        let (reason, text) = match mixed(number) % 10 {
            0..6 => ("contended", "another delivery has this message"),
            6..8 => ("over_quota", "the mailbox is full"),
            8 => ("store_down", "the mail store does not answer"),
            _ => ("deadline", "it took too long"),
        };
        self.attempt += 1;
        rows.attempts.push(vec![
            ("id", self.attempt.into()),
            ("message_id", number.into()),
            ("started_at", Cell::Time(came)),
            ("pid", (300 + number % 30_000).into()),
            ("duration_ms", (20 + number % 5000).into()),
            ("recipient", Month::address(account).into()),
            ("queue_id", Month::queue_id(number).into()),
            ("host", host(number + 1).into()),
            ("outcome", "tempfail".into()),
            ("status", "4.3.0".into()),
            ("detail", text.into()),
            ("reason", reason.into()),
        ]);
    }

    /// An attempt for an unknown address: it records no message.
    fn refused(&mut self, rows: &mut Rows, came: f64, number: i64) {
        self.attempt += 1;
        let id = format!("<refused.{number}@mail.example.org>");
        rows.attempts.push(vec![
            ("id", self.attempt.into()),
            ("message_id", Cell::Null),
            ("started_at", Cell::Time(came)),
            ("pid", (300 + number % 30_000).into()),
            ("duration_ms", 3.into()),
            ("id_hash", message_hash(id.as_bytes()).to_vec().into()),
            ("recipient", Month::address(&format!("ghost{}", mixed(number) % 300)).into()),
            ("queue_id", Month::queue_id(-number).into()),
            ("host", host(number).into()),
            ("outcome", "permfail".into()),
            ("status", "5.1.1".into()),
            ("detail", "unknown user".into()),
            ("reason", "unknown_user".into()),
        ]);
    }
}

fn millis(number: i64) -> i64 {
    5 + i64::try_from(mixed(number) % 40).unwrap_or(0)
}

fn host(number: i64) -> String {
    format!("mx{}.axial.net", 1 + number % 4)
}

/// Eight of them.
pub fn hosts(engine: Engine) -> Vec<Row> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs_f64();
    let name = |name: String| match engine {
        Engine::Mariadb => Cell::Bytes(name.into_bytes()),
        _ => Cell::Text(name),
    };
    let row = |at: i64| {
        vec![
            ("host", name(format!("mx{at}.axial.net"))),
            ("program_version", env!("CARGO_PKG_VERSION").into()),
            ("schema_version", SCHEMA_VERSION.into()),
            ("seen_at", Cell::Time(now)),
            ("clock_offset_ms", (at * 3).into()),
        ]
    };
    (1..=8).map(row).collect()
}
