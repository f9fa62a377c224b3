//! A statement and its values, for any engine.

use std::borrow::Cow;
use std::time::SystemTime;

/// A value of a statement; `None` is NULL, and still has a type.
#[derive(Debug, Clone)]
pub enum Value<'a> {
    Number(Option<i64>),
    /// Seconds.
    Seconds(Option<f64>),
    Flag(Option<bool>),
    Bytes(Option<Cow<'a, [u8]>>),
    Text(Option<Cow<'a, str>>),
    /// A time as columns hold it, in UTC.
    Time(Option<SystemTime>),
}

/// A statement: `?1` stands for the first of its values, `{now}` for what a
/// [`Dialect`](super::Dialect) spells.
#[derive(Debug, Clone)]
pub struct Sql<'a> {
    pub text: Cow<'a, str>,
    pub values: Vec<Value<'a>>,
}

/// A statement and its values, `?1` first.
macro_rules! sql {
    ($text:expr $(, $value:expr)* $(,)?) => {
        $crate::sql::Sql { text: ($text).into(), values: $crate::sql::values![$($value),*] }
    };
}
pub(crate) use sql;

/// Values of a statement.
macro_rules! values {
    ($($value:expr),* $(,)?) => { vec![$($crate::sql::Value::from($value)),*] };
}
pub(crate) use values;

impl<'a> Sql<'a> {
    /// Adds a list of values: what stands between the brackets of `IN (...)`, never nothing.
    pub fn list<V: Into<Value<'a>>>(
        values: &mut Vec<Value<'a>>,
        of: impl IntoIterator<Item = V>,
    ) -> String {
        let mut places = String::from("NULL");
        for value in of {
            values.push(value.into());
            places.push_str(&format!(", ?{}", values.len()));
        }
        places
    }
}

/// From a plain type, and from an option of it.
macro_rules! from {
    ($($variant:ident: $type:ty = |$value:ident| $into:expr;)*) => {$(
        impl<'a> From<$type> for Value<'a> {
            fn from($value: $type) -> Self {
                Value::$variant(Some($into))
            }
        }

        impl<'a> From<Option<$type>> for Value<'a> {
            fn from(value: Option<$type>) -> Self {
                Value::$variant(value.map(|$value| $into))
            }
        }
    )*};
}

from! {
    Number: i64 = |number| number;
    Number: u32 = |number| number.into();
    Seconds: f64 = |secs| secs;
    Flag: bool = |flag| flag;
    Bytes: &'a [u8] = |bytes| bytes.into();
    Bytes: Vec<u8> = |bytes| bytes.into();
    Text: &'a str = |text| text.into();
    Text: &'a String = |text| text.as_str().into();
    Text: String = |text| text.into();
    Text: Cow<'a, str> = |text| text;
    Time: SystemTime = |time| time;
}

impl<'a, const N: usize> From<&'a [u8; N]> for Value<'a> {
    fn from(bytes: &'a [u8; N]) -> Self {
        Value::from(bytes.as_slice())
    }
}
