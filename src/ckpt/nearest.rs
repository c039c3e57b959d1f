//! Which known names are nearest to one that is not known? By a shared prefix, else by edit distance.

/// Names longer than this (in bytes) are compared by prefix alone.
const MAX_LEN: usize = 256;
/// Most names that are compared; a checkpoint with more is compared with its first ones.
const MAX_NAMES: usize = 10_000;
/// Most pairs of bytes that are compared: after it, which only very long names reach, prefixes alone count.
const MAX_WORK: usize = 20_000_000;

/// Up to `limit` of `known` that a person may have meant by `wanted`, nearest first.
pub(crate) fn nearest<'k>(wanted: &str, known: impl IntoIterator<Item = &'k str>, limit: usize) -> Vec<&'k str> {
    let mut found: Vec<(usize, usize, &str)> = Vec::new();
    let (mut row, mut work) = (Vec::new(), 0);
    for (i, name) in known.into_iter().take(MAX_NAMES).enumerate() {
        if added_prefix(wanted, name).is_some() || added_prefix(name, wanted).is_some() {
            found.push((0, i, name));
            continue;
        }
        work += wanted.len().min(MAX_LEN) * name.len().min(MAX_LEN);
        let limit = wanted.len().max(name.len()) / 3;
        if work > MAX_WORK {
            continue;
        }
        if let Some(d) = distance(wanted, name, limit, &mut row) {
            found.push((d, i, name));
        }
    }
    found.sort_unstable();
    found.into_iter().take(limit).map(|(_, _, name)| name).collect()
}

/// What stands before `name` in `long`, when it ends in a separator: `model.` for `w` and `model.w`.
pub(crate) fn added_prefix<'l>(long: &'l str, name: &str) -> Option<&'l str> {
    let prefix = long.strip_suffix(name)?;
    (!name.is_empty() && prefix.ends_with(['.', '/', ':', '_'])).then_some(prefix)
}

/// The edit distance over bytes, `None` when it is above `limit`.
fn distance(a: &str, b: &str, limit: usize, row: &mut Vec<usize>) -> Option<usize> {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    if a.len().max(b.len()) > MAX_LEN || a.len().abs_diff(b.len()) > limit {
        return None;
    }
    row.clear();
    row.extend(0..=b.len());
    for (i, &x) in a.iter().enumerate() {
        let (mut diagonal, mut least) = (row[0], i + 1);
        row[0] = i + 1;
        for (j, &y) in b.iter().enumerate() {
            let change = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = change.min(diagonal + 1).min(row[j] + 1);
            least = least.min(row[j + 1]);
        }
        if least > limit {
            return None;
        }
    }
    (row[b.len()] <= limit).then_some(row[b.len()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_right_and_bounded() {
        let mut row = Vec::new();
        assert_eq!(distance("kitten", "sitting", 3, &mut row), Some(3));
        assert_eq!(distance("kitten", "sitting", 2, &mut row), None);
        assert_eq!(distance("", "abc", 3, &mut row), Some(3));
        assert_eq!(distance("same", "same", 0, &mut row), Some(0));
    }

    #[test]
    fn a_prefix_counts_as_nearest() {
        let known = ["fc_0.w_1", "model.fc_0.w_0", "other"];
        assert_eq!(nearest("fc_0.w_0", known, 3), ["model.fc_0.w_0", "fc_0.w_1"]);
        assert_eq!(nearest("fc_0.w_0_velocity_1", ["fc_0.w_0_velocity_0"], 3), ["fc_0.w_0_velocity_0"]);
        assert_eq!(added_prefix("model.w", "w"), Some("model."));
        assert_eq!(added_prefix("now", "w"), None);
    }
}
