//! Which rank reads which file, and where does each part go? From metadata and file listings alone.
//!
//! [`plan_shards`] is a pure function: names are mapped first, then files are chosen, so that a file that holds
//! nothing but mapped masters is read, too. Every file that is needed is read by one rank, one that sees it; work
//! is balanced by bytes. What each target part gets is proved to cover it; a hole is a problem with its range.
//! [`ShardPlan::pieces`] is what an executor carries out: [`run_in_process`] here, any transport elsewhere.

use super::names::{Rules, map_names};
use super::open::open_shard;
use super::rect::{Rect, Runs, cover_box};
use super::{Access, Checkpoint, CkptError, DistMetadata, DistTensor};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// A part of a tensor that a rank wants.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Want {
    /// who wants it
    pub rank: usize,
    /// the tensor's name, as the rank calls it
    pub name: String,
    /// the part; `None` is all of it
    pub rect: Option<Rect>,
}

/// Elements that go from a file to a wanted part.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Piece {
    /// which file, in [`DistMetadata::files`]
    pub file: usize,
    /// the tensor, in [`DistMetadata::tensors`]
    pub tensor: usize,
    /// the box of the tensor whose data the file holds in one run
    pub tile: Rect,
    /// the element of the file's entry where that run begins
    pub at: u64,
    /// index of the want
    pub want: usize,
    /// the part of the tensor that both have
    pub rect: Rect,
    /// another piece brings these elements, too: they are compared, not written
    pub check: bool,
}

/// Why a plan cannot be carried out.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum ShardProblem {
    #[error("no shard holds {hole} of `{name}`, which rank {rank} wants; {missing} elements are missing")]
    Hole { rank: usize, name: String, hole: Rect, missing: u64 },
    #[error("rank {rank} wants {rect} of `{name}`, which is {shape:?}")]
    Outside { rank: usize, name: String, rect: Rect, shape: Vec<u64> },
    #[error("`{file}`, written by rank {rank}, is visible to no rank")]
    Invisible { file: String, rank: String },
    #[error("`{name}`: {why}: {candidates:?}")]
    Ambiguous { name: String, why: String, candidates: Vec<String> },
    #[error("the shards of `{name}` lie in too wild a pattern")]
    TooWild { name: String },
}

/// What [`plan_shards`] has decided.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ShardPlan {
    /// the files that each rank reads, sorted; a rank that reads none is not there
    pub rank_to_files: BTreeMap<usize, Vec<String>>,
    /// names that are in no file, sorted
    pub missing: Vec<String>,
    /// names that are read from a key of another name
    pub mapping: BTreeMap<String, String>,
    /// in the order in which an executor takes them
    pub pieces: Vec<Piece>,
    /// which rank reads a file; `None` when nobody does
    pub reader: Vec<Option<usize>>,
    /// bytes-like weight (elements) that each rank reads
    pub load: Vec<u64>,
    /// why it cannot be carried out
    pub problems: Vec<ShardProblem>,
}

/// Plans a load of `wants` by `visible.len()` ranks; `visible[r]` are the files that rank r sees.
///
/// Cost: n log n in wants and shards for grids that are cut along their first dimension.
pub fn plan_shards(metadata: &DistMetadata, wants: &[Want], visible: &[Vec<String>], rules: &Rules) -> ShardPlan {
    let mut plan = ShardPlan { load: vec![0; visible.len()], ..ShardPlan::default() };
    let seers = seers(metadata, visible);
    let names: BTreeSet<&str> = wants.iter().map(|w| &w.name[..]).collect();
    let names: Vec<&str> = names.into_iter().collect();
    let manifest = metadata.manifest(Path::new(""));
    let map = map_names(&names, &[&manifest], rules);
    for a in &map.ambiguous {
        let (name, why, candidates) = (a.name.clone(), a.why.clone(), a.candidates.clone());
        plan.problems.push(ShardProblem::Ambiguous { name, why, candidates });
    }
    let mut tensor_of: BTreeMap<&str, usize> = BTreeMap::new();
    for (&name, key) in names.iter().zip(&map.keys) {
        match key {
            Some((key, _)) => {
                let tensor = &metadata.tensors[key.entry];
                if tensor.key != name {
                    plan.mapping.insert(name.to_owned(), tensor.key.clone());
                }
                tensor_of.insert(name, key.entry);
            }
            None => plan.missing.push(name.to_owned()),
        }
    }
    let mut tiles: BTreeMap<usize, Tiles> = BTreeMap::new();
    for (w, want) in wants.iter().enumerate() {
        let Some(&t) = tensor_of.get(&want.name[..]) else { continue };
        let tensor = &metadata.tensors[t];
        let tiles = tiles.entry(t).or_insert_with(|| Tiles::new(tensor, &seers));
        plan.want(w, want, t, tensor, tiles);
    }
    plan.assign(metadata, &seers);
    plan
}

/// For each file, the ranks that see it.
fn seers(metadata: &DistMetadata, visible: &[Vec<String>]) -> Vec<Vec<usize>> {
    let index: BTreeMap<&str, usize> = metadata.files.iter().enumerate().map(|(i, f)| (&f[..], i)).collect();
    let mut seers = vec![Vec::new(); metadata.files.len()];
    for (rank, files) in visible.iter().enumerate() {
        for &i in files.iter().filter_map(|f| index.get(&f[..])) {
            if seers[i].last() != Some(&rank) {
                seers[i].push(rank);
            }
        }
    }
    seers
}

/// The boxes of a tensor, by place; of replicas, the first that somebody sees.
struct Tiles {
    rows: Vec<(Rect, usize, u64)>,
    /// the longest extent in the first dimension
    longest: u64,
}

impl Tiles {
    fn new(tensor: &DistTensor, seers: &[Vec<usize>]) -> Tiles {
        let mut rows: Vec<(Rect, usize, u64)> = Vec::new();
        for shard in &tensor.shards {
            rows.extend(shard.tiles().into_iter().filter(|(r, _)| !r.is_empty()).map(|(r, at)| (r, shard.file, at)));
        }
        // Seen before unseen, then in the order of files.
        rows.sort_by(|a, b| a.0.cmp(&b.0).then(seers[a.1].is_empty().cmp(&seers[b.1].is_empty())).then(a.1.cmp(&b.1)));
        rows.dedup_by(|b, a| a.0 == b.0);
        let longest = rows.iter().filter_map(|(r, ..)| r.shape.first().copied()).max().unwrap_or(0);
        Tiles { rows, longest }
    }

    /// Those that may share elements with a box: a range by the first dimension.
    fn near(&self, rect: &Rect) -> &[(Rect, usize, u64)] {
        let (Some(&start), Some(&len)) = (rect.offset.first(), rect.shape.first()) else { return &self.rows };
        let from = self.rows.partition_point(|(r, ..)| r.offset[0] + self.longest <= start);
        let to = self.rows.partition_point(|(r, ..)| r.offset[0] < start + len);
        &self.rows[from..to.max(from)]
    }
}

impl ShardPlan {
    /// Whether it can be carried out; names that are missing are the caller's to judge.
    pub fn is_ok(&self) -> bool {
        self.problems.is_empty()
    }

    fn want(&mut self, w: usize, want: &Want, t: usize, tensor: &DistTensor, tiles: &Tiles) {
        let rect = want.rect.clone().unwrap_or_else(|| Rect::whole(&tensor.shape));
        let (rank, name) = (want.rank, want.name.clone());
        if !rect.fits(&tensor.shape) {
            let shape = tensor.shape.clone();
            return self.problems.push(ShardProblem::Outside { rank, name, rect, shape });
        }
        if rect.is_empty() {
            return;
        }
        let (mut hits, mut boxes) = (Vec::new(), Vec::new());
        for (tile, file, at) in tiles.near(&rect) {
            if let Some(both) = tile.intersect(&rect) {
                boxes.push(both);
                hits.push((tile, *file, *at));
            }
        }
        let Some(found) = cover_box(rect, &boxes) else {
            return self.problems.push(ShardProblem::TooWild { name });
        };
        if let Some(hole) = found.hole {
            let missing = found.missing;
            return self.problems.push(ShardProblem::Hole { rank, name, hole, missing });
        }
        let mut checks = Vec::new();
        // Few tensors have overlaps; in those, every tile is compared.
        let check = !(found.overlaps.is_empty() && found.replicas.is_empty());
        for ((tile, file, at), both) in hits.into_iter().zip(boxes) {
            let tile = tile.clone();
            // All are written, whoever comes last, then compared with what is there: two that differ cannot both
            // be equal to it.
            let piece = Piece { file, tensor: t, tile, at, want: w, rect: both, check: false };
            if check {
                checks.push(Piece { check: true, ..piece.clone() });
            }
            self.pieces.push(piece);
        }
        self.pieces.extend(checks);
    }

    /// Gives each file that is needed to a rank: those that few see first, the largest of them first, each to the
    /// rank with the least to read.
    fn assign(&mut self, metadata: &DistMetadata, seers: &[Vec<usize>]) {
        let mut weight: BTreeMap<usize, u64> = BTreeMap::new();
        for piece in self.pieces.iter().filter(|p| !p.check) {
            let w = weight.entry(piece.file).or_default();
            *w = w.saturating_add(piece.rect.count());
        }
        let mut order: Vec<(usize, u64)> = weight.into_iter().collect();
        order.sort_by_key(|&(file, weight)| (seers[file].len(), std::cmp::Reverse(weight), file));
        self.reader = vec![None; metadata.files.len()];
        for (file, weight) in order {
            let name = &metadata.files[file];
            let Some(&rank) = seers[file].iter().min_by_key(|&&r| (self.load[r], r)) else {
                let rank = name.split_once('_').map_or("?", |(rank, _)| rank).to_owned();
                self.problems.push(ShardProblem::Invisible { file: name.clone(), rank });
                continue;
            };
            self.load[rank] += weight;
            self.reader[file] = Some(rank);
            self.rank_to_files.entry(rank).or_default().push(name.clone());
        }
        self.rank_to_files.values_mut().for_each(|files| files.sort());
        // File by file: each is opened once, and an executor needs one at a time. Checks come last.
        self.pieces.sort_by_key(|p| (p.check, p.file, p.want));
    }
}

/// Reads the elements of a piece of the tensor `key`, in order of the part.
pub fn read_piece(file: &dyn Checkpoint, key: &str, piece: &Piece) -> Result<Vec<u8>, CkptError> {
    let entry = file.find(key);
    let entry =
        entry.ok_or_else(|| CkptError::malformed(file.path(), 0, format!("`{}` is not in it", key.escape_debug())))?;
    let stored = &file.entries()[entry];
    let size = stored.dtype.size().unwrap_or(1) as u64;
    let runs = Runs::new(&piece.rect, &piece.tile);
    let mut out = vec![0; (piece.rect.count() * size) as usize];
    for (i, part) in out.chunks_mut((runs.run * size) as usize).enumerate() {
        file.read_into(entry, (piece.at + runs.at(i as u64)) * size, part)?;
    }
    Ok(out)
}

/// Puts the elements of a piece into its wanted part, or compares them there; whether they agreed.
pub fn place_piece(piece: &Piece, want: &Rect, size: u64, data: &[u8], target: &mut [u8]) -> bool {
    let runs = Runs::new(&piece.rect, want);
    let mut agree = true;
    for (i, part) in data.chunks((runs.run * size) as usize).enumerate() {
        let at = (runs.at(i as u64) * size) as usize;
        let target = &mut target[at..at + part.len()];
        if piece.check {
            agree &= target == part;
        } else {
            target.copy_from_slice(part);
        }
    }
    agree
}

/// Carries out a plan in this process: the bytes of each wanted part, in order. A want that is missing is empty.
///
/// # Errors
/// A plan with problems, a file that cannot be read, shards that overlap and differ.
pub fn run_in_process(
    dir: &Path,
    metadata: &DistMetadata,
    wants: &[Want],
    plan: &ShardPlan,
) -> Result<Vec<Vec<u8>>, CkptError> {
    if let Some(problem) = plan.problems.first() {
        return Err(CkptError::unsupported(dir, problem.to_string()));
    }
    let mut out: Vec<Vec<u8>> = vec![Vec::new(); wants.len()];
    let mut open: Option<(usize, Box<dyn Checkpoint>)> = None;
    for piece in &plan.pieces {
        if open.as_ref().is_none_or(|(file, _)| *file != piece.file) {
            open = Some((piece.file, open_shard(&dir.join(&metadata.files[piece.file]), Access::Map)?));
        }
        let Some((_, file)) = &open else { continue };
        let tensor = &metadata.tensors[piece.tensor];
        let data = read_piece(&**file, &tensor.key, piece)?;
        let size = data.len() as u64 / piece.rect.count().max(1);
        let rect = wants[piece.want].rect.clone().unwrap_or_else(|| Rect::whole(&tensor.shape));
        let target = &mut out[piece.want];
        if target.is_empty() {
            target.resize((rect.count() * size) as usize, 0);
        }
        if !place_piece(piece, &rect, size, &data, target) {
            let what = format!("`{}` differs between files at {}", tensor.key.escape_debug(), piece.rect);
            return Err(CkptError::malformed(dir, 0, what));
        }
    }
    Ok(out)
}
