//! What a run decides by chance, so that the same seed decides the same; or by a list that an
//! enumeration goes through.

/// Where decisions come from.
#[derive(Debug, Clone)]
pub enum Chance {
    /// SplitMix64, from its seed on.
    Seeded(u64),
    /// Each decision taken, and out of how many; beyond the end the first.
    Listed { decisions: Vec<(usize, usize)>, next: usize },
}

impl Chance {
    /// The first list of an enumeration.
    pub fn first() -> Chance {
        Chance::Listed { decisions: Vec::new(), next: 0 }
    }

    /// The list after this one, once a run has gone through it.
    pub fn following(self) -> Option<Chance> {
        let Chance::Listed { mut decisions, .. } = self else { return None };
        while let Some((taken, of)) = decisions.pop() {
            if taken + 1 < of {
                decisions.push((taken + 1, of));
                return Some(Chance::Listed { decisions, next: 0 });
            }
        }
        None
    }

    /// One of `of`, at least one.
    pub fn pick(&mut self, of: usize) -> usize {
        match self {
            Chance::Seeded(_) => (self.number() % of as u64) as usize,
            Chance::Listed { decisions, next } => {
                if of == 1 {
                    return 0;
                }
                if *next == decisions.len() {
                    decisions.push((0, of));
                }
                *next += 1;
                decisions[*next - 1].0
            }
        }
    }

    /// Any number; in an enumeration always the same.
    pub fn number(&mut self) -> u64 {
        let Chance::Seeded(state) = self else { return 0 };
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = *state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// True so often in a hundred; in an enumeration never.
    pub fn percent(&mut self, often: u64) -> bool {
        matches!(self, Chance::Seeded(_)) && self.number() % 100 < often
    }

    /// From `least` to below `most`; in an enumeration `least`.
    pub fn between(&mut self, least: u64, most: u64) -> u64 {
        match self {
            Chance::Seeded(_) if most > least => least + self.number() % (most - least),
            _ => least,
        }
    }
}
