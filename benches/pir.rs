//! How fast are programs of Paddle 3.x read and written, beside `serde_json::Value` on the same text?
//!
//! `cargo bench --bench pir [-- N_OPS]` makes a job of 100,000 startup ops in the shape of real ones (a weight:
//! shape, bounds, uniform, cast, name, master, name) and its main. Medians of wall time in one run; the result
//! is compared with the input. Then the proof and the passes on the same job.

mod shared;

use mastercast::analysis::coherence;
use mastercast::ir::{Program, Section};
use mastercast::paddle::pir::{export, import, read_program};
use mastercast::passes::{ManagerOptions, PassCx, PassManager};
use mastercast::verify::{Checks, verify};
use shared::time;
use std::fmt::Write;
use std::hint::black_box;

const RUNS: usize = 7;
const FLAG: &str = "{\"AT\":{\"#\":\"0.a_array\",\"D\":[{\"#\":\"0.a_bool\",\"D\":true}]},\"N\":";

fn attr(kind: &str, data: &str, name: &str) -> String {
    format!("{{\"AT\":{{\"#\":\"{kind}\",\"D\":{data}}},\"N\":\"{name}\"}}")
}

fn op(out: &mut String, kind: &str, attrs: &[String], operands: &[usize], result: Option<(usize, &str, &str)>) {
    let sep = if out.ends_with('[') { "" } else { "," };
    let ins: Vec<String> = operands.iter().map(|i| format!("{{\"%\":{i}}}")).collect();
    let (res, oa) = result.map_or((String::new(), String::new()), |(id, dtype, dims)| {
        let ty = format!("{{\"#\":\"0.t_dtensor\",\"D\":[{{\"#\":\"0.t_{dtype}\"}},[{dims}],\"NCHW\",[],0]}}");
        (format!("{{\"%\":{id},\"TT\":{ty}}}"), format!("{FLAG}\"persistable\"}},{FLAG}\"stop_gradient\"}}"))
    });
    let _ = write!(
        out,
        "{sep}{{\"#\":\"{kind}\",\"A\":[{}],\"I\":[{}],\"O\":[{res}],\"OA\":[{oa}]}}",
        attrs.join(","),
        ins.join(",")
    );
}

const HEAD: &str = "{\"base_code\":{\"magic\":\"pir\",\"trainable\":true,\"version\":4},\"program\":{\"regions\":[\
    {\"#\":\"region_0\",\"blocks\":[{\"#\":\"block_0\",\"args\":[],\"ops\":[";

/// A startup of this many ops, and the main that trains what it makes.
fn job(ops: usize) -> (String, String) {
    let (mut s, mut m, mut id) = (String::from(HEAD), String::from(HEAD), 1);
    let place = attr("1.a_place", "[0,0,\"\"]", "place");
    let dtype = |d: &str| attr("1.a_dtype", &format!("\"{d}\""), "dtype");
    let text = |t: &str| format!("\"{t}\"");
    for i in 0..ops / 8 {
        let (w, master) = (format!("linear_{i}.w_0"), format!("linear_{i}.w_0_fp32_master_0"));
        let dims = "{\"#\":\"0.a_i64\",\"D\":8},{\"#\":\"0.a_i64\",\"D\":6}";
        let shape = [attr("0.a_array", &format!("[{dims}]"), "value"), dtype("int64"), place.clone()];
        op(&mut s, "1.full_int_array", &shape, &[], Some((id, "i64", "2")));
        for (k, v) in ["-0.6546536684036255", "0.6546536684036255"].iter().enumerate() {
            let full =
                [attr("1.a_intarray", "[1]", "shape"), attr("0.a_f64", v, "value"), dtype("float32"), place.clone()];
            op(&mut s, "1.full", &full, &[], Some((id + 1 + k, "f32", "1")));
        }
        let uniform = [dtype("float32"), attr("0.a_i32", "0", "seed"), place.clone()];
        op(&mut s, "1.uniform", &uniform, &[id, id + 1, id + 2], Some((id + 3, "f32", "8,6")));
        op(&mut s, "1.cast", &[dtype("bfloat16")], &[id + 3], Some((id + 4, "bf16", "8,6")));
        op(&mut s, "0.set_parameter", &[attr("0.a_str", &text(&w), "parameter_name")], &[id + 4], None);
        op(&mut s, "1.cast", &[dtype("float32")], &[id + 4], Some((id + 5, "f32", "8,6")));
        op(&mut s, "0.shadow_output", &[attr("0.a_str", &text(&master), "output_name")], &[id + 5], None);
        id += 6;
    }
    let mut id = 1;
    for i in 0..ops / 8 {
        let (w, master) = (format!("linear_{i}.w_0"), format!("linear_{i}.w_0_fp32_master_0"));
        for (k, (cell, dt, long)) in [(&w, "bf16", "bfloat16"), (&master, "f32", "float32")].into_iter().enumerate() {
            let data = [
                attr("0.a_str", &text(cell), "name"),
                attr("1.a_intarray", "[8,6]", "shape"),
                dtype(long),
                place.clone(),
            ];
            op(&mut m, "1.data", &data, &[], Some((id + k, dt, "8,6")));
        }
        op(&mut m, "1.relu", &[], &[id], Some((id + 2, "bf16", "8,6")));
        let kept = m.len();
        op(
            &mut m,
            "1.sgd_",
            &[attr("0.a_bool", "true", "multi_precision")],
            &[id, id + 1, id + 2, id + 1],
            Some((id + 3, "bf16", "8,6")),
        );
        let two = m[kept..].replacen("}],\"OA\"", &format!("}},{{\"%\":{},\"TT\":{{\"#\":\"0.t_dtensor\",\"D\":[{{\"#\":\"0.t_f32\"}},[8,6],\"NCHW\",[],0]}}}}],\"OA\"", id + 4), 1);
        m.truncate(kept);
        m.push_str(&two);
        id += 5;
    }
    for text in [&mut s, &mut m] {
        text.push_str("]}]}]}}");
    }
    (s, m)
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let ops = args.first().map_or(100_000, |a| a.parse().expect("a number of ops"));
    let (startup, main) = job(ops);
    let mb = startup.len() as f64 / 1e6;
    println!("{ops} ops, {mb:.1} MB");
    let read = |text: &str| {
        let mut p = Program::new();
        import(text, Section::Startup, &mut p).expect("a program");
        p
    };
    let value: serde_json::Value = serde_json::from_str(&startup).expect("JSON");
    let program = read(&startup);
    assert!(export(&program, Section::Startup).expect("a form") == startup);
    assert!(program.extras().all(|(_, x)| x.verbatim.is_none()), "written from rows");
    let parse = [
        time(RUNS, || read(black_box(&startup))),
        time(RUNS, || serde_json::from_str::<serde_json::Value>(black_box(&startup)).expect("JSON")),
    ];
    let print = [time(RUNS, || export(&program, Section::Startup)), time(RUNS, || value.to_string())];
    let row = |what: &str, [ours, theirs]: [f64; 2]| {
        println!("{what:14} {:6.0} MB/s  {:6.0} serde_json::Value  {:5.2} x", mb / ours, mb / theirs, theirs / ours);
    };
    row("parse", parse);
    row("print", print);
    row("parse + print", [parse[0] + print[0], parse[1] + print[1]]);

    let job = read_program(Some(&startup), Some(&main)).expect("a job");
    let prove = time(3, || coherence(&job));
    let check = time(3, || verify(&job, Checks::ALL));
    let passes = time(3, || {
        let mut p = job.clone();
        let manager = PassManager::parse("master-casts,load-order,resync,lower").expect("passes");
        let options = ManagerOptions { verify_each: false, stop_after: None };
        manager.run(&mut p, &mut PassCx::default(), options, |_, _| {}).expect("passes");
        assert!(p.op_rows() >= ops);
        p
    });
    println!(
        "job of {} ops: verify {check:.3} s, proof {prove:.3} s, passes {passes:.3} s; {:.2}, {:.2} and {:.2} of reading startup",
        job.op_rows(),
        check / parse[0],
        prove / parse[0],
        passes / parse[0]
    );
}
