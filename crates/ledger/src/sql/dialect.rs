//! How an engine spells what engines spell differently: a table of names and their spelling, in
//! which `@` stands for what the name is given in a statement.

use std::borrow::Cow;

use crate::doubts::{IN_DOUBT, MAY_BE_DOUBLE, WANTS_A_LOOK};

/// Names with their spelling. All engines have the same names; `sql.rs`' users know them, and of a
/// copy `c` the rules about doubts, which all spell alike: `{in_doubt}`, `{wants_a_look}` and
/// `{may_be_double}`:
/// - `{now}`: the time, as columns hold it;
/// - `{secs(t)}`, `{whole(t)}`: a time as seconds since 1970, with fractions or as a whole number;
/// - `{minute(t)}`: its minute since 1970, as a whole number;
/// - `{ago(t)}`: how many seconds ago it was, with fractions;
/// - `{at(s)}`: the time that is `s` seconds after 1970;
/// - `{before(s)}`, `{later(s)}`: the time `s` seconds before or after now;
/// - `{since(s)}`: the same as `{before(s)}`, by the time at which the transaction began, if an
///   engine can read an index by that alone;
/// - `{less(t, s)}`: the time `s` whole seconds, a literal, before `t`;
/// - `{ahead_ms(t)}`: by how many milliseconds a host's time is ahead of the ledger's, NULL where
///   the ledger goes by the host's clock;
/// - `{soon}`: five seconds after `recorded_at`;
/// - `{int(x)}`: a whole number of any width, to be read as `i64`;
/// - `{millis(t)}`: a time as whole milliseconds since 1970;
/// - `{hashed(column, hash)}`: whether a message's hash is this one, by the index of messages;
///   `{digested(column, digest)}`: with it, whether its digest is;
/// - `{bytes(hex)}`: bytes, of their digits;
/// - `{folded(recipient)}`, `{fold(name, lower)}`: a recipient and a name, of which `lower` is the
///   lower case, as they are compared in any case;
/// - `{given(name, lower)}`: likewise a recipient that is put on record;
/// - `{from_has(m, part)}`: whether an address in From of a message holds a part, in any case;
/// - `{iso(t)}`, `{iso_ms(t)}`: a time by RFC 3339, the second with milliseconds where an engine
///   shows them;
/// - `{same(a, b)}`: whether two values are equal, or both null;
/// - `{has(text, part)}`: whether a text holds a part, in any case;
/// - `{tells(text, account)}`: whether an attempt's text names the account of a copy;
/// - `{upsert(key)}`: where a row with these key columns is there, change it: assignments follow,
///   in which `{new(column)}` is what was to be inserted;
/// - `{locked(t)}`, at the end of a query: its rows of the table `t` stay locked until the
///   transaction ends; `{locked_at_once(t)}` fails where another has locked them,
///   `{locked_or_left(t)}` leaves those out, and `{locked_but_key(t)}` lets others rely on it that
///   the rows stay there, if an engine can. SQLite locks the whole file to write;
/// - `{lease_left(c.)}`: the seconds that are left of a copy's lease, below 0 where it is over,
///   null where it was given back; `{lock_left(l.)}`: of a lock's. The clock is that of leases;
/// - `{lease_time}`: when the lease of a copy `c` ends, by the ledger's clock;
/// - `{lock_lasts(s)}`: the assignments by which a lock's lease lasts `s` seconds from now;
/// - `{set_lease(us)}`, `{no_lease}`: the assignments by which a copy's lease ends `us`
///   microseconds from now, or there is none; `{lease_columns}`, `{lease_values(us)}`: of a new
///   row;
/// - `{stay}`, at the end of a query: its rows are not deleted until the transaction ends;
/// - `{nobody}`: no owner of a copy.
///
/// What engines' tables differ in:
/// - `{old_raw(s, id)}`: messages after this number whose bytes were put there before `s` seconds
///   after 1970, as 0 and their number, in its order.
///
/// What planners need to know:
/// - `{copy_key}`: after a table whose rows are to be found by the key of a message's copy;
/// - `{then}`: a JOIN for each row of what stands before it;
/// - `{with_copies(condition)}`, in place of a join: for each row of what stands before it, the
///   copies `c` that meet the condition, by an index;
/// - `{message_of(id)}`, `{attempt_of(id)}`: likewise the message `m` or attempt `a` of a number;
/// - `{fence}`: at the end of a subquery, which is read by itself, not as a filter of what stands
///   around it;
/// - `{received(name, lower, below, most)}`: the newest `most` messages below a number,
///   of attempts for a recipient: an engine that would sort all that one has got goes from a
///   message to the next;
/// - `{by_hash}`: after `onedrop_attempt a`, has those that recorded no message come by their
///   `id_hash`;
/// - `{accounts(account, all, message)}`: accounts after this one, in their order, that have a copy
///   of this message or a later one; not `all`: one that is not placed, or was leased in doubt.
///   From one account to the next by the index. An engine that would read all copies of each for
///   that returns more accounts.
#[derive(Debug)]
pub struct Dialect(pub &'static [(&'static str, &'static str)]);

/// `{accounts}`, where a recursive query stops when its rows are no longer wanted.
pub(crate) const ACCOUNTS: &str = "
    WITH RECURSIVE every (account) AS (
        SELECT min(account) FROM onedrop_copy WHERE account > @
        UNION ALL
        SELECT (SELECT min(c.account) FROM onedrop_copy c WHERE c.account > every.account)
        FROM every WHERE every.account IS NOT NULL
    )
    SELECT account FROM every WHERE (
        SELECT c.message_id FROM onedrop_copy c
        WHERE c.account = every.account AND c.message_id >= @3
          AND (@2 OR c.placed_at IS NULL OR c.epoch > 1 OR c.prior_doubt) LIMIT 1) IS NOT NULL";

/// What all engines spell alike.
const ALIKE: &[(&str, &str)] =
    &[("in_doubt", IN_DOUBT), ("wants_a_look", WANTS_A_LOOK), ("may_be_double", MAY_BE_DOUBLE)];

impl Dialect {
    /// The statement in this engine's words. A name that the dialect lacks stays as it stands: the
    /// engine refuses it.
    pub fn spell<'a>(&self, statement: &'a str) -> Cow<'a, str> {
        let Some((before, mut rest)) = statement.split_once('{') else {
            return Cow::Borrowed(statement);
        };
        let mut spelt = before.to_owned();
        loop {
            match self.word(rest) {
                Some((word, behind)) => {
                    spelt.push_str(&word);
                    rest = behind;
                }
                None => spelt.push('{'),
            }
            match rest.split_once('{') {
                Some((before, behind)) => {
                    spelt.push_str(before);
                    rest = behind;
                }
                None => {
                    spelt.push_str(rest);
                    return Cow::Owned(spelt);
                }
            }
        }
    }

    /// Spells the name that `text` begins with; what follows its brace.
    fn word<'t>(&self, text: &'t str) -> Option<(String, &'t str)> {
        let end = text.find(|c: char| !c.is_ascii_lowercase() && c != '_')?;
        let (name, rest) = text.split_at(end);
        let (_, spelling) = self.0.iter().chain(ALIKE).find(|(known, _)| *known == name)?;
        if let Some(behind) = rest.strip_prefix('}') {
            return Some(((*spelling).to_owned(), behind));
        }
        let (given, behind) = rest.strip_prefix('(')?.split_once(")}")?;
        let given = self.spell(given);
        let digit = |part: &str| part.bytes().next().filter(u8::is_ascii_digit);
        let number = |part: &str| digit(part).map(|digit| usize::from(digit - b'0'));
        let most = spelling.split('@').skip(1).filter_map(number).max();
        let given: Vec<&str> = given.splitn(most.map_or(1, |most| most.max(2)), ", ").collect();
        let mut parts = spelling.split('@');
        let mut spelt = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let (at, part) = number(part).map_or((1, part), |number| (number, &part[1..]));
            spelt.push_str(given.get(at.saturating_sub(1)).copied().unwrap_or("@"));
            spelt.push_str(part);
        }
        Some((spelt, behind))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PooledLedger;
    use crate::postgres::PostgresLedger;
    use crate::sql::SqlSession;
    use crate::sqlite::SqliteLedger;

    trait Spelt {
        fn dialect() -> &'static Dialect;
    }

    impl<S: SqlSession> Spelt for PooledLedger<S> {
        fn dialect() -> &'static Dialect {
            S::dialect()
        }
    }

    #[test]
    fn all_engines_spell_the_same_names() {
        fn names<L: Spelt>() -> Vec<&'static str> {
            let mut names: Vec<_> = L::dialect().0.iter().map(|(name, _)| *name).collect();
            names.sort_unstable();
            names
        }
        let all = names::<PostgresLedger>();
        assert_eq!(names::<SqliteLedger>(), all);
        #[cfg(feature = "mariadb")]
        assert_eq!(names::<crate::mariadb::MariadbLedger>(), all);
    }

    const DIALECT: Dialect = Dialect(&[
        ("now", "clock()"),
        ("ago", "clock() - @"),
        ("has", "position(lower(@2) IN lower(@)) > 0"),
        ("fold", "lower(@1)"),
        ("among", "@1 < @3 OR @1 IN (@2)"),
    ]);

    #[test]
    fn names_are_spelt_and_the_rest_stays() {
        let spell = |text: &'static str| DIALECT.spell(text).into_owned();
        assert_eq!(spell("SELECT 1"), "SELECT 1");
        assert_eq!(spell("{now}, {now}"), "clock(), clock()");
        assert_eq!(spell("a {ago(m.at)} b"), "a clock() - m.at b");
        assert_eq!(spell("{ago(coalesce(x, 1))}"), "clock() - coalesce(x, 1)");
        assert_eq!(spell("{has(m.x, ?1)}"), "position(lower(?1) IN lower(m.x)) > 0");
        assert_eq!(spell("{fold(?1, ?2)}"), "lower(?1)");
        assert_eq!(spell("{among(x, 2, 3, 4)}"), "x < 3, 4 OR x IN (2)");
    }

    #[test]
    fn what_is_no_name_is_left_to_the_server_to_refuse() {
        for text in ["{", "{}", "{nosuch}", "{now", "{ago(x}", "{ now}"] {
            assert_eq!(DIALECT.spell(text), text);
        }
    }
}
