//! What the worker tells unasked: which trees are gone, and what was counted.
//!
//! Events are numbered by their order. Every answer about a process says how many came
//! before it, so that a client which sees an exit can start the next command at once, and
//! a scrape sees what its client saw. The worker's recorder adds up in memory; what has
//! changed goes out before the next such answer, and every second.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};
use tokio::sync::mpsc;

use crate::wire;

/// The way out. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Outbox(Arc<Inner>);

struct Inner {
    out: Mutex<Out>,
    table: Table,
}

struct Out {
    sender: mpsc::UnboundedSender<wire::Event>,
    sent: u64,
}

impl Outbox {
    /// An outbox, and what comes out of it.
    pub(crate) fn new() -> (Self, mpsc::UnboundedReceiver<wire::Event>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        let inner = Inner {
            out: Mutex::new(Out { sender, sent: 0 }),
            table: Table::default(),
        };
        (Self(Arc::new(inner)), receiver)
    }

    /// A recorder whose counts go to the gateway.
    pub(crate) fn recorder(&self) -> Forwarder {
        Forwarder(Arc::clone(&self.0))
    }

    /// Sends what was counted, and answers how many events have been sent by now.
    pub(crate) fn flush(&self) -> u64 {
        let mut out = self.0.lock();
        if let Some(counted) = self.0.table.take() {
            out.send(wire::event::Event::Metrics(counted));
        }
        out.sent
    }

    /// What to hand to the runner: dropped, it says that this tree is gone.
    pub(crate) fn guard(&self, keep: u64) -> Box<dyn Send + Sync> {
        Box::new(Guard {
            outbox: self.clone(),
            keep,
        })
    }
}

impl Inner {
    // Each use leaves it whole.
    fn lock(&self) -> MutexGuard<'_, Out> {
        self.out.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Out {
    fn send(&mut self, event: wire::event::Event) {
        // Without a receiver the gateway is gone, and nobody counts.
        let _ = self.sender.send(wire::Event { event: Some(event) });
        self.sent += 1;
    }
}

struct Guard {
    outbox: Outbox,
    keep: u64,
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.outbox
            .0
            .lock()
            .send(wire::event::Event::Gone(self.keep));
    }
}

#[derive(Default)]
struct Table {
    series: Mutex<HashMap<Key, Arc<Series>>>,
    changed: Arc<AtomicBool>,
}

/// One series; which of the three it is, its name decides.
#[derive(Default)]
struct Series {
    changed: Arc<AtomicBool>,
    counter: AtomicU64,
    gauge: Mutex<Level>,
    samples: Mutex<Vec<f64>>,
}

#[derive(Default)]
struct Level {
    now: f64,
    told: f64,
}

impl Table {
    fn get(&self, key: &Key) -> Arc<Series> {
        let mut series = self.series.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = series.get(key) {
            return Arc::clone(known);
        }
        let new = Arc::new(Series {
            changed: Arc::clone(&self.changed),
            ..Series::default()
        });
        Arc::clone(series.entry(key.clone()).or_insert(new))
    }

    fn take(&self) -> Option<wire::Metrics> {
        if !self.changed.swap(false, Ordering::AcqRel) {
            return None;
        }
        let series = self.series.lock().unwrap_or_else(PoisonError::into_inner);
        let metrics: Vec<_> = series
            .iter()
            .flat_map(|(key, series)| {
                series
                    .take()
                    .into_iter()
                    .flatten()
                    .map(|value| metric(key, value))
            })
            .collect();
        (!metrics.is_empty()).then_some(wire::Metrics { metrics })
    }
}

fn metric(key: &Key, value: wire::metric::Value) -> wire::Metric {
    wire::Metric {
        name: key.name().to_owned(),
        labels: key
            .labels()
            .map(|label| (label.key().to_owned(), label.value().to_owned()))
            .collect(),
        value: Some(value),
    }
}

impl Series {
    fn take(&self) -> [Option<wire::metric::Value>; 3] {
        let counter = self.counter.swap(0, Ordering::AcqRel);
        let mut gauge = self.gauge.lock().unwrap_or_else(PoisonError::into_inner);
        let risen = gauge.now - gauge.told;
        gauge.told = gauge.now;
        let mut samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        let samples = std::mem::take(&mut *samples);
        [
            (counter != 0).then_some(wire::metric::Value::Counter(counter)),
            (risen != 0.0).then_some(wire::metric::Value::Gauge(risen)),
            (!samples.is_empty()).then_some(wire::metric::Value::Samples(wire::Samples {
                values: samples,
            })),
        ]
    }

    fn change(&self, change: impl FnOnce(&mut f64)) {
        change(
            &mut self
                .gauge
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .now,
        );
        self.changed.store(true, Ordering::Release);
    }
}

impl CounterFn for Series {
    fn increment(&self, value: u64) {
        self.counter.fetch_add(value, Ordering::AcqRel);
        self.changed.store(true, Ordering::Release);
    }

    // The gateway registers every series at zero; the worker has no other use for it.
    fn absolute(&self, _: u64) {}
}

impl GaugeFn for Series {
    fn increment(&self, value: f64) {
        self.change(|now| *now += value);
    }

    fn decrement(&self, value: f64) {
        self.change(|now| *now -= value);
    }

    fn set(&self, value: f64) {
        self.change(|now| *now = value);
    }
}

impl HistogramFn for Series {
    fn record(&self, value: f64) {
        self.samples
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(value);
        self.changed.store(true, Ordering::Release);
    }
}

/// Records for the gateway.
pub(crate) struct Forwarder(Arc<Inner>);

impl fmt::Debug for Forwarder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Forwarder")
    }
}

impl Recorder for Forwarder {
    // Descriptions are the gateway's.
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.0.table.get(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.0.table.get(key))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.0.table.get(key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_counted_goes_out_once_and_before_the_number() {
        let (outbox, mut receiver) = Outbox::new();
        let recorder = outbox.recorder();
        let key = Key::from_name("n");
        let about = Metadata::new("t", metrics::Level::INFO, None);
        let gauge = recorder.register_gauge(&key, &about);
        gauge.increment(2.0);
        recorder
            .register_counter(&Key::from_name("c"), &about)
            .increment(3);
        recorder
            .register_histogram(&Key::from_name("h"), &about)
            .record(0.5);
        assert_eq!(outbox.flush(), 1);
        let Some(wire::event::Event::Metrics(seen)) = receiver.try_recv().unwrap().event else {
            panic!("counts");
        };
        assert_eq!(seen.metrics.len(), 3);
        assert_eq!(outbox.flush(), 1, "nothing new");
        gauge.decrement(1.0);
        drop(outbox.guard(7));
        assert_eq!(outbox.flush(), 3);
        let gone = receiver.try_recv().unwrap().event;
        assert_eq!(gone, Some(wire::event::Event::Gone(7)));
        let Some(wire::event::Event::Metrics(seen)) = receiver.try_recv().unwrap().event else {
            panic!("counts");
        };
        let value = seen.metrics[0].value.clone();
        assert_eq!(value, Some(wire::metric::Value::Gauge(-1.0)));
    }
}
