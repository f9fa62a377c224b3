//! "Did you mean ...?": the nearest known word, by edit distance, ignoring case and `-` for `_`.

/// The candidate that differs from `word` by a third of its letters at most, if any.
pub(super) fn closest<'a>(
    word: &str,
    candidates: impl Iterator<Item = &'a str>,
) -> Option<&'a str> {
    candidates
        .map(|candidate| (distance(word, candidate), candidate))
        .filter(|(distance, candidate)| *distance <= (candidate.len() / 3).max(1))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// How many letters were left out, added, replaced or swapped with the next one.
fn distance(left: &str, right: &str) -> usize {
    const LONGEST: usize = 64;
    let fold = |word: &str| -> String {
        word.replace('-', "_").chars().take(LONGEST).collect::<String>().to_ascii_lowercase()
    };
    strsim::osa_distance(&fold(left), &fold(right))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_distance_counts_single_mistakes() {
        for (left, right, expected) in [
            ("user", "user", 0),
            ("usr", "user", 1),
            ("User", "user", 0),
            ("wait-secs", "wait_secs", 0),
            ("lesae_secs", "lease_secs", 1),
            ("", "by", 2),
            ("by", "", 2),
            ("kitten", "sitting", 3),
        ] {
            assert_eq!(distance(left, right), expected, "{left} {right}");
        }
    }
}
