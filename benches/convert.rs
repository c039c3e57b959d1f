//! How near are the conversions to a copy? Medians over reused 256 MB, each path in turn, as
//! ratios to `memcpy` in the same run, counting bytes read and written.
//!
//! `cargo bench --bench convert [-- ROUNDS]`

use mastercast::convert::{self, Narrowing, Path};
use mastercast::ir::DType;
use std::hint::black_box;
use std::time::Instant;

/// float32 elements in 256 MB
const N: usize = 64 << 20;

type Job<'a> = (String, f64, Box<dyn FnMut() + 'a>);

fn main() {
    let rounds = std::env::args().filter_map(|a| a.parse().ok()).next().unwrap_or(15usize).max(1);
    // Mixed signs, exponents and mantissas; all pages touched before anything is timed.
    let wide: Vec<f32> =
        (0..N as u32).map(|i| (i.wrapping_mul(0x9e37_79b1) as i32 as f32) * 2f32.powi(-28 - (i % 8) as i32)).collect();
    let mut narrow_src = vec![0u16; N];
    convert::narrow(DType::BF16, &wide, &mut narrow_src, Narrowing::NearestEven);
    let (wide, narrow_src) = (&wide[..], &narrow_src[..]);
    let copy_dst = std::cell::RefCell::new(vec![1f32; N]);
    let narrow_dst = std::cell::RefCell::new(vec![1u16; N]);

    let mut jobs: Vec<Job<'_>> = vec![(
        "memcpy".into(),
        (N * 8) as f64,
        Box::new(|| {
            copy_dst.borrow_mut().copy_from_slice(black_box(wide));
        }),
    )];
    for path in Path::ALL.into_iter().filter(|p| p.available()) {
        for dtype in [DType::F16, DType::BF16] {
            let (wide_out, narrow_out) = (&copy_dst, &narrow_dst);
            jobs.push((
                format!("f32 -> {dtype} {path:?}"),
                (N * 6) as f64,
                Box::new(move || {
                    let dst = &mut narrow_out.borrow_mut()[..];
                    convert::narrow_on(path, dtype, black_box(wide), dst, Narrowing::NearestEven);
                }),
            ));
            jobs.push((
                format!("{dtype} -> f32 {path:?}"),
                (N * 6) as f64,
                Box::new(move || {
                    convert::widen_on(path, dtype, black_box(narrow_src), &mut wide_out.borrow_mut()[..]);
                }),
            ));
        }
    }
    // One round runs every job once, so that all see the same state of a shared machine.
    let mut times = vec![Vec::with_capacity(rounds); jobs.len()];
    for round in 0..=rounds {
        for (i, (_, _, run)) in jobs.iter_mut().enumerate() {
            let start = Instant::now();
            run();
            let seconds = start.elapsed().as_secs_f64();
            if round > 0 {
                times[i].push(seconds);
            }
        }
    }
    println!("256 MB of float32, 1 thread, median of {rounds}; best path here: {:?}", Path::best());
    println!("{:24} {:>8} {:>12}", "", "GB/s", "of memcpy");
    let rate = |i: usize| {
        let mut t = times[i].clone();
        t.sort_by(f64::total_cmp);
        jobs[i].1 / t[t.len() / 2] / 1e9
    };
    for (i, (name, ..)) in jobs.iter().enumerate() {
        println!("{name:24} {:8.1} {:12.2}", rate(i), rate(i) / rate(0));
    }
}
