//! Which elements does a window see? Geometry that convolution and pooling share.

use super::super::context::{OpCx, shape_fault};
use super::super::error::{Fault, InterpError};
use super::super::tensor::Tensor;

/// One spatial axis of a sliding window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Axis {
    /// elements of the input
    pub input: usize,
    /// elements of the window
    pub kernel: usize,
    pub stride: usize,
    pub dilation: usize,
    /// zeros before the first element
    pub before: usize,
    /// positions of the window
    pub output: usize,
}

/// Largest stride, dilation or padding that is believed.
const MAX_STEP: i64 = 1 << 20;

/// A list attribute of one value an axis.
pub(super) fn steps(cx: &OpCx<'_, '_>, name: &str, least: i64) -> Result<Vec<usize>, InterpError> {
    let v = cx.attr_ints(name)?.unwrap_or_else(|| vec![least; 2]);
    if v.iter().any(|s| !(least..=MAX_STEP).contains(s)) {
        return Err(Fault::BadAttr { name: name.to_owned(), what: format!("{v:?}") }.into());
    }
    Ok(v.iter().map(|&s| s as usize).collect())
}

/// The two axes of a window of `kernel` over an NCHW input. `ceil` lets the last window hang over.
pub(super) fn axes(
    cx: &OpCx<'_, '_>,
    slot: &str,
    x: &Tensor,
    kernel: [usize; 2],
    dilations: &[usize],
    ceil: bool,
) -> Result<[Axis; 2], InterpError> {
    let input = [x.shape()[2], x.shape()[3]];
    let strides = steps(cx, "strides", 1)?;
    let pads = steps(cx, "paddings", 0)?;
    let bad = |name: &str, what: String| InterpError::from(Fault::BadAttr { name: name.into(), what });
    if strides.len() != 2 || dilations.len() != 2 {
        return Err(bad("strides", format!("{strides:?} for two axes")));
    }
    let mut pad = match pads[..] {
        [h, w] => [[h, h], [w, w]],
        [top, bottom, left, right] => [[top, bottom], [left, right]],
        _ => return Err(bad("paddings", format!("{pads:?} for two axes"))),
    };
    let mut dilations = [dilations[0], dilations[1]];
    match cx.attr_str("padding_algorithm")?.unwrap_or("EXPLICIT") {
        "EXPLICIT" => {}
        "VALID" => pad = [[0; 2]; 2],
        "SAME" => {
            dilations = [1; 2];
            for i in 0..2 {
                let whole = (input[i].div_ceil(strides[i]).max(1) - 1) * strides[i] + kernel[i];
                let pads = whole.saturating_sub(input[i]);
                pad[i] = [pads / 2, pads - pads / 2];
            }
        }
        other => return Err(bad("padding_algorithm", format!("{other:?} is not known"))),
    }
    let axis = |i: usize| {
        let reach = kernel[i].checked_sub(1)?.checked_mul(dilations[i])?.checked_add(1)?;
        let room = input[i].checked_add(pad[i][0])?.checked_add(pad[i][1])?.checked_sub(reach)?;
        let extra = if ceil { strides[i] - 1 } else { 0 };
        let output = (room + extra) / strides[i] + 1;
        Some(Axis {
            input: input[i],
            kernel: kernel[i],
            stride: strides[i],
            dilation: dilations[i],
            before: pad[i][0],
            output,
        })
    };
    match (axis(0), axis(1)) {
        (Some(h), Some(w)) => Ok([h, w]),
        _ => Err(shape_fault(slot, x, format!("is smaller than a window of {kernel:?} with paddings {pads:?}"))),
    }
}

impl Axis {
    /// The windows whose tap `k` sees an element, as a range.
    pub fn inside(&self, k: usize) -> std::ops::Range<usize> {
        let shift = k * self.dilation;
        let first = self.before.saturating_sub(shift).div_ceil(self.stride);
        // o · stride + shift − before ≤ input − 1
        let end = match (self.input + self.before).checked_sub(shift + 1) {
            Some(last) => last / self.stride + 1,
            None => 0,
        };
        let end = end.min(self.output);
        first.min(end)..end
    }
}
