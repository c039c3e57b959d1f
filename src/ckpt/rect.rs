//! Which part of a tensor is a shard, and do the shards make up the whole? Rectangles, row major.
//!
//! A shard is a box of the global tensor, or a range of the flattened box; a range falls apart into at most
//! `2 * rank - 1` boxes, each contiguous in the shard's data. So everything here is about boxes.
//!
//! [`cover`] proves that boxes cover a shape: it takes each box away from what is still open, in order, so that a
//! hole is found with its place and an overlap with its boxes. What is open stays small for grids and ranges in
//! order; it is bounded by [`MAX_OPEN`].

use std::fmt;
use std::ops::Range;

/// Boxes that may be open at once while a cover is proved; the rows of a grid need as many as it has columns.
pub const MAX_OPEN: usize = 1 << 14;

/// A box of a tensor: where it begins, and how long it is, in each dimension.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rect {
    /// of the first element
    pub offset: Vec<u64>,
    /// in each dimension; as many as `offset`
    pub shape: Vec<u64>,
}

impl Rect {
    /// All of a tensor.
    pub fn whole(shape: &[u64]) -> Rect {
        Rect { offset: vec![0; shape.len()], shape: shape.to_vec() }
    }

    /// The rows of a rank when the first dimension is split over `ranks`, the first ranks one longer when it does
    /// not divide. A tensor without dimensions is rank 0's; the others get a box that [is empty](Rect::is_empty).
    pub fn of_rank(shape: &[u64], rank: u64, ranks: u64) -> Rect {
        let mut rect = Rect::whole(shape);
        let Some(&rows) = shape.first() else {
            if rank > 0 {
                (rect.offset, rect.shape) = (vec![0], vec![0]);
            }
            return rect;
        };
        let (each, longer) = (rows / ranks.max(1), rows % ranks.max(1));
        rect.offset[0] = (rank * each + rank.min(longer)).min(rows);
        rect.shape[0] = each + u64::from(rank < longer);
        rect
    }

    /// Number of elements. The box lies in a tensor whose own number fits.
    pub fn count(&self) -> u64 {
        self.shape.iter().product()
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.shape.contains(&0)
    }

    /// Whether the box lies in a tensor of this shape.
    pub fn fits(&self, shape: &[u64]) -> bool {
        let inside = |((&o, &n), &s): ((&u64, &u64), &u64)| o.checked_add(n).is_some_and(|end| end <= s);
        self.offset.len() == shape.len()
            && self.shape.len() == shape.len()
            && self.offset.iter().zip(&self.shape).zip(shape).all(inside)
    }

    /// What two boxes have in common, `None` when nothing.
    pub fn intersect(&self, other: &Rect) -> Option<Rect> {
        let mut out = Rect { offset: Vec::with_capacity(self.offset.len()), shape: Vec::new() };
        for d in 0..self.offset.len() {
            let start = self.offset[d].max(other.offset[d]);
            let end = (self.offset[d] + self.shape[d]).min(other.offset[d] + other.shape[d]);
            if start >= end {
                return None;
            }
            out.offset.push(start);
            out.shape.push(end - start);
        }
        Some(out)
    }

    /// What is left of this box without `hole`, which lies in it: at most two boxes a dimension.
    fn without(mut self, hole: &Rect, out: &mut Vec<Rect>) {
        for d in 0..self.offset.len() {
            let (start, end) = (self.offset[d], self.offset[d] + self.shape[d]);
            let (from, to) = (hole.offset[d], hole.offset[d] + hole.shape[d]);
            for (a, b) in [(start, from), (to, end)] {
                if a < b {
                    let mut part = self.clone();
                    (part.offset[d], part.shape[d]) = (a, b - a);
                    out.push(part);
                }
            }
            (self.offset[d], self.shape[d]) = (from, to - from);
        }
    }

    /// The elements `range` of this box, flattened, as boxes of the tensor in order. `range` lies in the box.
    pub fn flat(&self, range: Range<u64>) -> Vec<Rect> {
        let mut out = Vec::new();
        if range.start < range.end {
            flat(self, 0, range, &mut vec![], &mut out);
        }
        out
    }
}

/// The range of the sub-box at `prefix`, which fixes the dimensions before `dim`.
fn flat(of: &Rect, dim: usize, range: Range<u64>, prefix: &mut Vec<u64>, out: &mut Vec<Rect>) {
    let boxed = |prefix: &[u64], first: u64, count: u64| {
        let mut rect = of.clone();
        for (d, &at) in prefix.iter().enumerate() {
            (rect.offset[d], rect.shape[d]) = (of.offset[d] + at, 1);
        }
        if dim < of.shape.len() {
            (rect.offset[dim], rect.shape[dim]) = (of.offset[dim] + first, count);
        }
        rect
    };
    if dim == of.shape.len() {
        out.push(boxed(prefix, 0, 1));
        return;
    }
    let row: u64 = of.shape[dim + 1..].iter().product();
    let (first, last) = (range.start / row, (range.end - 1) / row);
    let (head, tail) = (range.start % row, range.end % row);
    if first == last && (head != 0 || tail != 0) {
        prefix.push(first);
        flat(of, dim + 1, head..range.end - first * row, prefix, out);
        prefix.pop();
        return;
    }
    if head != 0 {
        prefix.push(first);
        flat(of, dim + 1, head..row, prefix, out);
        prefix.pop();
    }
    let (from, to) = (first + u64::from(head != 0), range.end / row);
    if from < to {
        out.push(boxed(prefix, from, to - from));
    }
    if tail != 0 {
        prefix.push(last);
        flat(of, dim + 1, 0..tail, prefix, out);
        prefix.pop();
    }
}

impl fmt::Display for Rect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (d, (o, n)) in self.offset.iter().zip(&self.shape).enumerate() {
            write!(f, "{}{o}..{}", if d > 0 { ", " } else { "" }, o + n)?;
        }
        f.write_str("]")
    }
}

impl fmt::Debug for Rect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What [`cover`] has found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Cover {
    /// a part of the tensor that no box has
    pub hole: Option<Rect>,
    /// elements that no box has
    pub missing: u64,
    /// boxes that share elements with an earlier one without being equal to it, by index
    pub overlaps: Vec<usize>,
    /// boxes that are equal to an earlier one, by index
    pub replicas: Vec<usize>,
}

/// Whether `boxes`, which lie in a tensor of this shape, cover it. Empty boxes count for nothing. `None` when
/// more than [`MAX_OPEN`] boxes are open at once.
pub fn cover(shape: &[u64], boxes: &[Rect]) -> Option<Cover> {
    cover_box(Rect::whole(shape), boxes)
}

/// The same for boxes that lie in a part of a tensor.
pub fn cover_box(whole: Rect, boxes: &[Rect]) -> Option<Cover> {
    let mut found = Cover::default();
    let mut order: Vec<usize> = (0..boxes.len()).filter(|&i| !boxes[i].is_empty()).collect();
    order.sort_by(|&a, &b| boxes[a].cmp(&boxes[b]).then(a.cmp(&b)));
    // What is still open, the part that comes first last: boxes come in order, so that most hit it.
    let mut open = if whole.is_empty() { Vec::new() } else { vec![whole] };
    let (mut kept, mut rest): (Vec<Rect>, Vec<Rect>) = (Vec::new(), Vec::new());
    for (k, &i) in order.iter().enumerate() {
        if k > 0 && boxes[order[k - 1]] == boxes[i] {
            found.replicas.push(i);
            continue;
        }
        let mut taken = 0;
        kept.clear();
        rest.clear();
        while let Some(part) = open.pop() {
            match part.intersect(&boxes[i]) {
                Some(hit) => {
                    taken += hit.count();
                    part.without(&hit, &mut rest);
                }
                None => kept.push(part),
            }
            if taken == boxes[i].count() {
                break;
            }
        }
        open.extend(rest.drain(..).rev());
        open.extend(kept.drain(..).rev());
        if open.len() > MAX_OPEN {
            return None;
        }
        if taken < boxes[i].count() {
            found.overlaps.push(i);
        }
    }
    found.missing = open.iter().map(Rect::count).sum();
    found.hole = open.into_iter().min();
    found.overlaps.sort_unstable();
    found.replicas.sort_unstable();
    Some(found)
}

/// A box in a larger one, as runs that are contiguous in both, in order.
pub(crate) struct Runs {
    /// elements of each run
    pub run: u64,
    /// number of runs
    pub count: u64,
    /// dimensions that runs are counted over, and the stride of each in the outer box
    outer: Vec<(u64, u64)>,
    /// of the first run in the outer box
    start: u64,
}

impl Runs {
    /// `inner`, which lies in `outer`; offsets of both are in the same tensor.
    pub fn new(inner: &Rect, outer: &Rect) -> Runs {
        let rank = inner.shape.len();
        let (mut strides, mut stride) = (vec![0; rank], 1);
        for d in (0..rank).rev() {
            strides[d] = stride;
            stride *= outer.shape[d];
        }
        let start = (0..rank).map(|d| (inner.offset[d] - outer.offset[d]) * strides[d]).sum();
        // Trailing dimensions that are whole, and the one before them, make a run.
        let mut split = rank;
        let mut run = 1;
        while split > 0 {
            split -= 1;
            run *= inner.shape[split];
            if inner.shape[split] != outer.shape[split] {
                break;
            }
        }
        let outer = (0..split).map(|d| (inner.shape[d], strides[d])).collect::<Vec<_>>();
        Runs { run, count: outer.iter().map(|&(n, _)| n).product(), outer, start }
    }

    /// Where run `index` begins in the outer box.
    pub fn at(&self, mut index: u64) -> u64 {
        let mut at = self.start;
        for &(n, stride) in self.outer.iter().rev() {
            at += index % n * stride;
            index /= n;
        }
        at
    }

    /// The first run that ends behind element `from` of the outer box.
    pub fn first_behind(&self, from: u64) -> u64 {
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.at(middle) + self.run <= from { low = middle + 1 } else { high = middle }
        }
        low
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rect(offset: &[u64], shape: &[u64]) -> Rect {
        Rect { offset: offset.to_vec(), shape: shape.to_vec() }
    }

    fn elements(r: &Rect) -> Vec<Vec<u64>> {
        let mut out = vec![vec![]];
        for d in 0..r.shape.len() {
            out = out
                .iter()
                .flat_map(|p| (0..r.shape[d]).map(|i| [&p[..], &[r.offset[d] + i]].concat()).collect::<Vec<_>>())
                .collect();
        }
        out
    }

    #[test]
    fn ranges_fall_apart_into_boxes_in_order() {
        for of in [rect(&[1, 0, 2], &[2, 3, 4]), rect(&[5], &[7]), rect(&[], &[]), rect(&[0, 0], &[1, 5])] {
            let all = elements(&of);
            for start in 0..=all.len() {
                for end in start..=all.len() {
                    let parts = of.flat(start as u64..end as u64);
                    let got: Vec<_> = parts.iter().flat_map(elements).collect();
                    assert_eq!(got, all[start..end], "{of} {start}..{end}");
                    assert!(parts.len() < (2 * of.shape.len()).max(2), "{of} {start}..{end}: {parts:?}");
                }
            }
        }
    }

    #[test]
    fn covers_are_proved_and_holes_found() {
        let grid: Vec<Rect> = (0..6).map(|i| rect(&[i / 3 * 2, i % 3 * 2], &[2, 2])).collect();
        assert_eq!(cover(&[4, 6], &grid), Some(Cover::default()));
        let holed = cover(&[4, 6], &grid[1..]).unwrap();
        assert_eq!((holed.hole, holed.missing), (Some(rect(&[0, 0], &[2, 2])), 4));
        let twice = [&grid[..], &grid[2..3]].concat();
        assert_eq!(cover(&[4, 6], &twice).unwrap(), Cover { replicas: vec![6], ..Cover::default() });
        let over = [&grid[..], &[rect(&[0, 0], &[3, 1])]].concat();
        let found = cover(&[4, 6], &over).unwrap();
        assert_eq!((found.hole, found.overlaps.len()), (None, 2));
        assert_eq!(cover(&[], &[rect(&[], &[])]), Some(Cover::default()));
        assert_eq!(cover(&[], &[]).unwrap().missing, 1);
        assert_eq!(cover(&[0, 3], &[]), Some(Cover::default()));
    }

    #[test]
    fn runs_are_contiguous() {
        let outer = rect(&[1, 1, 1], &[3, 4, 5]);
        let all = elements(&outer);
        for inner in
            [rect(&[1, 2, 1], &[3, 2, 5]), rect(&[2, 1, 2], &[1, 4, 2]), outer.clone(), rect(&[3, 4, 5], &[1, 1, 1])]
        {
            let runs = Runs::new(&inner, &outer);
            let got: Vec<_> = (0..runs.count)
                .flat_map(|i| all[runs.at(i) as usize..(runs.at(i) + runs.run) as usize].to_vec())
                .collect();
            assert_eq!(got, elements(&inner));
            for from in 0..all.len() as u64 {
                let first = (0..runs.count).find(|&i| runs.at(i) + runs.run > from).unwrap_or(runs.count);
                assert_eq!(runs.first_behind(from), first);
            }
        }
    }
}
