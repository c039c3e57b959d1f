//! How are random programs made? Anything that the IR can hold, well formed or not.
//!
//! [`program`] gives content, not sense: names clash, slots do not fit their kinds, sub-blocks dangle
//! and form circles, and bytes that the IR has no row for hang on everything. Use it for what must
//! hold of every program: printing, JSON, no panic.

use mastercast::ir::{
    Attr, AttrValue, DType, Entity, Extra, F32, F64, Origin, Program, Scalar, Section, VarDef, VarFlag, VarFlags,
    VarKind,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

/// A name: mostly like Paddle's, sometimes odd.
pub fn name() -> BoxedStrategy<String> {
    prop_oneof![
        8 => "[a-d]_[0-2]\\.(w|b|tmp)_[0-1](@GRAD|\\.cast_fp16)?",
        1 => Just("@EMPTY@".to_owned()),
        1 => Just(String::new()),
        1 => prop::sample::select(vec![
            "var", "param", "block", "x", "true", "f32", "startup", "program", "0.weight", "a b", "a\"b\\", "// no",
            "é中😀", "line\nend\r\t\u{0}\u{feff}\u{2028}", "}", "a,b;c:d", "-1", "version", "unknown",
        ])
        .prop_map(str::to_owned),
        1 => any::<String>(),
    ]
    .boxed()
}

fn bytes() -> impl Strategy<Value = Box<[u8]>> {
    vec(any::<u8>(), 0..5).prop_map(Into::into)
}

fn some_bytes() -> impl Strategy<Value = Option<Box<[u8]>>> {
    option::weighted(0.1, bytes())
}

fn f32s() -> impl Strategy<Value = F32> {
    prop_oneof![any::<u32>().prop_map(F32), any::<i8>().prop_map(|v| (f32::from(v) / 10.0).into())]
}

fn f64s() -> impl Strategy<Value = F64> {
    prop_oneof![any::<u64>().prop_map(F64), any::<i8>().prop_map(|v| (f64::from(v) / 10.0).into())]
}

fn scalar() -> impl Strategy<Value = Scalar> {
    prop_oneof![
        any::<bool>().prop_map(Scalar::Bool),
        any::<i64>().prop_map(Scalar::Long),
        f64s().prop_map(Scalar::F64),
        (f64s(), f64s()).prop_map(|(a, b)| Scalar::C128(a, b)),
    ]
}

fn dtype() -> impl Strategy<Value = DType> {
    prop_oneof![
        9 => prop::sample::select(vec![0, 1, 2, 3, 4, 5, 6, 20, 21, 22, 23, 24]),
        1 => any::<i32>(),
    ]
    .prop_map(DType::from_code)
}

/// A value before names are interned.
#[derive(Clone, Debug)]
enum Value {
    Plain(AttrValue),
    Var(String),
    Vars(Vec<String>),
}

fn list<T: std::fmt::Debug>(items: impl Strategy<Value = T>) -> impl Strategy<Value = Box<[T]>> {
    vec(items, 0..4).prop_map(Into::into)
}

fn value() -> BoxedStrategy<Value> {
    let text = || name().prop_map(String::into_boxed_str);
    let plain = prop_oneof![
        any::<i32>().prop_map(AttrValue::Int),
        dtype().prop_map(AttrValue::from),
        f32s().prop_map(AttrValue::Float),
        text().prop_map(AttrValue::String),
        list(-2..100i32).prop_map(AttrValue::Ints),
        list(f32s()).prop_map(AttrValue::Floats),
        list(text()).prop_map(AttrValue::Strings),
        any::<bool>().prop_map(AttrValue::Bool),
        list(any::<bool>()).prop_map(AttrValue::Bools),
        (-1..4i32).prop_map(AttrValue::Block),
        list(-1..4i32).prop_map(AttrValue::Blocks),
        any::<i64>().prop_map(AttrValue::Long),
        list(any::<i64>()).prop_map(AttrValue::Longs),
        f64s().prop_map(AttrValue::F64),
        list(f64s()).prop_map(AttrValue::F64s),
        scalar().prop_map(AttrValue::Scalar),
        list(scalar()).prop_map(AttrValue::Scalars),
        (any::<i32>(), bytes()).prop_map(|(tag, raw)| AttrValue::Unknown { tag, raw }),
    ];
    prop_oneof![
        18 => plain.prop_map(Value::Plain),
        1 => name().prop_map(Value::Var),
        1 => vec(name(), 0..3).prop_map(Value::Vars),
    ]
    .boxed()
}

type Slots = Vec<(String, Vec<String>)>;
type AttrRecipe = (String, Value, Option<Box<[u8]>>);
type Extras = (Option<Box<[u8]>>, Option<Box<[u8]>>);

#[derive(Clone, Debug)]
struct OpRecipe {
    kind: String,
    inputs: Slots,
    outputs: Slots,
    attrs: Vec<AttrRecipe>,
    is_target: Option<bool>,
    extra: Extras,
}

#[derive(Clone, Debug)]
struct VarRecipe {
    name: String,
    kind: i32,
    dtype: DType,
    shape: Vec<i64>,
    lod_level: Option<i32>,
    flags: [Option<bool>; 4],
    extra: Extras,
}

#[derive(Clone, Debug)]
struct BlockRecipe {
    parent: i32,
    forward: Option<i32>,
    vars: Vec<VarRecipe>,
    ops: Vec<OpRecipe>,
    extra: Extras,
}

#[derive(Clone, Debug)]
struct SectionRecipe {
    version: Option<i64>,
    op_versions: Option<Box<[u8]>>,
    blocks: Vec<BlockRecipe>,
    extra: Extras,
}

fn slots() -> impl Strategy<Value = Slots> {
    let slot =
        prop_oneof![9 => prop::sample::select(vec!["X", "Y", "Out", "Param"]).prop_map(str::to_owned), 1 => name()];
    vec((slot, vec(name(), 0..3)), 0..3)
}

fn op() -> impl Strategy<Value = OpRecipe> {
    let kind = prop_oneof![
        6 => prop::sample::select(vec!["cast", "load", "while", "conditional_block", "adam", "matmul_v2", "mystery"])
            .prop_map(str::to_owned),
        1 => name(),
    ];
    let attr_name = prop_oneof![
        3 => prop::sample::select(vec!["dtype", "in_dtype", "out_dtype", "sub_block", "shape", "stored_dtypes"])
            .prop_map(str::to_owned),
        1 => name(),
    ];
    let attrs = vec((attr_name, value(), some_bytes()), 0..4);
    (kind, slots(), slots(), attrs, option::weighted(0.2, any::<bool>()), (some_bytes(), some_bytes())).prop_map(
        |(kind, inputs, outputs, attrs, is_target, extra)| OpRecipe { kind, inputs, outputs, attrs, is_target, extra },
    )
}

fn var() -> impl Strategy<Value = VarRecipe> {
    let kind = prop_oneof![8 => Just(7), 3 => prop::sample::select(vec![8, 9, 10, 11, 13, 15, 17, 99])];
    let flag = || option::of(any::<bool>());
    (
        name(),
        kind,
        dtype(),
        vec(-3..100i64, 0..4),
        option::of(0..3i32),
        [flag(), flag(), flag(), flag()],
        (some_bytes(), some_bytes()),
    )
        .prop_map(|(name, kind, dtype, shape, lod_level, flags, extra)| VarRecipe {
            name,
            kind,
            dtype,
            shape,
            lod_level,
            flags,
            extra,
        })
}

fn section() -> impl Strategy<Value = SectionRecipe> {
    let block =
        (-2..4i32, option::weighted(0.2, -2..4i32), vec(var(), 0..5), vec(op(), 0..5), (some_bytes(), some_bytes()))
            .prop_map(|(parent, forward, vars, ops, extra)| BlockRecipe { parent, forward, vars, ops, extra });
    (option::of(any::<i64>()), some_bytes(), vec(block, 0..4), (some_bytes(), some_bytes()))
        .prop_map(|(version, op_versions, blocks, extra)| SectionRecipe { version, op_versions, blocks, extra })
}

fn keep(p: &mut Program, entity: Entity, (unknown, verbatim): Extras) {
    p.set_extra(entity, Extra { unknown: unknown.unwrap_or_default(), verbatim });
}

fn build_section(p: &mut Program, section: Section, recipe: SectionRecipe) {
    p.set_section_info(section, recipe.version, recipe.op_versions);
    keep(p, Entity::Section(section), recipe.extra);
    for (i, b) in recipe.blocks.into_iter().enumerate() {
        // The global block has no parent, most of the time.
        let parent = if i == 0 && b.parent < 2 { -1 } else { b.parent };
        let block = p.push_block(section, parent, b.forward);
        keep(p, Entity::Block(block), b.extra);
        for v in b.vars {
            let flags = [VarFlag::Persistable, VarFlag::NeedCheckFeed, VarFlag::IsParameter, VarFlag::StopGradient]
                .into_iter()
                .zip(v.flags)
                .fold(VarFlags::default(), |f, (flag, value)| f.with(flag, value));
            let name = p.intern(&v.name);
            let kind = VarKind(v.kind);
            let def = VarDef { name, kind, dtype: v.dtype, shape: v.shape, lod_level: v.lod_level, flags };
            let origin = p.push_origin(Origin::Built { tag: 0 });
            let id = p.push_var(block, &def, origin);
            keep(p, Entity::Var(id), v.extra);
        }
        for o in b.ops {
            let attrs = o
                .attrs
                .into_iter()
                .map(|(name, value, raw)| {
                    let value = match value {
                        Value::Plain(v) => v,
                        Value::Var(n) => AttrValue::Var(p.intern(&n)),
                        Value::Vars(ns) => AttrValue::Vars(ns.iter().map(|n| p.intern(n)).collect()),
                    };
                    Attr { name: p.symbol(&name), value, raw: raw.map(Into::into) }
                })
                .collect();
            let attrs = p.intern_attrs(attrs);
            let origin = p.push_origin(Origin::Built { tag: 0 });
            let kind = p.symbol(&o.kind);
            let id = p.push_op(block, kind, attrs, origin);
            for (slot, args) in o.inputs {
                let (slot, args) = (p.symbol(&slot), args.iter().map(|a| p.intern(a)).collect::<Vec<_>>());
                p.push_input(id, slot, args);
            }
            for (slot, args) in o.outputs {
                let (slot, args) = (p.symbol(&slot), args.iter().map(|a| p.intern(a)).collect::<Vec<_>>());
                p.push_output(id, slot, args);
            }
            p.set_is_target(id, o.is_target);
            keep(p, Entity::Op(id), o.extra);
        }
    }
}

/// A random program: any content that the IR can hold.
pub fn program() -> BoxedStrategy<Program> {
    (section(), section())
        .prop_map(|(startup, main)| {
            let mut p = Program::new();
            build_section(&mut p, Section::Startup, startup);
            build_section(&mut p, Section::Main, main);
            p
        })
        .boxed()
}
