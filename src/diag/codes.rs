//! Which kinds of findings are there, and what does each mean? `mastercast explain CODE` prints this.

use super::Severity;

macro_rules! codes {
    ($($(#[doc = $doc:literal])* $variant:ident = $text:literal, $severity:ident, $explain:literal;)*) => {
        /// The kind of a finding.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum Code {
            $($(#[doc = $doc])* $variant,)*
        }

        impl Code {
            /// Every code.
            pub const ALL: &'static [Code] = &[$(Code::$variant),*];

            /// The code as users see it.
            pub const fn as_str(self) -> &'static str {
                match self { $(Code::$variant => $text),* }
            }

            /// How bad a finding of this kind is by default.
            pub const fn severity(self) -> Severity {
                match self { $(Code::$variant => Severity::$severity),* }
            }

            /// What it is, in one line.
            pub fn summary(self) -> &'static str {
                let text = match self { $(Code::$variant => concat!($($doc),*)),* };
                let text = text.trim().trim_end_matches('.');
                // The verifier's checks are numbered in the documentation only.
                text.split_once(": ").filter(|(number, _)| number.starts_with('V')).map_or(text, |(_, rest)| rest)
            }

            /// What it means, why it matters and what to do, in a few lines.
            pub const fn explanation(self) -> &'static str {
                match self { $(Code::$variant => $explain),* }
            }
        }
    };
}

codes! {
    // ---- text
    /// The text is not of the format.
    SyntaxError = "syntax-error", Error,
"The text could not be read at this place. The reader skips to the next line and goes on, so one
mistake gives one finding. The format is one op a line:

    (Out: y) = cast(X: x) {in_dtype: f32, out_dtype: f16}
";
    // ---- verifier
    /// V1: an id is out of range.
    BadHandle = "bad-handle", Error,
"A row of the program names a row that does not exist. No reader of mastercast makes such a program;
a library caller that fills the pools by hand can. Nothing else is checked before this is mended.
";
    /// V2: block parents form no tree.
    BlockTree = "block-tree", Error,
"Every block but the global one has a parent, and following parents ends at the global block after at
most 256 steps. Here a parent is missing, or the chain runs in a circle, so that the variables a block can
see are undefined.

    main {
      block 1 in 2 {
      }
      block 2 in 1 {      <- 1 is in 2, and 2 is in 1
      }
    }
";
    /// V3: an attribute names a block that does not exist or is not a sub-block.
    DanglingBlock = "dangling-block", Error,
"A control-flow op names a sub-block that the program does not have, or one that cannot be its
sub-block: the global block, a block whose parent is not the op's block, or one that many other ops run.

    main {
      conditional_block(Cond: c) {sub_block: block(7)}      <- there is no block 7
      block 1 in 0 {
      }
    }
";
    /// V4: one name declared twice in one block.
    DuplicateDeclaration = "duplicate-declaration", Error,
"One block declares one name twice, so its dtype and shape are ambiguous.

    var x : f32[2]
    var x : f16[2]      <- which is it?
";
    /// V5: an argument is declared in no visible block.
    UndeclaredVariable = "undeclared-variable", Error,
"An op reads or writes a name that no visible block declares. Visible are the op's block, its forward
block when it is a gradient block, and the same for each ancestor. `@EMPTY@` and the empty name stand for no
argument. In gradient ops and blocks, which frameworks write, this is a warning.

    var x : f32[2]
    (Out: y) = relu(X: x)      <- y is declared nowhere
";
    /// V6: one cell, two declarations that cannot both hold.
    CellMismatch = "cell-mismatch", Warning,
"Startup and main declare one storage cell with different shapes, or as different kinds of variable. They
are the same memory, so one of them is wrong. (A parameter that startup declares float32 and main float16 is
legal: `amp_init` narrows it.)

    startup {
      param w : f32[4, 8] persistable
    }
    main {
      param w : f16[8, 4] persistable      <- the same cell, another shape
    }
";
    /// V7: a slot that the op needs is missing, or has the wrong number of arguments.
    SlotArity = "slot-arity", Error,
"The op's schema asks for another number of arguments in this slot, or the slot is given twice.

    (Out: y) = cast(X: a, b) {out_dtype: f16}      <- a cast has one operand
";
    /// V8: an attribute that the op needs is missing or of another kind.
    AttrType = "attr-type", Error,
"The op's schema asks for this attribute, or for another kind of value in it; or the attribute is given
twice with different values.

    (Out: w) = load() {file_path: 3}      <- a path is a string
";
    /// V9: a shape is not a shape.
    BadShape = "bad-shape", Error,
"A dimension is below -1 (-1 means: unknown until run). For a temporary this is a warning, because
Paddle 2.6.2 itself infers such shapes, multiplying an unknown dimension by a known one.

    param w : f32[-2, 4] persistable      <- no tensor has -2 rows
";
    /// V10: a cast's attributes differ from its variables.
    CastAttribute = "cast-attribute", Warning,
"A cast says `in_dtype` or `out_dtype` other than its variable's dtype in the same program. Frameworks
disagree on which of the two they believe. Paddle itself writes `in_dtype = f16` on a startup cast whose
operand is still float32 at that moment.

    var x : f32[2]
    var y : f16[2]
    (Out: y) = cast(X: x) {in_dtype: f16, out_dtype: f16}      <- x is f32
";
    /// V11: a value is read before anything wrote it.
    ReadBeforeWrite = "read-before-write", Warning,
"A temporary is read, but nothing in this program writes it before. Feed it, make it persistable, or move
the op that writes it.

    var x : f32[2]
    var y : f32[2]
    (Out: y) = relu(X: x)      <- what is in x?
    (Out: x) = fill_constant() {shape: [2], value: 0.0f}
";
    /// V13: a cast is used after its operand was overwritten.
    StaleCast = "stale-cast", Error,
"A rewrite to mixed precision cast a variable, an op then overwrote the variable, and a later op still reads
the old cast (or an op wrote the cast in place and a later op reads the variable). Paddle 2.6.2 does this,
because it finds casts by name alone; the numbers are wrong and nothing says so.

    (Out: x.cast_fp16) = cast(X: x) {…}
    (Out: y) = matmul_v2(X: x.cast_fp16; Y: w)
    (Out: x) = exp(X: x)
    (Out: z) = matmul_v2(X: x.cast_fp16; Y: w)      <- computes with the x before exp

Rewrite the float32 program with `mastercast amp`, which makes a new cast after each write.
";
    /// V14: a cast is used where it has not run.
    UndominatedCast = "undominated-cast", Error,
"An op reads the result of a cast that has not run at this place: it stands behind, or in a block that need
not have run. In Paddle 2.6.2 a sub-block uses a cast that its parent makes only after the sub-block; at
run time the variable is uninitialised, or holds the value of the step before.

    while(Condition: c; X: h) {sub_block: block(1)}
    (Out: h.cast_fp16) = cast(X: h) {…}
    block 1 in 0 {
      (Out: t) = matmul_v2(X: h.cast_fp16; Y: w)      <- the cast comes after the loop
    }
";
    /// V15: a control op's inputs are not what its blocks read.
    CaptureList = "capture-list", Warning,
"A `while` or `conditional_block` lists the cast of a variable while its blocks read the variable itself, or
the other way round. The forward values can be right all the same, but the gradient of what is not listed
is dropped without a word.

    conditional_block(Cond: c; Input: x.cast_fp32) {sub_block: block(1)}
    block 1 in 0 {
      (Out: t) = matmul_v2(X: x; Y: w)      <- x is not listed
    }
";
    /// V16: an op mixes float types.
    MixedDtype = "mixed-dtype", Warning,
"An op of a kind that computes in one float type reads operands of different float types, or writes a variable
that is declared of another one. What a framework makes of it depends on the kernel: it fails, reads
the bytes of one type as another, or leaves a tensor whose type is not the declared one.

    var x : f16[2]
    var y : f32[2]
    (Out: y) = relu(X: x)      <- the result is f16
";
    /// V12: there is nothing to check.
    EmptyProgram = "empty-program", Warning,
"Neither startup nor main has an op, so that nothing can be proved or rewritten. The usual reason is
that another file was meant.

    program {
    }
";
    // ---- coherence
    /// The master descends from another value than its parameter.
    StaleMaster = "stale-master", Error,
"When main starts (or at the named op) the parameter was overwritten after its float32 master was made
from it: the two descend from different sources. The next optimizer step computes from the master and
writes it back over the parameter, so what was loaded is lost, and nothing says so.

    (Out: w) = uniform_random() {…}
    (Out: w_fp32_master_0) = cast(X: w) {…}
    (Out: w) = load() {file_path: \"ckpt\"}      <- the master still holds the random value

Different sources are evidence of unequal numbers, not proof: a load that happens to bring the initial
value changes nothing. Mend it with `master-casts,load-order,resync`.
";
    /// The parameter descends from another value than its master.
    StaleParameter = "stale-parameter", Error,
"The master was overwritten (usually by a load) and the parameter was not narrowed from it again. The
first forward pass computes with the old parameter. Mend it with `resync`.
";
    /// A derived copy descends from another value than its source.
    StaleCopy = "stale-copy", Error,
"A persistable is a function (cast, assign, transpose, concat …) of another persistable that was
overwritten afterwards. The copy still holds the old value. Mend it with `load-order,resync`, which
derive it again.
";
    /// A master was rounded through 16 bits although a float32 value was at hand.
    LossyMaster = "lossy-master", Error,
"The master is a widened copy of a 16-bit value, although the float32 value that was narrowed had been at
hand: 13 (float16) or 16 (bfloat16) bits of every weight are lost for nothing. Seed the master from the
float32 value, before the narrowing: `master-casts`, `load-order`; and `resync` clears
`rewrite_master` of an `amp_init` that would do it.
";
    /// Only 16-bit values are at hand for a master.
    LowPrecisionSource = "low-precision-source", Warning,
"A master is derived from a 16-bit checkpoint value because the checkpoint holds no float32 one. That is
right as far as it goes, but at each save and resume of this kind the master loses what 16 bits do not
hold. Save the masters too.
";
    /// A cell's run-time dtype differs from main's declaration.
    WrongDtype = "wrong-dtype", Error,
"At the entry of main the cell holds values of another dtype than main declares: a load replaced the
tensor after `amp_init` had narrowed it. Kernels are chosen for the declared type. Mend it with
`load-order` or `resync`.
";
    /// The proof needs a fact about the checkpoint.
    Unproved = "unproved", Warning,
"Neither agreement nor staleness follows from the program alone. The note names what would settle it,
for instance that two entries of a checkpoint agree. `check` settles it itself when it can read the file.
";
    /// Parameter and master were both loaded and disagree.
    LoadConflict = "load-conflict", Error,
"The checkpoint brings a parameter and its master, and the parameter is not the narrowed master. One of
them is from another step. Choose with `--on-conflict master` or `--on-conflict param`.
";
    /// A loaded value is overwritten before it is used.
    LoadOverwritten = "load-overwritten", Warning,
"A load writes a cell that an initialiser overwrites afterwards, so the checkpoint value never reaches
main. Run the load after startup, or let `load-order` place it.
";
    /// A master is never written.
    UnsetMaster = "unset-master", Error,
"The optimizer reads a master that nothing in startup writes. `master-casts` adds the cast.
";
    /// A parameter is updated without its master although one exists.
    UnusedMaster = "unused-master", Warning,
"A master exists for this 16-bit parameter, but its optimizer op updates the parameter directly and leaves
the master as it was.
";
    /// A pair's shapes or dtypes do not fit.
    BadPair = "bad-pair", Error,
"A parameter and its master must have one shape, the parameter float16 or bfloat16, the master float32.
";
    // ---- loads
    /// A load asks for a key that the checkpoint does not have.
    MissingKey = "missing-key", Error,
"The checkpoint has no entry of this name. The nearest names are listed; a prefix that all of them share
is the usual reason.
";
    /// A checkpoint entry does not fit its cell.
    LoadShape = "load-shape", Error,
"The checkpoint entry and the program's declaration have different shapes. Nothing is loaded.
";
    /// A checkpoint entry has another dtype than its cell.
    LoadDtype = "load-dtype", Error,
"The checkpoint entry has another dtype than the cell, and the cell is not the parameter of a pair (which
may be loaded from float32, float16 or bfloat16).
";
    /// A checkpoint entry that no cell wants.
    UnexpectedKey = "unexpected-key", Warning,
"The checkpoint has an entry that the program has no cell for. It is left where it is.
";
    // ---- passes
    /// There is nothing to rewrite to mixed precision.
    NothingToNarrow = "nothing-to-narrow", Warning,
"The pass `precision` left the program as it was: it is of mixed precision already, computes in float64
alone, or the level is O0. Rewriting twice would cast casts.

    (Out: x.cast_fp16) = cast(X: x) {in_dtype: f32, out_dtype: f16}      <- made by an earlier run
";
    /// A load cannot be moved.
    PinnedLoad = "pinned-load", Note,
"The load stays where it is, because an op between it and the place where it should be depends on it. The
pass `resync` puts the pair back in step after it.
";
}

impl Code {
    /// The code of a text, as users see it.
    pub fn parse(text: &str) -> Option<Code> {
        Code::ALL.iter().copied().find(|c| c.as_str() == text)
    }
}

impl std::fmt::Display for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}
