//! Where does the command-line tool start?
fn main() {}
