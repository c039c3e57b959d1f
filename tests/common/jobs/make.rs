//! Which jobs come out of the generator, and how often each thing in them?

use super::{C, Cell, FILES, FLAGS, Job, Pair, Profile, Rng, Step};
use mastercast::ir::DType;

const LOW: [DType; 2] = [DType::F16, DType::BF16];
const FLOATS: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// Interesting and ordinary numbers, most of them not exact in 16 bits.
pub fn number(rng: &mut Rng) -> f32 {
    match rng.below(40) {
        0 => 0.0,
        1 => -0.0,
        2 => 70000.0,
        3 => 3.0e-8,
        4 => -1.0e-40,
        5 => 65519.99,
        6 => f32::MAX,
        7 => 1.0 + 1.0 / 2048.0,
        _ => (rng.below(1 << 24) as f32 / (1 << 22) as f32) - 2.0,
    }
}

impl Job {
    /// The job of a seed.
    pub fn random(seed: u64, profile: Profile) -> Job {
        let mut rng = Rng::new(seed);
        let rng = &mut rng;
        let (mut cells, mut pairs) = (Vec::new(), Vec::new());
        let n = if profile == Profile::Dense { 1 } else { 1 + rng.below(3) };
        let cell = |name: String, startup, main| Cell { name, startup, main, persistable: true, tall: false };
        for i in 0..n {
            let low = *rng.pick(&LOW);
            let counter = if rng.percent(80) { 0 } else { rng.below(12) };
            let name = format!("fc_{i}.w_0");
            cells.push(cell(name.clone(), if rng.percent(85) { DType::F32 } else { low }, low));
            cells.push(cell(format!("{name}_fp32_master_{counter}"), DType::F32, DType::F32));
            pairs.push(Pair { param: 2 * i, master: 2 * i + 1, low });
        }
        let low = pairs[0].low;
        cells.push(cell("copy_0".into(), DType::F32, DType::F32));
        cells.push(cell("copy_1".into(), DType::F32, DType::F32));
        cells.push(cell("copy_2".into(), low, low));
        cells.push(cell("single_0".into(), DType::F32, *rng.pick(&LOW)));
        cells.push(cell("norm_0".into(), DType::F32, DType::F32));
        cells.push(Cell { tall: true, ..cell("fused_0".into(), DType::F32, DType::F32) });
        cells.push(Cell { tall: true, ..cell("fused_1".into(), low, low) });
        cells.push(Cell { persistable: false, ..cell("tmp_0".into(), DType::F32, DType::F32) });
        cells.push(Cell { persistable: false, ..cell("tmp_1".into(), low, low) });
        let stored = (0..=FILES)
            .map(|_| {
                cells
                    .iter()
                    .map(|c| match rng.below(60) {
                        0 if profile == Profile::Wild => DType::F64,
                        1..12 => c.main,
                        12..24 => *rng.pick(&FLOATS),
                        _ if c.name.contains("master") => DType::F32,
                        _ => *rng.pick(&[DType::F32, c.main]),
                    })
                    .collect()
            })
            .collect();
        let mut job = Job {
            seed,
            wild: profile != Profile::Plain,
            cells,
            pairs,
            startup: Vec::new(),
            main: Vec::new(),
            stored,
            flags: std::array::from_fn(|_| rng.percent(50)),
            limits: std::array::from_fn(|_| rng.below(4) as u8),
            lists: rng.percent(50),
        };
        let mut make = Make { rng, job: &job, profile };
        let (startup, main) = match profile {
            Profile::Dense => (make.dense_startup(), make.dense_main()),
            _ => (make.startup(), make.main()),
        };
        (job.startup, job.main) = (startup, main);
        job
    }
}

struct Make<'a> {
    rng: &'a mut Rng,
    job: &'a Job,
    profile: Profile,
}

impl Make<'_> {
    fn pair(&mut self) -> usize {
        self.rng.below(self.job.pairs.len())
    }

    /// A cell of ordinary height: mostly of a pair.
    fn cell(&mut self) -> C {
        let pair = self.pair();
        let pair = &self.job.pairs[pair];
        let first_other = 2 * self.job.pairs.len();
        match self.rng.below(100) {
            0..35 => pair.param,
            35..70 => pair.master,
            _ => loop {
                let c = first_other + self.rng.below(self.job.cells.len() - first_other);
                if !self.job.cells[c].tall {
                    break c;
                }
            },
        }
    }

    fn tall(&mut self) -> C {
        let tall: Vec<C> = (0..self.job.cells.len()).filter(|&c| self.job.cells[c].tall).collect();
        *self.rng.pick(&tall)
    }

    fn float(&mut self) -> DType {
        match self.rng.below(24) {
            0 => DType::F64,
            1..12 => DType::F32,
            k => LOW[k % 2],
        }
    }

    fn startup(&mut self) -> Vec<Step> {
        let mut steps = Vec::new();
        // In some jobs a few cells have no initialiser.
        let all = self.rng.percent(85);
        for c in 0..self.job.cells.len() {
            let master = self.job.pairs.iter().any(|p| p.master == c);
            if all || self.rng.percent(if master { 55 } else { 93 }) {
                let spec = &self.job.cells[c];
                let dtype = if self.rng.percent(95) { spec.startup } else { self.float() };
                let (random, value) = (!master && self.rng.percent(70), number(self.rng));
                steps.push(Step::Init { out: c, dtype, random, value });
            }
        }
        let inits = steps.len();
        for p in self.job.pairs.clone() {
            if self.rng.percent(85) {
                steps.push(Step::Cast { x: p.param, out: p.master, to: DType::F32 });
            }
        }
        for _ in 0..self.rng.below(4) {
            steps.push(self.derive());
        }
        for _ in 0..self.rng.below(3) {
            let load = self.load();
            steps.push(load);
        }
        for low in LOW {
            let cells: Vec<C> = (0..self.job.cells.len())
                .filter(|&c| self.job.cells[c].main == low && self.job.cells[c].persistable && !self.job.cells[c].tall)
                .collect();
            if !cells.is_empty() && self.rng.percent(92) {
                let rewrite = self.rewrites(low, 20);
                steps.push(Step::AmpInit { cells, rewrite, dtype: low });
            }
        }
        let noise = match self.profile {
            Profile::Plain => self.rng.below(4),
            _ => [0, 0, 1, 1, 2, 3, 5, 9][self.rng.below(8)],
        };
        for _ in 0..noise {
            let step = match self.profile {
                Profile::Plain => self.load(),
                _ => self.step(false, 0),
            };
            // What reads a cell before it has a value only stops the run.
            let anywhere = matches!(step, Step::Load { .. } | Step::Init { .. }) || self.rng.percent(6);
            let first = if anywhere { 0 } else { inits };
            let at = first + self.rng.below(steps.len() + 1 - first);
            steps.insert(at, step);
        }
        // Sometimes a step stands elsewhere.
        if self.profile == Profile::Wild && self.rng.percent(30) && steps.len() > inits + 1 {
            let n = steps.len() - inits;
            let (from, to) = (inits + self.rng.below(n), inits + self.rng.below(n));
            let step = steps.remove(from);
            steps.insert(to, step);
        }
        steps
    }

    fn main(&mut self) -> Vec<Step> {
        let mut steps = Vec::new();
        for pair in 0..self.job.pairs.len() {
            if self.rng.percent(70) {
                let x = self.job.pairs[pair].param;
                let out = self.job.cells.len() - 2 + self.rng.below(2);
                steps.push(Step::Math { x, out });
            }
            if self.rng.percent(90) {
                let update = self.update(pair, 92);
                steps.push(update);
            }
        }
        let noise = match self.profile {
            Profile::Plain => 0,
            _ => [0, 0, 0, 0, 1, 1, 2, 4][self.rng.below(8)],
        };
        for _ in 0..noise {
            let step = self.step(true, 0);
            let at = self.rng.below(steps.len() + 1);
            steps.insert(at, step);
        }
        steps
    }

    fn dense_startup(&mut self) -> Vec<Step> {
        let mut steps: Vec<Step> = (0..self.job.cells.len())
            .map(|c| Step::Init { out: c, dtype: self.job.cells[c].startup, random: false, value: number(self.rng) })
            .collect();
        let n = 2 + self.rng.below(7);
        steps.extend((0..n).map(|_| self.dense(0)));
        // Most jobs end as a usual one does.
        let pair = self.job.pairs[0].clone();
        if self.rng.percent(60) {
            let direction = *self.rng.pick(&["param", "master", "auto"]);
            steps.push(Step::Resync { pair: 0, direction, policy: "master" });
        } else if self.rng.percent(50) {
            steps.push(Step::AmpInit { cells: vec![pair.param], rewrite: Vec::new(), dtype: pair.low });
        }
        steps
    }

    fn dense_main(&mut self) -> Vec<Step> {
        let n = self.rng.below(5);
        let mut steps: Vec<Step> = (0..n).map(|_| self.dense(0)).collect();
        if self.rng.percent(60) {
            let at = self.rng.below(n + 1);
            let update = self.update(0, 95);
            steps.insert(at, update);
        }
        if self.rng.percent(40) {
            let direction = *self.rng.pick(&["param", "master", "auto"]);
            steps.push(Step::Resync { pair: 0, direction, policy: "master" });
        }
        steps
    }

    /// A step on the parameter, its master, or a temporary.
    fn dense(&mut self, depth: usize) -> Step {
        let pair = self.job.pairs[0].clone();
        let (p, m, tmp) = (pair.param, pair.master, self.job.cells.len() - 2);
        let any = |this: &mut Self| *this.rng.pick(&[p, m, tmp]);
        let body = |this: &mut Self| -> Vec<Step> {
            let n = 1 + this.rng.below(3);
            (0..n).map(|_| this.dense(depth + 1)).collect()
        };
        match self.rng.below(100) {
            0..24 => {
                let outs = match self.rng.below(4) {
                    0 => vec![(m, m)],
                    1 => vec![(p, p), (m, m)],
                    2 => vec![(p, p)],
                    // One entry for several cells.
                    _ => vec![(any(self), m)],
                };
                Step::Load { file: 0, outs, annotate: self.rng.percent(50), pinned: false, as_fp16: false }
            }
            24..36 => {
                let cell = any(self);
                Step::Save { file: 0, cells: vec![cell] }
            }
            36..46 => Step::Cast { x: p, out: m, to: DType::F32 },
            46..52 => Step::Cast { x: m, out: p, to: pair.low },
            52..64 => Step::Copy { x: any(self), out: any(self) },
            64..70 => Step::AmpInit { cells: vec![p], rewrite: Vec::new(), dtype: pair.low },
            70..78 => {
                let direction = *self.rng.pick(&["param", "master", "both", "auto"]);
                Step::Resync { pair: 0, direction, policy: "master" }
            }
            78..90 if depth < 2 => Step::Cond {
                flag: self.rng.below(FLAGS) as u8,
                unknown: false,
                locals: if self.rng.percent(40) { vec![tmp] } else { Vec::new() },
                redeclare: self.rng.percent(10),
                twice: self.rng.percent(40).then(|| self.rng.below(FLAGS) as u8),
                body: body(self),
            },
            90..100 if depth < 2 => {
                let locals = if self.rng.percent(40) { vec![tmp] } else { Vec::new() };
                Step::Loop { times: self.rng.below(4) as u8, locals, body: body(self) }
            }
            _ => Step::Pure { kind: self.rng.below(3) as u8, x: any(self), out: any(self), by: 1.0 },
        }
    }

    fn update(&mut self, pair: usize, master: usize) -> Step {
        let kind = self.rng.below(4) as u8;
        let skip = (kind >= 2 && self.rng.percent(30)).then(|| self.rng.below(FLAGS) as u8);
        Step::Update { kind, pair, master: self.rng.percent(master), skip }
    }

    fn rewrites(&mut self, low: DType, percent: usize) -> Vec<usize> {
        let rewrite = self.rng.percent(percent);
        (0..self.job.pairs.len()).filter(|&i| rewrite && self.job.pairs[i].low == low && self.rng.percent(80)).collect()
    }

    /// A derived copy.
    fn derive(&mut self) -> Step {
        let first_other = 2 * self.job.pairs.len();
        let out = first_other + self.rng.below(3);
        match self.rng.below(8) {
            0 => {
                let x = self.cell();
                // Two cells of one dtype, mostly: no op joins others.
                let y = if self.profile == Profile::Plain || self.rng.percent(70) { x } else { self.cell() };
                Step::Concat { x, y, out: self.tall() }
            }
            1 => Step::Slice { x: self.tall(), out, second: self.rng.percent(50) },
            2 | 3 => Step::Pure { kind: self.rng.below(3) as u8, x: self.cell(), out, by: self.scale() },
            4 | 5 => Step::Copy { x: self.cell(), out },
            _ => Step::Cast { x: self.cell(), out, to: self.job.cells[out].main },
        }
    }

    fn scale(&mut self) -> f32 {
        *self.rng.pick(&[1.0, 0.5, 1.1, -2.0])
    }

    fn load(&mut self) -> Step {
        let pair = self.pair();
        let pair = self.job.pairs[pair].clone();
        let mut cells = match self.rng.below(10) {
            0..4 => vec![pair.param],
            4..6 => vec![pair.master],
            6..8 => vec![pair.param, pair.master],
            8 => vec![self.cell(), self.cell()],
            _ => self.job.pairs.iter().flat_map(|p| [p.param, p.master]).collect(),
        };
        cells.dedup();
        let wild = self.profile == Profile::Wild;
        let outs = cells
            .into_iter()
            .map(|c| match wild && self.rng.percent(8) {
                true => (c, self.cell()),
                false => (c, c),
            })
            .collect();
        Step::Load {
            file: self.rng.below(FILES) as u8,
            outs,
            annotate: self.rng.percent(75),
            pinned: wild && self.rng.percent(8),
            as_fp16: wild && self.rng.percent(3),
        }
    }

    fn step(&mut self, main: bool, depth: usize) -> Step {
        let control = depth < 2;
        match self.rng.below(100) {
            0..8 => {
                let (out, random) = (self.cell(), self.rng.percent(50));
                let dtype = if self.rng.percent(70) { self.job.cells[out].startup } else { self.float() };
                Step::Init { out, dtype, random, value: number(self.rng) }
            }
            8..16 => {
                let pair = self.pair();
                let pair = &self.job.pairs[pair];
                match self.rng.percent(70) {
                    true => Step::Cast { x: pair.param, out: pair.master, to: DType::F32 },
                    false => Step::Cast { x: pair.master, out: pair.param, to: pair.low },
                }
            }
            16..20 => Step::Cast { x: self.cell(), out: self.cell(), to: self.float() },
            20..24 => Step::Copy { x: self.cell(), out: self.cell() },
            24..29 => Step::Pure { kind: self.rng.below(3) as u8, x: self.cell(), out: self.cell(), by: self.scale() },
            29..34 => self.derive(),
            34..54 => self.load(),
            54 => Step::LoadCombine { outs: [self.cell(), self.cell()] },
            55..59 => Step::Save { file: self.rng.below(FILES) as u8, cells: vec![self.cell()] },
            59..67 => {
                let pair = self.pair();
                let dtype = if self.rng.percent(90) { self.job.pairs[pair].low } else { LOW[self.rng.below(2)] };
                let rewrite = self.rewrites(dtype, 35);
                let cells = if self.rng.percent(80) { vec![self.job.pairs[pair].param] } else { vec![self.cell()] };
                Step::AmpInit { cells, rewrite, dtype }
            }
            67..75 => Step::Resync {
                pair: self.pair(),
                direction: self.rng.pick::<&str>(&["param", "master", "both", "auto"]),
                policy: self.rng.pick::<&str>(&["master", "master", "master", "param", "param", "error"]),
            },
            75..78 => Step::Math { x: self.cell(), out: self.cell() },
            78..80 => {
                let n = self.rng.below(3);
                let ins = (0..n).map(|_| self.cell()).collect();
                let outs = (0..2 - n.min(1)).map(|_| self.cell()).collect();
                Step::Unknown { ins, outs, writes: self.rng.next() as u32, value: number(self.rng) }
            }
            80..86 if main => {
                let pair = self.pair();
                self.update(pair, 80)
            }
            86..94 if control => Step::Cond {
                flag: self.rng.below(FLAGS) as u8,
                unknown: self.rng.percent(8),
                locals: self.locals(),
                redeclare: self.rng.percent(10),
                twice: None,
                body: (0..1 + self.rng.below(3)).map(|_| self.step(main, depth + 1)).collect(),
            },
            94..100 if control => Step::Loop {
                times: self.rng.below(4) as u8,
                locals: self.locals(),
                body: (0..1 + self.rng.below(3)).map(|_| self.step(main, depth + 1)).collect(),
            },
            _ => self.derive(),
        }
    }

    /// Temporaries that a block declares for itself, hiding those around it.
    fn locals(&mut self) -> Vec<C> {
        let n = self.job.cells.len();
        match self.rng.percent(25) {
            true => vec![n - 2 + self.rng.below(2)],
            false => Vec::new(),
        }
    }
}
