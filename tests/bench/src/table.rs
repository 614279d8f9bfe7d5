//! The table a run prints, and the figures in it.

use std::{fmt, time::Duration};

/// Rows in the order they were measured.
#[derive(Default)]
pub(crate) struct Table {
    rows: Vec<[String; 5]>,
}

/// Times of one program before the next one's turn: a machine that drifts drifts for all, and
/// none of them finds its memory and its processor given to another each time.
pub(crate) const TURN: usize = 20;

/// What a row is held against.
#[derive(Clone, Copy)]
pub(crate) enum Target {
    AtLeast(f64),
    AtMost(f64),
    None,
}

impl Table {
    /// A row: what was measured, ours, its counterpart, and the figure to hold against
    /// the target, written with its unit.
    pub(crate) fn row(
        &mut self,
        what: &str,
        ours: String,
        beside: String,
        (figure, unit): (f64, &str),
        target: Target,
    ) {
        let (wanted, met) = match target {
            Target::AtLeast(least) => (format!(">= {least}{unit}"), figure >= least),
            Target::AtMost(most) => (format!("< {most}{unit}"), figure <= most),
            Target::None => (String::new(), true),
        };
        let verdict = if met { "" } else { "  MISSED" };
        let figure = format!("{figure:.2}{unit}");
        let row = [what.to_owned(), ours, beside, figure, wanted + verdict];
        eprintln!("  {}", row.join("  |  "));
        self.rows.push(row);
    }

    /// A row of two times; the target is ours in milliseconds.
    pub(crate) fn times(
        &mut self,
        what: &str,
        ours: Duration,
        beside: &[(&str, Duration)],
        most: f64,
    ) {
        let others: Vec<String> = beside
            .iter()
            .map(|(name, time)| {
                let ratio = ours.as_secs_f64() / time.as_secs_f64();
                format!("{name} {} (x{ratio:.2})", millis(*time))
            })
            .collect();
        let figure = (ours.as_secs_f64() * 1e3, " ms");
        self.row(
            what,
            millis(ours),
            others.join(", "),
            figure,
            Target::AtMost(most),
        );
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = ["what", "ours", "beside", "figure", "target"].map(str::to_owned);
        let rows = || std::iter::once(&head).chain(&self.rows);
        let mut widths = [0; 5];
        for row in rows() {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        for row in rows() {
            for (cell, width) in row.iter().zip(widths) {
                write!(f, "{cell:width$}  ")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

/// The middle of what was measured.
pub(crate) fn median<T: PartialOrd + Copy>(mut values: Vec<T>) -> T {
    values.sort_by(|one, other| one.partial_cmp(other).unwrap_or(std::cmp::Ordering::Equal));
    values[values.len() / 2]
}

pub(crate) fn millis(time: Duration) -> String {
    format!("{:.3} ms", time.as_secs_f64() * 1e3)
}
