//! "Did you mean ...?": the nearest known word, by edit distance, ignoring case and `-` for `_`.

/// The candidate that differs from `word` by a third of its letters at most, if any.
pub fn closest<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    const LONGEST: usize = 64;
    let fold = |word: &str| -> String {
        word.replace('-', "_").chars().take(LONGEST).collect::<String>().to_ascii_lowercase()
    };
    let word = fold(word);
    candidates
        .map(|candidate| (strsim::osa_distance(&word, &fold(candidate)), candidate))
        .filter(|(distance, candidate)| *distance <= (candidate.len() / 3).max(1))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}
