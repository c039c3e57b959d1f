//! Is the plan of a sharded load right, from metadata and listings alone? And does any grid become any other?

mod ckpt_common;

use ckpt_common::values;
use mastercast::ckpt::names::Rules;
use mastercast::ckpt::rect::Rect;
use mastercast::ckpt::shards::{ShardPlan, ShardProblem, Want, plan_shards, run_in_process};
use mastercast::ckpt::{DistFlavour, DistMetadata, DistShard, DistTensor, DistWriter, ShardData, TensorData};
use mastercast::ir::DType;
use proptest::prelude::*;
use std::path::Path;

fn shard(file: usize, offset: &[u64], shape: &[u64]) -> DistShard {
    DistShard { rect: Rect { offset: offset.to_vec(), shape: shape.to_vec() }, flat: None, file }
}

fn tensor(key: &str, shape: &[u64], shards: Vec<DistShard>) -> DistTensor {
    DistTensor { key: key.to_owned(), dtype: Some(DType::F32), shape: shape.to_vec(), shards }
}

fn one_file(keys: &[&str]) -> DistMetadata {
    let tensors = keys.iter().map(|k| tensor(k, &[4], vec![shard(0, &[0], &[4])])).collect();
    DistMetadata { id: 0, tensors, files: vec!["0_0.distcp".to_owned()] }
}

fn all(names: &[&str], rank: usize) -> Vec<Want> {
    names.iter().map(|n| Want { rank, name: (*n).to_owned(), rect: None }).collect()
}

fn files(names: &[&str]) -> Vec<String> {
    names.iter().map(|n| (*n).to_owned()).collect()
}

fn planned(metadata: &DistMetadata, wants: &[Want], visible: &[Vec<String>]) -> ShardPlan {
    plan_shards(metadata, wants, visible, &Rules::default())
}

#[test]
fn files_missing_names_and_mappings_are_the_plan() {
    let metadata = one_file(&["w1", "w2"]);
    let visible = [files(&["0_0.distcp"])];
    let plan = planned(&metadata, &all(&["w1", "w2"], 0), &visible);
    assert_eq!(plan.rank_to_files, [(0, files(&["0_0.distcp"]))].into());
    assert!(plan.missing.is_empty() && plan.mapping.is_empty() && plan.is_ok());
    let plan = planned(&metadata, &all(&["w1", "w3"], 0), &visible);
    assert_eq!((&plan.rank_to_files[&0], &plan.missing), (&files(&["0_0.distcp"]), &files(&["w3"])));
    let plan = planned(&metadata, &all(&["w3", "w4"], 0), &visible);
    assert!(plan.rank_to_files.is_empty());
    assert_eq!(plan.missing, ["w3", "w4"]);
    // Names before files: a file that holds masters under their dynamic names is read.
    let metadata = one_file(&["opt.master_weights.linear_0.w_0"]);
    let plan = planned(&metadata, &all(&["opt.linear_0.w_0_fp32_master_0"], 0), &visible);
    assert_eq!(plan.rank_to_files[&0], ["0_0.distcp"]);
    assert_eq!(plan.mapping["opt.linear_0.w_0_fp32_master_0"], "opt.master_weights.linear_0.w_0");
}

#[test]
fn each_file_is_read_once_by_a_rank_that_sees_it() {
    let names: Vec<String> = (0..6).map(|r| format!("{r}_0.distcp")).collect();
    let rows = (0..6).map(|r| shard(r, &[r as u64 * 2], &[2])).collect();
    let metadata = DistMetadata { id: 0, tensors: vec![tensor("w", &[12], rows)], files: names.clone() };
    let wants: Vec<Want> = (0..3).flat_map(|rank| all(&["w"], rank)).collect();
    let plan = planned(&metadata, &wants, &[names.clone(), names.clone(), names.clone()]);
    let mut read: Vec<&String> = plan.rank_to_files.values().flatten().collect();
    assert_eq!(read.len(), 6, "each file once");
    read.sort();
    read.dedup();
    assert_eq!(read.len(), 6);
    assert!(plan.rank_to_files.values().all(|f| f.len() == 2), "balanced: {:?}", plan.rank_to_files);
    // A rank reads what it alone sees.
    let plan = planned(&metadata, &wants, &[names[..1].to_vec(), names[1..].to_vec(), Vec::new()]);
    assert_eq!(plan.rank_to_files[&0], ["0_0.distcp"]);
    assert_eq!(plan.rank_to_files[&1].len(), 5);
    // A file that nobody sees is named with its rank.
    let plan = planned(&metadata, &wants, &[names[..5].to_vec(), Vec::new(), Vec::new()]);
    assert_eq!(plan.problems, [ShardProblem::Invisible { file: "5_0.distcp".to_owned(), rank: "5".to_owned() }]);
    // Only what is wanted is read.
    let want = Want { rank: 0, name: "w".to_owned(), rect: Some(Rect { offset: vec![3], shape: vec![2] }) };
    let plan = planned(&metadata, &[want], &[names]);
    assert_eq!(plan.rank_to_files[&0], ["1_0.distcp", "2_0.distcp"]);
}

#[test]
fn holes_and_parts_outside_are_named() {
    let metadata = DistMetadata {
        id: 0,
        tensors: vec![tensor("w", &[4, 4], vec![shard(0, &[0, 0], &[4, 2]), shard(0, &[0, 3], &[4, 1])])],
        files: files(&["0_0.distcp"]),
    };
    let visible = [files(&["0_0.distcp"])];
    let plan = planned(&metadata, &all(&["w"], 0), &visible);
    assert_eq!(
        plan.problems[0].to_string(),
        "no shard holds [0..4, 2..3] of `w`, which rank 0 wants; 4 elements are missing"
    );
    // The part that is there can be read.
    let part = |offset: &[u64], shape: &[u64]| {
        let rect = Some(Rect { offset: offset.to_vec(), shape: shape.to_vec() });
        planned(&metadata, &[Want { rank: 0, name: "w".to_owned(), rect }], &visible)
    };
    assert!(part(&[1, 0], &[2, 2]).is_ok());
    assert!(part(&[3, 3], &[2, 1]).problems[0].to_string().contains("wants [3..5, 3..4] of `w`, which is [4, 4]"));
    assert!(part(&[0, 0], &[4]).problems[0].to_string().contains("which is [4, 4]"));
    assert!(part(&[0, 0], &[0, 4]).is_ok(), "nothing is wanted");
}

/// A replica in a file that nobody sees does not matter when another is seen.
#[test]
fn a_replica_that_is_seen_is_taken() {
    let metadata = DistMetadata {
        id: 0,
        tensors: vec![tensor("w", &[4], vec![shard(0, &[0], &[4]), shard(1, &[0], &[4])])],
        files: files(&["0_0.distcp", "1_0.distcp"]),
    };
    let plan = planned(&metadata, &all(&["w"], 0), &[files(&["1_0.distcp"])]);
    assert!(plan.is_ok());
    assert_eq!(plan.rank_to_files[&0], ["1_0.distcp"]);
    assert!(plan.pieces.iter().all(|p| !p.check));
}

/// A grid: cuts of each dimension.
fn grid(shape: &[u64], cuts: &[Vec<u64>]) -> Vec<Rect> {
    let mut out = vec![Rect { offset: Vec::new(), shape: Vec::new() }];
    for (d, cuts) in cuts.iter().enumerate() {
        let mut at: Vec<u64> = cuts.iter().map(|c| c % (shape[d] + 1)).chain([0, shape[d]]).collect();
        at.sort_unstable();
        out = out
            .iter()
            .flat_map(|r| {
                at.windows(2).map(|w| Rect {
                    offset: [&r.offset[..], &[w[0]]].concat(),
                    shape: [&r.shape[..], &[w[1] - w[0]]].concat(),
                })
            })
            .collect();
    }
    out
}

fn write(dir: &Path, shape: &[u64], parts: &[Rect], flat: bool) -> DistMetadata {
    let mut w = DistWriter::create(dir, DistFlavour::V3).unwrap();
    let total: u64 = shape.iter().product();
    for (rank, rect) in parts.iter().enumerate() {
        let (rect, range, data) = if flat {
            // The same count of elements, cut from the flattened tensor, the last with padding.
            let start: u64 = parts[..rank].iter().map(Rect::count).sum();
            let range = start..start + rect.count() + u64::from(rank + 1 == parts.len());
            let whole = Rect::whole(shape);
            let all = values(shape, &whole);
            let mut data = all[(start * 4) as usize..(range.end.min(total) * 4) as usize].to_vec();
            data.resize(((range.end - start) * 4) as usize, 0xff);
            (whole, Some(range), data)
        } else {
            (rect.clone(), None, values(shape, rect))
        };
        let dims = range.as_ref().map_or(rect.shape.clone(), |r| vec![r.end - r.start]);
        let data = TensorData::new("w", DType::F32, dims, data);
        w.rank(rank as u64, [ShardData { data, shape: shape.to_vec(), rect, flat: range }]).unwrap();
    }
    DistMetadata::open(&w.finish().unwrap()).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Any grid, or a flattened one with padding, to any other grid, over any number of ranks.
    #[test]
    fn any_grid_becomes_any_other(
        shape in prop::collection::vec(1u64..6, 1..4),
        from in prop::collection::vec(prop::collection::vec(0u64..9, 0..3), 3),
        to in prop::collection::vec(prop::collection::vec(0u64..9, 0..3), 3),
        flat in any::<bool>(),
        ranks in 1usize..5,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (grid(&shape, &from[..shape.len()]), grid(&shape, &to[..shape.len()]));
        let metadata = write(dir.path(), &shape, &from, flat);
        let wants: Vec<Want> = to
            .iter()
            .enumerate()
            .map(|(i, r)| Want { rank: i % ranks, name: "w".to_owned(), rect: Some(r.clone()) })
            .collect();
        let plan = planned(&metadata, &wants, &vec![metadata.files.clone(); ranks]);
        prop_assert!(plan.is_ok(), "{:?}", plan.problems);
        let got = run_in_process(dir.path(), &metadata, &wants, &plan).unwrap();
        for (part, rect) in got.iter().zip(&to) {
            prop_assert_eq!(part, &values(&shape, rect));
        }
        // The same plan again.
        prop_assert_eq!(planned(&metadata, &wants, &vec![metadata.files.clone(); ranks]), plan);
    }
}

#[test]
fn overlaps_that_differ_are_found() {
    let dir = tempfile::tempdir().unwrap();
    for (spoil, agrees) in [(false, true), (true, false)] {
        let shape = [4];
        let mut w = DistWriter::create(dir.path(), DistFlavour::V3).unwrap();
        for (rank, (at, n)) in [(0, 3), (1, 3)].into_iter().enumerate() {
            let rect = Rect { offset: vec![at], shape: vec![n] };
            let mut data = values(&shape, &rect);
            data[4] ^= u8::from(spoil && rank == 1);
            let data = TensorData::new("w", DType::F32, vec![n], data);
            w.rank(rank as u64, [ShardData { data, shape: shape.to_vec(), rect, flat: None }]).unwrap();
        }
        let metadata = DistMetadata::open(&w.finish().unwrap()).unwrap();
        let wants = all(&["w"], 0);
        let plan = planned(&metadata, &wants, std::slice::from_ref(&metadata.files));
        let outcome = run_in_process(dir.path(), &metadata, &wants, &plan);
        assert_eq!(outcome.is_ok(), agrees, "{outcome:?}");
    }
}
