//! Explores a small model, all its states, and says which of its properties do not hold.

use std::fmt::Debug;
use std::hash::Hash;

use stateright::{Checker, Expectation, HasDiscoveries, Model};

/// Explores all states, or until these are broken.
fn checked<M>(model: &M, until: &[&'static str]) -> impl Checker<M> + use<M>
where
    M: Model + Clone + Debug + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq,
{
    let finish = match until {
        [] => HasDiscoveries::All,
        names => HasDiscoveries::AllOf(names.iter().copied().collect()),
    };
    let checker = model.clone().checker().threads(2).finish_when(finish).spawn_bfs().join();
    println!("{model:?}: {} states", checker.unique_state_count());
    checker
}

/// Which properties do not hold, by their names; those in `seen` must happen.
pub fn broken<M>(model: &M, seen: &[&str]) -> Vec<&'static str>
where
    M: Model + Clone + Debug + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq,
{
    let checker = checked(model, &[]);
    let mut failed = Vec::new();
    for property in checker.model().properties() {
        let found = checker.discovery(property.name);
        if property.expectation == Expectation::Sometimes {
            let is_sought = seen.contains(&property.name);
            assert!(found.is_some() || !is_sought, "never: {}, {model:?}", property.name);
        } else if let Some(path) = found {
            println!("not {:?}: {:?}", property.name, path.into_actions());
            failed.push(property.name);
        }
    }
    failed
}

/// Every property holds, and all that may happen does.
pub fn holds<M>(model: &M)
where
    M: Model + Clone + Debug + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq,
{
    let all: Vec<&str> = model.properties().iter().map(|property| property.name).collect();
    assert_eq!(broken(model, &all), Vec::<&str>::new(), "{model:?}");
}

/// The property is seen to break.
pub fn breaks<M>(model: &M, property: &'static str)
where
    M: Model + Clone + Debug + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq,
{
    let path = checked(model, &[property]).discovery(property);
    let path = path.unwrap_or_else(|| panic!("not seen to break {property:?}: {model:?}"));
    println!("not {property:?}: {:?}, {model:?}", path.into_actions());
}
