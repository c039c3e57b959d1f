//! How are programs and schedules read? By content; everything a sub-command needs, with its findings.

use super::render::{self, Source};
use super::{Failure, Programs, Ui};
use mastercast::analysis::{Obligation, Pair, Settled};
use mastercast::ckpt::{self, Checkpoint, CkptError};
use mastercast::diag::Diagnostics;
use mastercast::ir::{F32, Program, Section};
use mastercast::ops::{Effect, Ops};
use mastercast::paddle::{pir, proto};
use mastercast::schedule::{Applied, Only, Schedule, Step, combined_names};
use mastercast::text;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;

/// What to do with a checkpoint of another format.
const OTHER_FORMATS: &str = "in Python: safetensors.numpy.save_file(paddle.load(\"x.pdparams\", return_numpy=True), \
                             \"x.safetensors\")";

/// Largest program file that is read.
const MAX_FILE: u64 = 1 << 31;

/// What a file is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileKind {
    Proto,
    Pir,
    Text,
    Json,
}

/// A program file, read.
pub struct Loaded {
    pub program: Program,
    pub kind: FileKind,
    /// the text, for source lines
    pub source: Option<(String, String)>,
    pub diagnostics: Diagnostics,
}

impl Loaded {
    pub fn source(&self) -> Option<Source<'_>> {
        self.source.as_ref().map(|(file, text)| Source { file, text })
    }
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    use std::io::Read;
    let fail = |e: std::io::Error| Failure::new(format!("{}: {e}", path.display()));
    let too_large = || Failure::new(format!("{}: larger than 2 GiB", path.display()));
    // One byte more than may be read: a pipe does not say how long it is.
    let all = |from: &mut dyn Read| {
        let mut bytes = Vec::new();
        from.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(fail)?;
        if bytes.len() as u64 > MAX_FILE { Err(too_large()) } else { Ok(bytes) }
    };
    if path.as_os_str() == "-" {
        return all(&mut std::io::stdin().lock());
    }
    let mut file = std::fs::File::open(path).map_err(fail)?;
    let meta = file.metadata().map_err(fail)?;
    if meta.is_dir() {
        return Err(Failure::new(format!("{}: is a directory, not a program", path.display())));
    }
    if is_device(&meta) {
        return Err(
            Failure::new(format!("{}: is a device, not a program", path.display())).help("`-` reads standard input")
        );
    }
    if meta.len() > MAX_FILE {
        return Err(too_large());
    }
    all(&mut file)
}

/// A text file, whole.
pub fn text_file(path: &Path) -> Result<String, Failure> {
    String::from_utf8(read(path)?).map_err(|_| Failure::new(format!("{}: not UTF-8", path.display())))
}

/// Whether reading may never end (`/dev/zero`) or wait for a person. A pipe is no device.
fn is_device(meta: &std::fs::Metadata) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        let kind = meta.file_type();
        kind.is_char_device() || kind.is_block_device()
    }
    #[cfg(not(unix))]
    {
        let _ = meta;
        false
    }
}

/// Which form the bytes have.
fn kind_of(bytes: &[u8]) -> Option<FileKind> {
    const TEXT: [&str; 4] = ["program", "startup", "main", "//"];
    let text = std::str::from_utf8(bytes).ok().map(|t| t.strip_prefix('\u{feff}').unwrap_or(t).trim_start());
    match text {
        Some(t) if pir::looks_like_program(t) => Some(FileKind::Pir),
        Some(t) if t.starts_with('{') => Some(FileKind::Json),
        Some(t) if TEXT.iter().any(|word| t.starts_with(word)) => Some(FileKind::Text),
        _ if proto::looks_like_program(bytes) => Some(FileKind::Proto),
        _ => None,
    }
}

/// Reads one file; a ProgramDesc or PIR program becomes `section`.
pub fn load(path: &Path, section: Section) -> Result<Loaded, Failure> {
    load_bytes(path, &read(path)?, section)
}

fn load_bytes(path: &Path, bytes: &[u8], section: Section) -> Result<Loaded, Failure> {
    let name = match path.as_os_str() == "-" {
        true => "standard input".to_owned(),
        false => path.display().to_string(),
    };
    let text = || String::from_utf8(bytes.to_vec()).map_err(|_| Failure::new(format!("{name}: not UTF-8")));
    let Some(kind) = kind_of(bytes) else {
        return Err(Failure::new(format!("{name}: not a program"))
            .help("known forms: ProgramDesc (Paddle 2.x .pb, .pdmodel), PIR (Paddle 3.x .json), mastercast text, mastercast JSON"));
    };
    let mut loaded = Loaded { program: Program::new(), kind, source: None, diagnostics: Diagnostics::new() };
    match kind {
        FileKind::Proto => {
            proto::import(bytes, section, &mut loaded.program).map_err(|e| Failure::new(format!("{name}: {e}")))?;
        }
        FileKind::Pir => {
            pir::import(&text()?, section, &mut loaded.program).map_err(|e| Failure::new(format!("{name}: {e}")))?;
        }
        FileKind::Json => {
            loaded.program = Program::from_json(&text()?).map_err(|e| Failure::new(format!("{name}: {e}")))?;
        }
        FileKind::Text => {
            let text = text()?;
            (loaded.program, loaded.diagnostics) = text::parse(&text, &name);
            loaded.source = Some((name, text));
        }
    }
    if matches!(kind, FileKind::Text | FileKind::Json) && !loaded.diagnostics.has_errors() {
        let place = Section::ALL.into_iter().find_map(|s| match pir::is_pir(&loaded.program, s) {
            true => pir::contradiction(&loaded.program, s),
            false => proto::contradiction(&loaded.program, s),
        });
        if let Some(place) = place {
            let file = path.display();
            let message = format!("{file}: {place}: the bytes kept beside it say something else than it says itself");
            return Err(Failure::new(message).help("change or remove its `verbatim`, `unknown` or `raw`"));
        }
    }
    Ok(loaded)
}

/// The section of a file that stands for `section` of the job: a file that holds one program stands
/// for whatever it is given as.
///
/// PIR values are named after their section, so that one given as the other is written out and read again.
fn bytes_of(loaded: &Loaded, section: Section) -> Result<Part, Failure> {
    let other = match section {
        Section::Startup => Section::Main,
        Section::Main => Section::Startup,
    };
    let from = if loaded.program.section(section).blocks.is_empty() { other } else { section };
    Ok(match is_pir(&loaded.program) {
        true => Part::Pir(pir::export(&loaded.program, from)?),
        false => Part::Proto(proto::export(&loaded.program, from)),
    })
}

/// One program of a job, written out.
enum Part {
    Proto(Vec<u8>),
    Pir(String),
}

/// Whether a program is one of Paddle 3.x.
pub fn is_pir(program: &Program) -> bool {
    Section::ALL.into_iter().any(|s| pir::is_pir(program, s))
}

/// A section in the form of its framework.
pub fn bytes(program: &Program, section: Section) -> Result<Vec<u8>, Failure> {
    Ok(match is_pir(program) {
        true => pir::export(program, section)?.into_bytes(),
        false => proto::export(program, section),
    })
}

/// How the files of its framework are named.
pub fn ending(program: &Program) -> &'static str {
    if is_pir(program) { "json" } else { "pb" }
}

/// Reads a job's programs.
pub fn job(args: &Programs) -> Result<Loaded, Failure> {
    let loaded = read_job(args)?;
    if swapped(&loaded.program) {
        let message = "startup has optimizer ops and main has none";
        return Err(Failure::new(message).help("are --startup and --main the wrong way round?"));
    }
    Ok(loaded)
}

/// Whether what trains stands in startup.
fn swapped(program: &Program) -> bool {
    let kinds = Ops::standard().resolve(program);
    let trains = |section| {
        let mut ops = program.section_blocks(section).flat_map(|b| program.ops(b));
        ops.any(|op| matches!(kinds.get(op.kind()).effect, Effect::Optimizer(_)))
    };
    trains(Section::Startup) && !trains(Section::Main)
}

fn read_job(args: &Programs) -> Result<Loaded, Failure> {
    let (one, section) = match (&args.startup, &args.main) {
        (None, None) => return Err(Failure::new("no program is given").help("--startup FILE and --main FILE")),
        (Some(s), Some(m)) if s != m || s.as_os_str() == "-" => {
            if s == m {
                return Err(Failure::new("standard input can be one of the two programs only"));
            }
            let bytes = read(m)?;
            let (startup, main) = (load(s, Section::Startup)?, load_bytes(m, &bytes, Section::Main)?);
            for part in [&startup, &main] {
                if part.diagnostics.has_errors() {
                    let program = part.program.clone();
                    let source = part.source.clone();
                    return Ok(Loaded { program, kind: part.kind, source, diagnostics: part.diagnostics.clone() });
                }
            }
            if (startup.kind, main.kind) == (FileKind::Proto, FileKind::Proto) {
                // The common case without a second encoding: main is read into startup's program.
                let mut program = startup.program;
                proto::import(&bytes, Section::Main, &mut program)
                    .map_err(|e| Failure::new(format!("{}: {e}", m.display())))?;
                return Ok(Loaded { program, kind: FileKind::Proto, source: None, diagnostics: Diagnostics::new() });
            }
            let mut program = Program::new();
            let blank = |l: &Loaded| Section::ALL.into_iter().all(|s| l.program.is_empty(s));
            if is_pir(&startup.program) != is_pir(&main.program) && !blank(&startup) && !blank(&main) {
                let message = "one program is PIR (Paddle 3.x) and the other is not";
                return Err(
                    Failure::new(message).help("there is no conversion between the two; save both from one version")
                );
            }
            let mut kind = FileKind::Proto;
            for (part, section) in [(&startup, Section::Startup), (&main, Section::Main)] {
                match bytes_of(part, section)? {
                    Part::Proto(bytes) => proto::import(&bytes, section, &mut program)?,
                    Part::Pir(text) => {
                        kind = FileKind::Pir;
                        pir::import(&text, section, &mut program)?;
                    }
                }
            }
            return Ok(Loaded { program, kind, source: None, diagnostics: Diagnostics::new() });
        }
        (Some(s), _) => (s, Section::Startup),
        (None, Some(m)) => (m, Section::Main),
    };
    load(one, section)
}

/// Open checkpoints by the path that the program names.
#[derive(Default)]
pub struct Checkpoints {
    open: BTreeMap<String, Box<dyn Checkpoint>>,
}

impl Checkpoints {
    /// Opens a checkpoint once.
    pub fn get(&mut self, path: &str) -> Result<&dyn Checkpoint, ckpt::CkptError> {
        if !self.open.contains_key(path) {
            self.open.insert(path.to_owned(), ckpt::open(Path::new(path))?);
        }
        Ok(&*self.open[path])
    }

    /// Opens a checkpoint, and names the tensors of one without names after the program's variables, if
    /// they fit; what was assumed.
    fn get_named(&mut self, path: &str, only: Only, program: &Program) -> Result<Option<String>, ckpt::CkptError> {
        let entries = self.get(path)?.entries();
        if entries.len() < 2 || entries.iter().any(|e| !e.name.is_empty()) {
            return Ok(None);
        }
        let Some(found) = combined_names(program, entries, only) else { return Ok(None) };
        let named = ckpt::open_combined(Path::new(path), &found.names, ckpt::Access::Map)?;
        self.open.insert(path.to_owned(), Box::new(named));
        Ok(Some(format!(
            "{path} keeps no names: its {} tensors are taken as the {}, in order of name",
            found.names.len(),
            found.what
        )))
    }

    /// Looks at an obligation of the proof: do two entries agree?
    pub fn settle(&mut self, pair: &Pair, obligation: &Obligation) -> Result<Option<Settled>, ckpt::CkptError> {
        let Obligation::EntriesAgree { file, param, master_file, master } = obligation else { return Ok(None) };
        for path in [file, master_file] {
            match self.get(path) {
                // The program may load what is only there where it runs: then nothing is settled here.
                Err(ckpt::CkptError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => return Ok(None),
                other => other?,
            };
        }
        let (a, b) = (&*self.open[&**file], &*self.open[&**master_file]);
        let (Some(i), Some(k)) = (a.find(param), b.find(master)) else { return Ok(None) };
        Ok(Some(match ckpt::agree_narrowed((a, i), (b, k), pair.low)? {
            None => Settled::Holds,
            Some(largest) => Settled::Differs(F32::from(largest)),
        }))
    }
}

/// Writes the schedule's steps into the program.
pub fn apply(ui: Ui, args: &Programs, program: &mut Program, open: &mut Checkpoints) -> Result<Applied, Failure> {
    let tell = |text: &str| {
        if !ui.quiet {
            eprintln!("{}: {text}", render::paint(ui, "32;1", "note"));
        }
    };
    let schedule = match &args.schedule {
        None => return Ok(Applied::default()),
        Some(text) => Schedule::parse(text)?,
    };
    for step in schedule.steps() {
        let Step::Load { path, only } = step else { continue };
        let assumed = open.get_named(path, *only, program).map_err(|e| {
            let failure = Failure::new(format!("load: {e}"));
            match e {
                CkptError::Unsupported { .. } => failure.help(OTHER_FORMATS),
                _ => failure,
            }
        })?;
        if let Some(text) = assumed {
            tell(&text);
        }
    }
    let mut manifest = |path: &str| open.get(path).map(ckpt::Manifest::of);
    Ok(schedule.apply(program, &mut manifest)?)
}
