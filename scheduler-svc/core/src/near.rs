//! What somebody may have meant: names at a small edit distance.

/// The fewest insertions, deletions and replacements of characters that turn one text into
/// the other.
#[must_use]
pub fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut corner = i;
        let mut left = i.saturating_add(1);
        let mut next = vec![left];
        for (above, to) in row.iter().skip(1).zip(&b) {
            let replaced = corner.saturating_add(usize::from(from != *to));
            left = replaced
                .min(above.saturating_add(1))
                .min(left.saturating_add(1));
            corner = *above;
            next.push(left);
        }
        row = next;
    }
    row.last().copied().unwrap_or(0)
}

/// At most `limit` of the known names that come near the wanted one, nearest first, then in
/// alphabetical order: within a third of the length, or with the same word before the `:` or
/// the first `-`. Case does not count.
#[must_use]
pub fn matches<'a>(
    wanted: &str,
    known: impl IntoIterator<Item = &'a str>,
    limit: usize,
) -> Vec<&'a str> {
    // A hostile text of any length costs no more than a name.
    let wanted: String = wanted.chars().take(80).collect::<String>().to_lowercase();
    let stem = |name: &str| name.split([':', '-']).next().unwrap_or("").to_owned();
    let allowed = (wanted.chars().count() / 3).max(2);
    let mut near: Vec<(usize, &str)> = known
        .into_iter()
        .map(|name| (distance(&wanted, &name.to_lowercase()), name))
        .filter(|(far, name)| {
            *far <= allowed || (!wanted.is_empty() && stem(&wanted) == stem(&name.to_lowercase()))
        })
        .collect();
    near.sort_unstable();
    near.into_iter().take(limit).map(|(_, name)| name).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const IMAGES: [&str; 4] = [
        "jupyter:minimal",
        "pytorch:2.4-cuda12.4",
        "pytorch:2.6-cuda12.4",
        "tensorflow:2.18",
    ];

    #[test]
    fn typos_and_other_versions_are_near() {
        assert_eq!(
            matches("pytorhc:2.4-cuda12.4", IMAGES, 1),
            ["pytorch:2.4-cuda12.4"]
        );
        assert_eq!(
            matches("pytorch:2.4-cuda12.1", IMAGES, 3),
            ["pytorch:2.4-cuda12.4", "pytorch:2.6-cuda12.4"]
        );
        assert_eq!(matches("pytorch", IMAGES, 1), ["pytorch:2.4-cuda12.4"]);
        assert_eq!(matches("Jupyter:minimal", IMAGES, 3), ["jupyter:minimal"]);
        assert_eq!(matches("ubuntu", IMAGES, 3), Vec::<&str>::new());
        assert_eq!(matches("", IMAGES, 3), Vec::<&str>::new());
    }

    #[test]
    fn known_distances() {
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("abc", ""), 3);
    }

    proptest! {
        #[test]
        fn distance_is_a_metric(a in ".{0,8}", b in ".{0,8}", c in ".{0,8}") {
            prop_assert_eq!(distance(&a, &a), 0);
            prop_assert_eq!(distance(&a, &b), distance(&b, &a));
            prop_assert!(distance(&a, &c) <= distance(&a, &b) + distance(&b, &c));
        }
    }
}
