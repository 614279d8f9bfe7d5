//! What the gateway does with a worker's counts: adds them to its own, and takes the
//! levels back that a lost worker can no longer lower.

use std::collections::HashMap;

use metrics::{Key, Label, Level, Metadata};

use crate::wire;

static ABOUT: Metadata<'static> = Metadata::new("codespace_worker", Level::INFO, None);

/// The levels that one worker has raised.
#[derive(Default)]
pub(crate) struct Counts(HashMap<Key, f64>);

impl Counts {
    /// Adds what a worker counted.
    pub(crate) fn add(&mut self, metrics: wire::Metrics) {
        for metric in metrics.metrics {
            let labels: Vec<Label> = metric
                .labels
                .into_iter()
                .map(|(name, value)| Label::new(name, value))
                .collect();
            let key = Key::from_parts(metric.name, labels);
            metrics::with_recorder(|recorder| match metric.value {
                Some(wire::metric::Value::Counter(value)) => {
                    recorder.register_counter(&key, &ABOUT).increment(value);
                }
                Some(wire::metric::Value::Gauge(value)) => {
                    recorder.register_gauge(&key, &ABOUT).increment(value);
                    *self.0.entry(key.clone()).or_default() += value;
                }
                Some(wire::metric::Value::Samples(samples)) => {
                    let histogram = recorder.register_histogram(&key, &ABOUT);
                    samples
                        .values
                        .iter()
                        .for_each(|value| histogram.record(*value));
                }
                None => {}
            });
        }
    }

    /// Undoes the levels: everything the worker had is gone.
    pub(crate) fn level(&mut self) {
        for (key, risen) in self.0.drain() {
            metrics::with_recorder(|recorder| {
                recorder.register_gauge(&key, &ABOUT).decrement(risen);
            });
        }
    }
}
