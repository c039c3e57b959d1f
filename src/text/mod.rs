//! How is a program written for people? Line oriented, one statement a line, lossless.
//!
//! One format is debug print, fixture and documentation at once. It holds everything that the IR
//! holds, so that `parse(print(p))` has the content of `p`, bytes of files that the IR has no row
//! for included; and `print(parse(t))` is `t` when `t` is canonical, that is, printed.
//!
//! ```text
//! program {
//!   startup {
//!     param linear_0.w_0 : f32[784, 10] persistable
//!     var linear_0.w_0_fp32_master_0 : f32[784, 10] persistable
//!     (Out: linear_0.w_0) = uniform_random() {min: -0.1f, max: 0.1f, shape: [784, 10]}
//!     (Out: linear_0.w_0_fp32_master_0) = cast(X: linear_0.w_0) {in_dtype: f32, out_dtype: f32}
//!   }
//! }
//! ```
//!
//! # Grammar
//!
//! Tokens: a *word* is `[A-Za-z_@$][A-Za-z0-9_.@$]*`; a *string* is in double quotes on one line,
//! with the escapes `\" \\ \n \r \t \u{…}`; *hex* is `x"0aff"`; a *number* begins with a digit or
//! `-`. Blanks separate, `//` begins a comment to the end of the line. A *name* is a word or, when it
//! is odd, a string. `EOL` is a line end; before a `}` it may be missing.
//!
//! ```text
//! text      = [ "program" "{" ] section* [ "}" ]
//! section   = ("startup" | "main") ( "blockless" | [ "in" INT ] [ "forward" INT ] ) "{" EOL
//!             ( info | statement | block )* "}" EOL
//! info      = "version" INT EOL | "op_versions" HEX EOL | "unknown" HEX EOL | "verbatim" HEX EOL
//! block     = "block" INDEX "in" INT [ "forward" INT ] "{" EOL statement* "}" EOL
//! statement = var | op | "block_unknown" HEX EOL | "block_verbatim" HEX EOL
//!
//! var       = ("var" | "param") name ":" type flag* extra EOL
//! type      = [ kind ] dtype "[" [ INT ("," INT)* ] "]"     | kind
//! kind      = "lod_tensor" | "selected_rows" | "lod_tensor_array" | "feed_minibatch" | "fetch_list"
//!           | "step_scopes" | "reader" | "raw" | "kind" "(" INT ")"
//! dtype     = "bool" | "i8" | "i16" | "i32" | "i64" | "u8" | "f16" | "bf16" | "f32" | "f64"
//!           | "c64" | "c128" | "dtype" "(" INT ")"
//! flag      = ["!" | "?"] ("persistable" | "need_check_feed" | "is_parameter" | "stop_gradient")
//!           | "lod" INT | "?" "lod"
//! extra     = [ "unknown" HEX ] [ "verbatim" HEX ]
//!
//! op        = [ slots "=" ] name slots [ "{" [ attr ("," attr)* ] "}" ] [ ["!"] "target" ] extra EOL
//! slots     = "(" [ slot (";" slot)* ] ")"
//! slot      = name ":" [ name ("," name)* ]
//! attr      = name ":" value [ "raw" HEX ]
//! value     = INT | INT "L" | FLOAT "f" | FLOAT | STRING | "true" | "false" | dtype
//!           | [ "ints" | "longs" | "floats" | "f64s" | "strings" | "bools" ] "[" items "]"
//!           | "block" "(" INT ")" | "blocks" "[" INTs "]" | "var" "(" name ")" | "vars" "[" names "]"
//!           | "scalar" "(" scalar ")" | "scalars" "[" scalars "]" | "unknown" "(" INT "," HEX ")"
//! scalar    = "true" | "false" | INT "L" | FLOAT | "complex" "(" FLOAT "," FLOAT ")"
//! ```
//!
//! # What goes without saying
//!
//! - **Attributes.** `5` is a 32-bit integer, `5L` a 64-bit one, `0.5f` a binary32, `0.5` a binary64.
//!   Infinities are `inf32`, `-inf64`; NaNs show their bits, `nan32(0x7fc00000)`. A dtype is the 32-bit
//!   integer of its Paddle code, and is printed by name where the attribute is called `dtype`,
//!   `in_dtype`, `out_dtype` or `stored_dtypes`. A list shows its kind by its first element; `[]` is
//!   an empty list of 32-bit integers, the other empty lists say their kind: `strings[]`.
//! - **Flags.** `f` is true, `!f` is false and `?f` is absent, since absent differs from false in a file. Not
//!   written are the most common cases of real programs: `persistable` and `stop_gradient` false,
//!   `need_check_feed` and `is_parameter` absent. `param` is `var` with `is_parameter` true.
//! - **LoD level.** Not written when absent for a persistable or 0 for a temporary.
//! - **Type.** A kind that has no element type is written without one.
//! - **Blocks.** Block 0 is the section's own body. Sub-blocks follow it in the order of their index.
//!   `blockless` is a section whose file has no block at all.
//! - **Bytes.** `unknown` are protobuf fields that this crate does not know, `verbatim` the message as
//!   it stood in the file, `raw` the same for one attribute: see [`Extra`](crate::ir::Extra).
//!
//! Fixtures use comments: directives before the program (`// run: load-order,resync`) and
//! expectations on a line (`//~ error[stale-master]: substring`). The parser skips both.

mod cursor;
mod lexer;
mod number;
mod parser;
mod printer;
mod value;

pub use parser::{MAX_TEXT, parse};
pub use printer::{print, print_brief, print_op, print_section, print_var};

pub(crate) use number::{parse_bits, parse_hex, write_hex};
pub(crate) use printer::{kind_of_word, kind_word};
