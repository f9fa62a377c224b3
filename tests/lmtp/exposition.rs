//! Reads Prometheus' text exposition format (version 0.0.4) strictly: what a line may be, that a
//! family comes once and in one piece, that a histogram's buckets add up. Panics with the line
//! that is wrong.

use std::collections::{BTreeMap, BTreeSet};

/// The samples by name and labels, as the text has them.
pub struct Exposition {
    samples: BTreeMap<String, f64>,
    kinds: BTreeMap<String, String>,
}

impl Exposition {
    pub fn parse(text: &str) -> Exposition {
        assert!(text.ends_with('\n'), "the last line has no end: {text:?}");
        let mut exposition = Exposition { samples: BTreeMap::new(), kinds: BTreeMap::new() };
        let (mut helped, mut current) = (BTreeSet::new(), String::new());
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let (name, help) = rest.split_once(' ').unwrap_or_else(|| panic!("{line}"));
                assert!(
                    is_name(name) && !help.is_empty() && helped.insert(name.to_owned()),
                    "{line}"
                );
                name.clone_into(&mut current);
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').unwrap_or_else(|| panic!("{line}"));
                assert!(
                    name == current && ["counter", "gauge", "histogram"].contains(&kind),
                    "{line}"
                );
                assert!(
                    exposition.kinds.insert(name.to_owned(), kind.to_owned()).is_none(),
                    "{line}"
                );
            } else {
                exposition.sample(line, &current);
            }
        }
        for name in
            exposition.kinds.iter().filter(|(_, kind)| *kind == "histogram").map(|(name, _)| name)
        {
            exposition.adds_up(name);
        }
        exposition
    }

    fn sample(&mut self, line: &str, family: &str) {
        let (sample, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line}"));
        let value: f64 = value.parse().unwrap_or_else(|_| panic!("{line}"));
        let name = sample.split('{').next().unwrap_or_default();
        let kind = self
            .kinds
            .get(family)
            .unwrap_or_else(|| panic!("a sample before its family's TYPE: {line}"));
        let endings: &[&str] =
            if kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
        assert!(
            endings.iter().any(|ending| name == format!("{family}{ending}")),
            "not of {family}: {line}"
        );
        assert!(kind != "counter" || name.ends_with("_total"), "{line}");
        assert!(value >= 0.0 && value.is_finite(), "{line}");
        assert!(labels(sample).iter().all(|(label, _)| is_name(label)), "{line}");
        assert!(self.samples.insert(sample.to_owned(), value).is_none(), "twice: {line}");
    }

    /// Buckets come in order, grow, and end in `+Inf`, which is `_count`; a `_sum` is there.
    fn adds_up(&self, name: &str) {
        let mut series: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
        for (sample, value) in
            self.samples.iter().filter(|(sample, _)| sample.starts_with(&format!("{name}_bucket")))
        {
            let (bound, others): (Vec<_>, Vec<_>) =
                labels(sample).into_iter().partition(|(label, _)| label == "le");
            let bound =
                bound[0].1.replace("+Inf", "inf").parse().unwrap_or_else(|_| panic!("{sample}"));
            let others: Vec<String> =
                others.iter().map(|(label, value)| format!("{label}=\"{value}\"")).collect();
            series.entry(others.join(",")).or_default().push((bound, *value));
        }
        assert!(!series.is_empty(), "{name} has no buckets");
        for (others, mut buckets) in series {
            buckets.sort_by(|one, other| one.0.total_cmp(&other.0));
            assert!(
                buckets.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1),
                "{others}: {buckets:?}"
            );
            let last = buckets.last().copied();
            let count = self.value(&format!("{name}_count{{{others}}}"));
            assert_eq!(last, Some((f64::INFINITY, count)), "{name}{{{others}}}");
            let sum = self.value(&format!("{name}_sum{{{others}}}"));
            assert!(count > 0.0 || sum == 0.0, "{name}{{{others}}}: {count} make {sum}");
        }
    }

    #[track_caller]
    pub fn value(&self, sample: &str) -> f64 {
        *self.samples.get(sample).unwrap_or_else(|| panic!("no {sample} in {:#?}", self.samples))
    }

    /// All samples whose name starts so, as `rest of the name and labels value`, in order.
    pub fn with_prefix(&self, prefix: &str) -> Vec<String> {
        let found = self
            .samples
            .iter()
            .filter_map(|(sample, value)| Some((sample.strip_prefix(prefix)?, value)));
        found.map(|(rest, value)| format!("{rest} {value}")).collect()
    }
}

fn is_name(name: &str) -> bool {
    let mut chars = name.chars();
    chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// The labels of `name{label="value",...}`. None of ours has an escape in it.
fn labels(sample: &str) -> Vec<(String, String)> {
    let Some((_, inside)) = sample.split_once('{') else { return Vec::new() };
    let inside = inside.strip_suffix('}').unwrap_or_else(|| panic!("{sample}"));
    let label = |pair: &str| {
        let (name, value) = pair.split_once('=').unwrap_or_else(|| panic!("{sample}"));
        let value = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
        let value = value
            .filter(|value| !value.contains(['"', '\\']))
            .unwrap_or_else(|| panic!("{sample}"));
        (name.to_owned(), value.to_owned())
    };
    inside.split(',').map(label).collect()
}
