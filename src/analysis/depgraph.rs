//! Which ops of a block must keep their order? The dependence graph, on petgraph.
//!
//! Edges run from the earlier to the later op: read after write, write after read, write after write
//! on storage cells (sub-blocks included), load and save of one file, and everything that an op of
//! unknown kind names. The number of edges is linear in the number of arguments.

use crate::analysis::effects::{Access, Effects};
use crate::entity::EntityId;
use crate::ir::{BlockId, OpId, OpRef, Program};
use crate::names::{Name, sym};
use crate::ops::Effect;
use indexmap::IndexMap;
use petgraph::graph::{DiGraph, NodeIndex};
use rustc_hash::FxHashMap;

/// Why two ops keep their order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum Dep {
    /// the later reads what the earlier wrote
    Raw(Name),
    /// the later overwrites what the earlier read
    War(Name),
    /// both write
    Waw(Name),
    /// both use one file, at least one saves
    File,
}

/// The dependence graph of one block.
pub struct DepGraph {
    /// nodes are ops in block order: node `i` is the block's op `i`
    pub graph: DiGraph<OpId, Dep>,
    nodes: FxHashMap<OpId, NodeIndex>,
}

#[derive(Default, Clone)]
struct CellState {
    writer: Option<NodeIndex>,
    readers: Vec<NodeIndex>,
}

impl DepGraph {
    /// Builds the graph of a block.
    pub fn new(program: &Program, effects: &Effects<'_>, block: BlockId) -> Self {
        let ops = &program.block(block).ops;
        let mut graph = DiGraph::with_capacity(ops.len(), ops.len() * 2);
        let mut nodes = FxHashMap::default();
        let mut cells: Vec<CellState> = vec![CellState::default(); program.names().len()];
        let mut files: IndexMap<&str, CellState> = IndexMap::new();
        for op in program.ops(block) {
            let node = graph.add_node(op.id);
            nodes.insert(op.id, node);
            effects.each(op, |name, access| {
                let cell = &mut cells[name.index()];
                match access {
                    Access::Read => {
                        if let Some(w) = cell.writer.filter(|&w| w != node) {
                            graph.add_edge(w, node, Dep::Raw(name));
                        }
                        if cell.readers.last() != Some(&node) {
                            cell.readers.push(node);
                        }
                    }
                    Access::Write | Access::MayWrite => {
                        for &r in cell.readers.iter().filter(|&&r| r != node) {
                            graph.add_edge(r, node, Dep::War(name));
                        }
                        if let Some(w) = cell.writer.filter(|&w| w != node) {
                            graph.add_edge(w, node, Dep::Waw(name));
                        }
                        cell.readers.retain(|&r| r == node);
                        cell.writer = Some(node);
                    }
                }
            });
            if let Some((path, saves)) = file_use(op, effects.effect(op)) {
                let file = files.entry(path).or_default();
                if saves {
                    for r in file.readers.drain(..) {
                        graph.add_edge(r, node, Dep::File);
                    }
                    if let Some(w) = file.writer.replace(node) {
                        graph.add_edge(w, node, Dep::File);
                    }
                } else {
                    if let Some(w) = file.writer {
                        graph.add_edge(w, node, Dep::File);
                    }
                    file.readers.push(node);
                }
            }
        }
        DepGraph { graph, nodes }
    }

    /// The node of an op.
    pub fn node(&self, op: OpId) -> Option<NodeIndex> {
        self.nodes.get(&op).copied()
    }

    /// Ops that must stay before an op, each with the reason, in block order.
    pub fn before(&self, op: OpId) -> Vec<(OpId, Dep)> {
        self.neighbours(op, petgraph::Direction::Incoming)
    }

    /// Ops that must stay after an op, each with the reason, in block order.
    pub fn after(&self, op: OpId) -> Vec<(OpId, Dep)> {
        self.neighbours(op, petgraph::Direction::Outgoing)
    }

    fn neighbours(&self, op: OpId, dir: petgraph::Direction) -> Vec<(OpId, Dep)> {
        use petgraph::visit::EdgeRef;
        let Some(node) = self.node(op) else { return Vec::new() };
        let mut out: Vec<_> = self
            .graph
            .edges_directed(node, dir)
            .map(|e| (if dir == petgraph::Direction::Incoming { e.source() } else { e.target() }, *e.weight()))
            .collect();
        out.sort_unstable();
        out.into_iter().map(|(n, d)| (self.graph[n], d)).collect()
    }

    /// Whether `order` (the same ops) respects every edge.
    pub fn respects(&self, order: &[OpId]) -> bool {
        let place: FxHashMap<OpId, usize> = order.iter().enumerate().map(|(i, &op)| (op, i)).collect();
        place.len() == self.graph.node_count()
            && self.graph.edge_indices().all(|e| {
                let (a, b) = self.graph.edge_endpoints(e).expect("edge of this graph");
                match (place.get(&self.graph[a]), place.get(&self.graph[b])) {
                    (Some(a), Some(b)) => a < b,
                    _ => false,
                }
            })
    }

    /// The graph in Graphviz's language, labelled with op kinds.
    pub fn dot(&self, program: &Program) -> String {
        use petgraph::dot::{Config, Dot};
        let edge = |_: &DiGraph<OpId, Dep>, e: petgraph::graph::EdgeReference<'_, Dep>| match e.weight() {
            Dep::Raw(n) => format!("label=\"{}\"", escape(program.name(*n))),
            Dep::War(n) => format!("style=dashed label=\"{}\"", escape(program.name(*n))),
            Dep::Waw(n) => format!("style=bold label=\"{}\"", escape(program.name(*n))),
            Dep::File => "style=dotted label=\"file\"".to_owned(),
        };
        let node = |_: &DiGraph<OpId, Dep>, (i, op): (NodeIndex, &OpId)| {
            format!("label=\"{}: {}\"", i.index(), escape(program.op(*op).kind_str()))
        };
        let attrs = [Config::NodeNoLabel, Config::EdgeNoLabel];
        format!("{:?}", Dot::with_attr_getters(&self.graph, &attrs, &edge, &node))
    }
}

fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"")
}

/// The file that an op reads or writes: its path and whether it saves.
pub fn file_use(op: OpRef<'_>, effect: Effect) -> Option<(&str, bool)> {
    let saves = match effect {
        Effect::Load => false,
        Effect::Save => true,
        _ => return None,
    };
    Some((op.attr(sym::FILE_PATH).and_then(|v| v.as_str()).unwrap_or(""), saves))
}
