//! How are shards read as whole tensors? Each block of a tensor is put together from the runs of its tiles.
//!
//! Opening reads the manifest of every shard file and proves, tensor by tensor, that the shards cover it: a hole
//! is an error with its range. A tensor of one whole shard is lent from its map. Shards that overlap without
//! being replicas are compared when the tensor is first read.

use super::super::error::CkptError;
use super::super::index::NameIndex;
use super::super::limits::BLOCK;
use super::super::map::Access;
use super::super::open::open_shard;
use super::super::rect::{Rect, Runs, cover};
use super::super::stream::check_part;
use super::super::{Checkpoint, Skipped, TensorEntry, byte_len, entry_at};
use super::metadata::{DistMetadata, versions};
use crate::ir::DType;
use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Runs shorter than this are copied out of a map; longer ones are read, so that mapped pages do not pile up.
const SHORT: u64 = 16 << 10;

/// An open version of a distributed checkpoint.
pub struct DistDir {
    path: PathBuf,
    metadata: DistMetadata,
    files: Vec<Box<dyn Checkpoint>>,
    entries: Vec<TensorEntry>,
    parts: Vec<Parts>,
    index: NameIndex,
    skipped: Vec<Skipped>,
}

/// How a tensor is made up.
struct Parts {
    /// boxes over the bytes of the tensor: one more dimension, that of an element's bytes
    tiles: Vec<Tile>,
    whole: Rect,
    /// tiles that overlap others, and whether they agree, once known
    overlaps: Vec<usize>,
    agree: OnceLock<Result<(), String>>,
}

struct Tile {
    rect: Rect,
    runs: Runs,
    /// the file and its entry
    file: usize,
    entry: usize,
    /// where the tile's bytes begin in the entry's
    at: u64,
}

impl DistDir {
    /// Opens the version with the highest number.
    pub fn open(path: &Path, access: Access) -> Result<DistDir, CkptError> {
        let found = versions(path)?;
        let (_, metadata) =
            found.last().ok_or_else(|| CkptError::unsupported(path, "there is no `*.metadata` in it"))?;
        let mut this = DistDir::open_metadata(path, metadata, access)?;
        for (id, _) in &found[..found.len() - 1] {
            let name = format!("{id}.metadata");
            this.skipped.push(Skipped { name, why: "an older version, opened by its own path".to_owned() });
        }
        Ok(this)
    }

    /// Opens the version of this number.
    pub fn open_version(path: &Path, id: u64, access: Access) -> Result<DistDir, CkptError> {
        DistDir::open_metadata(path, &path.join(format!("{id}.metadata")), access)
    }

    /// Opens the version of a metadata file.
    pub(in super::super) fn open_metadata(dir: &Path, file: &Path, access: Access) -> Result<DistDir, CkptError> {
        let metadata = DistMetadata::open(file)?;
        let mut files = Vec::new();
        for name in &metadata.files {
            let path = dir.join(name);
            if !path.is_file() {
                let rank = name.split_once('_').map_or("?", |(rank, _)| rank);
                let what = format!("lists `{}` of rank {rank}, which is not there", name.escape_debug());
                return Err(CkptError::unsupported(file, what));
            }
            files.push(open_shard(&path, access)?);
        }
        let (mut entries, mut parts) = (Vec::new(), Vec::new());
        for i in 0..metadata.tensors.len() {
            let (entry, part) = whole_tensor(file, &metadata, i, &files)?;
            entries.push(entry);
            parts.push(part);
        }
        let index = NameIndex::unique(&entries).map_err(|_| CkptError::malformed(file, 0, "two tensors of one key"))?;
        let skipped = Vec::new();
        Ok(DistDir { path: dir.to_path_buf(), metadata, files, entries, parts, index, skipped })
    }

    /// What the metadata says.
    pub fn metadata(&self) -> &DistMetadata {
        &self.metadata
    }

    /// Compares the tiles that overlap, once.
    fn check_overlaps(&self, index: usize) -> Result<(), CkptError> {
        let parts = &self.parts[index];
        if parts.overlaps.is_empty() {
            return Ok(());
        }
        if let Some(known) = parts.agree.get() {
            return known.clone().map_err(|what| CkptError::malformed(&self.path, 0, what));
        }
        let mut verdict = Ok(());
        'pairs: for &i in &parts.overlaps {
            for k in (0..parts.tiles.len()).filter(|&k| k != i) {
                let Some(both) = parts.tiles[i].rect.intersect(&parts.tiles[k].rect) else { continue };
                if !self.same(&parts.tiles[i], &parts.tiles[k], &both)? {
                    let (name, mut at) = (self.entries[index].name.escape_debug(), both.clone());
                    at.offset.pop();
                    at.shape.pop();
                    let [a, b] = [i, k].map(|t| &self.metadata.files[parts.tiles[t].file]);
                    verdict = Err(format!("`{name}` differs between {a} and {b} at {at}, which both hold"));
                    break 'pairs;
                }
            }
        }
        let verdict = parts.agree.get_or_init(|| verdict);
        verdict.clone().map_err(|what| CkptError::malformed(&self.path, 0, what))
    }

    /// Whether two tiles hold the same bytes for `both`.
    fn same(&self, a: &Tile, b: &Tile, both: &Rect) -> Result<bool, CkptError> {
        let [of_a, of_b] = [a, b].map(|t| Runs::new(both, &t.rect));
        // Both cut `both` into rows; the shorter run divides the longer one.
        let step = of_a.run.min(of_b.run).min(BLOCK as u64);
        let (mut x, mut y) = (Vec::new(), Vec::new());
        let mut done = 0;
        while done < both.count() {
            let left = |r: &Runs| r.run - done % r.run;
            let n = step.min(left(&of_a)).min(left(&of_b));
            for (tile, runs, buffer) in [(a, &of_a, &mut x), (b, &of_b, &mut y)] {
                buffer.resize(n as usize, 0);
                let at = tile.at + runs.at(done / runs.run) + done % runs.run;
                self.files[tile.file].read_into(tile.entry, at, buffer)?;
            }
            if x != y {
                return Ok(false);
            }
            done += n;
        }
        Ok(true)
    }
}

/// The entry of a tensor, and how it is made up.
fn whole_tensor(
    path: &Path,
    metadata: &DistMetadata,
    index: usize,
    files: &[Box<dyn Checkpoint>],
) -> Result<(TensorEntry, Parts), CkptError> {
    let tensor = &metadata.tensors[index];
    let bad = |what: String| CkptError::malformed(path, 0, format!("`{}`: {what}", tensor.key.escape_debug()));
    let (mut tiles, mut boxes) = (Vec::new(), Vec::new());
    let mut dtype = tensor.dtype;
    for shard in &tensor.shards {
        let (ckpt, file) = (&files[shard.file], &metadata.files[shard.file]);
        let entry =
            ckpt.find(&tensor.key).ok_or_else(|| bad(format!("is not in {file}, which should hold a shard")))?;
        let stored = &ckpt.entries()[entry];
        // 2.6.2 keeps bfloat16 as uint16 without a word; 3.3.1 says bfloat16.
        match dtype {
            Some(d) if d != stored.dtype => return Err(bad(format!("is {d}, and {} in {file}", stored.dtype))),
            _ => dtype = Some(stored.dtype),
        }
        let held: u64 = stored.shape.iter().product();
        match &shard.flat {
            None if stored.shape != shard.rect.shape => {
                return Err(bad(format!("is {:?} in {file}, the shard is {:?}", stored.shape, shard.rect.shape)));
            }
            Some(range) if held < range.end.min(shard.rect.count()).saturating_sub(range.start) => {
                return Err(bad(format!("has {held} elements in {file}, the shard is {range:?}")));
            }
            _ => {}
        }
        for (rect, at) in shard.tiles() {
            if !rect.fits(&tensor.shape) {
                return Err(bad(format!("the shard {rect} passes the shape {:?}", tensor.shape)));
            }
            boxes.push(rect);
            tiles.push((shard.file, entry, at));
        }
    }
    let dtype = dtype.ok_or_else(|| bad("has no shard that tells its type".to_owned()))?;
    let size = dtype.size().ok_or_else(|| CkptError::unsupported(path, format!("shards of {dtype}")))? as u64;
    let bytes = byte_len(&tensor.shape, size * 8).ok_or_else(|| bad("more bytes than any file holds".to_owned()))?;
    let found = cover(&tensor.shape, &boxes).ok_or_else(|| bad("shards in too wild a pattern".to_owned()))?;
    if let Some(hole) = found.hole {
        let (missing, shape) = (found.missing, &tensor.shape);
        return Err(bad(format!("no shard holds {hole}; {missing} elements of {shape:?} are missing")));
    }
    let in_bytes = |rect: &Rect| {
        let (mut offset, mut shape) = (rect.offset.clone(), rect.shape.clone());
        offset.push(0);
        shape.push(size);
        Rect { offset, shape }
    };
    let whole = in_bytes(&Rect::whole(&tensor.shape));
    let mut overlaps = Vec::new();
    let mut kept = Vec::new();
    for (i, (rect, (file, entry, at))) in boxes.iter().zip(tiles).enumerate() {
        // Replicas are the same shard, saved by several ranks; the first is read, as in Paddle.
        if rect.is_empty() || found.replicas.binary_search(&i).is_ok() {
            continue;
        }
        if found.overlaps.binary_search(&i).is_ok() {
            overlaps.push(kept.len());
        }
        let rect = in_bytes(rect);
        kept.push(Tile { runs: Runs::new(&rect, &whole), rect, file, entry, at: at * size });
    }
    let entry = TensorEntry { name: tensor.key.clone(), dtype, shape: tensor.shape.clone(), bytes };
    Ok((entry, Parts { tiles: kept, whole, overlaps, agree: OnceLock::new() }))
}

impl Checkpoint for DistDir {
    fn path(&self) -> &Path {
        &self.path
    }

    fn format(&self) -> &'static str {
        "distributed"
    }

    fn entries(&self) -> &[TensorEntry] {
        &self.entries
    }

    fn read(&self, index: usize) -> Result<Cow<'_, [u8]>, CkptError> {
        let entry = entry_at(&self.path, &self.entries, index)?;
        let parts = &self.parts[index];
        if let [only] = &parts.tiles[..]
            && only.rect == parts.whole
            && self.files[only.file].entries()[only.entry].bytes == entry.bytes
        {
            return self.files[only.file].read(only.entry);
        }
        let len = usize::try_from(entry.bytes)
            .map_err(|_| CkptError::unsupported(&self.path, "a tensor does not fit the address space"))?;
        let mut out = vec![0; len];
        self.read_into(index, 0, &mut out)?;
        Ok(Cow::Owned(out))
    }

    fn read_into(&self, index: usize, offset: u64, buffer: &mut [u8]) -> Result<(), CkptError> {
        let entry = entry_at(&self.path, &self.entries, index)?;
        check_part(entry, offset, buffer)?;
        self.check_overlaps(index)?;
        let end = offset + buffer.len() as u64;
        for tile in &self.parts[index].tiles {
            let runs = &tile.runs;
            for i in runs.first_behind(offset)..runs.count {
                let start = runs.at(i);
                if start >= end {
                    break;
                }
                let (from, to) = (start.max(offset), (start + runs.run).min(end));
                let target = &mut buffer[(from - offset) as usize..(to - offset) as usize];
                let at = tile.at + i * runs.run + (from - start);
                let file = &self.files[tile.file];
                if runs.run < SHORT
                    && let Cow::Borrowed(data) = file.read(tile.entry)?
                {
                    target.copy_from_slice(&data[at as usize..at as usize + target.len()]);
                } else {
                    file.read_into(tile.entry, at, target)?;
                }
            }
        }
        Ok(())
    }

    fn find(&self, name: &str) -> Option<usize> {
        self.index.find(&self.entries, name)
    }

    fn dtype_name(&self, index: usize) -> Cow<'static, str> {
        Cow::Borrowed(self.entries[index].dtype.short().unwrap_or(DType::F32.short().unwrap_or_default()))
    }

    fn skipped(&self) -> &[Skipped] {
        &self.skipped
    }
}
