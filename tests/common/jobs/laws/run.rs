//! How are jobs run, watched and compared? Kernels of made-up ops, and kernels that look on.

use super::STEPS;
use crate::jobs::{Job, Store};
use mastercast::convert::Narrowing;
use mastercast::interp::{Data, InterpError, Interpreter, Kernels, OpCx, Options, Scope, Tensor};
use mastercast::ir::{DType, Program, Section};
use mastercast::names::Name;
use std::cell::RefCell;
use std::collections::BTreeMap;

thread_local! {
    /// what `observe` saw: pair, whether it agreed
    pub(super) static SEEN: RefCell<Vec<(usize, bool, String)>> = const { RefCell::new(Vec::new()) };
    /// by cell: its value, and the float32 value that it was rounded from
    pub(super) static ROUNDED: RefCell<BTreeMap<String, (Tensor, Tensor)>> = const { RefCell::new(BTreeMap::new()) };
    /// by cell: its value, and what it may have been converted from to 16 bits
    pub(super) static CONVERTED: RefCell<BTreeMap<String, (Tensor, Vec<Tensor>)>> = const { RefCell::new(BTreeMap::new()) };
    /// what `look` saw: the values of its arguments
    pub(super) static LOOKS: RefCell<Vec<Vec<Option<Tensor>>>> = const { RefCell::new(Vec::new()) };
}

/// Values that one may have been narrowed from, at most.
pub(super) const CANDIDATES: usize = 6;

type Done = Result<(), InterpError>;

pub(super) fn kernels() -> Kernels {
    let mut k = Kernels::standard().clone();
    k.register("made_up", made_up);
    k.register("made_up_block", |cx| {
        if cx.input("Cond")?.to_bool_vec()[0] {
            let locals = cx.sub_block("sub_block").and_then(|b| cx.run_block(b))?;
            cx.drop_locals(locals);
        }
        Ok(())
    });
    k.register("observe", observe);
    k.register("look", |cx| {
        let seen = cx.input_names("X").iter().map(|&n| cx.value(n)).collect();
        LOOKS.with_borrow_mut(|l| l.push(seen));
        Ok(())
    });
    k.register("cast", |cx| watched(cx, "cast"));
    k.register("assign", |cx| watched(cx, "assign"));
    k.register("amp_init", |cx| watched(cx, "amp_init"));
    k.register("resync", |cx| watched(cx, "resync"));
    k.register("load", |cx| loaded(cx, "load"));
    k.register("load_combine", |cx| loaded(cx, "load_combine"));
    // Nothing is claimed of what a transposed or scaled value was rounded from.
    k.register("transpose2", |cx| loaded(cx, "transpose2"));
    k.register("reshape2", |cx| loaded(cx, "reshape2"));
    k.register("scale", |cx| loaded(cx, "scale"));
    k
}

/// Writes some of what it names.
pub(super) fn made_up(cx: &mut OpCx<'_, '_>) -> Done {
    let writes = cx.attr_i64("writes", 0)?;
    let value = cx.attr_f32("value", 0.0)?;
    let names: Vec<Name> = cx.input_names("X").iter().chain(cx.output_names("Out")).copied().collect();
    for (i, name) in names.into_iter().enumerate() {
        let Some(id) = cx.declaration(name).filter(|_| writes >> i & 1 == 1) else { continue };
        let shape: Vec<usize> = cx.program().shape(id).iter().map(|&d| d as usize).collect();
        let n = shape.iter().product();
        let dtype = cx.value(name).map_or(cx.program().var(id).dtype, |t| t.dtype());
        let t = Tensor::new(&shape, Data::F32(vec![value + i as f32; n]))?.cast(dtype, Narrowing::NearestEven)?;
        cx.write(name, t)?;
    }
    Ok(())
}

pub(super) fn observe(cx: &mut OpCx<'_, '_>) -> Done {
    let pair = cx.attr_i64("pair", 0)? as usize;
    let low = DType::from_code(cx.attr_i64("dtype", 0)? as i32);
    if let (Some(p), Some(m)) = (cx.value(cx.input_names("P")[0]), cx.value(cx.input_names("M")[0])) {
        let agree = same(&narrow(&p, low), &narrow(&m, low));
        SEEN.with_borrow_mut(|s| s.push((pair, agree, format!("{p:?} and {m:?}"))));
    }
    Ok(())
}

/// Runs an op whose result counts as not rounded: what a load brings, even if a save put it there.
pub(super) fn loaded(cx: &mut OpCx<'_, '_>, kind: &str) -> Done {
    for &name in cx.output_names("Out") {
        ROUNDED.with_borrow_mut(|r| r.remove(cx.text(name)));
        CONVERTED.with_borrow_mut(|c| c.remove(cx.text(name)));
    }
    Kernels::standard().get(kind).expect("a standard kernel")(cx)
}

/// Runs an op and follows which cells hold what was rounded from float32.
pub(super) fn watched(cx: &mut OpCx<'_, '_>, kind: &str) -> Done {
    let from: Vec<(Name, Tensor)> = cx.op().input_args().filter_map(|n| Some((n, cx.value(n)?))).collect();
    let outs: Vec<Name> = cx.op().output_args().collect();
    let before = ROUNDED.with_borrow(Clone::clone);
    let converted = CONVERTED.with_borrow(Clone::clone);
    let source = |name: Name, text: &str, t: &Tensor| {
        let _ = name;
        before.get(text).filter(|(v, _)| same(v, t)).map(|(_, wide)| wide.clone())
    };
    Kernels::standard().get(kind).expect("a standard kernel")(cx)?;
    for out in outs {
        let Some(now) = cx.value(out) else { continue };
        let text = cx.text(out).to_owned();
        let is = |t: &Tensor| same(&narrow(t, now.dtype()), &now);
        // What was narrowed, what that was rounded from, and what an equal value was narrowed from.
        let mut before = Vec::new();
        for (n, t) in from.iter().filter(|f| is(&f.1)) {
            if t.dtype() != now.dtype() {
                before.push(t.clone());
                before.extend(source(*n, cx.text(*n), t));
            } else if let Some((_, list)) = converted.get(cx.text(*n)).filter(|c| same(&c.0, t)) {
                before.extend(list.iter().cloned());
            }
        }
        if now.dtype().is_low() && !before.is_empty() {
            CONVERTED.with_borrow_mut(|c| {
                let (value, list) = c.entry(text.clone()).or_insert((now.clone(), Vec::new()));
                if !same(value, &now) {
                    (*value, *list) = (now.clone(), Vec::new());
                }
                for t in before {
                    if list.len() < CANDIDATES && !list.iter().any(|l| same(l, &t)) {
                        list.push(t);
                    }
                }
            });
        }
        // Where the value may come from, and what that was rounded from. With several, none is sure.
        let mut origins: Vec<Option<Tensor>> = Vec::new();
        for (n, t) in from.iter().filter(|f| f.1.dtype().is_float() && now.dtype().is_float()) {
            let rounded = source(*n, cx.text(*n), t);
            let wide = t.dtype() == DType::F32;
            if is(t) {
                origins.push(if wide && now.dtype().is_low() { Some(rounded.unwrap_or(t.clone())) } else { rounded });
            } else if wide && now.dtype() == DType::F32 && kind != "cast" {
                // Narrowed and widened again in this very op.
                let low = [DType::F16, DType::BF16].into_iter().find(|&l| is(&narrow(t, l)));
                origins.extend(low.map(|_| Some(rounded.unwrap_or(t.clone()))));
            }
        }
        let wide = if origins.contains(&None) { None } else { origins.into_iter().flatten().next() };
        ROUNDED.with_borrow_mut(|r| match wide {
            Some(wide) => drop(r.insert(text, (now, wide))),
            None => drop(r.remove(&text)),
        });
    }
    Ok(())
}

/// Equal in dtype, shape and bits, all NaNs being one.
pub fn same(a: &Tensor, b: &Tensor) -> bool {
    let nan = |v: f32| if v.is_nan() { f32::NAN.to_bits() } else { v.to_bits() };
    a.dtype() == b.dtype()
        && a.shape() == b.shape()
        && match a.dtype().is_float() && a.dtype() != DType::F64 {
            true => a.to_f32_vec().into_iter().map(nan).eq(b.to_f32_vec().into_iter().map(nan)),
            false => a.bits_eq(b),
        }
}

pub(super) fn narrow(t: &Tensor, to: DType) -> Tensor {
    t.cast(to, Narrowing::NearestEven).expect("a float")
}

/// Cells that differ between two scopes, among those that a program keeps.
pub(super) fn differing(job: &Job, a: &Scope, b: &Scope) -> Vec<String> {
    let equal = |n: &str| match (a.get(n), b.get(n)) {
        (Some(x), Some(y)) => same(x, y),
        (None, None) => true,
        _ => false,
    };
    job.cells
        .iter()
        .filter(|c| c.persistable && !equal(&c.name))
        .map(|c| format!("{}: {:?} against {:?}", c.name, a.get(&c.name), b.get(&c.name)))
        .collect()
}

/// A run: the scope at main's entry, and after each step that ran.
pub struct Ran {
    pub entry: Option<Scope>,
    pub ends: Vec<Scope>,
    pub error: Option<String>,
}

pub(super) fn interpreter<'p>(program: &'p Program, store: &Store, kernels: &Kernels) -> Interpreter<'p> {
    let mut options = Options::default();
    options.fuel = 20_000;
    Interpreter::new(program).with_kernels(kernels).with_options(options).with_files(store.clone())
}

/// Runs startup and a few steps.
pub fn run(program: &Program, store: &Store) -> Ran {
    let kernels = kernels();
    let mut interp = interpreter(program, store, &kernels);
    let mut scope = Scope::new();
    let mut ran = Ran { entry: None, ends: Vec::new(), error: None };
    if let Err(e) = interp.run(Section::Startup, &mut scope) {
        ran.error = Some(e.to_string());
        return ran;
    }
    ran.entry = Some(scope.clone());
    for _ in 0..STEPS {
        match interp.run(Section::Main, &mut scope) {
            Ok(_) => ran.ends.push(scope.clone()),
            Err(e) => {
                ran.error = Some(e.to_string());
                break;
            }
        }
    }
    ran
}

/// What kind of error ended a run.
pub(super) fn stop(error: &Option<String>) -> &'static str {
    let text = error.as_deref().unwrap_or("");
    let kinds =
        ["has no value", "but `stored_dtypes` says", "it takes float32", "both loaded and differ", "slot", "shape"];
    kinds.into_iter().find(|k| text.contains(k)).unwrap_or("another error")
}
