//! Which key of a checkpoint is meant for which name of a program? One-to-one, and with the reason.
//!
//! In this order, each step only for what the steps before have left:
//! 1. the user's rules rename keys ([`Rules`]); then equal names;
//! 2. the other name that the file itself gives to a key (its table of layer and parameter names);
//! 3. masters, between the dynamic form `<prefix>.master_weights.<param>` and the static one
//!    `<prefix>.<param>_fp32_master_<N>`, both ways. Names hold dots, so every dot may be the place of
//!    `master_weights`, and every counter may be meant: exactly one candidate must be a key, several are an
//!    [`Ambiguity`].
//!
//! A name is only mapped onto a key that exists, no two names onto one key, and a missing name that is no master
//! is not mapped at all. Nothing depends on the order of a hash table. (Paddle 3.3.1's loader lets the candidate
//! of one missing name leak to the next, knows only `_0`, and takes exactly one prefix part.)

use super::{Manifest, TensorEntry};
use crate::analysis::pairs::split_master_name;
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

/// The part of a dynamic name that says it is a master's.
const MASTERS: &str = "master_weights";
/// Longest file of rules, in bytes.
pub const MAX_RULES: usize = 1 << 20;

/// Why a name is read from a key of another name.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Why {
    /// they are equal
    Equal,
    /// a rule of the user, by its text
    Rule(String),
    /// the file's own table of names
    FileTable,
    /// a static master's name, a dynamic master's key
    DynamicMaster,
    /// a dynamic master's name, a static master's key
    StaticMaster,
    /// a static master's name, a static key with another counter
    OtherCounter,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Equal => f.write_str("the same name"),
            Why::Rule(rule) => write!(f, "rule `{rule}`"),
            Why::FileTable => f.write_str("the file gives it this name"),
            Why::DynamicMaster => f.write_str("a master under its dynamic name"),
            Why::StaticMaster => f.write_str("a master under its static name"),
            Why::OtherCounter => f.write_str("a master with another counter"),
        }
    }
}

/// A key in one of several manifests.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct KeyRef {
    /// which manifest
    pub file: usize,
    /// which entry of it
    pub entry: usize,
}

/// Several keys for one name, or several names for one key.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
pub struct Ambiguity {
    /// the name, or the key
    pub name: String,
    /// what it could be
    pub candidates: Vec<String>,
    /// one sentence
    pub why: String,
}

/// What [`map_names`] has found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NameMap {
    /// for each name that was wanted, its key and why
    pub keys: Vec<Option<(KeyRef, Why)>>,
    /// what could not be decided
    pub ambiguous: Vec<Ambiguity>,
    /// keys that no name took, in order
    pub unused: Vec<KeyRef>,
}

/// Finds the keys of `wanted`, which are all different, in some manifests that are loaded together.
pub fn map_names(wanted: &[&str], manifests: &[&Manifest], rules: &Rules) -> NameMap {
    let mut map = NameMap { keys: vec![None; wanted.len()], ..NameMap::default() };
    let keys = Keys::new(manifests, rules, &mut map.ambiguous);
    let mut taken = vec![false; keys.rows.len()];
    let mut open = Vec::new();
    for (i, &name) in wanted.iter().enumerate() {
        match keys.by_name.get(name) {
            Some(&k) => {
                taken[k] = true;
                let why = keys.rows[k].rule.map_or(Why::Equal, |r| Why::Rule(rules.rows[r].to_string()));
                map.keys[i] = Some((keys.rows[k].at, why));
            }
            None => open.push(i),
        }
    }
    // What each open name could be, before any is decided: the order of names must not matter.
    let mut claims: Vec<(usize, usize, Why)> = Vec::new();
    for &i in &open {
        let found = keys.candidates(wanted[i], &taken);
        match &found[..] {
            [] => {}
            [(key, why)] => claims.push((*key, i, why.clone())),
            many => map.ambiguous.push(Ambiguity {
                name: wanted[i].to_owned(),
                candidates: many.iter().map(|(k, _)| keys.rows[*k].name.to_string()).collect(),
                why: "several keys of the checkpoint could be meant".to_owned(),
            }),
        }
    }
    claims.sort_by_key(|&(key, i, _)| (key, i));
    for group in claims.chunk_by(|a, b| a.0 == b.0) {
        match group {
            [(key, i, why)] => {
                taken[*key] = true;
                map.keys[*i] = Some((keys.rows[*key].at, why.clone()));
            }
            many => map.ambiguous.push(Ambiguity {
                name: keys.rows[many[0].0].name.to_string(),
                candidates: many.iter().map(|&(_, i, _)| wanted[i].to_owned()).collect(),
                why: "several names of the program could be meant by this key".to_owned(),
            }),
        }
    }
    map.unused = keys.rows.iter().zip(&taken).filter(|(_, taken)| !**taken).map(|(row, _)| row.at).collect();
    map
}

/// A key, under the name that rules give it.
struct Key<'m> {
    at: KeyRef,
    name: Cow<'m, str>,
    rule: Option<usize>,
}

struct Keys<'m> {
    rows: Vec<Key<'m>>,
    by_name: HashMap<String, usize>,
    /// keys that the file calls so, too
    by_alias: HashMap<&'m str, Vec<usize>>,
    /// static master keys by what stands before `_fp32_master_`
    by_base: BTreeMap<String, Vec<usize>>,
}

impl<'m> Keys<'m> {
    fn new(manifests: &[&'m Manifest], rules: &Rules, ambiguous: &mut Vec<Ambiguity>) -> Keys<'m> {
        let mut keys =
            Keys { rows: Vec::new(), by_name: HashMap::new(), by_alias: HashMap::new(), by_base: BTreeMap::new() };
        for (file, manifest) in manifests.iter().enumerate() {
            let entries = manifest.entries();
            for (entry, e) in entries.iter().enumerate() {
                let (name, rule): (Cow<'m, str>, _) = match rules.apply(key_of(manifest, entries, e)) {
                    Some((rule, name)) => (name.into(), Some(rule)),
                    None => (key_of(manifest, entries, e).into(), None),
                };
                let row = keys.rows.len();
                if let Some(alias) = manifest.alias(entry) {
                    keys.by_alias.entry(alias).or_default().push(row);
                }
                if let Some((base, _)) = split_master_name(&name) {
                    keys.by_base.entry(base.to_owned()).or_default().push(row);
                }
                keys.rows.push(Key { at: KeyRef { file, entry }, name, rule });
                let name = keys.rows[row].name.to_string();
                if name.is_empty() {
                    continue;
                }
                if let Some(&first) = keys.by_name.get(&name) {
                    let shown = |k: usize| {
                        let at = keys.rows[k].at;
                        let manifest = manifests[at.file];
                        format!("`{}` in {}", manifest.entries()[at.entry].name, manifest.path().display())
                    };
                    ambiguous.push(Ambiguity {
                        candidates: vec![shown(first), shown(row)],
                        name,
                        why: "two keys have this name".to_owned(),
                    });
                } else {
                    keys.by_name.insert(name, row);
                }
            }
        }
        keys
    }

    /// The keys that a name which is no key could mean, sorted, each once.
    fn candidates(&self, name: &str, taken: &[bool]) -> Vec<(usize, Why)> {
        let mut found: Vec<(usize, Why)> = Vec::new();
        let mut add = |key: usize, why: Why| {
            if !taken[key] && found.iter().all(|(k, _)| *k != key) {
                found.push((key, why));
            }
        };
        if let Some(keys) = self.by_alias.get(name) {
            // A table is the file's own word: it goes before guesses by form.
            keys.iter().for_each(|&key| add(key, Why::FileTable));
        } else if let Some((base, _)) = split_master_name(name) {
            for candidate in dynamic_names(base) {
                if let Some(&key) = self.by_name.get(&candidate) {
                    add(key, Why::DynamicMaster);
                }
            }
            for &key in self.by_base.get(base).into_iter().flatten() {
                add(key, Why::OtherCounter);
            }
        } else {
            for base in static_bases(name) {
                for &key in self.by_base.get(&base).into_iter().flatten() {
                    add(key, Why::StaticMaster);
                }
            }
        }
        found.sort_by_key(|(key, _)| *key);
        found
    }
}

/// `<prefix>.master_weights.<param>` for each way to cut `<prefix>.<param>`.
fn dynamic_names(base: &str) -> impl Iterator<Item = String> + '_ {
    let cuts = std::iter::once(None).chain(base.match_indices('.').map(|(at, _)| Some(at)));
    cuts.map(move |cut| match cut {
        None => format!("{MASTERS}.{base}"),
        Some(at) => format!("{}.{MASTERS}{}", &base[..at], &base[at..]),
    })
}

/// `<prefix>.<param>` for each `master_weights` in `<prefix>.master_weights.<param>`.
fn static_bases(name: &str) -> Vec<String> {
    let parts: Vec<&str> = name.split('.').collect();
    let cut = |i: usize| [&parts[..i], &parts[i + 1..]].concat().join(".");
    (0..parts.len().saturating_sub(1)).filter(|&i| parts[i] == MASTERS).map(cut).collect()
}

/// The key that names an entry: its own, or the file's name when the file holds one tensor without name.
pub(crate) fn key_of<'m>(manifest: &'m Manifest, entries: &[TensorEntry], entry: &'m TensorEntry) -> &'m str {
    match entries {
        [_] if entry.name.is_empty() => manifest.path().file_name().and_then(|n| n.to_str()).unwrap_or_default(),
        _ => &entry.name,
    }
}

/// How keys are renamed, in order; the first rule that fits a key is the only one.
///
/// As text, a rule a line, `#` begins a comment:
/// ```text
/// fc.weight = linear_0.w_0
/// prefix model. =
/// regex ^layers\.(\d+)\. = encoder.$1.
/// ```
#[derive(Clone, Debug, Default)]
pub struct Rules {
    rows: Vec<Rule>,
}

#[derive(Clone, Debug)]
enum Rule {
    Exact(String, String),
    Prefix(String, String),
    Regex(Arc<regex_lite::Regex>, String),
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rule::Exact(from, to) => write!(f, "{from} = {to}"),
            Rule::Prefix(from, to) => write!(f, "prefix {from} = {to}"),
            Rule::Regex(from, to) => write!(f, "regex {from} = {to}"),
        }
    }
}

/// A rule that cannot be read.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("rule {line}: {what}")]
pub struct RuleError {
    /// from 1
    pub line: usize,
    /// what is wrong
    pub what: String,
}

/// The numbered groups that a replacement speaks of: `$1`, `${1}`; `$$` is a dollar.
fn groups(replacement: &str) -> impl Iterator<Item = usize> + '_ {
    let mut rest = replacement;
    std::iter::from_fn(move || {
        loop {
            rest = &rest[rest.find('$')? + 1..];
            if let Some(after) = rest.strip_prefix('$') {
                rest = after;
                continue;
            }
            let word = rest.strip_prefix('{').unwrap_or(rest);
            let end = word.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(word.len());
            if let Ok(group) = word[..end].parse() {
                return Some(group);
            }
        }
    })
}

impl Rules {
    /// Reads rules, one a line.
    pub fn parse(text: &str) -> Result<Rules, RuleError> {
        let mut rules = Rules::default();
        if text.len() > MAX_RULES {
            return Err(RuleError { line: 1, what: format!("more than {MAX_RULES} bytes of rules") });
        }
        for (i, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            rules.push(line).map_err(|what| RuleError { line: i + 1, what })?;
        }
        Ok(rules)
    }

    fn push(&mut self, line: &str) -> Result<(), String> {
        // ` = ` may stand in no name that a rule can speak of; a bare `=` at the end means nothing is put there.
        let (from, to) = line
            .split_once(" = ")
            .or_else(|| line.strip_suffix(" =").map(|from| (from, "")))
            .ok_or_else(|| format!("`{line}` is not `FROM = TO`, `prefix FROM = TO` or `regex FROM = TO`"))?;
        let (from, to) = (from.trim(), to.trim());
        let rule = if let Some(from) = from.strip_prefix("prefix") {
            if !(from.is_empty() || from.starts_with(' ')) {
                Rule::Exact(format!("prefix{from}"), to.to_owned())
            } else {
                Rule::Prefix(from.trim().to_owned(), to.to_owned())
            }
        } else if let Some(from) = from.strip_prefix("regex ") {
            let regex = regex_lite::Regex::new(from.trim()).map_err(|e| e.to_string())?;
            if let Some(group) = groups(to).find(|&g| g >= regex.captures_len()) {
                return Err(format!("`${group}` in `{to}`: the pattern has {} groups", regex.captures_len() - 1));
            }
            Rule::Regex(Arc::new(regex), to.to_owned())
        } else {
            Rule::Exact(from.to_owned(), to.to_owned())
        };
        if matches!(&rule, Rule::Exact(from, to) if from.is_empty() || to.is_empty()) {
            return Err(format!("`{line}` has an empty name"));
        }
        self.rows.push(rule);
        Ok(())
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// A key under the name that the first fitting rule gives it; its own when none fits.
    pub fn rename(&self, key: &str) -> String {
        self.apply(key).map_or_else(|| key.to_owned(), |(_, name)| name)
    }

    /// The first rule that fits a key, and the key's new name. A rule that leaves a name empty does not fit.
    fn apply(&self, key: &str) -> Option<(usize, String)> {
        self.rows.iter().enumerate().find_map(|(i, rule)| {
            let name = match rule {
                Rule::Exact(from, to) => (key == from).then(|| to.clone()),
                Rule::Prefix(from, to) => key.strip_prefix(&from[..]).map(|rest| format!("{to}{rest}")),
                Rule::Regex(from, to) => from.is_match(key).then(|| from.replace(key, &to[..]).into_owned()),
            };
            name.filter(|n| !n.is_empty()).map(|name| (i, name))
        })
    }
}
