//! What do load and save do? They read checkpoints into cells and write cells to files; feed and fetch
//! are here too.
//!
//! A load checks everything before it writes anything: keys, dtypes, shapes against the declarations.
//! The cell takes the stored dtype and value. What proofs rely on is checked too: `stored_dtypes` must be
//! the file's, and a cell that main declares 16-bit takes float32, float16 or bfloat16 only. A file of one unnamed tensor serves a load of one output.

use super::super::context::OpCx;
use super::super::error::{Fault, InterpError};
use super::super::files::SaveFormat;
use super::super::machine::fits;
use super::super::tensor::{Data, Tensor};
use super::Kernel;
use crate::ckpt::{Checkpoint, TensorEntry};
use crate::ir::DType;
use crate::names::Name;
use std::path::PathBuf;
use std::sync::Arc;

pub(super) const KERNELS: &[(&str, Kernel)] = &[
    ("load", load),
    ("load_combine", load_combine),
    ("save", save),
    ("save_combine", save_combine),
    ("feed", feed),
    ("fetch", fetch),
    ("fetch_v2", fetch),
];

/// The format whose one tensor has no name of its own.
const SINGLE: &str = "tensor-stream";

fn path(cx: &OpCx<'_, '_>) -> Result<PathBuf, InterpError> {
    let path = cx.attr_str("file_path")?;
    // An absolute path replaces the base.
    Ok(cx.options().base_dir.join(cx.need("file_path", path)?))
}

fn load(cx: &mut OpCx<'_, '_>) -> Result<(), InterpError> {
    if cx.attr_i64("seek", -1)? >= 0 {
        return Err(Fault::Unsupported { what: "load of a part of a tensor (`seek`)".into() }.into());
    }
    let outs = cx.output_names("Out");
    let keys: Vec<&str> = match cx.attr("keys") {
        None => outs.iter().map(|&n| cx.text(n)).collect(),
        Some(value) => match value.as_strs() {
            Some(keys) if keys.len() == outs.len() => keys.iter().map(|k| &**k).collect(),
            _ => {
                let what = format!("{} strings wanted, one an output", outs.len());
                return Err(Fault::BadAttr { name: "keys".into(), what }.into());
            }
        },
    };
    let ckpt = cx.machine.open(path(cx)?)?;
    let entries = ckpt.entries();
    let picks = if ckpt.format() == SINGLE && entries.len() == 1 && outs.len() == 1 {
        vec![0]
    } else {
        let pick = |&key: &&str| {
            ckpt.find(key).ok_or_else(|| {
                let near = nearest(key, entries);
                InterpError::from(Fault::MissingKey { path: ckpt.path().to_owned(), key: key.to_owned(), near })
            })
        };
        keys.iter().map(pick).collect::<Result<Vec<_>, _>>()?
    };
    read(cx, &ckpt, outs, &picks)
}

/// `load_combine`: the file's tensors are those of `Out`, in order.
fn load_combine(cx: &mut OpCx<'_, '_>) -> Result<(), InterpError> {
    let outs = cx.output_names("Out");
    let names: Vec<&str> = outs.iter().map(|&n| cx.text(n)).collect();
    let ckpt = cx.machine.files.open_combined(&path(cx)?, &names)?;
    let found = ckpt.entries().len();
    if found != outs.len() {
        let what = format!("{}: {found} tensors for {} outputs", ckpt.path().display(), outs.len());
        return Err(Fault::Unsupported { what }.into());
    }
    let picks: Vec<usize> = (0..found).collect();
    read(cx, &ckpt, outs, &picks)
}

fn read(cx: &mut OpCx<'_, '_>, ckpt: &Arc<dyn Checkpoint>, outs: &[Name], picks: &[usize]) -> Result<(), InterpError> {
    let entries = ckpt.entries();
    let stored = cx.attr_ints("stored_dtypes")?;
    let mut total = 0u64;
    for (i, (&name, &pick)) in outs.iter().zip(picks).enumerate() {
        let e = &entries[pick];
        let promised = stored.as_ref().and_then(|codes| codes.get(i)).map(|&code| DType::from_code(code as i32));
        check(cx, ckpt, name, e, promised)?;
        total = total.saturating_add(e.bytes);
    }
    cx.machine.room(total)?;
    let as_fp16 = cx.attr_bool("load_as_fp16", false)?;
    let mut values = Vec::with_capacity(picks.len());
    for &i in picks {
        let e = &entries[i];
        let shape = e.shape.iter().map(|&d| d as usize).collect::<Vec<_>>();
        let t = Tensor::from_bytes(e.dtype, &shape, &ckpt.read(i)?)?;
        values.push(if as_fp16 { t.cast(DType::F16, cx.options().narrowing)? } else { t });
    }
    for (&name, value) in outs.iter().zip(values) {
        cx.write_loaded(name, value)?;
    }
    Ok(())
}

/// Whether a stored tensor can be held, is what the op and the cell can take, and has the declared shape.
fn check(
    cx: &OpCx<'_, '_>,
    ckpt: &Arc<dyn Checkpoint>,
    name: Name,
    e: &TensorEntry,
    promised: Option<DType>,
) -> Result<(), InterpError> {
    Data::zeros(e.dtype, 0)?;
    let path = || ckpt.path().to_owned();
    let low = cx.machine.main_dtype(name).filter(|d| d.is_low());
    let wanted = match (promised, low) {
        (Some(p), _) if p != e.dtype => Some(format!("`stored_dtypes` says {p}")),
        (_, Some(low)) if !(e.dtype.is_low() || e.dtype == DType::F32) => {
            Some(format!("`{}` is {low} in main: it takes float32, float16 or bfloat16", cx.text(name)))
        }
        _ => None,
    };
    if let Some(wanted) = wanted {
        return Err(Fault::LoadDType { path: path(), key: e.name.clone(), stored: e.dtype, wanted }.into());
    }
    let Some(id) = cx.declaration(name) else { return Ok(()) };
    let declared = cx.program().shape(id);
    let known = cx.program().var(id).kind.has_tensor() && declared.iter().all(|&d| d >= 0);
    if known && !fits(declared, e.shape.iter().copied()) {
        return Err(Fault::LoadShape {
            path: path(),
            key: e.name.clone(),
            name: cx.text(name).to_owned(),
            stored: e.shape.clone(),
            declared: declared.to_vec(),
        }
        .into());
    }
    Ok(())
}

/// The keys that resemble a name most, at most three.
fn nearest(key: &str, entries: &[TensorEntry]) -> Vec<String> {
    const LOOK_AT: usize = 10_000;
    const LONGEST: usize = 256;
    let limit = (key.len() / 2).max(2);
    let mut near: Vec<(usize, &str)> = entries
        .iter()
        .take(LOOK_AT)
        .filter(|e| !e.name.is_empty() && e.name.len() <= LONGEST && key.len() <= LONGEST)
        .filter(|e| e.name.len().abs_diff(key.len()) <= limit)
        .map(|e| (distance(key.as_bytes(), e.name.as_bytes()), &*e.name))
        .filter(|&(d, _)| d <= limit)
        .collect();
    near.sort_unstable();
    near.into_iter().take(3).map(|(_, k)| k.to_owned()).collect()
}

/// Edit distance, by bytes.
fn distance(a: &[u8], b: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, &x) in a.iter().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, &y) in b.iter().enumerate() {
            let replace = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replace.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

fn save(cx: &mut OpCx<'_, '_>) -> Result<(), InterpError> {
    write(cx, SaveFormat::Single)
}

fn save_combine(cx: &mut OpCx<'_, '_>) -> Result<(), InterpError> {
    write(cx, SaveFormat::Combined)
}

fn write(cx: &mut OpCx<'_, '_>, format: SaveFormat) -> Result<(), InterpError> {
    let (path, names) = (path(cx)?, cx.input_names("X"));
    let mut values = cx.inputs("X")?;
    if format == SaveFormat::Single && values.len() != 1 {
        return Err(Fault::Unsupported { what: format!("save of {} tensors", values.len()) }.into());
    }
    if !cx.attr_bool("overwrite", true)? && path.exists() {
        return Err(Fault::Unsupported { what: format!("{}: exists, and `overwrite` is false", path.display()) }.into());
    }
    if cx.attr_bool("save_as_fp16", false)? {
        for v in &mut values {
            *v = v.cast(DType::F16, cx.options().narrowing)?;
        }
    }
    let tensors: Vec<(&str, Tensor)> = names.iter().map(|&n| cx.text(n)).zip(values).collect();
    // What was opened may be the file that is written now, by this name or another.
    cx.machine.opened.clear();
    Ok(cx.machine.files.write(&path, format, &tensors)?)
}

/// `feed`: its output was given its value before the run.
fn feed(cx: &mut OpCx<'_, '_>) -> Result<(), InterpError> {
    match cx.output_names("Out").first() {
        Some(&name) if cx.value(name).is_none() => {
            let name = cx.text(name).to_owned();
            Err(Fault::Feed { name, what: "not given".into() }.into())
        }
        _ => Ok(()),
    }
}

/// `fetch`: the value is kept in the run's statistics.
fn fetch(cx: &mut OpCx<'_, '_>) -> Result<(), InterpError> {
    let value = cx.input("X")?;
    let name = cx.input_names("X").first().map_or("", |&n| cx.text(n)).to_owned();
    cx.machine.keep_fetched(name, value)
}
