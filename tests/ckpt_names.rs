//! Are names mapped one-to-one, both ways, with the reason? And is a plan decided from manifests alone?

use mastercast::ckpt::names::{Rules, Why, map_names};
use mastercast::ckpt::plan::{Cell, OnConflict, Plan, Policy, Problem, Role, Source, Which, plan};
use mastercast::ckpt::{self, Checkpoint, CkptError, Manifest, TensorEntry};
use mastercast::ir::DType;
use std::borrow::Cow;
use std::path::{Path, PathBuf};

/// A manifest without data: reading it is an error, so that a plan that reads fails.
struct Bare(Vec<TensorEntry>, Vec<Option<String>>);

impl Checkpoint for Bare {
    fn path(&self) -> &Path {
        Path::new("bare")
    }
    fn format(&self) -> &'static str {
        "bare"
    }
    fn entries(&self) -> &[TensorEntry] {
        &self.0
    }
    fn read(&self, _: usize) -> Result<Cow<'_, [u8]>, CkptError> {
        panic!("a plan reads no data")
    }
    fn alias(&self, index: usize) -> Option<&str> {
        self.1.get(index)?.as_deref()
    }
}

fn entry(name: &str, dtype: DType, shape: &[u64]) -> TensorEntry {
    let bytes = shape.iter().product::<u64>() * dtype.size().unwrap() as u64;
    TensorEntry { name: name.to_owned(), dtype, shape: shape.to_vec(), bytes }
}

fn manifest(keys: &[&str]) -> Manifest {
    Manifest::of(&Bare(keys.iter().map(|k| entry(k, DType::F32, &[2])).collect(), Vec::new()))
}

fn rules(text: &str) -> Rules {
    Rules::parse(text).unwrap()
}

/// What each wanted name is read from, `-` for nothing.
fn mapped(wanted: &[&str], keys: &[&str], text: &str) -> Vec<String> {
    let manifest = manifest(keys);
    let map = map_names(wanted, &[&manifest], &rules(text));
    let key = |k: &Option<(_, Why)>| match k {
        Some((k, _)) => manifest.entries()[{
            let k: &mastercast::ckpt::names::KeyRef = k;
            k.entry
        }]
        .name
        .clone(),
        None => "-".to_owned(),
    };
    map.keys.iter().map(key).collect()
}

#[test]
fn masters_go_both_ways_at_any_depth_and_counter() {
    for (wanted, key, why) in [
        ("opt.linear_0.w_0_fp32_master_0", "opt.master_weights.linear_0.w_0", Why::DynamicMaster),
        ("linear_0.w_0_fp32_master_0", "master_weights.linear_0.w_0", Why::DynamicMaster),
        ("a.b.c.linear_0.w_0_fp32_master_7", "a.b.c.master_weights.linear_0.w_0", Why::DynamicMaster),
        ("opt.master_weights.linear_0.w_0", "opt.linear_0.w_0_fp32_master_0", Why::StaticMaster),
        ("master_weights.w", "w_fp32_master_12", Why::StaticMaster),
        ("a.b.master_weights.p.q.r", "a.b.p.q.r_fp32_master_1", Why::StaticMaster),
        ("w_fp32_master_1", "w_fp32_master_0", Why::OtherCounter),
    ] {
        let manifest = manifest(&[key, "other"]);
        let map = map_names(&[wanted], &[&manifest], &Rules::default());
        assert_eq!(map.keys[0].as_ref().map(|(k, w)| (k.entry, w.clone())), Some((0, why)), "{wanted} from {key}");
        assert_eq!(map.ambiguous, []);
    }
}

#[test]
fn nothing_else_is_mapped() {
    // The candidate of one missing name does not leak to the next.
    let keys = ["master_weights.w", "b"];
    assert_eq!(mapped(&["w_fp32_master_0", "w_moment1_0", "x"], &keys, ""), ["master_weights.w", "-", "-"]);
    assert_eq!(mapped(&["w_moment1_0", "x", "w_fp32_master_0"], &keys, ""), ["-", "-", "master_weights.w"]);
    assert_eq!(mapped(&["w_fp32_master_"], &keys, ""), ["-"]);
    assert_eq!(mapped(&["w_fp32_master_01"], &keys, ""), ["-"]);
    // A key that a name takes by itself is not there for another.
    let both = ["master_weights.w", "w_fp32_master_0"];
    assert_eq!(mapped(&both, &both, ""), both);
    // PaddlePaddle/Paddle#32926: another counter of an accumulator is another accumulator.
    assert_eq!(mapped(&["fc_0.w_0_velocity_1"], &["fc_0.w_0_velocity_0"], ""), ["-"]);
}

#[test]
fn what_could_be_several_things_is_said() {
    let manifest_of = |keys: &[&str]| manifest(keys);
    let m = manifest_of(&["opt.master_weights.a.w", "opt.a.master_weights.w"]);
    let map = map_names(&["opt.a.w_fp32_master_0"], &[&m], &Rules::default());
    assert_eq!((map.keys[0].clone(), map.ambiguous.len()), (None, 1));
    assert_eq!(map.ambiguous[0].candidates, ["opt.master_weights.a.w", "opt.a.master_weights.w"]);
    // Two names for one key.
    let m = manifest_of(&["master_weights.w"]);
    let map = map_names(&["w_fp32_master_1", "w_fp32_master_0"], &[&m], &Rules::default());
    assert_eq!(map.keys, [None, None]);
    assert_eq!(map.ambiguous[0].candidates, ["w_fp32_master_1", "w_fp32_master_0"]);
    // One key in two files.
    let (a, b) = (manifest_of(&["w"]), manifest_of(&["w"]));
    let map = map_names(&["w"], &[&a, &b], &Rules::default());
    assert_eq!(map.ambiguous[0].why, "two keys have this name");
    // Two keys that a rule gives one name.
    let m = manifest_of(&["x.w", "w"]);
    assert_eq!(map_names(&["w"], &[&m], &rules("prefix x. =")).ambiguous.len(), 1);
}

#[test]
fn rules_rename_keys_and_the_first_that_fits_counts() {
    let text = "# a comment\nfc.weight = linear_0.w_0\nprefix model. =\nregex ^layers\\.(\\d+)\\. = encoder.$1.\nprefix layers. = never.\n";
    let keys = ["fc.weight", "model.b", "layers.3.w", "same"];
    let wanted = ["linear_0.w_0", "b", "encoder.3.w", "same"];
    assert_eq!(mapped(&wanted, &keys, text), keys);
    let m = manifest(&keys);
    let map = map_names(&wanted, &[&m], &rules(text));
    let whys: Vec<String> = map.keys.iter().map(|k| k.as_ref().unwrap().1.to_string()).collect();
    assert_eq!(whys[1], "rule `prefix model. = `");
    assert_eq!(whys[3], "the same name");
    // A key that is renamed has lost its old name; its master form is that of the new one.
    assert_eq!(mapped(&["model.b"], &keys, text), ["-"]);
    assert_eq!(mapped(&["b_fp32_master_0"], &["model.master_weights.b"], text), ["model.master_weights.b"]);
    for (bad, what) in [
        ("a b", "is not `FROM = TO`"),
        ("regex ( = x", "open group"),
        (" = x", "is not `FROM = TO`"),
        ("a =", "empty name"),
    ] {
        let error = Rules::parse(bad).unwrap_err();
        assert!(error.to_string().contains(what), "{bad:?}: {error}");
    }
}

#[test]
fn the_files_own_table_is_followed() {
    let entries = vec![entry("0.weight", DType::F32, &[2]), entry("0.bias", DType::F32, &[2])];
    let alias = vec![Some("linear_0.w_0".to_owned()), Some("linear_0.b_0".to_owned())];
    let manifest = Manifest::of(&Bare(entries, alias));
    let map = map_names(&["linear_0.b_0", "0.weight"], &[&manifest], &Rules::default());
    assert_eq!(map.keys[0].as_ref().unwrap().1, Why::FileTable);
    assert_eq!(map.keys[1].as_ref().unwrap().1, Why::Equal);
    // Taken by its own name, it is not there for its other one.
    let map = map_names(&["0.weight", "linear_0.w_0"], &[&manifest], &Rules::default());
    assert_eq!(map.keys[1], None);
}

// ---- plans

fn cell(name: &str, role: Role, dtype: DType) -> Cell {
    Cell { name: name.to_owned(), role, dtype, also: None, shape: vec![2] }
}

fn pair() -> Vec<Cell> {
    vec![
        cell("w", Role::Param { master: Some(1) }, DType::F16),
        cell("w_fp32_master_0", Role::Master { param: 0 }, DType::F32),
    ]
}

fn planned(cells: &[Cell], entries: &[(&str, DType, &[u64])], policy: &Policy) -> Plan {
    let entries = entries.iter().map(|(n, d, s)| entry(n, *d, s)).collect();
    plan(cells, &[&Manifest::of(&Bare(entries, Vec::new()))], policy)
}

fn shown(cells: &[Cell], plan: &Plan) -> Vec<String> {
    let mut out: Vec<String> = plan
        .rows
        .iter()
        .map(|r| match &r.source {
            Source::Entry(k) => format!("{} := {}", cells[r.cell].name, k.entry),
            Source::FromParam(k) => format!("{} := param {}", cells[r.cell].name, k.entry),
            Source::FromMaster { entry, check } => {
                format!("{} := master {} check {:?}", cells[r.cell].name, entry.entry, check.map(|c| c.entry))
            }
        })
        .collect();
    out.extend(plan.problems.iter().map(|p| p.to_string()));
    out
}

#[test]
fn a_pair_follows_what_the_checkpoint_brings() {
    let cells = pair();
    let strict = Policy::default();
    let show = |entries: &[(&str, DType, &[u64])], policy: &Policy| shown(&cells, &planned(&cells, entries, policy));
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        assert_eq!(show(&[("w", dtype, &[2])], &strict), ["w := 0", "w_fp32_master_0 := param 0"]);
    }
    assert_eq!(
        show(&[("w", DType::F64, &[2])], &strict)[0],
        "`w` takes f32, f16 or bf16 (it has a master), and `w` is f64"
    );
    let master = ("master_weights.w", DType::F32, &[2][..]);
    assert_eq!(show(&[master], &strict), ["w := master 0 check None", "w_fp32_master_0 := 0"]);
    let both = [("w", DType::F16, &[2][..]), master];
    assert_eq!(show(&both, &strict), ["w := master 1 check Some(0)", "w_fp32_master_0 := 1"]);
    let policy = Policy { on_conflict: OnConflict::Error, ..Policy::default() };
    assert_eq!(show(&both, &policy), ["w := master 1 check Some(0)", "w_fp32_master_0 := 1"]);
    // PaddlePaddle/PaddleNLP#9540: a checkpoint without masters, and a user who wants them.
    let policy = Policy { require_masters: true, ..Policy::default() };
    assert!(show(&[("w", DType::F32, &[2])], &policy).contains(
        &"the master `w_fp32_master_0` of `w` is not in the checkpoint, and masters are required".to_owned()
    ));
    // Parameters alone: the master follows; its entry is left alone.
    let params = Policy { which: Which::Params, ..Policy::default() };
    let plan = planned(&cells, &both, &params);
    assert_eq!(shown(&cells, &plan), ["w := 0", "w_fp32_master_0 := param 0"]);
    assert_eq!(plan.left.len(), 1);
    let optimizer = Policy { which: Which::Optimizer, ..Policy::default() };
    let plan = planned(&cells, &both, &optimizer);
    assert_eq!(shown(&cells, &plan), ["w := master 1 check None", "w_fp32_master_0 := 1"]);
    // Nothing at all: one finding, about the parameter.
    assert_eq!(show(&[], &strict), ["`w` is not in the checkpoint"]);
}

/// PaddlePaddle/Paddle#73749, #32926 and pytorch/pytorch#148252: both sides are told, nearest beside, and each
/// has a policy of its own.
#[test]
fn missing_and_unexpected_are_told_side_by_side() {
    let cells = vec![
        cell("model.w", Role::Param { master: None }, DType::F32),
        cell("fc_0.w_0_velocity_1", Role::Other, DType::F32),
    ];
    let entries = [("w", DType::F32, &[2][..]), ("fc_0.w_0_velocity_0", DType::F32, &[2])];
    let plan = planned(&cells, &entries, &Policy::default());
    assert!(!plan.is_ok() && plan.rows.is_empty());
    let shown = shown(&cells, &plan);
    assert_eq!(
        shown,
        [
            "`model.w` is not in the checkpoint; nearest there: `w`",
            "`fc_0.w_0_velocity_1` is not in the checkpoint; nearest there: `fc_0.w_0_velocity_0`",
            "the program has no cell for the key `w`; nearest here: `model.w`",
            "the program has no cell for the key `fc_0.w_0_velocity_0`; nearest here: `fc_0.w_0_velocity_1`",
        ]
    );
    let missing = Policy { allow_missing: true, ..Policy::default() };
    let plan = planned(&cells, &entries, &missing);
    assert!(plan.problems.iter().all(|p| matches!(p, Problem::Unexpected { .. })));
    assert_eq!(plan.kept, [0, 1]);
    let unexpected = Policy { allow_unexpected: true, ..Policy::default() };
    let plan = planned(&cells, &entries, &unexpected);
    assert!(plan.problems.iter().all(|p| matches!(p, Problem::Missing { .. })));
    let rule = Policy { rules: rules("w = model.w\nregex velocity_0$ = velocity_1"), ..Policy::default() };
    assert!(planned(&cells, &entries, &rule).is_ok());
}

/// pytorch/pytorch#187138, #141571 and NVIDIA/TensorRT-Edge-LLM#144: no silent cast, no corner of a larger
/// tensor, no other dtype in a cell.
#[test]
fn shapes_and_types_are_compared() {
    let cells = vec![cell("w", Role::Param { master: None }, DType::BF16)];
    let plan = planned(&cells, &[("w", DType::F32, &[2])], &Policy::default());
    assert_eq!(shown(&cells, &plan), ["`w` takes bf16, and `w` is f32"]);
    let cast = Policy { cast: true, ..Policy::default() };
    assert!(planned(&cells, &[("w", DType::F32, &[2])], &cast).is_ok());
    for shape in [&[4][..], &[2, 2], &[], &[0]] {
        let plan = planned(&cells, &[("w", DType::BF16, shape)], &cast);
        assert_eq!(shown(&cells, &plan), [format!("`w` is [2] here, and `w` is {shape:?}")]);
    }
    let open = vec![Cell { shape: vec![-1, 3], ..cell("w", Role::Other, DType::F32) }];
    assert!(planned(&open, &[("w", DType::F32, &[7, 3])], &Policy::default()).is_ok());
    assert!(!planned(&open, &[("w", DType::F32, &[7, 4])], &Policy::default()).is_ok());
}

#[test]
fn real_state_dicts_fit_a_program_by_their_tables() {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/ckpt/optimizer");
    let params = ckpt::open(&dir.join("Adam.master.float16.pdparams")).unwrap();
    let optimizer = ckpt::open(&dir.join("Adam.master.float16.protocol4.pdopt")).unwrap();
    let manifests = [Manifest::of(&*params), Manifest::of(&*optimizer)];
    let mut cells = Vec::new();
    for (name, shape) in [
        ("linear_0.w_0", [8, 16].to_vec()),
        ("linear_0.b_0", vec![16]),
        ("linear_1.w_0", vec![16, 1]),
        ("linear_1.b_0", vec![1]),
    ] {
        let at = cells.len();
        let push = |cells: &mut Vec<Cell>, name: String, role, dtype, shape: &[i64]| {
            cells.push(Cell { name, role, dtype, also: None, shape: shape.to_vec() });
        };
        push(&mut cells, name.to_owned(), Role::Param { master: Some(at + 1) }, DType::F16, &shape);
        push(&mut cells, format!("{name}_fp32_master_1"), Role::Master { param: at }, DType::F32, &shape);
        for (kind, own) in [("moment1", true), ("moment2", true), ("beta1_pow_acc", false), ("beta2_pow_acc", false)] {
            let shape: &[i64] = if own { &shape } else { &[1] };
            push(&mut cells, format!("{name}_fp32_master_0_{kind}_0"), Role::Other, DType::F32, shape);
        }
    }
    let plan = plan(&cells, &[&manifests[0], &manifests[1]], &Policy::default());
    assert_eq!(plan.problems, []);
    assert_eq!(plan.rows.len(), cells.len());
    assert_eq!(plan.rows.iter().filter(|r| r.why == Why::DynamicMaster).count(), 8, "four masters, four parameters");
}
